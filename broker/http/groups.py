"""`/v1/groups`: the groups that this broker coordinates, and one of them with its members and offsets."""

from collections.abc import Generator
from typing import Any

from barnabas.broker.access.http import described_group, everybody
from barnabas.broker.http.coordinators import group_with_offsets, shard_of
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, Parameter, route
from barnabas.broker.http.schemas import array, integer, member, record, text
from barnabas.broker.services import Services
from barnabas.broker.waits_for_transactions import as_json, waits
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.coordinators.groups.views import CLASSIC, CONSUMER, STATES, GroupView, group_ids, member_views, view
from barnabas.offsets.expiry import Kept, forecast, warning_ms
from barnabas.offsets.records import NO_TOPIC_ID, GroupOffsets
from barnabas.protocol import uuids
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.turns import Pieces

GROUP_ROW = record(
    "A group.",
    group=text("Its name."),
    type=text("classic, or consumer (KIP-848).", one_of=[CLASSIC, CONSUMER]),
    state=text("What it is doing.", one_of=STATES),
    protocol_type=text('"consumer" for consumers; empty if no member ever joined.'),
    generation=integer("Its generation, or the epoch of a consumer group; grows with each rebalance."),
    members=integer("How many members it has."),
    partitions=integer("Of how many partitions it has committed offsets in __consumer_offsets."),
)
LOADING = record(
    "A partition of __consumer_offsets that is being loaded.",
    partition=integer("Its number."),
    start_offset=integer("Where its log begins."),
    loaded_offset=integer("Everything before it is loaded."),
    end_offset=integer("Where its log ended when the loading began."),
    stopped_by=text("Why it does not get further, though it tries again and again; empty if it does."),
)
GROUPS = record(
    "The groups of one broker.",
    node_id=integer("The broker. Others coordinate other groups."),
    loading_partitions=array(
        integer("A partition of __consumer_offsets."), "Groups of these partitions are missing: they are being loaded."
    ),
    loading=array(LOADING, "How far they are."),
    groups=array(GROUP_ROW, "Ordered by partition of __consumer_offsets."),
)
MEMBER = member(
    "A member.",
    "The id that the coordinator gave it.",
    epoch=integer("Of a consumer group's member: the epoch that it has reached; else the group's generation."),
    session_timeout_ms=integer("How long it may be silent."),
    rebalance_timeout_ms=integer("How long a rebalance waits for it."),
)
COMMITTED = record(
    "A committed offset.",
    topic=text("The topic."),
    topic_id=text("Its id when the offset was committed; null: the commit named none.", nullable=True),
    partition=integer("The partition."),
    offset=integer("The next offset to be read."),
    leader_epoch=integer("The leader epoch of the record before it; -1: not said."),
    metadata=text("What the client wrote beside it."),
    commit_timestamp_ms=integer("When it was committed."),
    expires_ms=integer("When it expires, if the group stays as it is; null: it does not.", nullable=True),
    kept_by=text(
        "Why it does not expire: the group has members (that read the topic), a transaction is open, or it is kept in "
        "the coordination tree.",
        one_of=[kept.value for kept in Kept],
        nullable=True,
    ),
    topic_state=text(
        "Whether the partition is there, gone, or one of a new topic of that name.", one_of=["there", "gone", "another"]
    ),
)
WAIT = record(
    "What waits for an open transaction.",
    kind=text(
        "records: consumers with read_committed get nothing more, in a partition that this broker leads; offsets: an "
        "offset that counts when the transaction is committed.",
        one_of=["records", "offsets"],
    ),
    topic=text("The topic."),
    partition=integer("The partition."),
    offset=integer("records: where the transaction begins in the partition; offsets: the offset."),
    producer_id=integer("The producer of the transaction."),
    transactional_id=text("Its id; null: no coordinator that answers knows it, so it may hang.", nullable=True),
    since_ms=integer("When the transaction began; ms since 1970.", nullable=True),
    ends_ms=integer("When its timeout aborts it; null: it is decided, or not known.", nullable=True),
)
GROUP = record(
    "One group.",
    node_id=integer("Its coordinator."),
    time_ms=integer("The coordinator's clock."),
    expiry_warning_ms=integer("So long before an offset expires, the log of the coordinator warns."),
    group=text("Its name."),
    type=text("classic, or consumer (KIP-848).", one_of=[CLASSIC, CONSUMER]),
    state=text("What it is doing.", one_of=STATES),
    protocol_type=text('"consumer" for consumers; empty if no member ever joined.'),
    protocol=text("The chosen assignor.", nullable=True),
    generation=integer("Its generation, or the epoch of a consumer group; grows with each rebalance."),
    leader=text("The member that makes the assignment.", nullable=True),
    members=array(MEMBER, "Its members."),
    offsets=array(COMMITTED, "Its committed offsets, by topic and partition."),
    waits=array(WAIT, "What waits for an open transaction: `barnabas transactions abort ID` ends it."),
)


