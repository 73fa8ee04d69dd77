"""A real process on a disk of its own that is full or read-only. Needs the right to mount one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import forked
import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.testing.control import CommandError, Http
from broker_process import Client, Process, batch
from ports import free_port
from waiting import until_said


def mount(*words: str) -> None:
    try:
        subprocess.run(["mount", *words], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty one of six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def commit(client: Client, offset: int) -> ErrorCode:
    commit = messages.OffsetCommitRequest
    row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [commit.OffsetCommitRequestTopic(name="t", partitions=[row])]
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, commit(group_id="g", topics=topics))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fill(client: Client, acknowledged: list[bytes], partition: int = 0, size: int = 60_000) -> ErrorCode:
    """Produce until that is refused."""
    while True:
        value = b"%d %s" % (len(acknowledged), bytes(size))
        error = ErrorCode(client.produce("t", partition, batch([value])).error_code)
        if error:
            return error
        acknowledged.append(value)


def test_a_full_disk_refuses_what_it_cannot_keep_and_goes_on_when_there_is_room(
    start: Callable[..., Process], disk: Path, tmp_path: Path
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(3_000_000))
    place = {"log.dirs": str(disk / "data")}
    process = start(tmp_path / "data", settings=place)
    client = Client(process.port)
    assert client.create_topic("t", 1) == 0
    client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))
    while commit(client, 1):
        pass
    acknowledged: list[bytes] = []
    for size in (60_000, 5_000, 300, 0):
        assert fill(client, acknowledged, size=size) is ErrorCode.KAFKA_STORAGE_ERROR
    assert client.values("t", 0) == acknowledged
    committed = 1
    while (error := commit(client, committed + 1)) is ErrorCode.NONE:  # the last page of its file has some room left
        committed += 1
    assert error is ErrorCode.NOT_COORDINATOR
    assert client.committed("g", "t", 0) == (0, committed)
    assert client.create_topic("other", 1) == ErrorCode.KAFKA_STORAGE_ERROR
    ballast.unlink()
    acknowledged.append(b"again")
    assert client.produce("t", 0, batch([b"again"])).error_code == 0
    assert commit(client, 10_000) is ErrorCode.NONE
    assert client.create_topic("other", 1) == 0
    assert client.values("t", 0) == acknowledged
    said = until_said("refuses writes", process.log)
    process.end(signal.SIGKILL)
    client = Client(start(tmp_path / "data", settings=place).port)
    assert client.values("t", 0) == acknowledged
    assert client.committed("g", "t", 0) == (0, 10_000)
    told = [line for line in said.splitlines() if "refuses writes" in line]
    assert len(told) == 1, "the disk is told, not each log"
    assert f"{disk / 'data'} refuses writes" in told[0]
    assert told[0].endswith(". Make room there")


@pytest.mark.parametrize("left", [0, 4 << 10, 16 << 10])
def test_a_start_that_finds_no_room_for_the_tree_says_what_to_do(disk: Path, left: int) -> None:
    (disk / "ballast").write_bytes(bytes(6 * 1024 * 1024 - left))
    ended = forked.barnabas("start", "--profile", "ci", "--port", "0", "--data", str(disk / "data"), code=1)
    assert "Make room there" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("left", [0, 16 << 10])
def test_a_snapshot_at_the_start_that_finds_no_room_says_where(disk: Path, tmp_path: Path, left: int) -> None:
    """Until 2026-12 the note of a snapshot that found no room was not named, and a copy named the data."""
    (disk / "ballast").write_bytes(bytes(6 * 1024 * 1024 - left))
    words = ("start", "--profile", "ci", "--port", "0", "--data", str(tmp_path / "data"))
    ended = forked.barnabas(*words, "--set", f"control.start.snapshot={disk / 'snapshot'}", code=1)
    told = ended.stderr.splitlines()[-1]
    assert f"control.start.snapshot: {disk / 'snapshot'}" in told
    assert "No space left on device. Make room" in told
    assert os.listdir(disk) == ["ballast"]


@pytest.mark.parametrize("left", [0, 4 << 10])
def test_a_snapshot_that_cannot_be_put_back_for_want_of_room_leaves_the_broker_as_it_is(
    start: Callable[..., Process], disk: Path, tmp_path: Path, left: int
) -> None:
    """Until 2026-11-30 its life ended first, and there was no room for another one to start."""
    http, snapshot = free_port(), tmp_path / "snapshot"
    place = {"log.dirs": str(disk / "data"), "http.listeners": f"http://127.0.0.1:{http}"}
    process = start(tmp_path / "data", settings=place)

    def tell(what: str, folder: Path) -> None:
        Http().ask(f"127.0.0.1:{http}", "POST", f"/v1/control/{what}", body={"folder": str(folder)})

    assert Client(process.port).create_topic("t", 1) == 0
    tell("snapshots", snapshot)
    client = Client(process.port)
    assert client.produce("t", 0, batch([b"1"])).error_code == 0
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - left)
    for what, folder in (("restore", snapshot), ("snapshots", tmp_path / "another")):
        with pytest.raises(CommandError, match=r"less than 1 MiB of room left, .*\. Make room there"):
            tell(what, folder)
    assert client.values("t", 0) == [b"1"], "nobody has closed the connection"
    assert not (tmp_path / "another").exists()
    (disk / "ballast").unlink()
    tell("restore", snapshot)
    assert Client(process.port).values("t", 0) == []


def test_a_start_that_waits_for_the_offsets_topic_is_ready_when_there_is_room_for_it(
    tmp_path: Path, disk: Path
) -> None:
    """The coordination tree has room; the disk of the logs has some for its own files, and none for a log."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(6 * 1024 * 1024 - 60 * 1024))
    words = ["start", "--profile", "ci", "--json", "--port", "0", "--data", str(disk / "data")]
    words += ["--set", f"coordination.path={tmp_path / 'tree.sqlite'}", "--set", "offsets.topic.num.partitions=50"]
    for has_room in (False, True):
        with (tmp_path / "log").open("w") as log:
            process = forked.Popen(
                [sys.executable, "-m", "barnabas", *words], stdout=subprocess.PIPE, stderr=log, text=True
            )
            try:
                while "not ready yet" not in (tmp_path / "log").read_text():
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.1)
                if has_room:
                    ballast.unlink()
                    assert process.stdout is not None
                    assert json.loads(process.stdout.readline())["event"] == "ready"
                process.terminate()
                assert process.wait(200) == 0
            finally:
                process.kill()
                process.wait()


