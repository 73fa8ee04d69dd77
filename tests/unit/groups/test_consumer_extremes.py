"""Consumer groups whose members say odd things: long names, rows that repeat a topic, deaths at the same moment."""

import logging
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer import group as consumer_group
from barnabas.coordinators.groups.consumer.member import CurrentAssignment, Subscription
from barnabas.coordinators.groups.consumer.records import (
    GroupEpoch,
    Kind,
    Record,
    ResolvedRegex,
    TargetEpoch,
    encoded,
)
from barnabas.protocol import messages, record_batch
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.storage.validation import AppendResult
from consumer_members import ConsumerMember, heartbeat_request
from group_world import GroupWorld

GROUP = "g"


def group_of(world: GroupWorld) -> Any:
    return world.coordinator.shards[0].consumer.by_id[GROUP]


def read_on(world: GroupWorld, *members: ConsumerMember) -> None:
    """Some heartbeats of each, none of which is refused."""
    for _ in range(6):
        for each in members:
            assert each.send().error_code == ErrorCode.NONE
        world.clock.advance(2_000)


def limit_batches(world: GroupWorld, is_too_large: Any) -> None:
    """Let the log refuse these batches as too large."""
    log = world.logs[0]
    append = log.append

    def limited(batch: Any, **how: Any) -> AppendResult:
        if is_too_large(bytes(batch.data)):
            return AppendResult(ErrorCode.MESSAGE_TOO_LARGE)
        return append(batch, **how)

    log.append = limited  # type: ignore[method-assign]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_topic_in_two_rows_counts_with_all_its_partitions(order: tuple[int, int]) -> None:
    world = GroupWorld()
    world.topics.change("t", 2)
    topic_id = world.topics.topic_id("t")
    one = ConsumerMember(world, GROUP, "one", ["t"])
    one.send()
    other = ConsumerMember(world, GROUP, "other", ["t"])
    other.send()
    row = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    rows = [row(topic_id=topic_id, partitions=[partition]) for partition in order]
    for _ in range(3):
        answer = world.ask("heartbeat_consumer", heartbeat_request(GROUP, "one", one.epoch, topic_partitions=rows), 1)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, one.epoch)  # it gives nothing up
        other.send()
        assert not other.owned


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_topic_in_two_rows_of_a_classic_member_counts_with_all_its_partitions(order: tuple[int, int]) -> None:
    world = GroupWorld(group_consumer_migration_policy="upgrade")
    world.topics.change("t", 2)
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    make = stored.ConsumerProtocolSubscription

    def join(owned: tuple[int, ...]) -> Any:
        rows = [make.TopicPartition(topic="t", partitions=[partition]) for partition in owned]
        said = stored.encode_versioned(make(topics=["t"], owned_partitions=rows), 1)
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="cooperative-sticky", metadata=said)
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            member_id="classic",
            protocol_type="consumer",
            protocols=[protocol],
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
        )
        return world.ask("join_group", request, 9)

    assert join(()).error_code == ErrorCode.NONE
    new.leave()  # the policy keeps the group; the classic member is to have everything
    assert join(()).error_code == ErrorCode.NONE
    new.send()  # and now half of it
    generation = group_of(world).members["classic"].epoch
    for _ in range(3):
        assert join(order).generation_id == generation, "it keeps what it must give up"
        new.send()
        assert not new.owned


def test_members_that_die_together_are_removed_in_batches_that_fit() -> None:
    world = GroupWorld()
    members = [ConsumerMember(world, GROUP, f"{number:03}" + "x" * 3_000, ["t"]) for number in range(40)]
    for member in members:
        member.send()
    limit_batches(world, lambda batch: len(batch) > 64_000)
    assert len(group_of(world).members) == 40
    world.clock.advance(60_000)
    world.settle()
    assert not group_of(world).members
    world.restart()
    assert not group_of(world).members


def test_a_member_that_cannot_be_removed_keeps_no_other() -> None:
    world = GroupWorld()
    for name in ("bad", "good", "better"):
        ConsumerMember(world, GROUP, name + "x" * 3_000, ["t"]).send()

    def removes_bad(batch: bytes) -> bool:
        found = record_batch.records(memoryview(batch), max_bytes=1 << 30)
        return any(record.value is None and b"bad" in (record.key or b"") for record in found)

    limit_batches(world, removes_bad)
    for _ in range(4):
        world.clock.advance(60_000)
        world.settle()
    assert [member_id[:3] for member_id in group_of(world).members] == ["bad"]


def test_the_hash_of_a_member_id_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = consumer_group.java_hash_code
    monkeypatch.setattr(consumer_group, "java_hash_code", lambda text: hashed.append(text) or real(text))
    world = GroupWorld()
    members = [ConsumerMember(world, GROUP, f"member-{number}", ["t"]) for number in range(12)]
    for _ in range(4):
        for member in members:
            member.send()
    assert [text for text in hashed if text.startswith("member-")] == [member.member_id for member in members]
    members[0].leave()
    members[0].send()
    assert hashed.count("member-0") == 2


