"""An offset checkpoint of a data directory: one offset for each log, in a file that is replaced whole."""

import logging
from collections.abc import Callable
from contextlib import closing

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces, at_once
from barnabas.storage import checkpoints

logger = logging.getLogger("barnabas.storage")

_AT_ONCE_MAX = 1_000  # so many lines are made in one piece

Offsets = dict[tuple[str, int], int]


class OffsetCheckpoint:
    """Writes the file, now or soon. What was collected last is what stays in it.

    `collect` asks the logs for the offsets that it has to say, some in each piece; `is_in_use` says whether the
    directory is this broker's still.
    """

    def __init__(
        self, env: Env, path: str, collect: Callable[[], Pieces[Offsets]], is_in_use: Callable[[], bool]
    ) -> None:
        self._env = env
        self.path = path
        self._collect = collect
        self._is_in_use = is_in_use
        self.written: Offsets = {}  # what the file says, as far as its owner knows
        self.not_writable: OSError | None = None  # why it could not be written the last time
        self._waiting: list[Pending[None]] = []  # those that wait until it is written; another list for each write

    def write_now(self) -> OSError | None:
        """Write it. It is durable when this returns."""
        offsets = at_once(self._collect())
        try:
            checkpoints.write_offsets(self._env.disk, self.path, offsets)
        except OSError as error:
            self._was_not_written(error)
            return error
        finally:
            self.end_writing()
        self._was_written(offsets)
        return None

    def write_later(self) -> Pending[None]:
        """Write what it has to say, if that is new. The file gets its name when a thread has synced it.

        The Pending completes then, or when the file could not be written.
        """
        ended: Pending[None] = Pending()
        self._waiting = [*self._waiting, ended]
        self._env.turns.run(self._write(self._waiting), to_the_end=True)
        return ended

    def end_writing(self) -> None:
        """No file is on its way any more: tell those that wait for it."""
        waiting, self._waiting = self._waiting, []
        for ended in waiting:
            ended.complete(None)

    def _write(self, waiting: list[Pending[None]]) -> Pieces[None]:
        disk, temporary = self._env.disk, f"{self.path}.tmp"
        offsets = yield from self._collect()
        if self._waiting is waiting and len(waiting) == 1 and self.written == offsets:
            self.end_writing()
            return
        text: list[str] = []
        for piece in checkpoints.offsets_texts(offsets, _AT_ONCE_MAX):
            text.append(piece)
            yield None
        if self._waiting is not waiting:  # a newer file is on its way, or was written at once
            return

        def synced(error: OSError | None) -> None:
            if self._waiting is not waiting:
                return
            try:
                if error is not None:
                    raise error
                disk.rename(temporary, self.path)
            except OSError as failure:
                self._was_not_written(failure)
            else:
                self._was_written(offsets)
            self.end_writing()

        if not self._is_in_use():
            self.end_writing()
            return
        try:
            with closing(disk.open(temporary, create=True)) as file:
                file.truncate(0)
                file.write(0, "".join(text).encode())
                disk.sync_in_background([file], synced)
        except OSError as error:
            self._was_not_written(error)
            self.end_writing()

    def _was_written(self, offsets: Offsets) -> None:
        self.written = offsets
        if self.not_writable is not None:
            self.not_writable = None
            logger.info("%s is written again", self.path)

    def _was_not_written(self, error: OSError) -> None:
        """The older file stays, so that a start after a crash checks more.

        Say it once; it is tried again every time.
        """
        is_known = self.not_writable is not None
        self.not_writable = error
        if not is_known:
            logger.error("could not write %s, a recovery will check more: %s", self.path, error)
