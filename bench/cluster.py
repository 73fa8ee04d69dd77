"""`python -m bench cluster [ROW...] [--kafka]`: three brokers on one machine; three of Apache Kafka in the same run.

produce   the Java producer, 1 KB, acks=all, three replicas, two of them needed
commit    commits of one offset, 8 connections, three replicas
memory    resident memory of the three together, idle and after the loads before
start     exec to all partitions in sync, an empty directory and one with 36 partitions
failover  SIGKILL of a leader: the longest gap of a producer, and of a committer
many      2,000 partitions: SIGKILL of the controller's broker until all have leaders; processor time when idle
catch-up  a follower that was away for 1 GB: how fast it comes back, and the producer's p99 meanwhile
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import uvloop
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from bench import apache_kafka
from bench.loads import COMMIT_VERSION, PRODUCE_VERSION, batch, check_commit, commit_frame, produce_frame, topic_of
from bench.targets import Target
from bench.wire import Connection, Latencies, LoadError, close, closed_loop, connect, until

BROKERS = 3
PARTITIONS = 2_000
AWAY_BYTES = 1 << 30
ANSWER_WITHIN_S = 5.0
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}


def free_ports() -> list[int]:
    """Consecutive free ports, below those that the system gives to clients; so are the ports 10,000 above them."""
    while True:
        first = random.randrange(12_000, 20_000)
        ports = [first + node_id for node_id in range(BROKERS)]
        with suppress(OSError), ExitStack() as probes:
            for port in (*ports, *(port + 10_000 for port in ports)):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


class Cluster:
    """Three broker processes on loopback, with data of their own, which is removed with them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = tempfile.mkdtemp(prefix=f"{name}-bench-")
        self.ports = free_ports()
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.processes: dict[int, subprocess.Popen[Any]] = {}

    def command(self, node_id: int) -> list[str]:
        """The command line of one broker."""
        raise NotImplementedError

    def start(self, node_id: int) -> None:
        """Start one broker."""
        with open(f"{self.folder}/{node_id}.log", "a") as log:
            process = subprocess.Popen(self.command(node_id), stdout=log, stderr=log, cwd="/")
        self.processes[node_id] = process

    def end(self, node_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        """End one broker."""
        self.processes[node_id].send_signal(number)
        self.processes[node_id].wait(60)

    def stop(self) -> None:
        """End all and remove their data."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(60)
        shutil.rmtree(self.folder)

    def targets(self) -> dict[int, Target]:
        """The processes, for their figures."""
        return {
            node_id: Target(f"{self.name} {node_id}", f"127.0.0.1:{self.ports[node_id]}", process.pid)
            for node_id, process in self.processes.items()
        }

    # -- what its brokers say

    async def ask(self, api: ApiKey, version: int, request: Any, node_id: int | None = None) -> Any:
        """Ask one broker, or any that answers. OSError when none does."""
        for port in self.ports if node_id is None else [self.ports[node_id]]:
            try:
                connection = await connect(f"127.0.0.1:{port}")
            except OSError:
                continue
            try:
                return await asyncio.wait_for(connection.ask(api, version, request), ANSWER_WITHIN_S)
            except TimeoutError:
                continue
            finally:
                close([connection])
        raise ConnectionRefusedError(self.name)

    async def metadata(self, topic: str | None = None) -> Any:
        """One topic, or all."""
        make = messages.MetadataRequest.MetadataRequestTopic
        topics = None if topic is None else [make(name=topic)]
        return await self.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=topics))

    async def address(self, node_id: int) -> str:
        """Where a broker is, by the node id that it has in its metadata."""
        return next(f"127.0.0.1:{row.port}" for row in (await self.metadata()).brokers if row.node_id == node_id)

    async def index(self, node_id: int) -> int:
        """Which of the processes it is."""
        return self.ports.index(int((await self.address(node_id)).rpartition(":")[2]))

    async def led(self, topic: str) -> Any:
        """What the metadata says of the first partition of a topic."""
        (row,) = (await self.metadata(topic)).topics
        return next(each for each in row.partitions if each.partition_index == 0)

    async def leader(self, topic: str) -> str:
        """The address of the leader of the first partition of a topic."""
        return await self.address((await self.led(topic)).leader_id)

    async def coordinator(self, group: str) -> Any:
        """The answer of a broker that was asked for a group's coordinator."""
        return await self.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=group))

    async def coordinates(self) -> None:
        """Return when the offsets topic is there, and in sync."""

        async def has_coordinator() -> bool:
            return not (await self.coordinator("bench-0")).error_code

        await until("the offsets topic", has_coordinator)
        await until("in sync", self.in_sync)

    async def in_sync(self, topic: str | None = None) -> bool:
        """Whether all partitions, or those of a topic, are led by a live broker, and all their replicas are in sync."""
        try:
            answer = await self.metadata(topic)
        except (OSError, TimeoutError):
            return False
        alive = {broker.node_id for broker in answer.brokers}
        rows = [row for topic in answer.topics for row in topic.partitions]
        return len(alive) >= BROKERS and all(
            row.leader_id in alive and len(row.isr_nodes) == len(row.replica_nodes) for row in rows
        )

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic with three replicas, and wait until they are in sync."""
        make = messages.CreateTopicsRequest.CreatableTopic
        row = make(name=topic, num_partitions=partitions, replication_factor=BROKERS)
        request = messages.CreateTopicsRequest(topics=[row], timeout_ms=60_000)
        controller = await self.index((await self.metadata()).controller_id)
        answer = await self.ask(ApiKey.CREATE_TOPICS, 4, request, controller)
        if answer.topics[0].error_code:
            raise LoadError(f"{topic}: {ErrorCode(answer.topics[0].error_code).name}")
        await until(f"{topic} is in sync", self.in_sync)

    async def group_on(self, node_id: int) -> str:
        """A group that this broker coordinates."""
        for number in range(1000):
            group = f"bench-{number}"
            if (await self.coordinator(group)).node_id == node_id:
                return group
        raise LoadError(f"broker {node_id} coordinates nothing")


class Barnabas(Cluster):
    """Three brokers of this checkout on one coordination file."""

    def __init__(self) -> None:
        super().__init__("barnabas")

    def command(self, node_id: int) -> list[str]:
        """Started one by one, with a cluster's settings."""
        program = os.environ.get("BARNABAS_COMMAND")
        words = program.split() if program else [sys.executable, "-m", "barnabas"]
        words += ["start", "--json", "--listeners", f"PLAINTEXT://127.0.0.1:{self.ports[node_id]}"]
        words += ["--data", f"{self.folder}/{node_id}", "--set", f"node.id={node_id}"]
        words += ["--set", f"coordination.path={self.folder}/coordination.sqlite"]
        for key, value in SETTINGS.items():
            words += ["--set", f"{key}={value}"]
        return words


