"""`barnabas offsets export|import`: between two brokers whose logs differ, and with an Apache Kafka on either side."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import forked
import pytest
from barnabas.cli.shared.client import answered, await_coordinators, changed
from barnabas.pipeline.wire import EARLIEST, LATEST, READ_UNCOMMITTED, Cluster, fetch_request
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TIME = 1_700_000_000_000


def run(at: str, *words: str, code: int = 0, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `barnabas offsets …` to its end."""
    return forked.barnabas("offsets", *words, "--bootstrap", at, code=code, given=given)


def create(at: str, name: str, partitions: int = 1, **configs: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=at)
    configs = {"retention.ms": "-1", **configs}  # the records below are old
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    admin.close()


def batch(number: int, records: int = 5) -> bytes:
    """A batch of a producer without sequence numbers, at a time of its own."""
    rows = [
        Record(
            timestamp=TIME + number * 1000 + index, key=b"k%d" % (index % 2), value=b"value %d of %d" % (index, number)
        )
        for index in range(records)
    ]
    return bytes(record_batch.build(rows))


def batches_of(at: str, topic: str, partition: int = 0) -> list[bytes]:
    """All batches of a log, as they are."""
    found: list[bytes] = []
    with Cluster([at]) as cluster:
        cluster.refresh([topic])
        offset = cluster.offsets([(topic, partition)], EARLIEST)[topic, partition]
        end = cluster.offsets([(topic, partition)], LATEST)[topic, partition]
        while offset < end:
            request = fetch_request(topic, partition, offset, 2**20, READ_UNCOMMITTED)
            leader = cluster.leader_of(topic, partition)
            assert leader is not None
            ((row,),) = (one.partitions for one in cluster.send(leader, ApiKey.FETCH, request).receive().responses)
            for header, content in record_batch.batches(bytes(row.records)):
                found.append(bytes(content))
                offset = header.last_offset + 1
    return found


def write(at: str, topic: str, batches: Sequence[bytes], partition: int = 0) -> None:
    """Append batches with the bytes that they have."""
    with Cluster([at]) as cluster:
        for one in batches:
            content = bytearray(one)
            record_batch.patch(content, 0, 0, -1)
            rows = [messages.ProduceRequest.PartitionProduceData(index=partition, records=content)]
            topics = [messages.ProduceRequest.TopicProduceData(name=topic, partition_data=rows)]
            request = messages.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            while error == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # a leader that does not know it yet
                cluster.refresh([topic])
                leader = cluster.leader_of(topic, partition)
                if leader is not None:
                    (answer,) = cluster.send(leader, ApiKey.PRODUCE, request).receive().responses
                    error = answer.partition_responses[0].error_code
            assert error == ErrorCode.NONE


