"""Runs a group conversation written as text: a command on each line, and below it its effects, each after `> `.

    join a              JoinGroup of member a, with the id it was given last; options: id=… v=… instance=… session=…
                        rebalance=… protocols=x,y topics=t,u owns=0,1 type=… meta=… group=… client=…
                        reason=…
    sync a a=p0 b=t:0,1 SyncGroup, with assignments when there are any; options: v=… generation=… id=… protocol=… type=…
    heartbeat a         options: generation=… id=… instance=… group=…
    leave a b           LeaveGroup; `leave instance=x`; v=2 for the old shape
    commit a t-0=5      OffsetCommit as a member; without a name as nobody; options: generation=… meta-bytes=… v=…
    pend 7 a t-0=5      TxnOffsetCommit of producer 7, else as `commit`; verified=NAME: what its coordinator answers
    end 7 commit|abort  the marker of producer 7's transaction
    fetch t-0 | all     OffsetFetch; stable; member=a epoch=3 (of the consumer protocol)
    describe / list / delete / forget t-0 (OffsetDelete), all with group=…
    reset t-0=5         live reset of the group (live_reset.py)
    explain             the story of the group's rebalances, and the advice (explanation.py)
    tick 3000           time passes
    hold / release      commits stand still / go on
    fail NAME           the next append fails with that error
    restart             the broker comes back with what the logs have
    beat a … (consumer protocol) and others: consumer_commands.py
    set name value      a broker setting;   gone t (topic deleted);   members a b c (ids that were never given)

Member ids in answers stand as the member's name; a second id of the same member as name'2.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from barnabas.coordinators.groups import explanation
from barnabas.coordinators.groups.records import EMPTY_ASSIGNMENT, GROUP_KEY_VERSION, decode_group, live_reset_of
from barnabas.offsets.records import CommittedOffset, decode_key, decode_value, key_version
from barnabas.protocol import messages, record_batch
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.transaction_marker import CONTROL_COMMIT
from barnabas.runtime.pending import Pending
from consumer_commands import CONSUMER_KEYS, ConsumerCommands
from group_world import GroupWorld, pending_commit


def subscription(topics: list[str]) -> bytes:
    """An embedded consumer subscription, version 0."""
    body = b"\x00\x00" + len(topics).to_bytes(4, "big")
    for topic in topics:
        body += len(topic).to_bytes(2, "big") + topic.encode()
    return body + b"\xff\xff\xff\xff"


def owning(topic: str, indexes: list[int]) -> bytes:
    """An embedded consumer subscription, version 1, of a member that keeps partitions."""
    owned = stored.ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=indexes)
    return stored.encode_versioned(stored.ConsumerProtocolSubscription(topics=[topic], owned_partitions=[owned]), 1)


class Conversation(ConsumerCommands):
    """One world and what was said in it."""

    def __init__(self) -> None:
        self.world = GroupWorld()
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.output: list[str] = []
        self.records_seen = 0

    def run(self, command: str) -> list[str]:
        """Run one command; returns its effects, a line each."""
        self.output = []
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word and not re.match(r"^\w+-\d+=", word))
        plain = [word for word in words if "=" not in word or re.match(r"^\w+-\d+=", word)]
        getattr(self, "do_" + verb.replace("-", "_"))(plain, options)
        self.world.settle()
        self.show_records()
        return [self.with_names(line) for line in self.output]

    def with_names(self, line: str) -> str:
        """The line with names in place of member ids; `?` for one whose answer is still out."""
        for member_id, name in self.names.items():
            line = line.replace(member_id, name)
        return re.sub(r"\b\w+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "?", line)

    # ---- commands ----

    def do_join(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        version = int(options.get("v", 9))
        protocols = options.get("protocols", "range,roundrobin")
        metadata = subscription(options.get("topics", "t").split(","))
        if "owns" in options:
            metadata = owning("t", [int(index) for index in options["owns"].split(",") if index])
        if "meta" in options:
            metadata = options["meta"].encode()
        request = messages.JoinGroupRequest(
            group_id=options.get("group", "g"),
            session_timeout_ms=int(options.get("session", 10000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60000)),
            member_id=self.id_of(name, options),
            group_instance_id=options.get("instance"),
            reason=options.get("reason", "").replace("_", " "),
            protocol_type=options.get("type", "consumer"),
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(name=protocol, metadata=metadata)
                for protocol in protocols.split(",")
                if protocol
            ],
        )

        def show(response: Any) -> None:
            if response.member_id and (not response.error_code or response.error_code == 79):
                self.learn(name, response.member_id)
            if response.error_code:
                extra = f" id {response.member_id}" if response.error_code != 79 else ""
                self.say(f"{name} {error(response)}{extra}")
                return
            self.generations[name] = response.generation_id
            role = "leader" if response.leader == response.member_id else "follower"
            text = f"{name} {role} generation {response.generation_id} {response.protocol_name}"
            if role == "follower":
                text += f" of {response.leader}"
            if response.skip_assignment:
                text += " skip-assignment"
            if response.members:
                text += " members " + " ".join(member.member_id for member in response.members)
            self.say(text)

        self.call(name, "join_group", request, version, show, options.get("client", "client"))

    def do_sync(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        fields = {"v", "generation", "id", "protocol", "type", "instance", "group"}
        version = int(options.get("v", 5))
        request = messages.SyncGroupRequest(
            group_id=options.get("group", "g"),
            generation_id=int(options.get("generation", self.generations.get(name, 0))),
            member_id=self.id_of(name, options),
            group_instance_id=options.get("instance"),
            protocol_type=none_of(options.get("type", "consumer")) if version >= 5 else None,
            protocol_name=none_of(options.get("protocol", "range")) if version >= 5 else None,
            assignments=[
                messages.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=self.ids.get(member, member), assignment=written(assignment)
                )
                for member, assignment in options.items()
                if member not in fields
            ],
        )

        def show(response: Any) -> None:
            if response.error_code:
                self.say(f"{name} {error(response)}")
            else:
                told = bytes(response.assignment)
                self.say(f"{name} assigned " + assigned(told))

        self.call(name, "sync_group", request, version, show)

    def do_heartbeat(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        request = messages.HeartbeatRequest(
            group_id=options.get("group", "g"),
            generation_id=int(options.get("generation", self.generations.get(name, 0))),
            member_id=self.id_of(name, options),
            group_instance_id=options.get("instance"),
        )
        self.call(name, "heartbeat", request, 4, lambda response: self.say(f"{name} {error(response)}"))

    def do_leave(self, words: list[str], options: dict[str, str]) -> None:
        version = int(options.get("v", 5))
        who = " ".join(words) or options.get("instance", "")
        request = messages.LeaveGroupRequest(group_id=options.get("group", "g"))
        if version < 3:
            request.member_id = self.ids.get(words[0], words[0])
        else:
            identity = messages.LeaveGroupRequest.MemberIdentity
            instance = options.get("instance")
            reason = options.get("reason", "").replace("_", " ")
            request.members = [
                identity(member_id=self.ids.get(name, name), group_instance_id=instance, reason=reason)
                for name in words
            ] or [identity(member_id="", group_instance_id=instance)]

        def show(response: Any) -> None:
            if response.error_code or version < 3:
                self.say(f"{who} left {error(response)}")
            for member in response.members:
                name = member.member_id or member.group_instance_id
                self.say(f"{name} left {error(member)}")

        self.call(who, "leave_group", request, version, show)

    def do_commit(self, words: list[str], options: dict[str, str]) -> None:
        name = words.pop(0) if "=" not in words[0] else ""
        version = int(options.get("v", 9))
        make = messages.OffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for word in words:
            key, offset = word.split("=")
            topic, _, index = key.rpartition("-")
            topics.setdefault(topic, []).append(
                make.OffsetCommitRequestPartition(
                    partition_index=int(index),
                    committed_offset=int(offset),
                    committed_metadata="x" * int(options.get("meta-bytes", 0)),
                )
            )
        generation = options.get("generation", self.generations.get(name, -1) if name else -1)
        request = make(
            group_id=options.get("group", "g"),
            generation_id_or_member_epoch=int(generation),
            member_id=self.id_of(name, options) if name else "",
            group_instance_id=options.get("instance"),
            topics=[make.OffsetCommitRequestTopic(name=topic, partitions=rows) for topic, rows in topics.items()],
        )

        def show(response: Any) -> None:
            rows = [
                f"{topic.name}-{partition.partition_index} {error(partition)}"
                for topic in response.topics
                for partition in topic.partitions
            ]
            self.say(f"{name or 'nobody'} commit " + ", ".join(rows))

        self.call(name or "nobody", "offset_commit", request, version, show)

    def do_pend(self, words: list[str], options: dict[str, str]) -> None:
        producer = words.pop(0)
        name = words.pop(0) if "=" not in words[0] else ""
        offsets = {}
        for word in words:
            key, offset = word.split("=")
            topic, _, index = key.rpartition("-")
            offsets[topic, int(index)] = int(offset)
        generation = options.get("generation", self.generations.get(name, -1) if name else -1)
        request = pending_commit(
            options.get("group", "g").replace("none", ""),
            int(producer),
            offsets,
            metadata="x" * int(options.get("meta-bytes", 0)),
            generation=int(generation),
            member_id=self.id_of(name, options) if name else "",
            instance=options.get("instance"),
        )

        def show(response: Any) -> None:
            rows = [
                f"{topic.name}-{partition.partition_index} {error(partition)}"
                for topic in response.topics
                for partition in topic.partitions
            ]
            self.say(f"producer {producer} " + ", ".join(rows))

        self.world.verified = ErrorCode[options.get("verified", "NONE")]
        self.call(f"producer {producer}", "txn_offset_commit", request, int(options.get("v", 5)), show)

    def do_end(self, words: list[str], options: dict[str, str]) -> None:
        producer, outcome = words
        reply = self.world.send_marker(int(producer), outcome == "commit")
        self.world.settle()
        if not reply.done:
            self.say(f"marker of producer {producer} waits")
        reply.then(lambda code: self.say(f"marker of producer {producer} {code.name if code else 'ok'}"))

    def do_fetch(self, words: list[str], options: dict[str, str]) -> None:
        stable = "stable" in words
        make = messages.OffsetFetchRequest
        topics: dict[str, list[int]] | None = {}
        for word in words:
            if word == "all":
                topics = None
            elif word != "stable" and topics is not None:
                topic, _, index = word.rpartition("-")
                topics.setdefault(topic, []).append(int(index))
        rows = (
            None
            if topics is None
            else [make.OffsetFetchRequestTopics(name=topic, partition_indexes=ids) for topic, ids in topics.items()]
        )
        group = make.OffsetFetchRequestGroup(
            group_id=options.get("group", "g"),
            member_id=options.get("member"),
            member_epoch=int(options.get("epoch", -1)),
            topics=rows,
        )

        def show(response: Any) -> None:
            (found,) = response.groups
            if found.error_code:
                self.say(f"fetch {error(found)}")
            rows = [
                f"{topic.name}-{partition.partition_index}="
                + (error(partition) if partition.error_code else str(partition.committed_offset))
                for topic in found.topics
                for partition in topic.partitions
            ]
            self.say("fetch " + " ".join(rows or ["nothing"]))

        self.call("fetch", "offset_fetch", make(groups=[group], require_stable=stable), int(options.get("v", 9)), show)

    def do_describe(self, words: list[str], options: dict[str, str]) -> None:
        def show(response: Any) -> None:
            (group,) = response.groups
            text = group.group_state + (f" {error(group)}" if group.error_code else "")
            if group.protocol_type:
                text += f" {group.protocol_type} {group.protocol_data}".rstrip()
            for member in group.members:
                instance = f"({member.group_instance_id})" if member.group_instance_id else ""
                assignment = bytes(member.member_assignment)
                text += f" | {member.member_id}{instance} {assigned(assignment) if assignment else ''}".rstrip()
                text += " with metadata" if member.member_metadata else ""
            self.say(text)

        group_id = options.get("group", "g")
        self.call("", "describe_groups", messages.DescribeGroupsRequest(groups=[group_id]), 6, show)

    def do_list(self, words: list[str], options: dict[str, str]) -> None:
        request = messages.ListGroupsRequest(
            states_filter=[options["state"].replace("_", " ")] if "state" in options else [],
            types_filter=[options["kind"]] if "kind" in options else [],
        )

        def show(response: Any) -> None:
            rows = [f"{group.group_id} {group.group_state} {group.group_type}" for group in response.groups]
            self.say(" ".join([error(response)] * bool(response.error_code)) + ("; ".join(rows) or "no groups"))

        self.call("", "list_groups", request, 5, show)

    def do_delete(self, words: list[str], options: dict[str, str]) -> None:
        def show(response: Any) -> None:
            for result in response.results:
                self.say(f"delete {result.group_id} {error(result)}")

        groups = options.get("group", "g").split(",")
        self.call("delete", "delete_groups", messages.DeleteGroupsRequest(groups_names=groups), 2, show)

    def do_forget(self, words: list[str], options: dict[str, str]) -> None:
        make = messages.OffsetDeleteRequest
        topics: dict[str, list[Any]] = {}
        for word in words:
            topic, _, index = word.rpartition("-")
            topics.setdefault(topic, []).append(make.OffsetDeleteRequestPartition(partition_index=int(index)))
        rows = [make.OffsetDeleteRequestTopic(name=topic, partitions=found) for topic, found in topics.items()]

        def show(response: Any) -> None:
            if response.error_code:
                self.say(f"forget {error(response)}")
            for topic in response.topics:
                for partition in topic.partitions:
                    self.say(f"forget {topic.name}-{partition.partition_index} {error(partition)}")

        group_id = options.get("group", "g")
        self.call("forget", "offset_delete", make(group_id=group_id, topics=rows), 0, show)

    def do_reset(self, words: list[str], options: dict[str, str]) -> None:
        offsets: dict[str, dict[int, CommittedOffset]] = {}
        for word in words:
            key, offset = word.split("=")
            topic, _, index = key.rpartition("-")
            offsets.setdefault(topic, {})[int(index)] = CommittedOffset(int(offset))

        asker = SimpleNamespace(client_id="admin", client_host="/127.0.0.1", principal="User:alice")

        async def on_the_loop() -> Any:
            return self.world.coordinator.live_resets.begin(options.get("group", "g"), offsets, asker)

        def show(outcome: Any) -> None:
            thrown = " ".join(member.member_id for member in outcome.members) or "nobody"
            self.say(f"reset {outcome.error.name.lower()} generation {outcome.generation} threw out {thrown}")

        reply = self.world.env.run(on_the_loop())
        if not isinstance(reply, Pending):
            self.say(f"reset {reply.name}")
            return
        reply.then(show)
        self.world.settle()
        if not reply.done:
            self.say("reset waits")

    def do_explain(self, words: list[str], options: dict[str, str]) -> None:
        events = self.world.coordinator.events.of_group(options.get("group", "g"))
        for one in explanation.rebalances(events) if "advice" not in words else ():
            said = [text for event in one.events if (text := explanation.sentence(event)) is not None]
            cause = f", because {one.cause}" if one.outcome == "assigned" else ""
            self.say(f"{one.from_generation} -> {one.generation} {one.outcome}{cause} | " + " | ".join(said))
            if one.join_ms is not None:
                last, leader = explanation.named(one.last_to_join), explanation.named(one.leader)
                self.say(f"  join {one.join_ms:.0f} ms, last {last}; sync {one.sync_ms or 0:.0f} ms, leader {leader}")
        for cause, text in explanation.advice(events):
            self.say(f"{cause}: {text}")

    def do_tick(self, words: list[str], options: dict[str, str]) -> None:
        self.world.clock.advance(int(words[0]))

    def do_hold(self, words: list[str], options: dict[str, str]) -> None:
        for log in self.world.logs:
            log.held = True

    def do_release(self, words: list[str], options: dict[str, str]) -> None:
        for log in self.world.logs:
            log.held = False
            log.release()

    def do_fail(self, words: list[str], options: dict[str, str]) -> None:
        self.world.logs[0].failures.append(ErrorCode[words[0]])

    def do_restart(self, words: list[str], options: dict[str, str]) -> None:
        self.world.restart()

    def do_unload(self, words: list[str], options: dict[str, str]) -> None:
        self.world.coordinator.unload(0)

    def do_set(self, words: list[str], options: dict[str, str]) -> None:
        value = words[1]
        setattr(self.world.config, words[0], int(value) if value.lstrip("-").isdecimal() else value)

    def do_gone(self, words: list[str], options: dict[str, str]) -> None:
        count = self.world.topics.partitions.pop(words[0])
        self.world.coordinator.on_partitions_deleted([(words[0], index) for index in range(count)])

    # ---- telling ----

    def call(self, who: str, method: str, request: Any, version: int, show: Any, client_id: str = "client") -> None:
        reply = self.world.call(method, request, version, client_id)
        if isinstance(reply, Pending):
            reply.then(show)
            self.world.settle()
            if not reply.done:
                self.say(f"{who} waits")
        else:
            show(reply)

    def id_of(self, name: str, options: dict[str, str]) -> str:
        if "id" in options:
            return "" if options["id"] == "none" else self.ids.get(options["id"], options["id"])
        return self.ids.get(name, "")

    def learn(self, name: str, member_id: str) -> None:
        self.ids[name] = member_id
        if member_id not in self.names:
            earlier = sum(1 for known in self.names.values() if known.split("'")[0] == name)
            self.names[member_id] = name if not earlier else f"{name}'{earlier + 1}"

    def say(self, text: str) -> None:
        self.output.append(text.rstrip())

    def show_records(self) -> None:
        records = [
            (header, record)
            for log in self.world.logs
            for _, batch in log.batches
            for header in (record_batch.read_header(batch),)
            for record in record_batch.records(memoryview(batch), max_bytes=1 << 30)
        ]
        for header, record in records[self.records_seen :]:
            producer = f" (producer {header.producer_id})" if header.is_transactional else ""
            if header.is_control:
                told = "commit" if (record.key or b"")[3] == CONTROL_COMMIT else "abort"
                self.say(f"log marker {told}{producer}")
            else:
                self.say("log " + self.show_record(record) + producer)
        self.records_seen = len(records)

    def show_record(self, record: record_batch.Record) -> str:
        key, value = record.key or b"", record.value
        if key_version(key) in CONSUMER_KEYS:
            return self.show_consumer_record(record)
        if key_version(key) == GROUP_KEY_VERSION:
            group = decode_group(key, value)
            if group.metadata is None:
                return f"group {group.group_id} gone"
            told = group.metadata
            text = f"group {group.group_id} generation {told.generation}"
            if told.members:
                text += f" {told.protocol} leader {told.leader or ''}"
            if live_reset_of(told) >= 0:
                text += f" reset in {live_reset_of(told)}"
            for member in told.members:
                assignment = assigned(bytes(member.assignment)) if member.assignment else ""
                text += f" | {member.member_id} {assignment}".rstrip()
            return text
        group_id, topic, partition = decode_key(key)
        if value is None:
            return f"offset {group_id} {topic}-{partition} gone"
        return f"offset {group_id} {topic}-{partition}={decode_value(value).offset}"


def written(assignment: str) -> bytes:
    """An assignment of a leader: `t:0,1` as consumers write it, another text as it is."""
    topic, colon, partitions = assignment.partition(":")
    if not colon:
        return assignment.encode()
    row = stored.ConsumerProtocolAssignment.TopicPartition(
        topic=topic, partitions=list(map(int, partitions.split(",")))
    )
    return stored.encode_versioned(stored.ConsumerProtocolAssignment(assigned_partitions=[row]), 1)


def assigned(told: bytes) -> str:
    """An assignment, as the leader wrote it, or as the broker makes one for a consumer group (KIP-848)."""
    if told == EMPTY_ASSIGNMENT:
        return "empty"
    if not told.startswith(b"\x00"):
        return told.decode() or "nothing"
    rows = stored.decode_versioned(stored.ConsumerProtocolAssignment, told)[1].assigned_partitions
    return " ".join(f"{row.topic}:{','.join(map(str, row.partitions))}" for row in rows) or "no partition"


def error(carrier: Any) -> str:
    """The name of an error code, `ok` for none."""
    return "ok" if not carrier.error_code else ErrorCode(carrier.error_code).name


def none_of(text: str) -> str | None:
    """`null` is null."""
    return None if text == "null" else text


def play(text: str) -> str:
    """The same text, with the effects of each command below it."""
    conversation = Conversation()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"> {said}" for said in conversation.run(line)]
    return "\n".join(lines) + "\n"


def scenario_files() -> list[Path]:
    """Every conversation."""
    return sorted((Path(__file__).parent / "groups").glob("*.txt"))
