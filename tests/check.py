"""`python tests/check.py`: all checks, one after the other; the first that fails ends it with its exit code.

The tests run in two processes at once: many of them only wait for the processes that they start. What the second one
says is shown when both are done.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("tests/check_types.py",),
)
TESTS = ("-m", "pytest", "-rfEs")  # at the end it says what failed, and what was skipped and why
# Those that have brokers, ZooKeeper and clients in processes of their own.
OF_PROCESSES = ("tests/clients", "tests/cluster", "tests/crash", "tests/zookeeper")
ALL_OTHERS = tuple(f"--ignore={folder}" for folder in OF_PROCESSES)


def main() -> int:
    """Return the exit code of the first check that fails, or 0."""
    for words in CHECKS:
        announce(words)
        code = subprocess.call([sys.executable, *words], cwd=ROOT)
        if code:
            return code
    return run_tests()


def run_tests() -> int:
    """Return the exit code of the tests."""
    first, second = (*TESTS, *ALL_OTHERS), (*TESTS, *OF_PROCESSES)
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen([sys.executable, *second], cwd=ROOT, stdout=output, stderr=output) as process:
            announce(first)
            code = subprocess.call([sys.executable, *first], cwd=ROOT)
        announce(second)
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)
    return code or process.returncode


def announce(words: tuple[str, ...]) -> None:
    """Say what runs now."""
    print(f"== python {' '.join(words)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
