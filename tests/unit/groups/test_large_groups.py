"""Groups that are too large to assign to at once: members live on their old targets until the new ones are there."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer import group as consumer_group
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.coordinators.groups.consumer.topics import HASHED_AT_ONCE
from barnabas.offsets.records import CommittedOffset
from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from consumer_members import ConsumerMember, Party, image
from group_world import GroupWorld, answer_of

GROUP = "g"
PASSES_MAX = 4  # of the loop, between two things that happen


class SlowWorld(GroupWorld):
    """Every group is a large one, and each pass of the loop does one piece of its assignment.

    `settle` does `passes`; None: as many as there are.
    """

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self.passes: int | None = None
        self.works = 0
        super().__init__(seed, **settings)
        self.clock.work_ms = self._work_ms  # type: ignore[method-assign]
        self._worked_ms = 0.0

    def _work_ms(self) -> float:
        self._worked_ms += 10.0
        return self._worked_ms

    def lead_all(self) -> None:
        """A new coordinator, for which each group is large."""
        self.coordinator.consumer.at_once_max = -1
        super().lead_all()

    def settle(self) -> None:
        """Run what is due, or some of it."""
        if self.passes is None:
            super().settle()
            return
        for _ in range(self.passes):
            self.clock.loop.call_soon(self.clock.loop.stop)
            self.clock.loop.run_forever()

    def restart(self) -> None:
        """Restart, and be ready."""
        passes, self.passes = self.passes, None
        super().restart()
        self.passes = passes

    @property
    def group(self) -> ConsumerGroup:
        """The group in the coordinator."""
        return self.coordinator.shards[0].consumer.by_id[GROUP]


def members_of(world: GroupWorld, *names: str) -> list[ConsumerMember]:
    """Members that have joined, and own what they should."""
    members = [ConsumerMember(world, GROUP, name, ["t"]) for name in names]
    beat(members, 6)
    return members


@pytest.fixture(params=[False, True], ids=["few-topics", "many-topics"])
def all_read_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group reads so many topics that changes of them are looked at in pieces, or none does."""
    if request.param:
        monkeypatch.setattr(consumer_group, "LOOKED_AT_AT_ONCE_MAX", -1)


def beat(members: list[ConsumerMember], rounds: int) -> None:
    """Some heartbeats of each."""
    for _ in range(rounds):
        for member in members:
            member.send()


def owned(members: list[ConsumerMember]) -> list[int]:
    """How many partitions each has, from the fewest on."""
    return sorted(sum(map(len, member.owned.values())) for member in members)


def begin_assigning(world: SlowWorld, members: list[ConsumerMember]) -> None:
    """The topic gets partitions, and the first member says so to the coordinator: it assigns from now on."""
    world.topics.change("t", 8)
    world.passes = 2
    members[0].send()
    assert world.group.question is not None


def test_members_live_on_their_old_targets_until_the_new_ones_are_there() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    assert owned(members) == [2, 2]
    epoch = world.group.epoch
    begin_assigning(world, members)
    for member in members:
        member.send()
        assert member.answer.error_code == ErrorCode.NONE
        assert member.answer.member_epoch == epoch
        assert world.group.state is GroupState.ASSIGNING
    assert owned(members) == [2, 2]
    world.passes = None
    world.settle()
    assert world.group.assignment_epoch == world.group.epoch == epoch + 1
    beat(members, 3)
    assert owned(members) == [4, 4]
    assert world.group.state is GroupState.STABLE


def test_who_comes_meanwhile_is_assigned_to_afterwards() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    begin_assigning(world, members)
    members.append(ConsumerMember(world, GROUP, "c", ["t"]))
    members[-1].send()
    assert world.group.question is not None
    epoch = world.group.epoch
    world.passes = None
    world.settle()
    assert world.group.assignment_epoch == epoch - 1, "what was asked before it came is answered"
    beat(members, 4)
    assert owned(members) == [2, 3, 3]
    assert world.group.state is GroupState.STABLE


def test_who_leaves_meanwhile_is_given_nothing() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b", "c")
    begin_assigning(world, members)
    members.pop().leave()
    world.passes = None
    world.settle()
    assert set(world.group.targets) == {"a", "b"}
    beat(members, 4)
    assert owned(members) == [4, 4]
    assert world.group.state is GroupState.STABLE


def test_an_answer_that_does_not_know_a_static_members_new_id_is_thrown_away() -> None:
    world = SlowWorld()
    members = [ConsumerMember(world, GROUP, name, ["t"], instance_id=f"of-{name}") for name in ("a", "b")]
    beat(members, 6)
    begin_assigning(world, members)
    before = world.group.assignment_epoch
    members.pop().leave(-2)
    members.append(ConsumerMember(world, GROUP, "b-again", ["t"], instance_id="of-b"))
    members[-1].send()
    world.passes = None
    world.settle()
    assert world.group.assignment_epoch == before
    beat(members, 4)
    assert owned(members) == [4, 4]
    assert world.group.state is GroupState.STABLE


def test_a_coordinator_that_loses_the_partition_writes_nothing_more() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    begin_assigning(world, members)
    world.passes = None
    end = world.logs[0].log_end_offset
    world.restart()
    assert world.logs[0].log_end_offset == end
    beat(members, 6)
    assert owned(members) == [4, 4]


