"""The operating system's files."""

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from barnabas.runtime.ports import Buffer, DirectoryLock, File, SyncFailedError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_PARALLEL_SYNCS = 16
_PARALLEL_FROM = 8  # fewer files are synced sooner than threads start

PRIVATE = 0o600  # the mode of a file that may hold secrets
OPEN_FILES_MAX = 1024  # if the system does not name a limit

# Locks held by this process, by device and inode: POSIX locks do not exclude their own process.
_locked: set[tuple[int, int]] = set()


class RealFile:
    """One open file descriptor. Implements the File port."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        position += len(data)
        length -= len(data)
        while length and (data := os.pread(self._descriptor, length, position)):
            parts.append(data)
            position += len(data)
            length -= len(data)
        return b"".join(parts)

    def write(self, position: int, data: Buffer) -> None:
        written = os.pwrite(self._descriptor, data, position)
        if written == len(data):
            return
        rest = memoryview(data)[written:]
        position += written
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            rest = rest[written:]
            position += written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _sync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """The file descriptor; -1 when closed."""
        return self._descriptor

    def __del__(self) -> None:
        self.close()


class RealDirectoryLock:
    """A POSIX record lock. The JVM takes the same kind, so Kafka and Barnabas exclude each other."""

    __slots__ = ("_descriptor", "_identity")

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            assert self._identity in _locked, "a lock that this process does not hold"
            _locked.remove(self._identity)
            os.close(descriptor)


class RealDisk:
    """The file systems of this machine. Implements the Disk port."""

    __slots__ = ("_threads",)

    syncs = True

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        return RealFile(descriptor_of(path, create=create, read_only=read_only))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        import shutil

        if os.path.islink(path):  # an operator has put the folder of a log on another disk
            place = os.path.realpath(path)
            try:
                shutil.rmtree(place)
            except OSError:
                if os.path.isdir(place) and os.listdir(place):  # empty, it is where a disk is mounted
                    raise
            os.unlink(path)
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if os.path.exists(path):  # another process removed something inside at the same time
                shutil.rmtree(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def identity(self, path: str) -> tuple[int, int]:
        return _identity(os.stat(path))

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def is_private(self, path: str) -> bool:
        return not _rights_of_others(path)

    def make_private(self, path: str, *, create: bool = False) -> bool:
        with contextlib.suppress(OSError):  # who opens it will meet the error, too, and say more
            if create and not os.path.exists(path):  # to close any descriptor of a file drops our own locks on it
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
            rights = _rights_of_others(path)
            if rights:
                os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~rights)
        return self.is_private(path)

    def sync_directory(self, path: str) -> None:
        error = _sync_path(path)
        if error is not None:
            raise error

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        descriptors: list[int] = []
        try:
            for file in files:
                assert isinstance(file, RealFile)
                descriptors.append(os.dup(file.descriptor))  # the caller may close its own
            descriptors.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in directories)
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            failure = error  # Python deletes the name `error` at the end of this block
            asyncio.get_running_loop().call_soon(lambda: done(failure))
            return
        loop = asyncio.get_running_loop()
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sync")
        self._threads.submit(_sync_all, descriptors, loop, done)

    def sync_all(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        """Sync files, then folders. Several at a time, because a journaling file system commits them together."""
        failures: dict[str, OSError] = {}
        for paths in (files, directories):
            if len(paths) < _PARALLEL_FROM:
                failures |= _sync_paths(paths)
            else:
                from concurrent.futures import ThreadPoolExecutor

                # One share for each thread, because a task for each path would be slow.
                shares = [paths[first::_PARALLEL_SYNCS] for first in range(_PARALLEL_SYNCS)]
                with ThreadPoolExecutor(max_workers=_PARALLEL_SYNCS, thread_name_prefix="sync") as threads:
                    for failed in threads.map(_sync_paths, shares):
                        failures |= failed
        return failures

    def total_and_free_bytes(self, path: str) -> tuple[int, int]:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def open_files_max(self) -> int:
        """The limit of the process (ulimit -n)."""
        try:
            import resource
        except ImportError:  # not a POSIX system
            return OPEN_FILES_MAX
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return OPEN_FILES_MAX if limit == resource.RLIM_INFINITY else limit

    @staticmethod
    @cache
    def boot_id() -> str:
        """What the kernel of Linux calls itself since it has started; elsewhere it is not known."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> DirectoryLock:
        import fcntl

        # It looks before it opens: to close any descriptor of the file would drop this process's own lock.
        if os.path.exists(path) and _identity(os.stat(path)) in _locked:
            raise BlockingIOError(f"{path} is locked by this process")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise BlockingIOError(f"{path} is locked by another process") from error
        identity = _identity(os.fstat(descriptor))
        _locked.add(identity)
        return RealDirectoryLock(descriptor, identity)

    def is_locked(self, path: str) -> bool:
        """Whether a process holds the lock. It asks with a shared lock: two that ask at once do not meet each other."""
        import fcntl

        if _identity(os.stat(path)) in _locked:
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Which file it is, whatever its name."""
    return status.st_dev, status.st_ino


def _rights_of_others(path: str) -> int:
    """The bits of a file's mode by which others than its user read it. A group that may write was chosen so."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return 0
    return mode & (0o007 if mode & stat.S_IWGRP else 0o077)


def descriptor_of(path: str, *, create: bool, read_only: bool) -> int:
    """Open a file for reading and writing; `create` makes it when it is missing. A pipe is open at once, and empty."""
    flags = os.O_NONBLOCK | (os.O_RDONLY if read_only else os.O_RDWR)
    return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)


def read_pipe(path: str) -> bytes:
    """All that somebody writes into a pipe; waits for that."""
    with open(path, "rb") as pipe:
        return pipe.read()


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailedError(*error.args) from error


def _sync_paths(paths: Sequence[str]) -> dict[str, OSError]:
    """Sync each path; returns the errors by path."""
    results = [(path, _sync_path(path)) for path in paths]
    return {path: error for path, error in results if error is not None}


def _sync_path(path: str) -> OSError | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
    return None


def _sync_all(descriptors: list[int], loop: asyncio.AbstractEventLoop, done: Callable[[OSError | None], None]) -> None:
    failure: OSError | None = None
    for descriptor in descriptors:
        try:
            _sync(descriptor)
        except OSError as error:
            failure = failure or error
        finally:
            os.close(descriptor)
    with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no waiter left
        loop.call_soon_threadsafe(done, failure)
