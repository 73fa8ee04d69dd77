"""`barnabas offsets set … --live`, with clients as they are: they read on from the new offsets, and skip nothing.

Two members read and commit while a producer writes. After the live reset every partition is read from the new offset
on, without a gap, and what is committed at the end is the end of the log.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.cli.shared.kafka_python import describe_consumer_groups
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

pytestmark = [
    pytest.mark.skipif("CLIENTS_BROKER_COMMAND" in os.environ, reason="Apache Kafka has no live reset"),
]
FOLDER = Path(__file__).resolve().parent
PARTITIONS = 3
BEFORE = 300  # records in each partition when the live reset comes
TARGET = 100
BARNABAS = [sys.executable, "-m", "barnabas"]


class Reader:
    """A process of live_reader.py, or its like, and what it has printed."""

    def __init__(self, command: list[str]) -> None:
        self.process = forked.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines: list[tuple[float, int, int]] = []  # when, partition, offset
        self.errors: list[str] = []
        for work in (self._listen, self._listen_to_errors):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            partition, offset = line.split()
            self.lines.append((time.monotonic(), int(partition), int(offset)))

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def end(self) -> None:
        """Kill it, and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def readers() -> Iterator[Callable[[list[str]], Reader]]:
    started: list[Reader] = []

    def start(command: list[str]) -> Reader:
        started.append(Reader(command))
        return started[-1]

    yield start
    for one in started:
        one.end()


class Writer:
    """Writes to all partitions in turn, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self._producer = KafkaProducer(bootstrap_servers=bootstrap)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            slow = min(self.ends.values()) >= BEFORE
            for partition in self.ends:
                self._producer.send(self._topic, b"x", partition=partition)
                self.ends[partition] += 1
            self._producer.flush()
            if slow:
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop, and close."""
        self._stop.set()
        self._thread.join()
        self._producer.close()


def story(
    broker: Any, name: str, command: Callable[[str], list[str]], readers: Callable[..., Reader], wait_until: Any
) -> dict[str, Any]:
    """Read, reset, read on; returns what the command has said. `command(number)` starts a reader."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    writer = Writer(broker.bootstrap, name)
    members = [readers(command(str(number))) for number in range(2)]
    try:

        def position(partition: int) -> int:
            return max((offset for one in members for _, index, offset in one.lines if index == partition), default=-1)

        def described() -> list[Any]:
            groups = admin.describe_groups([name]) | describe_consumer_groups(admin, [name])
            return [group["members"] for group in groups.values() if group["group_state"] == "Stable"]

        # Both members read and commit when the live reset comes.
        wait_until(lambda: all(position(index) >= BEFORE for index in range(PARTITIONS)))
        wait_until(lambda: [*map(len, described())] == [2])  # kafka-python may leave all partitions to one
        before = sum(len(one.lines) for one in members)
        where = ("--bootstrap", broker.bootstrap, "--timeout", "60")
        done = forked.run(
            [*BARNABAS, *("offsets", "set", name, "--to", str(TARGET), "--live", "--yes", "--json"), *where],
            capture_output=True,
            text=True,
            timeout=200,
        )
        errors = "".join(line for one in members for line in one.errors[-5:])
        assert done.returncode == 0, done.stdout + done.stderr + errors
        told = json.loads(done.stdout)
        wait_until(lambda: sum(len(one.lines) for one in members) > before + BEFORE)
    finally:
        writer.stop()

    def committed() -> dict[int, int]:
        found = admin.list_group_offsets(name)[name]
        return {index: found[TopicPartition(name, index)].offset for index in range(PARTITIONS)}

    wait_until(lambda: committed() == writer.ends)
    for one in members:
        one.end()
    admin.close()
    read = sorted((at, index, offset) for one in members for at, index, offset in one.lines)
    for partition, end in writer.ends.items():
        offsets = [offset for _, index, offset in read if index == partition]
        again = [place for place, offset in enumerate(offsets) if offset == TARGET]
        assert len(again) >= 2, f"partition {partition} was not read again from {TARGET}"
        assert set(offsets[again[-1] :]) >= set(range(TARGET, end)), f"something of partition {partition} is skipped"
    return told


def check_told(told: dict[str, Any]) -> None:
    """What the command says of members and partitions."""
    assert len(told["members"]) == 2
    assert all(member["is"] is not None for member in told["members"])
    assert sorted(tuple(key) for member in told["members"] for key in member["partitions"])[0][1] == 0
    assert [row["offset"] for row in told["offsets"]] == [TARGET] * PARTITIONS
    assert all(row["verified"] and row["before"] > TARGET for row in told["offsets"])


@pytest.mark.takes_turns("mode")
@pytest.mark.parametrize(
    ("client", "mode", "static"),
    [
        ("kafka-python", "eager", False),
        ("kafka-python", "cooperative", True),
        ("aiokafka", "eager", False),
        ("aiokafka", "eager", True),
        ("confluent-kafka", "eager", True),
        ("confluent-kafka", "cooperative", False),
        ("confluent-kafka", "consumer", False),
        ("confluent-kafka", "consumer", True),
    ],
)
def test_live(
    broker: Any, name: str, client: str, mode: str, static: bool, readers: Callable[..., Reader], wait_until: Any
) -> None:
    def command(number: str) -> list[str]:
        instance = f"instance-{number}" if static else "-"
        return [sys.executable, str(FOLDER / "live_reader.py"), client, broker.bootstrap, name, mode, instance]

    check_told(story(broker, name, command, readers, wait_until))


def test_a_member_that_does_not_come_back_is_told(
    broker: Any, name: str, readers: Callable[..., Reader], wait_until: Any
) -> None:
    """Also when members take longer than a broker may take for an answer."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    KafkaProducer(bootstrap_servers=broker.bootstrap).send(name, b"x", partition=0).get(200)
    words = ["kafka-python", broker.bootstrap, name, "eager", "-"]
    reader = readers([sys.executable, str(FOLDER / "live_reader.py"), *words])
    wait_until(lambda: reader.lines)
    os.killpg(reader.process.pid, signal.SIGSTOP)
    command = ["offsets", "set", name, "--topic", name, "--to", "0", "--live", "--live-wait", "4", "--timeout", "2"]
    done = forked.run(
        [*BARNABAS, *command, "--yes", "--bootstrap", broker.bootstrap], capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, "not back after 4 s: 1 of 1 member." in done.stderr) == (1, True), done