class ApacheKafka(Cluster):
    """Three combined KRaft nodes."""

    def __init__(self) -> None:
        super().__init__("kafka")
        voters = ",".join(f"{node_id}@127.0.0.1:{port + 10_000}" for node_id, port in enumerate(self.ports))
        for node_id, port in enumerate(self.ports):
            text = apache_kafka.PROPERTIES.format(
                port=port, controller_port=port + 10_000, data=f"{self.folder}/{node_id}"
            )
            lines = {f"{key}={value}" for key, value in SETTINGS.items()}
            lines |= {f"node.id={node_id}", f"controller.quorum.voters={voters}"}
            lines |= {"transaction.state.log.min.isr=2", "group.coordinator.append.linger.ms=0"}
            names = {line.partition("=")[0] for line in lines}
            kept = [line for line in text.splitlines() if line.partition("=")[0] not in names]
            self._properties(node_id).write_text("\n".join([*kept, *sorted(lines)]) + "\n")
            tool = ["kafka.tools.StorageTool", "format", "-t", apache_kafka.CLUSTER_ID, "-c"]
            words = apache_kafka.java("256m", *tool, str(self._properties(node_id)))
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def _properties(self, node_id: int) -> Path:
        return Path(self.folder) / f"{node_id}.properties"

    def command(self, node_id: int) -> list[str]:
        """One node with 768 MB of heap."""
        return apache_kafka.java("768m", "kafka.Kafka", str(self._properties(node_id)))


# ---- rows: each prints its figures of one cluster and returns the one that is compared ----


def _say(cluster: Cluster, text: str) -> None:
    print(f"  {cluster.name:10} {text}", flush=True)


async def produce(cluster: Cluster) -> float:
    """Records/s of the Java producer."""
    topic = topic_of("produce")
    await cluster.create_topic(topic)
    best = 0.0
    for _ in range(2):  # the first warms up a JVM
        found = await asyncio.to_thread(apache_kafka.produce, cluster.bootstrap, topic, 150_000, 1024)
        best = max(best, found["records/sec"])
    _say(cluster, f"{best:,.0f} records/s, p99 {found['ms 99th']:.0f} ms")
    return best


def _cpu_seconds(cluster: Cluster) -> float:
    return sum(target.cpu_seconds() for target in cluster.targets().values())


