"""The consumer protocol (KIP-848) with librdkafka as it is: members come and go, are killed, and read by expressions.

A referee watches: between the assignment and the revocation that a client acknowledges, a partition has one owner.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import forked
import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from consumer_threads import Member, Referee
from waiting import until

PARTITIONS = 6
SETTINGS = (  # quick heartbeats
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=200",
    "group.consumer.min.session.timeout.ms=2000",
    "group.consumer.session.timeout.ms=6000",
)


@pytest.fixture(scope="module")
def broker(make_broker: Any) -> Any:
    return make_broker(*SETTINGS)


@pytest.fixture
def admin(broker: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def members() -> Iterator[list[Member]]:
    started: list[Member] = []
    yield started
    for member in started:
        member.stop()


def make_topic(admin: AdminClient, name: str, partitions: int = PARTITIONS) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()


def produce(broker: Any, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    producer.flush()


def test_members_come_and_go_and_every_record_is_read_once(
    broker: Any, admin: AdminClient, members: list[Member]
) -> None:
    make_topic(admin, "shared")
    referee = Referee()
    produce(broker, "shared", 60)
    members.append(Member(broker.bootstrap, "sharers", "one", referee, ["shared"]))
    until(lambda: len(referee.of("one")) == PARTITIONS)
    members.append(Member(broker.bootstrap, "sharers", "two", referee, ["shared"]))
    until(lambda: len(referee.of("one")) == len(referee.of("two")) == PARTITIONS // 2)
    produce(broker, "shared", 60)
    members.append(Member(broker.bootstrap, "sharers", "three", referee, ["shared"]))
    until(lambda: all(len(referee.of(name)) == 2 for name in ("one", "two", "three")))
    members[0].stop()
    until(lambda: len(referee.of("two")) == len(referee.of("three")) == 3)
    produce(broker, "shared", 60)
    until(lambda: sum(map(len, referee.read.values())) >= 180)
    assert referee.faults == []
    assert {partition: sorted(offsets) for partition, offsets in referee.read.items()} == {
        ("shared", partition): list(range(30)) for partition in range(PARTITIONS)
    }
    assert all(not member.errors for member in members)


def test_new_partitions_and_new_topics_are_noticed(broker: Any, admin: AdminClient, members: list[Member]) -> None:
    make_topic(admin, "matched-1", 2)
    referee = Referee()
    members.append(Member(broker.bootstrap, "matchers", "one", referee, ["^matched-.*"]))
    until(lambda: referee.of("one") == {("matched-1", 0), ("matched-1", 1)})
    make_topic(admin, "matched-2", 1)
    until(lambda: ("matched-2", 0) in referee.of("one"))
    admin.create_partitions([NewPartitions("matched-1", 3)])["matched-1"].result()
    until(lambda: ("matched-1", 2) in referee.of("one"))
    admin.delete_topics(["matched-2"])["matched-2"].result()
    until(lambda: ("matched-2", 0) not in referee.of("one"))
    assert referee.faults == []


def test_each_assignment_is_explained(broker: Any, admin: AdminClient, members: list[Member]) -> None:
    make_topic(admin, "told", 4)
    referee = Referee()
    members.append(Member(broker.bootstrap, "tellers", "one", referee, ["told"]))
    until(lambda: len(referee.of("one")) == 4)
    members.append(Member(broker.bootstrap, "tellers", "two", referee, ["told"]))
    until(lambda: len(referee.of("one")) == len(referee.of("two")) == 2)
    members[0].stop()
    until(lambda: len(referee.of("two")) == 4)
    admin.create_partitions([NewPartitions("told", 5)])["told"].result()
    until(lambda: len(referee.of("two")) == 5)
    done = forked.barnabas("groups", "explain", "tellers", "--bootstrap", broker.bootstrap, "--json", code=0)
    story = json.loads(done.stdout)["rebalances"]
    assert [(one["cause"], one["outcome"], one["members"], one["protocol"], one["moved_count"]) for one in story] == [
        ("its members have changed", "assigned", 1, "uniform", 4),
        ("its members have changed", "assigned", 2, "uniform", 2),
        ("its members have changed", "assigned", 1, "uniform", 2),
        ("the topics that it reads have changed", "assigned", 1, "uniform", 1),
    ]
    assert [one["from_generation"] for one in story][1:] == [one["generation"] for one in story][:-1]
    text = forked.barnabas("groups", "explain", "tellers", "--bootstrap", broker.bootstrap, code=0).stdout
    assert "assigned, 2 members, uniform" in text
    assert "moved told-0: nobody -> one at 127.0.0.1" in text
    assert text.count(": one at 127.0.0.1 -> two at 127.0.0.1") == 2
    assert "moved told-4: nobody -> two at 127.0.0.1" in text


def test_a_group_is_listed_described_and_deleted(broker: Any, admin: AdminClient, members: list[Member]) -> None:
    make_topic(admin, "described", 3)
    produce(broker, "described", 9, 3)
    referee = Referee()
    members.append(Member(broker.bootstrap, "described", "one", referee, ["described"], group_instance_id="till-1"))
    until(lambda: sum(map(len, referee.read.values())) == 9)
    (listed,) = [each for each in admin.list_consumer_groups().result().valid if each.group_id == "described"]
    assert (listed.type, listed.state.name) == (ConsumerGroupType.CONSUMER, "STABLE")
    found = admin.describe_consumer_groups(["described"])["described"].result()
    (member,) = found.members
    assert (found.partition_assignor, found.state.name, member.group_instance_id) == ("uniform", "STABLE", "till-1")
    assert {each.partition for each in member.assignment.topic_partitions} == {0, 1, 2}
    told = forked.barnabas("groups", "describe", "described", "--json", "--bootstrap", broker.bootstrap, code=0)
    (document,) = json.loads(told.stdout)
    assert document["members"][0]["partitions"] == [["described", 0], ["described", 1], ["described", 2]]
    words = ("offsets", "set", "described", "--topic", "described", "--to", "earliest", "--yes")
    refused = forked.barnabas(*words, "--bootstrap", broker.bootstrap, code=1)
    assert refused.stdout == ""
    assert "Stop its consumers first, or add --live" in refused.stderr
    with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups(["described"])["described"].result()
    members[0].stop()  # a static member leaves for a while: the group waits for its session timeout
    until(lambda: not admin.describe_consumer_groups(["described"])["described"].result().members)
    admin.delete_consumer_groups(["described"])["described"].result()
    assert "described" not in [each.group_id for each in admin.list_consumer_groups().result().valid]


def test_offsets_of_a_group_that_only_committed_are_its_start(
    broker: Any, admin: AdminClient, members: list[Member]
) -> None:
    make_topic(admin, "resumed", 1)
    produce(broker, "resumed", 10, 1)
    start = ConsumerGroupTopicPartitions("resumers", [TopicPartition("resumed", 0, 7)])
    admin.alter_consumer_group_offsets([start])["resumers"].result()
    referee = Referee()
    members.append(Member(broker.bootstrap, "resumers", "one", referee, ["resumed"]))
    until(lambda: len(referee.read.get(("resumed", 0), [])) == 3)
    assert referee.read["resumed", 0] == [7, 8, 9]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_goes_from_the_classic_protocol_to_the_other_member_by_member(
    broker: Any, admin: AdminClient, members: list[Member], assignor: str
) -> None:
    topic = f"migrated-{assignor}"
    make_topic(admin, topic)
    referee = Referee()
    classic = {"group_protocol": "classic", "partition_assignment_strategy": assignor, "session_timeout_ms": 6000}
    members += [Member(broker.bootstrap, topic, f"old-{number}", referee, [topic], **classic) for number in range(2)]
    until(lambda: len(referee.of("old-0")) == len(referee.of("old-1")) == 3)
    produce(broker, topic, 60)
    for number in range(2):
        members.append(Member(broker.bootstrap, topic, f"new-{number}", referee, [topic]))
        until(lambda name=f"new-{number}": bool(referee.of(name)))
        members[number].stop()
        produce(broker, topic, 60)
    until(lambda: len(referee.of("new-0")) == len(referee.of("new-1")) == 3)
    until(lambda: sum(map(len, referee.read.values())) >= 180)
    assert referee.faults == []
    assert {partition: sorted(offsets) for partition, offsets in referee.read.items()} == {
        (topic, partition): list(range(30)) for partition in range(PARTITIONS)
    }
    (listed,) = [each for each in admin.list_consumer_groups().result().valid if each.group_id == topic]
    assert listed.type is ConsumerGroupType.CONSUMER


def test_a_static_member_that_is_away_is_described_so(own_broker: Any) -> None:
    """It has left for a while (epoch -2): its partitions wait for it, and nobody reads them."""
    from broker_process import Client

    def ran(*words: str) -> str:
        return forked.barnabas(*words, "--bootstrap", own_broker.bootstrap, code=0).stdout

    def described() -> dict[str, Any]:
        [document] = json.loads(ran("groups", "describe", "billing", "--json"))
        [member] = document["members"]
        return {name: member[name] for name in ("instance_id", "is_away", "partitions")}

    def beat(client: Any, epoch: int) -> None:
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="billing",
            member_id="one",
            instance_id="till-1",
            member_epoch=epoch,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request).error_code == 0

    ran("topics", "create", "t", "--partitions", "1")
    ran("offsets", "set", "billing", "--topic", "t", "--to", "earliest", "--yes")
    with closing(Client(own_broker.port)) as client:
        beat(client, 0)
        assert described() == {"instance_id": "till-1", "is_away": False, "partitions": [["t", 0]]}
        assert "away" not in ran("groups", "describe", "billing")
        beat(client, -2)
        assert described() == {"instance_id": "till-1", "is_away": True, "partitions": [["t", 0]]}
        assert "till-1 (away)" in ran("groups", "describe", "billing")


def test_commands_say_what_is_there_while_the_protocol_is_off(own_broker: Any) -> None:
    """Brokers describe no such group then, as Apache Kafka, and list it."""
    from broker_process import Client

    def ran(*words: str, code: int = 0) -> Any:
        return forked.barnabas(*words, "--bootstrap", own_broker.bootstrap, code=code)

    def findings() -> list[tuple[str, str, str]]:
        done = forked.barnabas("doctor", "--json", "--bootstrap", own_broker.bootstrap)
        rows = json.loads(done.stdout)["findings"]
        return [(row["severity"], row["what"], row["command"]) for row in rows if row["check"] == "consumer groups"]

    ran("topics", "create", "t")
    ran("offsets", "set", "billing", "--topic", "t", "--to", "earliest", "--yes")
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="billing",
        member_id="one",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    with closing(Client(own_broker.port)) as client:
        joined = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert joined.error_code == 0
        assert "Stable" in ran("groups", "describe", "billing").stdout
        assert findings() == []
        lowered = ("features", "disable", "--feature", "group.version")
        told = "1 group of group.protocol=consumer {} lose all members, whose heartbeats are refused at level 0: {}.\n"
        assert ran(*lowered, "--dry-run").stderr == told.format("would", "billing")
        assert ran(*lowered).stderr == told.format("will", "billing")
        for words in (("groups", "describe"), ("groups", "remove", "--instance", "x", "--yes")):
            said = ran(*words, "billing", code=1).stderr
            assert "billing: it is Stable, but group.protocol=consumer is off here" in said
            assert "barnabas features upgrade --feature group.version=1" in said
        set_back = ("offsets", "set", "billing", "--topic", "t", "--to", "earliest", "--yes")
        assert "group.protocol=consumer is off here" in ran(*set_back, code=1).stderr
        assert "there is no group other" in ran("groups", "describe", "other", code=3).stderr
        assert "billing" in ran("groups", "lag", "billing").stdout
        [(severity, what, command)] = findings()
        assert severity == "error"
        assert what == "1 group of group.protocol=consumer with members, and group.version is 0: billing"
        ran(*shlex.split(command)[1:-2])
        assert findings() == []
        assert "Stable" in ran("groups", "describe", "billing").stdout
        ran("groups", "remove", "billing", "--member", "one", "--yes")
        assert ran(*lowered).stderr == ""
        assert "Empty, 0 members" in ran("groups", "describe", "billing").stdout
        assert findings()[0][:2] == (
            "note",
            "1 group of group.protocol=consumer without members, and group.version is 0: billing",
        )
