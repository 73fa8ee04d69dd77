"""What a simulated cluster shows to its checkers: the lives of its brokers after every event, and what clients saw.

The world calls `Look` after every event that may have changed a broker. It writes `History` as its clients go, in the
manner of Jepsen: each operation is invoked once and ends at most once. OK: it has happened. FAIL: it has not happened
and never will. INFO: nobody knows, it may even happen later. An operation without an end counts as INFO.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simulator.coordination import SimTree
    from simulator.host import Life

TopicPartition = tuple[str, int]
DELETE_GROUP = "delete group"
EXPIRE_OFFSETS = "expire offsets"  # not asked by anybody: a client saw that their time is over

REMOVE_GROUP = "remove group"  # not asked by anybody either: it was empty, and began again


class Moment(NamedTuple):
    """What the world knows and the brokers do not."""

    now_ms: float
    calm_ms: (
        float  # for how long there has been no trouble: all brokers run, nothing is cut, no session is lost; else 0
    )


# All processes that live: a process that starts and does not serve yet, or is paused, is among them. Violation.
Look = Callable[[Sequence["Life"], "SimTree", Moment], None]


class Produce(NamedTuple):
    """Values that go to one partition as one batch. `base_offset` is -1 until the operation is OK."""

    partition: TopicPartition
    values: tuple[str, ...]
    acks: int  # only acks=-1 promises anything
    producer_id: int  # -1: not idempotent, so a value may be there as often as it was sent
    base_sequence: int
    base_offset: int = -1


class Fetch(NamedTuple):
    """A read from `position` on. The rest is filled when the operation is OK."""

    partition: TopicPartition
    position: int
    records: tuple[tuple[int, str], ...] = ()  # offset and value
    high_watermark: int = -1
    log_start_offset: int = -1


class Commit(NamedTuple):
    """Offsets committed for a group: one OffsetCommit. Generation -1: by a client without membership."""

    group_id: str
    offsets: tuple[tuple[TopicPartition, int], ...]
    generation: int = -1


class FetchOffsets(NamedTuple):
    """Committed offsets that were asked for; -1 where there is none. Empty until the operation is OK."""

    group_id: str
    offsets: tuple[tuple[TopicPartition, int], ...] = ()


class Assigned(NamedTuple):
    """A member got its partitions (only ever OK)."""

    group_id: str
    generation: int
    member_id: str
    partitions: tuple[TopicPartition, ...]


class Administer(NamedTuple):
    """An admin call: what it asks in words (`create topic`, `delete topic`, `add partitions`, `elect leaders`).

    For DELETE_GROUP, EXPIRE_OFFSETS and REMOVE_GROUP, `topic` is the group.
    """

    request: str
    topic: str
    partitions: int = 0


Operation = Produce | Fetch | Commit | FetchOffsets | Assigned | Administer


class Outcome(Enum):
    """What an event says of an operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Event(NamedTuple):
    """One line of a history. `number` is the same in the invocation of an operation and in its end."""

    at_ms: float
    client: str
    number: int
    outcome: Outcome
    operation: Operation


class History:
    """All events of a run, in order."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._now_ms = now_ms
        self._operations = 0

    def invoke(self, client: str, operation: Operation) -> int:
        """An operation begins; returns its number."""
        self._operations += 1
        self.events.append(Event(self._now_ms(), client, self._operations, Outcome.INVOKE, operation))
        return self._operations

    def end(self, client: str, number: int, outcome: Outcome, operation: Operation) -> None:
        """It ends. `operation` is what was invoked; for OK with what the answer said."""
        self.events.append(Event(self._now_ms(), client, number, outcome, operation))
