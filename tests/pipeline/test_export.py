"""Records as rows, and those that cannot be read."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs.export import PARTITIONED_BY, export
from barnabas.pipeline.run import Run
from barnabas.pipeline.runs import run_export
from barnabas.pipeline.schemas import RECORDS
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.pipeline.streamed import LiveTable
from barnabas.protocol.record_batch import Record
from data_directories import DataDirectory
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


STRICT = SCHEMA + ", rate double, price decimal(6,2), parts array<struct<price: decimal(4,1)>>"
GOOD = [
    (b'{"payment": 1, "amount": 2}', {"payment": 1, "amount": 2}),
    (b' {"payment": 1}\r\n', {"payment": 1, "amount": None}),
    (b'{"payment": 1, "amount": 2, "more": [], "corrupt": 1, "value": 2}', {"payment": 1, "amount": 2}),
    (b'{"price": 12.50, "rate": 0.1}', {"price": Decimal("12.50"), "rate": 0.1}),
    (b'{"price": 12.5, "parts": [{"price": 1.5}, {}]}', {"price": Decimal("12.50")}),
    (b"{}", {"payment": None}),
]
BAD = {
    "does not fit the schema": (
        *(b'{"payment": "x", "amount": 2}', b'{"payment": 1.5}', b'{"payment": 99999999999999999999}'),
        *(b'[{"payment": 1}]', b'[{"payment": 1}, {"payment": 2}]', b"[]", b"null", b"1", b'"x"'),
        *(b'{"rate": 1e999}', b'{"rate": "NaN"}', b'{"price": 1.234}', b'{"parts": [{"price": 1.25}]}'),
    ),
    "not JSON": (
        *(b"[1, 2", b"", b"  ", b'{"payment": 1', b'{"payment": 1}, {"payment": 2}', b'{"payment": 1},'),
        *(b'{"payment": 2} {"payment": 3}', b'{"payment": 2}{"payment": 3}', b'{"payment": 5}}', b'{"payment": 1} x'),
        *(b'{"payment": 1}]', b'{"payment": 1}] x', b'{"payment": 1}], "x": [1', b'{"payment": 1}, "amount": 2'),
        *(b'{"payment": 1}\0', b'{"payment": 1}//', b'{"payment": 1}\xc2\xa0', b'\xef\xbb\xbf{"payment": 1}'),
        *(b'{"payment": 1, "payment": 2}', b'{"x": {"y": 1, "y": 2}}', b"{'payment': 1}", b"{payment: 1}"),
        *(b'{"rate": NaN}', b'{"rate": Infinity}', b'{"payment": 01}', b'{"payment": 1,}', b'{"more": "\t"}'),
    ),
    "not UTF-8": (b"\xff\xfe", b'{"more": "\xff"}'),
    "no value": (None,),
}


def test_which_values_are_the_json_of_the_schema(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is read that the value does not say, and of what cannot be read every byte is kept."""
    values = [value for value, _ in GOOD] + [value for some in BAD.values() for value in some]
    reasons = [reason for reason, some in BAD.items() for _ in some]
    place = {"topic": "t", "partition": 0, "timestamp": START_MS, "timestamp_type": "CreateTime"}
    records = [place | {"offset": offset, "value": value} for offset, value in enumerate(values)]
    found = rows(export(table(spark, tmp_path, RECORDS, records), STRICT))
    found.sort(key=lambda row: row["offset"])
    for (value, expected), row in zip(GOOD, found):
        assert (row["outcome"], row["reason"], row["raw"]) == ("good", None, None), value
        assert row["value"].items() >= expected.items(), value
    assert [(row["raw"], row["reason"], row["value"]) for row in found[len(GOOD) :]] == [
        (value, reason, None) for value, reason in zip(values[len(GOOD) :], reasons)
    ]


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


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "Kind"]},
        {"name": "note", "type": ["null", "string", "long"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": ["null", "string"]}]},
            },
        },
    ],
}
LINES = [{"sku": "a"}, {"sku": None}]


def avro(value: dict[str, Any], **others: Any) -> bytes:
    fastavro = pytest.importorskip("fastavro", reason="the extra `spark` is not installed")
    buffer = BytesIO()
    wide = json.loads(json.dumps(ORDER).replace('"int"', '"long"'))  # so that a test can write what does not fit
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(wide), value | others)
    return buffer.getvalue()


