"""The output of a process for people: standard output, standard error, a log file. Writing never blocks the loop.

A pipe without a reader is full after 64 KiB, a terminal may be stopped, a disk may hang: a write to it may never
return. So each output has a thread that writes, and a bounded amount of text that waits for the thread. Text beyond
that is dropped. When the output can be written again, it says how many lines are missing.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO, cast

WAITING_CHARACTERS_MAX = 1 << 20
LAST_MOMENT_S = 0.3  # at exit: how long the writing of the waiting text may take
FILE_MODE = 0o644

# Writes the bytes and returns how many were written: fewer than all after an error. It may block for any time.
Sink = Callable[[bytes], int]


class Output(io.TextIOBase):
    """A text stream whose `write` never blocks and never fails."""

    def __init__(self, sink: Sink, *, tells_dropped: bool = True) -> None:
        self._sink = sink
        self._tells_dropped = tells_dropped
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._dropped_lines = 0  # lines that came while `_waiting` was full
        self._is_writing = False
        threading.Thread(target=self._write_all, name="output", daemon=True).start()
        atexit.register(self.finish)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Queue the text for the thread. It is dropped if too much text waits already."""
        with self._changed:
            if self._waiting_characters + len(text) > WAITING_CHARACTERS_MAX:
                self._dropped_lines += text.count("\n")
            else:
                self._waiting.append(text)
                self._waiting_characters += len(text)
                if len(self._waiting) == 1:  # else the thread knows that there is something
                    self._changed.notify_all()
        return len(text)

    def finish(self, within_s: float = LAST_MOMENT_S) -> None:
        """Return when all waiting text is written, or when the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, within_s)

    def _write_all(self) -> None:
        failed_lines = 0  # lines that the sink could not write
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                self._is_writing = True
                before = self._notice(failed_lines)
                body = "".join(self._waiting).encode(errors="backslashreplace")
                dropped_lines = self._dropped_lines  # these lines came after all of the waiting text
                self._waiting.clear()
                self._waiting_characters = self._dropped_lines = 0
            data = before + body + self._notice(dropped_lines)
            written = self._sink(data)
            if written >= len(before):
                failed_lines = 0
            if written < len(data):
                failed_lines += body.count(b"\n", max(written - len(before), 0)) + dropped_lines

    def _notice(self, lines: int) -> bytes:
        if not lines or not self._tells_dropped:
            return b""
        were = "line was" if lines == 1 else "lines were"
        return f"{lines:,} {were} dropped here: they could not be written in time.\n".encode()


def to_descriptor(descriptor: int) -> Sink:
    """Write to an open file of the process, a pipe or a terminal."""

    def write(data: bytes) -> int:
        position = 0
        while position < len(data):
            try:
                position += os.write(descriptor, memoryview(data)[position:])
            except BlockingIOError:  # the process at the other end made the pipe non-blocking
                poll = select.poll()
                poll.register(descriptor, select.POLLOUT)
                poll.poll()
            except OSError:
                break
        return position

    return write


def open_closed_streams() -> None:
    """Open the standard streams that the parent has closed: nothing comes from them, and what goes there is lost.

    Otherwise the next file that is opened, a segment of a log or a connection, would get the number of one.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            # Whoever replaces it must not close the descriptor with it.
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def take_standard_streams() -> None:
    """Replace stdout and stderr, so that printing and logging cannot block this process."""
    open_closed_streams()
    sys.stdout = cast(TextIO, Output(to_descriptor(1), tells_dropped=False))  # programs read it line by line
    sys.stderr = cast(TextIO, Output(to_descriptor(2)))


class RotatingFile:
    """A sink: a file that begins anew when it is full. The old `FILE` becomes `FILE.1`, `FILE.1` becomes `FILE.2`."""

    def __init__(self, path: str, bytes_max: int, old_files_max: int) -> None:
        """Open the file for appending. OSError when it cannot be opened."""
        self._path = path
        self._bytes_max = bytes_max
        self._old_files_max = old_files_max
        self._descriptor = -1
        self._open()

    def __call__(self, data: bytes) -> int:
        """Write; returns how many bytes were written. After a failure the next call tries again."""
        try:
            if self._descriptor < 0 or not self._is_ours():
                self._open()
            size = os.fstat(self._descriptor).st_size
            if size and size + len(data) > self._bytes_max:
                self._rotate()
        except OSError:
            return 0
        return to_descriptor(self._descriptor)(data)

    def _is_ours(self) -> bool:
        """Whether the open file still has its name. Somebody may have moved or removed it."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, FILE_MODE)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor

    def _rotate(self) -> None:
        assert self._descriptor >= 0, "a file that is not open cannot be full"
        for number in range(self._old_files_max, 0, -1):
            source = self._path if number == 1 else f"{self._path}.{number - 1}"
            with suppress(FileNotFoundError):
                os.replace(source, f"{self._path}.{number}")
        if not self._old_files_max:
            os.truncate(self._path, 0)
        self._open()
