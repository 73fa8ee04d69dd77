"""What a reader sees of a data directory while its broker deletes and cleans segments, and after it was killed then."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline import directories
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.schemas import RECORDS
from barnabas.pipeline.sources import RecordSource
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, DataDirectory
from pyspark.sql.streaming.datasource import ReadAllAvailable
from test_directories import Row, in_order, read, some_commits


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[Row]]:
    """The folder of a log with several segments, and the rows of all logs."""
    directory = DataDirectory(tmp_path)
    rows = some_commits(directory, 5, 100)
    directory.close()
    return tmp_path / f"{OFFSETS}-0", rows


def commits(folder: Path) -> list[Row]:
    return in_order(read("barnabas.commits", path=folder.parent))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def first_offset(path: Path) -> int:
    return int(path.name[:20])


def before_first(
    monkeypatch: pytest.MonkeyPatch, of: object, name: str, do: Callable[[], object], word: object = ...
) -> None:
    """Something happens before the first call of a function (with this word)."""
    call = getattr(of, name)
    waiting = [do]

    def called(*words: Any, **named: Any) -> Any:
        while waiting and (word is ... or words[0] == word):
            waiting.pop()()
        return call(*words, **named)

    monkeypatch.setattr(of, name, called)


def test_a_segment_that_goes_while_its_folder_is_listed(
    written: tuple[Path, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes one segment; the others are still read."""
    folder, rows = written
    first, second, *_ = segments(folder)
    before_first(monkeypatch, directories.os, "stat", first.unlink, str(first))
    left = [row for row in rows if row["log_partition"] != 0 or row["log_offset"] >= first_offset(second)]
    assert commits(folder) == left


def begin_swap(folder: Path) -> Callable[[], None]:
    """The state in which a cleaned segment has no old names beside it, and not yet its own. Returns what ends it."""
    first, second, *_ = segments(folder)
    swap = first.with_name(f"{first.name}.swap")
    swap.write_bytes(first.read_bytes() + second.read_bytes())
    for path in (first, second):
        path.rename(f"{path}.deleted")
        path.with_suffix(".index").unlink()
    return lambda: os.replace(swap, first)


def test_a_log_whose_segments_are_being_swapped(
    written: tuple[Path, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rows = written
    before_first(monkeypatch, directories.time, "sleep", begin_swap(folder))
    assert commits(folder) == rows
    assert not list(folder.glob("*.swap"))


@pytest.mark.parametrize("were_renamed", [0, 1, 2])
def test_a_broker_that_was_killed_while_it_swapped_segments(
    written: tuple[Path, list[Row]], monkeypatch: pytest.MonkeyPatch, were_renamed: int
) -> None:
    """The first, both, or none of the old segments have lost their names."""
    monkeypatch.setattr(directories.time, "sleep", lambda _: None)
    folder, rows = written
    begin_swap(folder)
    for path in sorted(folder.glob("*.deleted"))[were_renamed:]:
        path.rename(path.with_suffix(""))
    assert commits(folder) == rows


def test_a_segment_that_is_a_link_to_nothing(written: tuple[Path, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories.time, "sleep", lambda _: None)
    folder, _ = written
    path = segments(folder)[1]
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=path.name):
        commits(folder)


def copied(tmp_path: Path, *, is_empty: bool) -> Path:
    """A copy whose checkpoint is newer than its log: of five records it has three, or none of the last segment."""
    directory = DataDirectory(tmp_path / "data")
    log = directory.log("orders")
    for number in range(5):
        if is_empty and number == 3:
            log.roll()
        directory.append(log, Record(-1, NOW_MS, None, b"%d" % number))
    directory.close()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    last = segments(tmp_path / "copy" / "orders-0")[-1]
    content = last.read_bytes()
    last.write_bytes(b"" if is_empty else content[: len(content) // 5 * 3])
    last.with_suffix(".index").write_bytes(b"")
    return tmp_path / "copy"


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_stream_does_not_pass_records_that_are_not_copied_yet(tmp_path: Path, *, is_empty: bool) -> None:
    copy = copied(tmp_path, is_empty=is_empty)

    def micro_batch(**options: str) -> list[bytes]:
        stream = RecordSource({"path": str(copy), **options}).streamReader(RECORDS.spark)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["orders-0"]["offset"] == 5
        tasks = stream.partitions(start, end)
        return [row["value"] for task in tasks for some in stream.read(task) for row in some.to_pylist()]

    with pytest.raises(LostRecordsError, match="ends at 3, below its high watermark of 5"):
        micro_batch()
    assert micro_batch(failOnDataLoss="false") == [b"0", b"1", b"2"]
    assert [row["value"] for row in read("barnabas.records", path=copy)] == [b"0", b"1", b"2"]
    shutil.rmtree(copy)
    shutil.copytree(tmp_path / "data", copy)
    assert micro_batch() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_log_that_the_checkpoint_does_not_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = DataDirectory(tmp_path)
    directory.append(directory.log("old"), Record(-1, NOW_MS, None, b"x"))
    directory.manager.checkpoint()
    directory.append(directory.log("new"), Record(-1, NOW_MS, None, b"y"))
    assert [row["topic"] for row in read("barnabas.records", path=tmp_path)] == ["old"]
    assert "new-0: nothing is read" in caplog.text
