"""Members of consumer groups (KIP-848) as clients are, over a `GroupWorld`, and a referee of what they own."""

import random
from typing import Any

from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, answer_of

FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)
Owned = dict[bytes, list[int]]


def heartbeat_request(group: str, member_id: str, epoch: int, **fields: Any) -> messages.ConsumerGroupHeartbeatRequest:
    """A heartbeat; `owned` are the partitions that it names."""
    owned = fields.pop("owned", None)
    make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    if owned is not None:
        fields["topic_partitions"] = [make(topic_id=topic, partitions=list(each)) for topic, each in owned.items()]
    return messages.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields)


class ConsumerMember:
    """One client: it takes what it is given, gives up what it must, and joins again when it is fenced."""

    def __init__(self, world: GroupWorld, group: str, member_id: str, topics: list[str], **joins: Any) -> None:
        self.world = world
        self.group = group
        self.member_id = member_id
        self.topics = topics
        self.joins = joins
        self.epoch = 0
        self.owned: Owned = {}
        self.answer: Any = None
        self._told: Owned = {}
        self._waiting: Pending[Any] | None = None

    def send(self, version: int = 1, **fields: Any) -> Any:
        """Send a heartbeat, and take the answer if it is there."""
        if self._waiting is not None:
            if not self._waiting.done:
                return None
            self._take(answer_of(self._waiting))
            return self.answer
        if self.epoch == 0:
            fields = {
                "subscribed_topic_names": self.topics,
                "rebalance_timeout_ms": 30_000,
                "owned": {},
                **self.joins,
                **fields,
            }
        elif self.owned != self._told:
            fields.setdefault("owned", self.owned)
        request = heartbeat_request(self.group, self.member_id, self.epoch, **fields)
        self._told = dict(self.owned)
        reply = self.world.call("heartbeat_consumer", request, version)
        self.world.settle()
        if isinstance(reply, Pending) and not reply.done:
            self._waiting = reply
            return None
        self._take(answer_of(reply) if isinstance(reply, Pending) else reply)
        return self.answer

    def _take(self, answer: Any) -> None:
        self._waiting = None
        self.answer = answer
        error = ErrorCode(answer.error_code)
        if error in FENCED:
            self.lose_all()
        elif error:
            self._told = {b"": []}  # tell everything again
        else:
            assert answer.member_epoch >= self.epoch or answer.member_epoch < 0, "epochs only grow"
            self.epoch = answer.member_epoch
            self.member_id = answer.member_id
            if answer.assignment is not None:
                self.owned = {
                    row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions if row.partitions
                }

    def lose_all(self) -> None:
        """Fenced: nothing is owned any more, and it joins again."""
        self.epoch = 0
        self.owned = {}
        self._told = {}

    def leave(self, epoch: int = -1) -> Any:
        """Leave, for good or for a while."""
        request = heartbeat_request(self.group, self.member_id, epoch, instance_id=self.joins.get("instance_id"))
        self.lose_all()
        reply = self.world.call("heartbeat_consumer", request, 1)
        self.world.settle()
        return reply


class Party:
    """Members of some groups that come and go at random. `check`: what must hold after each step."""

    def __init__(self, world: GroupWorld, chance: random.Random, groups: list[str]) -> None:
        self.world = world
        self.chance = chance
        self.groups = groups
        self.members: list[ConsumerMember] = []
        self._number = 0

    def step(self) -> None:
        """Something happens."""
        chance, world = self.chance, self.world
        what = chance.random()
        if what < 0.1 and len(self.members) < 8:
            self._join()
        elif what < 0.14 and self.members:
            member = self.members.pop(chance.randrange(len(self.members)))
            if chance.random() < 0.7:
                member.leave()  # the others are silent from now on
        elif what < 0.18:
            world.topics.change(chance.choice(["t", "events", "orders", "more"]), chance.choice([0, 2, 4, 5, 8]))
        elif what < 0.21 and self.members:
            member = chance.choice(self.members)
            member.topics = chance.sample(["t", "events", "orders", "more"], chance.randint(1, 3))
            member.send(subscribed_topic_names=member.topics)
        elif what < 0.24:
            world.clock.advance(chance.choice([1_000, 5_000, 20_000]))
        elif self.members:
            chance.choice(self.members).send()
        self.check()

    def _join(self) -> None:
        chance = self.chance
        self._number += 1
        more: dict[str, Any] = {"server_assignor": chance.choice([None, "uniform", "range"])}
        if chance.random() < 0.2:
            more["instance_id"] = f"till-{chance.randint(1, 3)}"
        if chance.random() < 0.2:
            more["subscribed_topic_regex"] = chance.choice(["o.*", "events|orders", "."])
        topics = chance.sample(["t", "events", "orders", "more"], chance.randint(0, 3))
        member = ConsumerMember(self.world, chance.choice(self.groups), f"member-{self._number}", topics, **more)
        self.members.append(member)
        member.send()

    def check(self) -> None:
        """No partition is owned twice, by what clients know and by what the coordinator has."""
        for group_id in self.groups:
            seen: dict[tuple[bytes, int], str] = {}
            living = self.of_group(group_id)
            for member in self.members:
                known = living.members.get(member.member_id) if living is not None else None
                if member.group != group_id or known is None:
                    continue  # it was removed, and will hear so
                for topic_id, partitions in member.owned.items():
                    for partition in partitions:
                        other = seen.setdefault((topic_id, partition), member.member_id)
                        assert other == member.member_id, f"{partition} is owned by {other} and {member.member_id}"
            if living is not None:
                check_owners(living)

    def of_group(self, group_id: str) -> ConsumerGroup | None:
        """The group in the coordinator."""
        return self.world.coordinator.shards[0].consumer.by_id.get(group_id)

    def calm(self) -> None:
        """Nothing happens any more: everybody sends heartbeats until all have what they should."""
        for _ in range(40):  # the silent ones have to be noticed first
            for member in self.members:
                member.send()
            self.world.clock.advance(3_000)
            self.check()
        for group_id in self.groups:
            group = self.of_group(group_id)
            if group is not None and group.members:
                assert group.state is GroupState.STABLE, (group_id, group.state)
                for member_id, member in group.members.items():
                    has = {topic_id: frozenset(each) for topic_id, each in member.current.assigned.items()}
                    assert has == group.target_of(member_id)


def check_owners(group: ConsumerGroup) -> None:
    """What the group knows of owners is what its members have, and nobody has what another one has."""
    owners: dict[tuple[bytes, int], str] = {}
    for member_id, member in group.members.items():
        for assigned in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in assigned.items():
                for partition in partitions:
                    assert owners.setdefault((topic_id, partition), member_id) == member_id
    assert all(group.owner_of(*partition) == member_id for partition, member_id in owners.items())


def image(group: ConsumerGroup) -> Any:
    """All that a restart must bring back."""
    return (
        group.of_group,
        group.of_targets,
        group.members,
        {member_id: target for member_id, target in group.targets.items() if member_id in group.members},
        group.regexes,
        group.by_instance,
        group.subscribed_topics(),
    )
