"""What `cluster backup` and `offsets export` write over, and what they leave alone."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

pytestmark = [
    pytest.mark.skipif("CLIENTS_BROKER_COMMAND" in os.environ, reason="Apache Kafka has no such tree"),
]

Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tool(own_broker: Any) -> Tool:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return forked.barnabas(*words, code=code, BARNABAS_BOOTSTRAP=own_broker.bootstrap)

    run("produce", "orders", "--value", "x")
    run("offsets", "set", "g", "--topic", "orders", "--to", "earliest", "--yes")
    return run


def test_no_file_of_a_broker_is_written_over(tool: Tool, own_broker: Any, tmp_path: Path) -> None:
    data = own_broker.data
    tree = data / "coordination.sqlite"
    (tmp_path / "link").symlink_to(tree)
    os.link(tree, tmp_path / "same")
    (tmp_path / "linked").symlink_to(data)
    segment = next(data.glob("orders-0/*.log"))
    files = [
        *(Path(f"{tree}{end}") for end in ("", "-wal", "-shm", ".newest", "-journal")),
        *(tmp_path / "link", tmp_path / "same", tmp_path / "linked" / tree.name),
        *(segment, data / "meta.properties", data / "tree.backup"),
    ]
    before = {path: path.stat().st_ino if path.exists() else None for path in files}
    assert None not in [before[path] for path in files[:4]]
    for path in files:
        for words in (("cluster", "backup"), ("cluster", "backup", "--tree", str(tree)), ("offsets", "export")):
            told = tool(*words, str(path), code=2).stderr
            assert told.startswith(f"barnabas: {path} "), told
            assert "Name a file elsewhere" in told or "Name another file" in told
    assert {path: path.stat().st_ino if path.exists() else None for path in files} == before
    own_broker.end(signal.SIGTERM)
    for path in files[:2]:  # also of a tree that nobody has open, whose -wal would be a new file
        assert "Name" in tool("cluster", "backup", str(path), "--tree", str(tree), code=2).stderr
    shutil.copyfile(tree, tmp_path / "tree")
    for end in ("", "-wal", "-shm", "-journal", ".newest", ".session-7"):
        assert "Name" in tool("cluster", "backup", f"{tmp_path / 'tree'}{end}", "--tree", str(tree), code=2).stderr


@pytest.mark.parametrize("words", [("cluster", "backup"), ("offsets", "export")])
def test_only_an_older_backup_is_replaced(tool: Tool, tmp_path: Path, words: tuple[str, str]) -> None:
    file = tmp_path / "backup"
    file.touch()  # as `mktemp` does
    tool(*words, str(file))
    first = file.stat().st_ino
    tool(*words, str(file))
    assert file.stat().st_ino != first
    backup = file.read_bytes()
    other = ({"cluster", "offsets"} - {words[0]}).pop()
    refused = tool(other, "export" if other == "offsets" else "backup", str(file), code=2).stderr
    assert refused.startswith(f"barnabas: {file} is there, and is no backup of "), refused
    assert file.read_bytes() == backup
    for content in (b"my thesis", b"SQLite format 3\0 or not", b'{"kind":"position"}\n', b"\xff" * 5000):
        file.write_bytes(content)
        assert "is there, and is no backup of " in tool(*words, str(file), code=2).stderr
        assert file.read_bytes() == content


def test_the_backup_of_another_cluster_is_not_replaced(
    tool: Tool, make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    tool("cluster", "backup", str(file))
    backup = file.read_bytes()
    other = make_broker().data / "coordination.sqlite"
    refused = tool("cluster", "backup", str(file), "--tree", str(other), code=2).stderr
    assert refused.startswith(f"barnabas: {file} is there, and is the backup of another cluster, "), refused
    assert file.read_bytes() == backup


def test_a_backup_that_became_a_tree_is_no_backup_any_more(tool: Tool, own_broker: Any, tmp_path: Path) -> None:
    """Its brokers write into it, although it still says that it was a backup."""
    file = tmp_path / "backup"
    tool("cluster", "backup", str(file))
    tool("cluster", "backup", str(file))
    for end in ("-wal", ".newest", ".session-3"):
        beside = Path(f"{file}{end}")
        beside.touch()
        assert "is no backup of a tree" in tool("cluster", "backup", str(file), code=2).stderr
        beside.unlink()
