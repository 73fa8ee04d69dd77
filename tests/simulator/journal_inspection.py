"""Checks the offset journal against the table of offsets, after every event that may have changed one of them.

The journal folded is the table, whenever all that was noted is written. Each record follows the one before, says a
cause that can be, and names who did it. No gap: what a crash takes is recovered.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.broker.broker import Broker
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.offsets import journal
from barnabas.offsets.journal import NO_OFFSET, NO_POSITION, NOT_KNOWN, Cause, Changes, Gap, Row
from barnabas.offsets.journal_history import Position, Positions
from barnabas.offsets.table import partitions_of
from barnabas.protocol import record_batch

from simulator.inspection import contents
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld

TIMES_DIFFER_MS = 10_000  # so much later than it was asked for may a commit be committed
READ_BYTES = 1 << 20
WRITTEN_WITHIN_MS = 60_000.0  # when all is calm
LOOK_MS = 250.0

Key = tuple[str, str, int]  # group, topic, partition


def fold(records: Iterable[Changes | Gap]) -> dict[str, Positions]:
    """The offsets of all groups after these changes, which begin with nothing committed. Without topic ids."""
    groups: dict[str, Positions] = {}
    for record in records:
        if isinstance(record, Gap):
            continue
        positions = groups.setdefault(record.group_id, {})
        for row in record.rows:
            key = (row.topic, row.partition)
            if row.new_offset == NO_OFFSET:
                positions.pop(key, None)
            else:
                positions[key] = Position(row.new_offset, row.new_leader_epoch, row.new_metadata)
    return {group_id: positions for group_id, positions in groups.items() if positions}


class _Last(NamedTuple):
    """The last change of an offset."""

    offset: int
    time_ms: int


class _Seen:
    """A partition of the journal, as far as it was read."""

    def __init__(self, log: object) -> None:
        self.log = log
        self.end_offset = -1
        self.end_position = NO_POSITION
        self.last: dict[Key, _Last] = {}
        self.compared: object = None


class JournalInspector:
    """`look` raises Violation. `retention_ms`: of committed offsets. `lasting`: topics that are never deleted."""

    def __init__(self, retention_ms: float, lasting: Collection[str]) -> None:
        self.records = 0
        self.comparisons = 0
        self.set_back_ms = 0  # how far the wall clock was set back, in all: so much younger may be what expires
        self._retention_ms = retention_ms
        self._lasting = lasting
        self._seen: dict[int, _Seen] = {}

    def look(self, broker: Broker) -> None:
        """Look at a serving broker."""
        for shard in broker.group_coordinator.loaded_shards():
            led = broker.replica_manager.partitions.get((JOURNAL_TOPIC, shard.partition))
            if led is None or not led.is_leader or shard.journal is None:
                continue
            seen = self._seen.get(shard.partition)
            if seen is None or seen.log is not led.log or led.log.log_end_offset < seen.end_offset:
                seen = self._seen[shard.partition] = _Seen(led.log)  # read from its begin, as after a restart
            self._read(seen, led.log)
            now = (seen.end_offset, contents(shard.offsets))
            if now != seen.compared and shard.journal.is_written:
                seen.compared = now
                self._compare(shard, seen)

    def look_at_the_end(self, broker: Broker) -> None:
        """All is calm: everything must have been written."""
        self.look(broker)
        for shard in broker.group_coordinator.loaded_shards():
            if shard.journal is not None and shard.offsets.committed and not shard.journal.is_written:
                raise Violation("the journal is written", f"offsets partition {shard.partition}")

    def _read(self, seen: _Seen, log: Any) -> None:
        while seen.end_offset < log.log_end_offset:
            begin = max(seen.end_offset, log.log_start_offset)
            data = log.read(begin, READ_BYTES, upper_bound=log.log_end_offset, at_least_one=True)
            if data.error or not len(data.records):
                return  # the weather does not let it be read now
            for header, batch in record_batch.batches(data.records):
                if header.base_offset >= seen.end_offset:
                    for record in record_batch.records(batch):
                        self._take(seen, journal.decode(record.key, record.value))
                    seen.end_offset = header.next_offset

    def _take(self, seen: _Seen, record: Changes | Gap) -> None:
        self.records += 1
        if isinstance(record, Gap):
            raise Violation("the journal has no gap", repr(record))
        if record.end_position <= seen.end_position:
            raise Violation("the journal is written once", repr(record))
        seen.end_position = record.end_position
        for row in record.rows:
            key = (record.group_id, row.topic, row.partition)
            before = seen.last.get(key, _Last(NO_OFFSET, 0))
            is_recovered = record.cause is Cause.RECOVERED or (
                record.cause is Cause.TRANSACTION and not record.client_id
            )
            if row.old_offset != before.offset and not (is_recovered and row.old_offset == NOT_KNOWN):
                raise Violation("the journal follows", f"{key}: {before.offset} before {record.cause.words} {row}")
            self._check_cause(record, row, before)
            # An offset of a transaction is older than its marker, and counts from its own time.
            seen.last[key] = _Last(row.new_offset, 0 if record.cause is Cause.TRANSACTION else record.time_ms)

    def _check_cause(self, record: Changes, row: Row, before: _Last) -> None:
        """Who may do what: members commit with their generation, others without; copiers commit in transactions; an
        admin deletes; the broker expires what is old enough, and forgets topics that are gone.
        """
        cause = record.cause
        is_removed = row.new_offset == NO_OFFSET
        is_named = bool(record.client_id) and bool(record.host)
        if cause is Cause.RECOVERED:
            fits = not is_named
        elif cause is Cause.COMMIT:
            is_member = record.client_id.startswith("member")
            fits = is_named and not is_removed
            fits = fits and is_member == bool(record.member_id) == (record.generation >= 0)
        elif cause is Cause.TRANSACTION:  # who has sent its offsets is not known after a restart
            is_copier = record.client_id.startswith("copier") and is_named
            fits = not is_removed and (is_copier if record.client_id else not record.host)
        elif cause is Cause.DELETION:
            fits = is_named and is_removed
        elif cause is Cause.EXPIRY:
            age_ms = record.time_ms - before.time_ms
            fits = is_removed and not is_named and age_ms >= self._retention_ms - TIMES_DIFFER_MS - self.set_back_ms
        elif cause is Cause.TOPIC_GONE:
            fits = is_removed and not is_named and row.topic not in self._lasting
        else:
            fits = False  # nobody does this here
        if not fits:
            raise Violation("the journal says why", f"{record} (before: {before})")

    def _compare(self, shard: Any, seen: _Seen) -> None:
        self.comparisons += 1
        table = {
            (group_id, topic, partition): committed.offset
            for group_id, topics in shard.offsets.committed.items()
            for topic, partitions in topics.items()
            for partition, committed in partitions.items()
        }
        folded = {key: last.offset for key, last in seen.last.items() if last.offset != NO_OFFSET}
        if folded != table:
            wrong = sorted(folded.items() ^ table.items())
            raise Violation("the journal is the table", f"offsets partition {shard.partition}: {wrong}")


async def check_cluster(world: "ClusterWorld") -> int:
    """All is calm, and the clients are still: check each partition of the journal; returns how many records it has."""
    deadline_ms = world.clock.monotonic_ms() + WRITTEN_WITHIN_MS
    while True:
        wrong, records = _look_at_cluster(world)
        if not wrong:
            return records
        if world.clock.monotonic_ms() > deadline_ms:
            raise Violation("the journal is the table", "; ".join(wrong))
        await world.clock.sleep(LOOK_MS)


def _look_at_cluster(world: "ClusterWorld") -> tuple[list[str], int]:
    """What is wrong now, and how many records there are."""
    excused = any(topic in (JOURNAL_TOPIC, OFFSETS_TOPIC) for topic, _, _ in world.inspector.excused)
    brokers = [life.broker for life in world.lives]
    wrong: list[str] = []
    count = 0
    for shard in [shard for broker in brokers for shard in broker.group_coordinator.loaded_shards()]:
        where = f"offsets partition {shard.partition}"
        if shard.journal is None or not shard.journal.is_written:
            wrong.append(f"{where}: not written")
            continue
        logs = [
            led.log
            for broker in brokers
            if (led := broker.replica_manager.partitions.get((JOURNAL_TOPIC, shard.partition))) and led.is_leader
        ]
        records = list(journal.without_repetitions(_all_of(logs[0]))) if len(logs) == 1 else []
        count += len(records)
        gaps = [record for record in records if isinstance(record, Gap)]
        if gaps and not excused:
            raise Violation("the journal has no gap", f"{where}: {gaps}")
        if gaps:
            continue
        folded = {group_id: {key: o.offset for key, o in of.items()} for group_id, of in fold(records).items()}
        table = {
            group_id: {key: offsets[key[0]][key[1]].offset for key in partitions_of(offsets)}
            for group_id, offsets in shard.offsets.committed.items()
            if offsets
        }
        if folded != table:
            wrong.append(f"{where}: {folded} in the journal, {table} in the table")
        last: dict[Key, int] = {}
        for record in records:
            assert isinstance(record, Changes)
            for row in record.rows:
                key = (record.group_id, row.topic, row.partition)
                known = last.get(key, NO_OFFSET)
                if row.old_offset not in (known, NOT_KNOWN) and not excused:
                    raise Violation("the journal follows", f"{where}: {key} {known} before {record}")
                last[key] = row.new_offset
    return wrong, count


def _all_of(log: Any) -> list[Changes | Gap]:
    found: list[Changes | Gap] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        data = log.read(position, READ_BYTES, upper_bound=log.log_end_offset, at_least_one=True)
        if data.error or not len(data.records):
            return []
        for header, batch in record_batch.batches(data.records):
            found += [journal.decode(record.key, record.value) for record in record_batch.records(batch)]
            position = header.next_offset
    return found