def commit(at: str, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
    admin = KafkaAdminClient(bootstrap_servers=at)
    wanted = {TopicPartition(*key): OffsetAndMetadata(offset, metadata, 0) for key, offset in offsets.items()}
    await_coordinators(admin, [group])  # makes the offsets topic
    assert not any(error.errno for error in changed(admin, lambda: admin.alter_group_offsets(group, wanted)).values())
    admin.close()


def committed(at: str, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    admin = KafkaAdminClient(bootstrap_servers=at)
    found = answered(admin, lambda: admin.list_group_offsets(group))[group]
    admin.close()
    return {(key.topic, key.partition): (one.offset, one.metadata) for key, one in found.items() if one.offset >= 0}


def plan(at: str, path: Path, *words: str, code: int = 0) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What `import` would do, by group, topic and partition."""
    shown = json.loads(run(at, "import", str(path), "--dry-run", "--json", *words, code=code).stdout)
    return {(row["group"], row["topic"], row["partition"]): row for row in shown["positions"]}


# ---- the brokers ----


@pytest.fixture(scope="module")
def apache_kafka() -> Iterator[str]:
    """An Apache Kafka, if its jars are there (`python -m bench.apache_kafka fetch`)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "barnabas-bench-kafka-4.1.0"
    if shutil.which("java") is None or not ("KAFKA_JARS" in os.environ or list(cache.glob("kafka_2.13-*.jar"))):
        pytest.skip("needs java and Kafka's jars")
    command = [sys.executable, "-m", "bench.apache_kafka", "start", str(free_port())]
    environment = os.environ | {"KAFKA_HEAP": "400m"}
    process = forked.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(200)


@pytest.fixture(params=["barnabas to barnabas", "barnabas to kafka", "kafka to barnabas"])
def pair(request: pytest.FixtureRequest, broker: Any) -> tuple[str, str]:
    """Where offsets come from, and where they go."""
    source, _, target = request.param.split()
    at: dict[str, str] = {"barnabas": broker.bootstrap}
    if "kafka" in (source, target):
        at["kafka"] = request.getfixturevalue("apache_kafka")
        return at[source], at[target]
    return broker.bootstrap, request.getfixturevalue("other_broker").bootstrap


def test_positions_move_to_a_log_with_other_offsets(pair: tuple[str, str], name: str, tmp_path: Path) -> None:
    """The copy has the same batches behind others: so every position is found again, also inside of a batch."""
    source, target = pair
    for at in pair:
        create(at, name, 2)
    batches = [batch(number) for number in range(20)]
    write(source, name, batches)
    write(source, name, batches[:3], partition=1)
    write(target, name, [batch(1000 + number, 3) for number in range(4)])  # 12 offsets
    write(target, name, batches)
    write(target, name, batches[:3], partition=1)
    for group, offset in (("begin", 0), ("inside", 42), ("edge", 45), ("end", 100)):
        commit(source, f"{group}-{name}", {(name, 0): offset, (name, 1): 7}, metadata=f"of {group}")
    path = tmp_path / "offsets.jsonl"
    groups = [word for group in ("begin", "inside", "edge", "end") for word in ("--group", f"{group}-{name}")]
    run(source, "export", str(path), *groups)
    found = plan(target, path)
    assert {key[0].split("-")[0]: row["new_offset"] for key, row in found.items() if key[2] == 0} == {
        "begin": 12,
        "inside": 54,
        "edge": 57,
        "end": 112,
    }
    assert {row["how"] for key, row in found.items() if key[2] == 0} == {"found"}
    assert {(row["how"], row["new_offset"]) for key, row in found.items() if key[2] == 1} == {("proved", 7)}
    assert committed(target, f"begin-{name}") == {}
    assert "--yes" in run(target, "import", str(path), code=2).stderr
    run(target, "import", str(path), "--yes")
    assert committed(target, f"inside-{name}") == {(name, 0): (54, "of inside"), (name, 1): (7, "of inside")}
    # Again: nothing is left to do.
    assert {row["result"] for row in plan(target, path).values()} == {"there already"}
    consumer = KafkaConsumer(bootstrap_servers=target, group_id=f"inside-{name}", consumer_timeout_ms=10_000)
    consumer.assign([TopicPartition(name, 0)])
    assert next(consumer).value == b"value 2 of 8"
    consumer.close(autocommit=False)


@pytest.fixture
def backed_up(broker: Any, name: str, tmp_path: Path) -> Callable[..., Path]:
    """Writes batches into a new topic, commits these offsets for a group, and exports it."""

    def make(offsets: dict[int, int], batches: Sequence[bytes] = (), **configs: str) -> Path:
        create(broker.bootstrap, name, 1 + max(offsets), **configs)
        for partition in offsets:
            write(broker.bootstrap, name, batches or [batch(number) for number in range(10)], partition)
        commit(broker.bootstrap, name, {(name, partition): offset for partition, offset in offsets.items()})
        path = tmp_path / "offsets.jsonl"
        run(broker.bootstrap, "export", str(path), "--group", name)
        return path

    return make


def move_log_start(at: str, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=at)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_the_same_cluster_takes_its_own_backup(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    at = broker.bootstrap
    path = backed_up({0: 23, 1: 50})
    commit(at, name, {(name, 0): 1, (name, 1): 2})
    done = run(at, "import", str(path), "--yes")
    assert "2 committed" in done.stderr
    assert committed(at, name) == {(name, 0): (23, ""), (name, 1): (50, "")}
    run(at, "delete", name, "--topic", name, "--yes")
    run(at, "import", str(path), "--yes")
    assert committed(at, name) == {(name, 0): (23, ""), (name, 1): (50, "")}


def test_a_topic_that_was_made_again(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    at = broker.bootstrap
    path = backed_up({0: 23, 1: 50})
    old = [batches_of(at, name, partition) for partition in (0, 1)]
    admin = KafkaAdminClient(bootstrap_servers=at)
    admin.delete_topics([name])
    while name in admin.list_topics():
        time.sleep(0.1)
    admin.close()
    create(at, name, 2)
    write(at, name, old[0][1:])  # the first batch is lost
    (zero, one) = plan(at, path, code=1).values()
    assert (zero["how"], zero["new_offset"]) == ("found", 18)
    assert (one["how"], one["new_offset"]) == ("not placed", None)
    assert "the log is empty" in one["note"]
    write(at, name, old[1], partition=1)
    (zero, one) = plan(at, path).values()
    assert (one["how"], one["new_offset"]) == ("proved", 50)


def test_a_log_start_that_has_moved(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    path = backed_up({0: 23})
    for start, expected, how in ((20, 23, "proved"), (22, 23, "proved"), (24, 24, "proved"), (35, 35, "kept")):
        move_log_start(broker.bootstrap, name, start)
        (row,) = plan(broker.bootstrap, path).values()
        assert (row["new_offset"], row["how"]) == (expected, how), start
    assert "deleted" in row["note"]


def test_compaction_does_not_move_a_position(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    compacted = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"}
    path = backed_up({0: 23}, **compacted, **{"max.compaction.lag.ms": "1"})
    at = broker.bootstrap
    (row,) = [json.loads(line) for line in path.read_text().splitlines() if '"position"' in line]
    write(at, name, [batch(number) for number in range(10, 40)])
    deadline = time.monotonic() + 200
    while row["batch"]["crc"] in [record_batch.read_header(one).crc for one in batches_of(at, name)]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (placed,) = plan(at, path).values()
    assert (placed["new_offset"], placed["how"]) in ((23, "proved"), (23, "kept"))
    assert "compaction" in placed["note"]


def test_what_cannot_be_placed_is_said(
    broker: Any, other_broker: Any, name: str, backed_up: Callable[..., Path]
) -> None:
    at = other_broker.bootstrap
    path = backed_up({0: 23, 1: 23, 2: 50})
    assert "there is no topic" in run(at, "import", str(path), "--yes", code=1).stderr
    create(at, name, 2)
    same = batch(4)
    write(at, name, [batch(1000), same, same, batch(2000)])
    write(at, name, [batch(number) for number in range(10)], partition=1)
    refused = run(at, "import", str(path), "--yes", code=1)
    assert f"{name} {name}-0: not placed: the same record is at 8, 13" in refused.stderr
    assert f"{name} {name}-2: not placed: {name} has only 2 partitions here" in refused.stderr
    assert committed(at, name) == {(name, 1): (23, "")}  # what is proved is committed


def test_the_search_has_a_limit(broker: Any, other_broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    at = other_broker.bootstrap
    path = backed_up({0: 23})
    create(at, name)
    large = bytes(record_batch.build([Record(timestamp=TIME + 4_003, value=bytes(700_000))]))
    write(at, name, [large, large, large, large, batch(4)])
    (row,) = plan(at, path, "--search-mb", "1", code=1).values()
    assert row["how"] == "not placed"
    assert "1 MB were searched, up to offset 2 (see --search-mb)" in row["note"]
    (row,) = plan(at, path).values()
    assert (row["how"], row["new_offset"]) == ("found", 7)


def test_a_topic_that_has_another_name_there(
    broker: Any, other_broker: Any, name: str, backed_up: Callable[..., Path]
) -> None:
    at = other_broker.bootstrap
    path = backed_up({0: 23})
    create(at, f"primary.{name}")
    write(at, f"primary.{name}", [batch(number) for number in range(3, 10)])
    run(at, "import", str(path), "--rename", f"{name}=primary.{name}", "--yes")
    assert committed(at, name) == {(f"primary.{name}", 0): (8, "")}
    run(at, "import", str(path), "--rename", "nonsense", code=2)


def test_a_group_with_members_is_left_as_it_is(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    path = backed_up({0: 23})
    consumer = KafkaConsumer(name, bootstrap_servers=broker.bootstrap, group_id=name, enable_auto_commit=False)
    try:
        while not consumer.assignment():
            consumer.poll(1000)
        refused = run(broker.bootstrap, "import", str(path), "--yes", code=1)
    finally:
        consumer.close(autocommit=False)
    assert "the group has members" in refused.stderr
    run(broker.bootstrap, "import", str(path), "--yes")


def test_an_empty_topic(broker: Any, other_broker: Any, name: str, tmp_path: Path) -> None:
    create(broker.bootstrap, name)
    commit(broker.bootstrap, name, {(name, 0): 0})
    path = tmp_path / "offsets.jsonl"
    run(broker.bootstrap, "export", str(path), "--group", name)
    create(other_broker.bootstrap, name)
    write(other_broker.bootstrap, name, [batch(1)])
    (row,) = plan(other_broker.bootstrap, path).values()
    assert row["new_offset"] == 0


def test_a_commit_past_the_end_is_exported_and_refused(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    path = backed_up({0: 51})
    assert '"offset":51' in path.read_text()
    assert "past the end of its log (50)" in run(broker.bootstrap, "import", str(path), "--yes", code=1).stderr


def test_through_a_pipe(broker: Any, name: str, backed_up: Callable[..., Path]) -> None:
    at = broker.bootstrap
    path = backed_up({0: 23})
    shown = run(at, "export", "-", "--group", name)
    assert shown.stdout.splitlines()[1:] == path.read_text().splitlines()[1:] or shown.stdout.count("\n") == 3
    commit(at, name, {(name, 0): 1})
    run(at, "import", "-", "--yes", given=shown.stdout)
    assert committed(at, name) == {(name, 0): (23, "")}


def test_a_file_is_whole_or_not_there(broker: Any, name: str, backed_up: Callable[..., Path], tmp_path: Path) -> None:
    at = broker.bootstrap
    path = backed_up({0: 23})
    content = path.read_bytes()
    assert [one.name for one in tmp_path.iterdir()] == ["offsets.jsonl"]
    run(at, "export", str(path), "--group", "no-such-group", code=3)
    run(at, "export", str(tmp_path / "no" / "folder"), "--group", name, code=2)
    run(at, "export", str(tmp_path), "--group", name, code=2)
    assert path.read_bytes() == content
    lines = content.splitlines(keepends=True)
    for damaged, word in (
        (lines[:-1], "it was cut off"),
        ([lines[0], lines[1].replace(b'"offset":23', b'"offset":24'), lines[2]], "line 2 was changed"),
        ([lines[0].replace(b'"version":1', b'"version":9'), *lines[1:]], "version 9"),
    ):
        path.write_bytes(b"".join(damaged))
        assert word in run(at, "import", str(path), "--yes", code=2).stderr
    run(at, "import", str(tmp_path / "nothing"), code=3)
    path.write_bytes(content)
    run(at, "import", str(path), "--group", "no-such-group", code=3)


def test_one_of_many_groups(broker: Any, name: str, tmp_path: Path) -> None:
    at = broker.bootstrap
    create(at, name)
    write(at, name, [batch(number) for number in range(10)])
    for number in range(150):  # more than one request takes
        commit(at, f"{name}-{number}", {(name, 0): number % 50})
    path = tmp_path / "offsets.jsonl"
    run(at, "export", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    mine = {row["group"]: row["offset"] for row in rows if row.get("topic") == name}
    assert mine == {f"{name}-{number}": number % 50 for number in range(150)}
    found = plan(at, path, "--group", f"{name}-77")
    assert [(row["how"], row["new_offset"]) for row in found.values()] == [("proved", 27)]


@pytest.mark.parametrize("word", ["export", "import"])
def test_help_teaches_by_example(broker: Any, word: str) -> None:
    assert f"barnabas offsets {word} offsets.jsonl" in run(broker.bootstrap, word, "--help").stdout


def mirror(source: str, target: str, topic: str, per_batch: int, compression: str | None) -> None:
    """Copy the records as MirrorMaker does: a consumer reads them, and an idempotent producer makes other batches."""
    consumer = KafkaConsumer(bootstrap_servers=source, consumer_timeout_ms=2_000, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    producer = KafkaProducer(
        bootstrap_servers=target, compression_type=compression, linger_ms=10_000, enable_idempotence=True
    )
    for number, record in enumerate(list(consumer)):
        producer.send(
            topic,
            record.value,
            key=record.key,
            headers=list(record.headers),
            timestamp_ms=record.timestamp,
            partition=0,
        )
        if number % per_batch == per_batch - 1:
            producer.flush()
    producer.close()
    consumer.close(autocommit=False)


def test_a_mirrored_topic_has_other_batches(pair: tuple[str, str], name: str, tmp_path: Path) -> None:
    """Only the records are the same; some are older than those before them, some have headers, some are alike."""
    source, target = pair
    for at in pair:
        create(at, name)
    rows = [
        Record(
            timestamp=TIME + number - 40 * (number % 7 == 0),
            key=None if number % 3 else b"key",
            value=None if number % 33 == 0 else b"alike" if number % 2 else b"value %d" % number,
            headers=[("from", b"test"), ("empty", b"")] if number % 4 == 0 else [],
        )
        for number in range(100)
    ]
    write(source, name, [bytes(record_batch.build(rows[start : start + 10])) for start in range(0, 90, 10)])
    write(target, name, [batch(-10, 3)])
    mirror(source, target, name, 7, "gzip")
    places = [0, 1, 10, 45, 89, 90]
    for offset in places:
        commit(source, f"{name}-{offset}", {(name, 0): offset})
    path = tmp_path / "offsets.jsonl"
    run(source, "export", str(path), *(word for offset in places for word in ("--group", f"{name}-{offset}")))
    found = plan(target, path)
    assert {row["in_the_file"]: row["new_offset"] for row in found.values()} == {one: one + 3 for one in places}
    assert {row["how"] for row in found.values()} == {"found by records"}
    # The last records of the source are not here yet.
    write(source, name, [bytes(record_batch.build(rows[90:]))])
    commit(source, name, {(name, 0): 95})
    run(source, "export", str(path), "--group", name)
    (row,) = plan(target, path, code=1).values()
    assert "neither its batch nor its record is there" in row["note"]
    # The same records twice: nothing is guessed.
    mirror(target, target, name, 13, None)
    commit(source, name, {(name, 0): 45})
    run(source, "export", str(path), "--group", name)
    (row,) = plan(target, path, code=1).values()
    assert "the same record is at 48, 141" in row["note"]


def test_positions_behind_transactions(apache_kafka: str, broker: Any, name: str, tmp_path: Path) -> None:
    """A consumer stands at the control record of a transaction, or behind it. A mirrored copy has no such records."""
    source, target = apache_kafka, broker.bootstrap
    for at in (source, target):
        create(at, name)
    writer = confluent_kafka.Producer({"bootstrap.servers": source, "transactional.id": name})
    writer.init_transactions()
    for number in range(4):  # offsets 0 to 4, a marker at 5, 6 to 10, a marker at 11, …
        writer.begin_transaction()
        for index in range(5):
            writer.produce(name, b"%d-%d" % (number, index), partition=0)
        writer.commit_transaction()
    places = {0: 0, 5: 5, 6: 5, 8: 7, 11: 10, 23: 20, 24: 20}  # in the copy
    for offset in places:
        commit(source, f"{name}-{offset}", {(name, 0): offset})
    path = tmp_path / "offsets.jsonl"
    run(source, "export", str(path), *(word for offset in places for word in ("--group", f"{name}-{offset}")))
    mirror(source, target, name, 8, None)
    found = plan(target, path)
    assert {row["in_the_file"]: row["new_offset"] for row in found.values()} == places
    commit(source, f"{name}-0", {(name, 0): 1})
    assert {row["how"] for row in plan(source, path).values()} == {"proved"}
