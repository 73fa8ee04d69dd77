"""Folders for data that nobody wants to keep: made, removed, and removed later where a process was killed."""

import os
import threading
import time
from contextlib import suppress

PREFIX = "barnabas-ci-"
LOCK_NAME = ".lock"  # in the folder; whoever uses the folder holds it
ABANDONED_AFTER_S = 60.0  # a folder that is younger may belong to a process that has not locked it yet


def _parent_folder() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")


def path_for(random_name: str) -> str:
    """Where such a folder belongs."""
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
            if entry.name.startswith(PREFIX) and entry.path != own and _is_abandoned(entry):
                remove(entry.path)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    import fcntl

    try:
        status = entry.stat(follow_symlinks=False)
        is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid()
        if not is_ours or time.time() - status.st_mtime < ABANDONED_AFTER_S:
            return False
        descriptor = os.open(os.path.join(entry.path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True  # it was killed before it could lock
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
