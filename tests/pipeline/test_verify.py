"""Data directories that are whole, and all that can be wrong with them; written by the broker's own storage."""

import shutil
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

TOPIC, COMPACTED, TRANSACTIONS = "orders", "__consumer_offsets", "payments"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas of an ordinary and a compacted log, with several segments and indexes."""
    folder = tmp_path_factory.mktemp("whole")
    directory = DataDirectory(folder / "a")
    log = directory.log(TOPIC, segment_bytes=4_000, index_interval_bytes=300)
    for number in range(60):
        records = [Record(-1, NOW_MS + number, b"k", b"v" * 100) for _ in range(number % 3 + 1)]
        directory.append(log, *records, epoch=number // 20)
    offsets = directory.log(COMPACTED)
    transactions = directory.log(TRANSACTIONS)
    for producer_id in range(3):
        write(directory, transactions, producer_id)
        write(directory, transactions, producer_id)
        directory.end_transaction(transactions, producer_id, commit=producer_id != 1)
        end(directory, producer_id)
    write(directory, transactions, 7)  # open
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
    assert len(list((whole / "a" / f"{TOPIC}-0").glob("*.log"))) > 1
    _, entries = log_files.tables(spark, (str(whole / "a"),))
    kinds = [
        name for name in ("position", "timestamp_ms", "producer_id") if entries.where(f"{name} is not null").count()
    ]
    assert len(kinds) == 3, "there are indexes of all kinds"
    assert entries.count() > 20
    assert findings(spark, whole) == []


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def segment(folder: Path, number: int = 0, topic: str = TOPIC, extension: str = "log", of: str = "b") -> Path:
    return sorted((folder / of / f"{topic}-0").glob(f"*.{extension}"))[number]


def damage(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 2
    path.write_bytes(content)


def test_a_changed_byte(spark: SparkSession, folder: Path) -> None:
    path = segment(folder)
    content = bytearray(path.read_bytes())
    content[100] ^= 1  # in the first batch
    path.write_bytes(content)
    found = findings(spark, folder)
    corrupt = [one for one in found if one["finding"] == "corrupt batch"]
    assert [(one["segment"], one["position"], one["offset"]) for one in corrupt] == [(path.name, 0, 0)]
    assert corrupt[0]["directory"] == str(folder / "b")
    assert [one["offset"] for one in found if one["finding"] == "replicas differ"] == [0]


def test_a_missing_segment(spark: SparkSession, folder: Path) -> None:
    for extension in ("log", "index", "timeindex"):
        segment(folder, 1, extension=extension).unlink()
    found = findings(spark, folder)
    assert {one["finding"] for one in found} == {"offsets are missing", "replicas differ"}
    (gap,) = [one for one in found if one["finding"] == "offsets are missing"]
    assert gap["position"] == 0
    assert {one["directory"] for one in found if one["finding"] == "replicas differ"} == {str(folder / "b")}


def test_a_batch_that_is_there_twice(spark: SparkSession, folder: Path) -> None:
    path = segment(folder, -1)
    content = path.read_bytes()
    size = int.from_bytes(content[8:12], "big") + 12
    path.write_bytes(content + content[:size])
    (found,) = findings(spark, folder)
    assert (found["finding"], found["segment"], found["position"]) == ("corrupt batch", path.name, len(content))
    assert "comes behind" in found["detail"]


def test_a_leader_epoch_that_falls(spark: SparkSession, folder: Path) -> None:
    """The checksum does not cover it. Twice it rises in the log that is whole."""
    path = segment(folder, -1)
    first, second, *others = batches_of(path)
    assert int.from_bytes(second[12:16], "big") == 2
    path.write_bytes(b"".join((first, second[:12], (1).to_bytes(4, "big"), second[16:], *others)))
    offset = int.from_bytes(second[:8], "big")
    found = {one["finding"]: one for one in findings(spark, folder)}
    assert found.keys() == {"leader epoch falls", "replicas differ"}
    place = found["leader epoch falls"]
    assert (place["directory"], place["segment"], place["position"]) == (str(folder / "b"), path.name, len(first))
    assert place["detail"] == "from 2 to 1"
    assert [one["offset"] for one in found.values()] == [offset, offset]


def test_wrong_indexes(spark: SparkSession, folder: Path) -> None:
    for of, extension in (("a", "index"), ("b", "timeindex")):
        path = segment(folder, 1, extension=extension, of=of)  # the first one has no entries
        damage(path, 7)
    found = [(one["finding"], one["segment"], one["directory"]) for one in findings(spark, folder)]
    name = path.with_suffix(".log").name
    assert sorted(found) == [("wrong index", name, str(folder / of)) for of in ("a", "b")]


def test_a_replica_that_lost_the_newest_record_of_a_key(spark: SparkSession, folder: Path) -> None:
    path = segment(folder, topic=COMPACTED)
    content = path.read_bytes()
    position, kept = 0, []
    while position < len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        offset = int.from_bytes(content[position : position + 8], "big")
        if offset not in (17, 21):  # the newest record of key-2; a tombstone, which may go
            kept.append(content[position : position + size])
        position += size
    path.write_bytes(b"".join(kept))
    path.with_name(f"{22:020}.log").touch()  # the active segment, which is never cleaned, is empty
    found = [one for one in findings(spark, folder) if one["finding"] != "wrong index"]
    assert [(one["finding"], one["offset"], one["directory"]) for one in found] == [
        ("key was lost", 17, str(folder / "b"))
    ]


def batches_of(path: Path) -> list[bytes]:
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big") + 12
        found.append(content[position : position + size])
        position += size
    return found


def test_a_lost_marker(spark: SparkSession, folder: Path) -> None:
    """Batches 2, 5 and 8 are markers; without the first one producer 0 has an open transaction, which has ended."""
    path = segment(folder, topic=TRANSACTIONS)
    shutil.rmtree(folder / "a" / f"{TRANSACTIONS}-0")
    kept = batches_of(path)
    path.write_bytes(b"".join(one for number, one in enumerate(kept) if number != 2))
    found = [one for one in findings(spark, folder) if one["finding"] != "wrong index"]
    assert [(one["finding"], one["offset"]) for one in found] == [
        ("offsets are missing", 3),
        ("transaction is not whole", 1),
    ]
    assert "producer 0 has ended" in found[1]["detail"]


def test_a_transaction_index_without_an_abort_and_one_that_names_another_producer(
    spark: SparkSession, folder: Path
) -> None:
    segment(folder, topic=TRANSACTIONS, extension="txnindex", of="a").unlink()
    damage(segment(folder, topic=TRANSACTIONS, extension="txnindex"), 9)  # in the producer id
    found = findings(spark, folder)
    assert {(one["finding"], one["topic"], one["offset"]) for one in found} == {("wrong index", TRANSACTIONS, 5)}
    assert [one["directory"] for one in found].count(str(folder / "b")) == 2
    (without,) = [one for one in found if one["directory"] == str(folder / "a")]
    assert "not in the transaction index" in without["detail"]


# In which epoch a producer has begun, how it goes on, and what is wrong with that.
GOES_ON = (
    (0, {"transactional": False}, "has an open transaction"),
    (0, {"epoch": 1}, "has an open transaction"),
    (1, {"epoch": 0}, "had a higher epoch before"),
)


def test_a_producer_goes_on_in_an_open_transaction(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """The broker's log does not refuse what another broker's damaged log may hold, if it has forgotten the producer."""
    directory = DataDirectory(tmp_path / "other")
    for partition, (before, more, _) in enumerate(GOES_ON):
        log = directory.log(TRANSACTIONS, partition)
        write(directory, log, 1, before)
        log.producers.entries.clear()
        write(directory, log, 1, **more)
    directory.close()
    for name in ("a", "b"):
        shutil.rmtree(folder / name / f"{TRANSACTIONS}-0")
        for partition in range(len(GOES_ON)):
            shutil.copytree(
                tmp_path / "other" / f"{TRANSACTIONS}-{partition}", folder / name / f"{TRANSACTIONS}-{partition}"
            )
    found = [one for one in findings(spark, folder) if one["finding"] == "transaction is not whole"]
    for partition, (_, _, detail) in enumerate(GOES_ON):
        of_it = [one for one in found if one["partition"] == partition]
        assert {one["directory"] for one in of_it} == {str(folder / "a"), str(folder / "b")}
        assert {one["offset"] for one in of_it} == {1}
        assert all(detail in one["detail"] for one in of_it[:2])


def test_a_log_that_was_cut_off_between_two_batches(spark: SparkSession, folder: Path) -> None:
    """No checksum is wrong. Only the checkpoint says that there were more records."""
    path = segment(folder, -1)
    *kept, last = batches_of(path)
    path.write_bytes(b"".join(kept))
    offset = int.from_bytes(last[:8], "big")
    found = [one for one in findings(spark, folder) if one["finding"] not in ("wrong index", "replicas differ")]
    assert [(one["finding"], one["offset"], one["directory"]) for one in found] == [
        ("records are missing at the end", offset, str(folder / "b"))
    ]


def test_a_log_without_its_files(spark: SparkSession, folder: Path) -> None:
    for path in (folder / "b" / f"{TOPIC}-0").iterdir():
        path.unlink()
    found = [one for one in findings(spark, folder) if one["finding"] != "replicas differ"]
    assert [(one["finding"], one["topic"], one["offset"], one["directory"]) for one in found] == [
        ("records are missing at the end", TOPIC, 0, str(folder / "b"))
    ]


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
