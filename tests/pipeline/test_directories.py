"""Tables from data directories, compared with what the broker's own decoders say about the same files."""

import os
import shutil
import struct
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.coordinators.groups.records import GroupRecord
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset, encode_key, encode_value
from barnabas.pipeline import segment_reading
from barnabas.pipeline.aside import CorruptLogError
from barnabas.pipeline.condition_text import read_conditions
from barnabas.pipeline.directories import TIME_ENTRY, Log, entries_of, logs_of
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.options import read_options
from barnabas.pipeline.schemas import TABLES
from barnabas.pipeline.segment_reading import ended_transactions, log_end
from barnabas.pipeline.sources import FilteringLogReader, register
from barnabas.protocol import records as stored
from barnabas.protocol import uuids
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, TOPIC_ID, DataDirectory, read_aside
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, IsNull, LessThan, Not

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


def read(table: str, *filters: Any, columns: str = "", **options: Any) -> list[Row]:
    """What a query gets, without Spark."""
    given = {name: str(value) for name, value in options.items()} | {"columns": columns}
    checked = read_options(given)
    fields = [field for field in TABLES[table].spark.fields if not checked.columns or field.name in checked.columns]
    reader = FilteringLogReader(TABLES[table], type(TABLES[table].spark)(fields), checked)
    assert list(reader.pushFilters(list(filters))) == []
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def time_of(milliseconds: int) -> datetime | None:
    return None if milliseconds == -1 else datetime.fromtimestamp(milliseconds / 1000, UTC)


def some_commits(directory: DataDirectory, seed: int, count: int) -> list[Row]:
    """Commits in two partitions of the offsets topic, in small segments; and the rows that they are."""
    rng = Random(seed)
    logs = [directory.log(OFFSETS, one, segment_bytes=4000, index_interval_bytes=200) for one in (0, 3)]
    rows: list[Row] = []
    for _ in range(count):
        log = rng.choice(logs)
        group = rng.choice(("billing", "größe", "g" * 300))
        offsets: dict[tuple[str, int], CommittedOffset | None] = {}
        for partition in rng.sample(range(8), rng.choice((1, 1, 3, 8))):
            committed = CommittedOffset(
                rng.choice((0, 7, 1 << 50)),
                rng.choice((-1, 0, 9)),
                rng.choice(("", "", "", "m", "ä" * 100)),
                rng.choice((NOW_MS, NOW_MS + 1, -1)),
                rng.choice((-1, -1, NOW_MS + 5)),
                rng.choice((NO_TOPIC_ID, TOPIC_ID)),
            )
            if committed.expire_timestamp >= 0:
                committed.leader_epoch, committed.topic_id = -1, NO_TOPIC_ID  # the old version has neither
            offsets[rng.choice(("orders", "events")), partition] = None if rng.random() < 0.2 else committed
        base = directory.commit(log, group, offsets)
        for delta, ((topic, partition), one) in enumerate(offsets.items()):
            rows.append(
                {
                    "group_id": group,
                    "topic": topic,
                    "topic_id": None if one is None or one.topic_id == NO_TOPIC_ID else uuids.to_text(one.topic_id),
                    "partition": partition,
                    "offset": None if one is None else one.offset,
                    "leader_epoch": None if one is None or one.leader_epoch < 0 else one.leader_epoch,
                    "metadata": None if one is None else one.metadata,
                    "commit_timestamp": None if one is None else time_of(one.commit_timestamp),
                    "expire_timestamp": None if one is None else time_of(one.expire_timestamp),
                    "is_tombstone": one is None,
                    "producer_id": None,
                    "producer_epoch": None,
                    "transaction": None,
                    "log_partition": log.partition,
                    "log_offset": base + delta,
                    "log_timestamp": time_of(NOW_MS),
                    "log_leader_epoch": 0,
                    "directory": str(directory.path),
                }
            )
    return in_order(rows)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["log_partition"], row["log_offset"]))


