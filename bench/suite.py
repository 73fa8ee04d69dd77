"""What Barnabas takes of the time of a suite: `python -m bench suite [WORDS OF PYTEST...]`.

The suite is that of `examples/testing/python`: 201 tests, serial. What counts: the time in which tests wait for resets,
for commands, and for the topics and groups of `barnabas.testing`, and the processor time of the broker outside of
these, which it spends on the clients of the tests. That goes on beside their own work, but is counted as if they waited
for it: so the share is at most what is printed. What clients wait for each other (a rebalance, until all have joined
again) is theirs, and so is a long poll; the profile `ci` adds no delay. A wait in vain counts only as far as it takes
longer than its test has said. The first run of some tests is not counted: it leaves bytecode on disk, as that of
installed wheels is there.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barnabas.testing import WaitTimeoutError

from bench.testing import processor_seconds

SUITE = Path(__file__).resolve().parents[1] / "examples" / "testing" / "python"
FIGURES = "BENCH_SUITE_FIGURES"
FIRST = "test_orders_become_invoices"
PATHS_SHOWN = 12


def main(words: list[str]) -> int:
    """Run the suite, and print the table."""
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as folder:
        figures = Path(folder, "figures.json")
        environment = {**os.environ, FIGURES: str(figures), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        environment["PYTHONPATH"] = os.pathsep.join([str(SUITE.parents[2]), os.environ.get("PYTHONPATH", "")])
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bench.suite", "."]
        subprocess.run([*command, "-k", FIRST], cwd=SUITE, env=environment, stdout=subprocess.DEVNULL)
        code = subprocess.run([*command, *words], cwd=SUITE, env=environment).returncode
        _print(json.loads(figures.read_text()))
    return code


def _print(found: dict[str, Any]) -> None:
    tests, took = found["tests"], found["seconds"]
    waits = found["waits"]
    waits["clients, the broker's processor time"] = found["broker"] - found["broker_in_waits"]
    for what, seconds in {**waits, "together": sum(waits.values()), "the suite": took, **found["more"]}.items():
        print(f"{what:40} {seconds:7.2f} s {seconds / tests * 1000:7.1f} ms a test {seconds / took:7.1%}")
    for path, (count, seconds, spent) in sorted(found["paths"].items(), key=lambda row: -row[1][1])[:PATHS_SHOWN]:
        each, of_broker = seconds / count * 1000, spent / count * 1000
        print(f"  {count:5} times {each:7.2f} ms, {of_broker:6.2f} of the broker's processor: {path}")


class _Watch:
    """Measures in the process of pytest."""

    def __init__(self) -> None:
        from barnabas.testing import Barnabas, Group, Topic, plugin
        from barnabas.testing.process import BrokerProcess

        self.tests = 0
        self.waits: dict[str, float] = defaultdict(float)
        self.paths: dict[str, tuple[int, float, float]] = {}
        self.broker = self.broker_in_waits = 0.0
        self._spent_at_start: dict[int, float] = {}  # by process id, when the broker was ready
        self._is_inside = False
        self._measure(plugin.Shared, "put_back", "resets", "the first: until the broker has started")
        for name in ("restore", "snapshot"):
            self._measure(Barnabas, name, "resets")
        self._measure(Barnabas, "ask", "commands and waits")
        for owner, name in ((Barnabas, "topic"), (Topic, "produce"), (Topic, "_read"), (Group, "commit")):
            self._measure(owner, name, "topics and groups of barnabas.testing")
        self._follow(BrokerProcess)
        self._began, self._own_before = time.perf_counter(), time.process_time()

    def _measure(self, owner: type, name: str, what: str, first: str = "") -> None:
        original, seen = getattr(owner, name), 0 if first else 1

        def measured(*given: Any, **named: Any) -> Any:
            nonlocal seen
            if self._is_inside:
                return original(*given, **named)
            self._is_inside = True
            seen += 1
            wanted = 0.0  # how long the test itself wants to wait in vain
            spent, began = self._spent(), time.perf_counter()
            try:
                return original(*given, **named)
            except WaitTimeoutError:
                wanted = given[3]["timeout_ms"] / 1000 if name == "ask" else 0.0
                raise
            finally:
                self._is_inside = False
                took = time.perf_counter() - began - wanted
                spent = self._spent() - spent
                self.broker_in_waits += spent
                self.waits[what if seen > 1 else first] += took
                title = " ".join(map(str, given[1:3])) if name == "ask" else f"{owner.__name__}.{name}"
                count, took_before, spent_before = self.paths.get(title, (0, 0.0, 0.0))
                self.paths[title] = (count + 1, took_before + took, spent_before + spent)

        setattr(owner, name, measured)

    def _follow(self, process: Any) -> None:
        """Know the brokers, and what they have spent when they end."""
        wait_until_ready: Callable[[Any], None] = process.wait_until_ready
        end: Callable[[Any, Any], None] = process._end

        def ready(broker: Any) -> None:
            wait_until_ready(broker)
            self._spent_at_start[broker.pid] = processor_seconds(broker.pid)

        def ended(broker: Any, number: Any) -> None:
            self.broker += self._spent_by(broker.pid)
            self._spent_at_start.pop(broker.pid, None)
            end(broker, number)

        process.wait_until_ready, process._end = ready, ended

    def _spent(self) -> float:
        return sum(map(self._spent_by, self._spent_at_start))

    def _spent_by(self, pid: int) -> float:
        return processor_seconds(pid) - self._spent_at_start[pid] if pid in self._spent_at_start else 0.0

    def figures(self) -> dict[str, Any]:
        """For the process that prints them."""
        more = {
            "of it, the broker's processor time": self.broker,
            "of it, that of the tests' process": time.process_time() - self._own_before,
        }
        took = time.perf_counter() - self._began
        found = {"tests": self.tests, "seconds": took, "waits": self.waits, "paths": self.paths, "more": more}
        return {**found, "broker": self.broker, "broker_in_waits": self.broker_in_waits}


_WATCHES: list[_Watch] = []


def pytest_configure(config: Any) -> None:
    """Begin to measure."""
    if FIGURES in os.environ:
        _WATCHES.append(_Watch())


def pytest_runtest_teardown() -> None:
    """Count the test."""
    for watch in _WATCHES:
        watch.tests += 1


def pytest_unconfigure() -> None:
    """The last brokers have ended."""
    for watch in _WATCHES:
        Path(os.environ[FIGURES]).write_text(json.dumps(watch.figures()))
