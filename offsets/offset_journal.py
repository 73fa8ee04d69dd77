"""The offset journals of the offsets partitions that this broker owns (journal_writer.py writes one of them)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from barnabas.coordinators.shard import CoordinatorLog
from barnabas.offsets.journal_place import JournalPlace
from barnabas.offsets.journal_writer import PartitionJournal
from barnabas.offsets.records import NO_TOPIC_ID, TopicColumns
from barnabas.offsets.table import OffsetTable
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task

LINGER_MS = 20.0  # two appends are at least so far apart
LOOK_MS = 1_000.0  # how often it is looked whether what waits can be written
TOPIC_IDS_MAX = 10_000
COMMITS_KEPT_MAX = 2_000  # the last ones of so many groups are at hand, to know what is old at their next one
OFFSETS_KEPT_MAX = 200  # of each


class OffsetJournal:
    """The journals of the offsets partitions that this broker owns."""

    def __init__(self, env: Env, place: JournalPlace) -> None:
        self.env = env
        self.place = place
        self.waiting_bytes = 0
        self.partitions: dict[int, PartitionJournal] = {}
        self._marked: list[PartitionJournal] = []
        # The last change of a group, if it was a commit of several offsets. Whatever changes the table removes it.
        self.last_commits: dict[str, list[TopicColumns]] = {}
        self._topic_ids: dict[str, bytes] = {}  # the last ones that were asked for
        self._flush_is_due = False
        self._flushed_ms = float("-inf")
        self._task: Task[PartitionJournal] | None = None

    def start(self) -> None:
        """Begin to look, every second, whether what waits can be written."""
        self._task = self.env.upkeep.every("offset journal", lambda: LOOK_MS, self._with_work, PartitionJournal.write)

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None

    def open(self, partition: int, log: CoordinatorLog, table: OffsetTable) -> PartitionJournal:
        """Begin to note the changes of an offsets partition that was loaded up to the end of its log."""
        opened = self.partitions[partition] = PartitionJournal(self, partition, log, table)
        if opened.has_work:
            opened.write()
        return opened

    def keep(self, group_id: str, commit: list[TopicColumns], count: int) -> None:
        """A group's last change is this commit of so many offsets."""
        kept = self.last_commits
        if count > OFFSETS_KEPT_MAX:
            kept.pop(group_id, None)
            return
        if len(kept) >= COMMITS_KEPT_MAX and group_id not in kept:
            kept.clear()
        kept[group_id] = commit

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; the last one that it had, if it does not exist."""
        found = self.place.topic_id(topic)
        known = self._topic_ids.get(topic, NO_TOPIC_ID)
        if found is known or found == NO_TOPIC_ID:
            return known
        if topic not in self._topic_ids and len(self._topic_ids) >= TOPIC_IDS_MAX:
            self._topic_ids.clear()
        self._topic_ids[topic] = found
        return found

    def former_topic_id(self, topic: str) -> bytes:
        """The id that a topic had when an offset of it was last written down."""
        return self._topic_ids.get(topic) or self.place.topic_id(topic)

    def forget(self, partition: PartitionJournal) -> None:
        """It is closed."""
        self.last_commits.clear()  # another broker may change these groups now
        if self.partitions.get(partition.partition) is partition:
            del self.partitions[partition.partition]

    def _with_work(self) -> Iterator[PartitionJournal]:
        for partition in list(self.partitions.values()):
            if partition.has_work:
                yield partition

    def leader_changed(self, partitions: Iterable[int]) -> None:
        """Partitions of the journal have other leaders: write now what waits for them."""
        for index in partitions:
            found = self.partitions.get(index)
            if found is not None and found.has_work:
                self.mark(found)

    def mark(self, partition: PartitionJournal) -> None:
        """Flush it at the end of this pass of the loop, or LINGER_MS after the last flush."""
        self._marked.append(partition)
        if self._flush_is_due:
            return
        self._flush_is_due = True
        clock = self.env.clock
        wait_ms = self._flushed_ms + LINGER_MS - clock.monotonic_ms()
        if wait_ms <= 0:
            clock.call_soon(self._flush)
        else:
            clock.call_later(wait_ms, self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._flushed_ms = self.env.clock.monotonic_ms()
        marked, self._marked = self._marked, []
        for partition in marked:
            partition.flush()
