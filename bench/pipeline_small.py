"""What small runs of `barnabas pipeline` cost from command to prompt, on the day that `python -m examples` makes.

Each line is a command in a process of its own, by the clock and in processor time of all that it starts. Beside them is
what the rest of the machine used meanwhile: compare the clock only where that is little.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.targets import TICKS_PER_SECOND

TOPIC = "clicks"
JOBS = ("offsets", "lag", "export")
_PR_SET_CHILD_SUBREAPER = 36  # Java outlives the command for a moment, and would be counted nowhere


def small(work: Path) -> None:
    """Each job twice, the second time with nothing new, and the report; then the same with prepared classes."""
    day = work / "day"
    subprocess.run([sys.executable, "-m", "examples", "--data", str(day)], check=True, stdout=subprocess.DEVNULL)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    for prepared in (False, True):
        if prepared:
            _run("prepare")
        out = work / "small"
        for job in JOBS:
            words = (job, "--source", str(day), "--out", str(out), *(("--topic", TOPIC) if job == "export" else ()))
            _run(*words)
            _run(*words, said=f"{job}, nothing new")
        _run("report", "--source", str(day), "--out", str(work / "report.html"))
        shutil.rmtree(out)


def _run(*words: str, said: str = "") -> None:
    used, busy, began = _children_seconds(), _busy_seconds(), time.monotonic()
    command = [sys.executable, "-m", "barnabas", "pipeline", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = _children_seconds() - used
    others = max(0.0, _busy_seconds() - busy - used)
    print(
        f"{said or words[0]:34} {seconds:7.1f} s  {used:7.1f} s of processors; others used {others:.1f} s", flush=True
    )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy_seconds() -> float:
    """What all processors have done since the machine was started: everything but idle and waiting for disks."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS_PER_SECOND
