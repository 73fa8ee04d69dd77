"""OffsetCommit and OffsetFetch, which are noted in the ledger."""

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import OffsetCommitRequest, OffsetFetchRequest

from simulator.clients.client import Client, expect
from simulator.clients.connection import LostError
from simulator.ledger import TopicPartition
from simulator.observations import EXPIRE_OFFSETS, Administer, Commit, FetchOffsets, Outcome

NOTHING_WRITTEN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
)


async def commit(
    client: Client,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    offsets: dict[TopicPartition, int],
    first_version: int = 2,
) -> ErrorCode:
    """Send one OffsetCommit and note it in the ledger; returns the first error."""
    commits = client.world.ledger.commits
    version = client.rng.randint(max(7, first_version) if instance_id is not None else first_version, 9)
    for (topic, index), offset in offsets.items():
        commits.ask((group_id, topic, index), offset)
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        # A journal writes commits without metadata by a shorter way.
                        committed_metadata="" if client.world.with_journal and offset % 4 else client.name,
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ],
    )
    operation = Commit(group_id, tuple(offsets.items()), generation)
    number = client.began(operation)
    try:
        response = await client.ask(ApiKey.OFFSET_COMMIT, version, request)
    except LostError:
        client.ended(number, Outcome.INFO, operation)
        raise
    finally:
        for key in offsets:
            commits.ended((group_id, *key))
    first = ErrorCode.NONE
    for (key, offset), topic in zip(offsets.items(), response.topics, strict=True):
        error = ErrorCode(topic.partitions[0].error_code)
        if error is ErrorCode.NONE:
            commits.acknowledge((group_id, *key), offset)
            client.progress += 1
        first = first or error
    client.ended(number, _outcome(first), operation)
    return first


def _outcome(error: ErrorCode) -> Outcome:
    """What an error says about a commit. All partitions of a commit are in one batch, so they have one fate."""
    if error is ErrorCode.NONE:
        return Outcome.OK
    return Outcome.FAIL if error in NOTHING_WRITTEN else Outcome.INFO


async def fetch_offsets(client: Client, group_id: str, keys: list[TopicPartition]) -> dict[TopicPartition, int] | None:
    """Send one OffsetFetch and note its answer in the ledger; None if the broker cannot answer it now."""
    commits = client.world.ledger.commits
    asked_ms = commits.now_ms()
    before = {key: commits.promised((group_id, *key)) for key in keys}
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=key[0], partition_indexes=[key[1]]) for key in keys],
    )
    operation = FetchOffsets(group_id)
    number = client.began(operation)
    try:
        response = await client.ask(ApiKey.OFFSET_FETCH, client.rng.randint(2, 7), request)
    except LostError:
        client.ended(number, Outcome.FAIL, operation)
        raise
    if expect(response.error_code, f"OffsetFetch of {group_id}"):
        client.ended(number, Outcome.FAIL, operation)
        return None
    found: dict[TopicPartition, int] = {}
    for key, topic in zip(keys, response.topics, strict=True):
        offset = topic.partitions[0].committed_offset
        if commits.told((group_id, *key), offset, before[key], asked_ms):
            expiry = Administer(EXPIRE_OFFSETS, group_id)
            client.ended(client.began(expiry), Outcome.INFO, expiry)
        found[key] = offset
    outcome = Outcome.INFO if commits.unaware_may_lead else Outcome.OK
    client.ended(number, outcome, operation._replace(offsets=tuple(found.items())))
    return found
