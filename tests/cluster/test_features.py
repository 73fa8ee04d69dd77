"""Features on three broker processes: all hear of a change, and transactions go on while levels go up and down.

franz-go uses version 2 of transactions when it is finalised; kafka-python does not know it.
"""

import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ApiVersionsRequest, DescribeTransactionsRequest, UpdateFeaturesRequest

from cluster import NotYetError

MakeCluster = Callable[..., Any]
TV = "transaction.version"
PARTITIONS = 3
SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
}
TRANSACTOR = Path(__file__).parent.parent / "clients" / "go"


def told(cluster: Any, node_id: int) -> tuple[int, dict[str, int]]:
    """(epoch, levels) that a broker tells."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with cluster.client(node_id) as client:
        answer = client.ask(ApiKey.API_VERSIONS, 4, request)
    return answer.finalized_features_epoch, {row.name: row.max_version_level for row in answer.finalized_features}


def update(cluster: Any, level: int, upgrade_type: int, node_id: int | None = None) -> tuple[int, str | None]:
    key = UpdateFeaturesRequest.FeatureUpdateKey(feature=TV, max_version_level=level, upgrade_type=upgrade_type)
    request = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=[key])
    with cluster.client(cluster.controller() if node_id is None else node_id) as client:
        answer = client.ask(ApiKey.UPDATE_FEATURES, 1, request)
    return answer.error_code, answer.error_message


def change(cluster: Any, level: int, epoch: int) -> None:
    """Change the level, and wait until every broker has heard of it."""
    upgrade_type = 1 if level > told(cluster, cluster.controller())[1].get(TV, 0) else 2
    assert update(cluster, level, upgrade_type)[0] == ErrorCode.NONE
    all_tell(cluster, (epoch, {"group.version": 1, "metadata.version": 30, **({TV: level} if level else {})}))


def all_tell(cluster: Any, expected: tuple[int, dict[str, int]]) -> None:
    def check() -> None:
        found = {node_id: told(cluster, node_id) for node_id in cluster.processes}
        if set(map(str, found.values())) != {str(expected)}:
            raise NotYetError(str(found))

    cluster.until(check)


def test_every_broker_hears_of_a_change_and_the_next_controller_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**SETTINGS)
    all_tell(cluster, (0, {"group.version": 1, "metadata.version": 30, TV: 2}))
    first = cluster.controller()
    other = next(node_id for node_id in cluster.processes if node_id != first)
    assert update(cluster, 1, 2, other)[0] == ErrorCode.NOT_CONTROLLER
    error, message = update(cluster, 3, 1)
    assert error == ErrorCode.INVALID_UPDATE_VERSION
    assert message is not None
    assert message.endswith(f"Local controller {first} only supports versions 0-2")
    change(cluster, 1, 1)
    cluster.end_one(first, signal.SIGKILL)
    cluster.until(cluster.controller)
    all_tell(cluster, (1, {"group.version": 1, "metadata.version": 30, TV: 1}))
    change(cluster, 0, 2)
    cluster.start(first)
    all_tell(cluster, (2, {"group.version": 1, "metadata.version": 30}))
    change(cluster, 2, 3)


@pytest.fixture(scope="session")
def transactor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of transactions by franz-go."""
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain: franz-go cannot be built")
    program = tmp_path_factory.mktemp("go") / "transactor"
    subprocess.run(["go", "build", "-o", str(program), "./transactor"], cwd=TRANSACTOR, check=True, timeout=280)
    return program


