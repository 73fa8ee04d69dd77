"""Logs from brokers, over the wire."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from barnabas.coordinators.coordinator import partition_for
from barnabas.pipeline.batches import OFFSETS_END, WRONG_CHECKSUM, Batches, walk
from barnabas.pipeline.directories import is_wanted
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.options import ReadOptions
from barnabas.pipeline.origin import TASKS_AT_LEAST, LogKey, LogState, OffsetRange, Wanted
from barnabas.pipeline.place import Place, Read
from barnabas.pipeline.transactions import Aborted, Deciding, Ended, Transactions, control_types
from barnabas.pipeline.wire import (
    EARLIEST,
    INVALID_METADATA_ERRORS,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    RETRY_TIMEOUT_S,
    Answer,
    Cluster,
    LostConnectionError,
    UnreachableError,
    error_name,
    fetch_request,
)
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import CONTROL, HEADER, HEADER_BYTES
from barnabas.protocol.errors import ErrorCode
from pyspark.sql.datasource import InputPartition

logger = logging.getLogger("barnabas.pipeline")

FETCH_BYTES = 4 << 20
_TASK_OFFSETS_MIN = 10_000
_FETCH_BYTES_MAX = 128 << 20  # brokers take no larger request (socket.request.max.bytes), so no larger batch


@dataclass
class BrokerTask(InputPartition):
    """What one task reads."""

    ranges: Sequence[OffsetRange]


@dataclass(frozen=True)
class BrokerOrigin:
    """The logs of these topics on the brokers that the options name."""

    options: ReadOptions
    topics: tuple[str, ...]
    with_internal: bool
    decides: bool = False  # of commits only those are held back whose transaction is open, not all that follow

    def _cluster(self) -> Cluster:
        cluster = Cluster(self.options.brokers)
        cluster.refresh()
        return cluster

    def _partitions(self, cluster: Cluster) -> list[tuple[str, int]]:
        return sorted(
            one for one in cluster.partitions if is_wanted(one[0], self.topics, with_internal=self.with_internal)
        )

    @property
    def _isolation(self) -> int:
        return READ_COMMITTED if self.options.is_read_committed and not self.decides else READ_UNCOMMITTED

    def states(self) -> dict[LogKey, LogState]:
        with self._cluster() as cluster:
            partitions = self._partitions(cluster)
            firsts = cluster.offsets(partitions, EARLIEST)
            stable: dict[tuple[str, int], int] = {}
            if self.decides and self.options.is_read_committed:  # before the ends: what begins meanwhile is above both
                stable = cluster.offsets(partitions, LATEST, READ_COMMITTED)
            ends = cluster.offsets(partitions, LATEST, self._isolation)
            ids = {one: cluster.partitions[one].topic_id for one in partitions}
        return {LogKey(*one): LogState(ids[one], firsts[one], ends[one], stable.get(one)) for one in partitions}

    def log_ends(self) -> dict[LogKey, int]:
        """None: a broker gives out what is below the high watermark, or an error."""
        return {}

    def tasks(self, wanted: Wanted) -> list[InputPartition]:
        """Ranges of about `splitOffsets` offsets; small ones share a task."""
        with self._cluster() as cluster:
            partitions = [one for one in self._partitions(cluster) if self._is_wanted(cluster, wanted, one)]
            firsts = cluster.offsets(partitions, EARLIEST)
            ends = cluster.offsets(partitions, LATEST, self._isolation)
            if wanted.newer_than_ms is not None and wanted.newer_than_ms > 0:
                for one, offset in cluster.offsets(partitions, wanted.newer_than_ms).items():
                    firsts[one] = ends[one] if offset < 0 else max(firsts[one], offset)
        ranges = [
            OffsetRange(LogKey(*one), max(firsts[one], low), min(ends[one], high), ends[one])
            for one in partitions
            for low, high in wanted.of(one[1])
        ]
        return self.tasks_of(ranges)

    def _is_wanted(self, cluster: Cluster, wanted: Wanted, partition: tuple[str, int]) -> bool:
        if not wanted.has(*partition):
            return False
        if wanted.groups is None:
            return True
        count = cluster.partition_count(partition[0])
        return any(partition_for(group, count) == partition[1] for group in wanted.groups)

    def tasks_of(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        """The same for given ranges of offsets."""
        ranges = [one for one in ranges if one.high > one.low]
        total = sum(one.high - one.low for one in ranges)
        size = max(_TASK_OFFSETS_MIN, min(self.options.split_offsets, total // TASKS_AT_LEAST))
        tasks: list[InputPartition] = []
        some: list[OffsetRange] = []
        room = size
        for one in ranges:
            low = one.low
            while low < one.high:
                high = min(one.high, low + room)
                until = one.high if one.until < 0 else one.until
                some.append(OffsetRange(one.key, low, high, until, one.only))
                room -= high - low
                low = high
                if not room:
                    tasks.append(BrokerTask(some))
                    some, room = [], size
        return [*tasks, BrokerTask(some)] if some or not tasks else tasks

    def within_bytes(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], size: int) -> dict[LogKey, int]:
        """A broker does not say where so many bytes end, so this goes by the average size of a partition's offsets."""
        states = self.states()
        with self._cluster() as cluster:
            sizes = cluster.log_bytes((key.topic, key.partition) for key in ends)
        there: dict[LogKey, float] = {}
        for key, end in ends.items():
            state = states[key]
            average = sizes.get((key.topic, key.partition), 0) / max(1, state.end_offset - state.first_offset)
            there[key] = (end - starts[key]) * average
        total = sum(there.values())
        if total <= size:
            return dict(ends)
        share = size / total
        return {key: min(end, starts[key] + max(1, int((end - starts[key]) * share))) for key, end in ends.items()}

    def within_files(self, starts: Mapping[LogKey, int], ends: Mapping[LogKey, int], count: int) -> dict[LogKey, int]:
        """A broker does not say where its files end."""
        raise NotImplementedError("the options were checked")

    def read(self, task: InputPartition) -> Iterator[Read]:
        assert isinstance(task, BrokerTask)
        if not task.ranges:
            return
        with Cluster(self.options.brokers) as cluster:
            cluster.refresh(sorted({one.key.topic for one in task.ranges}))
            for one in task.ranges:
                yield from Fetching(cluster, one, self.options, self.decides).batches()


