"""`python tests/check.py`: all checks, one after the other; the first that fails ends it with its exit code.

Three parts of the tests run at once: two of them only wait, most of the time, for the processes that they start. What
they say is shown when all are done. Then come the tests of the pipeline in two halves, because one Spark leaves much of
the second core idle.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("tests/check_types.py",),
)
TESTS = ("-m", "pytest", "-rfEs")  # at the end it says what failed, and what was skipped and why
OF_CLIENTS = ("tests/clients", "tests/crash")
OF_CLUSTERS = ("tests/cluster", "tests/zookeeper")
PIPELINE = "tests/pipeline"
OF_SPARK = sorted(f"{PIPELINE}/{path.name}" for path in (ROOT / PIPELINE).glob("test_*.py"))
HALVES_MEET_AT = f"{PIPELINE}/test_k"  # so both take about as long
# The tests start Python many hundred times. Without compiled files each start would compile all modules anew.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ALL_OTHERS = tuple(f"--ignore={folder}" for folder in (*OF_CLIENTS, *OF_CLUSTERS, PIPELINE))


def main() -> int:
    """Return the exit code of the first check that fails, or 0."""
    for words in CHECKS:
        announce(words)
        code = subprocess.call([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT)
        if code:
            return code
    return run_tests()


def run_tests() -> int:
    """Run all tests, and return the exit code of a part that fails, or 0."""
    codes: list[int] = []
    with beside(OF_CLIENTS, codes), beside(OF_CLUSTERS, codes):
        codes.append(run(ALL_OTHERS))
    of_spark: list[int] = []
    with beside(tuple(name for name in OF_SPARK if name >= HALVES_MEET_AT), of_spark):
        of_spark.append(run(tuple(name for name in OF_SPARK if name < HALVES_MEET_AT)))
    # Without the extra `spark` all of them are skipped.
    codes += [code for code in of_spark if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return next(filter(None, codes), 0)


def run(words: tuple[str, ...]) -> int:
    """Run tests, show what they say as they say it, and return their exit code."""
    announce((*TESTS, *words))
    return subprocess.call([sys.executable, *TESTS, *words], cwd=ROOT, env=ENVIRONMENT)


@contextmanager
def beside(words: tuple[str, ...], codes: list[int]) -> Iterator[None]:
    """Run tests while the context lasts. At its end wait for them, show what they said, and note their exit code."""
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, *TESTS, *words]
        with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=output) as process:
            yield
        announce((*TESTS, *words))
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)
    codes.append(process.returncode)


def announce(words: tuple[str, ...]) -> None:
    """Say what runs now."""
    print(f"== python {' '.join(words)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
