"""Tables as streams: every record once, in micro-batches of the size that is asked for, whatever stops the query."""

import json
import random
import shutil
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.losses import Loss, sentences, tell
from barnabas.pipeline.origin import LogKey
from barnabas.pipeline.sources import CommitSource, RecordSource, register
from barnabas.pipeline.streaming import CREATED_AGAIN, DELETED, REMOVED, LogStreamReader, within_rows
from barnabas.protocol.record_batch import Record
from barnabas.storage.log import Log
from broker_process import Client, Process, batch
from data_directories import NOW_MS, DataDirectory
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYTHING = ReadAllAvailable()


class Growing:
    """A topic of three partitions that grows, and a stream over it."""

    def __init__(self, path: Path, **options: str) -> None:
        self.directory = DataDirectory(path)
        self.logs: list[Log] = [self.log(partition) for partition in range(3)]
        self.written: list[tuple[int, bytes]] = []
        self.options = {"path": str(path), **options}
        self.reader = self.new_reader()
        self.rng = random.Random(1)

    def log(self, partition: int) -> Log:
        return self.directory.log("orders", partition, segment_bytes=2000, index_interval_bytes=100)

    def new_reader(self) -> LogStreamReader:
        source = RecordSource(self.options)
        return source.streamReader(source.schema())

    def grow(self, count: int) -> None:
        for _ in range(count):
            log = self.rng.choice(self.logs)
            value = b"%d" % len(self.written)
            self.directory.append(log, Record(-1, NOW_MS, None, value))
            self.written.append((log.partition, value))
        self.directory.manager.checkpoint()

    def rows(self, start: Any, end: Any) -> list[tuple[int, bytes]]:
        """What a micro-batch gives; offsets go through JSON, as in Spark."""
        start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
        found = []
        for task in self.reader.partitions(start, end):
            for some in self.reader.read(task):
                found += [(row["partition"], row["value"]) for row in some.to_pylist()]
        return found

    def all_by(self, limit: Any) -> list[list[tuple[int, bytes]]]:
        """Micro-batches until nothing is left."""
        at = self.reader.initialOffset()
        found = []
        while True:
            end = self.reader.latestOffset(at, limit)
            if end == at:
                return found
            found.append(self.rows(at, end))
            at = end


def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    at = growing.reader.initialOffset()
    seen: list[tuple[int, bytes]] = []
    for count in (0, 30, 1, 0, 50):
        growing.grow(count)
        end = growing.reader.latestOffset(at, EVERYTHING)
        assert (end == at) == (count == 0)
        rows = growing.rows(at, end)
        assert growing.rows(at, end) == rows  # a batch that is done again is the same
        seen += rows
        at = end
    assert sorted(seen) == sorted(growing.written)
    assert growing.reader.reportLatestOffset() == at


def test_a_stream_from_the_latest_offset(tmp_path: Path) -> None:
    growing = Growing(tmp_path, startingOffsets="latest")
    growing.grow(20)
    at = growing.reader.initialOffset()
    assert growing.reader.latestOffset(at, EVERYTHING) == at
    growing.grow(5)
    assert sorted(growing.rows(at, growing.reader.latestOffset(at, EVERYTHING))) == sorted(growing.written[20:])


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
def test_at_most_so_many_rows(tmp_path: Path, rows_max: int) -> None:
    growing = Growing(tmp_path)
    growing.grow(60)
    parts = growing.all_by(ReadMaxRows(rows_max))
    assert max(map(len, parts)) == min(rows_max, 60)
    assert sorted(chain(*parts)) == sorted(growing.written)


