"""What a reader sees of a data directory while its broker deletes and cleans segments, and after it was killed then."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline import directories
from data_directories import OFFSETS, DataDirectory
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
