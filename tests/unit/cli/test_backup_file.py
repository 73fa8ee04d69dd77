"""A file of a backup is whole or not there, whatever ends the writing."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from barnabas.cli import backup_file
from barnabas.cli.shared.exits import Failure
from barnabas.runtime.disk import PRIVATE

WRITING = """
import sys, time
from barnabas.cli import backup_file
def lines():
    yield b"first\\n" * 100_000
    print("half", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a sleep does not wake it
backup_file.write(sys.argv[1], lines())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_old_file(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "offsets.jsonl"
    path.write_text("old")
    process = subprocess.Popen([sys.executable, "-c", WRITING, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    def lines() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    path = tmp_path / "offsets.jsonl"
    path.write_text("old")
    with pytest.raises(Failure, match="No space left on device"):
        backup_file.write(str(path), lines())
    assert [one.read_text() for one in tmp_path.iterdir()] == ["old"]


def test_a_file_that_only_its_user_reads(tmp_path: Path) -> None:
    """Also in the place of an older one that others could read."""
    path = tmp_path / "tree.backup"
    path.write_text("old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        backup_file.write(str(path), [b"new"], PRIVATE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE


def test_a_link_stays_and_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    backup_file.write(str(link), [b"a\n"])
    assert link.is_symlink()
    assert path.read_bytes() == b"a\n"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    backup_file.check_writable(str(pipe), backup_file.OFFSETS)
    backup_file.write(str(pipe), [b"b\n"])
    assert reader.communicate(timeout=200)[0] == b"b\n"
    assert pipe.is_fifo()


def test_the_name_of_a_file_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backup_file.check_writable("offsets.jsonl", backup_file.OFFSETS)
    backup_file.write("offsets.jsonl", [b"a\n"])
    assert (tmp_path / "offsets.jsonl").read_bytes() == b"a\n"
