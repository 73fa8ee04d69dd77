"""One broker process of a test: started, killed, paused, and started again on the same data and port."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from barnabas.runtime.own_command import OWN_COMMAND

STOPS_WITHIN_S = 20.0
LINES_SHOWN = 30
Settings = Mapping[str, str | float]  # `float` is for whole numbers and bool as well
ERROR_BEGINS = '{"error":'  # the last line of a start with --json that fails


def texts_of(settings: Settings | None) -> dict[str, str]:
    """As Kafka writes them: `true`, not True. TypeError: they are no dict."""
    if not isinstance(settings, Mapping | None):
        raise TypeError(f"settings are a dict, as {{'num.partitions': '3'}}, not {type(settings).__name__}")
    texts = {name: str(value) for name, value in (settings or {}).items()}
    return {name: text.lower() if text in ("True", "False") else text for name, text in texts.items()}


class StartError(Exception):
    """A broker did not start. The message has the reason, and the end of its log."""


class BrokerProcess:
    """A broker that serves on a free port, with the profile `ci`. It ends with the process that started it."""

    def __init__(self, folder: Path, node_id: int, settings: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.data = folder / str(node_id)
        self.log = folder / f"broker-{node_id}.log"
        self.host_and_port = ""
        self.cluster_id = ""
        self.next_request = 0  # of the snapshot with which it has begun
        self._http = ""
        self._is_awaited = False  # has begun, and its ready line has not been read
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.is_paused = False  # stands still, after `pause`

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether it lives and does not stand still."""
        return self.runs and not self.is_paused and not self._is_stopped

    @property
    def _is_stopped(self) -> bool:
        """Whether a test has stopped it by its process id (SIGSTOP). Not seen where Python has no `waitid` (macOS)."""
        if self._process is None or not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has ended, and another thread knows it already
            return False

    @property
    def http(self) -> str:
        """The address of its HTTP API, which differs from start to start. StartError: it does not start."""
        if self._is_awaited:
            self.wait_until_ready()
        return self._http

    @property
    def pid(self) -> int | None:
        """Its process id; None: it does not run."""
        return self._process.pid if self._process is not None and self.runs else None

    @property
    def output(self) -> IO[str]:
        """Where its process says that it serves."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    def begin(self, clock_ahead_ms: int = 0, snapshot: Path | None = None, *, waits: bool = False) -> None:
        """Start the process, its wall clock so far ahead. Call `wait_until_ready` before it is used.

        `snapshot`: where one of what it begins with goes. `waits`: it looks at its data after `go_on`.
        """
        assert not self.runs, f"broker {self.node_id} runs already"
        self.is_paused, self._is_awaited = False, True
        port = self.host_and_port.rpartition(":")[2] or "0"
        command = [*OWN_COMMAND, "start", "--profile", "ci", "--json", "--data", str(self.data)]
        command += ["--listeners", f"PLAINTEXT://127.0.0.1:{port}", "--set", f"node.id={self.node_id}"]
        settings = {**self._settings, "control.clock.ahead.ms": str(clock_ahead_ms)}
        if snapshot is not None:
            settings["control.start.snapshot"] = str(snapshot)
        if waits:
            settings["control.start.waits"] = "true"
        for name, text in settings.items():
            command += ["--set", f"{name}={text}"]
        with self.log.open("a") as log:
            stdin = subprocess.PIPE if waits else subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=log, text=True)

    def go_on(self) -> None:
        """The data of a process that `waits` is there."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as `wait_until_ready` will say
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def wait_until_ready(self) -> None:
        """Return when it serves. StartError if it does not."""
        process, line = self._process, self.output.readline()
        self._is_awaited = False
        assert process is not None
        if not line:
            process.wait()
            said = self.log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
            if process.returncode < 0:
                said.insert(0, f"{signal.Signals(-process.returncode).name} has ended it before it could serve")
            said = said or [f"it could not say why in {self.log}: has that disk room?"]
            if said[-1].startswith(ERROR_BEGINS):  # so that the first line, which pytest's summary shows, says why
                said.insert(0, json.loads(said.pop())["error"])
            text = "\n".join(said)
            raise StartError(f"broker {self.node_id} did not start (exit code {process.returncode}): {text}")
        ready = json.loads(line)
        self.host_and_port, self._http, self.cluster_id = ready["bootstrap"], ready["http"], ready["cluster_id"]
        self.next_request = ready.get("snapshot", {}).get("next_request", 0)

    def kill(self) -> None:
        """End it by SIGKILL. What it has acknowledged stays."""
        self._end(signal.SIGKILL)

    def abort(self) -> None:
        """Let it end by SIGKILL while another thread starts it, and finds that it has ended."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End it as `barnabas start` is ended: by SIGTERM."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it stand still (SIGSTOP): its connections stay open, and nobody answers."""
        self._send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._send(signal.SIGCONT)
        self.is_paused = False

    def wake(self) -> None:
        """Let it go on if it runs, whoever has stopped it."""
        self.is_paused = False
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # which looks first whether it has ended

    def _send(self, number: signal.Signals) -> None:
        if self._process is None or not self.runs:
            raise RuntimeError(f"broker {self.node_id} does not run")
        os.kill(self._process.pid, number)

    def _end(self, number: signal.Signals) -> None:
        process, self._is_awaited = self._process, False
        if process is None:
            return
        if process.poll() is None:
            self.wake()
            process.send_signal(number)
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._process = None
