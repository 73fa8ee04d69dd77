"""Standard error and a log file: a write there never waits, and the log says how many lines were dropped."""

import errno
import os
import threading
from pathlib import Path

import pytest
from barnabas.runtime import output
from barnabas.runtime.output import Output, RotatingFile, to_descriptor


class Gate:
    """A sink that is stuck until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.stuck = threading.Event()
        self.written = b""

    def __call__(self, data: bytes) -> int:
        self.stuck.set()
        self.opened.wait()
        self.written += data
        return len(data)


def test_what_does_not_fit_is_dropped_and_said_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "WAITING_CHARACTERS_MAX", 10)
    gate = Gate()
    out = Output(gate)
    out.write("first\n")
    gate.stuck.wait()
    for line in ("a\n", "b\n", "a long line\n", "and\nanother\n", "c\n"):
        out.write(line)
    gate.opened.set()
    out.finish()
    out.write("last\n")
    out.finish()
    assert gate.written.decode().splitlines() == [
        "first",
        "a",
        "b",
        "c",
        "3 lines were dropped here: they could not be written in time.",
        "last",
    ]


def test_to_finish_does_not_wait_for_a_reader_that_never_reads() -> None:
    gate = Gate()
    out = Output(gate)
    out.write("x\n")
    out.finish(within_s=0.01)
    assert gate.written == b""
    gate.opened.set()


def test_a_failed_write_is_counted_and_the_next_one_says_so() -> None:
    attempts = []

    def full_at_first(data: bytes) -> int:
        attempts.append(data)
        return 4 if len(attempts) <= 2 else len(data)  # one line, and the first characters of a notice

    out = Output(full_at_first)
    for line in ("one\ntwo\nthree\n", "four\n", "five\n"):
        out.write(line)
        out.finish()
    assert attempts[-1] == b"3 lines were dropped here: they could not be written in time.\nfive\n"


def test_a_descriptor_that_another_process_made_non_blocking() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = b"x" * 300_000
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(to_descriptor(writer)(data)))
    thread.start()
    read = 0
    while read < len(data):
        read += len(os.read(reader, 1 << 16))
    thread.join()
    assert done == [len(data)]
    os.close(reader)
    assert to_descriptor(writer)(b"nobody reads") == 0
    os.close(writer)


def test_a_file_begins_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    write = RotatingFile(str(path), bytes_max=10, old_files_max=2)
    for line in ("one\n", "two\n", "three\n", "four\n", "a line that is longer than a file\n", "five\n"):
        assert write(line.encode()) == len(line)
    contents = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert contents == {
        "broker.log": "five\n",
        "broker.log.1": "a line that is longer than a file\n",
        "broker.log.2": "four\n",
    }


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    write = RotatingFile(str(path), bytes_max=1000, old_files_max=1)
    write(b"one\n")
    path.rename(tmp_path / "kept")
    write(b"two\n")
    assert path.read_text() == "two\n"
    path.unlink()
    write(b"three\n")
    assert path.read_text() == "three\n"


def test_no_room_in_a_file_and_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broker.log"
    out = Output(RotatingFile(str(path), bytes_max=1000, old_files_max=1))

    def no_room(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", no_room)
        out.write("lost\nlost too\n")
        out.finish()
    out.write("kept\n")
    out.finish()
    assert path.read_text() == "2 lines were dropped here: they could not be written in time.\nkept\n"


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RotatingFile(str(tmp_path / "missing" / "broker.log"), bytes_max=10, old_files_max=0)
