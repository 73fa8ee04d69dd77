"""The brokers that are measured, started here or running already; and the kernel's figures of their processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


class Target:
    """A broker under load."""

    def __init__(self, name: str, address: str, pid: int | None = None) -> None:
        self.name = name
        self.address = address
        self.pid = pid

    def cpu_seconds(self) -> float:
        """The processor time that its process has used, in all threads; 0 if the process is not known."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def resident_mb(self) -> float:
        """The resident memory of its process, in MB."""
        assert self.pid is not None
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise ProcessLookupError(self.pid)


class Barnabas(Target):
    """A Barnabas process of this checkout, or of another command (`BARNABAS_COMMAND`), which serves."""

    def __init__(self, data: str | None = None, settings: Sequence[str] = (), *, paths: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="barnabas-bench-")
        self.data = data or f"{self._folder.name}/data"
        command = os.environ.get("BARNABAS_COMMAND")
        words = command.split() if command else [sys.executable, "-m", "barnabas"]
        words += ["start", "--json", "--data", self.data]
        if not any(setting.startswith("listeners=") for setting in settings):
            words += ["--listeners", "PLAINTEXT://127.0.0.1:0"]
        for key, value in SETTINGS.items():
            words += ["--set", f"{key}={value}"]
        for setting in settings:
            words += ["--set", setting]
        log = os.environ.get("BARNABAS_LOG")
        with open(log or os.devnull, "a") as sink:
            self.process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=sink, text=True, cwd="/", env=os.environ | {"PYTHONPATH": paths}
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("Barnabas did not start; BARNABAS_LOG=FILE keeps what it says")
        ready = json.loads(line)
        self.http: str | None = ready.get("http")
        super().__init__("barnabas", ready["bootstrap"], self.process.pid)

    def __enter__(self) -> "Barnabas":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process; after SIGTERM remove its data as well."""
        self.process.send_signal(number)
        self.process.wait(60)
        if number is signal.SIGTERM:
            self._folder.cleanup()