async def commit(cluster: Cluster) -> float:
    """Commits/s of groups on all brokers."""
    topic = topic_of("commit")
    await cluster.create_topic(topic)
    await cluster.coordinates()
    connections, rows = [], []
    for number in range(8):
        group = f"{topic}-{number}"
        connections.append(await connect(f"127.0.0.1:{(await cluster.coordinator(group)).port}"))
        rows.append([commit_frame(group, topic, [0], offset) for offset in range(10)])
        await check_commit(connections[-1], rows[-1][0])
    best = 0.0
    for _ in range(2):
        before = _cpu_seconds(cluster)
        rate, latencies = await closed_loop(connections, rows, 4.0)
        us = (_cpu_seconds(cluster) - before) / (4.0 * rate) * 1e6
        best = max(best, rate)
    close(connections)
    _say(cluster, f"{best:,.0f} commits/s, p50 {latencies.percentile_ms(0.5):.2f} ms, {us:.0f} µs of all brokers")
    return best


async def memory(cluster: Cluster) -> float:
    """Resident memory of all, MB."""
    total = sum(target.resident_mb() for target in cluster.targets().values())
    _say(cluster, f"{total:.0f} MB resident in {BROKERS} processes")
    return total


async def failover(cluster: Cluster) -> float:
    """The longest gap in seconds of a producer whose leader is killed, and of a committer."""
    topic = topic_of("failover")
    await cluster.create_topic(topic)
    await cluster.coordinates()
    victim = (await cluster.led(topic)).leader_id
    group = await cluster.group_on(victim)
    gaps = {"produce": 0.0, "commit": 0.0}
    ended = asyncio.Event()

    async def coordinator() -> str:
        return f"127.0.0.1:{(await cluster.coordinator(group)).port}"

    async def repeat(what: str, find: Callable[[], Awaitable[str]], frame: bytes, api: ApiKey, version: int) -> None:
        last = time.monotonic()
        connection: Connection | None = None
        while not ended.is_set():
            try:
                if connection is None:
                    connection = await connect(await find())
                answered = await asyncio.wait_for(connection.exchange(frame), 1.0)
                answer: Any = frames.decode_response(api, version, answered)[1]
                rows = answer.responses[0].partition_responses if what == "produce" else answer.topics[0].partitions
                if rows[0].error_code:
                    raise ConnectionResetError
            except (OSError, TimeoutError, StopIteration, KeyError, RuntimeError):  # RuntimeError: it is closed
                if connection is not None:
                    close([connection])
                connection = None
                await asyncio.sleep(0.02)
                continue
            gaps[what] = max(gaps[what], time.monotonic() - last)
            last = time.monotonic()
            await asyncio.sleep(0.002)

    produce, commit = produce_frame(topic, 0, batch([bytes(100)])), commit_frame(group, topic, [0], 1)
    tasks = [
        asyncio.create_task(repeat("produce", lambda: cluster.leader(topic), produce, ApiKey.PRODUCE, PRODUCE_VERSION)),
        asyncio.create_task(repeat("commit", coordinator, commit, ApiKey.OFFSET_COMMIT, COMMIT_VERSION)),
    ]
    await asyncio.sleep(2.0)
    gaps.update(produce=0.0, commit=0.0)
    dead = await cluster.index(victim)
    await asyncio.to_thread(cluster.end, dead)
    await asyncio.sleep(25.0 if cluster.name == "kafka" else 8.0)
    ended.set()
    await asyncio.gather(*tasks)
    cluster.start(dead)
    await until("in sync again", cluster.in_sync)
    _say(cluster, f"longest gap of produce {gaps['produce']:.2f} s, of commit {gaps['commit']:.2f} s")
    return max(gaps.values())


async def many(cluster: Cluster) -> float:
    """2,000 partitions: seconds until all have leaders after the controller's broker was killed."""
    topic = topic_of("many")
    began = time.monotonic()
    await cluster.create_topic(topic, PARTITIONS)
    created_s = time.monotonic() - began
    await asyncio.sleep(5.0)
    before = {index: target.cpu_seconds() for index, target in cluster.targets().items()}
    await asyncio.sleep(10.0)
    idle = [target.cpu_seconds() - before[index] for index, target in cluster.targets().items()]
    controller_id = (await cluster.metadata()).controller_id
    dead = await cluster.index(controller_id)
    began = time.monotonic()
    await asyncio.to_thread(cluster.end, dead)
    await until("leaders", lambda: _led_without(cluster, controller_id), 120)
    led_s = time.monotonic() - began
    cluster.start(dead)
    began = time.monotonic()
    await until("in sync again", cluster.in_sync, 120)
    _say(
        cluster,
        f"created in {created_s:.1f} s; idle {', '.join(f'{10 * used:.1f} %' for used in idle)} of a core; "
        f"all led {led_s:.2f} s after SIGKILL of the controller; "
        f"in sync {time.monotonic() - began:.1f} s after its start",
    )
    return led_s


async def _led_without(cluster: Cluster, node_id: int) -> bool:
    try:
        answer = await cluster.metadata()
    except (OSError, TimeoutError):
        return False
    leaders = {row.leader_id for topic in answer.topics for row in topic.partitions}
    return node_id not in leaders and -1 not in leaders


