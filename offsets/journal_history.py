"""What the offset journal tells: which offsets a group had at a time, and what was done to them. Pure functions.

`records` are those of one group, and the gaps of its partition, in the order of the journal (journal.py).
"""

from collections.abc import Iterable, Sequence

from barnabas.offsets.journal import NO_OFFSET, NOT_KNOWN, Cause, Changes, Gap, Row
from barnabas.offsets.records import NO_TOPIC_ID, TopicPartition
from barnabas.protocol.named_tuple import NamedTuple

CLOCKS_DIFFER_MS = 1_000  # from broker to broker, and by small corrections
OPERATION_MS = 1_000  # records of one client and cause that are nearer than this belong to one operation


class Position(NamedTuple):
    """A committed offset with what belongs to it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = NO_TOPIC_ID  # zeros: not known


NOWHERE = Position(NO_OFFSET)
UNKNOWN = Position(NOT_KNOWN)

Positions = dict[TopicPartition, Position]


def old_position(row: Row) -> Position:
    return Position(row.old_offset, row.old_leader_epoch, row.old_metadata, row.topic_id)


def new_position(row: Row) -> Position:
    return Position(row.new_offset, row.new_leader_epoch, row.new_metadata, row.topic_id)


def _time_ms(record: Changes | Gap) -> int:
    return record.last_ms if isinstance(record, Gap) else record.time_ms


def split_at(records: Sequence[Changes | Gap], time_ms: int) -> int:
    """How many of the records, from the first on, were written up to a time.

    A clock that was set forward or back leaves records whose times are wrong, but their order is right. So this is the
    place that the fewest of the times contradict; of two such places the one that those contradict by more.
    """
    earlier = [time_ms - _time_ms(record) for record in records if _time_ms(record) <= time_ms]
    contradicting, by_ms = len(earlier), sum(earlier)  # if all were later
    best, split = (contradicting, -by_ms), 0
    for count, record in enumerate(records, 1):
        later_ms = _time_ms(record) - time_ms
        contradicting += 1 if later_ms > 0 else -1
        by_ms += later_ms
        if (contradicting, -by_ms) < best:
            best, split = (contradicting, -by_ms), count
    return split


def clock_set_back(records: Iterable[Changes | Gap]) -> tuple[int, int] | None:
    """The last place where the clock went back by more than the clocks of brokers differ: from when to when."""
    found = before_ms = None
    for record in records:
        if isinstance(record, Gap):
            continue
        if before_ms is not None and before_ms - record.time_ms > CLOCKS_DIFFER_MS:
            found = before_ms, record.time_ms
        before_ms = record.time_ms
    return found


def positions_at(records: Sequence[Changes | Gap], time_ms: int, now: Positions) -> Positions:
    """Where the group was at a time, for each partition that it has or had since: NOWHERE if it had none.

    UNKNOWN where the journal does not say it: because of a gap, or because `records` begin too late.
    """
    # The first later change of a partition says where it was before it, and without one it is where it is now; but not
    # if a gap comes between. Then the last earlier change says it, unless a gap comes after that one, too. A gap of
    # which it is not known when it began (0) did not begin before what is written ahead of it.
    first_later: dict[TopicPartition, Position] = {}
    last_earlier: Positions = {}
    gap_is_between = any_later = False  # since the time
    split = split_at(records, time_ms)
    for index, record in enumerate(records):
        later = index >= split
        if isinstance(record, Gap):
            if not later or (record.first_ms <= time_ms and (record.first_ms or not any_later)):
                last_earlier.clear()
            if record.last_ms > time_ms or later:
                gap_is_between = True
            continue
        any_later = later
        for row in record.rows:
            key = (row.topic, row.partition)
            if not later:
                last_earlier[key] = new_position(row)
            elif key not in first_later:
                first_later[key] = UNKNOWN if gap_is_between else old_position(row)
    found: Positions = {}
    for key in {**last_earlier, **first_later, **now}:
        position = first_later.get(key)
        if position is None:
            position = UNKNOWN if gap_is_between else now.get(key, NOWHERE)
        if position.offset == NOT_KNOWN:
            position = last_earlier.get(key, UNKNOWN)
        found[key] = position
    return found


def lacking(
    records: Iterable[Changes | Gap], now: Positions, *, may_move: bool, is_all: bool = False
) -> list[TopicPartition]:
    """Which partitions of these records are elsewhere now: the last changes of them are not among the records.

    `may_move`: the records may have later changes than `now`. `is_all`: these are all records that there are, so a
    partition that is in none is missing, too, unless a gap may have it.
    """
    seen: dict[TopicPartition, list[int]] = {key: [] for key in now} if is_all else {}
    for record in records:
        if isinstance(record, Gap):
            seen.clear()
            continue
        for row in record.rows:
            offsets = seen.setdefault((row.topic, row.partition), [row.old_offset])
            if not may_move:
                offsets.clear()
            offsets.append(row.new_offset)
    return sorted(key for key, offsets in seen.items() if now.get(key, NOWHERE).offset not in offsets)


class Operation(NamedTuple):
    """What somebody did to a group at one time: a reset, a deletion, an expiry, …"""

    records: list[Changes]

    @property
    def rows(self) -> dict[TopicPartition, Row]:
        """Each partition with its first change."""
        rows: dict[TopicPartition, Row] = {}
        for record in self.records:
            for row in record.rows:
                rows.setdefault((row.topic, row.partition), row)
        return rows


def last_operation(records: Iterable[Changes | Gap]) -> Operation | None:
    """The last thing that was done to a group besides the commits of its consumers; None: there is none.

    One command can make several records: a large one, or one that commits some offsets and deletes others.
    """
    last: list[Changes] = []
    for record in records:
        if isinstance(record, Gap) or record.cause in (Cause.COMMIT, Cause.TRANSACTION, Cause.RECOVERED):
            continue
        if last:
            before = last[-1]
            same = (before.client_id, before.host, before.principal) == (
                record.client_id,
                record.host,
                record.principal,
            )
            if not same or not 0 <= record.time_ms - before.time_ms <= OPERATION_MS:
                last = []
        last.append(record)
    return Operation(last) if last else None


def before(operation: Operation, records: Sequence[Changes | Gap]) -> Positions:
    """Where the partitions of an operation were before it. UNKNOWN where the journal does not say it."""
    earlier: Positions = {}
    for record in records:
        if record is operation.records[0]:
            break
        if isinstance(record, Gap):
            earlier.clear()
        else:
            earlier.update(((row.topic, row.partition), new_position(row)) for row in record.rows)
    found: Positions = {}
    for key, row in operation.rows.items():
        position = old_position(row)
        found[key] = earlier.get(key, UNKNOWN) if position.offset == NOT_KNOWN else position
    return found
