"""A broker process as its parent sees it: outputs that nobody reads, a parent that goes, data that is temporary."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from broker_process import Client
from waiting import until, until_said

START = [sys.executable, "-m", "barnabas", "start", "--json", "--profile", "ci", "--port", "0"]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where temporary data goes."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.fixture
def start(temporary: Path) -> Iterator[Start]:
    """Starts a process; whatever happens, it ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start_process(*words: str, command: list[str] = START, **options: Any) -> subprocess.Popen[str]:
        environment = os.environ | {"TMPDIR": str(temporary)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "env": environment} | options
        processes.append(subprocess.Popen([*command, *words], **options))
        return processes[-1]

    yield start_process
    for process in processes:
        process.kill()
        process.communicate()


def ready_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it did not start"
    ready: dict[str, Any] = json.loads(line)
    return ready


def port_of(ready: dict[str, Any]) -> int:
    return int(ready["bootstrap"].rpartition(":")[2])


def is_alive(pid: int) -> bool:
    """Also false for one that has ended and is not waited for yet."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def create_topics(client: Client, prefix: str, count: int) -> None:
    create = messages.CreateTopicsRequest
    for number in range(0, count, 50):
        topics = [
            create.CreatableTopic(name=f"{prefix}-{number + index}", num_partitions=1, replication_factor=1)
            for index in range(50)
        ]
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, create(topics=topics, timeout_ms=20_000))
        assert {topic.error_code for topic in answer.topics} == {0}


# ---- outputs ----


def test_a_broker_whose_standard_error_nobody_reads(start: Start, tmp_path: Path) -> None:
    process = start("--log-level", "debug", stderr=subprocess.PIPE)
    client = Client(port_of(ready_line(process)))
    create_topics(client, "unread", 500)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0


def test_what_was_not_read_is_counted_when_it_is_read_again(start: Start) -> None:
    process = start("--log-level", "debug", stderr=subprocess.PIPE)
    client = Client(port_of(ready_line(process)))
    topic = messages.MetadataRequest.MetadataRequestTopic(name="no name" * 20)
    request = messages.MetadataRequest(topics=[topic])
    for _ in range(100):  # 10,000 lines
        for _ in range(100):
            client.send(ApiKey.METADATA, 9, request)
        for _ in range(100):
            client.answer(ApiKey.METADATA, 9)
    assert process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=log.extend, args=(process.stderr,))
    reader.start()
    until(lambda: any("dropped here" in line for line in tuple(log)))  # at its end a broker waits 0.3 s for readers
    process.send_signal(signal.SIGTERM)
    reader.join(200)
    assert process.wait(200) == 0
    (dropped,) = [int(line.split()[0].replace(",", "")) for line in log if "lines were dropped here" in line]
    assert dropped + sum("INVALID_TOPIC_EXCEPTION" in line for line in log) >= 10_000
    assert "has stopped" in log[-1]


def test_standard_output_that_is_full_already(start: Start) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    process = start(stdout=writer, stderr=subprocess.PIPE)
    assert process.stderr is not None
    port = next(int(line.split(" serves at ")[1].rpartition(":")[2]) for line in process.stderr if "serves at" in line)
    create_topics(Client(port), "served", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    os.close(reader)
    os.close(writer)


def test_a_log_file_with_its_predecessors(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    process = start(
        *("--log-file", str(log), "--log-file-bytes", "5000", "--log-files-kept", "2"), stderr=subprocess.PIPE
    )
    create_topics(Client(port_of(ready_line(process))), "logged", 200)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 0
    assert "INFO" not in errors
    assert sorted(path.name for path in tmp_path.glob("broker.log*")) == ["broker.log", "broker.log.1", "broker.log.2"]
    assert "has stopped" in log.read_text()


def test_a_start_that_fails_says_so_in_the_log_file_too(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    process = start("--log-file", str(log), "--listeners", "PLAINTEXT://192.0.2.7:1", command=START[:-2])
    assert process.wait(200) == 1
    assert "ERROR barnabas.broker: this broker does not serve: this machine cannot listen at" in log.read_text()


def test_a_log_file_that_cannot_be_written_ends_the_start(start: Start, tmp_path: Path) -> None:
    process = start("--log-file", str(tmp_path / "missing" / "broker.log"), stderr=subprocess.PIPE)
    errors = process.communicate()[1]
    assert process.returncode == 2
    assert f"{tmp_path}/missing/broker.log cannot be written: No such file or directory" in errors


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no file here that is always full")
def test_a_full_disk_under_the_log_costs_nothing_else(start: Start) -> None:
    with open("/dev/full", "w") as full:
        process = start(stderr=full)
    create_topics(Client(port_of(ready_line(process))), "served", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0


def test_a_broker_without_standard_error_writes_its_log_into_no_other_file(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = [*START, "--data", str(data), "--log-level", "debug"]
    process = start(command=["sh", "-c", 'exec "$@" 2>&-', "sh", *words])
    create_topics(Client(port_of(ready_line(process))), "whole", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    for path in data.rglob("*"):
        assert not path.is_file() or b" INFO barnabas" not in path.read_bytes(), path


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are looked up in /proc")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_broker_with_closed_streams_uses_their_numbers_for_nothing_else(
    start: Start, tmp_path: Path, closed: str
) -> None:
    """Until 2026-11-30 standard output was the loop's own descriptor, so the process aborted at the end of its stop."""
    data, log = tmp_path / "data", tmp_path / "log"
    words = [*START, "--data", str(data), "--log-file", str(log)]
    process = start(command=["sh", "-c", f'exec "$@" {closed}', "sh", *words])
    log.touch()
    until_said(" serves at ", log)
    for number in (1, 2) if "2>" in closed else (1,):
        assert os.readlink(f"/proc/{process.pid}/fd/{number}") == os.devnull
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0


