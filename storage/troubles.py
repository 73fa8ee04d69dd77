"""Says which logs cannot be used: the first at once, those that follow within a second in one line together."""

import logging
from collections.abc import Sequence

from barnabas.runtime.ports import Clock, Timer
from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")

_SPAN_MS = 1_000
_NAMES_MAX = 5

OFFLINE, HINDERED, OVER = "offline", "hindered", "over"
_LINES = {
    OFFLINE: (logging.ERROR, "offline until the next start: {}"),
    HINDERED: (logging.ERROR, "refused writes, which were not acknowledged, and will try again with each request: {}"),
    OVER: (logging.WARNING, "written again"),
}


class Troubles:
    """One line for each change of state, however many logs a disk takes with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._following: dict[str, list[Log]] = {}  # by state, while its span lasts
        self._timers: dict[str, Timer] = {}

    def tell(self, state: str, log: Log) -> None:
        """A log is in that state now."""
        following = self._following.get(state)
        if following is None:
            self._say(state, [log])
            self._begin_span(state)
        else:
            following.append(log)

    def close(self) -> None:
        """Say what has not been said yet."""
        for timer in self._timers.values():
            timer.cancel()
        for state in list(self._following):
            self._end_span(state)

    def _begin_span(self, state: str) -> None:
        self._following[state] = []
        self._timers[state] = self._clock.call_later(_SPAN_MS, lambda: self._span_ends(state))

    def _span_ends(self, state: str) -> None:
        if self._end_span(state):
            self._begin_span(state)

    def _end_span(self, state: str) -> bool:
        logs = self._following.pop(state)
        if logs:
            self._say(state, logs)
        return bool(logs)

    def _say(self, state: str, logs: Sequence[Log]) -> None:
        level, text = _LINES[state]
        names = ", ".join(dict.fromkeys(log.name for log in logs[:_NAMES_MAX]))
        if len(logs) > _NAMES_MAX:
            names = f"{len(logs)} more logs ({names}, …)"
        logger.log(level, "%s: %s", names, text.format(logs[0].failed or logs[0].hindered))
