"""Copies of data directories that no broker uses: quick ones, because what no broker changes any more can be linked."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

LOCK_NAME = ".lock"
NOTE = "snapshot.json"  # in the folder of a snapshot, beside a folder for each data directory
LOG_SUFFIX = ".log"
FORMER = ".before-restore"  # in a directory: what was in it, until all that replaces it is there


def copy(source: Path, target: Path, *, left_out: Collection[str] = (LOCK_NAME,), with_links: bool = False) -> None:
    """Copy what is in a folder, but for entries of these names. OSError: what is there of the copy is not whole.

    `with_links`: segments that are full are hard links, where the file system has them. A broker only appends to the
    last segment of a log, and a follower may cut off others: so not for followers.
    """
    entries = sorted(os.scandir(source), key=lambda entry: entry.name)  # first: the target may be in it
    target.mkdir(parents=True, exist_ok=True)
    full = {entry.name for entry in [each for each in entries if each.name.endswith(LOG_SUFFIX)][:-1]}
    for entry in entries:
        to = target / entry.name
        if entry.name in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            copy(Path(entry.path), to, left_out=(), with_links=with_links)
        elif not (with_links and entry.name in full and _linked(entry.path, to)):
            shutil.copyfile(entry.path, to)


def _linked(source: str, target: Path) -> bool:
    """Link a file; False where that cannot be."""
    with suppress(OSError):
        os.link(source, target)
        return True
    return False


def clear(folder: Path, *, left_out: Collection[str] = (LOCK_NAME,)) -> None:
    """Remove what is in a folder, but for entries of these names."""
    for entry in list(os.scandir(folder)):
        if entry.name in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def replace(folder: Path, source: Path, *, with_links: bool = False) -> None:
    """Put a copy of `source` in the place of what is in a folder. OSError: what was in it is still there."""
    former = folder / FORMER
    if former.exists():
        shutil.rmtree(former)
    former.mkdir()
    names = [name for name in os.listdir(folder) if name not in (FORMER, LOCK_NAME)]
    moved: list[str] = []
    try:
        for name in names:
            os.rename(folder / name, former / name)
            moved.append(name)
        copy(source, folder, with_links=with_links)
    except OSError:
        if len(moved) == len(names):
            clear(folder, left_out=(FORMER, LOCK_NAME))
        for name in moved:
            os.rename(former / name, folder / name)
        former.rmdir()
        raise
    shutil.rmtree(former)
