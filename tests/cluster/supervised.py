"""A `barnabas start --brokers` process, and how a test waits."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked

WITHIN_S = 100.0


class Supervised:
    """A `barnabas start` process and what it prints."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "supervisor.log"
        command = [sys.executable, "-m", "barnabas", "start", "--json", "--data", str(folder / "d"), *words]
        with self.log.open("ab") as log:
            self.process = forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def event(self) -> dict[str, Any]:
        """The next line of standard output; empty at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        event: dict[str, Any] = json.loads(line) if line else {}
        return event

    def ready(self) -> dict[str, Any]:
        """The line that says that all serve. Its log is shown when they do not."""
        event = self.event()
        assert event.get("event") == "ready", f"{event}, and the log says:\n{self.log.read_text()}"
        return event

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)


def is_there(process: int) -> bool:
    """Whether it runs. One that has ended, and that nobody waits for, does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
