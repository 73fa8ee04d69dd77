"""Tells the controller, by a node in the tree, that logs of this broker have failed. It then asks which ones."""

from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import ConnectionLossError, Coordination, SessionExpiredError
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task

RETRY_BACKOFF_MS = 50.0
LOOK_MS = 5_000.0


class LogFailureNotices:
    """Writes one notice for all logs that failed since the last one."""

    def __init__(self, env: Env, coordination: Coordination, node_id: int) -> None:
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._node_id = node_id
        self._failed = 0  # logs, so far
        self._written = 0  # of how many of them the notices in the tree speak
        self._writing: Task[LogFailureNotices] | None = None

    def start(self) -> None:
        """Write notices from now on."""
        self._writing = self._upkeep.every(
            "log failure notices",
            lambda: RETRY_BACKOFF_MS if self._is_behind else LOOK_MS,
            lambda: [self] if self._is_behind else [],
            LogFailureNotices._write,
        )

    def stop(self) -> None:
        """Write nothing more."""
        if self._writing is not None:
            self._writing.stop()
            self._writing = None

    def report(self) -> None:
        """A log has failed."""
        self._failed += 1
        if self._writing is not None:
            self._writing.run_soon()

    @property
    def _is_behind(self) -> bool:
        return self._written != self._failed

    async def _write(self) -> None:
        failed = self._failed  # another log may fail during the write
        data = payloads.encode_log_dir_event(self._node_id)
        try:
            await self._coordination.create(paths.LOG_DIR_EVENT_PREFIX, data, sequential=True)
        except (ConnectionLossError, SessionExpiredError):
            return
        self._written = failed
