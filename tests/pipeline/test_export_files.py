"""What an export says of its folder: what the footers of its files do not tell is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from barnabas.pipeline.export_files import exported

TIME = pa.timestamp("us", tz="UTC")
NOW_US = 1_000_000_000_000_000


def write(path: Path, times: Sequence[int | None], reasons: Sequence[str | None], **settings: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"timestamp": pa.array(times, TIME), "reason": pa.array(reasons, pa.string())})
    pq.write_table(table, path, **settings)


def test_files_of_all_kinds(tmp_path: Path) -> None:
    good, bad = tmp_path / "outcome=good" / "day=2001-09-09", tmp_path / "outcome=bad" / "day=2001-09-09"
    write(good / "usual.parquet", [NOW_US, None, 2 * NOW_US], [None] * 3)
    write(good / "without-times.parquet", [None, None], [None] * 2)
    write(good / "old-times.parquet", [-5_000_000, 5 * NOW_US], [None] * 2, use_deprecated_int96_timestamps=True)
    write(good / "without-statistics.parquet", [3 * NOW_US], [None], write_statistics=False)
    write(bad / "bad.parquet", [7, NOW_US, None], ["not JSON", "no value", "not JSON"])
    write(tmp_path / "_written" / "hidden.parquet", [7], [None])
    assert exported(str(tmp_path), "orders") == [
        ("orders", "good", None, 8, "1969-12-31 23:59:55", "2128-06-11 08:53:20"),
        ("orders", "bad", "no value", 1, "2001-09-09 01:46:40", "2001-09-09 01:46:40"),
        ("orders", "bad", "not JSON", 2, "1970-01-01 00:00:00", "1970-01-01 00:00:00"),
    ]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert exported(str(tmp_path / "nothing"), "orders") == []
