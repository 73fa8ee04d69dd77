"""Tells the controller, by a node in the tree, that logs of this broker have failed. It then asks which ones."""

import asyncio

from barnabas.coordination import paths, payloads
from barnabas.coordination.port import ConnectionLossError, Coordination, SessionExpiredError
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Follower

RETRY_BACKOFF_MS = 50.0


class LogFailureNotices:
    """Writes one notice for all logs that failed since the last one."""

    def __init__(self, env: Env, coordination: Coordination, node_id: int) -> None:
        self._clock = env.clock
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._node_id = node_id
        self._failed = asyncio.Event()
        self._is_writing = False
        self._writing: Follower | None = None

    def start(self) -> None:
        """Write notices from now on."""
        self._writing = self._upkeep.follow(
            "log failure notices", self._run, lambda: self._is_writing or self._failed.is_set(), self._write_again
        )

    def stop(self) -> None:
        """Write nothing more."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def report(self) -> None:
        """A log has failed."""
        self._failed.set()

    def _write_again(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._failed.set()

    async def _run(self) -> None:
        data = payloads.encode_log_dir_event(self._node_id)
        while True:
            await self._failed.wait()
            self._failed.clear()  # before the write, because another log may fail during it
            self._is_writing = True
            try:
                await self._coordination.create(paths.LOG_DIR_EVENT_PREFIX, data, sequential=True)
            except (ConnectionLossError, SessionExpiredError):
                self._failed.set()
                await self._clock.sleep(RETRY_BACKOFF_MS)
            self._is_writing = False
            if self._writing is not None:
                self._writing.note_event()
