"""Copies of data directories."""

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
