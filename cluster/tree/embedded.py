"""The coordination tree in one SQLite file, shared by the broker processes of one machine: sessions and operations.

`tree_file.py` owns what is in the file, `session_files.py` says which sessions live, `watches.py` which watches hear of
a change. `changes.py` makes changes and waits where another process is in the way, `checkpoints.py` brings them into
the file. This module knows which session makes a change. `:memory:` keeps the tree in memory, for one broker only.

Sessions. The session of a killed process is ended by the first other process that looks, within `LIVENESS_MS`. The
session of a process that is stopped (SIGSTOP), or whose loop hangs, ends `session_timeout_ms` after it was last
prolonged: the process then finds, before it does anything else in the tree, that its session is over.

The loop. Reads are done by the loop, because SQLite never lets them wait for a write. An operation that is asked for
after others sees what they have done.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from barnabas.cluster.tree import tree_copy
from barnabas.cluster.tree.change_holder import ChangeHolder
from barnabas.cluster.tree.changes import Change, Changes, OlderTreeError
from barnabas.cluster.tree.checkpoints import Checkpoints
from barnabas.cluster.tree.operations import do_all, make_above, parent_of
from barnabas.cluster.tree.port import (
    ANY_VERSION,
    ConnectionLossError,
    CoordinationError,
    Create,
    NoNodeError,
    Operation,
    OperationResult,
    SessionExpiredError,
    Stat,
    Watch,
    always_reachable,
)
from barnabas.cluster.tree.session_files import NEVER, SessionFiles
from barnabas.cluster.tree.tree_file import Node, TreeFile
from barnabas.cluster.tree.tree_place import TreePlace
from barnabas.cluster.tree.watches import Watches
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import DirectoryLock, Env
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.coordination")

T = TypeVar("T")

SESSION_TIMEOUT_MS = 6_000.0
PROLONGED = 10  # times in a session time-out
POLL_MS = 25.0  # how soon a change by another process is noticed
POLL_ALONE_MS = 100.0  # while no other process is registered: how soon the first one is noticed
LIVENESS_MS = 50.0  # how soon the death of another process is noticed
UNREADABLE_SAID_MS = 10_000.0  # how often it is said that the tree cannot be used
ASLEEP_MS = 1_000.0  # after so long without a poll this process was stopped itself, and the others perhaps, too
BUSY_AT_START_MS = 20_000.0  # how long a start waits for other processes: a slow disk may sync the tree of several
BUSY_AT_CLOSE_MS = 1_000.0
STOPPING_MS = 2_000.0  # how long a start waits for processes that stop to let go of the tree
NODES_AT_ONCE = 256  # read in one go, some milliseconds
FEW_NODES = 32  # for which no other task has its turn first


class EmbeddedCoordination:
    """One session with the tree at `path`. Implements the Coordination port."""

    session_ends_with_process = True

    def __init__(self, env: Env, path: str, session_timeout_ms: float = SESSION_TIMEOUT_MS) -> None:
        self.session_id = 0
        self.is_unreachable = always_reachable
        self.session_timeout_ms = session_timeout_ms
        self.last_confirmed_ms = -math.inf
        self._env = env
        self._path = path
        self._shared = path != ":memory:"
        self._reader: TreeFile | None = None
        self._seen: TreeFile | None = None  # before the session: a copy of the tree, made by `look`
        self._files = SessionFiles(env.disk, path)
        self._lock: DirectoryLock | None = None
        self._locked_id = 0  # the session whose file is locked
        self._has_session = False  # after an expiry there is none until the next one begins
        self._polling: Task[TreeFile] | None = None
        self._polled_ms = 0.0
        self._judges_from_ms = 0.0
        self._repair: asyncio.Task[None] | None = None  # ends dead sessions, or begins a new one after an expiry
        self._says_unreadable = NowAndThen(env.clock, UNREADABLE_SAID_MS)
        self._place = TreePlace(env.disk, path, self._files)
        self._next_liveness_ms = 0.0
        self._data_version = 0
        self._compared_zxid = 0  # changes up to here have been compared with the watches
        self._others: list[int] = []  # sessions of other processes
        self._watches = Watches(env.clock.call_soon)
        self._changes = Changes(
            env.clock,
            self._place,
            ChangeHolder(path, self._files),
            lambda now_ms: self._others if now_ms >= self._judges_from_ms else (),
            self._tell,
            in_thread=self._shared and env.disk.syncs,
        )
        self.held_by = self._changes.held_by
        self._checkpoints = Checkpoints(
            env.clock, self._place, self._changes, self._note_checkpoint, self._say_unreadable
        )
        self._on_expired: list[Callable[[], None]] = []

    @property
    def trouble(self) -> str:
        return self._place.trouble

    async def look(self) -> None:
        if self._reader is not None or self._seen is not None:
            return
        if self._shared:
            await self._changes.unless_busy(self._check_place, STOPPING_MS)
        self._seen = await self._changes.unless_busy(self._copy, BUSY_AT_START_MS)

    async def _check_place(self) -> None:
        self._place.check_that_nobody_uses_another()

    async def _copy(self) -> TreeFile:
        return tree_copy.copy_as_it_is(self._env, self._path, self._files)

    async def start(self) -> None:
        """Open the file, end sessions whose processes are gone, begin one."""
        if self._reader is not None:
            return
        self._forget_seen()
        new = self._shared and not self._env.disk.exists(self._path)
        if new:
            self._make_folder()
        if self._shared:
            self._place.keep_private()
        self._reader = await self._changes.unless_busy(self._open, BUSY_AT_START_MS)
        try:
            if self._shared:
                self._place.note_opened()
            self._changes.writer = self._reader  # the loop reads and writes, or a thread writes meanwhile
            if self._changes.in_thread:
                self._changes.writer = await self._changes.unless_busy(self._open, BUSY_AT_START_MS)
            await self._begin_session()
        except BaseException:
            await self._close_files()
            raise
        if new:
            self._env.disk.sync_directory(parent_of(self._path))
        logger.info("coordination session %d on %s", self.session_id, self._path)
        if self._shared:
            self._polling = self._env.upkeep.every(
                "coordination", self._poll_interval_ms, lambda: [self._reader] if self._reader else [], self._poll
            )

    async def _open(self) -> TreeFile:
        file = TreeFile(self._path, self._env.clock.now_ms, syncs=self._env.disk.syncs)
        try:
            file.zxid()  # with the first read SQLite opens, or makes, what it has beside the file
        except BaseException:
            file.close()
            raise
        return file

    def _make_folder(self) -> None:
        """Make the folder of the tree, as durable as the file in it will be."""
        folder = parent_of(self._path)
        if not self._env.disk.is_directory(folder):
            self._env.disk.make_directory(folder)
            self._env.disk.sync_directory(parent_of(folder))

    def _forget_seen(self) -> None:
        if self._seen is not None:
            self._seen.close()
            self._seen = None

    async def close(self, *, keeps_tree: bool = True) -> None:
        self._forget_seen()
        if self._reader is None or (self._shared and self._polling is None):
            return
        if self._polling is not None:
            self._polling.stop()
            self._polling = None
        self._checkpoints.stop()
        if self._repair is not None:
            self._repair.cancel()
        self._has_session = False
        self._forget_session()

        def end(file: TreeFile) -> None:
            if file.has_session(self.session_id):
                file.end_sessions([self.session_id])

        try:
            async with self._changes.turn:
                if keeps_tree:
                    await self._changes.unless_busy(lambda: self._attempt(end, None), BUSY_AT_CLOSE_MS)
        except CoordinationError as error:  # already gone, or the file is locked: to release the lock ends it too
            logger.info("could not end coordination session %d: %s", self.session_id, error)
        await self._close_files()

    async def _close_files(self) -> None:
        self._has_session = False
        reader, self._reader = self._reader, None
        if self._shared:
            await self._changes.close()
        if reader is not None:
            reader.close()
        self._place.close()
        self._release_lock()

    async def confirm(self) -> None:
        """Prolong the session: one call of the operating system, which no other process can hold up."""
        self._opened()
        self._prolong()
        self._opened()

    def confirm_at_once(self) -> bool:
        try:
            self._opened()
            self._prolong()
        except CoordinationError:
            return False
        # This process may have been stopped on the way, for so long that the new time is almost over.
        half_ms = self.session_timeout_ms / 2
        return self._has_session and self._env.clock.monotonic_ms() < self.last_confirmed_ms + half_ms

    def _prolong(self) -> None:
        sent_ms = self._env.clock.monotonic_ms()
        if self._shared:
            try:
                lives = self._files.prolong(self.session_id, math.ceil(sent_ms + self.session_timeout_ms))
            except OSError as error:
                raise ConnectionLossError("", f"the session cannot be prolonged: {error}") from error
            if not lives:
                self._expire()
                return
        self.last_confirmed_ms = sent_ms

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        self._on_expired.append(callback)

    def on_session_silent(self, callback: Callable[[], None]) -> None:
        """The file of this machine always answers."""

    async def _begin_session(self) -> None:
        """Begin a session. End the one that it replaces, and those of dead processes, in the same change."""
        sent_ms = 0.0
        dead: list[int] = []
        replaced = self.session_id

        def begin(file: TreeFile) -> int:
            nonlocal sent_ms
            if self._shared:
                tree_copy.check_sessions(file, self._files, self._path, self._locked_id)
                self._place.mark_if_older(file)
            session_id = file.take_session_id()
            sent_ms = self._env.clock.monotonic_ms()
            if self._shared:  # locked before others can see the session, so that none takes it for dead
                self._release_lock()  # of a try before that found the file busy
                self._locked_id = session_id
                until_ms = math.ceil(sent_ms + self.session_timeout_ms)
                self._lock = self._files.begin(session_id, until_ms, self._place.files)
            others = file.session_ids()
            dead[:] = [other for other in others if other == replaced or not self._shared or self._is_dead(other)]
            file.end_sessions(dead)
            file.add_session(session_id)
            return session_id

        change = await self._changes.unless_busy(lambda: self._attempt(begin, None), BUSY_AT_START_MS)
        self.session_id = change.result
        self.last_confirmed_ms = sent_ms
        self._has_session = True
        for other in dead:
            if other != replaced:
                self._say_ended(other, NEVER)
        reader = self._opened()
        self._compared_zxid = change.after
        self._data_version = reader.data_version()
        self._others = self._other_sessions(reader)

    def _is_dead(self, session_id: int) -> bool:
        return self._files.lives_until_ms(session_id) == NEVER

    def _other_sessions(self, file: TreeFile) -> list[int]:
        return [session_id for session_id in file.session_ids() if session_id != self.session_id]

    def _expire(self) -> None:
        """Another process ends this session: begin a new one and say so."""
        if self._has_session:
            self._has_session = False
            logger.warning("coordination session %d was ended by another process", self.session_id)
            self._forget_session()
        self._repair_by(self._begin_again)

    async def _begin_again(self) -> None:
        await self._begin_session()
        logger.info("new coordination session %d", self.session_id)
        for callback in self._on_expired:
            self._env.clock.call_soon(callback)

    def _forget_session(self) -> None:
        self.last_confirmed_ms = -math.inf
        self._watches.drop_all()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            self._remove_files(self._locked_id)

    def _remove_files(self, session_id: int) -> None:
        for error in self._files.remove(session_id):
            logger.info("could not remove a file of coordination session %d: %s", session_id, error)

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        def read(file: TreeFile) -> tuple[bytes, Stat]:
            zxid, node = self._find(file, path)
            if node is None:
                raise NoNodeError(path)
            if watch is not None:
                self._watches.leave_on_data(path, watch, zxid, existed=True)
            return node.data, node.stat

        return await self._read(read)

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, Stat] | None]:
        found: list[tuple[bytes, Stat] | None] = []

        def read(file: TreeFile) -> None:
            some = paths[len(found) : len(found) + NODES_AT_ONCE]
            zxid, nodes = file.find_many_at(some)
            for path, node in zip(some, nodes, strict=True):
                node = self._if_owner_lives(file, node)
                if node is not None and watch is not None:
                    self._watches.leave_on_data(path, watch, zxid, existed=True)
                found.append(None if node is None else (node.data, node.stat))

        while len(found) < len(paths):
            if len(paths) > FEW_NODES:
                await self._env.clock.sleep(0)
            await self._read(read)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        def read(file: TreeFile) -> Stat | None:
            zxid, node = self._find(file, path)
            if watch is not None:
                self._watches.leave_on_data(path, watch, zxid, existed=node is not None)
            return None if node is None else node.stat

        return await self._read(read)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def read(file: TreeFile) -> list[str]:
            zxid, names = file.children_at(path)
            if watch is not None:
                self._watches.leave_on_children(path, watch, zxid)
            return names

        return await self._read(read)

    async def _read(self, read: Callable[[TreeFile], T]) -> T:
        """Read by one statement, so at one time, after all changes that were asked for before."""
        if self._changes.waiting:
            async with self._changes.turn:
                pass

        async def attempt() -> T:
            return read(self._opened() if self._seen is None else self._seen)

        return await self._changes.unless_busy(attempt)

    def _find(self, file: TreeFile, path: str) -> tuple[int, Node | None]:
        zxid, node = file.find_at(path)
        return zxid, self._if_owner_lives(file, node)

    def _if_owner_lives(self, file: TreeFile, node: Node | None) -> Node | None:
        """The node; before the session begins, None if it belongs to a session that is over."""
        if node is None or file is not self._seen or not node.stat.ephemeral_owner:
            return node
        lives_until_ms = self._files.lives_until_ms(node.stat.ephemeral_owner)
        return node if lives_until_ms > self._env.clock.monotonic_ms() else None

    # Changing

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        session_id = self.session_id

        def change(file: TreeFile) -> tuple[str, Stat]:
            zxid = file.take_zxid()
            if make_parents:
                make_above(file, path, zxid)
            made = file.create(Create(path, data, ephemeral, sequential), zxid, session_id)
            return made, file.require(made).stat

        return await self._change(change)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return await self._change(lambda file: file.set(path, data, version, file.take_zxid()))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change(lambda file: file.delete(path, version, file.take_zxid()))

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it, as one change."""

        def change(file: TreeFile) -> None:
            file.require(path)
            zxid = file.take_zxid()
            for doomed in [*file.below(path), path]:
                file.delete(doomed, ANY_VERSION, zxid)

        await self._change(change)

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        session_id, asked = self.session_id, tuple(operations)
        return await self._change(lambda file: do_all(file, asked, file.take_zxid(), session_id))

    async def _change(self, change: Callable[[TreeFile], T]) -> T:
        """Make a change of this session, after those that were asked for before."""
        self._opened()
        session_id = self.session_id
        result: T = (await self._changes.in_turn(lambda: self._attempt(change, session_id))).result
        return result

    async def _attempt(self, change: Callable[[TreeFile], object], session_id: int | None) -> Change:
        """Make a change of a session (None: of one that begins or ends). Its watches are told in any case."""
        if session_id is not None:
            self._opened()
        try:
            return await self._changes.make(change, session_id, self._compared_zxid)
        except OlderTreeError:
            self._give_up_older()
            raise SessionExpiredError("", self._place.wrong) from None

    def _tell(self, made: Change) -> None:
        """Fire the watches that wait for a change of this session, and for changes by others before it."""
        self._checkpoints.note_change()
        self._changes.untold_zxid = -1
        if made.before == self._compared_zxid:
            self._compared_zxid = made.after
        elif self._reader is not None:
            with suppress(CoordinationError):  # the next poll compares
                self._compare(self._reader)
        for event in made.events:
            self._watches.tell(event)

    def _opened(self) -> TreeFile:
        if self._reader is None:
            raise SessionExpiredError("", "the session is closed")
        if self._place.wrong:
            raise SessionExpiredError("", self._place.wrong)
        if not self._has_session:
            raise SessionExpiredError("", f"session {self.session_id} was ended by another process")
        if self.is_unreachable():
            raise ConnectionLossError("", "a test has cut this broker off from the tree")
        return self._reader

    # Other processes

    def _poll_interval_ms(self) -> float:
        return POLL_MS if self._others else POLL_ALONE_MS

    def _poll(self, file: TreeFile) -> None:
        """Prolong the session. Look for changes made by other processes, and for processes that are gone."""
        now_ms = self._env.clock.monotonic_ms()
        if now_ms - self._polled_ms > ASLEEP_MS:  # the others get the time to prolong their sessions
            self._judges_from_ms = now_ms + ASLEEP_MS
        self._polled_ms = now_ms
        if self.is_unreachable():
            return
        try:
            if self._has_session:
                self._look(file, now_ms)
                self._checkpoints.look(now_ms)
            elif self._place.look():
                self._expire()
        except (CoordinationError, OSError) as error:  # the next poll tries again
            self._say_unreadable(error)

    def _say_unreadable(self, error: Exception) -> None:
        if self._says_unreadable.is_due():  # every second poll may fail
            logger.warning("the coordination tree cannot be used now, trying again: %s", error)

    def _look(self, file: TreeFile, now_ms: float) -> None:
        is_due = now_ms >= self._next_liveness_ms
        if is_due:
            self._next_liveness_ms = now_ms + LIVENESS_MS
            if not self._place.look():
                self._give_up()
                return
        if now_ms - self.last_confirmed_ms >= self.session_timeout_ms / PROLONGED:
            self._prolong()
        if (data_version := file.data_version()) != self._data_version:
            zxid = file.zxid()
            if zxid < self._compared_zxid:
                self._give_up_older()
                return
            if not file.has_session(self.session_id):
                self._expire()
                return
            self._others = self._other_sessions(file)
            if zxid == self._changes.untold_zxid:
                return  # `_tell` is on its way, and knows what this change has touched without a look at each node
            if zxid != self._compared_zxid:
                self._compare(file)
            self._data_version = data_version
        if is_due and self._others and self._over(now_ms):
            self._repair_by(self._end_others)

    def _note_checkpoint(self) -> None:
        if self._reader is not None and self._has_session and not self._place.note_log_brought_in():
            self._give_up()

    def _give_up(self) -> None:
        """Lose the session, and begin no other one: what this process would do in its file nobody would see."""
        self._has_session = False
        self._forget_session()

    def _give_up_older(self) -> None:
        self._place.note_older()
        self._give_up()

    def _compare(self, file: TreeFile) -> None:
        with file.snapshot():
            zxid = file.zxid()
            self._watches.compare(file, self._compared_zxid)
        self._compared_zxid = zxid

    def _over(self, now_ms: float) -> dict[int, float]:
        """The other sessions that are over, and until when they lived."""
        is_judge = now_ms >= self._judges_from_ms
        lived_until_ms = {session_id: self._files.lives_until_ms(session_id) for session_id in self._others}
        return {
            session_id: until_ms
            for session_id, until_ms in lived_until_ms.items()
            if until_ms == NEVER or (is_judge and until_ms <= now_ms)
        }

    async def _end_others(self) -> None:
        """End the sessions that are over, as one change."""
        now_ms = self._env.clock.monotonic_ms()
        over = self._over(now_ms)
        for session_id, until_ms in over.items():
            if until_ms != NEVER:
                over[session_id] = self._files.fence(session_id)
        over = {session_id: until_ms for session_id, until_ms in over.items() if until_ms <= now_ms}

        def end(file: TreeFile) -> list[int]:
            ended = [session_id for session_id in over if file.has_session(session_id)]
            file.end_sessions(ended)
            return ended

        for session_id in await self._change(end) if over else ():
            self._say_ended(session_id, over[session_id])

    def _say_ended(self, session_id: int, until_ms: float) -> None:
        if until_ms == NEVER:
            logger.info("coordination session %d ended: its process is gone", session_id)
        else:
            logger.warning("coordination session %d expired: its process did not prolong it in time", session_id)
        self._remove_files(session_id)

    def _repair_by(self, repair: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repair the sessions beside the polls. If that fails, a later poll begins it again."""

        async def live() -> None:
            try:
                await repair()
            except (CoordinationError, OSError) as error:
                self._say_unreadable(error)
            except Exception:
                logger.exception("ending dead sessions, or beginning a new one, failed: trying again")

        if self._repair is None or self._repair.done():
            self._repair = asyncio.get_running_loop().create_task(live())
