"""Random steps of consumer groups (KIP-848), told to an Apache Kafka and to a broker in memory at the same time.

    python tests/replay/consumer_groups.py --bootstrap 127.0.0.1:9092 --steps 5000 --seed 1
    python tests/replay/consumer_groups.py --bootstrap 127.0.0.1:9092 --steps 400 --regexes

Run it by hand: it needs an Apache Kafka 4.3.1, alone and with these lines in its server.properties:

    group.consumer.min.assignment.interval.ms=0
    group.consumer.assignment.interval.ms=0
    group.consumer.max.session.timeout.ms=7200000
    group.consumer.session.timeout.ms=3600000
    group.consumer.max.heartbeat.interval.ms=7200000
    group.consumer.migration.policy=bidirectional
    group.max.session.timeout.ms=7200000
    group.initial.rebalance.delay.ms=0
    offsets.topic.num.partitions=1

After each step both are asked what the group is now. Topics have the ids, and classic members the ids, that Kafka has
chosen, because assignments depend on them. What is known to differ (docs/differences.md) is not done here, or waited for:
expressions mean new topics to Kafka only after ten seconds, so `--regexes` waits. A group in which there was a
difference is left alone, and another one begun. Exit code 1 when there was a difference.
"""

import argparse
import asyncio
import base64
import contextlib
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the simulator

from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol import records as kept
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.message import Struct
from replay import Connection
from simulator.clock import SimClock
from simulator.disk import SimDisk
from simulator.env import SimEnv
from simulator.network import SimNetwork

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "coordination.path": ":memory:",
    "node.id": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": "7200000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.consumer.max.heartbeat.interval.ms": "7200000",
    "group.consumer.migration.policy": "bidirectional",
    "group.max.session.timeout.ms": "7200000",
    "offsets.topic.num.partitions": "1",
}
SESSION_MS = 3_600_000
TOPIC_NAMES = [f"{kind}-{number}" for kind in ("apple", "pear") for number in range(4)]
EXPRESSIONS = ["apple.*", "pear-[01]", ".*-3", "apple-(0|2)", "plum.*", "(bad"]
MEMBERS_MAX = 7
STEPS_OF_A_GROUP = 60
REFRESH_SECONDS = 10.2  # how often Kafka looks again at what expressions mean, and a little more
PAUSE_SECONDS = 0.1  # until Kafka's coordinator has heard of a topic of which its metadata tell
UNCOMPARED = {"throttle_time_ms", "client_host", "heartbeat_interval_ms"}
NO_ID = bytes(16)


# ---- the two brokers ----


