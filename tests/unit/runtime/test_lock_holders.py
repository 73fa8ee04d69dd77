"""Who holds a lock on a file, and that no process is taken for another one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.runtime import lock_holders
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.processes import ProcessHandle, ProcessIdentity, identify

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux tells who holds a lock")

HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a file locked."""
    path.touch()
    words = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def test_the_holder_of_a_lock_is_found(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    assert lock_holders.holders(path) == []
    lock = RealDisk().lock(path)
    (found,) = lock_holders.holders(path)
    assert found.process == identify(os.getpid())
    assert found.is_exclusive
    lock.release()
    assert lock_holders.holders(path) == []


def test_a_lock_on_a_file_of_the_same_inode_elsewhere_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(tmp_path / "file") as other:
        line = next(line for line in Path("/proc/locks").read_text().splitlines() if f" {other.pid} " in line)
        mine = tmp_path / "mine"
        mine.touch()
        place = line.split()[5]
        told = tmp_path / "locks"  # as if the other process held a file of another device with this inode
        told.write_text(line.replace(place, f"00:63:{mine.stat().st_ino}") + "\n")
        monkeypatch.setattr(lock_holders, "_LOCKS", str(told))
        stat, theirs, mine_inode = os.stat, (tmp_path / "file").stat().st_ino, mine.stat().st_ino

        def on_another_device(path: str) -> Any:
            status = stat(path)
            is_theirs = path.startswith(f"/proc/{other.pid}/fd/") and status.st_ino == theirs
            return SimpleNamespace(st_dev=status.st_dev + 1, st_ino=mine_inode) if is_theirs else status

        with monkeypatch.context() as patched:
            patched.setattr(lock_holders.os, "stat", on_another_device)
            assert lock_holders.holders(str(mine)) == []
        told.write_text(line + "\n")
        assert [found.process.process for found in lock_holders.holders(str(tmp_path / "file"))] == [other.pid]


def test_only_the_process_that_was_meant_is_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with holder(tmp_path / "file") as other:
        (found,) = lock_holders.holders(path)
        earlier = ProcessIdentity(other.pid, found.process.started - 1, found.process.executable)
        changed = ProcessIdentity(other.pid, found.process.started, "/usr/bin/another")
        for wrong in (earlier, changed):
            assert not lock_holders.end_process(wrong, lambda: True), wrong
        assert not lock_holders.end_process(found.process, lambda: False)
        assert other.poll() is None
        assert str(found.process) == f"process {other.pid} ({os.path.realpath(sys.executable)})"
        assert lock_holders.end_process(found.process, lambda: lock_holders.holders(path) == [found])
        assert other.wait() == -9
    assert not lock_holders.end_process(found.process, lambda: True), "it is gone"


def test_a_handle_does_not_follow_the_number(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    handle = ProcessHandle(process.pid)
    assert handle.send(0)
    process.kill()
    process.wait()
    assert not handle.send(0)
    handle.close()
    assert not handle.is_certain