async def catch_up(cluster: Cluster) -> float:
    """MB/s at which a follower that was away for 1 GB comes back."""
    topic = topic_of("catch-up")
    await cluster.create_topic(topic)
    row, controller_id = await cluster.led(topic), (await cluster.metadata()).controller_id
    follower = next(node_id for node_id in row.replica_nodes if node_id not in (row.leader_id, controller_id))
    index = await cluster.index(follower)
    await asyncio.to_thread(cluster.end, index, signal.SIGTERM)
    await asyncio.to_thread(apache_kafka.produce, cluster.bootstrap, topic, AWAY_BYTES // 1024, 1024)
    leader = await connect(await cluster.address(row.leader_id))
    frame = produce_frame(topic, 0, batch([bytes(1024)]))

    async def paced(seconds: float) -> float:
        latencies = Latencies()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not back.is_set():
            sent = time.perf_counter()
            await leader.exchange(frame)
            latencies.spans.append(time.perf_counter() - sent)
            await asyncio.sleep(0.005)
        return latencies.percentile_ms(0.99)

    back = asyncio.Event()
    calm_ms = await paced(3.0)
    cluster.start(index)
    await until("the broker is there", lambda: _has_brokers(cluster))
    began = time.monotonic()
    busy = asyncio.create_task(paced(120.0))
    await until("in sync again", lambda: cluster.in_sync(topic), 120)
    span = time.monotonic() - began
    back.set()
    busy_ms = await busy
    _say(
        cluster, f"{AWAY_BYTES / span / 1e6:,.0f} MB/s; the producer's p99 {calm_ms:.1f} ms, meanwhile {busy_ms:.1f} ms"
    )
    close([leader])
    return AWAY_BYTES / span / 1e6


async def _has_brokers(cluster: Cluster) -> bool:
    try:
        return len((await cluster.metadata()).brokers) == BROKERS
    except (OSError, TimeoutError):
        return False


ROWS: dict[str, tuple[Callable[[Cluster], Coroutine[Any, Any, float]], bool]] = {
    "produce": (produce, True),
    "commit": (commit, True),
    "memory": (memory, False),
    "failover": (failover, False),
    "many": (many, False),
    "catch-up": (catch_up, True),
}


def starts() -> None:
    """Seconds from exec to all partitions in sync, of `barnabas start --brokers 3`."""
    folder = tempfile.mkdtemp(prefix="barnabas-bench-")
    spans: dict[str, list[float]] = {"empty": [], "36 partitions": []}
    cluster = Barnabas()
    try:
        for turn in range(6):
            words = [*cluster.command(0)[:-1]]
            program = words[: words.index("start")]
            line = [*program, "start", "--brokers", "3", "--json", "--data", f"{folder}/{turn // 2}", "--port"]
            began = time.monotonic()
            process = subprocess.Popen([*line, str(cluster.ports[0])], stdout=subprocess.PIPE, text=True, cwd="/")
            assert process.stdout is not None
            if not json.loads(process.stdout.readline()):
                raise LoadError("--brokers 3 did not start")
            uvloop.run(until("in sync", cluster.in_sync))
            spans["36 partitions" if turn % 2 else "empty"].append(time.monotonic() - began)
            if turn % 2 == 0:
                uvloop.run(cluster.create_topic("start", 36))
            process.send_signal(signal.SIGINT)
            process.wait(60)
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    for what, each in spans.items():
        _say(cluster, f"--brokers 3, {what}: in sync {', '.join(f'{span:.2f}' for span in each)} s after exec")


def main(words: Sequence[str]) -> int:
    """Run the command (see the module); returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(["start", *ROWS]))
    parser.add_argument("--kafka", action="store_true", help="start three of Apache Kafka too")
    said = parser.parse_args(words)
    names = said.rows or ["start", *ROWS]
    unknown = [name for name in names if name not in ROWS and name != "start"]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    if "start" in names:
        print("start")
        starts()
    clusters: list[Cluster] = []
    try:
        kinds: list[type[Barnabas] | type[ApacheKafka]] = [Barnabas, ApacheKafka] if said.kafka else [Barnabas]
        for kind in kinds:
            cluster: Cluster = kind()
            clusters.append(cluster)
            for node_id in range(BROKERS):
                cluster.start(node_id)
            uvloop.run(until(f"{cluster.name} is up", cluster.in_sync))
        for name in [name for name in names if name in ROWS]:
            print(name)
            row, more_is_better = ROWS[name]
            figures = [uvloop.run(row(cluster)) for cluster in clusters]
            if len(figures) == 2:
                ratio = figures[0] / figures[1] if more_is_better else figures[1] / figures[0]
                print(f"  barnabas is {ratio:.2f} times as good as kafka", flush=True)
    finally:
        for cluster in clusters:
            cluster.stop()
    return 0