class Apache:
    """Apache Kafka. A connection for each name."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._connections: dict[str, Connection] = {}
        self._asked: dict[str, tuple[ApiKey, int]] = {}

    def send(self, name: str, key: ApiKey, version: int, message: Any) -> None:
        """Send a request."""
        if name not in self._connections:
            self._connections[name] = Connection(*self._address)
        self._asked[name] = key, version
        self._connections[name].send(bytes(frames.encode_request(key, version, 6, "steps", message))[4:])

    def receive(self, name: str) -> Any:
        """The answer to the last request."""
        answer = self._connections[name].receive()
        assert not isinstance(answer, str), (self._asked[name], answer)
        return frames.decode_response(*self._asked[name], memoryview(answer))[1]


class Chosen(random.Random):
    """Gives the uuids that Kafka has chosen, where there are any."""

    uuids: list[bytes]

    def randbytes(self, n: int) -> bytes:
        """Random bytes."""
        return self.uuids.pop(0) if n == 16 and self.uuids else super().randbytes(n)


class Client(asyncio.Protocol):
    """A connection in the simulated network."""

    def __init__(self) -> None:
        self.data = b""
        self.news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """A part of an answer."""
        self.data += data
        self.news.set()

    async def answer(self) -> bytes:
        """The next frame, without its size."""
        while len(self.data) < 4 or len(self.data) < 4 + struct.unpack_from(">i", self.data)[0]:
            self.news.clear()
            await self.news.wait()
        (size,) = struct.unpack_from(">i", self.data)
        frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
        return frame


class Ours:
    """A broker of this repository in memory and in virtual time."""

    def __init__(self) -> None:
        clock = SimClock()
        self.chosen = Chosen(7)
        self.chosen.uuids = []
        self._env = SimEnv(clock, SimDisk(clock, random.Random(7)), SimNetwork(clock), self.chosen)
        self._broker = Broker(self._env, BrokerConfig.of(SETTINGS), "/data", None)
        self._env.run(self._broker.start())
        self._clients: dict[str, Client] = {}
        self._asked: dict[str, tuple[ApiKey, int]] = {}

    def send(self, name: str, key: ApiKey, version: int, message: Any) -> None:
        """Send a request, and let it arrive."""
        self._asked[name] = key, version
        self._env.run(self._send(name, frames.encode_request(key, version, 6, "steps", message)))

    async def _send(self, name: str, frame: bytes) -> None:
        if name not in self._clients:
            client = (await self._env.network.connect("127.0.0.1", 9092, Client))[1]
            assert isinstance(client, Client)
            self._clients[name] = client
        self._clients[name].transport.write(frame)
        await self._env.clock.sleep(20)

    def receive(self, name: str) -> Any:
        """The answer to the last request."""
        answer = self._env.run(self._clients[name].answer())
        return frames.decode_response(*self._asked[name], memoryview(answer))[1]

    def stop(self) -> None:
        """Stop the broker."""
        self._env.run(self._broker.stop())


# ---- comparison ----


def plain(value: Any) -> Any:
    """An answer as values that can be compared: lists in one order, without what each broker chooses."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value._FIELDS if name not in UNCOMPARED}
    if isinstance(value, list):
        return sorted((plain(each) for each in value), key=repr)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def differing(path: str, kafka: Any, ours: Any) -> Iterator[str]:
    """Where two answers differ."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in kafka:
            yield from differing(f"{path}.{name}", kafka[name], ours.get(name))
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for number, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            yield from differing(f"{path}[{number}]", one, other)
    elif kafka != ours:
        yield f"{path}: Kafka {kafka!r}, ours {ours!r}"


class Differs(Exception):
    """The brokers have answered differently."""


class Pair:
    """Both brokers."""

    def __init__(self, address: str) -> None:
        self.kafka, self.ours = Apache(address), Ours()

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Ask both the same; returns Kafka's answer."""
        return self.ask_together({"one": (key, version, message)})["one"]

    def ask_together(self, requests: dict[str, tuple[ApiKey, int, Any]]) -> dict[str, Any]:
        """Send requests on a connection each, one after the other, then take the answers."""
        for name, request in requests.items():
            self.kafka.send(name, *request)
            if len(requests) > 1:
                time.sleep(PAUSE_SECONDS)
        answers = {name: self.kafka.receive(name) for name in requests}
        for name, request in requests.items():
            self._choose(answers[name], request[2])
            self.ours.send(name, *request)
        found = []
        for name in requests:
            found += differing("", plain(answers[name]), plain(self.ours.receive(name)))
        self.ours.chosen.uuids.clear()
        if found:
            raise Differs("\n".join(found))
        return answers

    def _choose(self, answer: Any, request: Any) -> None:
        """A new member gets from us the id that Kafka gives it."""
        member_id = getattr(answer, "member_id", "")
        if not member_id or getattr(request, "member_id", None) != "":
            return
        with contextlib.suppress(ValueError):
            text = member_id[-36:]
            is_plain = len(member_id) > 22
            self.ours.chosen.uuids = [
                bytes.fromhex(text.replace("-", "")) if is_plain else base64.urlsafe_b64decode(member_id + "==")
            ]


# ---- topics ----