@pytest.fixture(scope="module")
def go_reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain: franz-go cannot be built")
    program = tmp_path_factory.mktemp("go") / "reader"
    subprocess.run(["go", "build", "-o", str(program), "./livereader"], cwd=FOLDER / "go", check=True, timeout=280)
    return str(program)


@pytest.mark.timeout(400)
@pytest.mark.takes_turns("mode")
@pytest.mark.parametrize(("mode", "static"), [("eager", False), ("cooperative", False), ("cooperative", True)])
def test_live_franz_go(
    broker: Any, name: str, go_reader: str, mode: str, static: bool, readers: Callable[..., Reader], wait_until: Any
) -> None:
    def command(number: str) -> list[str]:
        return [go_reader, broker.bootstrap, name, mode, f"instance-{number}" if static else "-"]

    check_told(story(broker, name, command, readers, wait_until))


JAVA_LIBRARIES = os.environ.get("KAFKA_CONSOLE_LIBRARIES")  # a folder with the jars of Apache Kafka's distribution


@pytest.mark.skipif(
    JAVA_LIBRARIES is None or shutil.which("java") is None, reason="KAFKA_CONSOLE_LIBRARIES names no jars of Kafka"
)
@pytest.mark.takes_turns("mode")
@pytest.mark.parametrize(
    ("mode", "static"),
    [("eager", False), ("cooperative", False), ("cooperative", True), ("consumer", False), ("consumer", True)],
)
def test_live_java(
    broker: Any, name: str, mode: str, static: bool, readers: Callable[..., Reader], wait_until: Any, tmp_path: Path
) -> None:
    """Kafka's console consumer, which commits by itself."""
    script = tmp_path / "reader.sh"
    properties = {
        "group.id": name,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": "100",
        "max.poll.records": "5",
    }
    if mode == "consumer":
        properties["group.protocol"] = "consumer"
    else:
        assignor = "CooperativeStickyAssignor" if mode == "cooperative" else "RangeAssignor"
        properties["heartbeat.interval.ms"] = "200"
        properties["partition.assignment.strategy"] = f"org.apache.kafka.clients.consumer.{assignor}"
    given = " ".join(f"--consumer-property {key}={value}" for key, value in properties.items())
    script.write_text(
        f"""java -Xmx128m -cp '{JAVA_LIBRARIES}/*' org.apache.kafka.tools.consumer.ConsoleConsumer \\
  --bootstrap-server {broker.bootstrap} --topic {name} --consumer-property "$1" {given} \\
  --property print.partition=true --property print.offset=true --property print.value=false \\
  | sed -un 's/Partition:\\([0-9]*\\)\\tOffset:\\([0-9]*\\).*/\\1 \\2/p'
"""
    )

    def command(number: str) -> list[str]:
        return ["sh", str(script), f"group.instance.id=instance-{number}" if static else f"client.id=c{number}"]

    check_told(story(broker, name, command, readers, wait_until))
