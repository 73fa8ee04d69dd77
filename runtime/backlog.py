"""News that one task deals with together: soon after they have come, and again until it has succeeded."""

from collections.abc import Awaitable, Callable

from barnabas.runtime.upkeep import Task, Upkeep

RETRY_BACKOFF_MS = 100.0
LOOK_MS = 5_000.0  # how often to look for news that were forgotten


class Backlog:
    """`work` deals with all news that have come before it begins; False: it must be done again."""

    def __init__(self, upkeep: Upkeep, name: str, work: Callable[[], Awaitable[bool]]) -> None:
        self.name = name
        self._upkeep = upkeep
        self._work = work
        self._count = 0  # of the news so far
        self._done = 0  # with how many of them the work has dealt
        self._task: Task[Backlog] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = self._upkeep.every(
                self.name,
                lambda: RETRY_BACKOFF_MS if self._done != self._count else LOOK_MS,
                lambda: [self] if self._done != self._count else [],
                Backlog._catch_up,
            )

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None

    def add(self) -> None:
        self._count += 1
        if self._task is not None:
            self._task.run_soon()

    async def _catch_up(self) -> None:
        count = self._count  # more may come meanwhile
        if await self._work():
            assert self._done <= count <= self._count, "what was dealt with has come before"
            self._done = count