def test_records_in_avro(spark: SparkSession, tmp_path: Path) -> None:
    at = datetime(2025, 11, 22, tzinfo=UTC)
    one = {"id": 1, "count": 2, "at": at, "price": Decimal("12.50"), "kind": "PAID", "before": None, "note": None}
    one |= {"tags": {"a": "b"}, "lines": LINES}
    values = [
        avro(one),
        avro(one, id=2, before="NEW", note="x"),
        avro(one, id=3, note=7),
        avro(one)[:-1],
        avro(one) + b"0",
        avro(one, count=1 << 40),  # too large for the schema
        b"",
        None,
    ]
    place = {"topic": "t", "partition": 0, "timestamp": START_MS, "timestamp_type": "CreateTime"}
    records = [place | {"offset": offset, "value": value} for offset, value in enumerate(values)]
    found = rows(export(table(spark, tmp_path, RECORDS, records), avro_schema=json.dumps(ORDER)))
    found.sort(key=lambda row: row["offset"])
    good = [row["value"] for row in found if row["outcome"] == "good"]
    expected = {**one, "at": at.replace(tzinfo=None)}
    assert [{**row, "at": row["at"].astimezone(UTC).replace(tzinfo=None)} for row in good] == [
        {**expected},
        {**expected, "id": 2, "before": "NEW", "note": {"member0": "x", "member1": None}},
        {**expected, "id": 3, "note": {"member0": None, "member1": 7}},
    ]
    assert [row["reason"] for row in found[3:]] == ["does not fit the schema"] * 4 + ["no value"]
    assert [row["raw"] for row in found[3:]] == values[3:]

    registered = [row | {"value": b"\0\0\0\0\x11" + value} for row, value in zip(records, values) if value is not None]
    framed = table(spark, tmp_path, RECORDS, registered, "framed")
    again = export(framed, avro_schema=json.dumps(ORDER), avro_skip_bytes=5)
    assert [row.value.id for row in again.where("outcome = 'good'").orderBy("offset").collect()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}', "contains itself"),
        ('["string", {"type": "array", "items": "int"}, {"type": "array", "items": "long"}]', "cannot be told apart"),
        ('{"type": "what"}', "what"),
        ("{", "cannot be used"),
    ],
)
def test_a_schema_of_avro_that_cannot_be_used(day: Tables, schema: str, reason: str) -> None:
    pytest.importorskip("fastavro", reason="the extra `spark` is not installed")
    with pytest.raises(ValueError, match=reason):
        export(day.records, avro_schema=schema)


def test_another_format_and_a_table_of_a_catalog(
    spark: SparkSession, day: Tables, day_history: History, tmp_path: Path
) -> None:
    """With Delta or Iceberg in the session, `format` names them; these two come with Spark."""
    day.records.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(RECORDS.spark).parquet(str(tmp_path / "in"))
    rows = export(stream)
    for live in (
        LiveTable(spark, str(tmp_path / "orc"), "orc", PARTITIONED_BY),
        LiveTable(spark, str(tmp_path / "named"), "parquet", PARTITIONED_BY, "exported"),
    ):
        assert live.read(rows).isEmpty()
        assert live.add(rows, follow=False) == len(day_history.records)
        assert live.add(rows, follow=False) == 0
        assert live.read(rows).select("topic", "partition", "offset").distinct().count() == len(day_history.records)
    spark.sql("drop table exported")


@pytest.mark.parametrize(
    ("schema", "said"), [("bigint", "names no column: say NAME TYPE"), ("id bigint,, amount", "cannot be read: ")]
)
def test_a_json_schema_that_cannot_be_used(day: Tables, schema: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        export(day.records, schema)


def test_a_record_of_the_year_58000(spark: SparkSession, tmp_path: Path) -> None:
    """A producer that says microseconds; Python has no such time, and the command shows the last one."""
    directory = DataDirectory(tmp_path / "data", {"orders": {"message.timestamp.after.max.ms": str(2**63 - 1)}})
    directory.append(directory.log("orders"), Record(-1, START_MS, None, b"1"), Record(-1, START_MS * 1000, None, b"2"))
    source = Source(directories=(directory.close(),))
    register(spark)
    summary = run_export(Run(spark, source, str(tmp_path / "out"), {"topic": "orders"}))
    assert summary.rows == [("orders", "good", None, 2, "2025-11-22 00:00:00", "+57861-08-20 00:00:00")]
