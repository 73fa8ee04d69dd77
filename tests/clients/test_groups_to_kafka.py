"""A data directory with groups that live goes to Apache Kafka 4.3.1 and back: their members notice nothing."""

import shutil
import time
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import kraft
import pytest
from barnabas.protocol import messages
from barnabas.protocol import records as kept
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Struct
from broker_process import Client

pytestmark = pytest.mark.timeout(300)
SETTINGS = {  # nobody is silent for too long, whatever the machine does
    "group.consumer.max.session.timeout.ms": "7200000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.consumer.migration.policy": "bidirectional",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.max.session.timeout.ms": "7200000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
}
SESSION_MS = 3_600_000
GROUPS = ("billing", "ranged", "mixed", "asleep")
CLASSIC = "old"
PARTITIONS = 6
ANSWER_S = 60


class Member:
    """A member of the consumer protocol, which says what it owns."""

    def __init__(self, group: str, member_id: str, **said: Any) -> None:
        self.group, self.member_id, self.said = group, member_id, said
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}

    def beat(self, client: Client, **fields: Any) -> Any:
        """A heartbeat; the first joins. What it is told it takes up."""
        make = messages.ConsumerGroupHeartbeatRequest
        rows = [make.TopicPartitions(topic_id=topic, partitions=parts) for topic, parts in self.owned.items()]
        first = {"rebalance_timeout_ms": 300_000, **self.said} if self.epoch == 0 else {}
        request = make(
            group_id=self.group,
            member_id=self.member_id,
            **{
                "member_epoch": self.epoch,
                "instance_id": self.said.get("instance_id"),
                "topic_partitions": rows,
                **first,
                **fields,
            },
        )
        answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert not answer.error_code, (self.member_id, ErrorCode(answer.error_code), answer.error_message)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions}
        return answer

    def commit(self, client: Client, topic: str, offset: int) -> None:
        """Commit in all partitions that it owns."""
        make = messages.OffsetCommitRequest
        rows = [
            make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for parts in self.owned.values()
            for index in parts
        ]
        request = make(
            group_id=self.group,
            member_id=self.member_id,
            generation_id_or_member_epoch=self.epoch,
            group_instance_id=self.said.get("instance_id"),
            topics=[make.OffsetCommitRequestTopic(name=topic, partitions=rows)],
        )
        (answer,) = client.ask(ApiKey.OFFSET_COMMIT, 9, request).topics
        assert [row.error_code for row in answer.partitions] == [0] * len(rows)


class ClassicMember:
    """A member of the classic protocol, which leads its group if the group is a classic one."""

    def __init__(self, group: str) -> None:
        self.group, self.member_id, self.generation = group, "", -1

    def join(self, client: Client, topic: str) -> None:
        """Join and sync."""
        make = messages.JoinGroupRequest
        said = kept.encode_versioned(kept.ConsumerProtocolSubscription(topics=[topic]), 3)
        for _ in range(2):
            request = make(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=300_000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[make.JoinGroupRequestProtocol(name="range", metadata=said)],
            )
            answer = client.ask(ApiKey.JOIN_GROUP, 9, request)
            self.member_id = answer.member_id
        assert not answer.error_code, ErrorCode(answer.error_code)
        self.generation = answer.generation_id
        sync = messages.SyncGroupRequest
        given = kept.encode_versioned(kept.ConsumerProtocolAssignment(assigned_partitions=[]), 3)
        rows = [sync.SyncGroupRequestAssignment(member_id=self.member_id, assignment=given)]
        request = sync(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=rows if answer.leader == self.member_id else [],
        )
        assert not client.ask(ApiKey.SYNC_GROUP, 5, request).error_code

    def beat(self, client: Client) -> ErrorCode:
        """A heartbeat."""
        request = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        return ErrorCode(client.ask(ApiKey.HEARTBEAT, 4, request).error_code)


