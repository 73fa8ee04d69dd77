"""The lag of a group: what its committed positions mean in the logs that they point into.

Pure: the leader of each partition has said what it knows of the position (`replication/positions.py`), and this module
says what that means for the group. What is not known is None, and never 0.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset
from barnabas.protocol import uuids
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:  # commands need the rows, and not the log
    from barnabas.replication.positions import PositionInLog
    from barnabas.storage.unread import Unread

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"


class Status(StrEnum):
    """What a committed offset means in its log."""

    OK = "ok"
    BEFORE_LOG_START = "before_log_start"  # records that the group has not read are deleted
    PAST_LOG_END = "past_log_end"  # such an offset was never written, or is lost
    LOG_CUT = "log_cut"  # the log was cut below it, so others have taken the place of records that the group has read
    TOPIC_MADE_AGAIN = "topic_made_again"  # committed for a deleted topic of the same name
    NO_SUCH_TOPIC = "no_such_topic"
    NO_LEADER = "no_leader"
    OTHER_LEADER = "other_leader"  # another broker leads the partition: ask that one
    UNKNOWN = "unknown"  # the leader cannot say it now


def topic_id_text(topic_id: bytes) -> str | None:
    """A topic id as JSON; None: the commit named none."""
    return None if topic_id == NO_TOPIC_ID else uuids.to_text(topic_id)


def topic_id_of(text: str | None) -> bytes:
    """The inverse. ValueError if it is not an id."""
    return NO_TOPIC_ID if text is None else uuids.from_text(text)


class Position(NamedTuple):
    """A committed offset of one partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    topic_id: bytes = NO_TOPIC_ID

    @classmethod
    def of(cls, topic: str, partition: int, committed: CommittedOffset) -> "Position":
        """As it is in the table of offsets."""
        return cls(topic, partition, committed.offset, committed.leader_epoch, committed.topic_id)


class IsolationLag(NamedTuple):
    """What a consumer of one isolation level has not read: from `records_min` to `records` records, in `bytes` of log.

    `seconds`: how old the first of these records is; 0 if there is none.
    """

    records: int
    records_min: int
    bytes: int
    seconds: float | None

    @property
    def is_exact(self) -> bool:
        """Whether the records were counted."""
        return self.records == self.records_min


class PartitionLag(NamedTuple):
    """The lag in one partition. The first five fields are the position.

    `lost_records_max`: so many records at most were deleted before the group read them. `goes_ms`, `goes_after_bytes`:
    when retention may take the next record, by the clock and by what is written until then. `held_until_ms`: it waits
    for groups already, and so long at most.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    topic_id: bytes
    status: Status
    leader: int | None = None
    error: str | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_end_offset: int | None = None
    cut_at: int | None = None
    lost_records_max: int = 0
    goes_ms: int | None = None
    goes_after_bytes: int | None = None
    held_until_ms: int | None = None
    read_uncommitted: IsolationLag | None = None
    read_committed: IsolationLag | None = None

    @property
    def position(self) -> Position:
        return Position(self.topic, self.partition, self.offset, self.leader_epoch, self.topic_id)

    def of(self, isolation: str) -> IsolationLag | None:
        """The lag for an isolation level; None: not known."""
        return self.read_committed if isolation == READ_COMMITTED else self.read_uncommitted

    def as_json(self) -> dict[str, Any]:
        row = self._asdict()
        row["topic_id"] = topic_id_text(self.topic_id)
        for name in (READ_UNCOMMITTED, READ_COMMITTED):
            lag: IsolationLag | None = row[name]
            if lag is not None:
                row[name] = {**lag._asdict(), "exact": lag.is_exact}
        return row

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "PartitionLag":
        """The inverse of `as_json`. Fields that this version does not know are left out."""
        values = {name: value for name, value in row.items() if name in cls._fields}
        values["topic_id"] = topic_id_of(values["topic_id"])
        values["status"] = Status(values["status"]) if values["status"] in list(Status) else Status.UNKNOWN
        for name in (READ_UNCOMMITTED, READ_COMMITTED):
            lag = values.get(name)
            if lag is not None:
                values[name] = IsolationLag(lag["records"], lag["records_min"], lag["bytes"], lag["seconds"])
        return cls(**values)


_STATUS_OF_ERROR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Status.NO_SUCH_TOPIC,
    ErrorCode.LEADER_NOT_AVAILABLE: Status.NO_LEADER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Status.OTHER_LEADER,
}


def lag_of(position: Position, leader: int | None, found: "PositionInLog", now_ms: int) -> PartitionLag:
    """The lag of a position, by what the leader has said of it."""
    offset = position.offset
    if found.error:
        status = _STATUS_OF_ERROR.get(found.error, Status.UNKNOWN)
        error = found.error.name if status is Status.UNKNOWN else None
        return PartitionLag(*position, status, leader, error)
    lost = 0
    if found.of_other_topic:
        status = Status.TOPIC_MADE_AGAIN
    elif found.cut_at is not None:
        status = Status.LOG_CUT
    elif found.unread is None:
        status = Status.PAST_LOG_END
    elif offset < found.log_start_offset:
        status = Status.BEFORE_LOG_START
        lost = found.log_start_offset - offset
    else:
        status = Status.OK
    unread, goes = found.unread, found.forecast
    return PartitionLag(
        *position,
        status,
        leader,
        log_start_offset=found.log_start_offset,
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_end_offset=found.log_end_offset,
        cut_at=found.cut_at,
        lost_records_max=lost,
        goes_ms=None if goes is None else goes.after_ms,
        goes_after_bytes=None if goes is None else goes.after_bytes,
        held_until_ms=found.held_until_ms,
        read_uncommitted=None if unread is None else _isolation_lag(unread.read_uncommitted, now_ms),
        read_committed=None if unread is None else _isolation_lag(unread.read_committed, now_ms),
    )


def _isolation_lag(unread: "Unread", now_ms: int) -> IsolationLag:
    seconds: float | None = 0.0
    if unread.records_max:
        timestamp = unread.next_timestamp
        seconds = None if timestamp is None else max(now_ms - timestamp, 0) / 1000
    return IsolationLag(unread.records_max, unread.records_min, unread.bytes, seconds)


class TotalLag(NamedTuple):
    """The lag in all partitions that are known; `unknown` counts the others. `seconds` is that of the oldest record."""

    records: int
    records_min: int
    bytes: int
    seconds: float | None
    unknown: int
    lost_records_max: int


def total(rows: Sequence[PartitionLag], isolation: str) -> TotalLag:
    """The lag of the group in these partitions."""
    known = [lag for lag in (row.of(isolation) for row in rows) if lag is not None]
    return TotalLag(
        sum(lag.records for lag in known),
        sum(lag.records_min for lag in known),
        sum(lag.bytes for lag in known),
        max((lag.seconds for lag in known if lag.seconds is not None), default=None),
        len(rows) - len(known),
        sum(row.lost_records_max for row in rows),
    )


def with_answers(rows: Iterable[PartitionLag], answers: Iterable[PartitionLag]) -> list[PartitionLag]:
    """The rows of a coordinator, those of other leaders replaced by what these leaders have answered."""
    known = {(row.topic, row.partition): row for row in answers}
    return [known.get((row.topic, row.partition), row) if row.status is Status.OTHER_LEADER else row for row in rows]
