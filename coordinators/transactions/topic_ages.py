"""Asks the tree when topics were made: a transaction that was loaded knows its topics only by their names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import Coordination, CoordinationError
from barnabas.runtime.pending import Pending

Ages = dict[str, int | None]


class TopicAges:
    """One question at a time is enough for many transactions."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, topics: Sequence[str]) -> Pending[Ages]:
        """When each was made, in ms since 1970; None: there is no such topic. Empty if the tree does not answer."""
        answer: Pending[Ages] = Pending()
        task = asyncio.get_running_loop().create_task(self._read(topics, answer))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return answer

    async def _read(self, topics: Sequence[str], answer: Pending[Ages]) -> None:
        try:
            nodes = await self._coordination.get_many([paths.topic(topic) for topic in topics])
        except CoordinationError:
            answer.complete({})
        else:
            made = [None if node is None else node[1].ctime_ms for node in nodes]
            answer.complete(dict(zip(topics, made, strict=True)))

    def stop(self) -> None:
        for task in self._asking:
            task.cancel()
