"""A real broker process for the clients, and what every client's tests need.

`CLIENTS_BROKER_COMMAND` runs the same tests against another broker, such as Apache Kafka, to prove that the tests are
right. It is a command that stays in the foreground, with `{port}` and `{data}` in it.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from barnabas.cli.shared.kafka_python import take_up_every_assignment
from barnabas.testing import process as testing_process
from ports import free_port
from waiting import until

take_up_every_assignment()
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "crash")]  # commanded.py; the blocking client

OTHER_BROKER = os.environ.get("CLIENTS_BROKER_COMMAND")
PROGRAM = ("-m", "barnabas")
START_TIMEOUT_S = 200
STOP_TIMEOUT_S = 100


@pytest.fixture(scope="session", autouse=True)
def _brokers_are_forks() -> Iterator[None]:
    """Those of `barnabas.testing` in this process, too. Where a test starts pytest, they start as a user's do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing_process, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": forked.Popen}))
        yield


class BrokerProcess:
    """One broker process, which can be stopped, killed and started again on its data and port."""

    def __init__(self, folder: Path, settings: Sequence[str] = (), program: Sequence[str] = PROGRAM) -> None:
        self.data = folder / "data"
        self.settings = settings
        self.program = program
        self.log = folder / "broker.log"
        self.port = free_port()  # nobody else is given it while the process is away
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process, and return when it serves."""
        with self.log.open("a") as log:
            if OTHER_BROKER is not None:
                self._start_other(OTHER_BROKER, log)
                return
            command = [sys.executable, *self.program, "start", "--json", "--profile", "ci"]
            command += ["--data", str(self.data)]
            if not any(setting.startswith("listeners=") for setting in self.settings):
                command += ["--listeners", f"PLAINTEXT://127.0.0.1:{self.port}"]
            command += [word for setting in self.settings for word in ("--set", setting)]
            self.process = forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the broker did not start:\n{self.log.read_text()[-3000:]}"
        ready = json.loads(line)
        assert ready["event"] == "ready"
        self.port = int(ready["bootstrap"].rpartition(":")[2])

    def _start_other(self, command: str, log: object) -> None:
        words = shlex.split(command.format(port=self.port, data=self.data))
        self.process = forked.Popen(words, stdout=log, stderr=log, text=True)  # type: ignore[call-overload]
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the other broker did not start"
                time.sleep(0.1)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def stop(self) -> int:
        """Stop it with SIGTERM; returns the exit code."""
        return self.end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.end(signal.SIGKILL)

    def tracebacks(self) -> str:
        """The tracebacks in the log: a handler has raised, which is a bug."""
        text = self.log.read_text()
        return text[text.index("Traceback") - 500 :][:4000] if "Traceback" in text and OTHER_BROKER is None else ""


def _served(folder: Path, settings: Sequence[str] = ()) -> Iterator[BrokerProcess]:
    process = BrokerProcess(folder, settings)
    try:
        yield process
    finally:
        process.end(signal.SIGTERM)
    if found := process.tracebacks():
        pytest.fail(f"a handler raised:\n{found}", pytrace=False)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that leave it running."""
    yield from _served(tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="session")
def other_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A second cluster, for all tests that leave it running."""
    yield from _served(tmp_path_factory.mktemp("other-broker"))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may end."""
    yield from _served(tmp_path)


@pytest.fixture(scope="session")
def own_broker_on() -> Callable[[Path, Sequence[str]], Iterator[BrokerProcess]]:
    """Makes a broker on a folder, perhaps with data in it; for `yield from`. None beside another broker."""
    if OTHER_BROKER is not None:
        pytest.skip("it needs this broker")
    return _served


@pytest.fixture
def journal_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with an offset journal, which the test may end. It looks often what retention takes."""
    yield from _served(tmp_path, ["log.retention.check.interval.ms=100"])


@pytest.fixture(scope="module")
def make_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers with other settings, each in a folder of its own."""
    made: list[BrokerProcess] = []

    def make(*settings: str, folder: Path | None = None, program: Sequence[str] = PROGRAM) -> BrokerProcess:
        made.append(BrokerProcess(folder or tmp_path_factory.mktemp("broker"), settings, program))
        return made[-1]

    yield make
    for process in made:
        process.end(signal.SIGTERM)
    for process in made:
        if process.log.exists() and (found := process.tracebacks()):
            pytest.fail(f"a handler raised:\n{found}", pytrace=False)


@pytest.fixture
def run(broker: BrokerProcess) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of `barnabas` to its end against the broker."""

    def run_command(*words: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        return forked.barnabas(*words, code=code, given=stdin, BARNABAS_BOOTSTRAP=broker.bootstrap)

    return run_command


@pytest.fixture(scope="session")
def with_plugin() -> list[str]:
    """pytest's words for Barnabas' plugin: none where the wheel is installed, because its entry point brings it."""
    installed = entry_points(group="pytest11", name="barnabas")
    return [] if installed else ["-p", "barnabas.testing.plugin"]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for a topic or a group."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def session_timeout_ms() -> int:
    """A short session time-out, near the shortest that the broker allows."""
    return 6_000 if OTHER_BROKER is not None else 2_000


@pytest.fixture
def crashing_member(broker: BrokerProcess, name: str, session_timeout_ms: int) -> Iterator[Callable[[str], Any]]:
    """Runs a program with the bootstrap, a topic (and group) and a session timeout in a process of its own.

    It says "owns" once it has partitions; then its process is returned, to be killed.
    """
    members: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, broker.bootstrap, name, str(session_timeout_ms)]
        members.append(forked.Popen(command, stdout=subprocess.PIPE, text=True))
        output = members[-1].stdout
        assert output is not None
        assert output.readline() == "owns\n"
        return members[-1]

    yield start
    for member in members:
        member.kill()
        member.communicate()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """`until` of tests/waiting.py."""
    return until
