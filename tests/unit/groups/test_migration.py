"""Groups that go from the classic to the consumer protocol and back, with members of both at the same time."""

import random
from typing import Any

import pytest
from barnabas.coordinators.groups.states import State
from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from classic_members import ClassicMember
from consumer_members import ConsumerMember, check_owners, image
from group_world import GroupWorld

GROUP = "g"


def shard_of(world: GroupWorld) -> Any:
    return world.coordinator.shards[0]


def rounds(world: GroupWorld, members: list[Any], count: int = 12, advance_ms: int = 500) -> None:
    """All members take steps, and nobody ever owns what another owns."""
    for _ in range(count):
        for member in members:
            member.send()
            check(world, members)
        world.clock.advance(advance_ms)


def check(world: GroupWorld, members: list[Any]) -> None:
    group = shard_of(world).consumer.by_id.get(GROUP)
    if group is None:
        return
    check_owners(group)
    seen: dict[tuple[bytes, int], str] = {}
    for member in members:
        known = group.members.get(member.member_id)
        if known is None or known.is_classic != isinstance(member, ClassicMember):
            continue
        if isinstance(member, ClassicMember) and member.generation != known.epoch:
            continue  # its answer is out
        for topic_id, partitions in member.owned.items():
            for partition in partitions:
                assert seen.setdefault((topic_id, partition), member.member_id) == member.member_id


def owned(member: Any) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in member.owned.items() for partition in partitions}


def all_is_read(world: GroupWorld, members: list[Any], topic: str = "t") -> bool:
    everything = [each for member in members for each in owned(member)]
    topic_id = world.topics.topic_id(topic)
    wanted = {(topic_id, partition) for partition in world.topics.topics[topic]}
    return sorted(everything) == sorted(wanted)


@pytest.mark.parametrize("eager", [True, False])
def test_a_group_goes_up_and_down(eager: bool) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    classic = [ClassicMember(world, GROUP, ["t"], eager=eager) for _ in range(2)]
    rounds(world, classic)
    assert shard_of(world).groups[GROUP].state is State.STABLE
    assert all_is_read(world, classic)
    new = ConsumerMember(world, GROUP, "new", ["t"])
    rounds(world, [*classic, new])
    group = shard_of(world).consumer.by_id[GROUP]
    assert GROUP not in shard_of(world).groups
    assert len(group.members) == 3
    assert all_is_read(world, [*classic, new])
    assert all(member.owned for member in (*classic, new))
    before = image(group)
    world.restart()
    assert image(shard_of(world).consumer.by_id[GROUP]) == before
    rounds(world, [*classic, new])
    assert all_is_read(world, [*classic, new])
    new.leave()
    rounds(world, classic)
    assert GROUP not in shard_of(world).consumer.by_id
    assert shard_of(world).groups[GROUP].state is State.STABLE
    assert all_is_read(world, classic)
    world.restart()
    assert shard_of(world).groups[GROUP].state is State.STABLE
    assert GROUP not in shard_of(world).consumer.by_id


def test_classic_members_are_exchanged_one_by_one() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    members: list[Any] = [ClassicMember(world, GROUP, ["t"], eager=False) for _ in range(3)]
    rounds(world, members)
    for number in range(3):
        members[number].leave()
        members[number] = ConsumerMember(world, GROUP, f"new-{number}", ["t"])
        rounds(world, members)
        assert all_is_read(world, members)
    assert not any(member.is_classic for member in shard_of(world).consumer.by_id[GROUP].members.values())


@pytest.mark.parametrize("policy", ["DISABLED", "downgrade"])
def test_a_policy_without_upgrades_refuses_the_consumer(policy: str) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy=policy)
    classic = ClassicMember(world, GROUP, ["t"])
    rounds(world, [classic])
    new = ConsumerMember(world, GROUP, "new", ["t"])
    answer = new.send()
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    reason = "online upgrade is disabled"
    assert answer.error_message == f"Cannot upgrade classic group g to consumer group because {reason}."
    assert shard_of(world).groups[GROUP].state is State.STABLE


def join(world: GroupWorld, instance_id: str | None, protocol_type: str, metadata: bytes) -> ErrorCode:
    """What a client without a member id is told, or a static one."""
    make = messages.JoinGroupRequest
    request = make(group_id=GROUP, group_instance_id=instance_id, protocol_type=protocol_type)
    request.session_timeout_ms = request.rebalance_timeout_ms = 30_000
    request.protocols = [make.JoinGroupRequestProtocol(name="range", metadata=metadata)]
    return ErrorCode(world.ask("join_group", request, 9).error_code)


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "reason"),
    [
        ("connect", b"zz", "the group does not use the consumer embedded protocol"),
        ("consumer", b"zz", "the embedded consumer protocol is malformed"),
    ],
)
def test_a_group_that_cannot_be_upgraded_says_why(protocol_type: str, metadata: bytes, reason: str) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    assert join(world, "i", protocol_type, metadata) is ErrorCode.NONE
    answer = ConsumerMember(world, GROUP, "new", ["t"]).send()
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Cannot upgrade classic group g to consumer group because {reason}."