def test_a_broker_whose_controller_waits_for_room_in_the_tree_stops_at_once(
    start: Callable[..., Process], tmp_path: Path, disk: Path
) -> None:
    """The tree is on the full disk, and 50 logs cannot be made, so the controller tries to write that into the tree."""
    mount("-o", "remount,size=30m", str(disk))
    process = start(tmp_path / "data", settings={"log.dirs": str(disk / "data")}, log_level="info")
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(65_536)):
            pass
    os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - 200_000)
    Client(process.port).create_topic("t", 50)
    until_said("database or disk is full", process.log)
    process.end(signal.SIGTERM)
    assert "broker 0 has stopped" in process.log.read_text()


@pytest.mark.parametrize("lacks", ["room", "inodes"])
def test_a_topic_that_found_no_room_on_the_disk_is_served_when_there_is_some(
    start: Callable[..., Process], tmp_path: Path, disk: Path, lacks: str
) -> None:
    """The tree has room, so the topic is made, and only its log is missing."""
    mount("-o", "remount,size=6m,nr_inodes=400", str(disk))
    place = {"log.dirs": str(disk / "data"), "coordination.path": str(tmp_path / "tree.sqlite")}
    process = start(tmp_path / "data", settings=place)
    client = Client(process.port)
    ballast = disk / "ballast"
    ballast.mkdir()
    with suppress(OSError):
        for number in range(10_000):
            (ballast / str(number)).write_bytes(bytes(100_000 if lacks == "room" else 0))
    assert client.create_topic("t", 1) == ErrorCode.NONE
    assert client.produce("t", 0, batch([b"v"])).error_code != ErrorCode.NONE
    for file in ballast.iterdir():
        file.unlink()
    end = time.monotonic() + 200
    while client.produce("t", 0, batch([b"v"])).error_code:
        assert time.monotonic() < end, process.log.read_text()[-3000:]
        time.sleep(0.1)
    assert client.values("t", 0) == [b"v"]
    until_said("t-0: the log cannot be made, trying again: ", process.log)


def test_a_read_only_directory_is_refused_at_the_start_or_left_out_if_there_are_others(
    start: Callable[..., Process], disk: Path, tmp_path: Path
) -> None:
    both = {"log.dirs": f"{tmp_path / 'first'},{disk}"}
    process = start(tmp_path / "first", settings=both)
    client = Client(process.port)
    assert client.create_topic("t", 4) == 0
    assert {client.produce("t", index, batch([b"1"])).error_code for index in range(4)} == {0}
    process.end()
    mount("-o", "remount,ro", str(disk))
    with pytest.raises(AssertionError, match=r"Read-only file system.* Let this user write to it"):
        start(disk)
    process = start(tmp_path / "first", settings=both)
    client = Client(process.port)
    errors = [ErrorCode(client.produce("t", index, batch([b"2"])).error_code) for index in range(4)]
    assert sorted(errors) == [0, 0, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]
    until_said("Let this user write to it", process.log)
    process.end()
    mount("-o", "remount,rw", str(disk))
    client = Client(start(tmp_path / "first", settings=both).port)
    served = [client.values("t", index) for index in range(4)]
    assert served == [[b"1"] if error else [b"1", b"2"] for error in errors]


def test_retention_frees_a_full_disk_and_writing_goes_on(
    start: Callable[..., Process], disk: Path, tmp_path: Path
) -> None:
    process = start(tmp_path / "data", settings={"log.dirs": str(disk / "data")}, log_level="info")
    client = Client(process.port)
    assert client.create_topic("t", 1, retention_ms="2000") == 0
    client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))
    while commit(client, 1):
        pass
    acknowledged: list[bytes] = []
    for size in (60_000, 5_000, 300, 0):
        assert fill(client, acknowledged, size=size) is ErrorCode.KAFKA_STORAGE_ERROR
    deadline = time.monotonic() + 200
    answers = []
    while answers[-3:] != [0, 0, 0]:
        assert time.monotonic() < deadline, process.log.read_text()[-2000:]
        answer = client.produce("t", 0, batch([bytes(100_000)]))
        answers.append(answer.error_code)
        commit(client, len(answers))
        time.sleep(0.05)
    assert set(answers) <= {0, ErrorCode.KAFKA_STORAGE_ERROR}
    assert answer.base_offset >= len(acknowledged)
    assert client.fetch("t", 0, answer.base_offset).error_code == 0
    text = until_said("data can be written again (", process.log)
    assert "offline" not in text
    assert text.count("refuses writes") <= 2
