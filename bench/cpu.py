"""Processor time of one request inside the broker, without sockets: `python -m bench cpu [NAME...] [--count]`.

A whole broker runs in this process, and its connections get a transport without a socket. Other processes on the
machine disturb the figures little, so compare them before and after a change. `--profile` prints where the time goes.
`--count` counts the bytecodes of Python instead, which nothing disturbs: one run before and one after a change will do.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from types import FrameType
from typing import Any

import uvloop
from barnabas.broker.broker import Broker
from barnabas.broker.connection import Connection
from barnabas.cli.start import collect_seldom
from barnabas.cluster.security.acls import CLUSTER_NAME, Acl, AclOperation, Permission, Resource, ResourceType
from barnabas.config.broker import AUTHORIZERS, BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

from bench.consumer_members import Member
from bench.loads import batch, commit_frame, fetch_frame, offset_fetch_frame, produce_frame
from bench.transactional import Producer, Template, Versions, large_requests

ROUNDS = 20
COUNTED_ROUNDS, COUNTED_STEPS = 5, 20
ROUND_SECONDS = 0.1  # short, so that other processes do not disturb all rounds


class Transport:
    """Takes the bytes that the broker sends, and counts the frames. Bytes sent from a file go to /dev/null."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._nowhere = os.open(os.devnull, os.O_WRONLY)

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self, "sslcontext": None}.get(name, ("127.0.0.1", 9092))

    def fileno(self) -> int:
        return self._nowhere

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: Any) -> None:
        self.sent.append(data)

    def close(self) -> None:
        pass


Step = Callable[[], tuple[int, Transport]]  # feeds requests; how many, and the transport of their answers


class Client:
    """One connection to the broker in this process."""

    def __init__(self, broker: Broker, transport: Transport | None = None) -> None:
        self.transport = transport or Transport()
        self.connection = Connection(broker.server, "PLAINTEXT")
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def feed(self, frame: bytes) -> None:
        memoryview(self.connection.get_buffer(-1))[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))

    async def ask(self, api_key: ApiKey, version: int, request: Any) -> Any:
        self.transport.sent.clear()
        self.feed(frames.encode_request(api_key, version, 1, "bench", request))
        while not self.transport.sent:
            await asyncio.sleep(0.001)
        return frames.decode_response(api_key, version, b"".join(self.transport.sent)[4:])[1]


async def make_rules(broker: Broker, count: int) -> None:
    """So many access rules, and one each that lets everybody do everything."""
    assert broker.authorizer is not None
    allow, everything = Permission.ALLOW, AclOperation.ALL
    rules = [
        Acl(Resource(ResourceType.TOPIC, f"other-{index}"), f"User:{index}", "*", AclOperation.READ, allow)
        for index in range(count)
    ]
    types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    rules += [Acl(Resource(type, "*"), "User:*", "*", everything, allow) for type in types]
    rules.append(Acl(Resource(ResourceType.CLUSTER, CLUSTER_NAME), "User:*", "*", everything, allow))
    await broker.authorizer.add(rules)


