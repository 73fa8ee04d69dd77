"""How long does one work hold the loop, and what does a neighbour feel of it? `python -m bench stalls [SCENE...]`

All clients wait while one callback runs. A whole broker runs in this process on asyncio's loop, and each callback is
timed while large requests and the broker's upkeep run. A line for each work has these figures:
- the longest callback, in processor time (without what other processes take) and in wall time (with blocking calls);
- the longest pass of the loop, in processor time: many short callbacks delay others, too;
- how long a neighbour, a client in another process that produces one small record after another, waited for answers;
- the longest garbage collection;
- how long all of it took, and the processor time of all callbacks.
Each scene (stall_scenes.py, long_requests.py) has a broker of its own. `--partitions` and `--offsets` say how many of
them there are.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import tempfile
import time
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any

from barnabas.broker.broker import Broker
from barnabas.broker.read_buffers import READ_BUFFER_BYTES
from barnabas.cli.start import collect_seldom
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

from bench.cpu import Client
from bench.loads import batch, produce_frame
from bench.neighbour import Neighbour

IS_OURS: ContextVar[bool] = ContextVar("is_ours")  # in the context of callbacks that are the bench's, not the broker's
NEIGHBOUR_TOPIC = "neighbour"
TIMEOUT_MS = 300_000
HANDLE: Any = events.Handle  # its private method is measured


class Meter:
    """Times every callback of the running loop while a work is measured."""

    def __init__(self, neighbour: Neighbour, profiles: bool) -> None:
        self.neighbour = neighbour
        self.profiles = profiles
        self.callbacks: list[tuple[float, float, str]] = []  # processor seconds, wall seconds, what
        self.passes: list[float] = []  # processor seconds of all callbacks of one pass of the loop
        self.collections: list[float] = []  # seconds of each garbage collection; they run inside callbacks
        self._collection_began = 0.0
        self._run = HANDLE._run

    def _collecting(self, phase: str, information: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        else:
            self.collections.append(time.perf_counter() - self._collection_began)

    @asynccontextmanager
    async def measuring(self, name: str) -> AsyncIterator[None]:
        """Print what held the loop longest while the body of the `with` ran."""
        run, callbacks, passes = self._run, self.callbacks, self.passes
        callbacks.clear()
        passes.clear()
        self.collections.clear()

        def timed(handle: Any) -> None:
            if IS_OURS in handle._context:
                run(handle)
                return
            what = repr(handle._callback)
            cpu, wall = time.thread_time(), time.perf_counter()
            run(handle)
            callbacks.append((time.thread_time() - cpu, time.perf_counter() - wall, what))

        loop: Any = asyncio.get_running_loop()
        go_round = loop._run_once

        def timed_pass() -> None:
            cpu = time.thread_time()
            go_round()
            passes.append(time.thread_time() - cpu)

        await asyncio.sleep(0.05)
        profiler = cProfile.Profile()
        if self.profiles:
            profiler.enable()
        began = time.monotonic()
        HANDLE._run = timed
        loop._run_once = timed_pass
        gc.callbacks.append(self._collecting)
        try:
            yield
        finally:
            HANDLE._run = self._run
            loop._run_once = go_round
            gc.callbacks.remove(self._collecting)
            profiler.disable()
        ended = time.monotonic()
        await asyncio.sleep(0.05)
        ordered = sorted(callbacks, reverse=True) or [(0.0, 0.0, "")]
        wall = max(row[1] for row in callbacks) if callbacks else 0.0
        over = sum(1 for row in callbacks if row[0] > 0.02)
        print(
            f"{name:24} longest {ordered[0][0] * 1000:6.1f} ms CPU {wall * 1000:6.1f} wall, {over:3} over 20 ms; "
            f"longest pass {max(passes, default=0.0) * 1000:6.1f} ms; "
            f"{self._of_neighbour(began, ended)}; collector {max(self.collections, default=0) * 1000:.0f}; "
            f"{ended - began:.2f} s, {sum(row[0] for row in ordered):.2f} s CPU; {ordered[0][2][:90]}",
            flush=True,
        )
        if self.profiles:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(32)

    def _of_neighbour(self, began: float, ended: float) -> str:
        took, _ = self.neighbour.felt((began, ended))
        if not took.spans:
            return "no request of the neighbour"
        p50, p99, worst = map(took.percentile_ms, (0.5, 0.99, 1))
        return f"neighbour p50 {p50:6.1f} p99 {p99:6.1f} worst {worst:6.1f} ms of {len(took.spans)}"


class Bench:
    """A broker, and the tasks that are measured on it."""

    def __init__(self, broker: Broker, meter: Meter, said: argparse.Namespace) -> None:
        self.broker = broker
        self.meter = meter
        self.client = Client(broker)
        self.partitions: int = said.partitions
        self.offsets: int = said.offsets
        self.megabytes: int = said.megabytes

    async def timed(self, name: str, api: ApiKey, version: int, request: Any) -> None:
        """Measure one request, from its arrival to its answer."""
        await self.timed_frame(name, frames.encode_request(api, version, 1, "bench", request))

    async def timed_frame(self, name: str, frame: bytes) -> None:
        """Measure one request, from its arrival to its answer."""
        async with self.meter.measuring(name):
            await self._exchange(frame)

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """Send a request that is not measured; returns its answer."""
        await self._exchange(frames.encode_request(api, version, 1, "bench", request))
        return frames.decode_response(api, version, b"".join(self.client.transport.sent)[4:])[1]

    async def work(self, name: str, does: Callable[[], Awaitable[None]]) -> None:
        """Measure any other work: what the broker does, not what the client does that is played here."""
        is_ours = IS_OURS.set(True)
        try:
            async with self.meter.measuring(name):
                await does()
        finally:
            IS_OURS.reset(is_ours)

    async def create_topics(self, *topics: tuple[str, int], **settings: str) -> None:
        """Create topics (name, number of partitions) with these settings (underscores for dots)."""
        create = messages.CreateTopicsRequest
        configs = [create.CreatableTopicConfig(name=n.replace("_", "."), value=value) for n, value in settings.items()]
        rows = [
            create.CreatableTopic(name=name, num_partitions=count, replication_factor=1, configs=configs)
            for name, count in topics
        ]
        answer = await self.ask(ApiKey.CREATE_TOPICS, 7, create(topics=rows, timeout_ms=TIMEOUT_MS))
        assert not any(topic.error_code for topic in answer.topics), answer

    async def _exchange(self, frame: bytes) -> None:
        sent = self.client.transport.sent
        sent.clear()
        asyncio.get_running_loop().call_soon(self._feed, memoryview(frame), context=Context())
        while not sent:
            await asyncio.sleep(0.001)

    def _feed(self, rest: memoryview) -> None:
        """Let the connection receive the bytes, some of them in each pass of the loop."""
        if len(rest):
            buffer = memoryview(self.client.connection.get_buffer(-1))
            size = min(len(buffer), len(rest), READ_BUFFER_BYTES)
            buffer[:size] = rest[:size]
            asyncio.get_running_loop().call_soon(self._feed, rest[size:])
            self.client.connection.buffer_updated(size)


async def play(scene: "Callable[[Bench], Awaitable[None]]", said: argparse.Namespace) -> None:
    """Run a scene, with a broker and a neighbour of its own."""
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig.of(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "group.initial.rebalance.delay.ms": "0",
                "log.cleaner.backoff.ms": "1000000",
            }
        )
        broker = Broker(real(), config, f"{folder}/data")
        await broker.start()
        frame = produce_frame(NEIGHBOUR_TOPIC, 0, batch([bytes(100)]))
        neighbour = Neighbour(broker.server.ports["PLAINTEXT"], frame, Path(folder) / "notes")
        bench = Bench(broker, Meter(neighbour, said.profile), said)
        await bench.create_topics((NEIGHBOUR_TOPIC, 1))
        collect_seldom()
        await neighbour.start()
        try:
            await scene(bench)
        finally:
            await neighbour.stop()
            await broker.stop()


def main(words: Sequence[str]) -> int:
    """See the module."""
    from bench.stall_scenes import SCENES

    parser = argparse.ArgumentParser(prog="python -m bench stalls", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=", ".join(SCENES))
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=20, help="of the long requests")
    parser.add_argument("--profile", action="store_true", help="and where the time goes")
    said = parser.parse_args(words)
    for name in said.scenes or SCENES:
        if name not in SCENES:
            parser.error(f"no such scene: {name}")
        print(f"-- {name}", flush=True)
        asyncio.run(play(SCENES[name], said))
    return 0
