"""Files of backups: one is whole or not there; `-` is standard output or input."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from barnabas.broker.cli.exits import ExitCode, fail
from barnabas.broker.cli.target import no_time_limit
from barnabas.offsets import backup

STANDARD = "-"


def write(path: str, lines: Iterable[bytes]) -> None:
    """Write the lines beside the file, sync them, and give them its name. What fails leaves the old file as it was."""
    with no_time_limit():
        if path == STANDARD:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
            return
        try:
            path = os.path.realpath(path)  # a link stays
            if _is_no_file(path):
                with open(path, "wb") as device:
                    device.writelines(lines)
            else:
                _write_whole(path, lines)
        except OSError as error:
            fail(f"{path} cannot be written: {error.strerror or error}.")


def _write_whole(path: str, lines: Iterable[bytes]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with _removed_by_signals(temporary), open(temporary, "xb") as file:
        try:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_writable(path: str) -> None:
    """End the command early if the file cannot be written: it may take minutes to find out what to write."""
    if path == STANDARD:
        return
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        fail(f"{path} cannot be written: there is no folder {folder}.", ExitCode.NOT_VALID)
    if os.path.isdir(path):
        fail(f"{path} cannot be written: it is a folder.", ExitCode.NOT_VALID)
    if not _is_no_file(path) and not os.access(folder, os.W_OK):
        fail(f"{path} cannot be written: nothing can be made in the folder {folder}.")


def _is_no_file(path: str) -> bool:
    """Whether something else has that name, such as a pipe or a device, which must not be replaced by a file."""
    return os.path.exists(path) and not os.path.isfile(path)


def read(path: str) -> backup.Backup:
    """The backup in a file; the command ends if it is none, or not whole."""
    name = "standard input" if path == STANDARD else path
    try:
        if path == STANDARD:
            return backup.read(sys.stdin.buffer)
        with open(path, "rb") as file:
            return backup.read(file)
    except OSError as error:
        fail(f"{name} cannot be read: {error.strerror or error}.", ExitCode.NOTHING_THERE)
    except backup.BackupError as error:
        fail(f"{name}: {error}.", ExitCode.NOT_VALID)


@contextmanager
def _removed_by_signals(path: str) -> Iterator[None]:
    """While a file is being written, Ctrl-C and SIGTERM remove it, and nothing else ends the command."""

    def end(number: int, _frame: Any) -> None:
        with suppress(OSError):
            os.unlink(path)
        os._exit(128 + number)

    old = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
