"""Data directories that are whole, and all that can be wrong with them; written by the broker's own storage."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.pipeline import log_files
from barnabas.pipeline.jobs import verify
from barnabas.pipeline.run import Run
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record
from barnabas.protocol.records import TransactionLogKey, TransactionLogValue, encode_versioned
from barnabas.storage.log import Log
from data_directories import NOW_MS, DataDirectory
from histories import rows
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

COMPACTED = "__consumer_offsets"
# One topic for each damage, because to look at them all costs hardly more than to look at one.
PLAIN_TOPICS = "changed", "missing", "twice", "falling", "indexes", "cut", "empty"
CHANGED, MISSING, TWICE, FALLING, INDEXES, CUT, EMPTY = PLAIN_TOPICS
TRANSACTIONAL_TOPICS = MARKERS, ABORTS, GOING_ON = "markers", "aborts", "going-on"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas of ordinary and compacted logs, with several segments and indexes, and of transactions."""
    folder = tmp_path_factory.mktemp("whole")
    directory = DataDirectory(folder / "a")
    for topic in PLAIN_TOPICS:
        log = directory.log(topic, segment_bytes=4_000, index_interval_bytes=300)
        for number in range(60):
            records = [Record(-1, NOW_MS + number, b"k", b"v" * 100) for _ in range(number % 3 + 1)]
            directory.append(log, *records, epoch=number // 20)
    for topic in TRANSACTIONAL_TOPICS:
        log = directory.log(topic)
        for producer_id in range(3):
            write(directory, log, producer_id)
            write(directory, log, producer_id)
            directory.end_transaction(log, producer_id, commit=producer_id != 1)
        write(directory, log, 7)  # open
    for producer_id in range(3):
        end(directory, producer_id)
    offsets = directory.log(COMPACTED)
    for number in range(20):
        directory.append(offsets, Record(-1, NOW_MS, b"key-%d" % (number % 5), b"%d" % number))
    directory.append(offsets, Record(-1, NOW_MS, b"gone", b"1"))
    directory.append(offsets, Record(-1, NOW_MS, b"gone", None))
    shutil.copytree(directory.close(), folder / "b")
    return folder


def write(directory: DataDirectory, log: Log, producer_id: int, epoch: int = 0, **more: Any) -> None:
    """A batch of a transaction."""
    fields = {"producer_id": producer_id, "producer_epoch": epoch, "transactional": True, **more}
    sequence = log.producers.entries[producer_id].last_sequence + 1 if producer_id in log.producers.entries else 0
    directory.append(log, Record(-1, NOW_MS, None, b"v"), base_sequence=sequence, **fields)


def end(directory: DataDirectory, producer_id: int, state: int = 4) -> None:
    """What the coordinator writes when all markers are written."""
    value = TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=60_000,
        transaction_status=state,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=NOW_MS,
        transaction_start_timestamp_ms=NOW_MS,
    )
    key = encode_versioned(TransactionLogKey(transactional_id=f"t-{producer_id}"))
    record = Record(-1, NOW_MS, key, encode_versioned(value, 0))
    directory.append(directory.log(TRANSACTIONS_TOPIC), record)


