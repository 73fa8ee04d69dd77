"""Writes the ISR changes of leaders: first the state node, by a conditional write, then memory, then a notice.

Until a write is confirmed, the partition computes its high watermark with the larger of both ISRs, so that either
outcome is safe (KIP-497). The controller learns of changes by `/isr_change_notification`.
"""

import asyncio
from collections import deque

from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.coordination import paths, payloads
from barnabas.coordination.port import (
    BadVersionError,
    ConnectionLossError,
    Coordination,
    NoNodeError,
    SessionExpiredError,
)
from barnabas.replication.partition import Partition
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Follower, Task

RETRY_BACKOFF_MS = 50
NOTICE_CHECK_MS = 2_500
NOTICE_QUIET_MS = 5_000
NOTICE_MAX_DELAY_MS = 60_000


async def write_state(coordination: Coordination, topic: str, index: int, state: LeaderAndIsr) -> LeaderAndIsr | None:
    """Write a led partition's state if its node has version `state.partition_epoch`. Returns the stored state.

    None: the node is gone or has another leader epoch, so this leader must wait for the controller. If the node has
    another version but still this leader and epoch, this leader has written it itself and its answer was lost: the
    stored state counts. After ConnectionLossError or SessionExpiredError the caller tries again.
    """
    path = paths.partition_state(topic, index)
    try:
        stat = await coordination.set(path, state.encode(), state.partition_epoch)
    except BadVersionError:
        pass
    except NoNodeError:
        return None
    else:
        return state.at_version(stat.version)
    try:
        data, stat = await coordination.get(path)
    except NoNodeError:
        return None
    stored = LeaderAndIsr.decode(data, stat.version)
    return stored if (stored.leader, stored.leader_epoch) == (state.leader, state.leader_epoch) else None


class IsrWriter:
    """Writes one change at a time, in the order of the requests, and one notice for many changes."""

    def __init__(self, env: Env, coordination: Coordination, node_id: int) -> None:
        self._clock = env.clock
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._node_id = node_id
        self._queue: deque[tuple[Partition, LeaderAndIsr]] = deque()
        self._changed = asyncio.Event()
        self._is_busy = False
        self._writing: Follower | None = None
        self._noticing: Task[IsrWriter] | None = None
        self._unannounced: dict[tuple[str, int], None] = {}
        self._last_change_ms = 0.0
        self._last_notice_ms = 0.0
        self._log_failed = False

    def start(self) -> None:
        """Start writing changes and announcing them."""
        self._last_notice_ms = self._clock.monotonic_ms()
        self._writing = self._upkeep.follow(
            "isr writer", self._run, lambda: self._is_busy or self._has_work(), self._put_off
        )
        self._noticing = self._upkeep.every(
            "isr notices", lambda: NOTICE_CHECK_MS, lambda: [self], IsrWriter.wake_if_due
        )

    def stop(self) -> None:
        """Write nothing more. Changes that are not confirmed stay as they are in the tree."""
        if self._writing is not None and self._noticing is not None:
            self._writing.cancel()
            self._noticing.stop()
            self._writing = self._noticing = None

    def submit(self, partition: Partition, proposal: LeaderAndIsr) -> None:
        """Write `proposal`, then call `partition.isr_write_ended`: with None if the controller was faster."""
        self._queue.append((partition, proposal))
        self._changed.set()

    def report_log_failure(self) -> None:
        """Tell the controller that a log of this broker failed."""
        self._log_failed = True
        self._changed.set()

    def wake_if_due(self) -> None:
        """Wake the writer if a notice is due, or if changes wait to be written."""
        if self._has_work():
            self._changed.set()

    def _has_work(self) -> bool:
        return bool(self._queue) or self._log_failed or self._notice_is_due()

    def _put_off(self) -> None:
        """Put the first change behind the others, because its write failed."""
        self._is_busy = False
        self._queue.rotate(-1)
        self._changed.set()

    def _notice_is_due(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        return bool(self._unannounced) and (
            now_ms - self._last_change_ms >= NOTICE_QUIET_MS or now_ms - self._last_notice_ms >= NOTICE_MAX_DELAY_MS
        )

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            while self._has_work():
                self._is_busy = True
                try:
                    await self._do_one()
                except (ConnectionLossError, SessionExpiredError):
                    await self._clock.sleep(RETRY_BACKOFF_MS)
                self._is_busy = False
                if self._writing is not None:
                    self._writing.note_event()
            self._changed.clear()

    async def _do_one(self) -> None:
        if self._queue:
            partition, proposal = self._queue[0]
            if partition.pending_isr is not proposal:
                self._queue.popleft()  # the controller has decided since
                return
            stored = await write_state(self._coordination, partition.topic, partition.index, proposal)
            self._queue.popleft()
            if stored is not None:
                self._unannounced[partition.topic, partition.index] = None
                self._last_change_ms = self._clock.monotonic_ms()
            partition.isr_write_ended(proposal, stored)
        elif self._log_failed:
            self._log_failed = False  # before the write, because another log may fail during it
            data = payloads.encode_log_dir_event(self._node_id)
            try:
                await self._coordination.create(paths.LOG_DIR_EVENT_PREFIX, data, sequential=True)
            except BaseException:
                self._log_failed = True
                raise
        else:
            changes, self._unannounced = list(self._unannounced), {}
            self._last_notice_ms = self._clock.monotonic_ms()
            data = payloads.encode_isr_change(changes)
            try:
                await self._coordination.create(paths.ISR_CHANGE_PREFIX, data, sequential=True)
            except BaseException:
                self._unannounced = dict.fromkeys(changes) | self._unannounced
                raise
