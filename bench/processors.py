"""Processor time of this process and of all that it has started."""

import contextlib
import os
from pathlib import Path

from bench.targets import TICKS_PER_SECOND


def processor_seconds() -> float:
    """What this process has used, with all that it has started: Spark's Java and its Python processes."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(map(int, fields[11:15]))  # its own, and of children that have ended
    total = 0
    for pid, ticks in used.items():
        ancestor = pid
        while ancestor > 1 and ancestor != os.getpid():
            ancestor = parents.get(ancestor, 0)
        total += ticks if ancestor == os.getpid() else 0
    return total / TICKS_PER_SECOND
