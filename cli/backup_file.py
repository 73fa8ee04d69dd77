"""Files of backups: one is whole or not there; `-` is standard output or input.

An older backup of the same kind is replaced, and an empty file. Nothing else that is there is written over: it could be
the tree or a log that is to be backed up.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.target import no_time_limit
from barnabas.offsets import backup
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.env import real
from barnabas.storage.checkpoints import META_PROPERTIES
from barnabas.storage.directory_contents import BESIDE_THE_TREE

STANDARD = "-"
FIRST_LINE_BYTES_MAX = 4096
SQLITE = b"SQLite format 3\0"


class Kind(NamedTuple):
    """What a backup is of."""

    name: str
    is_backup: Callable[[str], bool]  # whether the file at a path is one


def write(path: str, lines: Iterable[bytes], mode: int = 0o666) -> None:
    """Write the lines beside the file, sync them, and give them its name. What fails leaves the old file as it was.

    `mode`: of the file, but for the umask.
    """
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
                _write_whole(path, lines, mode)
        except OSError as error:
            fail(f"{path} cannot be written: {error.strerror or error}.")


def _write_whole(path: str, lines: Iterable[bytes], mode: int) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    make = partial(os.open, mode=mode)
    with _removed_by_signals(temporary), open(temporary, "xb", opener=make) as file:
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


def check_writable(path: str, kind: Kind) -> None:
    """End the command early if the file cannot be written: it may take minutes to find out what to write."""
    if path == STANDARD:
        return
    file = os.path.realpath(path)
    folder = os.path.dirname(file)
    if not os.path.isdir(folder):
        fail(f"{path} cannot be written: there is no folder {folder}.", ExitCode.NOT_VALID)
    if os.path.isdir(path):
        fail(f"{path} cannot be written: it is a folder.", ExitCode.NOT_VALID)
    if _is_no_file(path):
        return
    if not os.access(folder, os.W_OK):
        fail(f"{path} cannot be written: nothing can be made in the folder {folder}.")
    _check_replaceable(path, file, kind)


def _check_replaceable(named: str, path: str, kind: Kind) -> None:
    """End the command rather than write over a file that is no older backup, or between files of brokers."""
    folder, name = os.path.split(path)
    above = folder
    while True:
        if os.path.exists(os.path.join(above, META_PROPERTIES)):
            fail(f"{named} is in the data directory {above} of a broker. Name a file elsewhere.", ExitCode.NOT_VALID)
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)
    disk = real().disk
    for other in disk.list_directory(folder):
        if name != other and name.startswith(other) and BESIDE_THE_TREE.match(name, len(other)):
            tree = os.path.join(folder, other)
            if _start(tree, len(SQLITE)) == SQLITE:
                fail(
                    f"{named} has a name of what brokers keep beside the tree {tree}. Name another file.",
                    ExitCode.NOT_VALID,
                )
    if os.path.exists(path) and disk.file_size(path) and not kind.is_backup(path):
        fail(f"{named} is there, and is no backup of {kind.name}. Name another file, or remove it.", ExitCode.NOT_VALID)


def older(path: str) -> str | None:
    """The older backup that would be replaced, when `check_writable` has taken the name; None: there is none."""
    file = os.path.realpath(path)
    return file if path != STANDARD and os.path.isfile(file) and real().disk.file_size(file) else None


def are_one(path: str, other: str) -> bool:
    """Whether both names are of one file."""
    return path != STANDARD and os.path.realpath(path) == os.path.realpath(other)


def _start(path: str, size: int) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    try:
        file = real().disk.open(path, read_only=True)
    except OSError:
        return b""
    try:
        return file.read(0, size)
    finally:
        file.close()


def _is_backup_of_offsets(path: str) -> bool:
    return backup.is_backup(_start(path, FIRST_LINE_BYTES_MAX).partition(b"\n")[0])


OFFSETS = Kind("offsets", _is_backup_of_offsets)


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
