"""What a follower asks of the leader of one partition, and what it does with an answer. Without a connection.

A `Follower` is one partition that follows one leader in one epoch. Another epoch has another object, so an answer that
comes late is known by the object that asked for it.
"""

import logging
from enum import Enum

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchResponse
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.replication.partition import Partition
from barnabas.replication.truncation import truncation_by_epoch

logger = logging.getLogger("barnabas.replication")

FIRST_BACKOFF_MS = 20.0  # a new leader is often a few milliseconds late: a second would be an outage


class Backoff:
    """How long to wait after a failure: 20 ms, then twice as long each time, up to a setting. A success resets it."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = FIRST_BACKOFF_MS

    def next_ms(self, longest_ms: float) -> float:
        """The wait after one more failure."""
        delay_ms = min(self._next_ms, longest_ms)
        self._next_ms = min(2 * self._next_ms, max(longest_ms, FIRST_BACKOFF_MS))
        return delay_ms

    def reset(self) -> None:
        self._next_ms = FIRST_BACKOFF_MS


class Asked(NamedTuple):
    """What a follower tells the leader of one partition. Everything below `fetch_offset` is acknowledged by it."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Follower:
    """One partition in one epoch of its leader."""

    __slots__ = (
        "asked",
        "backoff",
        "has_ended",
        "index",
        "leader_epoch",
        "leader_id",
        "partition",
        "said",
        "topic",
        "topic_id",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.topic = partition.topic
        self.index = partition.index
        self.topic_id = partition.topic_id
        self.leader_id = partition.leader_id
        self.leader_epoch = partition.leader_epoch
        self.backoff = Backoff()
        self.has_ended = False
        self.asked: Asked | None = None  # what the leader was told last
        self.said = ""  # which trouble was logged last, and is not over

    def __repr__(self) -> str:
        return f"<Follower of {self.leader_id} in {self.topic}-{self.index}, epoch {self.leader_epoch}>"

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows this leader in this epoch. To be asked again after every wait."""
        partition = self.partition
        return (
            not self.has_ended
            and not partition.is_leader
            and partition.leader_epoch == self.leader_epoch
            and partition.leader_id == self.leader_id
            and partition.topic_id == self.topic_id
            and not partition.log.closed
        )

    def ask(self) -> Asked:
        """What the leader is to be told now."""
        log = self.partition.log
        return Asked(log.log_end_offset, log.leader_epochs.latest, log.log_start_offset)


class Action(Enum):
    """What is to be done with a partition after an answer."""

    GO_ON = "fetch on"
    IGNORE = "the answer is for another time"
    BACK_OFF = "try again later"
    TRUNCATE = "cut the log from `offset` on, then fetch on"
    BEGIN_ANEW = "drop the log, begin at `offset`, and append the same records"
    LOOK_UP = "ask the leader for the ends of its log"
    GIVE_UP = "do not follow until the controller says so again"


class Verdict(NamedTuple):
    """What is to be done, and why, for the log."""

    action: Action
    offset: int = -1
    why: str = ""
    is_trouble: bool = False  # not what happens whenever leaders move


GO_ON = Verdict(Action.GO_ON)
IGNORE = Verdict(Action.IGNORE)


def handle_answer(follower: Follower, answer: FetchResponse.PartitionData) -> Verdict:
    """Append what the leader has sent, and take over its high watermark and log start; or say what to do instead."""
    partition = follower.partition
    log = partition.log
    asked = follower.asked
    if not follower.is_current or asked is None or asked.fetch_offset != log.log_end_offset:
        return IGNORE
    error = answer.error_code
    if error:
        return verdict_of_error(error)
    diverging = answer.diverging_epoch
    if diverging.end_offset >= 0 or diverging.epoch >= 0:
        end = log.log_end_offset
        cut = truncation_by_epoch(
            diverging.epoch,
            diverging.end_offset,
            lambda epoch: log.leader_epochs.end_offset_for(epoch, end),
            end,
            log.high_watermark,
        )
        return Verdict(Action.TRUNCATE, cut, f"the leader has epoch {diverging.epoch} to {diverging.end_offset}")
    return append(follower, answer)


def append(follower: Follower, answer: FetchResponse.PartitionData) -> Verdict:
    partition = follower.partition
    result = partition.append_as_follower(
        answer.records or b"", follower.leader_epoch, answer.high_watermark, answer.log_start_offset
    )
    error = result.error
    if error is ErrorCode.NONE:
        return GO_ON
    if error is ErrorCode.KAFKA_STORAGE_ERROR and partition.log.failed is not None:
        return Verdict(Action.GIVE_UP, why=result.error_message or "", is_trouble=True)
    if error is ErrorCode.OFFSET_OUT_OF_RANGE and partition.log_end_offset == partition.log_start_offset:
        # The log is empty, and the leader's log begins in the middle of a batch: the log begins with the whole batch.
        return Verdict(Action.BEGIN_ANEW, result.base_offset, "the first batch begins below the log start")
    is_told = partition.log.write_blocked is not None  # the disk says it once for all its logs
    return Verdict(Action.BACK_OFF, why=result.error_message or error.name, is_trouble=not is_told)


def verdict_of_error(error: int) -> Verdict:
    """What to do when the leader refuses a partition."""
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Verdict(Action.LOOK_UP)
    if error == ErrorCode.FENCED_LEADER_EPOCH:
        return Verdict(Action.GIVE_UP, why="the leader is in a newer epoch")
    return Verdict(Action.BACK_OFF, why=ErrorCode.of(error).name)
