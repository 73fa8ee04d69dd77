"""A topic that its client deletes and creates again, with the same name and another id.

A request that names a topic by its id (Produce and Fetch from version 13 on) means that topic, and no later one of the
same name. Each value holds the id of the topic that it was written for.
"""

from typing import TYPE_CHECKING

from barnabas.cluster.tree import paths
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)

from simulator.clients.client import Client, expect
from simulator.clients.offsets import commit, fetch_offsets
from simulator.clients.reader import FETCH_LIMIT_MS
from simulator.clients.requests import batch_of, fetch_request, produce_request
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

RECREATED = "topic-of-recreator"
_NO_ID = bytes(16)
REFUSALS_MAX = 2
FORGOTTEN_WITHIN_MS = 12_000.0  # so soon the offsets of a deleted topic are gone
# Kafka's error while the broker is between two sessions in the tree: no broker is registered that could have a replica.
_NOT_YET = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REPLICATION_FACTOR)
_BEING_DELETED = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INCONSISTENT_TOPIC_ID)


class Recreator(Client):
    """Creates the topic, writes, reads and deletes it, and sometimes asks for a deleted one."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.topic = RECREATED
        self.group_id = f"group-of-{name}"
        self.topic_id = _NO_ID  # of the topic that exists
        self.old_ids: list[bytes] = []  # ids of topics whose deletion was acknowledged
        self.written: dict[bytes, dict[int, str]] = {}  # acknowledged values by offset, by topic id
        self._refusals = 0  # so many in a row
        self._unanswered_deletion = _NO_ID  # of the topic whose deletion was requested and not answered
        self._count = 0

    async def turn(self) -> None:
        if self.topic_id == self._unanswered_deletion != _NO_ID and not self._is_in_tree():
            self.old_ids.append(self.topic_id)
            self.topic_id = _NO_ID
        if self.topic_id == _NO_ID:
            await self._create()
            await self.sleep(0, 2_000)
            if self.topic_id != _NO_ID:
                await self._write(self.topic_id)
            return
        luck = self.rng.random()
        if luck < 0.45:
            await self._write(self.topic_id)
        elif luck < 0.7:
            await self._read(self.topic_id)
        elif luck < 0.8 and self.old_ids:
            await (self._write if self.rng.random() < 0.5 else self._read)(self.rng.choice(self.old_ids[-2:]))
        elif luck < 0.9:
            await self._commit_or_look()
        else:
            if await self._read_all():
                await self._delete()
        await self.sleep(100, 1_500)

    async def _create(self) -> None:
        topic = CreateTopicsRequest.CreatableTopic(name=self.topic, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        response = await self.ask(ApiKey.CREATE_TOPICS, 7, request)
        (answer,) = response.topics
        if expect(answer.error_code, f"CreateTopics {self.topic}", *_NOT_YET):
            await self._find()  # the topic may exist, because an answer may have been lost
        else:
            self._begin(answer.topic_id)

    async def _find(self) -> None:
        asked = MetadataRequest.MetadataRequestTopic(name=self.topic)
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        response = await self.ask(ApiKey.METADATA, 12, request)
        (topic,) = response.topics
        if not topic.error_code and topic.topic_id not in self.old_ids:
            self._begin(topic.topic_id)

    def _begin(self, topic_id: bytes) -> None:
        if topic_id in self.old_ids or topic_id == _NO_ID:
            raise Violation("a topic id is given once", f"{self.topic}: {topic_id.hex()}")
        self.topic_id = topic_id
        self.written.setdefault(topic_id, {})
        self._refusals = 0

    async def _write(self, topic_id: bytes) -> None:
        value = f"{topic_id.hex()}:{self._count}"
        self._count += 1
        request = produce_request((self.topic, 0), batch_of(value, self.world.clock.now_ms()), topic_id=topic_id)
        response = await self.ask(ApiKey.PRODUCE, 13, request)
        (answer,) = response.responses[0].partition_responses
        error = expect(answer.error_code, f"Produce to {self.topic}", *_BEING_DELETED)
        self._refusals = self._refusals + 1 if error and topic_id == self.topic_id else 0
        if self._refusals > REFUSALS_MAX and self.world.is_calm_for(20_000):
            raise Violation("a topic takes records", f"{self.topic} {topic_id.hex()}: {error.name}")
        if error:
            return
        if topic_id in self.old_ids:
            raise Violation("a deleted topic takes nothing", f"{self.topic} {topic_id.hex()}: {answer.base_offset}")
        if self.written[topic_id].setdefault(answer.base_offset, value) != value:
            raise Violation("one record per offset", f"{self.topic} {answer.base_offset}")
        self.progress += 1

    async def _read(self, topic_id: bytes, position: int = 0) -> int | None:
        """Read once. Returns the next position; None if it cannot be read."""
        request = fetch_request((self.topic, 0), position, 100, 10_000, topic_id=topic_id)
        response = await self.ask(ApiKey.FETCH, self.rng.randint(13, 18), request, FETCH_LIMIT_MS)
        (answer,) = response.responses[0].partitions
        error = expect(answer.error_code, f"Fetch {self.topic}", ErrorCode.OFFSET_OUT_OF_RANGE, *_BEING_DELETED)
        if error:
            return None
        if topic_id in self.old_ids:
            raise Violation("a deleted topic gives nothing", f"{self.topic} {topic_id.hex()}")
        known = self.written[topic_id]
        for _, batch in record_batch.batches(answer.records or b""):
            for record in record_batch.records(batch):
                value = (record.value or b"").decode()
                if not value.startswith(topic_id.hex()):
                    raise Violation("a new topic has nothing of the old", f"{topic_id.hex()} {record.offset}: {value}")
                if known.get(record.offset, value) != value or record.offset != position:
                    raise Violation("acknowledged is what is read", f"{self.topic} {record.offset}: {value}")
                position += 1
        return position

    async def _read_all(self) -> bool:
        """Read to the end as far as possible now. False if an acknowledged value is missing.

        Just after a start the high watermark may still be too low, so the caller looks again.
        """
        position = 0
        while True:
            following = await self._read(self.topic_id, position)
            if following is None:
                return True
            if following == position:
                break
            position = following
        missing = [at for at in self.written[self.topic_id] if at >= position]
        if missing and self.world.is_calm_for(5_000):
            raise Violation("what was acknowledged is there", f"{self.topic} {self.topic_id.hex()}: not {missing}")
        return not missing

    async def _delete(self) -> None:
        commits = self.world.ledger.commits
        asked_ms = self.world.clock.monotonic_ms()
        commits.ask_deletion(self.group_id)
        self._unanswered_deletion = self.topic_id
        by_id = self.rng.random() < 0.5
        state = DeleteTopicsRequest.DeleteTopicState(
            name=None if by_id else self.topic, topic_id=self.topic_id if by_id else _NO_ID
        )
        request = DeleteTopicsRequest(topics=[state], timeout_ms=10_000)
        try:
            response = await self.ask(ApiKey.DELETE_TOPICS, 6, request)
        finally:
            commits.end_deletion(self.group_id, answered=False)  # its offsets go a little later
        error = expect(response.responses[0].error_code, f"DeleteTopics {self.topic}", ErrorCode.NOT_CONTROLLER)
        if not error or not self._is_in_tree():
            self.old_ids.append(self.topic_id)
            self.topic_id = _NO_ID
            await self._look_for_offsets(asked_ms)

    def _is_in_tree(self) -> bool:
        """Whether the topic is in the tree. An earlier deletion may have been done without an answer."""
        tree = self.world.tree
        return tree.has(paths.topic(self.topic)) or not tree.has(paths.TOPICS)  # nothing is in an empty tree

    async def _look_for_offsets(self, asked_ms: float) -> None:
        await self.sleep(FORGOTTEN_WITHIN_MS, FORGOTTEN_WITHIN_MS)
        found = await fetch_offsets(self, self.group_id, [(self.topic, 0)])
        was_calm = self.world.is_calm_for(self.world.clock.monotonic_ms() - asked_ms)
        if was_calm and not self.world.offsets_in_tree and found is not None and found[self.topic, 0] >= 0:
            raise Violation("offsets go with their topic", f"{self.group_id}: {found}")

    async def _commit_or_look(self) -> None:
        found = await fetch_offsets(self, self.group_id, [(self.topic, 0)])
        if found is not None:
            self._count += 1
            error = await commit(self, self.group_id, -1, "", None, {(self.topic, 0): self._count})
            expect(error, f"OffsetCommit of {self.name}")