async def run(names: Sequence[str], profile: bool, count: bool, rules: int = 0) -> None:
    """Measure the named requests, or all. `rules`: with an authorizer and so many access rules."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
        # Without the journal, to compare with what was before it. `bench journal` measures it.
        authorizer = {"authorizer.class.name": AUTHORIZERS[1]} if rules else {}
        config = BrokerConfig.of(settings | authorizer | {"offsets.journal.enable": "false"})
        broker = Broker(real(), config, folder)
        await broker.start()
        if rules:
            await make_rules(broker, rules)
        client = Client(broker)
        for topic, partitions in (("bench", 50), ("log", 1), ("poll", 1), ("empty", 1)):
            creatable = messages.CreateTopicsRequest.CreatableTopic
            topics = [creatable(name=topic, num_partitions=partitions, replication_factor=1)]
            request = messages.CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            await client.ask(ApiKey.CREATE_TOPICS, 4, request)
        while (await client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))).error_code:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        for _ in range(500):
            client.feed(produce_frame("log", 0, batch([bytes(1024)] * 15)))
        collect_seldom()
        for name in names or [*REQUESTS, *PREPARED]:
            step = REQUESTS[name](broker) if name in REQUESTS else await PREPARED[name](broker)
            if count:
                await count_bytecodes(name, step)
            else:
                await measure(name, step, profile)
        await broker.stop()


async def done(step: Step) -> int:
    """Do one step, to the last answer; returns how many requests it had."""
    expected, transport = step()
    while len(transport.sent) < expected:
        await asyncio.sleep(0)
    transport.sent.clear()
    return expected


async def round_of(step: Step, seconds: float) -> float:
    """Microseconds of processor time of one of the requests that `step` feeds."""
    loop = asyncio.get_running_loop()
    count = 0
    began, stop_at = time.process_time(), loop.time() + seconds
    while loop.time() < stop_at:
        count += await done(step)
    return (time.process_time() - began) / count * 1e6


class Bytecodes:
    """Counts the bytecodes that run outside of `bench`, and the calls of functions written in Python."""

    def __init__(self) -> None:
        self.count = self.calls = 0

    def __enter__(self) -> "Bytecodes":
        sys.settrace(self._called)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_globals.get("__name__", "").startswith("bench."):
            return None
        self.calls += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "opcode"
        return self._stepped


async def count_bytecodes(name: str, step: Step) -> None:
    """Print how many bytecodes one of the requests takes."""
    await round_of(step, 0.1)
    found = []
    for _ in range(COUNTED_ROUNDS):
        requests = 0
        with Bytecodes() as bytecodes:
            for _ in range(COUNTED_STEPS):
                requests += await done(step)
        found.append((bytecodes.count / requests, bytecodes.calls / requests))
    count, calls = min(found)
    print(f"{name:12} {count:8.0f} bytecodes, {calls:.0f} calls", flush=True)


async def measure(name: str, step: Step, profile: bool) -> None:
    """Measure `step`, which feeds requests, and returns how many and the transport of their answers."""
    await round_of(step, 0.1)
    spans = sorted([await round_of(step, ROUND_SECONDS) for _ in range(ROUNDS)])
    print(f"{name:12} {spans[0]:8.1f} µs   (up to {spans[-1]:.1f})", flush=True)
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        await round_of(step, 1)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(32)


def _one(frame: bytes) -> Callable[[Broker], Step]:
    def make(broker: Broker) -> Step:
        client = Client(broker)

        def step() -> tuple[int, Transport]:
            client.feed(frame)
            return 1, client.transport

        return step

    return make


def _in_turn(rows: list[bytes]) -> Callable[[Broker], Step]:
    """A step that feeds the frames one after the other. Each is fed once before the measurement."""

    def make(broker: Broker) -> Step:
        client = Client(broker)
        turn = cycle(rows)
        left = len(rows)

        def step() -> tuple[int, Transport]:
            nonlocal left
            fed = max(1, left)
            for _ in range(fed):
                client.feed(next(turn))
            left = 0
            return fed, client.transport

        return step

    return make


def many(count: int, frame_of: Callable[[int], bytes]) -> Callable[[Broker], Step]:
    """A step that feeds a request from each of `count` connections in one pass of the loop."""

    def make(broker: Broker) -> Step:
        transport = Transport()
        clients = [Client(broker, transport) for _ in range(count)]
        rows = [frame_of(index) for index in range(count)]

        def step() -> tuple[int, Transport]:
            for client, frame in zip(clients, rows, strict=True):
                client.feed(frame)
            return count, transport

        return step

    return make


def _poll(count: int) -> Callable[[Broker], Step]:
    """A step with `count` fetches that wait for one partition, and the produce that wakes them."""

    def make(broker: Broker) -> Step:
        transport = Transport()
        consumers, producer = [Client(broker, transport) for _ in range(count)], Client(broker, transport)
        records = produce_frame("poll", 0, batch([bytes(100)]))
        partition = broker.replica_manager.partitions[("poll", 0)]

        def step() -> tuple[int, Transport]:
            frame = fetch_frame("poll", 0, partition.log_end_offset, max_wait_ms=5_000)
            for consumer in consumers:
                consumer.feed(frame)
            producer.feed(records)
            return count + 1, transport

        return step

    return make


async def _offset_fetch(broker: Broker) -> Step:
    """A step with an OffsetFetch of 50 partitions, all committed."""
    client = Client(broker)
    client.feed(commit_frame("fetched", "bench", range(50), 7))
    while not client.transport.sent:
        await asyncio.sleep(0.001)
    client.transport.sent.clear()
    return _one(offset_fetch_frame("fetched", "bench", range(50)))(broker)


async def _beat(broker: Broker) -> Step:
    """A step with the heartbeat of a consumer-protocol member that has nothing new to say."""
    client = Client(broker)
    member = Member("beats", "member", subscribed_topic_names=["bench"])
    for _ in range(2):  # it joins, and says what it owns
        await member.beat(client)
    client.transport.sent.clear()
    frame = member.frame()

    def step() -> tuple[int, Transport]:
        client.feed(frame)
        return 1, client.transport

    return step


class _Ends(Transport):
    """Counts frames, also those that are sent together, and keeps the last one."""

    last = b""

    def write(self, data: Any) -> None:
        left = bytes(data)
        while left:
            end = 4 + int.from_bytes(left[:4], "big")
            self.sent.append(left[:end])
            self.last, left = left[4:end], left[end:]


async def _producer(client: Client, transactional_id: str | None, version: int) -> Producer:
    """A producer with an id and an epoch."""
    request = messages.FindCoordinatorRequest(key=transactional_id or "", key_type=1)
    while transactional_id and (await client.ask(ApiKey.FIND_COORDINATOR, 3, request)).error_code:
        await asyncio.sleep(0.1)
    producer = Producer(transactional_id, Versions(version))
    init = messages.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    while (given := await client.ask(ApiKey.INIT_PRODUCER_ID, 4, init)).error_code:
        await asyncio.sleep(0.1)
    producer.producer_id, producer.epoch = given.producer_id, given.producer_epoch
    return producer


def _transactions(version: int) -> Callable[[Broker], Awaitable[Step]]:
    """A step that does one transaction of one record: Produce and EndTxn, in version 1 behind AddPartitionsToTxn."""

    async def make(broker: Broker) -> Step:
        client = Client(broker, _Ends())
        producer = await _producer(client, f"cpu-{version}", version)
        templates = [producer.batches("bench", {0: [bytes(100)]}), producer.ending(True)]
        if not producer.versions.adds_by_itself:
            templates.insert(0, producer.adding([("bench", 0)]))
        return _in_a_row(client, producer, templates)

    return make


def _thousands(transactional: bool) -> Callable[[Broker], Awaitable[Step]]:
    """A step that produces 1,000 records of 1 KB to four partitions, in a transaction or without one."""

    async def make(broker: Broker) -> Step:
        client = Client(broker, _Ends())
        producer = await _producer(client, "cpu-thousand" if transactional else None, 2)
        templates = large_requests(producer, "bench")
        if transactional:
            templates.append(producer.ending(True))
        return _in_a_row(client, producer, templates)

    return make


def _in_a_row(client: Client, producer: Producer, templates: list[Template]) -> Step:
    transport = client.transport
    assert isinstance(transport, _Ends)
    transport.last = b""
    transport.sent.clear()
    is_transactional = producer.transactional_id is not None

    def step() -> tuple[int, Transport]:
        if transport.last and is_transactional:
            producer.ended(transport.last)
        for template in templates:
            client.feed(template.take(producer))
        return len(templates), transport

    return step


HEARTBEAT = frames.encode_request(
    ApiKey.HEARTBEAT, 4, 1, "bench", messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
)
REQUESTS: dict[str, Callable[[Broker], Step]] = {
    "commit-1": _one(commit_frame("g", "bench", [0], 7)),
    "commit-8": many(8, lambda index: commit_frame(f"g{index}", "bench", [0], 7)),
    "commit-50": _one(commit_frame("g", "bench", range(50), 7)),
    "commit-10g": _in_turn([commit_frame(f"in-turn-{index}", "bench", [0], 7) for index in range(10)]),
    "commit-10kg": _in_turn([commit_frame(f"in-turn-{index}", "bench", [0], 7) for index in range(10_000)]),
    "produce-16k": _one(produce_frame("bench", 0, batch([bytes(1024)] * 15))),
    "produce-1": _one(produce_frame("bench", 0, batch([bytes(100)]))),
    "fetch-16k": _one(fetch_frame("log", 0, 1500, max_wait_ms=500, max_bytes=17_000)),
    "fetch-1m": _one(fetch_frame("log", 0, 1500, max_wait_ms=500)),
    "poll": _poll(1),
    "poll-shared": _poll(200),
    "heartbeat": _one(HEARTBEAT),
}
PREPARED = {
    "offset-fetch": _offset_fetch,
    "beat": _beat,
    "txn-1": _transactions(2),
    "txn-1-v1": _transactions(1),
    "txn-1000": _thousands(True),
    "txn-none": _thousands(False),
}


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench cpu", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join([*REQUESTS, *PREPARED]))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--count", action="store_true", help="count bytecodes instead of time")
    parser.add_argument("--rules", type=int, default=0, help="with an authorizer and so many access rules")
    said = parser.parse_args(words)
    uvloop.run(run(said.names, said.profile, said.count, said.rules))
    return 0