def test_what_the_log_does_not_take_is_not_answered() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    epoch = world.group.epoch
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.topics.change("t", 8)
    world.passes = 2
    members[0].send()  # its epoch is taken back
    assert world.group.epoch == epoch
    assert world.group.question is None
    world.passes = None
    world.settle()
    assert world.group.assignment_epoch == epoch
    beat(members, 4)
    assert owned(members) == [4, 4]


def test_an_answer_that_the_log_does_not_take_is_asked_for_again() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    begin_assigning(world, members)
    world.logs[0].failures.append(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.passes = None
    world.settle()
    assert world.group.assignment_epoch < world.group.epoch
    beat(members, 4)
    assert owned(members) == [4, 4]


def test_an_answer_for_a_group_that_is_gone_is_not_written() -> None:
    world = SlowWorld()
    members = members_of(world, "a")
    begin_assigning(world, members)
    members[0].leave()
    deleted = world.call("delete_groups", messages.DeleteGroupsRequest(groups_names=[GROUP]), 2)
    world.passes = None
    world.settle()
    assert [row.error_code for row in answer_of(deleted).results] == [ErrorCode.NONE]
    last = record_batch.records(memoryview(world.logs[0].batches[-1][1]))
    assert [record.value for record in last] == [None] * 3, "its end is the last that was written of it"


def test_an_answer_from_before_a_live_reset_comes_too_late() -> None:
    world = SlowWorld()
    members = members_of(world, "a", "b")
    begin_assigning(world, members)
    asker = SimpleNamespace(client_id="c", client_host="/h", principal="User:alice")
    reset = world.coordinator.live_resets.begin(GROUP, {"t": {0: CommittedOffset(3)}}, asker)
    world.passes = None
    world.settle()
    assert not answer_of(reset).error
    assert world.group.assignment_epoch == world.group.epoch
    assert not world.group.targets
    beat(members, 6)
    assert owned(members) == [4, 4]


@pytest.mark.parametrize("regex", [None, "many-.*"])
def test_changes_of_many_topics_are_looked_at_in_pieces(regex: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    world = SlowWorld()
    names = [f"many-{number}" for number in range(consumer_group.LOOKED_AT_AT_ONCE_MAX + 1)]
    for name in names:
        world.topics.change(name, 1)
    said = {"subscribed_topic_names": names} if regex is None else {"subscribed_topic_regex": regex}
    members = [ConsumerMember(world, GROUP, name, [], **said) for name in ("a", "b")]
    beat(members, 6)
    assert sum(owned(members)) == len(names)
    topic_hash, work_ms = world.topics.topic_hash, world.clock.work_ms
    hashed = [0]  # in each piece of work

    def counted(topic: str) -> int:
        hashed[-1] += 1
        return topic_hash(topic)

    def piece_ended() -> float:
        hashed.append(0)
        return work_ms()

    monkeypatch.setattr(world.topics, "topic_hash", counted)
    monkeypatch.setattr(world.clock, "work_ms", piece_ended)
    for change in range(2, 5):
        epoch = world.group.epoch
        world.topics.change("many-7", change)
        members[0].send()
        assert world.group.epoch == epoch + 1
        beat(members, 4)
        assert sum(owned(members)) == len(names) + change - 1
        world.topics.change("another", change)  # which nobody reads
        beat(members, 2)
        assert world.group.epoch == epoch + 1
    assert 0 < max(hashed) <= HASHED_AT_ONCE


@pytest.mark.parametrize("seed", range(25))
def test_run_equals_replay(seed: int, all_read_many: None) -> None:
    chance = random.Random(seed)
    world = SlowWorld(seed)
    party = Party(world, chance, ["g", "h"])
    were_asked = 0
    for _ in range(250):
        world.passes = chance.choice([None, *range(PASSES_MAX + 1)])
        party.step()
        were_asked += any(group.question for group in world.coordinator.shards[0].consumer.by_id.values())
    assert were_asked > 10
    world.passes = None
    world.settle()
    before = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    world.restart()
    after = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    assert after == before
    party.calm()


@pytest.mark.parametrize("seed", range(25))
def test_the_log_fails_stalls_and_moves(seed: int, all_read_many: None) -> None:
    chance = random.Random(seed)
    world = SlowWorld(seed, offsets_commit_timeout_ms=2_000)
    party = Party(world, chance, ["g"])
    log = world.logs[0]
    for _ in range(300):
        world.passes = chance.choice([None, *range(PASSES_MAX + 1)])
        what = chance.random()
        if what < 0.08:
            log.failures.append(chance.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]))
        elif what < 0.12:
            log.held = not log.held
            if not log.held:
                log.release()
                world.settle()
        elif what < 0.14 and not log.held:
            world.restart()
        party.step()
    log.failures.clear()
    log.held = False
    log.release()
    world.passes = None
    world.clock.advance(60_000)
    before = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    world.restart()
    after = {group_id: image(group) for group_id, group in world.coordinator.shards[0].consumer.by_id.items()}
    assert after == before
    party.calm()
