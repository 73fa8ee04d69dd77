"""Copies of data directories, and what is there if one fails half-way."""

import os
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
    directory_copies.replace(data, source)
    assert tree(data) == {".lock": ".lock", "other-0/0.log": "x"}
    assert sorted(os.listdir(data)) == [".lock", "other-0"]


@pytest.mark.parametrize("fails", ["rename", "copyfile"])
def test_what_was_there_is_there_if_it_cannot_be_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    source = tmp_path / "source"
    directory_copies.copy(data, source)
    before = tree(data)
    calls: list[object] = []
    where = directory_copies.os if fails == "rename" else directory_copies.shutil  # type: ignore[attr-defined]
    really = getattr(where, fails)

    def full(*given: object) -> object:
        calls.append(given)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return really(*given)

    monkeypatch.setattr(where, fails, full)
    with pytest.raises(OSError, match="No space left"):
        directory_copies.replace(data, source)
    assert tree(data) == before
    assert not (data / directory_copies.FORMER).exists()
