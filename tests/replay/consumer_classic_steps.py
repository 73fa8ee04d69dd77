"""The steps of classic members in a group that a Kafka and a broker in memory have (consumer_groups.py)."""

import random
from dataclasses import dataclass, field
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol import records as kept
from barnabas.protocol.api_keys import ApiKey
from consumer_pair import SESSION_MS, TOPIC_NAMES, Pair, Topics


@dataclass
class Member:
    """What a client knows of itself."""

    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    names: list[str] = field(default_factory=list)
    regex: str = ""
    assignment: dict[bytes, frozenset[int]] = field(default_factory=dict)
    before: dict[bytes, frozenset[int]] = field(default_factory=dict)
    is_classic: bool = False
    is_away: bool = False
    protocols: list[str] = field(default_factory=list)


class ClassicSteps:
    """What members of the classic protocol do in a group."""

    name: str
    members: list[Member]
    story: list[str]
    _pair: Pair
    _topics: Topics
    _rng: random.Random
    _is_mixed: bool
    _with_regexes: bool
    last_look: Any
    told_changes: int

    def _topics_to_read(self) -> list[str]:
        if not self._is_mixed:
            return TOPIC_NAMES[:4]
        return sorted(self._rng.sample(TOPIC_NAMES, self._rng.randint(0 if self._with_regexes else 1, 4)))

    def _subscription(self, member: Member) -> bytes:
        make = kept.ConsumerProtocolSubscription
        names = {topic_id: name for name, topic_id in self._topics.ids.items()}
        owned = [
            make.TopicPartition(topic=names[topic_id], partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assignment.items())
            if topic_id in names
        ]
        return kept.encode_versioned(make(topics=member.names, owned_partitions=owned), 1)

    def _joining(self, member: Member) -> Any:
        make = messages.JoinGroupRequest
        return make(
            group_id=self.name,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=300_000,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            protocol_type="consumer",
            protocols=[
                make.JoinGroupRequestProtocol(name=name, metadata=self._subscription(member))
                for name in member.protocols
            ],
        )

    def _join_classic(self, instance_id: str | None = None) -> str:
        """A classic member joins; in a classic group all others join again with it."""
        member = Member("", instance_id, is_classic=True, names=self._topics_to_read())
        member.protocols = self._rng.choice((["range"], ["cooperative-sticky", "range"], ["range", "roundrobin"]))
        if instance_id is None and self._rng.random() < 0.2:
            member.instance_id = f"i{self._rng.randint(1, 3)}"
        if member.instance_id is None:
            answer = self._pair.ask(ApiKey.JOIN_GROUP, 9, self._joining(member))
            if answer.error_code != 79:  # MEMBER_ID_REQUIRED
                return f"a classic member is refused: {answer.error_code}"
            member.member_id = answer.member_id
        if self._misses_something_without(member):
            return "nothing: with Kafka, the classic group that follows would miss partitions"
        if any(not each.is_classic for each in self.members):
            return self._join_alone(member)
        if member.instance_id is not None and any(each.instance_id == member.instance_id for each in self.members):
            return "nothing: this would be a static member that comes back"
        self.members.insert(0, member)  # it begins the rebalance: before, others would be told of the last one
        return self._join_together()

    def _misses_something_without(self, member: Member) -> bool:
        """Whether it comes in the place of the last consumer while somebody has not what it should have.

        Kafka begins no rebalance then, or answers the join with generation 0.
        """
        consumers = [each for each in self.members if not each.is_classic]
        if len(consumers) != 1 or member.instance_id is None or consumers[0].instance_id != member.instance_id:
            return False
        (last,) = consumers
        (group,) = self.last_look["groups"]
        epoch = group["group_epoch"]
        others = [set(each.protocols) for each in self.members if each.is_classic]
        return not (
            group["assignment_epoch"] == epoch
            and all(
                row["assignment"] == row["target_assignment"] and row["member_epoch"] in (epoch, -2)
                for row in group["members"]
            )
            and (member.names, last.regex) == (last.names, "")
            and self.told_changes == self._topics.changes
            and all(member.protocols[0] in names for names in others)
        )

    def _replace_by_classic(self) -> str:
        """A static member of the consumer protocol comes back as a classic one."""
        static = [each for each in self.members if not each.is_classic and each.instance_id is not None]
        return self._join_classic(self._rng.choice(static).instance_id)

    def _join_alone(self, member: Member) -> str:
        answer = self._pair.ask(ApiKey.JOIN_GROUP, 9, self._joining(member))
        if answer.error_code:
            if member in self.members and answer.error_code in (25, 82):
                self.members.remove(member)
            return f"classic {member.member_id} joins: {answer.error_code}"
        self.told_changes = self._topics.changes
        member.member_id, member.epoch = answer.member_id, answer.generation_id
        if member not in self.members:
            self.members = [
                each for each in self.members if each.instance_id is None or each.instance_id != member.instance_id
            ]
            self.members.append(member)
        self._sync_alone(member)
        return (
            f"classic {member.member_id} {member.instance_id} joins {member.names} {member.protocols}: {member.epoch}"
        )

    def _sync_alone(self, member: Member) -> None:
        make = messages.SyncGroupRequest
        request = make(
            group_id=self.name,
            generation_id=member.epoch,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            protocol_type="consumer",
            assignments=[],
        )
        answer = self._pair.ask(ApiKey.SYNC_GROUP, 5, request)
        if not answer.error_code:
            self._take(member, answer.assignment)

    def _take(self, member: Member, assignment: bytes) -> None:
        if not assignment:
            return
        found = kept.decode_versioned(kept.ConsumerProtocolAssignment, assignment, newer_as_latest=True)[1]
        member.assignment = {
            self._topics.ids[row.topic]: frozenset(row.partitions)
            for row in found.assigned_partitions
            if row.topic in self._topics.ids
        }

    def _join_together(self) -> str:
        """All members of a classic group join, and sync. The leader gives each topic to one member that reads it."""
        requests = {
            f"member {number}": (ApiKey.JOIN_GROUP, 9, self._joining(member))
            for number, member in enumerate(self.members)
        }
        answers = list(self._pair.ask_together(requests).values())
        if any(answer.error_code for answer in answers):
            raise SystemExit(f"{self.name}: classic members could not join: {answers}")
        for member, answer in zip(self.members, answers, strict=True):
            member.member_id, member.epoch = answer.member_id, answer.generation_id
        given: dict[str, list[Any]] = {member.member_id: [] for member in self.members}
        make = kept.ConsumerProtocolAssignment
        for name in sorted(self._topics.ids):
            readers = [member for member in self.members if name in member.names]
            if readers:
                row = make.TopicPartition(topic=name, partitions=list(range(self._topics.counts[name])))
                given[self._rng.choice(readers).member_id].append(row)
        sync = messages.SyncGroupRequest
        rows = [
            sync.SyncGroupRequestAssignment(
                member_id=member_id, assignment=kept.encode_versioned(make(assigned_partitions=assigned), 1)
            )
            for member_id, assigned in given.items()
        ]
        leader = answers[0].leader
        synced = {
            f"member {number}": (
                ApiKey.SYNC_GROUP,
                5,
                sync(
                    group_id=self.name,
                    generation_id=member.epoch,
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    protocol_type="consumer",
                    protocol_name=answers[0].protocol_name,
                    assignments=rows if member.member_id == leader else [],
                ),
            )
            for number, member in enumerate(self.members)
        }
        claimed = {partition for member in self.members for partition in self._owned_by(member)}
        for member, answer in zip(self.members, self._pair.ask_together(synced).values(), strict=True):
            self._take(member, answer.assignment)
        if claimed - {partition for member in self.members for partition in self._owned_by(member)}:
            return self._join_together()  # as clients do that had to give up what nobody has now (KIP-429)
        return f"{len(self.members)} classic members join and sync: {[member.epoch for member in self.members]}"

    def _owned_by(self, member: Member) -> set[tuple[bytes, int]]:
        """What it has of topics that exist."""
        ids = set(self._topics.ids.values())
        return {(topic, index) for topic, indexes in member.assignment.items() if topic in ids for index in indexes}

    def _beat_classic(self, member: Member) -> str:
        generation = member.epoch + self._rng.choice((0, 0, 0, 0, 1, -1))
        request = messages.HeartbeatRequest(
            group_id=self.name,
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
        )
        answer = self._pair.ask(ApiKey.HEARTBEAT, 4, request)
        said = f"classic {member.member_id} beats in {generation}: {answer.error_code}"
        if answer.error_code == 25:
            self.members.remove(member)
        if answer.error_code != 27:  # REBALANCE_IN_PROGRESS
            return said
        if any(not each.is_classic for each in self.members):
            if self._rng.random() < 0.2:
                return said
            if self._rng.random() < 0.2:
                member.names = self._topics_to_read()
            self.story.append(said)
            return self._join_alone(member)
        self.story.append(said)
        return self._join_together()

    def _leave_classic(self, member: Member) -> str:
        make = messages.LeaveGroupRequest
        row = make.MemberIdentity(member_id=member.member_id, group_instance_id=member.instance_id)
        answer = self._pair.ask(ApiKey.LEAVE_GROUP, 5, make(group_id=self.name, members=[row]))
        if not answer.error_code and not answer.members[0].error_code:
            self.members.remove(member)
        return f"classic {member.member_id} leaves: {answer.members[0].error_code}"
