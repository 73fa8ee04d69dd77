"""How a test waits until something is so.

A broker's log is written by a thread of its own (`runtime/output.py`). So while the broker lives, a line may be in the
file a moment after the answer, or the ready line, that it belongs to: wait for it with `until_said`. When the process
has ended, all is there.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

WITHIN_S = 200.0


def pauses(longest_s: float = 0.2) -> Iterator[float]:
    """Seconds between two looks: ever longer, because who waits should leave the processor to the others."""
    pause_s = 0.02
    while True:
        yield min(pause_s, longest_s)
        pause_s *= 1.25


def until(holds: Callable[[], object], within_s: float = WITHIN_S, longest_pause_s: float = 0.2) -> None:
    """Ask until it is so; the test fails if it never is."""
    deadline = time.monotonic() + within_s
    for pause_s in pauses(longest_pause_s):
        if holds():
            return
        assert time.monotonic() < deadline, f"did not happen in {within_s} s"
        time.sleep(pause_s)


def until_said(text: str, *logs: Path, within_s: float = WITHIN_S) -> str:
    """Wait until one of these logs has the text; returns all that is in that log."""
    deadline = time.monotonic() + within_s
    for pause_s in pauses():
        contents = [log.read_text() for log in logs]
        for content in contents:
            if text in content:
                return content
        ends = "\n".join(content[-3000:] for content in contents)
        assert time.monotonic() < deadline, f"not said in {within_s} s: {text}\n{ends}"
        time.sleep(pause_s)
    raise AssertionError  # pauses never end
