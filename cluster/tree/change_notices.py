"""Notices of changes in the tree: numbered nodes in one folder, of which each says that something else has changed.

Who changes something writes it, and then a notice. All others watch the folder, read what a new notice names, and
remove notices that are 15 minutes older than the newest.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    Operation,
    WatchEvent,
)
from barnabas.runtime.backlog import Backlog
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Env

logger = logging.getLogger("barnabas.cluster")

NOTICE_RETENTION_MS = 15 * 60 * 1000
SAID_AGAIN_MS = 10_000.0


async def write_and_notify(coordination: Coordination, writes: Sequence[Operation], notice: Create) -> bool:
    """Write conditionally, and say so, in one change. False: somebody else has changed it meanwhile, so look again."""
    try:
        await coordination.multi([*writes, notice])
    except MultiError as error:
        if not isinstance(error.cause, BadVersionError | NodeExistsError | NoNodeError):
            raise
        return False
    return True


class ChangeNotices:
    """Follows the notices in one folder.

    `apply` is given the data of each new notice, in order; what it cannot read (ValueError) is logged and passed over.
    `load_again` is called after a session was lost, because others may have removed notices meanwhile, but not before
    `is_registered` holds again: until then nobody has looked whether another tree was put in the place of this one, or
    an older copy of it, whose settings would have records deleted.
    """

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        folder: str,
        what: str,
        apply: Callable[[bytes], Awaitable[None]],
        load_again: Callable[[], Awaitable[None]],
        is_registered: Callable[[], bool],
    ) -> None:
        self._env = env
        self._coordination = coordination
        self._folder = folder
        self._what = what  # for the log: config changes
        self._apply = apply
        self._load_again = load_again
        self._is_registered = is_registered
        self._last_processed = -1
        self._changes = Backlog(env.upkeep, what, self._read_changes)
        self._says_unread = NowAndThen(env.clock, SAID_AGAIN_MS)
        self._has_missed_notices = False  # its session was lost

    async def begin(self) -> None:
        """Watch the folder, and pass over what is in it: the caller reads everything after this."""
        self._coordination.on_session_expired(self._session_lost)
        await self._read(apply=False)

    def follow(self) -> None:
        """Apply what comes from now on, and what has come since `begin`."""
        self._changes.start()

    def stop(self) -> None:
        self._changes.stop()

    def _notified(self, event: WatchEvent) -> None:
        self._changes.add()

    def _session_lost(self) -> None:
        self._has_missed_notices = True
        self._changes.add()

    async def _read_changes(self) -> bool:
        if self._has_missed_notices and not self._is_registered():
            return False
        try:
            if self._has_missed_notices:
                await self._read(apply=False)
                await self._load_again()
                self._has_missed_notices = False
            await self._read(apply=True)
        except CoordinationError as error:
            if self._says_unread.is_due():
                logger.warning("cannot read the %s, trying again: %s", self._what, error)
            return False
        return True

    async def _read(self, *, apply: bool) -> None:
        """Apply the notices that are new, in order, and remove those 15 minutes older than the newest."""
        children = await self._coordination.children(self._folder, self._notified)
        names = [name for name in children if name[-10:].isdecimal()]  # anything else was made by hand
        first_new = len(names)
        while first_new and paths.sequence_number(names[first_new - 1]) > self._last_processed:
            first_new -= 1
        pace = self._env.turns.pace()  # the tree in a file answers at once
        for notice in names[first_new:]:
            if apply:
                await pace.rest()
                await self._apply_one(f"{self._folder}/{notice}")
            self._last_processed = paths.sequence_number(notice)
        await self._remove_old(names)

    async def _apply_one(self, notice: str) -> None:
        try:
            data, _ = await self._coordination.get(notice)
            await self._apply(data)
        except NoNodeError:
            return
        except ValueError as error:  # somebody wrote it by hand: the notices behind it still count
            logger.error("%s cannot be applied: %s", notice, error)  # its repr may have the whole node

    async def _remove_old(self, names: list[str]) -> None:
        newest = await self._coordination.exists(f"{self._folder}/{names[-1]}") if names else None
        if newest is None:
            return
        horizon_ms = newest.ctime_ms - NOTICE_RETENTION_MS  # the tree's clock: that of a broker may be wrong
        for name in names:  # oldest first
            path = f"{self._folder}/{name}"
            stat = await self._coordination.exists(path)
            if stat is None:
                continue
            if stat.ctime_ms > horizon_ms:
                return
            try:
                await self._coordination.delete(path)
            except NoNodeError:
                continue
