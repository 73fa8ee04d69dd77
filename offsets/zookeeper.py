"""Offset storage in the coordination tree, for clients of 0.8, and for OffsetCommit and OffsetFetch v0.

`/consumers/<group>/offsets/<topic>/<partition>` holds the offset as decimal text. There is no metadata, no time and no
expiry. No broker owns a group: any broker answers for it.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Collection, Coroutine, Sequence

from barnabas.cluster.topic_names import topic_name_problem
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import (
    Coordination,
    CoordinationError,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Set,
    children_if_there,
)
from barnabas.offsets.manager import Done, Offsets, Partitions
from barnabas.offsets.records import CommittedOffset, GroupOffsets, OffsetCommits, TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks

logger = logging.getLogger("barnabas.offsets")

NODES_PER_WRITE = 200  # a change of the embedded tree takes the longer the more nodes it has

# ZooKeeper allows only these characters in paths. Compiled on first use: that takes longer than importing this module.
NODE_CHARACTERS = "[\\x20-\\x7e\\xa0-\\ud7ff\\uf900-\\uffef]+"


def names_a_node(group_id: str) -> bool:
    """Whether ZooKeeper allows this group id as a part of a path."""
    return re.fullmatch(NODE_CHARACTERS, group_id) is not None and not {"", ".", ".."}.intersection(group_id.split("/"))


def of_possible_topics(partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Without those of topics that cannot exist: nothing is committed there, and the name may be no part of a path."""
    return [(topic, partition) for topic, partition in partitions if topic_name_problem(topic) is None]


class ZooKeeperOffsetManager:
    """`OffsetManager` over the coordination tree."""

    def __init__(self, env: Env, coordination: Coordination) -> None:
        self._env = env
        self._coordination = coordination
        self._tasks: set[asyncio.Task[None]] = set()

    def shutdown(self) -> None:
        """Cancel all reads and writes."""
        for task in self._tasks:
            task.cancel()

    def get(
        self,
        shard: object,
        group_id: str,
        partitions: Partitions | None,
        *,
        require_stable: bool = False,
    ) -> Pending[Offsets]:
        """Read the nodes. Every node is stable, because the tree has no transactions."""
        pending: Pending[Offsets] = Pending()
        committed: GroupOffsets = {}
        keys = None
        if partitions is not None:  # each is read once, however often it is named
            keys = list(dict.fromkeys((topic, index) for topic, indexes in partitions for index in indexes))

        async def run() -> None:
            committed.update(await self.read(group_id, keys))

        self._start(self._tell(group_id, run(), lambda error: pending.complete(Offsets(error, committed))))
        return pending

    def put(self, records: OffsetCommits, done: Done) -> None:
        """Write the nodes, up to `NODES_PER_WRITE` as one change. After an error some may be written."""
        nodes = {
            paths.consumer_offset(records.group_id, topic, partition): payloads.encode_number(committed.offset)
            for topic, offsets in records.offsets.items()
            for partition, committed in offsets.items()
        }

        async def run() -> None:
            for chunk in chunks(list(nodes), NODES_PER_WRITE):
                await self._write({path: nodes[path] for path in chunk})

        self._start(self._tell(records.group_id, run(), done))

    def remove(
        self,
        shard: object,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        done: Done,
        origin: bytes = b"",
    ) -> None:
        """Delete the nodes."""

        async def run() -> None:
            if partitions is None:
                await _ignore_missing(self._coordination.delete_recursive(paths.consumer_offsets(group_id)))
                with contextlib.suppress(NoNodeError, NotEmptyError):  # members of an old consumer are still in it
                    await self._coordination.delete(paths.consumer(group_id))
                return
            for topic, partition in of_possible_topics(partitions):
                await _ignore_missing(self._coordination.delete(paths.consumer_offset(group_id, topic, partition)))

        self._start(self._tell(group_id, run(), done))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Delete the nodes of these partitions in every group. Each broker does this."""
        earlier = list(self._tasks)  # these were allowed while the topic existed, and would write its nodes again

        async def run() -> None:
            if earlier:
                await asyncio.wait(earlier)
            try:
                await self._forget(partitions, paths.CONSUMERS)
            except CoordinationError as error:
                logger.warning("offsets of deleted topics remain in the tree: %s", error)

        self._env.clock.call_soon(lambda: self._start(run()))

    async def _forget(self, partitions: Collection[TopicPartition], folder: str) -> None:
        """In all groups below a folder. A group id with a slash is a folder with another folder inside."""
        pace = self._env.turns.pace()
        for name in await children_if_there(self._coordination, folder):
            await pace.rest()  # the embedded tree answers at once, so the other awaits do not pause
            if name == paths.OFFSETS:
                await self._forget_in_group(partitions, f"{folder}/{name}")
            elif name not in paths.OTHERS_OF_A_GROUP:
                await self._forget(partitions, f"{folder}/{name}")

    async def _forget_in_group(self, partitions: Collection[TopicPartition], offsets: str) -> None:
        topics = set(await children_if_there(self._coordination, offsets))
        for topic, partition in partitions:
            if topic in topics:
                await _ignore_missing(self._coordination.delete(f"{offsets}/{topic}/{partition}"))
        for topic in topics.intersection(topic for topic, _ in partitions):
            with contextlib.suppress(NoNodeError, NotEmptyError):
                await self._coordination.delete(f"{offsets}/{topic}")

    async def read(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> GroupOffsets:
        """The offsets of these partitions; None: all of the group. CoordinationError when the tree cannot be read."""
        if partitions is None:
            partitions = await self._all_partitions(group_id)
        partitions = of_possible_topics(partitions)
        nodes = [paths.consumer_offset(group_id, topic, partition) for topic, partition in partitions]
        committed: GroupOffsets = {}
        for (topic, partition), node in zip(partitions, await self._coordination.get_many(nodes), strict=True):
            if node is None:
                continue
            try:
                offset = payloads.decode_number(node[0])
            except ValueError:
                logger.warning("group %s: the offset node of %s-%d holds no number", group_id, topic, partition)
            else:
                committed.setdefault(topic, {})[partition] = CommittedOffset(offset)
        return committed

    async def _write(self, nodes: dict[str, bytes]) -> None:
        """Set these nodes as one change, and make those that are missing."""
        while nodes:
            try:
                await self._coordination.multi([Set(path, data) for path, data in nodes.items()])
                return
            except MultiError as error:
                if not isinstance(error.cause, NoNodeError):
                    raise
            found = await self._coordination.get_many(list(nodes))
            for path in [path for path, node in zip(nodes, found, strict=True) if node is None]:
                with contextlib.suppress(NodeExistsError):  # another client made the node: replace its offset
                    await self._coordination.create(path, nodes[path], make_parents=True)
                    del nodes[path]

    async def _all_partitions(self, group_id: str) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        folder = paths.consumer_offsets(group_id)
        for topic in await children_if_there(self._coordination, folder):
            names = await children_if_there(self._coordination, f"{folder}/{topic}")
            found += [(topic, int(name)) for name in names if name.isdecimal()]
        return sorted(found)

    async def _tell(self, group_id: str, work: Coroutine[None, None, None], done: Done) -> None:
        if not names_a_node(group_id):
            work.close()
            done(ErrorCode.INVALID_GROUP_ID)
            return
        try:
            await work
        except CoordinationError as error:
            logger.warning("group %r: its offsets in the tree could not be read or written: %s", group_id, error)
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:  # a bug: who waits for an answer gets one
            logger.exception("group %r: its offsets in the tree could not be read or written", group_id)
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            done(ErrorCode.NONE)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ignore_missing(work: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(NoNodeError):
        await work
