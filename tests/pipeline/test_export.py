"""Records as rows, and those that cannot be read."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.export import PARTITIONED_BY, export
from barnabas.pipeline.schemas import RECORDS
from histories import START_MS, History, Tables, rows, table
from pyspark.sql import SparkSession

from examples.day import POISON

SCHEMA = "payment bigint, amount bigint"


def test_raw_records_are_as_they_were(day: Tables, day_history: History) -> None:
    found = {(row["topic"], row["partition"], row["offset"]): row for row in rows(export(day.records))}
    assert len(found) == len(day_history.records)
    for one in day_history.records:
        row = found[one["topic"], one["partition"], one["offset"]]
        assert (bytes(row["key"]), bytes(row["value"]), row["timestamp"]) == (
            one["key"],
            one["value"],
            one["timestamp"],
        )
        assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [
            (header["key"], header["value"]) for header in one["headers"]
        ]
        assert (row["outcome"], row["reason"], row["raw"]) == ("good", None, None)


def test_the_poisoned_record_of_the_day_is_put_aside(day: Tables, day_history: History) -> None:
    found = rows(export(day.records.where("topic = 'payments'"), SCHEMA))
    (bad,) = [row for row in found if row["outcome"] == "bad"]
    assert (bytes(bad["raw"]), bad["reason"], bad["value"]) == (POISON, "not JSON", None)
    expected = {
        (one["partition"], one["offset"]): json.loads(one["value"])
        for one in day_history.records
        if one["topic"] == "payments" and one["value"] != POISON
    }
    assert {(row["partition"], row["offset"]): row["value"] for row in found if row["outcome"] == "good"} == expected


@pytest.mark.parametrize(
    ("value", "reason", "read"),
    [
        (b'{"payment": 1, "amount": 2}', None, {"payment": 1, "amount": 2}),
        (b'{"payment": 1}', None, {"payment": 1, "amount": None}),
        (b'{"payment": 1, "amount": 2, "more": []}', None, {"payment": 1, "amount": 2}),
        (b'{"payment": "x", "amount": 2}', "does not fit the schema", None),
        (b"[1, 2", "not JSON", None),
        (b"", "not JSON", None),
        (b"\xff\xfe", "not UTF-8", None),
        (None, "no value", None),
    ],
)
def test_why_a_record_is_bad(
    spark: SparkSession, tmp_path: Path, value: bytes | None, reason: str | None, read: object
) -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": START_MS, "timestamp_type": "CreateTime"}
    records = table(spark, tmp_path, RECORDS, [record | {"value": value}])
    (row,) = rows(export(records, SCHEMA))
    assert (row["reason"], row["value"]) == (reason, read)
    assert row["raw"] == (value if reason else None)


def test_a_stopped_export_goes_on_and_has_each_record_once(
    spark: SparkSession, day: Tables, day_history: History, tmp_path: Path
) -> None:
    day.records.repartition(4).write.parquet(str(tmp_path / "in"))
    reader = spark.readStream.schema(RECORDS.spark).option("maxFilesPerTrigger", 1)
    out = str(tmp_path / "out")
    for is_last in (False, True):
        writer = export(reader.parquet(str(tmp_path / "in")), SCHEMA).writeStream.partitionBy(*PARTITIONED_BY)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", out)
        query = writer.trigger(availableNow=True).start() if is_last else writer.start()
        while not is_last and not query.lastProgress:
            query.awaitTermination(0.1)
        if is_last:
            query.awaitTermination()
        query.stop()
    found = spark.read.parquet(out).select("topic", "partition", "offset").collect()
    assert len(found) == len(set(found)) == len(day_history.records)
