"""Clients as they are against three brokers that are restarted in turn, so that leaders and coordinators move."""

import asyncio
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConnectionError

MakeCluster = Callable[..., Any]
PARTITIONS = 3
LONGER_S = 1.0  # is each pause than those of the round before: on a slow machine, a group that moves is never stable
STORIES = Path(__file__).resolve().parent.parent / "clients"
pytestmark = pytest.mark.timeout(300)


class Moving:
    """Stops one broker after the other in a controlled way, and starts it again. `rounds`: how often each was."""

    def __init__(self, cluster: Any, pause_s: float) -> None:
        self._cluster = cluster
        self._pause_s = pause_s
        self.rounds = 0
        self.stopping = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        cluster = self._cluster
        try:
            while not self.stopping:
                for node_id in list(cluster.ports):
                    cluster.end_one(node_id, signal.SIGTERM)
                    cluster.start(node_id)
                    for index in range(PARTITIONS):
                        cluster.in_sync("moved", index, set(cluster.ports))
                    time.sleep(self._pause_s + self.rounds * LONGER_S)
                self.rounds += 1
        except BaseException as error:
            self.error = error


@contextmanager
def moving(cluster: Any, pause_s: float = 0.0) -> Iterator[Moving]:
    """Leaders move all the time, or with pauses, and later ever more seldom."""
    mover = Moving(cluster, pause_s)
    mover.thread.start()
    try:
        yield mover
    finally:
        mover.stopping = True
        mover.thread.join(120)
    assert mover.error is None, mover.error
    assert mover.rounds > 0


def bootstrap(cluster: Any) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())


def numbered(number: int) -> bytes:
    return b"%d" % number


def kafka_python(servers: str, mover: Moving) -> tuple[int, set[bytes]]:
    """Produce until each broker was restarted, read all as a group. Returns how many were sent, and what was read."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=5)
    futures = []
    while mover.rounds < 1 and mover.error is None:
        futures.append(producer.send("moved", numbered(len(futures)), partition=len(futures) % PARTITIONS))
        futures[-1 if len(futures) < 50 else -50].get(200)
    producer.flush(200)
    for future in futures:
        future.get(200)
    consumer = KafkaConsumer(
        "moved", bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False
    )
    seen: set[bytes] = set()
    while len(seen) < len(futures):
        with suppress(KafkaConnectionError):  # kafka-python raises it when it asks a restarting broker for coordinators
            for messages in consumer.poll(500).values():
                seen.update(message.value for message in messages)
    consumer.close()
    producer.close()
    return len(futures), seen


def confluent(servers: str, mover: Moving) -> tuple[int, set[bytes]]:
    """The same with librdkafka."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    sent = 0
    while mover.rounds < 1 and mover.error is None:
        producer.produce(
            "moved",
            numbered(sent),
            partition=sent % PARTITIONS,
            on_delivery=lambda error, message: errors.append(error) if error else None,
        )
        sent += 1
        producer.poll(0.005)
    assert producer.flush(200) == 0
    assert errors == []
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["moved"])
    seen: set[bytes] = set()
    while len(seen) < sent:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            seen.add(message.value())
    consumer.close()
    return sent, seen


def aio(servers: str, mover: Moving) -> tuple[int, set[bytes]]:
    """The same with aiokafka."""

    async def story() -> tuple[int, set[bytes]]:
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, linger_ms=5)
        await producer.start()
        futures: list[Any] = []
        while mover.rounds < 1 and mover.error is None:
            partition = len(futures) % PARTITIONS
            futures.append(await producer.send("moved", numbered(len(futures)), partition=partition))
            await futures[-1 if len(futures) < 50 else -50]
        await asyncio.gather(*futures)
        await producer.stop()
        # It commits nothing: a commit at its end is tried for ever if the coordinator moves just then (aiokafka 0.14).
        consumer = AIOKafkaConsumer(
            "moved",
            bootstrap_servers=servers,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        seen: set[bytes] = set()
        while len(seen) < len(futures):
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                seen.update(message.value for message in messages)
        await consumer.stop()
        return len(futures), seen

    return asyncio.run(story())


@pytest.mark.parametrize("client", [kafka_python, confluent, aio])
def test_nothing_is_lost_or_doubled_while_leaders_move(
    make_cluster: MakeCluster, client: Callable[[str, Moving], tuple[int, set[bytes]]]
) -> None:
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    cluster.create_topic("moved", PARTITIONS)
    with moving(cluster) as mover:
        sent, seen = client(bootstrap(cluster), mover)
    assert sent > 0
    assert seen == set(map(numbered, range(sent)))
    for index in range(PARTITIONS):
        assert cluster.values("moved", index) == list(map(numbered, range(index, sent, PARTITIONS)))


# So that topics can be made while a broker is away.
ANY_TWO = {"default_replication_factor": "2", "min_insync_replicas": "1", "group_initial_rebalance_delay_ms": "0"}


STORY_ENDS_WITHIN_S = 40
GAVE_UP = "gave up"


def story(command: list[str], cluster: Any, name: str) -> str:
    """Run a program of tests/clients; its output, or why it gave up."""
    words = [*command, bootstrap(cluster), name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STORY_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired as expired:
        return f"{GAVE_UP}: not done in {expired.timeout} s"
    return done.stdout if done.returncode == 0 else f"{GAVE_UP}: {done.stderr}"


def told(command: list[str], cluster: Any, pause_s: float) -> set[str]:
    """What a program prints while brokers restart in turn, and afterwards.

    A client may give up when brokers have gone too often for it, or when a group's coordinator moves before the group's
    first record is stored (UNKNOWN_MEMBER_ID, as with Kafka). But what it has told to the end must be right, and when
    no leader moves it must get to the end.
    """
    cluster.create_topic("moved", PARTITIONS)
    told = set()
    with moving(cluster, pause_s) as mover:
        number = 0
        while mover.rounds < 1 and mover.error is None:
            number += 1
            told.add(story(command, cluster, f"story-{number}"))
    cluster.balance()
    last = story(command, cluster, "last-story")
    return {line for line in told if not line.startswith(GAVE_UP)} | {last}


def franz_go(folder: Path) -> list[str]:
    """The command of a story."""
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain: franz-go cannot be built")
    program = folder / "story"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=STORIES / "go", check=True, timeout=280)
    return [str(program)]


def kafkajs(folder: Path) -> list[str]:
    """The same with KafkaJS."""
    if shutil.which("npm") is None:
        pytest.skip("no Node.js: KafkaJS cannot be installed")
    for file in ("package.json", "package-lock.json", "story.js"):
        shutil.copy(STORIES / "node" / file, folder)
    subprocess.run(["npm", "ci", "--silent"], cwd=folder, check=True, timeout=280)
    return ["node", str(folder / "story.js")]


@pytest.mark.takes_turns("client")
@pytest.mark.parametrize("make_cluster", ["embedded"], indirect=True)  # no client can tell where the tree is
@pytest.mark.parametrize(("client", "pause_s", "records"), [(franz_go, 2.0, 303), (kafkajs, 5.0, 100)])
def test_a_story_while_leaders_move(
    make_cluster: MakeCluster, tmp_path: Path, client: Callable[[Path], list[str]], pause_s: float, records: int
) -> None:
    folder = tmp_path / "story"
    folder.mkdir()
    command = client(folder)
    assert told(command, make_cluster(**ANY_TWO), pause_s) == {f"{records} records\n"}
