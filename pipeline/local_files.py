"""What a run needs of the disk of this machine: a place that can be written, that no other run writes at the same time,
and files that are whole or not there.

Folders elsewhere (`hdfs://…`) are Spark's business: nothing is checked there, and nothing excludes another run.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

LOCK_FILE = "_running.lock"  # Spark reads no file whose name begins with `_`


class OutError(Exception):
    """The place of the results cannot be used, and why."""


class BusyError(OutError):
    """Another run is at work there."""


def local_path(out: str) -> Path | None:
    """The path on this machine; None: it is elsewhere, or a cluster's settings say where."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", out)
    if scheme is None:
        return None if "PYSPARK_GATEWAY_PORT" in os.environ else Path(out)
    return Path(re.sub(r"^file:(//)?", "", out)) if scheme[1].lower() == "file" else None


def folder_bytes(path: str) -> int | None:
    """How large the files in a folder are, and in those in it; None: it is not on this machine."""
    folder = local_path(path)
    if folder is None:
        return None
    return sum(os.path.getsize(f"{place}/{name}") for place, _, names in os.walk(folder) for name in names)


@contextmanager
def only_run_in(out: str) -> Iterator[None]:
    """Make the folder if it is not there, and keep other runs out of it. OutError says why not.

    The lock is the operating system's, so it ends with the process, however that ends.
    """
    folder = local_path(out)
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("a+")
    except OSError as error:
        raise OutError(f"--out {folder} cannot be written: {_reason(error)}") from None
    with file:
        if not _lock(file.fileno()):
            file.seek(0)
            raise BusyError(f"another run of `barnabas pipeline` writes to {folder} (process {file.read().strip()})")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield  # the file stays: to remove it could let two runs hold locks of two files


@contextmanager
def folder_or_temporary(path: str) -> Iterator[str]:
    """That folder; without a name one that is gone in the end."""
    if path:
        yield path
    else:
        with TemporaryDirectory(prefix="barnabas-") as folder:
            yield folder


def check_file(name: str) -> None:
    """OutError says why a file cannot be written there. Its folder is made if it is not there."""
    path = Path(name)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise OutError(f"--out {path} cannot be written: {_reason(error)}") from None
    if is_folder:
        raise OutError(f"--out {path} is a folder, and the report is a file: name it, such as {path / 'report.html'}")
    beside = _begin(path, b"")
    beside.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a file in place of the one that is there, which stays if this fails. OutError says why."""
    beside = _begin(path, content)
    try:
        beside.replace(path)
    except OSError as error:
        raise OutError(f"{path} cannot be written: {_reason(error)}") from None


def _begin(path: Path, content: bytes) -> Path:
    """A file beside that one, with the content."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise OutError(f"{path} cannot be written: {_reason(error)}") from None
    return beside


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _lock(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
