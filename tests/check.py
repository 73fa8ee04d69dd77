"""`python tests/check.py`: all checks, one after the other; the first that fails ends it with its exit code.

Three parts of the tests run at once: two of them only wait, most of the time, for the processes that they start. Then
come the tests of the pipeline in two halves, because one Spark leaves much of the second core idle. Each line that is
printed begins with the name of its part.
"""

import os
import subprocess
import sys
import threading

import pytest
from checkout import ROOT, SHARED, entries, leaves_nothing

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
ENVIRONMENT[SHARED] = "1"
ALL_OTHERS = tuple(f"--ignore={folder}" for folder in (*OF_CLIENTS, *OF_CLUSTERS, PIPELINE))


def main() -> int:
    """Return the exit code of the first check that fails, or 0. What the tests leave in the checkout is a failure."""
    at_start = entries()
    for words in CHECKS:
        announce(words)
        code = subprocess.call([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT)
        if code:
            return code
    code = run_tests()
    return code if leaves_nothing(at_start) else code or 1


def run_tests() -> int:
    """Run all tests, and return the exit code of a part that fails, or 0."""
    codes = together({"clients": OF_CLIENTS, "clusters": OF_CLUSTERS, "others": ALL_OTHERS})
    of_spark = together(
        {
            "spark 1": tuple(name for name in OF_SPARK if name < HALVES_MEET_AT),
            "spark 2": tuple(name for name in OF_SPARK if name >= HALVES_MEET_AT),
        }
    )
    # Without the extra `spark` all of them are skipped.
    codes += [code for code in of_spark if code != pytest.ExitCode.NO_TESTS_COLLECTED]
    return next(filter(None, codes), 0)


def together(parts: dict[str, tuple[str, ...]]) -> list[int]:
    """Run parts of the tests at the same time, show each line as it comes, and return the exit codes."""
    processes = []
    for words in parts.values():
        announce((*TESTS, *words))
        command = [sys.executable, *TESTS, *words]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    readers = [threading.Thread(target=show, args=(part, process)) for part, process in zip(parts, processes)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return [process.wait() for process in processes]


def show(part: str, process: "subprocess.Popen[bytes]") -> None:
    """Print each line of a process with the part's name before it."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{part:8} | {line.decode(errors='replace').rstrip()}", flush=True)


def announce(words: tuple[str, ...]) -> None:
    """Say what runs now."""
    print(f"== python {' '.join(words)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
