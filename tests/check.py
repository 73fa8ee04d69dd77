"""`python tests/check.py`: all checks, one after the other; the first that fails ends it with its exit code.

Two parts of the tests run at once: one of them only waits, most of the time, for the processes that it starts. What it
says is shown when both are done. Then come the tests of the pipeline: Spark takes all cores.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("tests/check_types.py",),
)
TESTS = ("-m", "pytest", "-rfEs")  # at the end it says what failed, and what was skipped and why
OF_PROCESSES = ("tests/clients", "tests/cluster", "tests/crash", "tests/zookeeper")
OF_SPARK = ("tests/pipeline",)
ALL_OTHERS = tuple(f"--ignore={folder}" for folder in (*OF_PROCESSES, *OF_SPARK))


def main() -> int:
    """Return the exit code of the first check that fails, or 0."""
    for words in CHECKS:
        announce(words)
        code = subprocess.call([sys.executable, *words], cwd=ROOT)
        if code:
            return code
    return run_tests()


def run_tests() -> int:
    """Run all tests, and return the exit code of the first part that fails, or 0."""
    of_processes, others, of_spark = ((*TESTS, *words) for words in (OF_PROCESSES, ALL_OTHERS, OF_SPARK))
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen([sys.executable, *of_processes], cwd=ROOT, stdout=output, stderr=output) as process:
            announce(others)
            code_of_others = subprocess.call([sys.executable, *others], cwd=ROOT)
        announce(of_processes)
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)
    announce(of_spark)
    code_of_spark = subprocess.call([sys.executable, *of_spark], cwd=ROOT)
    if code_of_spark == pytest.ExitCode.NO_TESTS_COLLECTED:  # without the extra `spark` all of them are skipped
        code_of_spark = 0
    return process.returncode or code_of_others or code_of_spark


def announce(words: tuple[str, ...]) -> None:
    """Say what runs now."""
    print(f"== python {' '.join(words)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
