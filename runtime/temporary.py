"""Folders for data that nobody wants to keep: made, removed, and removed later where a process was killed."""

import os
import re
import threading
import time
from contextlib import suppress

PREFIX = "barnabas-ci-"
LOCK_NAME = ".lock"  # in the folder; whoever uses the folder holds it
_NAME = re.compile(re.escape(PREFIX) + r"[0-9a-f]{32}\Z")  # any other name is one that somebody else chose
ABANDONED_AFTER_S = 60.0  # a folder that is younger may belong to a process that has not locked it yet


def _parent_folder() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")


def path_for(random_name: str) -> str:
    """Where such a folder belongs. The name, 32 hexadecimal digits, is how it is known to be one of ours later."""
    assert _NAME.match(PREFIX + random_name)
    return os.path.join(_parent_folder(), PREFIX + random_name)


def make(path: str) -> None:
    """Make the folder, for this user's eyes only."""
    os.mkdir(path, 0o700)


def remove(path: str) -> None:
    """Remove a folder with all that is in it, as far as that can be done."""
    import shutil  # late: it brings the compression modules

    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(own: str) -> None:
    """Remove, in a thread, the folders whose processes were killed. `own` stays."""
    threading.Thread(target=_remove_abandoned, args=(own,), name="temporary", daemon=True).start()


def _remove_abandoned(own: str) -> None:
    with suppress(OSError), os.scandir(_parent_folder()) as entries:
        for entry in entries:
            if _NAME.match(entry.name) and entry.path != own:
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
            os.rmdir(entry.path)  # its process was killed before it could lock, so there is nothing in it
        return
    except OSError:
        return
    try:
        with suppress(OSError):  # a living broker holds it
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(entry.path)
    finally:
        os.close(descriptor)
