"""Copies from topic to topic, exactly once, by four clients: killed in the middle of a transaction, fenced, timed out.

The copier (copier.py, go/copier) reads, produces, sends its offsets and commits or aborts, all in transactions. In the
end each input has one copy that consumers of committed records see, in order, and the group stands at the end.
"""

import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

FOLDER = Path(__file__).resolve().parent
pytestmark = pytest.mark.timeout(300)

PARTITIONS = 2
LONG_MS = 60_000  # a transaction timeout that no test waits for
SHORT_MS = 3_000
PYTHON_CLIENTS = ["kafka-python", "confluent-kafka", "aiokafka"]
CLIENTS = [*PYTHON_CLIENTS, "franz-go"]
CLIENTS_THAT_SAY_THEIR_GENERATION = ["kafka-python", "confluent-kafka", "franz-go"]  # KIP-447
STEPS = ["produced", "offsets"]


class Copier:
    """A process that copies, and what it has said."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.said: list[str] = []
        self.complaints: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, args=(self.process.stdout, self.said)),
            threading.Thread(target=self._listen, args=(self.process.stderr, self.complaints)),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _listen(stream: Any, lines: list[str]) -> None:
        lines.extend(line.rstrip() for line in stream)

    def wait_until_it_says(self, word: str, timeout_s: float = 200) -> None:
        """Fails if it ends without having said it."""
        deadline = time.monotonic() + timeout_s
        while word not in self.said:
            if self.process.poll() is not None:
                for thread in self._threads:
                    thread.join()
                assert word in self.said, self.story()
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.02)

    def goes_on(self) -> None:
        """End its pause."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def story(self) -> str:
        """What it has said, for a failed test."""
        return f"{self.said[-10:]}\n" + "\n".join(self.complaints[-30:])


Start = Callable[..., Copier]


@pytest.fixture(scope="module")
def go_copier(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """The path of the Go program; built at its first use."""
    program = tmp_path_factory.mktemp("go") / "copier"

    def build() -> str:
        if shutil.which("go") is None:
            pytest.skip("no Go toolchain: franz-go cannot be built")
        if not program.exists():
            subprocess.run(["go", "build", "-o", str(program), "./copier"], cwd=FOLDER / "go", check=True, timeout=280)
        return str(program)

    return build


@pytest.fixture
def copier(name: str, session_timeout_ms: int, go_copier: Callable[[], str]) -> Iterator[Start]:
    """Starts copiers of a client, which are killed at the end."""
    started: list[Copier] = []

    def start(client: str, broker: Any, pause: str = "-", id: str = "copier", timeout_ms: int = LONG_MS) -> Copier:
        command = [go_copier()] if client == "franz-go" else [sys.executable, str(FOLDER / "copier.py"), client]
        words = [broker.bootstrap, name, f"{name}-{id}", str(session_timeout_ms), str(timeout_ms), pause]
        started.append(Copier([*command, *words]))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def quick_broker(make_broker: Callable[..., Any]) -> Any:
    """A broker that looks often for transactions that are open for too long."""
    return make_broker("transaction.abort.timed.out.transaction.cleanup.interval.ms=300")


def fill(broker: Any, name: str, count: int = 300) -> list[list[bytes]]:
    """Make both topics, and fill the first with committed and aborted records; what is committed, by partition."""
    topics = [NewTopic(f"{name}-{end}", PARTITIONS) for end in ("in", "out")]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(200)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{name}-fill", "log_level": 0})
    producer.init_transactions(30)
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in itertools.count():
        producer.begin_transaction()
        chunk = [(index, b"%d of %d" % (number * 10 + i, index)) for i in range(10) for index in range(PARTITIONS)]
        for index, value in chunk:
            producer.produce(f"{name}-in", value, partition=index)
        if number % 4 == 3:
            producer.flush(200)
            producer.abort_transaction(30)
            continue
        producer.commit_transaction(30)
        for index, value in chunk:
            values[index].append(value)
        if len(values[0]) >= count / PARTITIONS:
            break
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    for index in range(PARTITIONS):  # behind the last marker, so that a consumer of everything stands at the end
        values[index].append(b"last of %d" % index)
        plain.produce(f"{name}-in", values[index][-1], partition=index)
    assert plain.flush(200) == 0
    return values


def read(broker: Any, topic: str, isolation: str = "read_committed") -> list[list[bytes]]:
    """All records by partition."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None, "neither a record nor the end"
        if message.error():
            ended += 1
        else:
            found[message.partition()].append(message.value())
    consumer.close()
    return found


def lag(broker: Any, name: str) -> int:
    """How many offsets the group's committed ones are away from the ends."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": name, "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    places = [TopicPartition(f"{name}-in", index) for index in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(place, 20)[1] for place in places]
    committed = [max(place.offset, 0) for place in consumer.committed(places, 20)]
    consumer.close()
    return sum(ends) - sum(committed)


def check(broker: Any, name: str, values: list[list[bytes]], copiers: list[Copier]) -> None:
    """Wait until the group is at the end; then each input must have its effect once."""
    deadline = time.monotonic() + 200
    while lag(broker, name):
        stories = "\n".join(one.story() for one in copiers)
        assert copiers[-1].process.poll() is None, stories
        assert time.monotonic() < deadline, stories
        time.sleep(0.1)
    assert read(broker, f"{name}-out") == [[b"copy of " + value for value in each] for each in values]
    # What was aborted is in the log, so it was tried.
    assert sum(map(len, read(broker, f"{name}-out", "read_uncommitted"))) > sum(map(len, values))


@pytest.mark.takes_turns("client")
@pytest.mark.parametrize("client", CLIENTS)
def test_killed_in_the_middle(client: str, broker: Any, name: str, copier: Start) -> None:
    """Each time the next one takes the transactional id, and with it ends what is open."""
    values = fill(broker, name)
    killed = []
    for step in (*STEPS, *STEPS):
        killed.append(copier(client, broker, step))
        killed[-1].wait_until_it_says("paused")
        killed[-1].kill()
    check(broker, name, values, [*killed, copier(client, broker)])


@pytest.mark.takes_turns("step")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("client", CLIENTS)
def test_fenced_by_the_next_one_of_its_id(client: str, step: str, broker: Any, name: str, copier: Start) -> None:
    values = fill(broker, name)
    zombie = copier(client, broker, step)
    zombie.wait_until_it_says("paused")
    second = copier(client, broker)
    second.wait_until_it_says("committed")
    zombie.goes_on()
    zombie.wait_until_it_says("fenced")
    check(broker, name, values, [zombie, second])


@pytest.mark.takes_turns("step")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("client", CLIENTS_THAT_SAY_THEIR_GENERATION)
def test_fenced_by_its_group(client: str, step: str, quick_broker: Any, name: str, copier: Start) -> None:
    """Another id takes its partitions: its offsets are refused, or its transaction times out before it goes on."""
    values = fill(quick_broker, name)
    timeout_ms = LONG_MS if step == "produced" else SHORT_MS
    zombie = copier(client, quick_broker, step, "zombie", timeout_ms)
    zombie.wait_until_it_says("paused")
    second = copier(client, quick_broker, id="second")
    second.wait_until_it_says("committed", timeout_s=60)
    zombie.goes_on()
    # franz-go does not heartbeat while it waits for the answer to its offsets, so it knows that it was removed.
    zombie.wait_until_it_says("lost" if step == "produced" or client == "franz-go" else "fenced")
    check(quick_broker, name, values, [zombie, second])
