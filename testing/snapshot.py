"""Copies of data directories whose brokers have stopped: quick ones, because what no broker changes is linked."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

LOG_SUFFIX = ".log"
LEFT_OUT = ("broker-", ".lock", "snapshot-")  # logs of the processes, the lock of the folder, and what is copied here


@dataclass(frozen=True)
class Snapshot:
    """All that brokers had at a moment: records, offsets, groups, transactions, the tree, and how far time had gone."""

    folder: Path
    clock_ahead_ms: int


def copy(source: Path, target: Path) -> None:
    """Copy data of brokers that do not run. Segments that are full are linked: brokers only append to the last one."""
    target.mkdir(parents=True, exist_ok=True)
    entries = sorted(os.scandir(source), key=lambda entry: entry.name)
    segments = [entry.name for entry in entries if entry.name.endswith(LOG_SUFFIX)]
    for entry in entries:
        to = target / entry.name
        if entry.name.startswith(LEFT_OUT):
            continue
        if entry.is_dir(follow_symlinks=False):
            copy(Path(entry.path), to)
        elif entry.name in segments[:-1]:
            os.link(entry.path, to)
        else:
            shutil.copyfile(entry.path, to)


def clear(folder: Path) -> None:
    """Remove the data of brokers that do not run, and leave their logs."""
    for entry in list(os.scandir(folder)):
        if entry.name.startswith(LEFT_OUT):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