class Topics:
    """The topics of both brokers, with the same ids."""

    def __init__(self, pair: Pair, rng: random.Random) -> None:
        self._pair, self._rng = pair, rng
        self.ids: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.changes = 0

    def clear(self) -> None:
        """Delete those of a run before this one."""
        make = messages.DeleteTopicsRequest
        rows = [make.DeleteTopicState(name=name) for name in TOPIC_NAMES]
        self._pair.kafka.send("one", ApiKey.DELETE_TOPICS, 6, make(topics=rows, timeout_ms=9000))
        self._pair.kafka.receive("one")
        for name in TOPIC_NAMES:
            self._wait(name, 0)

    def change(self) -> str:
        """Make, delete, or extend a topic; returns what was done."""
        name = self._rng.choice(TOPIC_NAMES)
        self.changes += 1
        if name not in self.ids:
            return self._create(name, self._rng.randint(1, 5))
        if self._rng.random() < 0.5 or self.counts[name] > 8:
            return self._delete(name)
        return self._extend(name, self.counts[name] + self._rng.randint(1, 3))

    def _create(self, name: str, count: int) -> str:
        make = messages.CreateTopicsRequest
        row = make.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        request = make(topics=[row], timeout_ms=9000)
        self._pair.kafka.send("one", ApiKey.CREATE_TOPICS, 7, request)
        (made,) = self._pair.kafka.receive("one").topics
        assert not made.error_code, made
        self._pair.ours.chosen.uuids = [made.topic_id]
        self._pair.ours.send("one", ApiKey.CREATE_TOPICS, 7, request)
        (ours,) = self._pair.ours.receive("one").topics
        assert ours.topic_id == made.topic_id, (ours, made)
        self.ids[name], self.counts[name] = made.topic_id, count
        self._wait(name, count)
        return f"topic {name} is made with {count} partitions"

    def _delete(self, name: str) -> str:
        make = messages.DeleteTopicsRequest
        request = make(topics=[make.DeleteTopicState(name=name)], timeout_ms=9000)
        for broker in (self._pair.kafka, self._pair.ours):
            broker.send("one", ApiKey.DELETE_TOPICS, 6, request)
            assert not broker.receive("one").responses[0].error_code
        del self.ids[name], self.counts[name]
        self._wait(name, 0)
        return f"topic {name} is deleted"

    def _extend(self, name: str, count: int) -> str:
        make = messages.CreatePartitionsRequest
        request = make(topics=[make.CreatePartitionsTopic(name=name, count=count, assignments=None)], timeout_ms=9000)
        for broker in (self._pair.kafka, self._pair.ours):
            broker.send("one", ApiKey.CREATE_PARTITIONS, 3, request)
            assert not broker.receive("one").results[0].error_code
        self.counts[name] = count
        self._wait(name, count)
        return f"topic {name} has {count} partitions"

    def _wait(self, name: str, count: int) -> None:
        make = messages.MetadataRequest
        request = make(topics=[make.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        for broker in (self._pair.kafka, self._pair.ours):
            while True:
                broker.send("one", ApiKey.METADATA, 12, request)
                (topic,) = broker.receive("one").topics
                if len(topic.partitions) == count and all(row.leader_id == 1 for row in topic.partitions):
                    break
                time.sleep(0.02)
        time.sleep(PAUSE_SECONDS)


# ---- a group ----


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


class Group:
    """One group, and its members."""

    def __init__(self, name: str, pair: Pair, topics: Topics, rng: random.Random, *, with_regexes: bool) -> None:
        self.name, self._pair, self._topics, self._rng = name, pair, topics, rng
        self._with_regexes = with_regexes
        self._with_classic = rng.random() < 0.5
        self._is_mixed = rng.random() < 0.6  # members read different topics
        self.members: list[Member] = []
        self.story: list[str] = []
        self.made = 0
        self.kinds: Counter[str] = Counter()
        self.seen_changes = -1
        self.refreshed = 0.0
        self.settled = False

    # -- what a member may do

    def step(self) -> None:
        """Do something, then ask what the group is now. Differs."""
        consumers = [member for member in self.members if not member.is_classic]
        classics = [member for member in self.members if member.is_classic]
        deeds: list[tuple[float, Callable[[], str]]] = [(1.5 if len(self.members) < MEMBERS_MAX else 0.0, self._join)]
        if consumers:
            member = self._rng.choice(consumers)
            deeds += [
                (9, lambda: self._beat(member)),
                (1, lambda: self._change(member)),
                (0.5, lambda: self._wrong_epoch(member)),
                (0.6, lambda: self._leave(member)),
                (0.4, lambda: self._join_again(member)),
                (0.8, lambda: self._commit(member)),
                (0.4, lambda: self._fetch(member)),
            ]
            if member.instance_id is not None:
                deeds.append((2, lambda: self._go_and_come(member)))
        if self._with_classic and len(self.members) < MEMBERS_MAX:
            deeds.append((0.8, self._join_classic))
        if classics:
            old = self._rng.choice(classics)
            deeds += [
                (5, lambda: self._beat_classic(old)),
                (0.5, lambda: self._leave_classic(old)),
                (0.3, lambda: self._commit(old)),
            ]
        deeds.append((0.2, self._others))
        (deed,) = self._rng.choices([each for _, each in deeds], [weight for weight, _ in deeds])
        self.kinds[deed.__name__] += 1
        self.story.append(deed())
        self.look()

    def look(self) -> None:
        """Ask both what the group is."""
        make = messages.ConsumerGroupDescribeRequest
        answer = self._pair.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, make(group_ids=[self.name]))
        if answer.groups[0].error_code:
            make_classic = messages.DescribeGroupsRequest
            self._pair.ask(ApiKey.DESCRIBE_GROUPS, 5, make_classic(groups=[self.name]))

    def _topics_to_read(self) -> list[str]:
        if not self._is_mixed:
            return TOPIC_NAMES[:4]
        return sorted(self._rng.sample(TOPIC_NAMES, self._rng.randint(0 if self._with_regexes else 1, 4)))

    def _heartbeat(self, member: Member, **fields: Any) -> Any:
        if self._with_regexes:
            self._wait_for_refresh(fields)
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.name,
            member_id=member.member_id,
            **{"member_epoch": member.epoch, "instance_id": member.instance_id, **fields},
        )
        self.story.append(f"    {_told(request)}")
        answer = self._pair.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if self._with_regexes:
            time.sleep(0.05)
        if not answer.error_code and answer.member_epoch >= 0:
            member.epoch = answer.member_epoch
            if answer.assignment is not None:
                member.before = member.assignment
                member.assignment = {
                    row.topic_id: frozenset(row.partitions) for row in answer.assignment.topic_partitions
                }
        return answer

    def _wait_for_refresh(self, fields: dict[str, Any]) -> None:
        """Kafka resolves expressions not more often than each ten seconds; we do it at once."""
        if fields.get("subscribed_topic_regex") or self.seen_changes != self._topics.changes or not self.settled:
            time.sleep(max(self.refreshed + REFRESH_SECONDS - time.monotonic(), 0))
            self.refreshed = time.monotonic()
            self.settled = self.seen_changes == self._topics.changes
            self.seen_changes = self._topics.changes

    def _owned(self, owned: dict[bytes, frozenset[int]]) -> list[Any]:
        make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
        return [make(topic_id=topic_id, partitions=sorted(parts)) for topic_id, parts in sorted(owned.items())]

    def _saying(self, member: Member) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rebalance_timeout_ms": 300_000,
            "topic_partitions": [],
            "subscribed_topic_names": member.names,
        }
        if member.regex:
            fields["subscribed_topic_regex"] = member.regex
        if self._rng.random() < 0.3:
            fields["server_assignor"] = self._rng.choice(("uniform", "range", "range", "sticky"))
        return fields

    def _join(self) -> str:
        self.made += 1
        member = Member(f"{self.name}-m{self.made}", names=self._topics_to_read())
        if self._with_regexes and self._rng.random() < 0.6:
            member.regex = self._rng.choice(EXPRESSIONS)
        if self._rng.random() < 0.3:
            member.instance_id = f"i{self._rng.randint(1, 3)}"
        version = ApiKey.CONSUMER_GROUP_HEARTBEAT
        assert version
        answer = self._heartbeat(member, **self._saying(member))
        if not answer.error_code:
            if member.instance_id is not None:  # it may have taken the place of one that was away
                self.members = [each for each in self.members if each.instance_id != member.instance_id]
            self.members.append(member)
        return f"{member.member_id} joins: {_error(answer)}"

    def _beat(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        draw = self._rng.random()
        fields: dict[str, Any] = {}
        if draw < 0.6:
            fields["topic_partitions"] = self._owned(member.assignment)
        elif draw < 0.7:
            fields["topic_partitions"] = self._owned({**member.before, **member.assignment})
        elif draw < 0.75:
            fields["topic_partitions"] = []
        elif draw < 0.8:
            fields = {**self._saying(member), "topic_partitions": self._owned(member.assignment)}
        answer = self._heartbeat(member, **fields)
        if answer.error_code in (25, 110):  # UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH
            self.members.remove(member)
        return f"{member.member_id} beats: {_error(answer)}"

    def _change(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        fields: dict[str, Any] = {}
        names, regex = self._topics_to_read(), member.regex
        if self._rng.random() < 0.7:
            fields["subscribed_topic_names"] = names
        if self._with_regexes and self._rng.random() < 0.5:
            fields["subscribed_topic_regex"] = regex = self._rng.choice([*EXPRESSIONS, ""])
        if self._rng.random() < 0.3:
            fields["server_assignor"] = self._rng.choice(("uniform", "range"))
        if self._rng.random() < 0.3:
            fields["topic_partitions"] = self._owned(member.assignment)
        if self._rng.random() < 0.2:
            fields["rack_id"] = self._rng.choice("ab")
        answer = self._heartbeat(member, **fields)
        if not answer.error_code:
            member.names, member.regex = fields.get("subscribed_topic_names", member.names), regex
        return f"{member.member_id} says more: {_error(answer)}"

    def _wrong_epoch(self, member: Member) -> str:
        epoch = self._rng.choice((member.epoch - 1, member.epoch + 1, 1, -3, 99))
        copy = Member(member.member_id, member.instance_id)
        fields: dict[str, Any] = {"member_epoch": epoch}
        if self._rng.random() < 0.7:
            fields["topic_partitions"] = self._owned(
                self._rng.choice((member.assignment, member.before, dict[bytes, frozenset[int]]()))
            )
        if epoch in (0, -1, -2):
            return "nothing"
        if self._rng.random() < 0.2:
            copy.instance_id = self._rng.choice(("i1", "i9", None))
        answer = self._heartbeat(copy, **fields)
        if not answer.error_code:
            member.epoch, member.assignment = copy.epoch, copy.assignment or member.assignment
        return f"{member.member_id} with epoch {epoch}: {_error(answer)}"

    def _leave(self, member: Member) -> str:
        answer = self._heartbeat(member, member_epoch=-1)
        if not answer.error_code:
            self.members.remove(member)
        return f"{member.member_id} leaves: {_error(answer)}"

    def _join_again(self, member: Member) -> str:
        answer = self._heartbeat(member, **{**self._saying(member), "member_epoch": 0})
        member.is_away = member.is_away and bool(answer.error_code)
        return f"{member.member_id} joins again: {_error(answer)}"

    def _go_and_come(self, member: Member) -> str:
        if member.is_away:
            return self._come(member)
        answer = self._heartbeat(member, member_epoch=-2)
        member.is_away = not answer.error_code
        return f"{member.member_id} leaves for a while: {_error(answer)}"

    def _come(self, member: Member) -> str:
        self.made += 1
        back = Member(f"{self.name}-m{self.made}", member.instance_id, names=member.names, regex=member.regex)
        if self._rng.random() < 0.3:
            back.names = self._topics_to_read()
        answer = self._heartbeat(back, **self._saying(back))
        if not answer.error_code:
            self.members[self.members.index(member)] = back
        return f"{back.member_id} is back for {member.member_id}: {_error(answer)}"

    # -- offsets

    def _commit(self, member: Member) -> str:
        version = self._rng.choice((9, 10, 8)) if not member.is_classic else 9
        epoch = member.epoch + self._rng.choice((0, 0, 0, -1, -2, 1))
        make = messages.OffsetCommitRequest
        names = self._rng.sample(sorted(self._topics.ids), min(2, len(self._topics.ids)))
        request = make(
            group_id=self.name,
            member_id=self._rng.choice((member.member_id, member.member_id, member.member_id, "nobody", "")),
            generation_id_or_member_epoch=self._rng.choice((epoch, epoch, epoch, -1)),
            group_instance_id=member.instance_id,
            topics=[
                make.OffsetCommitRequestTopic(
                    name=name if version < 10 else "",
                    topic_id=NO_ID if version < 10 else self._topics.ids[name],
                    partitions=[
                        make.OffsetCommitRequestPartition(
                            partition_index=self._rng.randrange(self._topics.counts[name]),
                            committed_offset=self._rng.randrange(100),
                        )
                    ],
                )
                for name in names
            ],
        )
        answer = self._pair.ask(ApiKey.OFFSET_COMMIT, version, request)
        return f"{_told(request)} version {version}: {[row.partitions[0].error_code for row in answer.topics]}"

    def _fetch(self, member: Member) -> str:
        make = messages.OffsetFetchRequest
        epoch = self._rng.choice((member.epoch, member.epoch, member.epoch - 1, member.epoch + 1, -1))
        row = make.OffsetFetchRequestGroup(
            group_id=self.name,
            member_id=self._rng.choice((member.member_id, member.member_id, "nobody", None)),
            member_epoch=epoch,
            topics=None,
        )
        answer = self._pair.ask(ApiKey.OFFSET_FETCH, 9, make(groups=[row]))
        return f"{_told(row)}: {answer.groups[0].error_code}"

    def _others(self) -> str:
        """What tools do."""
        draw = self._rng.randrange(4)
        if draw == 0:
            make = messages.ListGroupsRequest
            answer = self._pair.kafka, self._pair.ours
            found = []
            for broker in answer:
                broker.send("one", ApiKey.LIST_GROUPS, 5, make(states_filter=[], types_filter=[]))
                rows = broker.receive("one").groups
                found.append(plain([row for row in rows if row.group_id == self.name]))
            differences = list(differing("", *found))
            if differences:
                raise Differs("\n".join(differences))
            return f"is listed as {found[0]}"
        if draw == 1:
            delete = messages.DeleteGroupsRequest
            gone = self._pair.ask(ApiKey.DELETE_GROUPS, 2, delete(groups_names=[self.name]))
            return f"is deleted: {gone.results[0].error_code}"
        if draw == 2 and self._topics.ids:
            make_offsets = messages.OffsetDeleteRequest
            name = self._rng.choice(sorted(self._topics.ids))
            rows = [make_offsets.OffsetDeleteRequestPartition(partition_index=0)]
            topic = make_offsets.OffsetDeleteRequestTopic(name=name, partitions=rows)
            self._pair.ask(ApiKey.OFFSET_DELETE, 0, make_offsets(group_id=self.name, topics=[topic]))
            return f"offsets of {name} are deleted"
        describe = messages.DescribeGroupsRequest
        self._pair.ask(ApiKey.DESCRIBE_GROUPS, 6, describe(groups=[self.name]))
        return "is described"

    # -- members of the classic protocol

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

    def _join_classic(self) -> str:
        """A classic member joins; in a classic group all others join again with it."""
        member = Member("", is_classic=True, names=self._topics_to_read())
        member.protocols = self._rng.choice((["range"], ["cooperative-sticky", "range"], ["range", "roundrobin"]))
        if self._rng.random() < 0.2:
            member.instance_id = f"i{self._rng.randint(1, 3)}"
        else:
            answer = self._pair.ask(ApiKey.JOIN_GROUP, 9, self._joining(member))
            if answer.error_code != 79:  # MEMBER_ID_REQUIRED
                return f"a classic member is refused: {answer.error_code}"
            member.member_id = answer.member_id
        if any(not each.is_classic for each in self.members):
            return self._join_alone(member)
        if member.instance_id is not None and any(each.instance_id == member.instance_id for each in self.members):
            return "nothing: this would be a static member that comes back"
        self.members.append(member)
        return self._join_together()

    def _join_alone(self, member: Member) -> str:
        answer = self._pair.ask(ApiKey.JOIN_GROUP, 9, self._joining(member))
        if answer.error_code:
            if member in self.members and answer.error_code in (25, 82):
                self.members.remove(member)
            return f"classic {member.member_id} joins: {answer.error_code}"
        member.member_id, member.epoch = answer.member_id, answer.generation_id
        if member not in self.members:
            self.members = [
                each for each in self.members if each.instance_id is None or each.instance_id != member.instance_id
            ]
            self.members.append(member)
        self._sync_alone(member)
        return f"classic {member.member_id} {member.instance_id} joins {member.names} {member.protocols}: {member.epoch}"

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
        for member, answer in zip(self.members, self._pair.ask_together(synced).values(), strict=True):
            self._take(member, answer.assignment)
        return f"{len(self.members)} classic members join and sync: {[member.epoch for member in self.members]}"

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


def _error(answer: Any) -> str:
    return f"epoch {answer.member_epoch}" if not answer.error_code else f"error {answer.error_code}"


def _told(request: Any) -> str:
    values = {name: plain(getattr(request, name)) for name in request._FIELDS}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in (None, -1) and name != "rack")


# ---- the run ----


def run(options: argparse.Namespace) -> int:
    """Do the steps; returns in how many groups there was a difference."""
    rng = random.Random(options.seed)
    pair = Pair(options.bootstrap)
    topics = Topics(pair, rng)
    find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
    for broker in (pair.kafka, pair.ours):
        broker.send("one", ApiKey.FIND_COORDINATOR, 4, find)
        while broker.receive("one").coordinators[0].error_code:
            time.sleep(1)
            broker.send("one", ApiKey.FIND_COORDINATOR, 4, find)
    time.sleep(2)
    topics.clear()
    for _ in range(6):
        topics.change()
    groups: list[Group] = []
    begun = differences = 0
    kinds: Counter[str] = Counter()
    run_name = f"{int(time.time()) % 1_000_000:x}"
    for number in range(options.steps):
        if rng.random() < (0.03 if not options.regexes else 0.01):
            done = topics.change()
            for group in groups:
                group.story.append(done)
        if len(groups) < options.groups:
            begun += 1
            name = f"{run_name}-{options.seed}-{begun}"
            groups.append(Group(name, pair, topics, rng, with_regexes=options.regexes))
        group = groups[number % len(groups)]
        is_over = len(group.story) > STEPS_OF_A_GROUP * 2
        try:
            group.step()
        except Differs as error:
            differences += 1
            is_over = True
            print(f"\n==== {group.name}, step {number}", *group.story[-options.show :], error, sep="\n", flush=True)
        if is_over:
            kinds += group.kinds
            groups.remove(group)
        if number % 500 == 499:
            print(f"{number + 1} steps, {begun} groups, {differences} differences", flush=True)
    print(dict(kinds))
    pair.ours.stop()
    return differences


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="an Apache Kafka 4.3.1")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1, help="at a time")
    parser.add_argument("--regexes", action="store_true", help="members with regular expressions, which takes long")
    parser.add_argument("--show", type=int, default=12, metavar="LINES", help="of the story before a difference")
    options = parser.parse_args()
    return min(run(options), 1)


if __name__ == "__main__":
    sys.exit(main())
