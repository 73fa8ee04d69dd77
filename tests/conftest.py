"""What all tests need of the process that runs them: signals for children, short pauses, turns, a clean checkout."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import turns
from checkout import SHARED, entries, leaves_nothing

AT_START = pytest.StashKey[set[str]]()
WAITING = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the processes that tests start the default signals.

    `nohup` ignores SIGHUP, and a script's `command &` ignores SIGINT. Children inherit that, but they do not inherit a
    handler. So this process goes on ignoring them, and its children do not.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    config.stash[AT_START] = entries()
    gc.disable()  # until all is collected: what that makes stays, and collections took a third of it
    config.addinivalue_line("markers", turns.MARKER)


@pytest.hookimpl(trylast=True)  # after those who say what takes turns
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those out whose turn it is not."""
    waiting = turns.waiting(config, items)
    config.stash[WAITING] = len(waiting)
    if waiting:
        config.hook.pytest_deselected(items=waiting)
        left_out = set(waiting)
        items[:] = [item for item in items if item not in left_out]


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """Say how many."""
    count = config.stash.get(WAITING, 0)
    return turns.report(count) if count else []


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what has been collected so far, because it stays to the end.

    A full collection stops all threads. With thousands of tests in memory that took longer than a ZooKeeper session.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run of tests that leaves something in the checkout has failed, if nobody else runs tests there."""
    is_clean = SHARED in os.environ or leaves_nothing(session.config.stash[AT_START])
    if not is_clean and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
