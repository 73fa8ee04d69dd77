"""Changes of the embedded tree: one after the other, in a thread, and again while another process is in the way.

SQLite says at once that another process is inside a change. Then the change is tried again a little later, and the loop
goes on meanwhile. Each change waits for the disk, so it is made in a thread, unless the disk does not sync.
`change_holder.py` knows what to do about a process that stays inside a change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from barnabas.cluster.tree.change_holder import HELD_MS, ChangeHolder
from barnabas.cluster.tree.port import SessionExpiredError, WatchEvent
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import BusyError
from barnabas.cluster.tree.tree_place import TreePlace
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Clock

T = TypeVar("T")

BUSY_MS = 5_000.0  # how long an operation waits for other processes
BUSY_RETRY_MS = (1.0, 16.0)  # the first wait, which doubles, and the longest
THREAD = "coordination"


class Change(NamedTuple):
    """A change that was made."""

    result: Any
    events: list[WatchEvent]
    before: int  # zxids
    after: int


class OlderTreeError(Exception):
    """Another file was copied over that of the tree. Nothing was changed."""


class Changes:
    """Makes the changes of one process. `made` is told of each change, also if the caller was cancelled.

    `others` are the sessions of other processes that may be ended at that time.
    """

    def __init__(
        self,
        clock: Clock,
        place: TreePlace,
        holder: ChangeHolder,
        others: Callable[[float], Iterable[int]],
        made: Callable[[Change], None],
        *,
        in_thread: bool,
    ) -> None:
        self.writer: TreeFile | None = None  # used by the thread
        self.turn = asyncio.Lock()  # for operations, in the order in which they were asked for
        self.waiting = 0  # including the one that is being made
        self.untold_zxid = -1  # of a change that is made, and that the loop will be told of
        self._clock = clock
        self._place = place
        self._holder = holder
        self._others = others
        self._made = made
        self.in_thread = in_thread

    def held_by(self) -> str:
        """The process that is inside a change for long; empty: none."""
        return self._holder.held_by

    async def in_turn(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` returns, after the changes that were asked for before."""
        self.waiting += 1
        try:
            async with self.turn:
                return await self.unless_busy(attempt)
        finally:
            self.waiting -= 1

    async def make(self, change: Callable[[TreeFile], object], session_id: int | None, seen_zxid: int) -> Change:
        """Make a change of a session (None: of one that begins or ends), once.

        OlderTreeError if the tree does not have the change `seen_zxid`, which this process has seen.
        """
        writer = self.writer
        assert writer is not None, "a change before the tree is open"

        def attempt() -> Change:
            try:
                with writer.transaction():
                    before = writer.zxid() if session_id is None else writer.zxid_in_session(session_id)
                    if before is None:
                        raise SessionExpiredError("", f"session {session_id} was ended by another process")
                    if before < seen_zxid:
                        raise OlderTreeError
                    result = change(writer)
                    after = writer.zxid()
                    assert after >= before, "the zxid never goes back"
                    self.untold_zxid = after  # before others can see it
                self._place.note_zxid(after)
            except BaseException:
                self.untold_zxid = -1
                raise
            events, writer.changes = writer.changes, []
            return Change(result, events, before, after)

        if not self.in_thread:
            await self._clock.sleep(0)  # between many changes in a row, others must have their turn
        made = await self.aside(attempt, self._made)
        self._holder.note_gone()
        return made

    async def aside(self, work: Callable[[], T], then: Callable[[T], None] = lambda result: None) -> T:
        """Do work in the thread, and what follows in the loop, even if the caller is cancelled."""
        if not self.in_thread:
            result = work()
            then(result)
            return result
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def end(result: T) -> None:
            if not ended.done():
                ended.set_result(result)
            then(result)  # later than the result: no watch is called inside the operation that fires it

        def fail(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        pending = self._clock.in_thread(work, THREAD)
        pending.on_failure = fail
        pending.then(end)
        return await ended

    async def unless_busy(self, attempt: Callable[[], Awaitable[T]], within_ms: float = BUSY_MS) -> T:
        """What `attempt` returns, tried again while another process is in the way. ConnectionLossError if it stays."""
        clock = self._clock
        wait_ms, longest_ms = BUSY_RETRY_MS
        began_ms: float | None = None
        while True:
            try:
                return await attempt()
            except BusyError:
                now_ms = clock.monotonic_ms()
                began_ms = now_ms if began_ms is None else began_ms
                if now_ms - began_ms >= within_ms:
                    raise
                if now_ms - began_ms >= HELD_MS:
                    self._holder.look(self._others(now_ms), now_ms)
            await clock.sleep(wait_ms)
            wait_ms = min(2 * wait_ms, longest_ms)

    async def close(self) -> None:
        """Close the file, after the change that is perhaps being made, whose caller was cancelled."""
        writer, self.writer = self.writer, None
        if writer is not None:
            await self.aside(writer.close)
