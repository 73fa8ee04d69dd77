"""An administrator, who deletes records, committed offsets and groups that other clients use."""

from typing import TYPE_CHECKING

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteRecordsRequest, OffsetDeleteRequest

from simulator.clients.client import expect
from simulator.clients.committer import delete_group
from simulator.clients.reader import Reader
from simulator.ledger import TopicPartition
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World


class Admin(Reader):
    """Each turn deletes one thing."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition], group_ids: list[str]) -> None:
        super().__init__(world, name, keys)
        self.group_ids = group_ids

    async def turn(self) -> None:
        await self.sleep(2_000, 15_000)
        luck = self.rng.random()
        if self.world.settling:
            return
        if luck < 0.4:
            await self._delete_records(self.rng.choice(list(self.positions)))
        elif luck < 0.8:
            await self._delete_offsets(self.rng.choice(self.group_ids), self.rng.choice(list(self.positions))[0])
        else:
            await delete_group(self, self.rng.choice(self.group_ids))

    async def rest(self) -> None:
        await self.sleep(20_000, 60_000)

    async def _delete_records(self, key: TopicPartition) -> None:
        start, end = await self.list_offset(key, -2), await self.list_offset(key, -1)
        if start is None or end is None or start >= end:
            return
        offset = self.rng.randint(start, end) if self.rng.random() < 0.9 else -1
        life = self.world.host.lives
        self.world.ledger.ask_record_deletion(key, end + 1_000 if offset < 0 else offset)  # -1: the high watermark
        partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=key[1], offset=offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=key[0], partitions=[partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=5_000)
        response = await self.ask(ApiKey.DELETE_RECORDS, self.rng.randint(0, 2), request)
        answer = response.topics[0].partitions[0]
        # The end may be from an earlier life of the broker: records that were not acknowledged may be gone since.
        if expect(answer.error_code, f"DeleteRecords {key} {offset}", ErrorCode.OFFSET_OUT_OF_RANGE):
            return
        if answer.low_watermark < offset:
            raise Violation("records are deleted as asked", f"{key}: {answer.low_watermark}, asked was {offset}")
        begins = await self.list_offset(key, -2)
        if begins is not None and begins < answer.low_watermark and life == self.world.host.lives:
            raise Violation("records are deleted as asked", f"{key} begins with {begins}, not {answer.low_watermark}")

    async def _delete_offsets(self, group_id: str, topic: str) -> None:
        commits = self.world.ledger.commits
        asked_ms = commits.ask_deletion(group_id, (topic,))
        partitions = [
            OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
            for name, index in self.positions
            if name == topic
        ]
        asked = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=partitions)
        answered = False
        try:
            request = OffsetDeleteRequest(group_id=group_id, topics=[asked])
            response = await self.ask(ApiKey.OFFSET_DELETE, 0, request)
            answered = True
        finally:
            commits.end_deletion(group_id, answered=answered)
        what = f"OffsetDelete of {group_id}"
        if expect(response.error_code, what, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP):
            return
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        errors = {expect(part.error_code, what, subscribed) for part in response.topics[0].partitions}
        if errors == {ErrorCode.NONE}:
            commits.acknowledge_deletion(group_id, asked_ms, (topic,))