@pytest.mark.parametrize("seed", range(8))
def test_commits(tmp_path: Path, seed: int) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, seed, 150)
    path = directory.close()
    assert len(list(tmp_path.glob("__consumer_offsets-*/*.log"))) > 4
    assert in_order(read("barnabas.commits", path=path)) == expected


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("group_id",), "billing"),
        In(("group_id",), ("billing", "größe")),
        EqualTo(("topic",), "orders"),
        EqualTo(("log_partition",), 3),
        In(("partition",), (1, 2)),
        In(("partition",), (1, 3_000_000_000)),
        GreaterThan(("offset",), 7),
        LessThan(("log_offset",), 40),
        GreaterThanOrEqual(("log_offset",), 100),
        IsNull(("offset",)),
        Not(EqualTo(("offset",), 0)),
        EqualTo(("is_tombstone",), True),
        GreaterThan(("commit_timestamp",), datetime.fromtimestamp(NOW_MS / 1000, UTC)),
    ],
    ids=str,
)
def test_conditions_are_applied_by_the_source(tmp_path: Path, condition: Any) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 3, 150)
    path = directory.close()

    def holds(one: Any, row: Row) -> bool | None:
        if isinstance(one, Not):
            inner = holds(one.child, row)
            return None if inner is None else not inner
        value = row[one.attribute[0]]
        if isinstance(one, IsNull):
            return value is None
        if value is None:
            return None
        if isinstance(one, EqualTo):
            return bool(value == one.value)
        if isinstance(one, In):
            return value in one.value
        comparisons = {GreaterThan: "__gt__", GreaterThanOrEqual: "__ge__", LessThan: "__lt__"}
        return bool(getattr(value, comparisons[type(one)])(one.value))

    chosen = [row for row in expected if holds(condition, row)]
    assert 0 < len(chosen) < len(expected)
    assert in_order(read("barnabas.commits", condition, path=path)) == chosen


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("log_partition = 3", [EqualTo(("log_partition",), 3)]),
        (
            "group_id in ('billing', 'it''s') AND offset <> -7",
            [In(("group_id",), ("billing", "it's")), Not(EqualTo(("offset",), -7))],
        ),
        ("offset is null and topic is not null", [IsNull(("offset",)), IsNotNull(("topic",))]),
        ("group_id not in ('a')", [Not(In(("group_id",), ("a",)))]),
        ("is_tombstone = true", [EqualTo(("is_tombstone",), True)]),
        ("log_timestamp>='2026-11-22 06:00:00'", [GreaterThanOrEqual(("log_timestamp",), datetime(2026, 11, 22, 6))]),
        ("", []),
    ],
)
def test_conditions_as_a_text(text: str, filters: list[Any]) -> None:
    assert list(read_conditions(text, TABLES["barnabas.commits"].arrow).filters) == filters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offsets = 3", "no column 'offsets'"),
        ("offset = 'three'", "offset is compared with a value that int64 cannot hold"),
        ("offset in (1, 99999999999999999999)", "that int64 cannot hold"),
        ("offset = 3 or offset = 4", "'or' comes where 'and' must be"),
        ("offset like '3'", "'like' is no comparison"),
        ("offset in (3", r"'\)' is missing at its end"),
        ("offset =", "ends too early"),
        ("offset = 3 and", "ends too early"),
        ("offset ; 3", "'; 3' cannot be read"),
        ("log_timestamp > 'soon'", "Invalid isoformat"),
    ],
)
def test_a_wrong_condition_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_conditions(text, TABLES["barnabas.commits"].arrow)


def test_a_condition_as_an_option(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 3, 150)
    path = directory.close()
    where = "group_id = 'billing' and log_offset >= 20"
    chosen = [row for row in expected if row["group_id"] == "billing" and row["log_offset"] >= 20]
    assert in_order(read("barnabas.commits", path=path, where=where)) == chosen
    both = [row for row in chosen if row["log_partition"] == 3]
    assert in_order(read("barnabas.commits", EqualTo(("log_partition",), 3), path=path, where=where)) == both


