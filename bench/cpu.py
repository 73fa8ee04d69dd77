"""Processor time of one request inside the broker, without sockets: `python -m bench cpu [NAME...]`.

A whole broker runs in this process, and its connections get a transport without a socket. Other processes on the
machine disturb the figures little, so compare them before and after a change. `--profile` prints where the time goes.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import uvloop
from barnabas.broker.broker import Broker
from barnabas.broker.cli.start import collect_seldom
from barnabas.broker.connection import Connection
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

from bench.loads import batch, commit_frame, fetch_frame, produce_frame

ROUNDS = 20
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


class Client:
    """One connection to the broker in this process."""

    def __init__(self, broker: Broker) -> None:
        self.transport = Transport()
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


async def run(names: Sequence[str], profile: bool) -> None:
    """Measure the named requests, or all."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
        # Without the journal, to compare with what was before it. `bench journal` measures it.
        config = BrokerConfig.of(settings | {"offsets.journal.enable": "false"})
        broker = Broker(real(), config, folder)
        await broker.start()
        client = Client(broker)
        for topic, count in (("bench", 50), ("log", 1), ("poll", 1), ("empty", 1)):
            make = messages.CreateTopicsRequest.CreatableTopic
            topics = [make(name=topic, num_partitions=count, replication_factor=1)]
            request = messages.CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            await client.ask(ApiKey.CREATE_TOPICS, 4, request)
        while (await client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))).error_code:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        for _ in range(500):
            client.feed(produce_frame("log", 0, batch([bytes(1024)] * 15)))
        collect_seldom()
        for name, make_steps in REQUESTS.items():
            if not names or name in names:
                await measure(name, broker, make_steps(broker), profile)
        await broker.stop()


async def round_of(step: Callable[[], tuple[int, Transport]], seconds: float) -> float:
    """Microseconds of processor time of one of the requests that `step` feeds."""
    loop = asyncio.get_running_loop()
    count = 0
    began, stop_at = time.process_time(), loop.time() + seconds
    while loop.time() < stop_at:
        expected, transport = step()
        while len(transport.sent) < expected:
            await asyncio.sleep(0)
        transport.sent.clear()
        count += expected
    return (time.process_time() - began) / count * 1e6


async def measure(name: str, broker: Broker, step: Callable[[], tuple[int, Transport]], profile: bool) -> None:
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


def _one(frame: bytes) -> Callable[[Broker], Callable[[], tuple[int, Transport]]]:
    def make(broker: Broker) -> Callable[[], tuple[int, Transport]]:
        client = Client(broker)

        def step() -> tuple[int, Transport]:
            client.feed(frame)
            return 1, client.transport

        return step

    return make


def _in_turn(rows: list[bytes]) -> Callable[[Broker], Callable[[], tuple[int, Transport]]]:
    """A step that feeds the frames one after the other. Each is fed once before the measurement."""

    def make(broker: Broker) -> Callable[[], tuple[int, Transport]]:
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


def many(count: int, frame_of: Callable[[int], bytes]) -> Callable[[Broker], Callable[[], tuple[int, Transport]]]:
    """A step that feeds a request from each of `count` connections in one pass of the loop."""

    def make(broker: Broker) -> Callable[[], tuple[int, Transport]]:
        clients = [Client(broker) for _ in range(count)]
        rows = [frame_of(index) for index in range(count)]
        transport = Transport()
        for client in clients:
            client.connection.transport = transport  # type: ignore[assignment]

        def step() -> tuple[int, Transport]:
            for client, frame in zip(clients, rows, strict=True):
                client.feed(frame)
            return count, transport

        return step

    return make


def _poll(count: int) -> Callable[[Broker], Callable[[], tuple[int, Transport]]]:
    """A step with `count` fetches that wait for one partition, and the produce that wakes them."""

    def make(broker: Broker) -> Callable[[], tuple[int, Transport]]:
        consumers, producer = [Client(broker) for _ in range(count)], Client(broker)
        transport = producer.transport
        for consumer in consumers:
            consumer.connection.transport = transport  # type: ignore[assignment]
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


HEARTBEAT = frames.encode_request(
    ApiKey.HEARTBEAT, 4, 1, "bench", messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
)
REQUESTS: dict[str, Callable[[Broker], Callable[[], tuple[int, Transport]]]] = {
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


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench cpu", description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(REQUESTS))
    parser.add_argument("--profile", action="store_true")
    said = parser.parse_args(words)
    uvloop.run(run(said.names, said.profile))
    return 0