def findings(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    register(spark)
    source = Source(directories=(str(folder / "a"), str(folder / "b")))
    batches = source.table(spark, "batches", topics="*", replicas="all", until="log-end")
    records = source.table(spark, "records", topics=COMPACTED, replicas="all", isolation="read_committed")
    states = source.table(spark, "records", topics=TRANSACTIONS_TOPIC)
    logs, entries = log_files.tables(spark, source.directories)
    for table in (batches, entries):
        table.persist()
    try:
        return rows(verify.verify(batches, logs, entries, states).unionByName(verify.keys(records, logs)))
    finally:
        for table in (batches, entries):
            table.unpersist()


def test_a_whole_log_has_no_findings(spark: SparkSession, whole: Path) -> None:
    assert len(list((whole / "a" / f"{CHANGED}-0").glob("*.log"))) > 1
    _, entries = log_files.tables(spark, (str(whole / "a"),))
    kinds = [
        name for name in ("position", "timestamp_ms", "producer_id") if entries.where(f"{name} is not null").count()
    ]
    assert len(kinds) == 3, "there are indexes of all kinds"
    assert entries.count() > 20
    assert findings(spark, whole) == []


# ------------------------------------------------------------ logs that are damaged, each in its own way


def segment(folder: Path, topic: str, number: int = 0, extension: str = "log", of: str = "b") -> Path:
    return sorted((folder / of / f"{topic}-0").glob(f"*.{extension}"))[number]


def damage(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 2
    path.write_bytes(content)


def batches_of(path: Path) -> list[bytes]:
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        found.append(content[position : position + size])
        position += size
    return found


def offset_of(content: bytes) -> int:
    """Of a batch."""
    return int.from_bytes(content[:8], "big")


# In which epoch a producer has begun, how it goes on, and what is wrong with that.
GOES_ON = (
    (0, {"transactional": False}, "has an open transaction"),
    (0, {"epoch": 1}, "has an open transaction"),
    (1, {"epoch": 0}, "had a higher epoch before"),
)


def damage_all(folder: Path, other: Path) -> None:
    """What each test below says of its topic. `other`: a place for another data directory."""
    damage(segment(folder, CHANGED), 100)  # in the first batch
    for extension in ("log", "index", "timeindex"):
        segment(folder, MISSING, 1, extension).unlink()
    path = segment(folder, TWICE, -1)
    path.write_bytes(path.read_bytes() + batches_of(path)[0])
    path = segment(folder, FALLING, -1)
    first, second, *others = batches_of(path)
    assert int.from_bytes(second[12:16], "big") == 2
    path.write_bytes(b"".join((first, second[:12], (1).to_bytes(4, "big"), second[16:], *others)))
    for of, extension in (("a", "index"), ("b", "timeindex")):
        damage(segment(folder, INDEXES, 1, extension, of), 7)  # the first one has no entries
    path = segment(folder, CUT, -1)
    path.write_bytes(b"".join(batches_of(path)[:-1]))
    for path in (folder / "b" / f"{EMPTY}-0").iterdir():
        path.unlink()
    path = segment(folder, COMPACTED)
    # The newest record of key-2; a tombstone, which may go.
    path.write_bytes(b"".join(one for one in batches_of(path) if offset_of(one) not in (17, 21)))
    path.with_name(f"{22:020}.log").touch()  # the active segment, which is never cleaned, is empty
    path = segment(folder, MARKERS)
    path.write_bytes(b"".join(one for number, one in enumerate(batches_of(path)) if number != 2))
    shutil.rmtree(folder / "a" / f"{MARKERS}-0")
    segment(folder, ABORTS, extension="txnindex", of="a").unlink()
    damage(segment(folder, ABORTS, extension="txnindex"), 9)  # in the producer id
    # The broker's log does not refuse what another broker's damaged log may hold, if it has forgotten the producer.
    directory = DataDirectory(other)
    for partition, (before, more, _) in enumerate(GOES_ON):
        log = directory.log(GOING_ON, partition)
        write(directory, log, 1, before)
        log.producers.entries.clear()
        write(directory, log, 1, **more)
    directory.close()
    for name in ("a", "b"):
        shutil.rmtree(folder / name / f"{GOING_ON}-0")
        for partition in range(len(GOES_ON)):
            log_folder = f"{GOING_ON}-{partition}"
            shutil.copytree(other / log_folder, folder / name / log_folder)


@dataclass
class Found:
    """What is found in the folder."""

    folder: Path
    rows: list[dict[str, Any]]

    def of(self, topic: str, *but: str) -> list[dict[str, Any]]:
        """What is found in a topic, other than these findings."""
        return [row for row in self.rows if row["topic"] == topic and row["finding"] not in but]

    def directory(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def found(spark: SparkSession, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("damaged")
    for name in ("a", "b"):
        shutil.copytree(whole / name, folder / name)
    damage_all(folder, folder / "other")
    return Found(folder, findings(spark, folder))


def test_every_topic_has_findings(found: Found) -> None:
    assert {row["topic"] for row in found.rows} == {*PLAIN_TOPICS, *TRANSACTIONAL_TOPICS, COMPACTED}


def test_a_changed_byte(whole: Path, found: Found) -> None:
    (corrupt,) = [one for one in found.of(CHANGED) if one["finding"] == "corrupt batch"]
    assert (corrupt["segment"], corrupt["position"], corrupt["offset"]) == (segment(whole, CHANGED).name, 0, 0)
    assert corrupt["directory"] == found.directory("b")
    assert [one["offset"] for one in found.of(CHANGED) if one["finding"] == "replicas differ"] == [0]


def test_a_missing_segment(found: Found) -> None:
    rows_ = found.of(MISSING)
    assert {one["finding"] for one in rows_} == {"offsets are missing", "replicas differ"}
    (gap,) = [one for one in rows_ if one["finding"] == "offsets are missing"]
    assert gap["position"] == 0
    assert {one["directory"] for one in rows_ if one["finding"] == "replicas differ"} == {found.directory("b")}


def test_a_batch_that_is_there_twice(whole: Path, found: Found) -> None:
    path = segment(whole, TWICE, -1)
    (row,) = found.of(TWICE)
    assert (row["finding"], row["segment"], row["position"]) == ("corrupt batch", path.name, path.stat().st_size)
    assert "comes behind" in row["detail"]


def test_a_leader_epoch_that_falls(whole: Path, found: Found) -> None:
    """The checksum does not cover it. Twice it rises in the log that is whole."""
    path = segment(whole, FALLING, -1)
    first, second, *_ = batches_of(path)
    by_finding = {one["finding"]: one for one in found.of(FALLING)}
    assert by_finding.keys() == {"leader epoch falls", "replicas differ"}
    place = by_finding["leader epoch falls"]
    assert (place["directory"], place["segment"], place["position"]) == (found.directory("b"), path.name, len(first))
    assert place["detail"] == "from 2 to 1"
    assert {one["offset"] for one in by_finding.values()} == {offset_of(second)}


def test_wrong_indexes(whole: Path, found: Found) -> None:
    rows_ = sorted((one["finding"], one["segment"], one["directory"]) for one in found.of(INDEXES))
    name = segment(whole, INDEXES, 1).name
    assert rows_ == [("wrong index", name, found.directory(of)) for of in ("a", "b")]


def test_a_replica_that_lost_the_newest_record_of_a_key(found: Found) -> None:
    rows_ = [(one["finding"], one["offset"], one["directory"]) for one in found.of(COMPACTED, "wrong index")]
    assert rows_ == [("key was lost", 17, found.directory("b"))]


def test_a_lost_marker(found: Found) -> None:
    """Batches 2, 5 and 8 are markers; without the first one producer 0 has an open transaction, which has ended."""
    gap, transaction = sorted(found.of(MARKERS, "wrong index"), key=lambda one: str(one["finding"]))
    assert (gap["finding"], gap["offset"]) == ("offsets are missing", 3)
    assert (transaction["finding"], transaction["offset"]) == ("transaction is not whole", 1)
    assert "producer 0 has ended" in transaction["detail"]


def test_a_transaction_index_without_an_abort_and_one_that_names_another_producer(found: Found) -> None:
    rows_ = found.of(ABORTS)
    assert {(one["finding"], one["offset"]) for one in rows_} == {("wrong index", 5)}
    assert [one["directory"] for one in rows_].count(found.directory("b")) == 2
    (without,) = [one for one in rows_ if one["directory"] == found.directory("a")]
    assert "not in the transaction index" in without["detail"]


def test_a_producer_goes_on_in_an_open_transaction(found: Found) -> None:
    for partition, (_, _, detail) in enumerate(GOES_ON):
        of_it = [
            one
            for one in found.of(GOING_ON)
            if (one["finding"], one["partition"]) == ("transaction is not whole", partition)
        ]
        assert {one["directory"] for one in of_it} == {found.directory("a"), found.directory("b")}
        assert {one["offset"] for one in of_it} == {1}
        assert all(detail in one["detail"] for one in of_it[:2])


def test_a_log_that_was_cut_off_between_two_batches(whole: Path, found: Found) -> None:
    """No checksum is wrong. Only the checkpoint says that there were more records."""
    (row,) = found.of(CUT, "wrong index", "replicas differ")
    assert (row["finding"], row["directory"]) == ("records are missing at the end", found.directory("b"))
    assert row["offset"] == offset_of(batches_of(segment(whole, CUT, -1))[-1])


def test_a_log_without_its_files(found: Found) -> None:
    (row,) = found.of(EMPTY, "replicas differ")
    assert (row["finding"], row["directory"]) == ("records are missing at the end", found.directory("b"))
    assert row["offset"] == 0


def test_offsets_that_fall_between_two_buffers(spark: SparkSession) -> None:
    """A reader sees a few megabytes at once; here are two batches of which it has seen each in another buffer."""
    columns = "directory string, topic string, partition int, segment string, position bigint"
    place = ("d", "t", 0, "s")
    rows_ = [(*place, 0, 0, 9), (*place, 90, 10, 19), (*place, 180, 15, 29), (*place, 270, 30, 39)]
    good = spark.createDataFrame(rows_, f"{columns}, base_offset bigint, last_offset bigint")
    (found,) = rows(verify.offsets(good, F.lit(False))[1])
    assert (found["offset"], found["position"], found["detail"]) == (15, 180, "the batch before it ends at offset 19")


def test_what_the_cleaners_of_two_replicas_have_done(spark: SparkSession, tmp_path: Path) -> None:
    """One has cleaned a topic that nobody named, and the offsets; retention has taken a record of the other."""
    for name in ("a", "b"):
        directory = DataDirectory(tmp_path / name)
        for topic in (COMPACTED, "state"):
            log = directory.log(topic)
            directory.append(log, Record(-1, NOW_MS, b"old", b"0"))
            directory.append(log, Record(-1, NOW_MS, b"k", b"1"))
            write(directory, log, 5)
            fields = {"producer_id": 5, "producer_epoch": 0, "transactional": True, "base_sequence": 1}
            directory.append(log, Record(-1, NOW_MS, b"k", b"aborted"), **fields)
            directory.end_transaction(log, 5, commit=False)
            directory.append(log, Record(-1, NOW_MS, b"z", b"2"))
            if name == "b":
                directory.manager.checkpoint()
                path = tmp_path / "b" / f"{topic}-0" / "00000000000000000000.log"
                first, second, _, _, marker, last = batches_of(path)
                path.write_bytes(b"".join((second, marker, last)))
                path.rename(path.with_name(f"{1:020}.log"))
                assert first
        directory.close()
        for topic in (COMPACTED, "state"):
            left = tmp_path / name / f"{topic}-0"
            assert len(list(left.glob("*.log"))) == 1
    (tmp_path / "b" / "cleaner-offset-checkpoint").write_text(f"0\n2\nstate 0 5\n{COMPACTED} 0 5\n")
    source = Source(directories=(str(tmp_path / "a"), str(tmp_path / "b")))
    run = Run(spark, source, str(tmp_path / "out"), {"compacted": (COMPACTED,)})
    register(spark)
    assert run_job("verify", run).rows == []