def plain(value: Any) -> Any:
    """An answer as values, lists in one order."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value._FIELDS if name != "throttle_time_ms"}
    if isinstance(value, list):
        return sorted((plain(each) for each in value), key=repr)
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else value


def everything(client: Client) -> dict[str, Any]:
    """What a broker tells of all groups."""
    names = [*GROUPS, CLASSIC]
    fetch = messages.OffsetFetchRequest
    rows = [fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    describe, describe_classic = messages.ConsumerGroupDescribeRequest, messages.DescribeGroupsRequest
    answers = {
        "groups": client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group_ids=list(GROUPS))).groups,
        "classic": client.ask(ApiKey.DESCRIBE_GROUPS, 6, describe_classic(groups=[CLASSIC])).groups,
        "listed": client.ask(ApiKey.LIST_GROUPS, 5, messages.ListGroupsRequest()).groups,
        "committed": client.ask(ApiKey.OFFSET_FETCH, 9, fetch(groups=rows)).groups,
    }
    for name, found in answers.items():
        assert not any(getattr(each, "error_code", 0) for each in found), (name, found)
    return {name: plain(found) for name, found in answers.items()}


def served(port: int) -> Client:
    """A connection to a broker whose coordinator has read all its groups."""
    client = Client(port, ANSWER_S)
    until_s = time.monotonic() + ANSWER_S
    request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[*GROUPS, CLASSIC])
    fetch = messages.OffsetFetchRequest
    rows = [fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in (*GROUPS, CLASSIC)]
    while True:
        found = client.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators
        if not any(each.error_code for each in found):
            groups = client.ask(ApiKey.OFFSET_FETCH, 9, fetch(groups=rows)).groups
            if not any(each.error_code for each in groups):
                return client
        assert time.monotonic() < until_s
        time.sleep(0.1)


class Story:
    """The groups, and what happens to them: at each broker more of the same kind."""

    def __init__(self) -> None:
        self.one = Member("billing", "one", subscribed_topic_names=["orders"], rack_id="a")
        self.two = Member("billing", "two", subscribed_topic_names=["orders"], instance_id="till-2")
        self.three = Member("billing", "three", subscribed_topic_regex="ord.*", subscribed_topic_names=[])
        self.ranged = Member("ranged", "ranged", subscribed_topic_names=["orders"], server_assignor="range")
        self.new_kind = Member("mixed", "new", subscribed_topic_names=["orders"])
        self.old_kind = ClassicMember("mixed")
        self.asleep = Member("asleep", "asleep", subscribed_topic_names=["orders"], instance_id="till-9")
        self.classic = ClassicMember(CLASSIC)

    @property
    def members(self) -> list[Member]:
        """Those that beat."""
        return [self.one, self.two, self.three, self.ranged, self.new_kind]

    def begin(self, client: Client) -> None:
        """All join, and commit."""
        for member in (*self.members, self.asleep):
            member.beat(client)
        self.old_kind.join(client, "orders")
        self.classic.join(client, "orders")
        self.calm(client)
        self.asleep.commit(client, "orders", 9)
        self.asleep.beat(client, member_epoch=-2)
        self.commit(client, 10)

    def calm(self, client: Client) -> None:
        """Heartbeats until nobody is told anything new."""
        for _ in range(20):
            epochs = [member.epoch for member in self.members]
            told = [member.beat(client) for member in self.members]
            if self.old_kind.beat(client) is ErrorCode.REBALANCE_IN_PROGRESS:
                self.old_kind.join(client, "orders")
            elif all(each.assignment is None for each in told) and [each.member_epoch for each in told] == epochs:
                break
        else:
            pytest.fail("the groups do not converge")
        owned = sorted(index for each in self.members[:3] for parts in each.owned.values() for index in parts)
        assert owned == list(range(PARTITIONS))

    def go_on(self, client: Client) -> None:
        """What members say to a broker that has only read of them: nobody is fenced, and nothing moves.

        The epoch may be one higher, for Kafka and we hash a group's topics each in our own way.
        """
        assert self.classic.beat(client) is ErrorCode.NONE
        before = [(member.member_id, member.epoch, member.owned) for member in self.members]
        for member_id, epoch, owned in before:
            (member,) = [each for each in self.members if each.member_id == member_id]
            member.commit(client, "orders", 15)  # in its old epoch
            member.beat(client)
            assert epoch <= member.epoch <= epoch + 1
            assert member.owned == owned
        self.calm(client)
        assert [(member.member_id, member.owned) for member in self.members] == [(name, own) for name, _, own in before]

    def change(self, client: Client, name: str, offset: int) -> None:
        """One leaves and another joins; the sleeper is back under another id, and sleeps again; all commit."""
        self.one.beat(client, member_epoch=-1)
        self.one = Member("billing", name, subscribed_topic_names=["orders"], rack_id="b")
        self.one.beat(client)
        self.calm(client)
        self.asleep = Member("asleep", f"{name}-asleep", subscribed_topic_names=["orders"], instance_id="till-9")
        self.asleep.beat(client)
        self.asleep.commit(client, "orders", offset)
        self.asleep.beat(client, member_epoch=-2)
        self.commit(client, offset)

    def commit(self, client: Client, offset: int) -> None:
        """All commit."""
        for member in self.members:
            member.commit(client, "orders", offset)


@pytest.fixture
def story() -> Story:
    kraft.jars()  # or it is skipped, before anything is started
    return Story()


def test_groups_go_on_in_kafka_and_here_again(story: Story, make_broker: Any, tmp_path: Path) -> None:
    """Ours, Kafka, ours again on the same directory; and ours on it without our tree, as on Kafka's own."""
    ours = make_broker(*(f"{name}={value}" for name, value in SETTINGS.items()), folder=tmp_path)
    with closing(Client(ours.port)) as client:
        client.create_topic("orders", PARTITIONS)
        for group in (*GROUPS, CLASSIC):
            client.committed(group, "orders", 0)
    with closing(served(ours.port)) as client:
        story.begin(client)
        said = everything(client)
    ours.stop()
    kraft.hand_over(ours.data, 0)
    with kraft.kafka(ours.data, 0, **SETTINGS) as port, closing(served(port)) as client:
        assert everything(client) == said
        story.go_on(client)
        story.change(client, "by-kafka", 20)
        said = everything(client)
    shutil.copytree(ours.data, tmp_path / "as-kafkas" / "data")
    same_story = deepcopy(story)
    ours.start()
    with closing(served(ours.port)) as client:
        assert everything(client) == said
        story.go_on(client)
    ours.stop()
    for file in (tmp_path / "as-kafkas" / "data").glob("coordination*"):
        file.unlink()
    other = make_broker(*(f"{name}={value}" for name, value in SETTINGS.items()), folder=tmp_path / "as-kafkas")
    with closing(served(other.port)) as client:
        assert everything(client) == said
        same_story.go_on(client)
        same_story.change(client, "by-the-other", 30)
