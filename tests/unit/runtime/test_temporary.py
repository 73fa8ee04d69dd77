"""Folders of killed processes go; those of living ones stay, also if this process is the one that lives."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from barnabas.runtime import temporary
from barnabas.runtime.watcher import Watcher

REMOVES = "from barnabas.runtime import temporary; temporary.remove_abandoned('')"


def made(number: int) -> str:
    path = temporary.path_for(f"{number:032x}")
    temporary.make(path)
    return path


def remove_abandoned() -> None:
    temporary.remove_abandoned("")
    for thread in threading.enumerate():
        if thread.name == "temporary":
            thread.join()


@pytest.mark.parametrize("free", [0, temporary.MEMORY_FREE_BYTES_MIN])
def test_it_is_in_memory_where_there_is_room_unless_somebody_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(temporary, "MEMORY", str(tmp_path / "memory"))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=1))
    monkeypatch.delenv("TMPDIR", raising=False)
    temporary.in_memory.cache_clear()
    (tmp_path / "memory").mkdir()
    try:
        parent = os.path.dirname(temporary.path_for("0" * 32))
        assert parent == (str(tmp_path / "memory") if free else "/tmp")
        assert os.path.dirname(temporary.path_for("0" * 32, on_disk=True)) == "/tmp"
        left = temporary.path_for("1" * 32)
        if free:
            temporary.make(left)
            os.utime(left, (1, 1))
            remove_abandoned()
            assert not os.path.exists(left)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert os.path.dirname(temporary.path_for("0" * 32)) == str(tmp_path)
    finally:
        temporary.in_memory.cache_clear()


def test_a_folder_that_this_process_uses_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-11 the second broker of a test run removed the data of the first, if that was a minute old."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    used, left = made(1), made(2)
    lock = temporary.lock(used)
    os.close(os.open(os.path.join(left, temporary.LOCK_NAME), os.O_CREAT))
    for folder in (used, left):
        os.utime(folder, (1, 1))
    remove_abandoned()
    assert os.listdir(tmp_path) == [os.path.basename(used)]
    os.utime(used, (1, 1))
    subprocess.run([sys.executable, "-c", REMOVES], check=True)
    assert os.path.exists(used), "its lock was given back"
    temporary.unlock(lock)
    remove_abandoned()
    assert os.listdir(tmp_path) == []


def test_what_is_written_while_a_folder_goes_goes_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker whose tests were killed may still be ending in the folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = made(1)
    remove = temporary.remove
    for ends in (True, False):
        if ends:
            os.close(os.open(os.path.join(folder, temporary.LOCK_NAME), os.O_CREAT))
        os.utime(folder, (1, 1))

        def remove_beside_a_broker(path: str, *, ends: bool = ends) -> None:
            remove(path)
            if ends:
                os.makedirs(os.path.join(path, "0"))

        monkeypatch.setattr(temporary, "remove", remove_beside_a_broker)
        remove_abandoned()
        assert os.path.exists(folder) is ends


def test_a_process_that_can_start_no_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: object, **options: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(subprocess, "Popen", refused)
    watcher = Watcher("/nowhere")
    watcher.tell(os.getpid())
    watcher.end()
