"""Processes of `barnabas`, and short programs, that begin as forks of one that has imported everything.

`forked.run` and `forked.Popen` take what `subprocess` takes. Most of a short command is the start
of its interpreter, and of three brokers too; the tests start more than a thousand. A fork is a process of its own all
the same: with its arguments, environment and streams; it can be stopped, paused and killed; its exit code is its own.
What a fork cannot have (another program, an environment that Python reads when it starts, limits that are set before)
is started as `subprocess` does it. What a test says of the start itself has to use `subprocess`.

The parent of such a process is the server of forks, which ends with the test run.
"""

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from checkout import ROOT

BARNABAS = [sys.executable, "-m", "barnabas"]
PROGRAM = [sys.executable, "-c"]
MESSAGE_BYTES_MAX = 128 << 10  # of a request to the server: words and environment
# Python and its libraries read these when they start, or are imported.
OF_THE_START = (
    *("PYTHON", "LC_", "LANG", "TERMINAL_WIDTH", "_TYPER"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
)
NOT_IMPORTED = ("barnabas.pipeline", "barnabas.testing", "barnabas.__main__")
IMPORTED_LATE = (
    *("kafka.admin", "kafka.consumer.group", "kafka.producer.kafka"),
    *("typer._adapters", "typer.completion", "typer.rich_utils", "rich.progress", "uvloop"),
)


class Popen(subprocess.Popen[Any]):
    """A process that is a fork if it can be one."""

    _status: int | None = None  # where the server writes how the fork has ended; None: it is no fork

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *more: Any) -> None:
        (_close_fds, pass_fds, cwd, env, _startupinfo, _flags, shell, *pipes), more_of_it = more[:13], more[13:]
        _restore_signals, *others = more_of_it
        is_plain = not (executable or preexec_fn or pass_fds or shell or any(others[:3]) or others[3] >= 0)
        is_plain = is_plain and not others[4] and others[5] == -1
        is_ours = isinstance(args, list) and (args[:3] == BARNABAS or args[:2] == PROGRAM)
        if not (is_plain and is_ours and _server().environment == _of_the_start(os.environ if env is None else env)):
            super()._execute_child(args, executable, preexec_fn, *more)  # type: ignore[misc]
            return
        child_ends = [end if end != -1 else stream for stream, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid, self._status = _server().fork(args[1:], cwd, env, child_ends)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags == os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status, 16)
        os.close(self._status)
        return self.pid, int(status or signal.SIGKILL)  # the server was ended, and it ends its forks

    def _internal_poll(self, *more: Any, **deadstate: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*more, **deadstate)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: Sequence[str],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def barnabas(
    *words: str, code: int | None = None, given: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of `barnabas` to its end. `code`: the exit code that it must have; `given`: its input."""
    command = [*BARNABAS, *words]
    done = run(command, input=given, capture_output=True, text=True, timeout=200, env=os.environ | environment)
    assert code is None or done.returncode == code, done
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name.startswith(OF_THE_START) and "BYTECODE" not in name}


class _Server:
    """The process that forks, as the test run sees it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.environment = _of_the_start(os.environ)
        words = [sys.executable, os.path.abspath(__file__), str(other.fileno())]
        # It lives as long as the other end of its socket.
        self.process = subprocess.Popen(words, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        other.close()

    def fork(self, words: Sequence[str], cwd: Any, env: Any, streams: list[int]) -> tuple[int, int]:
        """Begin a process; its id, and where its status comes."""
        status, written = os.pipe()
        environment = dict(os.environ if env is None else env)
        request = [list(map(os.fsdecode, words)), os.path.abspath(cwd or os.getcwd()), environment]
        try:
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, written])
                answer = self._socket.recv(16)
        finally:
            os.close(written)
        assert answer, "the server of forks has ended; what it printed says why"
        return int(answer), status


_SERVERS: list[_Server] = []


def _server() -> _Server:
    if not _SERVERS:
        _SERVERS.append(_Server())
    return _SERVERS[0]


# ------------------------------------------------------------------ in the server, and in its forks


def _import_everything() -> None:
    """Import all modules of the packages that pyproject.toml names, and the clients that commands import late."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in setuptools["packages"]:
        names = (path.stem for path in (ROOT / setuptools["package-dir"][package]).glob("*.py"))
        for name in (f"{package}.{name}".removesuffix(".__init__") for name in names):
            if not name.startswith(NOT_IMPORTED):
                importlib.import_module(name)
    for name in IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)


def _serve(requests: socket.socket) -> list[str]:
    """Fork for each request until the other end is gone. Returns in the fork, with its words."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test run
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ends(statuses)
        if requests not in ready:
            continue
        message, streams, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 4)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            words, cwd, environment = json.loads(message)
            _become(cwd, environment, streams)
            return list(words)
        statuses[pid] = streams.pop()
        for stream in streams:
            os.close(stream)
        requests.send(b"%d" % pid)


def _tell_ends(statuses: dict[int, int]) -> None:
    """Tell the test run how forks have ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with suppress(OSError):  # the test run does not listen any more
                os.write(statuses[pid], b"%d" % status)
            os.close(statuses.pop(pid))


def _become(cwd: str, environment: dict[str, str], streams: list[int]) -> None:
    """Make the fork what a new process would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 64)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    time.tzset()
    sys.path[0] = cwd
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        is_shown = name == "stderr" or os.isatty(number)
        binary = io.BufferedReader if number == 0 else io.BufferedWriter
        file = binary(io.FileIO(number, "r" if number == 0 else "w", closefd=False))
        stream = io.TextIOWrapper(file, old.encoding, old.errors, line_buffering=is_shown)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _end(code: int) -> None:
    """End as Python does, but without taking apart all that was imported, which would take 0.1 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):  # else Python says what is wrong with the stream
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _import_everything()
    gc.collect()
    gc.freeze()
    option, what, *sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    gc.unfreeze()
    try:
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv[0] = option
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise
    _end(0)