def test_a_condition_on_offsets_leaves_segments_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 3, 300)
    path = directory.close()
    opened: list[str] = []
    original = segment_reading._read_open

    def noted(piece: Any, descriptor: int, **named: Any) -> Any:
        opened.append(piece.segment.path)
        return original(piece, descriptor, **named)

    monkeypatch.setattr(segment_reading, "_read_open", noted)
    files = len(list(tmp_path.glob("__consumer_offsets-*/*.log")))
    rows = read("barnabas.commits", EqualTo(("log_offset",), 100), EqualTo(("log_partition",), 0), path=path)
    assert rows == [row for row in expected if row["log_offset"] == 100 and row["log_partition"] == 0]
    assert len(set(opened)) == 1 < files


def test_only_the_columns_that_are_asked_for_are_made(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 1, 20)
    path = directory.close()
    rows = read("barnabas.commits", EqualTo(("log_partition",), 0), columns="group_id,offset", path=path)
    wanted = [{"group_id": one["group_id"], "offset": one["offset"]} for one in expected if one["log_partition"] == 0]
    assert rows == wanted


def test_small_pieces_of_segments_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.pipeline.directory_origin._TASK_BYTES_MIN", 1)
    monkeypatch.setattr(segment_reading, "READ_BYTES", 300)
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 5, 300)
    path = directory.close()
    options = {"path": path, "splitBytes": 1000}
    reader = FilteringLogReader(
        TABLES["barnabas.commits"], TABLES["barnabas.commits"].spark, read_options({**options, "splitBytes": "1000"})
    )
    assert len(reader.partitions()) > len(list(tmp_path.glob("__consumer_offsets-*/*.log")))
    assert in_order(read("barnabas.commits", **options)) == expected


def test_damaged_indexes_cost_time_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.pipeline.directory_origin._TASK_BYTES_MIN", 1)
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 5, 300)
    path = directory.close()
    rng = Random(1)
    for index, file in enumerate(sorted(tmp_path.glob("__consumer_offsets-*/*.index"))):
        content = bytearray(file.read_bytes())
        if index % 3 == 0:
            file.unlink()
        elif index % 3 == 1 and content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(content)
        else:
            file.write_bytes(content + bytes(4096))  # as Kafka preallocates
    assert in_order(read("barnabas.commits", path=path, splitBytes=1000)) == expected


def records_of(directory: DataDirectory) -> list[Row]:
    """Records with everything, in every codec, in batches of every size."""
    rng = Random(1)
    rows: list[Row] = []
    for partition in (0, 1):
        log = directory.log("orders", partition, segment_bytes=20_000)
        for codec in Compression:
            for size in (1, 30, 3):
                records = [
                    Record(
                        -1,
                        NOW_MS + rng.randrange(1000),
                        rng.choice((None, b"", b"key")),
                        rng.choice((None, b"value" * 30)),
                        [("h", b"x"), ("h", None), ("ü", b"")] if rng.random() < 0.3 else [],
                    )
                    for _ in range(size)
                ]
                base = directory.append(
                    log,
                    *records,
                    codec=codec,
                    epoch=2,
                    producer_id=77,
                    producer_epoch=1,
                    base_sequence=log.log_end_offset,
                )
                rows += [
                    {
                        "topic": "orders",
                        "partition": partition,
                        "offset": base + delta,
                        "timestamp": time_of(one.timestamp),
                        "timestamp_type": "CreateTime",
                        "key": one.key,
                        "value": one.value,
                        "headers": [{"key": key, "value": value} for key, value in one.headers],
                        "leader_epoch": 2,
                        "sequence": base + delta,
                        "producer_id": 77,
                        "producer_epoch": 1,
                        "transaction": None,
                        "directory": str(directory.path),
                    }
                    for delta, one in enumerate(records)
                ]
    return rows


