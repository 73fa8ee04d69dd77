"""Settings of an older tree: what was changed since the copy is forgotten, so for a day nothing is deleted by them.

A topic that was to keep its records for ever may have the default of a week again, and compaction where there was none.
Retention and compaction would delete what was acknowledged before anybody could look. So after a restore they rest, for
each topic until somebody has set its settings anew; a new default ends no rest, because a topic may have had a setting
of its own. The tree says when the restore was noticed, so a restart ends no rest.
"""

import logging
import math

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import ANY_VERSION, Coordination, NoNodeError, get_if_there, make_if_missing
from barnabas.runtime.ports import Clock

logger = logging.getLogger("barnabas.broker")

REST_MS = 24 * 3_600_000


class OldSettings:
    """Which topics are cleaned. None are until `read` has been called."""

    def __init__(self, clock: Clock, coordination: Coordination) -> None:
        self._clock = clock
        self._coordination = coordination
        self._until_ms = math.inf
        self._set_anew: set[str] = set()

    async def note(self) -> None:
        """The tree is an older copy: the rest begins now."""
        try:
            await self._coordination.set(paths.OLD_SETTINGS, b"", ANY_VERSION)
        except NoNodeError:
            await make_if_missing(self._coordination, paths.OLD_SETTINGS)  # others may notice it at the same time

    async def read(self) -> None:
        """Read until when topics rest, and which of them were set since."""
        node = await get_if_there(self._coordination, paths.OLD_SETTINGS)
        self._until_ms = -math.inf if node is None else node[1].mtime_ms + REST_MS
        if node is None or self._clock.now_ms() >= self._until_ms:
            return
        folder = f"{paths.CONFIG}/topics"
        topics = await self._coordination.children(folder)
        found = zip(topics, await self._coordination.get_many([f"{folder}/{topic}" for topic in topics]))
        self._set_anew = {topic for topic, own in found if own is not None and own[1].mtime_ms > node[1].mtime_ms}
        logger.warning(
            "The settings of topics are those of an older copy of the tree. For %.1f more hours retention and "
            "compaction delete nothing by them, except in a topic whose own settings are set anew (`barnabas configs "
            "set topic NAME …`; a new default does not count)",
            (self._until_ms - self._clock.now_ms()) / 3_600_000,
        )

    def set_anew(self, topic: str) -> None:
        """Somebody has set a topic's settings."""
        if math.isfinite(self._until_ms):
            self._set_anew.add(topic)

    def rests(self, topic: str) -> bool:
        """Whether nothing is to be deleted by the topic's settings now."""
        return self._clock.now_ms() < self._until_ms and topic not in self._set_anew
