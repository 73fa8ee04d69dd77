"""Where the offset journal is: what its writer asks of the broker."""

from typing import Protocol

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.record_batch import PlainBatch
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer

Leader = tuple[int, int, bytes]  # broker id, leader epoch, and id of the topic, which may be made again


class JournalLog(Protocol):
    """The log of a partition of the journal that this broker leads."""

    @property
    def leader(self) -> Leader:
        """This broker and the epoch in which it leads now; another value if it does not."""

    def append(self, batch: PlainBatch) -> ErrorCode:
        """Append without waiting for replicas."""

    @property
    def log_end_offset(self) -> int:
        """The offset after its last record."""

    def last_batch(self, before: int | None) -> Buffer:
        """The last batch before an offset, or of all; empty if there is none. OSError when it cannot be read."""


class JournalPlace(Protocol):
    """Where the journal is: what its writer asks of the broker."""

    def leader(self, partition: int) -> Leader | None:
        """Who leads a partition of the journal; None: it does not exist, or has no live leader."""

    def local(self, partition: int) -> JournalLog | None:
        """Its log, if this broker leads it."""

    def exists(self) -> bool:
        """Whether there is a journal."""

    def create(self) -> None:
        """Begin to create the journal."""

    def send(self, partition: int, leader_id: int, batch: Buffer) -> Pending[ErrorCode]:
        """Append at the broker that leads it."""

    def fetch_last_batch(self, partition: int, leader_id: int, before: int | None) -> Pending[Buffer | None]:
        """The last batch before an offset, or of all, from the broker that leads it; None: it did not answer."""

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; zeros when it has none or does not exist."""


class Progress(NamedTuple):
    """How far a partition of the journal is. Positions are those in the log of offsets; -1: not known.

    All that was noted before `written_to` is in the journal, before `end_offset` there (-1: before its present end).
    """

    noted_to: int
    written_to: int
    end_offset: int


NOT_WRITTEN = Progress(-1, -1, -1)