@dataclass
class Fetching:
    """Fetches one range, from the leader. While rows are made, the next answer is on its way."""

    cluster: Cluster
    range: OffsetRange
    options: ReadOptions
    decides: bool = False
    position: int = 0
    bytes_max: int = field(default_factory=lambda: FETCH_BYTES)
    isolation: int = READ_COMMITTED  # up to the last stable offset a broker says which transactions are aborted
    deadline: float = 0.0
    answer: Answer | None = None
    stable_offset: int = 0  # what is above it a broker does not decide

    def batches(self) -> Iterator[Read]:
        """What is in the range."""
        self.position = self.range.low
        self._restart_deadline()
        while self.position < self.range.high:
            found = self._next()
            if found is None:
                continue
            self._restart_deadline()
            if self.position < self.range.high:
                self._ask()
            yield found

    def _restart_deadline(self) -> None:
        self.deadline = time.monotonic() + RETRY_TIMEOUT_S

    def _retry(self, why: str) -> None:
        self.answer = None
        try:
            self.cluster.wait(self.deadline, f"{self.range.key}: {why}")
        except UnreachableError:
            self.cluster.refresh()
            if (self.range.key.topic, self.range.key.partition) in self.cluster.partitions:
                raise
            raise LostRecordsError(f"{self.range.key}: deleted while it was read") from None

    def _ask(self) -> None:
        """Send the next Fetch, if the leader is known; if not, or if it is lost, `_next` tries again."""
        key = self.range.key
        leader = self.cluster.leader_of(key.topic, key.partition)
        if leader is None:
            return
        request = fetch_request(key.topic, key.partition, self.position, self.bytes_max, self.isolation)
        with suppress(LostConnectionError):
            self.answer = self.cluster.send(leader, ApiKey.FETCH, request)

    def _next(self) -> Read | None:
        """The next batches; None if it has to be asked again."""
        if self.answer is None:
            self._ask()
        if self.answer is None:
            self._retry("it has no leader")
            return None
        answer, self.answer = self.answer, None
        try:
            (topic,) = answer.receive().responses
            (found,) = topic.partitions
        except (LostConnectionError, ValueError) as error:
            self._retry(f"lost the connection to its leader ({error})")
            return None
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
            return None
        if found.error_code in INVALID_METADATA_ERRORS:
            self._retry(error_name(found.error_code))
            return None
        if found.error_code != ErrorCode.NONE:
            raise UnreachableError(f"{self.range.key}: {error_name(found.error_code)}")
        return self._read(found)

    def _read(self, found: Any) -> Read | None:
        records = found.records or b""
        if not len(records):
            self._nothing(found)
            return None
        below = found.high_watermark if found.high_watermark >= 0 else OFFSETS_END
        batches = walk(records, following_bytes=_FETCH_BYTES_MAX, offsets_below=below, offsets_to=self.range.high)
        if not len(batches) and not batches.ended:  # perhaps the first one says that it is longer than it is
            batches = walk(records, offsets_below=below, offsets_to=self.range.high)
        batches = _from(self.position, batches)
        if not len(batches) and not batches.ended and self._asks_for_more(len(records)):
            return None
        end = self.range.high if batches.ended else self._end(batches)
        assert end > self.position, f"{self.range.key}: offset {self.position} would be fetched again"
        key = self.range.key
        if self.isolation == READ_UNCOMMITTED and self.decides:
            transactions = Transactions(lambda: self._decided)
        else:
            ended = self._ended(found, batches, end)
            transactions = Transactions(lambda: ended)
        place = Place(key.topic, key.partition, transactions)
        read = Read(place, batches, max(self.position, self.range.low), self.range.high, self.range.only)
        self.position = end
        return read

    def _asks_for_more(self, came_bytes: int) -> bool:
        """Whether a larger answer may have a good batch: this one was as large as it could be."""
        if came_bytes < self.bytes_max or self.bytes_max >= _FETCH_BYTES_MAX:
            return False
        self.bytes_max *= 2
        return True

    def _end(self, batches: Batches) -> int:
        """Where to go on. Behind a corrupt batch it is where that one ends, if this can be known; else an offset on."""
        if len(batches):
            return int(batches.last_offsets[-1]) + 1
        corrupt = batches.corrupt[0]
        content = batches.data[corrupt.position : corrupt.position + min(corrupt.size_bytes, HEADER_BYTES)].tobytes()
        if len(content) < HEADER_BYTES:
            return self.position + 1
        base_offset, *_, last_offset_delta, _, _, _, _, _, count = HEADER.unpack(content)
        if count != last_offset_delta + 1 or count <= 0:
            return self.position + 1
        if base_offset <= self.position <= base_offset + last_offset_delta:
            return int(base_offset) + count
        is_whole = corrupt.header is not None and corrupt.reason != WRONG_CHECKSUM  # but its offset is damaged
        return self.position + (count if is_whole else 1)

    def _nothing(self, found: Any) -> None:
        """No records, although there are some below the high watermark that the query has seen."""
        is_committed = self.isolation == READ_COMMITTED
        if is_committed and self.position < found.last_stable_offset:  # compaction has taken all that was between
            self.position = min(found.last_stable_offset, self.range.high)
            return
        if is_committed and (self.decides or not self.options.is_read_committed):
            self.isolation = READ_UNCOMMITTED
            self.stable_offset = found.last_stable_offset
        else:
            self._retry(f"it has no records at offset {self.position} yet")

    def _ended(self, found: Any, batches: Batches, end: int) -> Ended:
        """Which transactions of the batches are aborted: the broker says where each begins, a marker where it ends."""
        if self.isolation == READ_UNCOMMITTED:
            return Ended(self.position, ())
        control = batches.only((batches.headers["attributes"] & CONTROL) != 0)
        markers = list(
            zip(control.of("producer_id").tolist(), control.of("base_offset").tolist(), control_types(control).tolist())
        )
        aborted = []
        for one in found.aborted_transactions or ():
            mine = (offset for producer, offset, kind in markers if producer == one.producer_id and kind == 0)
            lasts = [offset for offset in mine if offset >= one.first_offset]
            aborted.append(Aborted(one.producer_id, one.first_offset, min(lasts, default=end)))
        return Ended(OFFSETS_END if found.last_stable_offset < 0 else found.last_stable_offset, tuple(aborted))

    @cached_property
    def _decided(self) -> Ended:
        """How transactions above the last stable offset have ended, as their markers up to the end of the log say."""
        key, deciding = self.range.key, Deciding()
        above = OffsetRange(key, self.stable_offset, max(self.range.until, self.range.high))
        with Cluster(self.options.brokers) as cluster:  # this one's next answer is on its way
            cluster.refresh([key.topic])
            for read in Fetching(cluster, above, self.options, isolation=READ_UNCOMMITTED).batches():
                deciding.take(read.batches)
        return deciding.ended(above.high)

    def _out_of_range(self) -> None:
        """Records are gone: at the begin of the log (retention), or at its end (an unclean election)."""
        key = (self.range.key.topic, self.range.key.partition)
        first = self.cluster.offsets([key], EARLIEST)[key]
        below = min(first, self.range.high) if first > self.position else self.range.high
        text = f"{self.range.key}: the offsets from {self.position} to below {below} are gone"
        if self.options.tasks_fail_on_loss:
            raise LostRecordsError(text)
        logger.warning("%s", text)
        self.position = below
        self._restart_deadline()


def _from(position: int, batches: Batches) -> Batches:
    """Batches that an answer from this offset on can have. The last of them is good, if any is.

    A corrupt place behind it is perhaps only cut off. If not, the next answer begins with it.
    """
    good = batches.last_offsets >= position
    offsets, text = batches.of("base_offset"), f"cannot be here: offsets begin at {position}"
    wrong = [batches.broken(index, f"offset {offsets[index]} {text}") for index in np.flatnonzero(~good).tolist()]
    corrupt = sorted([*batches.corrupt, *wrong], key=lambda one: one.position)
    kept = batches.only(good)
    if len(kept):
        last = int(kept.starts[-1])
        corrupt = [one for one in corrupt if one.position < last]
    elif not batches.ended:
        corrupt = corrupt[:1]
    return Batches(kept.data, kept.starts, kept.headers, corrupt, batches.consumed, batches.ended)