@pytest.mark.parametrize("blank", ["", " ", "\t", "\x00 \n"])
def test_a_name_of_spaces_is_no_name(blank: str) -> None:
    """As Kafka 4.3.1 answers."""
    world = GroupWorld()

    def message(group: str = GROUP, member_id: str = "m", epoch: int = 0, **fields: Any) -> str | None:
        if epoch == 0:
            fields |= {"owned": {}, "rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"]}
        answer = world.ask("heartbeat_consumer", heartbeat_request(group, member_id, epoch, **fields), 1)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        return str(answer.error_message)

    assert message(group=blank) == message(group=blank, epoch=-1) == "GroupId can't be empty."
    assert message(member_id=blank) == "MemberId can't be empty."
    assert message(instance_id=blank) == "InstanceId can't be empty."
    assert message(rack_id=blank) == "RackId can't be empty."


def test_who_a_member_is_comes_before_its_expression() -> None:
    """As Kafka 4.1 answers. A member that leaves is not asked for its expression at all."""
    world = GroupWorld(group_consumer_max_size=2)
    member = ConsumerMember(world, GROUP, "known", ["t"], instance_id="i")
    member.send()

    def error(member_id: str, epoch: int, group: str = GROUP, **fields: Any) -> ErrorCode:
        if epoch == 0:
            fields |= {"owned": {}, "rebalance_timeout_ms": 30_000}
        request = heartbeat_request(group, member_id, epoch, subscribed_topic_regex="(", **fields)
        return ErrorCode(world.ask("heartbeat_consumer", request, 1).error_code)

    assert error("unknown", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error("known", 9) is ErrorCode.FENCED_MEMBER_EPOCH
    assert error("other", 1, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert error("other", 0, instance_id="i") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert error("unknown", 3, group="none") is ErrorCode.GROUP_ID_NOT_FOUND
    assert error("unknown", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error("new", 0) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert error("known", member.epoch) is ErrorCode.INVALID_REGULAR_EXPRESSION
    ConsumerMember(world, GROUP, "second", ["t"]).send()
    assert error("new", 0) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error("known", -1, instance_id="i") is ErrorCode.NONE
    assert list(group_of(world).members) == ["second"]


def test_new_partitions_are_noticed_also_if_the_first_notice_of_them_could_not_be_written() -> None:
    """Once, they were assigned only when the topics had changed again."""
    world = GroupWorld()
    world.topics.change("t", 2)
    member = ConsumerMember(world, GROUP, "one", ["t"])
    member.send()
    world.topics.change("t", 3)
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert member.send().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(3):
        member.send()
        world.clock.advance(2_000)
    assert member.owned == {world.topics.topic_id("t"): [0, 1, 2]}


def test_a_group_that_cannot_be_stored_says_so_once_however_often_it_tries(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    caplog.set_level(logging.INFO, "barnabas.groups")
    world.topics.change("t", 1)
    member = ConsumerMember(world, GROUP, "one", ["t"])
    world.logs[0].failures = [ErrorCode.KAFKA_STORAGE_ERROR] * 100
    while world.logs[0].failures:
        assert member.send().error_code == ErrorCode.NOT_COORDINATOR
        world.clock.advance(100)  # as often as librdkafka tries
    assert len(caplog.records) < 5
    caplog.clear()
    world.clock.advance(10_000)
    assert member.send().error_code == ErrorCode.NONE
    assert "group g: member one (client 'client' at 127.0.0.1) joined" in caplog.messages


def test_new_topics_of_an_expression_are_noticed_also_if_the_first_notice_of_them_could_not_be_written() -> None:
    world = GroupWorld()
    world.topics.change("events", 1)
    member = ConsumerMember(world, GROUP, "one", [], subscribed_topic_regex="ev.*")
    for _ in range(3):
        member.send()
        world.clock.advance(2_000)
    world.topics.change("events-new", 1)
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(5):
        member.send()
        world.clock.advance(2_000)
    assert set(member.owned) == {world.topics.topic_id("events"), world.topics.topic_id("events-new")}


def test_a_new_expression_that_means_no_topic_changes_no_epoch() -> None:
    """As in Kafka 4.3.1 (tests/replay/consumer_groups.py --regexes)."""
    world = GroupWorld()
    one = ConsumerMember(world, GROUP, "one", ["t"])
    one.send()
    other = ConsumerMember(world, GROUP, "other", [], subscribed_topic_regex="plum.*")
    other.send()
    world.clock.advance(2_000)
    assert group_of(world).regexes["plum.*"].topics == frozenset()
    assert group_of(world).epoch == other.epoch == 2
    world.topics.change("plums", 1)
    for _ in range(3):
        other.send()
        world.clock.advance(2_000)
    assert set(other.owned) == {world.topics.topic_id("plums")}


def test_an_expression_means_the_topics_that_the_member_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again now and then, because rights change, too."""
    world = GroupWorld(group_consumer_regex_refresh_interval_ms=20_000)
    for topic in ("events", "events-secret"):
        world.topics.change(topic, 1)
    heartbeat = world.coordinator.consumer.heartbeat
    seen = {"events"}

    def with_rights(request: Any, context: Any, _: Any = None) -> Any:
        return heartbeat(request, context, seen.__contains__)

    monkeypatch.setattr(world.coordinator.consumer, "heartbeat", with_rights)
    member = ConsumerMember(world, GROUP, "one", [], subscribed_topic_regex="ev.*")

    def beat(times: int) -> int:
        for _ in range(times):
            member.send()
            world.clock.advance(2_000)
        return len(member.owned)

    assert beat(3) == 1
    seen.add("events-secret")
    assert beat(5) == 1
    assert beat(5) == 2


@pytest.mark.parametrize("partition", [-1, -(2**31)])
def test_a_damaged_record_gives_nobody_a_partition_below_zero(partition: int) -> None:
    world = GroupWorld()
    world.topics.change("t", 4)
    member = ConsumerMember(world, GROUP, "one", ["t"])
    member.send()
    topic_id = world.topics.topic_id("t")
    records = []
    for kind, value in (
        (Kind.TARGET_MEMBER, {topic_id: frozenset((partition, 1, 2, 3))}),
        (Kind.CURRENT_ASSIGNMENT, CurrentAssignment(2, 1, assigned={topic_id: dict.fromkeys((partition, 1, 2, 3), 2)})),
    ):
        records.append(record_batch.Record(0, 0, *encoded(GROUP, Record(kind, "one", value)), []))
    world.logs[0].append(record_batch.build(records))
    world.restart()
    other = ConsumerMember(world, GROUP, "other", ["t"])
    read_on(world, member, other)
    assert sorted(index for each in (member, other) for index in each.owned.get(topic_id, ())) == [0, 1, 2, 3]


def test_a_group_whose_record_is_older_than_its_assignment_is_assigned_to() -> None:
    """After damage: nobody would be given anything until the group had as many changes as it has lost."""
    world = GroupWorld()
    world.topics.change("t", 4)
    member = ConsumerMember(world, GROUP, "one", ["t"])
    member.send()
    for kind, value in ((Kind.TARGET_EPOCH, TargetEpoch(9)), (Kind.GROUP, GroupEpoch(3, 0))):
        record = record_batch.Record(0, 0, *encoded(GROUP, Record(kind, "", value)), [])
        world.logs[0].append(record_batch.build([record]))
    world.restart()
    other = ConsumerMember(world, GROUP, "other", ["t"])
    read_on(world, member, other)
    assert [len(each.owned[world.topics.topic_id("t")]) for each in (member, other)] == [2, 2]


@pytest.mark.parametrize("is_known", [False, True])
def test_an_expression_that_cannot_be_read_here_holds_no_other_up(
    is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory comes from a Kafka that has taken it. It means what it meant there."""
    world = GroupWorld()
    for topic in ("huge", "events"):
        world.topics.change(topic, 1)
    regex = "(((huge){50}){50}){50}"
    shard = world.coordinator.shards[0]
    records = [
        Record(Kind.GROUP, "", GroupEpoch(5, 0)),
        Record(Kind.MEMBER, "old", Subscription(topic_regex=regex, rebalance_timeout_ms=30_000)),
        Record(Kind.REGEX, regex, ResolvedRegex(frozenset(["huge"]), 1, 0) if is_known else None),
    ]
    for record in records:
        shard.consumer.load(GROUP, record)
    member = ConsumerMember(world, GROUP, "new", [], subscribed_topic_regex="ev.*")
    for topic in ("events-new", "events-newer"):
        world.topics.change(topic, 1)
        for _ in range(10):
            member.send()
            world.clock.advance(1_000)
    assert set(member.owned) == {world.topics.topic_id(name) for name in ("events", "events-new", "events-newer")}
    assert group_of(world).regexes[regex].topics == ({"huge"} if is_known else set())
    assert 0 < len([line for line in caplog.messages if "an expression" in line]) <= 3


def test_members_of_an_assignor_that_is_not_here_are_assigned_by_the_first_of_the_broker() -> None:
    """The directory comes from a Kafka that had a class of its own (`group.consumer.assignors`)."""
    world = GroupWorld(
        group_consumer_assignors=("org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform")
    )
    world.topics.change("t", 2)
    old = Record(Kind.MEMBER, "old", Subscription(topic_names=("t",), rebalance_timeout_ms=30_000, assignor="Mine"))
    shard = world.coordinator.shards[0]
    for record in (Record(Kind.GROUP, "", GroupEpoch(5, 0)), Record(Kind.TARGET_EPOCH, "", TargetEpoch(5)), old):
        shard.consumer.load(GROUP, record)
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    assert (new.answer.error_code, new.epoch) == (ErrorCode.NONE, 6)
    assert group_of(world).preferred_assignor(shard.consumer.situation_of(GROUP).settings.default_assignor) == "range"
    assert [sum(map(len, group_of(world).target_of(each).values())) for each in ("old", "new")] == [1, 1]
