"""What the tables promise, and the options of a query."""

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.options import read_options
from barnabas.pipeline.schemas import COMMITS, TABLES


def test_every_column_is_explained() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names)
        assert all(column.meaning for column in table.columns)
        assert table.arrow.names == names


def test_times_are_microseconds_in_utc_as_spark_wants_them() -> None:
    assert COMMITS.arrow.field("commit_timestamp").type == pa.timestamp("us", tz="UTC")


def test_options_have_spark_s_spelling_and_defaults() -> None:
    options = read_options({"BROKERS": "a:1, b:2", "maxRowsPerTrigger": "7", "failOnDataLoss": "FALSE"})
    assert options.brokers == ("a:1", "b:2")
    assert options.max_rows_per_trigger == 7
    assert not options.fail_on_data_loss
    assert not options.is_read_committed
    assert read_options({"path": "/one,/two"}).directories == ("/one", "/two")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "brokers"),
        ({"brokers": "a:1", "directories": "b"}, "brokers"),
        ({"path": "a", "isolation": "serializable"}, "isolation"),
        ({"path": "a", "splitBytes": "0"}, "splitBytes"),
        ({"path": "a", "topic": "b"}, "topic"),
        ({"path": "a", "maxRowsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "maxBytesPerTrigger"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_options(options)
