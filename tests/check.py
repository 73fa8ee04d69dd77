"""`python tests/check.py`: the checks that everybody runs before a commit; with `--all`, everything, as CI does.

The tests are divided into parts, and mypy is one more, the last. Some parts wait, most of the time, for clocks and for
the processes that they start; others compute all the time. Some of both kinds run at once, and those that compute give
way, so that nothing is late. Each line that is printed begins with the name of its part. At the end stands what became
of each part, and the end of what a failed one has printed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from barnabas.runtime.temporary import in_memory
from checkout import ROOT, SHARED, entries, leaves_nothing

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
)
TYPES = ("tests/check_types.py",)
TESTS = ("-m", "pytest", "-rfEs")  # at the end it says what failed, and what was skipped and why
COMPUTING = ("spark", "others", "simulations", "compiled", "types")  # how the names of these parts begin
COMPUTING_AT_ONCE, WAITING_AT_ONCE = 2, 4  # on two cores; four that wait use about one
GIVES_WAY = ("nice", "-n", "5")
MEMORY_BYTES_MIN = 4 << 30  # all tests together write 1.2 GB
LINES_KEPT = 150  # of what a part has printed: shown again at the end if it fails
LINE_CHARACTERS = 200  # of what pytest says of a failed test, at the very end
PIPELINE = "tests/pipeline"
CLUSTERS = "tests/cluster"
CLIENTS = "tests/clients"
HALVES_MEET_AT = "test_k"  # of the folders that are two parts
UNITS = "tests/unit"
SIMULATIONS = "tests/sim"
COMPILED = ("tests/test_compiled.py", "tests/fuzz")
OF_PROCESSES = ("tests/crash", "tests/zookeeper", CLIENTS, CLUSTERS, PIPELINE)
LONG_SIMULATIONS = (
    "test_planted_faults.py::test_the_fault_is_caught",
    "test_seeds_of_the_day.py",
    "test_simulated_cluster.py::test_in_quiet_times",
    "test_simulated_cluster.py::test_two_troubles",
)


def half(folder: str, number: int) -> tuple[str, ...]:
    """The files of one half of a folder, 1 or 2."""
    names = sorted(path.name for path in (ROOT / folder).glob("test_*.py"))
    return tuple(f"{folder}/{name}" for name in names if (name >= HALVES_MEET_AT) == (number == 2))


# The longest of each kind first, and a short one last, so that no part runs alone for long.
ALL: dict[str, Sequence[str]] = {
    "spark": (f"{PIPELINE}/test_prepare.py", PIPELINE),  # first the classes that each Java takes
    "others 1": (UNITS,),
    "simulations": (SIMULATIONS,),
    "compiled": COMPILED,
    "others 2": ("tests", *(f"--ignore={place}" for place in (*OF_PROCESSES, UNITS, SIMULATIONS, *COMPILED))),
    "clients 1": half(CLIENTS, 1),
    "clients 2": half(CLIENTS, 2),
    "clusters 2": half(CLUSTERS, 2),
    "crash": ("tests/crash", "tests/zookeeper"),
    "clusters 1": half(CLUSTERS, 1),
}
# Without what takes long: planted faults, seeds of the day, kills, full disks, most clusters, most of Spark.
QUICK: dict[str, Sequence[str]] = {
    "others 1": (UNITS,),
    "others 2": (
        *("tests/wire", "tests/scenarios"),
        *(f"tests/test_{name}.py" for name in ("docs", "layers", "package", "clean_checkout")),
    ),
    "simulations": (SIMULATIONS, *(f"--deselect={SIMULATIONS}/{name}" for name in LONG_SIMULATIONS)),
    "clients": tuple(
        f"{CLIENTS}/test_{name}.py"
        for name in ("kafka_python", "aiokafka", "confluent_kafka", "other_languages", "readme", "testing", "restarts")
    ),
    "clusters": tuple(f"{CLUSTERS}/test_{name}.py" for name in ("three_brokers", "groups", "two_dead")),
    "spark": tuple(f"{PIPELINE}/test_{name}.py" for name in ("records", "offsets", "small_lag")),
}
# The tests start Python many hundred times. Without compiled files each start would compile all modules anew.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT[SHARED] = "1"
TOTALS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
LAST_LINE = re.compile(r"\b(passed|failed|skipped|errors?|deselected)\b.* in [\d.]+s\b")  # of pytest


@dataclass
class Part:
    """A part of the tests, and what became of it."""

    name: str
    words: Sequence[str]  # of Python
    code: int = 0
    seconds: float = 0.0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))

    @property
    def computes(self) -> bool:
        """Whether it computes all the time."""
        return self.name.startswith(COMPUTING)

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error. Without the extra `spark`, all tests of the pipeline are skipped."""
        return self.code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)

    def totals(self) -> dict[str, int]:
        """How many tests passed, failed and were skipped, as pytest's last line says."""
        last = next((line for line in reversed(self.lines) if LAST_LINE.search(line)), "")
        return {what.rstrip("s").replace("error", "failed"): int(number) for number, what in TOTALS.findall(last)}