def test_records_in_every_codec(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    expected = records_of(directory)
    directory.commit(directory.log(OFFSETS), "g", {("orders", 0): CommittedOffset(1)})
    path = directory.close()
    assert read("barnabas.records", path=path) == expected  # internal topics only if they are named
    assert len(read("barnabas.records", path=path, topics=OFFSETS)) == 1
    assert read("barnabas.records", path=path, topics="ord*") == expected
    assert read("barnabas.records", path=path, topics="others") == []


def test_batches(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    log = directory.log("orders", 0)
    directory.append(log, Record(-1, NOW_MS, b"k", b"v"), Record(-1, NOW_MS + 7, b"k", b"v"), codec=Compression.ZSTD)
    directory.append(
        log,
        Record(-1, NOW_MS, b"k", b"v"),
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        epoch=4,
    )
    directory.end_transaction(log, 5, commit=False)
    path = directory.close()
    rows = read("barnabas.batches", path=path)
    assert [(row["base_offset"], row["last_offset"], row["record_count"]) for row in rows] == [
        (0, 1, 2),
        (2, 2, 1),
        (3, 3, 1),
    ]
    assert [row["codec"] for row in rows] == ["zstd", "none", "none"]
    assert [row["control_type"] for row in rows] == [None, None, "abort"]
    assert [row["transaction"] for row in rows] == [None, "aborted", "aborted"]
    assert [row["leader_epoch"] for row in rows] == [0, 4, 0]
    assert [row["position"] for row in rows] == [
        0,
        rows[0]["size_bytes"],
        rows[0]["size_bytes"] + rows[1]["size_bytes"],
    ]
    assert all(row["crc_holds"] and row["error"] is None and row["magic"] == 2 for row in rows)
    assert rows[0]["max_timestamp"] == time_of(NOW_MS + 7)


def test_transactions(tmp_path: Path) -> None:
    """Committed, aborted, open; and records of others above the last stable offset."""
    directory = DataDirectory(tmp_path)
    log = directory.log("payments", 0, segment_bytes=600)

    def write(producer_id: int, value: bytes, sequence: int) -> None:
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        directory.append(log, Record(-1, NOW_MS, None, value), **fields)

    for number in range(8):
        write(1, b"committed", number)
        write(2, b"aborted", number)
        directory.append(log, Record(-1, NOW_MS, None, b"plain"))
        directory.end_transaction(log, 2, commit=False)
        directory.end_transaction(log, 1, commit=True)
    write(3, b"open", 0)
    write(2, b"aborted above", 8)
    directory.append(log, Record(-1, NOW_MS, None, b"plain above"))
    directory.end_transaction(log, 2, commit=False)
    path = directory.close()
    assert len(list(tmp_path.glob("payments-0/*.log"))) > 3
    rows = read("barnabas.records", path=path)
    states = {row["value"]: row["transaction"] for row in rows}
    assert states == {
        b"committed": "committed",
        b"aborted": "aborted",
        b"plain": None,
        b"open": "open",
        b"aborted above": "aborted",
        b"plain above": None,
    }
    committed = read("barnabas.records", path=path, isolation="read_committed")
    assert committed == [row for row in rows if row["value"] in (b"committed", b"plain")]


def test_an_open_transaction_holds_only_itself_back(tmp_path: Path) -> None:
    """As in a coordinator: of commits what follows it counts, also a transaction that was committed meanwhile."""
    directory = DataDirectory(tmp_path)
    log = directory.log(OFFSETS)

    def commit(group: str, offset: int, producer_id: int = -1) -> None:
        record = Record(
            -1, NOW_MS, encode_key(group, "orders", 0), encode_value(CommittedOffset(offset, -1, "", NOW_MS, -1))
        )
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        directory.append(log, record, **(fields if producer_id >= 0 else {}))

    commit("plain", 1)
    commit("open", 2, producer_id=1)
    commit("plain", 3)
    for producer_id, is_committed in ((2, True), (3, False)):
        commit(f"ended-{is_committed}", 4, producer_id)
        directory.end_transaction(log, producer_id, commit=is_committed)
    commit("plain", 5)
    path = directory.close()
    found = read("barnabas.commits", path=path, isolation="read_committed")
    assert [(row["group_id"], row["offset"], row["transaction"]) for row in found] == [
        *(("plain", 1, None), ("plain", 3, None)),
        *(("ended-True", 4, "committed"), ("plain", 5, None)),
    ]
    every = read("barnabas.commits", path=path)
    assert {row["group_id"]: row["transaction"] for row in every} == {
        "plain": None,
        "open": "open",
        "ended-True": "committed",
        "ended-False": "aborted",
    }
    ranges = read("barnabas.commits", path=path, ranges="0:0-2,0:7-9")
    assert [row["log_offset"] for row in ranges] == [0, 1, 7]


def test_transactions_of_a_log_that_grows_and_is_replaced(tmp_path: Path) -> None:
    """What is known of them does not depend on which ends were asked for before."""
    random = Random(3)

    def write(path: Path, segment_bytes: int) -> Log:
        directory = DataDirectory(path)
        log = directory.log("payments", 0, segment_bytes=segment_bytes)
        sequences = Counter[int]()
        for _ in range(60):
            producer = random.randrange(1, 4)
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            directory.append(log, Record(-1, NOW_MS, None, b"value"), **fields, transactional=True)
            sequences[producer] += 1
            if random.random() < 0.4:
                directory.end_transaction(log, producer, commit=random.random() < 0.5)
        directory.close()
        (found,) = logs_of(str(path), ("payments",), with_internal=False, until_high_watermark=False)
        return found

    for number, segment_bytes in enumerate((1 << 20, 1_500, 1 << 20)):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)  # the same folder, with other batches
        log = write(tmp_path / "data", segment_bytes)
        end = log_end(log)
        assert len(log.segments) == 1 or segment_bytes == 1_500
        for end_offset in (*range(1, end), *random.sample(range(1, end + 1), 10), end):
            found = ended_transactions(log, end_offset)
            segment_reading._following.clear()  # follows them from their begin again
            assert found == ended_transactions(log, end_offset), (number, end_offset)
            if random.random() < 0.5:
                segment_reading._following.clear()


def test_groups(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    log = directory.log(OFFSETS)
    subscription = stored.encode_versioned(
        stored.ConsumerProtocolSubscription(
            topics=["orders"],
            owned_partitions=[stored.ConsumerProtocolSubscription.TopicPartition(topic="orders", partitions=[1])],
        ),
        1,
    )
    assignment = stored.encode_versioned(
        stored.ConsumerProtocolAssignment(
            assigned_partitions=[stored.ConsumerProtocolAssignment.TopicPartition(topic="orders", partitions=[0, 2])]
        ),
        1,
    )
    member = stored.GroupMetadataValue.MemberMetadata(
        member_id="m-1",
        client_id="c",
        client_host="/10.0.0.1",
        rebalance_timeout=60_000,
        session_timeout=45_000,
        subscription=subscription,
        assignment=assignment,
    )
    value = stored.GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m-1",
        current_state_timestamp=NOW_MS,
        members=[member],
    )
    directory.commit(log, "billing", {("orders", 0): CommittedOffset(1)})
    directory.store_group(log, GroupRecord("billing", value))
    directory.store_group(log, GroupRecord("billing", None))
    member_key = stored.encode_versioned(stored.ConsumerGroupMemberMetadataKey(group_id="robots", member_id="r-1"))
    member_value = stored.ConsumerGroupMemberMetadataValue(
        client_id="c", client_host="h", subscribed_topic_names=["orders"]
    )
    directory.append(log, Record(-1, NOW_MS, member_key, stored.encode_versioned(member_value)))
    rows = read("barnabas.groups", path=directory.close())
    assert [(row["group_id"], row["record_type"], row["is_tombstone"], row["log_offset"]) for row in rows] == [
        ("billing", "GroupMetadata", False, 1),
        ("billing", "GroupMetadata", True, 2),
        ("robots", "ConsumerGroupMemberMetadata", False, 3),
    ]
    first = rows[0]
    assert (first["generation"], first["protocol"], first["leader"]) == (4, "range", "m-1")
    assert first["state_timestamp"] == time_of(NOW_MS)
    found = first["members"][0]
    assert found["subscribed_topics"] == ["orders"]
    assert found["owned"] == [{"topic": "orders", "topic_id": None, "partitions": [1]}]
    assert found["assigned"] == [{"topic": "orders", "topic_id": None, "partitions": [0, 2]}]
    assert found["session_timeout_ms"] == 45_000
    assert rows[2]["members"][0]["subscribed_topics"] == ["orders"]


def test_a_running_broker_is_read_up_to_the_checkpointed_high_watermark(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    log = directory.log("orders", 0)
    directory.append(log, Record(-1, NOW_MS, None, b"committed"))
    directory.manager.checkpoint()
    directory.append(log, Record(-1, NOW_MS, None, b"committed, not checkpointed"))
    directory.append(log, Record(-1, NOW_MS, None, b"not committed"), is_committed=False)
    with next(tmp_path.glob("orders-0/*.log")).open("ab") as file:
        file.write(b"half of a batch that is being written")

    def values(**options: str) -> list[bytes]:
        return [row["value"] for row in read("barnabas.records", path=tmp_path, **options)]

    assert values() == [b"committed"]
    directory.manager.checkpoint()
    assert values() == [b"committed", b"committed, not checkpointed"]
    aside = str(tmp_path / "aside")
    assert values(until="log-end", aside=aside) == [b"committed", b"committed, not checkpointed", b"not committed"]
    assert [one["reason"] for one in read_aside(aside)] == ["a batch ends within its header"]


def test_of_several_replicas_the_furthest_is_read(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 5), ("c", 3)):
        directory = DataDirectory(tmp_path / name)
        log = directory.log("orders", 0)
        for number in range(count):
            directory.append(log, Record(-1, NOW_MS, None, b"%d" % number))
        directory.close()
    everything = f"{tmp_path}/a,{tmp_path}/b,{tmp_path}/c"
    rows = read("barnabas.records", directories=everything)
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    assert read("barnabas.records", directories=f"{tmp_path}/*") == rows
    assert len(read("barnabas.records", directories=everything, replicas="all")) == 10
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read("barnabas.records", directories=f"{tmp_path}/nowhere")


def test_a_replica_whose_high_watermark_is_not_known_is_read_if_no_other_is(tmp_path: Path) -> None:
    """A broker that was killed soon after its start has no checkpoint. What it has is old, or not committed."""
    for name, values in (("a", (b"old",)), ("b", (b"old", b"new")), ("c", (b"old", b"new", b"not committed"))):
        directory = DataDirectory(tmp_path / name)
        for value in values:
            directory.append(directory.log("orders"), Record(-1, NOW_MS, None, value))
        directory.close()
    for name in ("a", "c"):
        (tmp_path / name / "replication-offset-checkpoint").unlink()
    assert [row["value"] for row in read("barnabas.records", directories=f"{tmp_path}/*")] == [b"old", b"new"]
    (tmp_path / "b/replication-offset-checkpoint").unlink()
    assert len(read("barnabas.records", directories=f"{tmp_path}/*")) == 3


def damaged(tmp_path: Path) -> tuple[str, list[bytes]]:
    """A log of ten batches, of which the fourth and the seventh are damaged; and the values of the others."""
    directory = DataDirectory(tmp_path / "data")
    log = directory.log("orders", 0)
    positions = []
    for number in range(10):
        positions.append(sum(file.stat().st_size for file in tmp_path.glob("data/orders-0/*.log")))
        directory.append(log, Record(-1, NOW_MS, None, b"value %d" % number))
    path = directory.close()
    file = next(tmp_path.glob("data/orders-0/*.log"))
    content = bytearray(file.read_bytes())
    content[positions[3] + 65] ^= 1
    content[positions[6] + 8 : positions[6] + 30] = bytes(22)
    file.write_bytes(content)
    return path, [b"value %d" % number for number in (0, 1, 2, 4, 5, 7, 8, 9)]


def test_a_corrupt_batch_ends_the_query_and_the_message_says_where(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path)
    with pytest.raises(CorruptLogError, match=r"orders-0/0{20}\.log at byte \d+, offset 3: the checksum is wrong"):
        read("barnabas.records", path=path)


def test_corrupt_batches_are_put_aside_with_their_place(tmp_path: Path) -> None:
    path, good = damaged(tmp_path)
    aside = tmp_path / "aside"
    for _ in range(2):  # a task that runs again puts the same aside
        assert [row["value"] for row in read("barnabas.records", path=path, aside=aside)] == good
    places = read_aside(str(aside))
    assert [one["reason"] for one in places] == ["the checksum is wrong", "no batch begins here"]
    file = next(tmp_path.glob("data/orders-0/*.log"))
    for one, kept in zip(places, sorted(aside.glob("*.batch"))):
        position, size = one["position"], one["size_bytes"]
        assert isinstance(position, int)
        assert isinstance(size, int)
        assert kept.read_bytes() == file.read_bytes()[position : position + size]


def test_the_table_of_batches_has_the_corrupt_places(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path)
    rows = sorted(read("barnabas.batches", path=path), key=lambda row: row["position"])
    assert [row["error"] for row in rows if row["error"]] == ["the checksum is wrong", "no batch begins here"]
    assert [row["crc_holds"] for row in rows] == [True] * 3 + [False] + [True] * 2 + [None] + [True] * 3
    assert rows[3]["base_offset"] == 3
    assert rows[6]["base_offset"] is None
    size = next(tmp_path.glob("data/orders-0/*.log")).stat().st_size
    assert sum(row["size_bytes"] for row in rows) == size


def test_a_record_that_is_no_offset_record_is_put_aside(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    log = directory.log(OFFSETS)
    directory.append(log, Record(-1, NOW_MS, b"\x00\x01\x00\x02ab", b""), Record(-1, NOW_MS, b"\x00", b""))
    directory.commit(log, "g", {("orders", 0): CommittedOffset(5)})
    path = directory.close()
    rows = read("barnabas.commits", path=path, aside=tmp_path / "aside")
    assert [row["offset"] for row in rows] == [5]
    found = [(one["kind"], one["offset"], one["reason"]) for one in read_aside(str(tmp_path / "aside"))]
    assert found == [
        ("record", 0, "an offset record that cannot be read"),
        ("record", 1, "a key of __consumer_offsets without its version"),
    ]


def test_a_segment_that_compaction_replaces_is_found_again(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 5, 100)
    path = directory.close()
    reader = FilteringLogReader(
        TABLES["barnabas.commits"], TABLES["barnabas.commits"].spark, read_options({"path": path})
    )
    tasks = reader.partitions()
    folder = tmp_path / "__consumer_offsets-0"
    first, second, *_ = sorted(folder.glob("*.log"))
    merged = folder / "merged"
    merged.write_bytes(first.read_bytes() + second.read_bytes())
    merged.rename(first)
    second.unlink()
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert in_order(rows) == expected


def test_records_that_retention_removes_while_they_are_read(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    some_commits(directory, 5, 100)
    path = directory.close()
    for fails in (True, False):
        options = read_options({"path": path, "failOnDataLoss": str(fails)})
        reader = FilteringLogReader(TABLES["barnabas.commits"], TABLES["barnabas.commits"].spark, options)
        tasks = reader.partitions()
        first = min((tmp_path / "__consumer_offsets-0").glob("*.log"))
        first.unlink()
        if fails:
            with pytest.raises(LostRecordsError, match="were removed while they were read"):
                [None for task in tasks for _ in reader.read(task)]
        else:
            assert [None for task in tasks for _ in reader.read(task)]


def test_folders_that_are_no_logs_are_left_alone(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.append(directory.log("orders", 0), Record(-1, NOW_MS, None, b"x"))
    path = directory.close()
    (tmp_path / "orders-0").rename(tmp_path / "orders-1.0123456789abcdef0123456789abcdef-delete")
    (tmp_path / "orders-00").mkdir()
    (tmp_path / "lost+found").mkdir()
    assert logs_of(path, (), with_internal=True, until_high_watermark=True) == []


def test_a_folder_that_is_no_data_directory(tmp_path: Path) -> None:
    """It may hold those of several brokers; else its rows are not simply none."""
    for number in range(2):
        directory = DataDirectory(tmp_path / "brokers" / str(number))
        directory.append(directory.log("orders", number), Record(-1, NOW_MS, None, b"x"))
        (Path(directory.close()) / "meta.properties").touch()
    (tmp_path / "empty").mkdir()
    assert [row["partition"] for row in read("barnabas.records", path=str(tmp_path / "brokers"))] == [0, 1]
    assert read("barnabas.records", path=str(tmp_path / "empty")) == []
    with pytest.raises(FileNotFoundError, match=r"is no data directory: it has no meta\.properties"):
        read("barnabas.records", path=str(tmp_path))


def test_spark_reads_the_tables(spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    directory = DataDirectory(tmp_path)
    expected = some_commits(directory, 2, 200)
    records = records_of(directory)
    path = directory.close()
    commits = spark.read.format("barnabas.commits").load(path)
    assert commits.count() == len(expected)
    latest = commits.where("group_id = 'billing' and not is_tombstone").groupBy("topic", "partition").max("log_offset")
    fold: dict[tuple[str, int], int] = {}
    for row in expected:
        if row["group_id"] == "billing" and not row["is_tombstone"]:
            key = row["topic"], row["partition"]
            fold[key] = max(fold.get(key, -1), row["log_offset"])
    assert {(one[0], one[1]): one[2] for one in latest.collect()} == fold
    pruned = spark.read.format("barnabas.records").schema("offset bigint, value binary").load(path)
    found = sorted((row.offset, bytes(row.value or b"")) for row in pruned.collect())
    assert found == sorted((one["offset"], one["value"] or b"") for one in records)
    by_option = spark.read.format("barnabas.records").option("columns", "topic,headers").load(path)
    assert by_option.where("size(headers) = 3").count() == sum(len(one["headers"]) == 3 for one in records)
    times = spark.read.format("barnabas.batches").load(path).where("max_timestamp > '2023-11-14 22:13:20.500'")
    assert 0 < times.count() < spark.read.format("barnabas.batches").load(path).count()
    # Each query gets its own rows: Spark mixes up the conditions that it hands to a source.
    assert commits.where("log_offset < 10").count() == sum(row["log_offset"] < 10 for row in expected)
    assert commits.count() == len(expected)
    some = spark.read.format("barnabas.commits").option("where", "log_partition = 3 and log_offset >= 5").load(path)
    chosen = [row for row in expected if row["log_partition"] == 3 and row["log_offset"] >= 5]
    tombstones = some.where("is_tombstone").select("log_offset")
    assert tombstones.count() == sum(row["is_tombstone"] for row in chosen)
    assert some.count() == len(chosen)
    both = tombstones.union(some.where("not is_tombstone").select("log_offset"))
    assert both.count() == len(chosen)
    with pytest.raises(Exception, match="no column offsets"):
        spark.read.format("barnabas.records").option("columns", "offsets").load(path)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.6])
def test_transactions_of_a_segment_that_gets_shorter_meanwhile(tmp_path: Path, part: float) -> None:
    """Its broker has truncated it: the run ends with an error, and does not wait for what never comes."""
    directory = DataDirectory(tmp_path)
    log = directory.log("payments", 0)
    for sequence in range(5):
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
        directory.append(log, Record(-1, NOW_MS, None, b"value"), **fields, transactional=True)
    directory.close()
    (found,) = logs_of(str(tmp_path), ("payments",), with_internal=False, until_high_watermark=False)
    (segment,) = found.segments
    os.truncate(segment.path, int(segment.size_bytes * part))
    with pytest.raises(LostRecordsError, match="long before"):
        ended_transactions(found, 5)


def test_an_index_ends_before_the_zeros_that_kafka_preallocates(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.timeindex"
    assert entries_of(str(path), TIME_ENTRY).tolist() == []
    for entries in ([], [(NOW_MS, 0)], [(NOW_MS, 0), (NOW_MS + 1, 256)]):  # the first record may be the newest
        path.write_bytes(b"".join(struct.pack(">qi", *one) for one in entries) + bytes(30))
        assert entries_of(str(path), TIME_ENTRY).tolist() == entries
