"""A data directory that Apache Kafka 4.1.0 wrote, against what Kafka's own dump tool printed of it."""

import json
import re
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from test_directories import Row, read, time_of

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.1.0"
DUMPS = sorted(path.stem for path in (GOLDEN / "dump").iterdir())
BATCH = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<record_count>\d+) "
    r"baseSequence: (?P<base_sequence>-?\d+) lastSequence: -?\d+ producerId: (?P<producer_id>-?\d+) "
    r"producerEpoch: (?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>-?\d+) "
    r"isTransactional: (?P<is_transactional>\w+) isControl: (?P<is_control>\w+) deleteHorizonMs: \S+ "
    r"position: (?P<position>\d+) (?P<timestamp_type>\w+): (?P<max_timestamp>\d+) size: (?P<size_bytes>\d+) "
    r"magic: (?P<magic>\d+) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: true"
)
RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) \w+: (?P<time>-?\d+) keySize: (?P<key>-?\d+) valueSize: (?P<value>-?\d+) "
    r"sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<headers>[^\]]*)\](?: key: (?P<key_text>\S+))?"
    r"(?: payload: (?P<payload>.*))?"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory, unpacked."""
    folder = tmp_path_factory.mktemp("kafka")
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return f"{folder}/data"


def of(rows: list[Row], dump: str) -> list[Row]:
    return [row for row in rows if f"{row['topic']}-{row['partition']}" == dump]


def value_of(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    if text == "-1":
        return None
    return int(text) if text.isdigit() else text


def test_every_batch_is_as_kafka_says(directory: str) -> None:
    rows = read("barnabas.batches", path=directory, topics="*")
    for dump in DUMPS:
        said = [match.groupdict() for match in BATCH.finditer((GOLDEN / "dump" / f"{dump}.txt").read_text())]
        found = {row["base_offset"]: row for row in of(rows, dump)}
        assert len(said) > 0
        for told in said:
            row = found[int(told["base_offset"])]
            assert row["crc_holds"]
            assert row["max_timestamp"] == time_of(int(told.pop("max_timestamp")))
            assert {name: row[name] for name in told} == {name: value_of(text) for name, text in told.items()}


def test_every_record_is_as_kafka_says(directory: str) -> None:
    rows = read("barnabas.records", path=directory, topics="*")
    for dump in DUMPS:
        lines = (GOLDEN / "dump" / f"{dump}.txt").read_text().splitlines()
        said = [match for match in map(RECORD.match, lines) if match and "endTxnMarker" not in match.string]
        found = {row["offset"]: row for row in of(rows, dump)}
        assert len(said) > 0
        for told in said:
            row = found[int(told["offset"])]
            sizes = [-1 if one is None else len(one) for one in (row["key"], row["value"])]
            assert (row["offset"], row["timestamp"]) == (int(told["offset"]), time_of(int(told["time"])))
            assert sizes == [int(told["key"]), int(told["value"])]
            assert ",".join(one["key"] for one in row["headers"]) == told["headers"]
            if row["sequence"] is not None:
                assert row["sequence"] == int(told["sequence"])


def test_every_commit_is_as_kafka_says(directory: str) -> None:
    rows = read("barnabas.commits", path=directory)
    said = []
    for dump in DUMPS:
        for match in RECORD.finditer((GOLDEN / "dump" / f"{dump}.txt").read_text()):
            key = match["key_text"] or ""
            if key.startswith('{"type":"1"'):
                where = json.loads(key)["data"]
                payload = (match["payload"] or "").split("}}")[0] + "}}"
                told = None if payload.startswith(("<DELETE>", "}}")) else json.loads(payload)["data"]
                said.append((int(dump.rpartition("-")[2]), int(match["offset"]), where, told))
    assert len(rows) == len(said) == 13
    for row, (partition, offset, where, told) in zip(rows, said):
        assert (row["log_partition"], row["log_offset"]) == (partition, offset)
        assert (row["group_id"], row["topic"], row["partition"]) == (where["group"], where["topic"], where["partition"])
        assert row["is_tombstone"] == (told is None)
        if told is not None:
            assert (row["offset"], row["metadata"]) == (told["offset"], told["metadata"])
            assert row["leader_epoch"] == (None if told["leaderEpoch"] == -1 else told["leaderEpoch"])
            assert row["commit_timestamp"] == time_of(told["commitTimestamp"])
    assert {row["group_id"]: row["transaction"] for row in rows if row["transaction"]} == {"tellers": "committed"}


def test_how_transactions_ended(directory: str) -> None:
    rows = read("barnabas.records", path=directory, topics="payments")
    assert {(row["value"].split()[-2:][0].decode(), row["transaction"]) for row in rows} == {
        ("commit", "committed"),
        ("abort", "aborted"),
        ("open", "open"),
    }
    committed = read("barnabas.records", path=directory, topics="payments", isolation="read_committed")
    assert committed == [row for row in rows if row["transaction"] == "committed"]


def test_groups_of_both_protocols(directory: str) -> None:
    rows = read("barnabas.groups", path=directory)
    last = {row["group_id"]: row for row in rows if row["record_type"] == "GroupMetadata"}
    assert (last["billing"]["generation"], last["billing"]["protocol"]) == (2, "range")
    assert {one["group_instance_id"] for one in last["billing"]["members"]} == {None, "till-2"}
    assert last["gone"]["is_tombstone"]
    robots = {row["record_type"]: row for row in rows if row["group_id"] == "robots"}
    assert robots["ConsumerGroupMetadata"]["generation"] == 1
    assert robots["ConsumerGroupMemberMetadata"]["members"][0]["subscribed_topics"] == ["events"]
    assigned = robots["ConsumerGroupTargetAssignmentMember"]["members"][0]["assigned"]
    assert [one["partitions"] for one in assigned] == [[0, 1, 2]]