def main() -> int:
    """Return 0, or the exit code of what has failed. What the tests leave in the checkout is a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="everything, as CI does")
    return check(ALL if parser.parse_args().all else QUICK)


def check(chosen: dict[str, Sequence[str]]) -> int:
    """Run the checks, and at once mypy and these parts of the tests; the exit code."""
    at_start = entries()
    for words in CHECKS:
        announce(words)
        code = subprocess.call([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT)
        if code:
            return code
    with temporary_folder() as folder:
        ENVIRONMENT["TMPDIR"] = folder
        code = run_all([*(Part(name, (*TESTS, *words)) for name, words in chosen.items()), Part("types", TYPES)])
    return code if leaves_nothing(at_start) else code or 1


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for what tests write, in memory where there is room: a disk took a twentieth of their processor time."""
    return tempfile.TemporaryDirectory(prefix="t", dir=in_memory(MEMORY_BYTES_MIN), ignore_cleanup_errors=True)


def run_all(parts: Sequence[Part]) -> int:
    """Run parts, some at once, and say what became of them; the exit code of a failed one."""
    with ThreadPoolExecutor(COMPUTING_AT_ONCE) as computing, ThreadPoolExecutor(WAITING_AT_ONCE) as waiting:
        runs = [(computing if part.computes else waiting).submit(run, part) for part in parts]
    for each in runs:
        each.result()
    summarize(parts)
    return next((part.code for part in parts if part.has_failed), 0)


def run(part: Part) -> None:
    """Run one part, and show each of its lines as it comes."""
    announce(part.words)
    began = time.monotonic()
    command = [*(GIVES_WAY if part.computes else ()), sys.executable, *part.words]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            part.lines.append(line.decode(errors="replace").rstrip())
            say(f"{part.name:11} | {part.lines[-1]}")
    part.code, part.seconds = process.returncode, time.monotonic() - began


def summarize(parts: Sequence[Part]) -> None:
    """Print the ends of the parts that have failed, then a line for each part and each failed test, then the totals."""
    for part in parts:
        if part.has_failed:
            say(f"\n== {part.name} has failed with exit code {part.code}; the end of what it printed:")
            say("\n".join(part.lines))
    say("")
    sums = {"passed": 0, "failed": 0, "skipped": 0}
    for part in parts:
        totals = part.totals()
        sums = {what: number + totals.get(what, 0) for what, number in sums.items()}
        verdict = "FAILED" if part.has_failed else "passed"
        counted = f": {totals.get('passed', 0)} tests" if totals else ""
        say(f"{part.name:11} | {verdict} in {part.seconds:.0f} s{counted}")
        for line in part.lines:
            if line.startswith(("FAILED ", "ERROR ")):
                say(line[:LINE_CHARACTERS])
    say(f"{sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped")


SAYING = threading.Lock()


def say(text: str) -> None:
    """Print a whole line, whoever prints beside it."""
    with SAYING:
        print(text, flush=True)


def announce(words: Sequence[str]) -> None:
    """Say what runs now."""
    say(f"== python {' '.join(words)}")


if __name__ == "__main__":
    sys.exit(main())
