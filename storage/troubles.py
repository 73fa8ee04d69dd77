"""Says what is wrong with logs: the first at once, and all that follow within a second together in one line."""

import logging
from collections.abc import Sequence

from barnabas.runtime.counted import counted

logger = logging.getLogger("barnabas.storage")

SPAN_MS = 1_000
_NAMES_MAX = 5


class Troubles:
    """Few lines, also when a disk takes many logs with it."""

    def __init__(self) -> None:
        self._following: dict[str, tuple[str, int, list[str]]] = {}  # by kind: to be said when the span of a line ends

    def tell(self, kind: str, name: str, text: str, level: int = logging.ERROR) -> None:
        """The log of that name is in trouble, or out of it. What is of one kind can be told with the text of one."""
        following = self._following.get(kind)
        if following is None:
            self._say([name], text, level)
            self._following[kind] = text, level, []
        else:
            following[2].append(name)

    def span_ends(self) -> None:
        """Say which logs have followed. To be called every `SPAN_MS`, and at the end."""
        for kind, (text, level, names) in list(self._following.items()):
            if names:
                self._following[kind] = text, level, []
                self._say(names, text, level)
            else:
                del self._following[kind]

    def _say(self, names: Sequence[str], text: str, level: int) -> None:
        listed = ", ".join(dict.fromkeys(names[:_NAMES_MAX]))
        if len(names) > _NAMES_MAX:
            listed = f"{counted(len(names), 'more log')} ({listed}, …)"
        logger.log(level, "%s: %s", listed, text)