@route(
    "GET",
    "/v1/groups",
    summary="The groups that this broker coordinates",
    query=[Parameter("state", text("Only groups in this state; may be repeated.", one_of=STATES), many=True)],
    answer=GROUPS,
    access=everybody(ApiKey.LIST_GROUPS),
)
def list_groups(services: Services, request: HttpRequest) -> HttpAnswer:
    """Name, state and sizes of each group. Ask every broker to see the groups of the cluster."""
    shards = services.group_coordinator.shards
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "loading_partitions": sorted(partition for partition, shard in shards.items() if shard.loading),
            "loading": [progress._asdict() for progress in services.group_coordinator.loading()],
            "groups": _group_rows(services.group_coordinator.loaded_shards(), request),
        }
    )


def _group_rows(shards: list[Shard], request: HttpRequest) -> Generator[dict[str, Any] | None, None, None]:
    states = request.query["state"]
    for shard in shards:
        yield None
        for group_id in group_ids(shard):
            group = view(shard, group_id)
            if group is None or (states and group.state not in states) or not request.may_see_group(group_id):
                yield None
                continue
            yield {
                "group": group_id,
                "type": group.kind,
                "state": group.state,
                "protocol_type": group.protocol_type,
                "generation": group.generation,
                "members": group.member_count,
                "partitions": shard.offsets.count(group_id),
            }


@route(
    "GET",
    "/v1/groups/{group}",
    summary="One group",
    answer=GROUP,
    of_group=True,
    access=described_group,
)
def describe_group(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """State, members and committed offsets of a group."""
    name = request.path["group"]
    coordinator = services.group_coordinator
    config = coordinator.config
    group, committed = yield from group_with_offsets(services, name)
    committed = request.seen(committed)
    if group is None:  # it has offsets, and no member was ever there
        group = GroupView(name, CLASSIC, State.EMPTY.value, "", None, 0, None, 0)
    waiting = yield from waits(services, shard_of(services, name), name, committed)
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "time_ms": coordinator.clock.now_ms(),
            "expiry_warning_ms": warning_ms(_retention_ms(coordinator), config.offsets_retention_check_interval_ms),
            "group": name,
            "type": group.kind,
            "state": group.state,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "generation": group.generation,
            "leader": group.leader,
            "members": (member._asdict() for member in member_views(shard_of(services, name), name)),
            "offsets": _offset_rows(coordinator, shard_of(services, name), name, committed),
            "waits": [as_json(wait, known) for wait, known in waiting],
        }
    )


def _retention_ms(coordinator: GroupCoordinator) -> int:
    return coordinator.config.offsets_retention_minutes * 60_000


def _offset_rows(
    coordinator: GroupCoordinator, shard: Shard, group_id: str, committed: GroupOffsets
) -> Generator[dict[str, Any], None, None]:
    situation = shard.situation(group_id)
    pending = shard.offsets.pending_of_group(group_id)
    retention_ms = _retention_ms(coordinator)
    in_topic = shard.offsets.of_group(group_id)
    expires: int | Kept
    for topic in sorted(committed):
        topic_id = coordinator.topics.topic_id(topic)
        for partition, offset in sorted(committed.get(topic, {}).items()):
            if partition not in in_topic.get(topic, {}):
                expires = Kept.TREE
            else:
                expires = forecast(situation, topic, offset, (topic, partition) in pending, retention_ms)
            if not coordinator.topics.contains(topic, partition):
                state = "gone"
            else:
                state = "there" if offset.topic_id in (NO_TOPIC_ID, topic_id) else "another"
            yield {
                "topic": topic,
                "topic_id": uuids.to_text(offset.topic_id) if any(offset.topic_id) else None,
                "partition": partition,
                "offset": offset.offset,
                "leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata or "",
                "commit_timestamp_ms": offset.commit_timestamp,
                "expires_ms": None if isinstance(expires, Kept) else expires,
                "kept_by": expires.value if isinstance(expires, Kept) else None,
                "topic_state": state,
            }