class Transactions:
    """Transactions by kafka-python in a thread: how each ended, as the program of franz-go says it."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.ended: dict[int, str] = {}
        self.errors: list[str] = []
        self._bootstrap, self._topic, self._name = bootstrap, topic, name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(200)
        assert not self._thread.is_alive(), "it hangs"

    def _run(self) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        producer = None
        number = 0
        while not self._stopping.is_set():
            how = "aborted"
            try:
                if producer is None:
                    producer = KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=self._name)
                    producer.init_transactions()
                producer.begin_transaction()
                for index in range(PARTITIONS):
                    producer.send(self._topic, f"{self._name} {number}".encode(), partition=index)
                producer.flush()
                if number % 4 == 3:
                    producer.abort_transaction()
                else:
                    how = "unknown"
                    producer.commit_transaction()
                    how = "committed"
            except KafkaError as error:
                self.errors.append(repr(error))
                if producer is not None:
                    producer.close(timeout=0)
                producer = None
            self.ended[number] = how
            number += 1
        if producer is not None:
            producer.close(timeout=10)


def committed_records(bootstrap: str, topic: str) -> Counter[tuple[str, int]]:
    """How often a consumer with read_committed gets each (value, partition), up to the ends of the logs."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    ends = KafkaConsumer(bootstrap_servers=bootstrap).end_offsets(partitions)
    consumer.assign(partitions)
    found: Counter[tuple[str, int]] = Counter()
    last = time.monotonic() + 200
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        assert time.monotonic() < last, "an open transaction holds it back"
        for records in consumer.poll(timeout_ms=200).values():
            found.update((record.value.decode(), record.partition) for record in records)
    consumer.close()
    return found


@pytest.fixture
def process(transactor: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    made = []

    def start(*words: str) -> subprocess.Popen[str]:
        with (tmp_path / "transactor.out").open("w") as out, (tmp_path / "transactor.err").open("w") as err:
            made.append(
                subprocess.Popen([str(transactor), *words], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
            )
        return made[-1]

    yield start
    for one in made:
        if one.poll() is None:
            one.kill()
        one.wait()


@pytest.mark.timeout(900)
def test_transactions_go_on_while_levels_go_up_and_down(
    make_cluster: MakeCluster, process: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    cluster = make_cluster(**SETTINGS)
    cluster.create_topic("t", PARTITIONS)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    new_kind = process(bootstrap, "t", "go")
    old_kind = Transactions(bootstrap, "t", "python")

    def count() -> tuple[int, int]:
        lines = (tmp_path / "transactor.out").read_text().split("\n")
        return sum(line.startswith("committed") for line in lines), list(old_kind.ended.values()).count("committed")

    def goes_on() -> None:
        """Both commit more."""
        before = count()

        def check() -> None:
            if not all(now > then + 3 for now, then in zip(count(), before)):
                raise NotYetError(f"{before} {count()} {old_kind.errors} {(tmp_path / 'transactor.err').read_text()}")

        # franz-go pauses for 5 s after CONCURRENT_TRANSACTIONS: the markers of its last transaction took 100 ms.
        cluster.until(check)

    goes_on()
    assert producer_epoch(cluster, "go") > 3, "its epoch grows with each transaction: version 2"
    for epoch, level in enumerate((1, 2, 0, 2, 1, 0, 1, 2), 1):
        change(cluster, level, epoch)
        goes_on()
    assert new_kind.stdin is not None
    new_kind.stdin.close()
    old_kind.stop()
    new_kind.wait(200)
    assert new_kind.returncode == 0
    # Only level 0 ends a producer of version 2 that runs: it is told so, as by Kafka, and another one takes its place.
    said = (tmp_path / "transactor.err").read_text().splitlines()
    assert all("UNSUPPORTED_VERSION" in line for line in said), said
    assert len(said) <= 4
    assert old_kind.errors == []
    ended = {f"python {number}": how for number, how in old_kind.ended.items()}
    for line in (tmp_path / "transactor.out").read_text().splitlines():
        how, number = line.split()
        ended[f"go {number}"] = how
    found = committed_records(bootstrap, "t")
    for value, how in ended.items():
        counts = {found.pop((value, index), 0) for index in range(PARTITIONS)}
        assert counts in {"committed": [{1}], "aborted": [{0}], "unknown": [{0}, {1}]}[how], (value, how, counts)
    assert not found, "values that nobody has written"


def producer_epoch(cluster: Any, transactional_id: str) -> int:
    def ask() -> int:
        for node_id in cluster.processes:
            with cluster.client(node_id) as client:
                request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
                (state,) = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
            if not state.error_code:
                return int(state.producer_epoch)
        raise NotYetError(transactional_id)

    return int(cluster.until(ask))
