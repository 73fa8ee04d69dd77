"""Copies of data directories, and what is there if one fails half-way."""

import os
import shutil
import time
from pathlib import Path

import pytest
from barnabas.runtime import directory_copies


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "orders-0").mkdir(parents=True)
    for name in (".lock", "meta.properties", "orders-0/0.log", "orders-0/5.log", "orders-0/0.index"):
        (folder / name).write_text(name)
    return folder


def test_full_segments_are_linked_and_all_else_is_copied(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    directory_copies.copy(data, target, with_links=True)
    assert tree(target) == {name: text for name, text in tree(data).items() if name != ".lock"}
    same = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file() and path.stat().st_nlink > 1}
    assert same == {"orders-0/0.log"}
    directory_copies.copy(data, tmp_path / "whole")
    assert (tmp_path / "whole" / "orders-0" / "0.log").stat().st_nlink == 1


def test_a_folder_is_replaced_but_for_its_lock(data: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "other-0").mkdir(parents=True)
    (source / "other-0" / "0.log").write_text("x")
    directory_copies.replace(data, source, directory_copies.Same())
    assert tree(data) == {".lock": ".lock", "other-0/0.log": "x"}
    assert sorted(os.listdir(data)) == [".lock", "other-0"]


def inodes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def test_what_nobody_has_changed_is_left_as_it_is(data: Path, tmp_path: Path) -> None:
    source, same = tmp_path / "source", directory_copies.Same()
    (data / "tree.sqlite").write_text("rewritten in place")
    directory_copies.copy(data, source)
    before, texts = inodes(data), tree(data)
    same.note_all(data, source, time.time_ns() + 2 * directory_copies.TICK_NS)
    (data / "orders-0" / "5.log").write_text("more than before")
    (data / "orders-0" / "0.index").unlink()
    (data / "new-0").mkdir()
    (data / "new-0" / "0.log").write_text("new")
    directory_copies.replace(data, source, same)
    assert tree(data) == texts
    changed = {name for name, inode in inodes(data).items() if inode != before[name]}
    assert changed <= {"orders-0/5.log", "orders-0/0.index", "tree.sqlite"}
    assert not (data / "new-0").exists()
    (data / "orders-0" / "0.index").write_text("x" * len("orders-0/0.index"))  # as long, at another time
    directory_copies.replace(data, source, same)
    assert tree(data) == texts


def test_a_file_that_was_changed_just_now_is_not_taken_for_the_same(data: Path, tmp_path: Path) -> None:
    source, same = tmp_path / "source", directory_copies.Same()
    directory_copies.copy(data, source)
    same.note_all(data, source, time.time_ns())
    assert not same.holds(data / "meta.properties", source / "meta.properties")


@pytest.mark.parametrize("fails_at", [1, 2, 4])
def test_what_was_there_is_there_if_it_cannot_be_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    source = tmp_path / "source"
    directory_copies.copy(data, source)
    (data / "orders-0" / "5.log").write_text("newer")
    before = tree(data)
    calls: list[object] = []
    really = shutil.copyfile

    def full(source: Path, target: Path) -> None:
        calls.append(target)
        target.write_text("half")
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        really(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        directory_copies.replace(data, source, directory_copies.Same())
    assert tree(data) == before