def test_at_most_so_many_bytes(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(300)
    growing.directory.close()  # which writes the index of the last segment
    parts = growing.all_by(ReadMaxBytes(6000))
    assert sorted(chain(*parts)) == sorted(growing.written)
    bytes_of_a_batch = 70
    sizes = [len(part) * bytes_of_a_batch for part in parts]
    assert len(parts) > 3
    assert max(sizes) < 6000 + 3 * 170  # for each partition, what is between two entries of the index


def test_at_most_so_many_files(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(300)
    files = len(list(tmp_path.glob("orders-*/*.log")))
    parts = growing.all_by(ReadMaxFiles(2))
    assert len(parts) >= files // 2 > 3
    assert sorted(chain(*parts)) == sorted(growing.written)


def test_at_least_so_many_rows(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    at = growing.reader.initialOffset()
    growing.grow(9)
    assert growing.reader.latestOffset(at, ReadMinRows(10)) == at
    growing.grow(1)
    assert len(growing.rows(at, growing.reader.latestOffset(at, ReadMinRows(10)))) == 10


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_a_limit(seed: int) -> None:
    rng = random.Random(seed)
    starts = {LogKey("t", index): rng.randrange(100) for index in range(rng.randrange(1, 9))}
    ends = {key: start + rng.choice((0, 1, 50, 100_000)) for key, start in starts.items()}
    total = sum(ends.values()) - sum(starts.values())
    for rows_max in (1, 10, 100_000):
        found = within_rows(starts, ends, rows_max)
        assert sum(found.values()) - sum(starts.values()) == min(rows_max, total)
        assert all(starts[key] <= found[key] <= ends[key] for key in starts)


def test_what_is_there_now_and_nothing_that_comes_later(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(20)
    growing.reader.prepareForTriggerAvailableNow()
    growing.grow(20)
    growing.directory.append(growing.log(3), Record(-1, NOW_MS, None, b"new partition"))
    growing.directory.manager.checkpoint()
    assert sorted(chain(*growing.all_by(ReadMaxRows(3)))) == sorted(growing.written[:20])


def test_a_condition_holds_for_streams_too(tmp_path: Path) -> None:
    growing = Growing(tmp_path, where="partition = 1")
    growing.grow(30)
    rows = list(chain(*growing.all_by(ReadMaxRows(10))))
    assert rows == [row for row in growing.written if row[0] == 1]


def test_a_new_partition_is_read_from_its_begin(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.grow(5)
    at = growing.reader.latestOffset(growing.reader.initialOffset(), EVERYTHING)
    growing.directory.append(growing.log(3), Record(-1, NOW_MS, None, b"new"))
    growing.directory.manager.checkpoint()
    assert growing.rows(at, growing.reader.latestOffset(at, EVERYTHING)) == [(3, b"new")]


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_retention_has_removed(tmp_path: Path, fails: bool) -> None:
    growing = Growing(tmp_path, failOnDataLoss=str(fails))
    growing.grow(200)
    at = growing.reader.initialOffset()
    end = growing.reader.latestOffset(at, EVERYTHING)
    first, second = sorted((tmp_path / "orders-1").glob("*.log"))[:2]
    first.unlink()
    if fails:
        with pytest.raises(
            LostRecordsError, match=f"orders-1: the offsets from 0 to below {int(second.stem)} are gone"
        ):
            growing.rows(at, end)
    else:
        lost = len(growing.written) - len(growing.rows(at, end))
        assert lost == int(second.stem)


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_was_cut(tmp_path: Path, fails: bool) -> None:
    growing = Growing(tmp_path, failOnDataLoss=str(fails))
    growing.grow(20)
    at = growing.reader.latestOffset(growing.reader.initialOffset(), EVERYTHING)
    at["orders-0"]["offset"] += 100
    growing.reader.prepareForTriggerAvailableNow()  # as `--stream` does
    if fails:
        with pytest.raises(LostRecordsError, match=r"orders-0: it was read up to \d+, and ends at \d+ now"):
            growing.reader.latestOffset(at, EVERYTHING)
    else:
        again = growing.reader.latestOffset(at, EVERYTHING)
        growing.grow(20)
        growing.reader.prepareForTriggerAvailableNow()
        rows = growing.rows(again, growing.reader.latestOffset(again, EVERYTHING))
        assert sorted(rows) == sorted(growing.written[20:])


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_made_anew(tmp_path: Path, fails: bool) -> None:
    growing = Growing(tmp_path, failOnDataLoss=str(fails), topics="orders")
    growing.grow(20)
    at = growing.reader.latestOffset(growing.reader.initialOffset(), EVERYTHING)
    old = json.loads(json.dumps(at))
    for one in old.values():
        one["topic_id"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    if fails:
        with pytest.raises(LostRecordsError, match="created again"):
            growing.reader.latestOffset(old, EVERYTHING)
    else:
        end = growing.reader.latestOffset(old, EVERYTHING)
        assert sorted(growing.rows(old, end)) == sorted(growing.written)


@pytest.mark.parametrize("fails", [True, False])
def test_a_partition_that_is_gone(tmp_path: Path, fails: bool) -> None:
    growing = Growing(tmp_path, failOnDataLoss=str(fails), topics="orders")
    growing.grow(30)
    at = growing.reader.latestOffset(growing.reader.initialOffset(), EVERYTHING)
    shutil.rmtree(tmp_path / "orders-2")
    if fails:
        with pytest.raises(LostRecordsError, match="orders-2: the topic was deleted"):
            growing.reader.latestOffset(at, EVERYTHING)
    else:
        assert growing.reader.latestOffset(at, EVERYTHING).keys() == {"orders-0", "orders-1"}


@pytest.mark.parametrize("topics", ["", "orders*"])
@pytest.mark.parametrize("is_made_anew", [True, False])
def test_in_a_stream_over_all_topics_a_deleted_one_is_news(tmp_path: Path, topics: str, is_made_anew: bool) -> None:
    """Nobody has asked for this topic, so the query goes on; and it is said."""
    growing = Growing(tmp_path / "data", lost=str(tmp_path / "lost"), topics=topics)
    growing.grow(30)
    at = growing.reader.latestOffset(growing.reader.initialOffset(), EVERYTHING)
    growing.directory.append(growing.directory.log("orders-2"), Record(-1, NOW_MS, None, b"new"))
    growing.directory.manager.checkpoint()
    end = growing.reader.latestOffset(at, EVERYTHING)
    if is_made_anew:
        end["orders-0"]["topic_id"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    else:
        shutil.rmtree(tmp_path / "data" / "orders-0")
    assert growing.rows(at, end) == [(0, b"new")]
    growing.reader.latestOffset(end, EVERYTHING)
    told = tell(str(tmp_path / "lost"))
    assert {(one.log, one.is_news) for one in told} == {("orders-0", True)}
    why = CREATED_AGAIN if is_made_anew else DELETED
    assert sentences(told) == [f"Topics that changed: orders: {why}."]
    assert tell(str(tmp_path / "lost")) == []


def test_what_was_lost_is_noted_once(tmp_path: Path) -> None:
    """A micro-batch that is planned again loses the same records; the numbers are those of the log."""
    growing = Growing(tmp_path / "data", failOnDataLoss="false", lost=str(tmp_path / "lost"), topics="orders")
    growing.grow(200)
    at = growing.reader.initialOffset()
    end = growing.reader.latestOffset(at, EVERYTHING)
    first, second = sorted((tmp_path / "data" / "orders-1").glob("*.log"))[:2]
    first.unlink()
    rows = growing.rows(at, end)
    assert growing.rows(at, end) == rows
    assert tell(str(tmp_path / "lost")) == [Loss("orders-1", REMOVED, 0, len(growing.written) - len(rows))]
    assert int(second.stem) == len(growing.written) - len(rows)


def test_what_a_task_would_lose_is_planned_again(tmp_path: Path) -> None:
    """A task says so by an error: it has no place for notes. The next plan of the micro-batch notes it, and goes on."""
    growing = Growing(tmp_path / "data", failOnDataLoss="false", lost=str(tmp_path / "lost"), topics="orders")
    growing.grow(200)
    at = growing.reader.initialOffset()
    end = growing.reader.latestOffset(at, EVERYTHING)
    tasks = growing.reader.partitions(at, end)
    first, second = sorted((tmp_path / "data" / "orders-1").glob("*.log"))[:2]
    first.unlink()
    with pytest.raises(LostRecordsError, match="were removed while they were read"):
        list(chain.from_iterable(map(growing.reader.read, tasks)))
    assert len(growing.rows(at, end)) == 200 - int(second.stem)
    ends = end["orders-0"]["offset"]
    end["orders-0"]["offset"] += 7
    assert len(growing.rows(at, end)) == 200 - int(second.stem)
    assert {(one.log, one.from_offset, one.below_offset) for one in tell(str(tmp_path / "lost"))} == {
        ("orders-0", ends, ends + 7),
        ("orders-1", 0, int(second.stem)),
    }


def test_decided_by_a_marker_behind_the_last_stable_offset(tmp_path: Path) -> None:
    """A transaction that ended while an older one is open: its records come when they are stable, and as committed."""
    growing = Growing(tmp_path, isolation="read_committed")
    log = growing.logs[0]

    def write(producer_id: int) -> None:
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        growing.directory.append(log, Record(-1, NOW_MS, None, b"%d" % producer_id), **fields)

    write(1)
    write(2)
    growing.directory.end_transaction(log, 1, commit=True)
    growing.directory.manager.checkpoint()
    at = growing.reader.initialOffset()
    end = growing.reader.latestOffset(at, EVERYTHING)
    assert end["orders-0"]["offset"] == 1
    assert growing.rows(at, end) == [(0, b"1")]
    growing.directory.end_transaction(log, 2, commit=False)
    growing.directory.append(log, Record(-1, NOW_MS, None, b"plain"))
    growing.directory.manager.checkpoint()
    assert growing.rows(end, growing.reader.latestOffset(end, EVERYTHING)) == [(0, b"plain")]


@pytest.mark.parametrize("limit", [EVERYTHING, ReadMaxRows(3)])
@pytest.mark.parametrize("seed", range(4))
def test_commits_beside_open_transactions(tmp_path: Path, limit: Any, seed: int) -> None:
    """Plain ones come at once, those of a transaction when it is decided, each once; and a micro-batch that is done
    again later has the same rows."""
    rng = random.Random(seed)
    directory = DataDirectory(tmp_path)
    log = directory.log("__consumer_offsets", 0, segment_bytes=1500, index_interval_bytes=100)
    source = CommitSource({"path": str(tmp_path), "isolation": "read_committed"})
    reader = source.streamReader(source.schema())
    expected: list[int] = []
    pending: dict[int, list[int]] = {}
    sequences: dict[int, int] = {}
    at = reader.initialOffset()
    batches: list[tuple[Any, Any, list[int]]] = []

    def rows(start: Any, end: Any) -> list[int]:
        tasks = reader.partitions(start, end)
        return [row["offset"] for task in tasks for some in reader.read(task) for row in some.to_pylist()]

    def end_one(producer_id: int) -> None:
        is_committed = rng.random() < 0.7
        directory.end_transaction(log, producer_id, commit=is_committed)
        offsets = pending.pop(producer_id)
        expected.extend(offsets if is_committed else [])

    for number in range(80):
        producer_id = rng.choice((-1, -1, 1, 2))
        if producer_id in pending and rng.random() < 0.4:
            end_one(producer_id)
        fields: dict[str, Any] = {}
        if producer_id >= 0:
            sequence = sequences[producer_id] = sequences.get(producer_id, -1) + 1
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        (expected if producer_id < 0 else pending.setdefault(producer_id, [])).append(number)
        value = encode_value(CommittedOffset(number, -1, "", NOW_MS, -1))
        directory.append(log, Record(-1, NOW_MS, encode_key("group", "orders", 0), value), **fields)
        if number == 79:
            for one in list(pending):
                end_one(one)
        if number % 7 == 2 or number == 79:
            directory.manager.checkpoint()
            while (end := json.loads(json.dumps(reader.latestOffset(at, limit)))) != at:
                batches.append((at, end, rows(at, end)))
                at = end
    assert sorted(chain(*(found for _, _, found in batches))) == sorted(expected)
    assert any("stable_offset" in one for _, end, _ in batches for one in end.values())
    for start, end, found in batches:
        assert rows(start, end) == found


def test_limits_over_the_wire(tmp_path: Path) -> None:
    process = Process(tmp_path / "data")
    client = Client(process.port)
    assert client.create_topic("orders", 3) == 0
    written = []
    for number in range(60):
        assert client.produce("orders", number % 3, batch([b"%d" % number])).error_code == 0
        written.append((number % 3, b"%d" % number))
    source = RecordSource({"brokers": f"127.0.0.1:{process.port}", "topics": "orders"})
    reader = source.streamReader(source.schema())
    for limit, parts_min in ((ReadMaxRows(7), 9), (ReadMaxBytes(500), 5), (EVERYTHING, 1)):
        at, seen, parts = reader.initialOffset(), [], 0
        while (end := reader.latestOffset(at, limit)) != at:
            for task in reader.partitions(at, end):
                for some in reader.read(task):
                    seen += [(row["partition"], row["value"]) for row in some.to_pylist()]
            at, parts = end, parts + 1
        assert sorted(seen) == sorted(written)
        assert parts >= parts_min
    with pytest.raises(ValueError, match="maxFilesPerTrigger"):
        RecordSource({"brokers": "a:1", "maxFilesPerTrigger": "1"}).streamReader(source.schema())
    client.close()
    process.end()


def test_queries_that_start_at_once_do_not_disturb_each_other(spark: "SparkSession") -> None:
    """Each puts variables into the map of its source, in its own thread, while tasks with that map are written."""
    register(spark)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource("barnabas.records").dataSourceCls().envVars()
    variables.put("one", "1")
    being_written = variables.entrySet().iterator()
    variables.put("another", "2")
    names = []
    while being_written.hasNext():
        names.append(being_written.next().getKey())
    assert "one" in names
    assert isinstance(spark.sparkContext.environment, dict), "that of everything else is as it was"


def test_spark_gives_every_record_once_although_the_query_stops(spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    growing = Growing(tmp_path / "data")
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = (
            spark.readStream.format("barnabas.records").option("maxRowsPerTrigger", "25").load(str(tmp_path / "data"))
        )
        values = stream.selectExpr("partition", "cast(value as string) as value")
        query = (
            values.writeStream.format("parquet")
            .option("path", table)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert len(query.recentProgress) > 1

    growing.grow(40)
    run()
    commits = sorted((Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # as if the process had died before the last micro-batch was noted as done
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    growing.grow(40)
    run()
    rows = spark.read.parquet(table).collect()
    assert sorted((row.partition, row.value.encode()) for row in rows) == sorted(growing.written)
