"""The commands of a conversation about members of the consumer protocol (KIP-848), for group_runner.py.

beat a topics=t,u       ConsumerGroupHeartbeat: joins, and later lives; options: topics=… regex=… owns=t-0,t-1 (or
                        nothing: `owns=`) epoch=… v=… instance=… rack=… assignor=… timeout=… group=…
describe-consumer       ConsumerGroupDescribe
topic t 6               the topic has so many partitions now; 0: it is deleted
racks t r1,r2|r1        the racks of the replicas of each partition
"""

from collections.abc import Callable
from typing import Any

from barnabas.coordinators.groups.consumer.records import CONSUMER_KEYS, Kind, decode
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from group_world import GroupWorld

__all__ = ["CONSUMER_KEYS", "ConsumerCommands"]


class ConsumerCommands:
    """The part of a `Conversation` that speaks the consumer protocol."""

    world: GroupWorld
    epochs: dict[str, int]
    generations: dict[str, int]
    ids: dict[str, str]
    say: Callable[[str], None]
    call: Callable[..., None]

    def do_beat(self, words: list[str], options: dict[str, str]) -> None:
        (name,) = words
        epoch = int(options.get("epoch", self.epochs.get(name, 0)))
        is_join = epoch == 0
        owns = options.get("owns", "" if is_join else None)
        regex = options.get("regex")
        topics = options.get("topics", "" if is_join and regex is None else None)
        make = messages.ConsumerGroupHeartbeatRequest
        owned: dict[str, list[int]] = {}
        for word in (owns or "").split(","):
            if word:
                topic, _, index = word.rpartition("-")
                owned.setdefault(topic, []).append(int(index))
        request = make(
            group_id=options.get("group", "g"),
            member_id=options.get("id", name),
            member_epoch=epoch,
            instance_id=options.get("instance"),
            rack_id=options.get("rack"),
            server_assignor=options.get("assignor"),
            rebalance_timeout_ms=int(options.get("timeout", 30_000 if is_join else -1)),
            subscribed_topic_names=None if topics is None else [topic for topic in topics.split(",") if topic],
            subscribed_topic_regex=regex,
            topic_partitions=None
            if owns is None
            else [
                make.TopicPartitions(topic_id=self.world.topics.topic_id(topic), partitions=indexes)
                for topic, indexes in owned.items()
            ],
        )

        def show(response: Any) -> None:
            if response.error_code:
                said = f": {response.error_message}" if response.error_message else ""
                self.say(f"{name} {ErrorCode(response.error_code).name}{said}")
                return
            if response.member_id == name:
                self.ids[name] = name
            self.epochs[name] = self.generations[name] = max(response.member_epoch, 0)
            has = "" if response.assignment is None else f" has {self._shown(response.assignment)}"
            self.say(f"{name} epoch {response.member_epoch}{has}")

        self.call(name, "heartbeat_consumer", request, int(options.get("v", 1)), show)

    def do_describe_consumer(self, words: list[str], options: dict[str, str]) -> None:
        def show(response: Any) -> None:
            (group,) = response.groups
            if group.error_code:
                self.say(f"{ErrorCode(group.error_code).name}: {group.error_message}")
                return
            self.say(
                f"{group.group_state} epoch {group.group_epoch} assigned in {group.assignment_epoch} "
                f"by {group.assignor_name}"
            )
            for member in group.members:
                kind = "" if member.member_type else " classic"
                has, should = self._shown(member.assignment), self._shown(member.target_assignment)
                rest = "" if has == should else f", should have {should}"
                self.say(f"  {member.member_id}{kind} epoch {member.member_epoch} has {has}{rest}")

        request = messages.ConsumerGroupDescribeRequest(group_ids=[options.get("group", "g")])
        self.call("", "describe_consumer", request, 1, show)

    def do_topic(self, words: list[str], options: dict[str, str]) -> None:
        self.world.topics.change(words[0], int(words[1]))

    def do_racks(self, words: list[str], options: dict[str, str]) -> None:
        self.world.topics.racks[words[0]] = [racks.split(",") for racks in words[1].split("|")]
        self.world.topics.changes += 1

    def _shown(self, assignment: Any) -> str:
        return self._partitions({row.topic_id: row.partitions for row in assignment.topic_partitions})

    def _partitions(self, partitions: Any) -> str:
        names = {topic_id: topic_id.rstrip(b"\x01").decode() for topic_id in partitions}
        rows = sorted((names[topic_id], sorted(each)) for topic_id, each in partitions.items() if each)
        return " ".join(f"{name}:{','.join(map(str, each))}" for name, each in rows) or "nothing"

    def show_consumer_record(self, record: Record) -> str:
        """A record of keys 3 to 8 and 16."""
        group_id, (kind, name, value) = decode(record.key or b"", record.value)
        of: Any = value
        if value is None:
            return f"{kind.name.lower()} {name or group_id} gone"
        if kind is Kind.GROUP:
            return f"group {group_id} epoch {of.epoch}"
        if kind is Kind.MEMBER:
            regex = f" /{of.topic_regex}/" if of.topic_regex else ""
            classic = " classic" if of.classic is not None else ""
            return f"member {name}{classic} reads {','.join(of.topic_names) or 'nothing'}{regex}"
        if kind is Kind.TARGET_EPOCH:
            return f"target epoch {of.epoch}"
        if kind is Kind.TARGET_MEMBER:
            return f"target {name} {self._partitions(of)}"
        if kind is Kind.REGEX:
            return f"regex /{name}/ is {','.join(sorted(of.topics)) or 'nothing'}"
        revoking = f" revoking {self._partitions(of.revoking)}" if of.revoking else ""
        return f"current {name} {of.state.name} epoch {of.epoch} {self._partitions(of.assigned)}{revoking}"
