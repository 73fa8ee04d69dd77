"""The leader's half of a follower's fetch session: only the partitions with news are read.

A follower names a partition when its own log has moved. The leader watches all partitions of the session, and notes
those that move here. A partition whose follower has everything, and is in sync, is idle: no request touches it, until
it moves. So the cost of a fetch follows the news, not the number of partitions.

All fetches of the session prove that the follower of an idle partition was caught up then (`RemoteReplica.idle_in`).

A high watermark that has moved is no reason to answer at once, but soon: what a follower knows to be committed can be
served if this leader and the other followers die (coordinators/loading.py).
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from barnabas.protocol.errors import ErrorCode
from barnabas.replication.fetch_values import FetchParams, FetchPartition, FetchResult
from barnabas.replication.fetching import UNCOUNTED_BYTES, Fetching, bytes_between, bytes_max, diverging_epoch
from barnabas.replication.isr import NEVER, RemoteReplica
from barnabas.replication.partition import Partition
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Timer

P = TypeVar("P", bound=FetchPartition)
Reads = tuple[Sequence[P], list[FetchResult]]

TELL_WITHIN_MS = 50.0  # a high watermark. If there are records in that time, they take it along


class FollowerFetches(Generic[P]):
    """What one follower asks in one session."""

    __slots__ = ("_fetching", "_news", "_parked", "_replica_epoch", "_replica_id", "_watches", "last_fetch_ms")

    def __init__(self, fetching: Fetching, replica_id: int) -> None:
        self.last_fetch_ms = NEVER
        self._fetching = fetching
        self._replica_id = replica_id
        self._replica_epoch = -1  # of the last fetch
        self._news: dict[P, None] = {}  # to be read by the next answer, in this order
        self._watches: dict[P, _Watch[P]] = {}
        self._parked: _ParkedFollowerFetch[P] | None = None

    @property
    def asked(self) -> Sequence[P]:
        """The partitions that a request reads now."""
        return list(self._news)

    def ask(self, requested: P) -> None:
        """The follower has named a partition. It is read after those that were named before."""
        self._news.pop(requested, None)
        self._news[requested] = None

    def forget(self, requested: P) -> None:
        """The follower does not ask for a partition any more."""
        self._news.pop(requested, None)
        watch = self._watches.pop(requested, None)
        if watch is not None:
            watch.end()

    def close(self) -> None:
        """The session ends."""
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()
        self._news.clear()
        if self._parked is not None:
            self._parked.end()

    def fetch(self, params: FetchParams) -> Reads[P] | Pending[Reads[P]]:
        """Read what has news. Wait if there are too few bytes, and nothing that must be answered at once."""
        if self._parked is not None:
            self._parked.end()  # its client has given it up
        if params.replica_epoch != self._replica_epoch:  # it has registered again: each partition must know that
            self._replica_epoch = params.replica_epoch
            for watched, watch in self._watches.items():
                watch.end_idleness()
                self._news.setdefault(watched)
        requested, results, size, is_final = self._read(params, acknowledges=True)
        self.last_fetch_ms = self._fetching.clock.monotonic_ms()
        if is_final or size >= params.min_bytes or params.max_wait_ms <= 0 or self._is_enough(params):
            return self._told(requested, results)
        parked = self._parked = _ParkedFollowerFetch(self, params)
        for one, result in zip(requested, results, strict=True):
            known = self._watches.get(one)
            if known is not None and known.told != (result.high_watermark, result.log_start_offset):
                self._news.setdefault(one)  # this request has read it, and does not tell it before it has waited
                parked.end_soon()
        return parked.pending

    def _read(self, params: FetchParams, *, acknowledges: bool) -> tuple[Sequence[P], list[FetchResult], int, bool]:
        requested = list(self._news)
        for one in requested:
            watch = self._watches.get(one)
            if watch is not None:
                watch.end_idleness()
        results, size, is_final = self._fetching.read(params, requested, acknowledges=acknowledges)
        for one, result in zip(requested, results, strict=True):
            if result.error is ErrorCode.NONE and result.diverging_epoch is None:
                self._watch(params, one, result)
        return requested, results, size, is_final

    def _told(self, requested: Sequence[P], results: list[FetchResult]) -> Reads[P]:
        """These are the answer."""
        for one, result in zip(requested, results, strict=True):
            watch = self._watches.get(one)
            if watch is not None:
                watch.told = (result.high_watermark, result.log_start_offset)
        return requested, results

    def _watch(self, params: FetchParams, requested: P, result: FetchResult) -> None:
        """Hear of everything that moves in the partition. It is idle if there is nothing else to be read or done."""
        partition = self._fetching.find(params, requested)
        if not isinstance(partition, Partition):
            return
        watch = self._watches.get(requested)
        if watch is None or watch.partition is not partition:
            if watch is not None:
                watch.end()
            watch = self._watches[requested] = _Watch(self, requested, partition)
        replica = partition.remote.get(self._replica_id)
        if (
            replica is not None
            and self._replica_id in partition.isr
            and requested.fetch_offset == replica.log_end_offset == partition.log.log_end_offset
            and not len(result.records)
        ):
            del self._news[requested]
            watch.replica = replica
            replica.idle_in = self

    def moved(self, watch: "_Watch[P]") -> None:
        """Something moved in a partition: the next answer tells it. Bytes, or an error, end the wait."""
        requested = watch.requested
        if self._watches.get(requested) is not watch:
            return  # it was forgotten in the same wake
        self._news.setdefault(requested)
        parked = self._parked
        if parked is not None:
            try:
                is_over = self._must_answer(parked.params, requested)
            except Exception as error:  # a bug. It ends this wait, because the next look would meet it again
                parked.fail(error)
            else:
                if is_over:
                    parked.end()
                elif watch.partition.log.high_watermark != watch.told[0]:
                    parked.end_soon()

    def _must_answer(self, params: FetchParams, requested: P) -> bool:
        """Whether a partition that has moved ends the wait of a fetch."""
        partition = self._fetching.find(params, requested)
        if not isinstance(partition, Partition):
            return True
        log = partition.log
        offset = requested.fetch_offset
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return True
        if requested.last_fetched_epoch >= 0 and diverging_epoch(partition, offset, requested.last_fetched_epoch):
            return True
        return log.log_end_offset > offset and (params.min_bytes <= 1 or self._is_enough(params))

    def _is_enough(self, params: FetchParams) -> bool:
        """Whether there are `min_bytes` to read, as far as an answer can hold them."""
        available = 0
        for requested in self._news:
            partition = self._fetching.find(params, requested)
            if isinstance(partition, Partition):
                end = partition.log.log_end_offset
                if requested.fetch_offset < end:
                    left_bytes = bytes_between(partition, requested.fetch_offset, end)
                    if left_bytes == UNCOUNTED_BYTES:
                        return True
                    available += min(left_bytes, bytes_max(requested))
                    if available >= min(params.min_bytes, params.max_bytes):
                        return True
        return False

    def answer_parked(self, params: FetchParams) -> Reads[P]:
        """The answer after a wait."""
        requested, results, _, _ = self._read(params, acknowledges=False)
        return self._told(requested, results)

    def parked_ended(self, parked: "_ParkedFollowerFetch[P]") -> None:
        """Nobody waits any more."""
        if self._parked is parked:
            self._parked = None


class _Watch(Generic[P]):
    """Hears of one partition for a session (`partition.FetchWaiter`)."""

    __slots__ = ("_fetches", "partition", "replica", "requested", "told")

    def __init__(self, fetches: FollowerFetches[P], requested: P, partition: Partition) -> None:
        self._fetches = fetches
        self.requested = requested
        self.partition = partition
        self.replica: RemoteReplica | None = None  # while it is idle
        self.told = (-1, -1)  # the high watermark and the log start in the last answer
        partition.fetch_waiters[self] = 0

    def partition_moved(self, position: int, answers: dict[Any, Any] | None) -> None:
        self.end_idleness()
        self._fetches.moved(self)

    def end(self) -> None:
        """Hear no more."""
        self.end_idleness()
        self.partition.fetch_waiters.pop(self, None)

    def end_idleness(self) -> None:
        """Its offset is not known any more without a fetch."""
        replica, self.replica = self.replica, None
        if replica is not None and replica.idle_in is self._fetches:
            replica.end_idleness()


class _ParkedFollowerFetch(Generic[P]):
    """A follower's fetch that waits for bytes or time."""

    __slots__ = ("_ends_ms", "_fetches", "_fetching", "_timer", "params", "pending")

    def __init__(self, fetches: FollowerFetches[P], params: FetchParams) -> None:
        self.params = params
        self.pending: Pending[Reads[P]] = Pending()
        self.pending.on_cancel = self._leave
        self._fetches = fetches
        self._fetching = fetches._fetching
        self._timer: Timer = self._fetching.clock.call_later(params.max_wait_ms, self.end)
        self._fetching.parked_count += 1
        self._ends_ms = self._fetching.clock.monotonic_ms() + params.max_wait_ms

    def end_soon(self) -> None:
        """Wait no longer than `TELL_WITHIN_MS` from now on."""
        ends_ms = self._fetching.clock.monotonic_ms() + TELL_WITHIN_MS
        if ends_ms < self._ends_ms:
            self._ends_ms = ends_ms
            self._timer.cancel()
            self._timer = self._fetching.clock.call_later(TELL_WITHIN_MS, self.end)

    def _leave(self) -> None:
        self._timer.cancel()
        self._fetching.parked_count -= 1
        self._fetches.parked_ended(self)

    def end(self) -> None:
        """Answer with what there is."""
        if self.pending.done or self.pending.cancelled:
            return
        self._leave()
        try:
            reads = self._fetches.answer_parked(self.params)
        except Exception as error:
            self.pending.fail(error)
        else:
            self.pending.complete(reads)

    def fail(self, error: Exception) -> None:
        """A bug ends the wait."""
        if not self.pending.done and not self.pending.cancelled:
            self._leave()
            self.pending.fail(error)
