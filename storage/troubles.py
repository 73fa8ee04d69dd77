"""Says which logs cannot be used: the first at once, and all that follow within a second together in one line."""

import logging
from collections.abc import Sequence

from barnabas.runtime.ports import Clock
from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")

SPAN_MS = 1_000
SETTLED_MS = 5_000.0  # on a disk that is nearly full, a small write fits between two that do not
_NAMES_MAX = 5

OFFLINE, HINDERED, OVER = "offline", "hindered", "over"
_LINES = {
    OFFLINE: (logging.ERROR, "offline until the next start: {}"),
    HINDERED: (logging.ERROR, "refused writes, which were not acknowledged, and will try again with each request: {}"),
    OVER: (logging.WARNING, "can be written again"),
}


class Troubles:
    """Few lines, also when a disk takes many logs with it, and when their states change often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._following: dict[str, list[Log]] = {}  # by state: to be said when the span of the last line ends
        self._hindered: dict[Log, float | None] = {}  # logs for which that was said, and since when it is over

    def tell(self, state: str, log: Log) -> None:
        """A log is in that state now. The end of a hindrance is said only when it has lasted for a while."""
        if state == OVER:
            if log in self._hindered:
                self._hindered[log] = self._clock.monotonic_ms()
            return
        if state == OFFLINE:
            self._hindered.pop(log, None)
        elif log in self._hindered:
            self._hindered[log] = None
            return
        else:
            self._hindered[log] = None
        self._tell(state, log)

    def _tell(self, state: str, log: Log) -> None:
        following = self._following.get(state)
        if following is None:
            self._say(state, [log])
            self._following[state] = []
        else:
            following.append(log)

    def span_ends(self) -> None:
        """Say which logs have followed. To be called every `SPAN_MS`, and at the end."""
        settled_ms = self._clock.monotonic_ms() - SETTLED_MS
        for log, over_ms in list(self._hindered.items()):
            if log.closed:
                del self._hindered[log]
            elif over_ms is not None and over_ms <= settled_ms:
                del self._hindered[log]
                self._tell(OVER, log)
        for state, logs in list(self._following.items()):
            if logs:
                self._following[state] = []
                self._say(state, logs)
            else:
                del self._following[state]

    def _say(self, state: str, logs: Sequence[Log]) -> None:
        level, text = _LINES[state]
        names = ", ".join(dict.fromkeys(log.name for log in logs[:_NAMES_MAX]))
        if len(logs) > _NAMES_MAX:
            names = f"{len(logs)} more logs ({names}, …)"
        logger.log(level, "%s: %s", names, text.format(logs[0].failed or logs[0].hindered))
