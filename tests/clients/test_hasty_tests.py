"""What tests do to the brokers that they share, and leave behind: the next test finds them as at the start."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from barnabas.testing import Barnabas, CommandError, StartError
from barnabas.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(300)

SUITE = """
import os, shutil, signal, threading
import pytest

SEEN = []

@pytest.fixture(autouse=True)
def works(barnabas, barnabas_topic, barnabas_group):
    assert barnabas.ask("GET", "/v1/groups")["groups"] == []
    assert barnabas.ask("GET", "/v1/control/rules")["rules"] == []
    assert [row["topic"] for row in barnabas.ask("GET", "/v1/topics")["topics"] if row["topic"] == "left"] == []
    barnabas.topic("left", unique=False).produce(["a"])
    barnabas_topic.produce(["a"])
    barnabas_group.commit(barnabas_topic, 0, 1)
    assert barnabas_topic.values() == ["a"]
    assert barnabas_group.offsets == {(barnabas_topic.name, 0): 1}

def remove(folder):
    while folder.exists():  # the broker writes meanwhile
        shutil.rmtree(folder, ignore_errors=True)

def pid(barnabas):
    return barnabas.processes[0].pid

def test_ends_it_at_the_last_moment(barnabas):
    os.kill(pid(barnabas), signal.SIGTERM)

def test_kills_it_at_the_last_moment(barnabas):
    os.kill(pid(barnabas), signal.SIGKILL)

def test_removes_the_snapshots(barnabas):
    SEEN.append(pid(barnabas))
    for path in barnabas.folder.glob("snapshot-*"):
        shutil.rmtree(path)

def test_is_given_another_process(barnabas):
    assert pid(barnabas) != SEEN.pop()

def test_stops_it_by_its_process_id(barnabas):
    SEEN.append(pid(barnabas))
    os.kill(pid(barnabas), signal.SIGSTOP)

def test_is_given_the_same_process(barnabas):
    assert pid(barnabas) == SEEN.pop()

def test_removes_its_data(barnabas):
    remove(barnabas.processes[0].data)

def test_removes_everything(barnabas):
    remove(barnabas.folder)

def test_makes_its_logs_fail(barnabas, barnabas_topic, monkeypatch):
    monkeypatch.setattr("barnabas.testing.wire.GIVES_UP_AFTER_S", 1.0)
    barnabas.log_failed(barnabas_topic)
    with pytest.raises(Exception):
        barnabas_topic.produce(["b"])

def test_lets_its_disk_be_full_and_its_tree_be_away(barnabas):
    barnabas.disk_full()
    barnabas.tree_unreachable()

def test_leaves_a_copy_open(barnabas, barnabas_topic):
    copies = barnabas.fork()
    copy = copies.__enter__()
    SEEN.append((copies, copy))
    assert copy.bootstrap != barnabas.bootstrap

def test_still_has_it(barnabas):
    assert SEEN[0][1].topic("mine").values() == []

def test_puts_back_what_it_likes(barnabas, barnabas_topic):
    mark = barnabas.snapshot()
    barnabas_topic.produce(["b"])
    barnabas.restore(mark)
    assert barnabas_topic.values() == ["a"]

@pytest.mark.barnabas(fresh=True)
def test_has_its_own(barnabas):
    remove(barnabas.folder)

def test_leaves_a_thread_that_goes_on(barnabas, barnabas_topic):
    def goes_on():
        while not SEEN[1].is_set():
            try:
                barnabas.topic("of-the-thread").produce(["a"])
            except Exception:
                pass
    SEEN.append(threading.Event())
    threading.Thread(target=goes_on, daemon=True).start()

def test_beside_that_thread(barnabas):
    pass

def test_after_that_thread(barnabas):
    SEEN[1].set()

def test_last(barnabas):
    pass
"""


def left(folder: Path) -> list[str]:
    """Folders of brokers, and processes that were told of this directory."""
    mark = str(folder).encode()
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_bytes():
                processes.append(entry.name)
        except OSError:
            continue
    return [*map(str, folder.glob("barnabas-*")), *processes]


def test_a_broker_that_was_stopped_by_its_process_id_does_not_answer(kafka: Barnabas) -> None:
    pid = kafka.processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    while kafka.running:  # the kernel stops it a moment later
        time.sleep(0.001)
    kafka.resume()
    while not kafka.running:
        time.sleep(0.001)
    assert kafka.topic().values() == []


def test_a_broker_that_is_killed_while_it_starts_says_so(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, 0, {})
    process.begin(waits=True)
    process.abort()
    with pytest.raises(StartError, match="SIGKILL has ended it"):
        process.wait_until_ready()
    process.kill()


FAILING = """
import shutil

def test_fails_without_a_log(barnabas):
    barnabas.processes[0].log.unlink()
    assert False, "it is told"

def test_fails_without_a_broker(barnabas):
    barnabas.stop()
    assert False, "it is told, too"

def test_passes(barnabas):
    assert barnabas.topic("orders").values() == []
"""


def test_a_failure_is_told_whatever_the_test_has_done(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_suite.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *with_plugin, "test_suite.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout


def test_each_test_finds_the_broker_as_at_the_start(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *with_plugin, "test_suite.py"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_session_that_is_ended_with_a_copy_open(
    tmp_path: Path, with_plugin: list[str], number: signal.Signals
) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import time\ndef test_it(barnabas):\n    with barnabas.fork():\n        print('here', flush=True)\n"
        "        time.sleep(100)\n"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *with_plugin, "test_suite.py"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        assert any("here" in line for line in session.stdout)
        assert left(temporary) != []
        session.send_signal(number)
        session.stdout.read()
        session.wait(200)
    deadline = time.monotonic() + 200
    while left(temporary) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(temporary) == []


@pytest.fixture(scope="module")
def kafka() -> Iterator[Barnabas]:
    with Barnabas() as kafka:
        yield kafka


def test_many_threads_use_one_broker(kafka: Barnabas) -> None:
    topic = kafka.topic("all", partitions=3)

    def work(number: int) -> list[str | None]:
        own, group = kafka.topic("own"), kafka.group("own")
        for each in range(5):
            own.produce([f"{number}-{each}"])
            topic.produce([f"{number}-{each}"])
            group.commit(own, 0, each)
            assert group.offsets == {(own.name, 0): each}
        return own.values()

    with ThreadPoolExecutor(8) as threads:
        for number, values in enumerate(threads.map(work, range(8))):
            assert values == [f"{number}-{each}" for each in range(5)]
    assert sorted(map(str, topic.values())) == sorted(f"{number}-{each}" for number in range(8) for each in range(5))


def test_commands_beside_a_restore_are_answered_or_refused(kafka: Barnabas) -> None:
    mark = kafka.snapshot()
    is_over = threading.Event()

    def ask() -> int:
        answered = 0
        while not is_over.is_set():
            try:
                kafka.ask("GET", "/v1/control/rules")
                answered += 1
            except (OSError, CommandError):
                continue
        return answered

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        for _ in range(10):
            kafka.topic("beside").produce(["a"])
            kafka.restore(mark)
        is_over.set()
        assert all(each.result() for each in asking)
    assert kafka.topic("afterwards").values() == []
