"""An Apache Kafka and a broker in memory, which are asked the same (consumer_groups.py)."""

import asyncio
import base64
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the simulator

from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol import records as kept
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
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
PAUSE_SECONDS = 0.3  # until a request has begun
TOPICS_SECONDS = 1.0  # until Kafka's coordinator has heard of a topic of which its metadata tell
UNCOMPARED = {"throttle_time_ms", "client_host", "heartbeat_interval_ms"}
NO_ID = bytes(16)
LEADER: dict[str, Any] = {"leader": "", "members": [], "skip_assignment": False}
DASH = 62  # in base64: no id of ours begins with it


# ---- the two brokers ----


class Differs(Exception):
    """The brokers have answered differently."""


class Unlucky(Exception):
    """Kafka has chosen an id that we would not choose, or another leader of a group that is a classic one now."""


class Apache:
    """Apache Kafka. A connection for each name."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._connections: dict[str, Connection] = {}
        self._asked: dict[str, tuple[ApiKey, int]] = {}

    def reset(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

    def send(self, name: str, key: ApiKey, version: int, message: Any) -> None:
        """Send a request."""
        if name not in self._connections:
            self._connections[name] = Connection(*self._address)
        self._asked[name] = key, version
        self._connections[name].send(bytes(frames.encode_request(key, version, 6, "steps", message))[4:])

    def receive(self, name: str) -> Any:
        """The answer to the last request."""
        answer = self._connections[name].receive()
        if isinstance(answer, str):
            raise Differs(f"Kafka: {self._asked[name]}: {answer}")
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

    def reset(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.transport.close()
        self._clients = {}
        self.chosen.uuids.clear()

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
        found = {name: plain(getattr(value, name)) for name in value._FIELDS if name not in UNCOMPARED}
        if found.get("error_code") == ErrorCode.INVALID_REGULAR_EXPRESSION:
            del found["error_message"]  # each has words of its own
        if found.get("group_state") == "PreparingRebalance":
            for member in found.get(
                "members", []
            ):  # after a downgrade: with Kafka what it should have, here what it has
                del member["member_assignment"]
        for name in ("assignment", "member_assignment"):
            if isinstance(getattr(value, name, None), bytes | memoryview) and len(getattr(value, name)) > 2:
                data = bytes(getattr(value, name))
                found[name] = plain(
                    kept.decode_versioned(kept.ConsumerProtocolAssignment, data, newer_as_latest=True)[1]
                )
        return found
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
        try:
            answers = {name: self.kafka.receive(name) for name in requests}
            for name, request in requests.items():
                self._choose(answers[name], request[2])
                self.ours.send(name, *request)
            both = [(plain(answers[name]), plain(self.ours.receive(name))) for name in requests]
        except (Differs, Unlucky):
            self.kafka.reset()  # there may be answers on their way that nobody waits for
            self.ours.reset()
            raise
        self.ours.chosen.uuids.clear()
        different = [(kafka, ours) for kafka, ours in both if kafka != ours]
        if different and all(kafka | LEADER == ours | LEADER for kafka, ours in different):
            raise Unlucky
        if different:
            texts = [[*differing("", *pair), f"Kafka {pair[0]}", f"ours  {pair[1]}"] for pair in different]
            raise Differs("\n".join(text for each in texts for text in each))
        return answers

    def ask_each(self, key: ApiKey, version: int, requests: list[Any]) -> list[Any]:
        """Ask each a request of its own, Kafka first; returns the answers, which are not compared."""
        for broker, request in zip((self.kafka, self.ours), requests, strict=True):
            broker.send("one", key, version, request)
        try:
            return [broker.receive("one") for broker in (self.kafka, self.ours)]
        except Differs:
            self.kafka.reset()
            self.ours.reset()
            raise

    def _choose(self, answer: Any, request: Any) -> None:
        """A new member gets from us the id that Kafka gives it."""
        member_id = getattr(answer, "member_id", "")
        if not member_id or getattr(request, "member_id", None) != "":
            return
        if len(member_id) > 22:
            uuid = bytes.fromhex(member_id[-36:].replace("-", ""))
        else:
            uuid = base64.urlsafe_b64decode(member_id + "==")
        if uuid[0] >> 2 == DASH:
            raise Unlucky
        self.ours.chosen.uuids = [uuid]


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
        time.sleep(TOPICS_SECONDS)
