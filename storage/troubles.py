"""Says which logs cannot be used: the first at once, those that follow within a second in one line together."""

import logging
from collections.abc import Sequence

from barnabas.storage.log import Log

logger = logging.getLogger("barnabas.storage")

SPAN_MS = 1_000
_NAMES_MAX = 5

OFFLINE, HINDERED, OVER = "offline", "hindered", "over"
_LINES = {
    OFFLINE: (logging.ERROR, "offline until the next start: {}"),
    HINDERED: (logging.ERROR, "refused writes, which were not acknowledged, and will try again with each request: {}"),
    OVER: (logging.WARNING, "written again"),
}


class Troubles:
    """One line for each change of state, however many logs a disk takes with it."""

    def __init__(self) -> None:
        self._following: dict[str, list[Log]] = {}  # by state, while its span lasts

    def tell(self, state: str, log: Log) -> None:
        """A log is in that state now."""
        following = self._following.get(state)
        if following is None:
            self._say(state, [log])
            self._following[state] = []
        else:
            following.append(log)

    def span_ends(self) -> None:
        """Say what has followed. To be called every `SPAN_MS`, and at the end."""
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
