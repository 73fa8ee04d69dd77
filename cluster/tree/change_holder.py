"""Who keeps the others from changing the tree: a process that is inside a change for long.

A process that is stopped (SIGSTOP, a debugger) inside a change is in the way of all others, until it goes on or is
dead. They say which process it is. When its session is over, they end it (SIGKILL), because nobody could ever end that
session otherwise. They do so only where the system tells who holds the lock, and only if it is surely the process that
began that session: by its number, the time of its start, its executable, and the locks that it holds at that moment.
"""

import logging
from collections.abc import Iterable
from functools import partial

from barnabas.cluster.tree.session_files import SessionFiles
from barnabas.cluster.tree.tree_opening import INDEX, WRITE_LOCK_BYTE, beside
from barnabas.runtime import lock_holders
from barnabas.runtime.processes import ProcessIdentity

logger = logging.getLogger("barnabas.coordination")

HELD_MS = 200.0  # from then on it is asked who is in the way
LOOKS_MIN = 8  # so often in a row it was the same: who makes short changes, one after the other, is not in the way


class ChangeHolder:
    """The process that is inside a change of the tree at `path`."""

    def __init__(self, path: str, sessions: SessionFiles) -> None:
        self._path = path
        self._sessions = sessions
        self._seen: ProcessIdentity | None = None
        self._looks = 0  # in a row that found this one
        self._said: ProcessIdentity | None = None
        self.held_by = ""

    def note_gone(self) -> None:
        """A change was made."""
        self.held_by = ""
        self._looks = 0

    def look(self, others: Iterable[int], now_ms: float) -> None:
        """Say once who it is. If it is stopped, and its session is one of `others` and over, end it."""
        process = self._found()
        self._seen, self._looks = process, self._looks + 1 if process == self._seen else 1
        self.held_by = ""
        if process is None or self._looks < LOOKS_MIN:
            return
        self.held_by = str(process)
        if process != self._said:
            self._said = process
            logger.warning(
                "%s has been inside a change of %s for more than %d ms: changes wait for it",
                process,
                self._path,
                HELD_MS,
            )
        for session_id in others:
            if self._sessions.lives_until_ms(session_id) > now_ms or not self._began(process, session_id):
                continue
            if lock_holders.end_process(process, partial(self._is_still_there, process, session_id)):
                logger.error(
                    "%s was stopped inside a change of %s, and its coordination session %d is over: it was ended "
                    "(SIGKILL), because all others wait for it",
                    process,
                    self._path,
                    session_id,
                )

    def _is_still_there(self, process: ProcessIdentity, session_id: int) -> bool:
        return self._found() == process and self._began(process, session_id)

    def _began(self, process: ProcessIdentity, session_id: int) -> bool:
        return process in self._sessions.processes(session_id)

    def _found(self) -> ProcessIdentity | None:
        """The other process that keeps this one from changing the tree, where the system tells."""
        for holder in lock_holders.holders(beside(self._path, INDEX)):
            if holder.is_exclusive and holder.first <= WRITE_LOCK_BYTE <= (holder.last or WRITE_LOCK_BYTE):
                return holder.process
        return None
