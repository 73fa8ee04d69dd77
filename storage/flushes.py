"""Syncs by time (flush.ms): which logs are due, and when it is looked again."""

from collections.abc import Callable, Sequence

from barnabas.storage.log import Log
from barnabas.storage.topic_configs import TopicConfigs

_NEVER_MS = 2**63 - 1
_AT_ONCE_MAX = 64  # how many logs are synced at a time
_FILES_PER_LOG = 8  # about how many files that holds open until it is done
_INTERVAL_MIN_MS = 10
_INTERVAL_MAX_MS = 1_000


class Flushes:
    """An upkeep task asks `due` every `interval_ms`, and gives each log that it gets to `flush`."""

    def __init__(
        self,
        logs: Callable[[], list[Log]],
        configs: TopicConfigs,
        files_max: int,
        scheduler_interval_ms: Callable[[], int],
    ) -> None:
        """`files_max`: how many files may be open for it. `scheduler_interval_ms`: the longest interval."""
        self._logs = logs
        self._configs = configs
        self._scheduler_interval_ms = scheduler_interval_ms
        self._at_once_max = min(_AT_ONCE_MAX, files_max // _FILES_PER_LOG)
        self._some_wait = False

    def interval_ms(self) -> float:
        """As often as the smallest flush.ms wants, within reason. Soon, if some logs had to wait for others."""
        if self._some_wait:
            return _INTERVAL_MIN_MS
        return min(max(self._shortest_ms(), _INTERVAL_MIN_MS), _INTERVAL_MAX_MS, self._scheduler_interval_ms())

    def due(self) -> Sequence[Log]:
        """The logs whose flush.ms is over, the longest waiting first, as many as may be synced at a time."""
        self._some_wait = False
        if self._shortest_ms() == _NEVER_MS:
            return ()
        logs = self._logs()
        room = max(self._at_once_max - sum(log.durability.is_syncing for log in logs), 0)
        due = sorted((log for log in logs if log.is_flush_due), key=lambda log: log.flush_due_ms)
        self._some_wait = len(due) > room
        return due[:room]

    @staticmethod
    def flush(log: Log) -> None:
        log.durability.flush_in_background()

    def _shortest_ms(self) -> int:
        return min((config.flush_ms for config in self._configs.known()), default=_NEVER_MS)
