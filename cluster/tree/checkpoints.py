"""When what is in the -wal of the embedded tree is brought into its file: SQLite's checkpoints, beside the polls."""

import asyncio
import math
from collections.abc import Callable

from barnabas.cluster.tree.changes import Changes
from barnabas.cluster.tree.port import CoordinationError
from barnabas.cluster.tree.tree_place import TreePlace
from barnabas.runtime.ports import Clock

AFTER_CHANGE_MS = 1_000.0  # after the last change of this process


class Checkpoints:
    """When the tree has not been changed for a while, all of it is written into its file.

    So a file without its -wal lacks as little as can be. If the -wal was removed, this is not put off. `completed` is
    called when all is in the file, `failed` when the file cannot be used now; then it is tried again.
    """

    def __init__(
        self,
        clock: Clock,
        place: TreePlace,
        changes: Changes,
        completed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._clock = clock
        self._place = place
        self._changes = changes
        self._completed = completed
        self._failed = failed
        self._due_ms = math.inf
        self._running: asyncio.Task[None] | None = None

    def note_change(self) -> None:
        """This process has changed the tree."""
        self._due_ms = self._clock.monotonic_ms() + AFTER_CHANGE_MS

    def look(self, now_ms: float) -> None:
        """Begin a checkpoint if one is due."""
        if self._place.is_unreadable:
            self._due_ms = now_ms
        if now_ms < self._due_ms and not (self._place.has_lost_log and self._due_ms != math.inf):
            return
        if self._running is None or self._running.done():
            self._due_ms = math.inf
            self._running = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Give up the one that is under way."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        async with self._changes.turn:
            writer = self._changes.writer
            if writer is None:
                return
            try:
                is_whole = await self._changes.aside(writer.bring_log_in)
            except CoordinationError as error:
                is_whole = False
                self._failed(error)
        if is_whole:
            self._completed()
        else:
            self.note_change()