# ---- signals, and the parent ----


def test_a_hang_up_is_a_clean_stop(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = start("--data", str(data))
    ready_line(process)
    process.send_signal(signal.SIGHUP)
    assert process.wait(200) == 0
    assert (data / ".kafka_cleanshutdown").exists()


def test_nohup_is_heeded(start: Start, tmp_path: Path) -> None:
    process = start(command=["nohup", *START])
    client = Client(port_of(ready_line(process)))
    process.send_signal(signal.SIGHUP)
    create_topics(client, "served", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0


# A parent that starts a broker from a thread, says its ready line and goes on for ever.
PARENT = """
import subprocess, sys, threading, time
def start():
    global broker
    broker = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
    print(broker.stdout.readline().decode(), end="", flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(0.5)
print("goes on", flush=True)
time.sleep(1000)
"""


def test_a_broker_ends_with_its_parent_whatever_ended_that(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    parent = start(command=[sys.executable, "-c", PARENT, *START, "--data", str(data)])
    pid = ready_line(parent)["pid"]
    assert parent.stdout is not None
    assert parent.stdout.readline() == "goes on\n"
    assert is_alive(pid), "it ended with the thread that started it"
    parent.kill()
    until(lambda: not is_alive(pid))
    assert (data / ".kafka_cleanshutdown").exists(), "not a clean stop"


def test_a_broker_may_outlive_its_parent(start: Start, tmp_path: Path) -> None:
    parent = start(command=[sys.executable, "-c", PARENT, *START, "--no-exit-with-parent"])
    ready = ready_line(parent)
    parent.kill()
    parent.wait()
    time.sleep(0.5)
    create_topics(Client(port_of(ready)), "served", 50)
    os.kill(ready["pid"], signal.SIGTERM)
    until(lambda: not is_alive(ready["pid"]))


def test_a_parent_that_died_before_the_broker_looked(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    # The shell ends at once, and the broker begins to run when it is gone. (A session of its own, so that the new
    # parent is not in it.)
    script = '(sleep 0.3; exec "$@") & echo $!'
    words = [*START, "--log-file", str(log)]
    parent = start(command=["sh", "-c", script, "sh", *words], start_new_session=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait()
    until(lambda: not is_alive(pid))
    assert "is gone" in log.read_text()


# ---- temporary data ----


def test_without_a_directory_the_data_is_temporary(start: Start, temporary: Path, tmp_path: Path) -> None:
    process = start(cwd=tmp_path)
    ready = ready_line(process)
    assert ready["temporary"] is True
    assert Path(ready["data"]).parent == temporary
    create_topics(Client(port_of(ready)), "short-lived", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "data").exists()


def test_with_a_directory_it_is_not(start: Start, temporary: Path, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path}/c\n")
    for name, words in {
        "a": ("--data", f"{tmp_path}/a"),
        "b": ("--set", f"log.dir={tmp_path}/b"),
        "c": ("--config", str(config)),
    }.items():
        process = start(*words)
        ready = ready_line(process)
        assert Path(ready["data"]) == tmp_path / name
        assert ready["temporary"] is False
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0
        assert Path(ready["data"]).exists()
    assert list(temporary.iterdir()) == []


def test_temporary_data_goes_when_the_start_fails(start: Start, temporary: Path) -> None:
    first = start()
    port = port_of(ready_line(first))
    command = [word for word in START if word not in ("--port", "0")] + ["--port", str(port)]
    second = start(command=command)
    assert second.wait(200) == 1
    assert len(list(temporary.iterdir())) == 1


def test_no_place_for_temporary_data(start: Start, temporary: Path) -> None:
    temporary.rmdir()
    process = start(stderr=subprocess.PIPE)
    errors = process.communicate()[1]
    assert process.returncode == 1
    assert "cannot be made: No such file or directory. Set TMPDIR" in errors


@pytest.mark.parametrize("words", [(), ("--brokers", "3")])
def test_nothing_is_left_of_brokers_that_are_killed(start: Start, temporary: Path, words: tuple[str, ...]) -> None:
    """Until 2026-12 their data stayed for a later start. Go's Process.Kill and Java's destroyForcibly end them so."""
    process = start(*words)
    ready = ready_line(process)
    if not words:  # its snapshot is in a folder of its own
        headers = {"Content-Type": "application/json"}
        command = urllib.request.Request(f"http://{ready['http']}/v1/control/snapshots", b"{}", headers)
        urllib.request.urlopen(command).close()
        assert len(list(temporary.iterdir())) == 2
    pids = ready.get("pids", [])
    if pids:
        os.kill(pids[1], signal.SIGSTOP)  # it would not see that the others end
    process.kill()
    until(lambda: list(temporary.iterdir()) == [] and not any(map(is_alive, pids)))


def test_what_killed_brokers_left_is_removed_by_the_next_start(start: Start, temporary: Path) -> None:
    left, before_the_lock, new = (temporary / f"barnabas-ci-{digit * 32}" for digit in "a0b")
    for path in (left, before_the_lock, new):
        path.mkdir()
    for path in (left, new):
        (path / ".lock").touch()
    kept = Path(ready_line(start())["data"])
    for path in (left, kept, before_the_lock):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    ready_line(start())
    until(lambda: not left.exists() and not before_the_lock.exists())
    assert kept.exists(), "its broker lives"
    assert new.exists(), "it may belong to a broker that is about to lock it"


def test_folders_that_somebody_else_made_are_not_taken_for_temporary_data(start: Start, temporary: Path) -> None:
    results = temporary / "barnabas-ci-results"
    stopped = temporary / "barnabas-ci-staging"  # --data named it, and its broker is not running just now
    renamed = temporary / f"barnabas-ci-{'a' * 32}.kept"
    unlocked = temporary / f"barnabas-ci-{'b' * 32}"
    foreign = (temporary / "barnabas-notes", results, stopped, renamed, unlocked)
    for path in foreign:
        path.mkdir()
        (path / "letter.txt").write_text("dear reader")
    for path in (stopped, renamed):
        (path / ".lock").touch()
    left = temporary / f"barnabas-ci-{'f' * 32}"
    left.mkdir()
    (left / ".lock").touch()
    for path in (*foreign, left):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    process = start()
    ready_line(process)
    until(lambda: not left.exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    assert [path.name for path in foreign if not (path / "letter.txt").exists()] == []


def test_the_first_group_finds_its_coordinator_at_once(start: Start) -> None:
    client = Client(port_of(ready_line(start())))
    find = messages.FindCoordinatorRequest(key="group", key_type=0)
    assert client.ask(ApiKey.FIND_COORDINATOR, 3, find).error_code == 0
    heartbeat = messages.HeartbeatRequest(group_id="group", generation_id=1, member_id="m")
    assert client.ask(ApiKey.HEARTBEAT, 3, heartbeat).error_code == 25, "no such member: so it is loaded"


# ---- Ctrl-C ----

INTERRUPTED_WHILE_IT_IMPORTS = """
import sys

module = sys.argv[1]

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from barnabas.cli.main import main
sys.argv[1:] = ["start"]
main()
"""


@pytest.mark.parametrize("module", ["barnabas.cli.shared.exits", "barnabas.cli.start", "barnabas.runtime.env"])
def test_ctrl_c_right_after_the_start_says_nothing(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_IT_IMPORTS, module]
    done = subprocess.run(command, capture_output=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