@pytest.mark.parametrize("instance_id", [None, "i"])
def test_without_migration_no_classic_member_joins_a_consumer_group(instance_id: str | None) -> None:
    """As Kafka 4.3.1 answers, which refuses also those that are in the group since the policy was another one."""
    world = GroupWorld(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy="Disabled")
    new = ConsumerMember(world, GROUP, "new", ["t"], instance_id="i")
    new.send()
    metadata = stored.encode_versioned(stored.ConsumerProtocolSubscription(topics=["t"]), 1)
    assert join(world, instance_id, "consumer", metadata) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    new.send()
    assert all_is_read(world, [new])
    new.leave()
    classic = ClassicMember(world, GROUP, ["t"])
    rounds(world, [classic])
    assert all_is_read(world, [classic])  # nobody is in the group: it may become one of the classic protocol


def test_a_policy_without_downgrades_keeps_the_group() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy="UPGRADE")
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    classic = ClassicMember(world, GROUP, ["t"])
    rounds(world, [new, classic])
    assert all_is_read(world, [new, classic])
    new.leave()
    rounds(world, [classic])
    assert [member.is_classic for member in shard_of(world).consumer.by_id[GROUP].members.values()] == [True]
    assert all_is_read(world, [classic])


def test_a_conversion_that_the_log_does_not_take_has_not_happened() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    classic = ClassicMember(world, GROUP, ["t"])
    rounds(world, [classic])
    new = ConsumerMember(world, GROUP, "new", ["t"])
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert new.send().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in shard_of(world).consumer.by_id
    assert shard_of(world).groups[GROUP].state is State.STABLE
    rounds(world, [classic, new])
    assert all_is_read(world, [classic, new])
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    new.leave()
    assert set(shard_of(world).consumer.by_id[GROUP].members) == {classic.member_id, "new"}
    assert GROUP not in shard_of(world).groups
    rounds(world, [classic], 120)  # the one that is silent goes
    assert all_is_read(world, [classic])


def test_a_member_that_does_not_join_again_or_sync_is_removed() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    request = messages.JoinGroupRequest(
        group_id=GROUP,
        member_id="silent",
        protocol_type="consumer",
        protocols=[
            messages.JoinGroupRequest.JoinGroupRequestProtocol(
                name="range", metadata=b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff\x00\x00\x00\x00"
            )
        ],
        session_timeout_ms=60_000,
        rebalance_timeout_ms=10_000,
    )
    assert world.ask("join_group", request, 9).error_code == ErrorCode.NONE
    assert set(shard_of(world).consumer.by_id[GROUP].members) == {"new", "silent"}
    for _ in range(12):
        world.clock.advance(1_000)
        new.send()
    assert set(shard_of(world).consumer.by_id[GROUP].members) == {"new"}


@pytest.mark.parametrize("seed", range(25))
def test_members_of_both_kinds_come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    world = GroupWorld(seed, group_initial_rebalance_delay_ms=0)
    members: list[Any] = []
    for number in range(250):
        what = chance.random()
        if what < 0.08 and len(members) < 6:
            if chance.random() < 0.5:
                members.append(ClassicMember(world, GROUP, ["t", "events"], eager=chance.random() < 0.5))
            else:
                members.append(ConsumerMember(world, GROUP, f"new-{number}", ["t", "events"]))
        elif what < 0.13 and members:
            gone = members.pop(chance.randrange(len(members)))
            if chance.random() < 0.8:
                gone.leave()
        elif what < 0.15:
            world.topics.change("events", chance.choice([0, 2, 6]))
        elif what < 0.17:
            world.clock.advance(10_000)
        elif what < 0.18:
            world.restart()
        elif what < 0.20:
            world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif members:
            chance.choice(members).send()
        check(world, members)
        world.clock.advance(100)
    world.logs[0].failures.clear()
    world.topics.change("events", 3)
    rounds(world, members, 60, 2_000)
    if members:
        topics = [world.topics.topic_id(name) for name in ("t", "events")]
        wanted = {(topics[0], each) for each in range(4)} | {(topics[1], each) for each in range(3)}
        everything = [each for member in members for each in owned(member)]
        if GROUP in shard_of(world).consumer.by_id:
            assert sorted(everything) == sorted(wanted)
        before = {group_id: image(group) for group_id, group in shard_of(world).consumer.by_id.items()}
        world.restart()
        after = {group_id: image(group) for group_id, group in shard_of(world).consumer.by_id.items()}
        assert after == before


class Misled(ClassicMember):
    """A member whose group's leader assigns by no assignor: to each member in order what `given` says."""

    given: tuple[list[int], ...] = ()

    def _assign(self, members: list[Any]) -> list[Any]:
        make = stored.ConsumerProtocolAssignment
        row = messages.SyncGroupRequest.SyncGroupRequestAssignment
        return [
            row(
                member_id=member.member_id,
                assignment=stored.encode_versioned(
                    make(assigned_partitions=[make.TopicPartition(topic="t", partitions=[each]) for each in given]), 1
                ),
            )
            for member, given in zip(members, self.given, strict=False)
        ]


