"""The offset journal in memory, for a `GroupWorld`: a log for each partition, a leader, and its troubles."""

from collections.abc import Iterator
from typing import Any

from barnabas.offsets import journal
from barnabas.offsets.journal import Changes, Gap
from barnabas.offsets.journal_place import Leader
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

HERE, ELSEWHERE = 1, 2


class MemoryJournal:
    """A `JournalPlace`. `leader_id` None: nobody leads; `failures`: errors of the next appends; `answers_are_lost`:
    what is written at the other broker is written, but its answer is lost."""

    def __init__(self, topic_id: Any) -> None:
        self.topic_id = topic_id
        self.is_there = True
        self.leader_id: int | None = HERE
        self.leader_epoch = 0
        self.own_id = bytes(16)  # another one when it was made again
        self.failures: list[ErrorCode] = []
        self.answers_are_lost = False
        self.is_silent = False
        self.batches: dict[int, list[bytes]] = {}
        self.creations = 0
        self.appends = 0

    # ---- as the writer sees it ----

    def leader(self, partition: int) -> Leader | None:
        if self.leader_id is None or not self.is_there:
            return None
        return self.leader_id, self.leader_epoch, self.own_id

    def local(self, partition: int) -> "MemoryJournalLog | None":
        return MemoryJournalLog(self, partition) if self.leader_id == HERE and self.is_there else None

    def exists(self) -> bool:
        return self.is_there

    def create(self) -> None:
        self.creations += 1

    def send(self, partition: int, leader_id: int, batch: Any) -> Pending[ErrorCode]:
        answer: Pending[ErrorCode] = Pending()
        if self.is_silent:
            answer.complete(ErrorCode.NETWORK_EXCEPTION)
            return answer
        error = self.append(partition, batch)
        answer.complete(ErrorCode.NETWORK_EXCEPTION if self.answers_are_lost else error)
        return answer

    def fetch_last_batch(self, partition: int, leader_id: int, before: int | None) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        answer.complete(None if self.is_silent else self.last_batch(partition, before))
        return answer

    def append(self, partition: int, batch: Any) -> ErrorCode:
        self.appends += 1
        if self.failures:
            return self.failures.pop(0)
        batches = self.batches.setdefault(partition, [])
        record_batch.patch(batch, 0, len(batches), 0)
        batches.append(bytes(batch))
        return ErrorCode.NONE

    def last_batch(self, partition: int, before: int | None) -> bytes:
        batches = self.batches.get(partition, [])[:before]
        return batches[-1] if batches else b""

    # ---- as the test sees it ----

    def everything(self, partition: int = 0) -> list[Changes | Gap]:
        """All records, with repetitions."""
        return list(self._records(partition))

    def records(self, partition: int = 0) -> list[Changes | Gap]:
        """The records, without repetitions."""
        return list(journal.without_repetitions(self._records(partition)))

    def changes(self, partition: int = 0) -> list[Changes]:
        """The records that are not gaps."""
        return [record for record in self.records(partition) if isinstance(record, Changes)]

    def _records(self, partition: int) -> Iterator[Changes | Gap]:
        for batch in self.batches.get(partition, []):
            for record in record_batch.records(batch):
                yield journal.decode(record.key, record.value)


class MemoryJournalLog:
    """A `JournalLog`."""

    def __init__(self, place: MemoryJournal, partition: int) -> None:
        self._place = place
        self._partition = partition

    @property
    def leader(self) -> Leader:
        leads = self._place.leader_id == HERE and self._place.is_there
        return (HERE if leads else -1), self._place.leader_epoch, self._place.own_id

    def append(self, batch: Any) -> ErrorCode:
        return self._place.append(self._partition, batch.data)

    @property
    def log_end_offset(self) -> int:
        return len(self._place.batches.get(self._partition, []))

    def last_batch(self, before: int | None) -> bytes:
        return self._place.last_batch(self._partition, before)
