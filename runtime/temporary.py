"""Folders for data that nobody keeps. If their process was killed, a later process removes them.

They are in memory if there is room: on a disk, files that are made and removed between two tests take as long as all
else that a broker does to be put back.
"""

import os
import re
import threading
import time
from contextlib import suppress
from functools import cache

PREFIX = "barnabas-ci-"
LOCK_NAME = ".lock"  # in the folder; the process that uses the folder holds this lock
_NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}\Z")  # a user chose any other name
MEMORY = "/dev/shm"  # a file system in memory, on Linux
MEMORY_FREE_BYTES_MIN = 2 << 30
ABANDONED_AFTER_S = 60.0  # the process of a younger folder may not have locked it yet

# The folders that this process uses, by the descriptors of their locks. To try such a lock would succeed, because locks
# are those of a process, and to close the file again would end it.
_used: dict[int, str] = {}


def _on_disk() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")


@cache  # files of one folder are linked into another, which a file system can only with its own
def in_memory(free_bytes_min: int = MEMORY_FREE_BYTES_MIN) -> str | None:
    """The folder in memory; None: there is none, or too little room."""
    try:
        status = os.statvfs(MEMORY)
        has_room = status.f_bavail * status.f_frsize >= free_bytes_min and os.access(MEMORY, os.W_OK)
    except (OSError, AttributeError):
        return None
    return MEMORY if has_room else None


def path_for(random_name: str, *, on_disk: bool = False) -> str:
    """The path of a folder. Its name, 32 hexadecimal digits, shows later that a broker made it.

    `on_disk`: it may become large, or has to do with data that is on a disk. Who sets TMPDIR has chosen, too.
    """
    assert _NAME.match(PREFIX + random_name), "a later process would not remove a folder of this name"
    parent = None if on_disk or os.environ.get("TMPDIR") else in_memory()
    return os.path.join(parent or _on_disk(), PREFIX + random_name)


def make(path: str) -> None:
    """Make the folder; only this user may read it."""
    os.mkdir(path, 0o700)


def lock(path: str) -> int:
    """Lock the folder, so that nobody takes it for one of a killed process; returns what `unlock` takes."""
    import fcntl

    descriptor = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    _used[descriptor] = path
    return descriptor


def unlock(descriptor: int) -> None:
    del _used[descriptor]
    os.close(descriptor)


def remove(path: str) -> None:
    """Remove a folder and everything in it. Errors are ignored."""
    import shutil  # late, because it imports the compression modules

    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(own: str) -> None:
    """Remove the folders of killed processes, in a thread. The folder `own` stays."""
    threading.Thread(target=_remove_abandoned, args=(own,), name="temporary", daemon=True).start()


def _remove_abandoned(own: str) -> None:
    parents = [_on_disk()] if os.environ.get("TMPDIR") else [_on_disk(), MEMORY]
    for parent in parents:
        with suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if _NAME.match(entry.name) and entry.path not in (own, *list(_used.values())):
                    _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    import fcntl

    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # another start was quicker
        return
    is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid()
    if not is_ours or time.time() - status.st_mtime < ABANDONED_AFTER_S:
        return
    try:
        descriptor = os.open(os.path.join(entry.path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(entry.path)  # its process was killed before it made the lock, so the folder is empty
        return
    except OSError:
        return
    try:
        with suppress(OSError):  # a living broker holds it
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(entry.path)
            # A broker that is ending may have written into it meanwhile. Without a lock it would stay for good.
            os.close(os.open(os.path.join(entry.path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    finally:
        os.close(descriptor)