def misled(world: GroupWorld, *given: list[int]) -> list[ClassicMember]:
    members: list[ClassicMember] = [Misled(world, GROUP, ["t"]) for _ in given]
    for member in members:
        member.given = given  # type: ignore[attr-defined]
    for _ in range(8):  # no referee: they own what they must not
        for member in members:
            member.send()
        world.clock.advance(500)
    assert shard_of(world).groups[GROUP].state is State.STABLE
    return members


def test_a_group_in_which_two_members_have_one_partition_is_not_converted(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    classic = misled(world, [0, 1], [2, 1])
    before = len(world.logs[0].batches)
    answer = ConsumerMember(world, GROUP, "new", ["t"]).send()
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "partition t-1 to two members" in answer.error_message
    assert all(member.member_id in answer.error_message for member in classic)
    assert any("partition t-1 to two members" in line for line in caplog.messages)
    assert shard_of(world).groups[GROUP].state is State.STABLE
    assert GROUP not in shard_of(world).consumer.by_id
    assert len(world.logs[0].batches) == before


def test_what_a_leader_assigned_that_does_not_exist_is_not_taken_over() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    classic = misled(world, [0, 7, -1, 1], [7, 2, 3])  # row by row: each row names the topic again
    topic_id = world.topics.topic_id("t")
    answer = ConsumerMember(world, GROUP, "new", ["u"]).send()
    assert answer.error_code == ErrorCode.NONE
    group = shard_of(world).consumer.by_id[GROUP]
    has = [sorted(group.members[member.member_id].current.assigned[topic_id]) for member in classic]
    assert sorted(has) == [[0, 1], [2, 3]]


def test_the_coordinator_dies_while_a_group_becomes_a_classic_one() -> None:
    """Once, it ended the classic group twice, and no other group of the partition."""
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    classic = ClassicMember(world, GROUP, ["t"])
    rounds(world, [new, classic])
    world.logs[0].held = True
    new.leave()
    assert GROUP in shard_of(world).groups
    log = world.logs[0]
    log.batches = [(base, batch) for base, batch in log.batches if base < log.high_watermark]
    log.log_end_offset = log.high_watermark
    log.held = False
    world.restart()
    assert GROUP in shard_of(world).consumer.by_id
    rounds(world, [classic], 130)
    assert all_is_read(world, [classic])


def test_a_member_that_reads_on_while_its_group_rebalances_keeps_its_partitions_in_an_upgrade() -> None:
    """Once, they had a second owner at once: a rebalance that ends another one forgets who was assigned what."""
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    reader = ClassicMember(world, GROUP, ["t"], eager=False)
    rounds(world, [reader])
    assert all_is_read(world, [reader])
    late, later = (ClassicMember(world, GROUP, ["t"], eager=False) for _ in range(2))
    late.send()
    late.send()
    reader.send()  # is told to join again
    reader.send()  # joins, and says what it owns: the generation has begun, and nobody has synced
    assert shard_of(world).groups[GROUP].state is State.COMPLETING_REBALANCE
    later.send()
    later.send()
    assert shard_of(world).groups[GROUP].state is State.PREPARING_REBALANCE
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()
    assert GROUP in shard_of(world).consumer.by_id
    assert owned(reader)
    assert not owned(reader) & owned(new)
    rounds(world, [reader, late, later, new], 40)
    assert all_is_read(world, [reader, late, later, new])


def test_what_a_member_still_gives_up_is_not_free_when_its_stable_group_is_converted() -> None:
    """Once, the partitions that a cooperative leader withholds from all had a new owner before the old one was done."""

    class Sharing(ClassicMember):
        def _assign(self, members: list[Any]) -> list[Any]:
            rows = super()._assign(members)
            make = stored.ConsumerProtocolAssignment
            for row in rows:
                found = stored.decode_versioned(make, row.assignment)[1]
                for topic in found.assigned_partitions:
                    del topic.partitions[2:]
                row.assignment = stored.encode_versioned(found, 1)
            return rows

    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    reader = Sharing(world, GROUP, ["t"], eager=False)
    reader.owned = {world.topics.topic_id("t"): [0, 1, 2, 3]}
    for _ in range(2):
        reader.send()  # joins, and says what it owns; gets a part of that
    assert shard_of(world).groups[GROUP].state is State.STABLE
    assert owned(reader) == {(world.topics.topic_id("t"), index) for index in (0, 1)}
    new = ConsumerMember(world, GROUP, "new", ["t"])
    new.send()  # before the reader has joined again, by which it says that it has given up the other part
    assert not {index for _, index in owned(new)} & {2, 3}
    rounds(world, [reader, new])
    assert all_is_read(world, [reader, new])
