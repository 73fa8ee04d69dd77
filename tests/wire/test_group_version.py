"""`group.version` goes down and up while groups of the consumer protocol live: each answer is that of Kafka 4.3.1."""

from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol import records as kept
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

GROUP, TOPIC = "readers", "t"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
REFUSED = ErrorCode.UNSUPPORTED_VERSION


class Group:
    """What clients and tools ask of one group."""

    def __init__(self, world: Any) -> None:
        self._world = world
        world.create_topic(TOPIC, 2)
        world.ask(ApiKey.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]))
        world.env.clock.advance(1_000)

    def set_level(self, level: int, upgrade_type: int) -> str | None:
        """Change the level; what is wrong with that."""
        make = messages.UpdateFeaturesRequest
        key = make.FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=upgrade_type)
        answer = self._world.ask(ApiKey.UPDATE_FEATURES, 1, make(timeout_ms=5_000, feature_updates=[key]))
        message: str | None = answer.error_message
        return message

    def beat(self, member_id: str, epoch: int) -> tuple[int, int, list[int] | None]:
        """Error, epoch, and what it is assigned."""
        request = messages.ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch)
        if epoch == 0:
            request.rebalance_timeout_ms = 10_000
            request.subscribed_topic_names, request.topic_partitions = [TOPIC], []
        answer = self._world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        given = answer.assignment
        parts = None if given is None else [index for row in given.topic_partitions for index in row.partitions]
        return answer.error_code, answer.member_epoch, parts

    def commit(self, member_id: str, epoch: int) -> int:
        """The error."""
        make = messages.OffsetCommitRequest
        row = make.OffsetCommitRequestTopic(
            name=TOPIC, partitions=[make.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
        )
        request = make(
            group_id=GROUP,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            group_instance_id=None,
            topics=[row],
        )
        (topic,) = self._world.ask(ApiKey.OFFSET_COMMIT, 9, request).topics
        error: int = topic.partitions[0].error_code
        return error

    def fetch(self, member_id: str | None, epoch: int) -> tuple[int, list[int]]:
        """Error and offsets."""
        make = messages.OffsetFetchRequest
        row = make.OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=None)
        (group,) = self._world.ask(ApiKey.OFFSET_FETCH, 9, make(groups=[row])).groups
        return group.error_code, [part.committed_offset for topic in group.topics for part in topic.partitions]

    def join(self) -> tuple[int, int]:
        """A classic member joins: error and generation."""
        make = messages.JoinGroupRequest
        said = kept.encode_versioned(kept.ConsumerProtocolSubscription(topics=[TOPIC]), 1)
        request = make(
            group_id=GROUP,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=6_000,
            member_id="",
            protocol_type="consumer",
            protocols=[make.JoinGroupRequestProtocol(name="range", metadata=said)],
        )
        answer = self._world.ask(ApiKey.JOIN_GROUP, 9, request)
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self._world.env.clock.advance(1_000)  # group.consumer.assignment.interval.ms: there is a target again
        request.member_id = answer.member_id
        answer = self._world.ask(ApiKey.JOIN_GROUP, 9, request)
        return answer.error_code, answer.generation_id

    def look(self) -> tuple[tuple[int, str, list[int]], int, str]:
        """Described (error, state, epochs of members), described as a classic one (error), listed (state)."""
        describe, describe_classic = messages.ConsumerGroupDescribeRequest, messages.DescribeGroupsRequest
        (found,) = self._world.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group_ids=[GROUP])).groups
        (classic,) = self._world.ask(ApiKey.DESCRIBE_GROUPS, 6, describe_classic(groups=[GROUP])).groups
        (listed,) = self._world.ask(ApiKey.LIST_GROUPS, 5, messages.ListGroupsRequest()).groups
        assert (listed.group_id, listed.group_type) == (GROUP, "consumer")
        epochs = sorted(member.member_epoch for member in found.members)
        return (found.error_code, found.group_state, epochs), classic.error_code, listed.group_state


@pytest.fixture
def group(own_world: Any) -> Group:
    return Group(own_world)


@pytest.mark.parametrize("how", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE], ids=["safe", "unsafe"])
def test_a_group_waits_for_the_level_to_come_back(own_world: Any, group: Group, how: int) -> None:
    """Nobody asks for the groups that live. They stay what they are; only heartbeats and descriptions are refused."""
    assert group.beat("a", 0) == (0, 2, [0, 1])
    refusal = group.set_level(0, UPGRADE)
    assert refusal is not None
    assert refusal.endswith("without setting the upgrade type to either safe or unsafe downgrade.")
    assert group.set_level(0, how) is None
    assert group.look() == ((REFUSED, "", []), ErrorCode.GROUP_ID_NOT_FOUND, "Stable")
    assert group.beat("a", 2) == (REFUSED, 0, None)
    assert group.commit("a", 2) == 0
    assert group.fetch("a", 2) == (0, [5])
    assert group.fetch("", -1) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert group.beat("b", 0) == (REFUSED, 0, None)
    assert group.join() == (0, 3), "a classic member takes part in the group as it is"
    assert group.beat("a", -1) == (REFUSED, 0, None)
    assert group.look() == ((REFUSED, "", []), ErrorCode.GROUP_ID_NOT_FOUND, "Reconciling")
    assert group.set_level(1, UPGRADE) is None
    assert group.look() == ((0, "Reconciling", [2, 3]), ErrorCode.GROUP_ID_NOT_FOUND, "Reconciling")
    assert group.beat("a", 2) == (0, 2, [0])
    own_world.env.clock.advance(1_000)
    assert group.beat("b", 0) == (0, 4, [])


def test_sessions_end_meanwhile(own_world: Any, group: Group) -> None:
    """Who was silent for too long has no place any more; the offsets stay."""
    assert group.beat("a", 0) == (0, 2, [0, 1])
    assert group.commit("a", 2) == 0
    assert group.set_level(0, SAFE_DOWNGRADE) is None
    own_world.env.clock.advance(46_000)
    assert group.look() == ((REFUSED, "", []), ErrorCode.GROUP_ID_NOT_FOUND, "Empty")
    assert group.fetch(None, -1) == (0, [5])
    assert group.set_level(1, UPGRADE) is None
    assert group.beat("a", 2) == (ErrorCode.UNKNOWN_MEMBER_ID, 0, None)
    error, epoch, given = group.beat("a", 0)
    assert (error, given) == (0, [0, 1])
    assert epoch > 2
