"""What a fetch asks, by a consumer or a follower, and what it is answered, as values."""

from collections.abc import Iterable
from typing import Any

from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Buffer
from barnabas.storage.log import Log
from barnabas.storage.open_files import FileRange

CONSUMER = -1  # replica id of an ordinary consumer
FUTURE_REPLICA = -3  # a copy of the log that is being made in another log directory of this broker

READ_COMMITTED = 1


class FetchParams(NamedTuple):
    """The fields of a fetch request that hold for all its partitions. Sizes are in bytes."""

    replica_id: int = CONSUMER
    replica_epoch: int = -1  # the follower's broker epoch; -1: not sent
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    version: int = 13
    rack: str = ""
    listener: str = ""


class FetchPartition:
    """One partition of a fetch request. `topic` None: its topic id is unknown. Epochs -1: not sent."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str | None,
        index: int,
        fetch_offset: int,
        max_bytes: int,
        topic_id: bytes = NO_TOPIC_ID,
        log_start_offset: int = -1,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch


class FetchResult:
    """The answer for one partition; on an error all offsets are -1 and there are no records.

    `aborted_transactions` is None unless read_committed was requested; rows are (producer id, first offset).
    `diverging_epoch` is (epoch, end offset). `leader` is (id, epoch) if the error says that another broker leads.
    `next_offset` is the offset behind the records; a size limit may have ended them before the end of the log.
    """

    __slots__ = (
        "aborted_transactions",
        "diverging_epoch",
        "error",
        "high_watermark",
        "index",
        "last_stable_offset",
        "leader",
        "log_start_offset",
        "next_offset",
        "preferred_read_replica",
        "records",
        "topic",
        "topic_id",
    )

    def __init__(self, requested: FetchPartition, error: ErrorCode = ErrorCode.NONE) -> None:
        self.topic = requested.topic
        self.index = requested.index
        self.topic_id = requested.topic_id
        self.error = error
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.next_offset = -1
        self.records: Buffer | FileRange = b""
        self.aborted_transactions: list[tuple[int, int]] | None = None
        self.diverging_epoch: tuple[int, int] | None = None
        self.preferred_read_replica = -1
        self.leader: tuple[int, int] | None = None

    @staticmethod
    def of_log(requested: FetchPartition, log: Log) -> "FetchResult":
        """Without records yet: where the log begins, and what of it is committed."""
        result = FetchResult(requested)
        result.high_watermark = log.high_watermark
        result.last_stable_offset = log.last_stable_offset
        result.log_start_offset = log.log_start_offset
        return result

    @property
    def may_be_shared(self) -> bool:
        """Whether several answers may use the result. A file range belongs to one answer; errors differ by client."""
        return self.error is ErrorCode.NONE and not isinstance(self.records, FileRange)


class SharedResults(list[FetchResult]):
    """Results shared by several fetches that requested the same. They share the encoded `answer` as well."""

    __slots__ = ("answer",)

    def __init__(self, results: Iterable[FetchResult]) -> None:
        super().__init__(results)
        self.answer: Any = None
