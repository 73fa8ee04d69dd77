"""A real process on a bad day: killed under load, too few open files, a folder that vanishes. It lives on."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build
from barnabas.runtime.env import real
from broker_process import Client, Process, batch
from kill_rounds import Options, Rounds
from ports import free_port
from waiting import until, until_said


def test_nothing_acknowledged_is_lost_or_there_twice_after_a_kill(tmp_path: Path) -> None:
    options = Options(
        rounds=3, producers=3, committers=2, members=2, partitions=3, librdkafka=False, alive_s=(0.2, 1.0)
    )
    rounds = Rounds(options, tmp_path, print)
    assert rounds.run() == []
    assert min(rounds.books.records, rounds.books.commits, rounds.group.generation) > 0


def test_a_hundred_partitions_with_few_open_files(start: Callable[..., Process]) -> None:
    process = start(open_files=64)
    client = Client(process.port)
    assert client.create_topic("many", 100) == 0
    for turn in range(2):
        assert {client.produce("many", index, batch([b"v"])).error_code for index in range(100)} == {0}, turn
    assert [len(client.values("many", index)) for index in range(0, 100, 9)] == [2] * 12
    process.end()
    assert "offline" not in process.log.read_text()


def test_a_limit_of_open_files_that_is_too_low_is_said(tmp_path: Path) -> None:
    process = Process(tmp_path / "data", open_files=47, wait=False)
    assert process.process.wait(200) == 1
    assert "may have 47 files open, and a broker needs 48" in process.log.read_text()
    assert not (tmp_path / "data").exists()


def test_a_segment_whose_maker_died_before_its_indexes_were_made(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start()
    assert Client(process.port).create_topic("half", 1) == 0
    process.end(signal.SIGKILL)
    assert not (tmp_path / "data" / "half-0" / ("0" * 20 + ".index")).exists(), "an empty segment has none"
    process = start()
    client = Client(process.port)
    assert client.produce("half", 0, batch([b"1"])).error_code == 0
    process.end()
    assert "offline" not in process.log.read_text()
    assert Client(start().port).values("half", 0) == [b"1"]


def refused(client: Client, topic: str) -> bool:
    """Whether a produce is refused, as a log that has failed refuses it."""
    deadline = time.monotonic() + 200
    while client.produce(topic, 0, batch([b"2"])).error_code == ErrorCode.NONE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    answers = {client.produce(topic, 0, batch([b"2"])).error_code for _ in range(3)}
    return answers <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER}


def with_two_topics(process: Process) -> Client:
    """A client that has written a record into each of two topics, gone and here."""
    client = Client(process.port)
    for topic in ("gone", "here"):
        assert client.create_topic(topic, 1) == 0
        assert client.produce(topic, 0, batch([b"1"])).error_code == 0
    return client


@pytest.mark.parametrize("what", ["folder", "segment"])
def test_what_is_taken_from_under_a_running_broker_takes_one_partition_offline(
    start: Callable[..., Process], tmp_path: Path, what: str
) -> None:
    process = start()
    client = with_two_topics(process)
    folder = tmp_path / "data" / "gone-0"
    if what == "folder":
        shutil.rmtree(folder)
    else:
        (folder / ("0" * 20 + ".log")).unlink()
    assert refused(client, "gone")
    assert client.produce("here", 0, batch([b"2"])).error_code == 0
    told = "gone-0: offline until the next start: "
    assert until_said(told, process.log).count(told) == 1
    process.end()
    again = start()
    client = Client(again.port)
    assert client.values("gone", 0) == []
    assert client.produce("gone", 0, batch([b"3"])).error_code == 0
    assert client.values("here", 0) == [b"1", b"2"]
    again.end()
    text = process.log.read_text()
    assert (
        "1 partition had records, and the folders are gone or of other topics: they begin empty (gone-0)" in text
    ) is (what == "folder")


def test_a_folder_that_is_lost_with_the_power_seconds_after_it_was_made_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """No checkpoint knows of it yet, only the tree. Until 2026-11-30 nobody said anything."""
    process = start()
    client = with_two_topics(process)
    process.end(signal.SIGKILL)
    shutil.rmtree(tmp_path / "data" / "gone-0")
    checkpoint = tmp_path / "data" / "replication-offset-checkpoint"
    assert not checkpoint.exists() or "gone" not in checkpoint.read_text()
    process = start()
    client = Client(process.port)
    assert client.values("gone", 0) == []
    assert client.values("here", 0) == [b"1"]
    assert client.produce("gone", 0, batch([b"2"])).error_code == 0
    process.end()
    told = "they begin empty, and what was written to them here is lost (gone-0)"
    assert process.log.read_text().count(told) == 1
    start().end()
    assert process.log.read_text().count(told) == 1


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (30, "this broker ran last 30.0 days ago, longer than committed offsets are kept"),
        (-2, "it is 48.0 hours before this broker ran last. If it is wrong, set it right soon"),
        (3, None),
    ],
)
def test_a_start_with_an_odd_wall_clock_says_so(
    start: Callable[..., Process], tmp_path: Path, days: int, said: str | None
) -> None:
    """Until 2026-11-30 a machine that woke up with a wrong clock lost offsets without a word."""
    process = start()
    assert Client(process.port).create_topic("t", 1) == 0
    process.end()
    assert "By the wall clock" not in process.log.read_text()
    then_s = time.time() - days * 86_400
    os.utime(tmp_path / "data" / "replication-offset-checkpoint", (then_s, then_s))
    process = start()
    process.end()
    assert process.log.read_text().count("By the wall clock of this machine") == (said is not None)
    assert said is None or said in process.log.read_text()


@pytest.mark.parametrize(("days", "stays"), [(30, True), (3, False)])
def test_offsets_do_not_expire_by_a_clock_that_may_be_wrong(
    start: Callable[..., Process], tmp_path: Path, days: int, stays: bool
) -> None:
    process = start()
    client = Client(process.port)
    assert client.create_topic("t", 1) == 0
    make = messages.OffsetCommitRequest
    row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [make.OffsetCommitRequestTopic(name="t", partitions=[row])]
    request = make(group_id="g", generation_id_or_member_epoch=-1, retention_time_ms=1, topics=topics)
    assert client.ask(ApiKey.OFFSET_COMMIT, 2, request).topics[0].partitions[0].error_code == 0
    process.end()
    then_s = time.time() - days * 86_400
    os.utime(tmp_path / "data" / "replication-offset-checkpoint", (then_s, then_s))
    settings = {"offsets.retention.check.interval.ms": "50"}
    process = start(settings=settings)
    client = Client(process.port)
    if stays:
        time.sleep(0.5)
        assert client.committed("g", "t", 0) == (0, 7)
    else:
        until(lambda: client.committed("g", "t", 0) == (0, -1))
        return
    # The next start knows that the same clock was in doubt, and for how long it still is.
    for how in (signal.SIGTERM, signal.SIGKILL):
        process.end(how)
        process = start(settings=settings)
        client = Client(process.port)
        time.sleep(0.5)
        assert client.committed("g", "t", 0) == (0, 7)
        assert "for another 24.0 hours" in process.log.read_text()
    process.end()
    note = tmp_path / "data" / ".clock_doubt"
    left_ms = int(note.read_text())
    assert 86_400_000 - 60_000 < left_ms < 86_400_000
    note.write_text("3000\n")
    client = Client(start(settings=settings).port)
    assert client.committed("g", "t", 0) == (0, 7)
    until(lambda: client.committed("g", "t", 0) == (0, -1))


def test_indexes_that_are_removed_from_under_a_running_broker_are_made_again(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start()
    client = Client(process.port)
    assert client.create_topic("t", 1) == 0
    assert client.produce("t", 0, batch([b"1"])).error_code == 0
    for file in (tmp_path / "data" / "t-0").glob("*index"):
        file.unlink()
    assert client.produce("t", 0, batch([b"2"])).error_code == 0
    process.end()
    assert Client(start().port).values("t", 0) == [b"1", b"2"]
    assert "offline" not in process.log.read_text()


def test_more_connections_than_descriptors_are_refused_and_no_log_suffers(start: Callable[..., Process]) -> None:
    process = start(open_files=96)
    client = Client(process.port)
    assert client.create_topic("many", 100) == 0
    # More than there are descriptors.
    others = [socket.create_connection(("127.0.0.1", process.port), 20) for _ in range(150)]
    for turn in range(2):
        assert {client.produce("many", index, batch([b"v"])).error_code for index in range(100)} == {0}, turn
    closed = 0
    for other in others:
        other.settimeout(0.001)
        with contextlib.suppress(TimeoutError):
            closed += other.recv(1) == b""
        other.close()
    assert 80 < closed < 120
    assert [len(client.values("many", index)) for index in range(0, 100, 9)] == [2] * 12
    assert Client(process.port).produce("many", 0, batch([b"v"])).error_code == 0
    process.end()
    text = process.log.read_text()
    assert "offline" not in text
    assert "raise the limit (ulimit -n)" in text
    assert text.count("refused a connection") < 10


def test_commands_say_that_connections_are_closed_and_why_that_may_be(start: Callable[..., Process]) -> None:
    process = start(open_files=96)
    others = [socket.create_connection(("127.0.0.1", process.port), 20) for _ in range(150)]
    said = forked.barnabas("status", "--bootstrap", f"127.0.0.1:{process.port}", "--timeout", "1")
    for other in others:
        other.close()
    assert said.returncode == 1
    assert "takes connections and closes them" in said.stderr
    assert "ulimit -n" in said.stderr
    assert "its log says which" in said.stderr


def test_who_connects_before_the_broker_serves_is_answered_when_it_does(start: Callable[..., Process]) -> None:
    for number in range(3):
        process = start(port=free_port(), wait=False)
        while True:
            try:
                client = Client(process.port)
                break
            except OSError:
                assert process.process.poll() is None
        assert client.create_topic(f"early-{number}", 1) == 0
        process.end()


def test_flush_ms_comes_round_to_two_hundred_busy_partitions_with_few_descriptors(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(open_files=256, settings={"log.flush.offset.checkpoint.interval.ms": "200"})
    client = Client(process.port)
    assert client.create_topic("busy", 200, flush_ms="100") == 0
    checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
    durable: list[set[int]] = [set() for _ in range(200)]
    deadline = time.monotonic() + 200
    while min(map(len, durable)) < 2:
        assert time.monotonic() < deadline, [index for index, seen in enumerate(durable) if len(seen) < 2]
        assert {client.produce("busy", index, batch([b"v"])).error_code for index in range(200)} == {0}
        for line in checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else ():
            topic, index, offset = line.split()
            if topic == "busy" and offset != "0":
                durable[int(index)].add(int(offset))
    process.end()
    text = process.log.read_text()
    assert "too many open files" not in text
    assert "offline" not in text


def test_settings_at_their_largest_values_end_no_compaction(start: Callable[..., Process]) -> None:
    """These settings are added to times, and the sums are written as 64 bits."""
    process = start(log_level="info")
    client = Client(process.port)
    compact = {"cleanup_policy": "compact,delete", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": "1048576"}
    names = """delete.retention.ms max.compaction.lag.ms retention.ms flush.ms segment.ms segment.jitter.ms
    message.timestamp.before.max.ms message.timestamp.after.max.ms file.delete.delay.ms"""
    largest = {name.replace(".", "_"): str(2**63 - 1) for name in names.split()}
    assert client.create_topic("largest", 1, **compact, **largest) == 0
    assert client.create_topic("other", 1, **compact) == 0
    for topic in ("largest", "other"):
        for _ in range(5):
            records = [Record(key=b"gone", value=None), Record(key=b"kept", value=bytes(600_000))]
            assert client.produce(topic, 0, build(records)).error_code == 0
        until_said(f"{topic}-0: compacted up to", process.log)
    process.end()
    assert "set aside" not in process.log.read_text()


def test_a_start_after_a_kill_says_few_of_many_elections(start: Callable[..., Process]) -> None:
    process = start()
    assert Client(process.port).create_topic("many", 60) == 0
    process.end(signal.SIGKILL)
    process = start(log_level="info")
    process.end()
    text = process.log.read_text()
    assert text.count("leads in epoch") == 20
    assert "61 partitions have a new leader, 0 of them unclean" in text, "__consumer_offsets has one"


@pytest.mark.parametrize("left", ["nothing", "a mount point"])
def test_nothing_is_made_where_the_data_directory_was(start: Callable[..., Process], tmp_path: Path, left: str) -> None:
    process = start()
    client = Client(process.port)
    assert client.create_topic("here", 1) == 0
    assert client.produce("here", 0, batch([b"1"])).error_code == 0
    data, moved = tmp_path / "data", tmp_path / "moved"
    data.rename(moved)
    if left == "a mount point":
        data.mkdir()
    client.create_topic("later", 1)
    assert client.produce("later", 0, batch([b"1"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not list(tmp_path.glob("data/later*"))
    process.end()
    assert "the data directory was moved, removed or unmounted" in process.log.read_text()
    shutil.rmtree(data, ignore_errors=True)
    moved.rename(data)
    client = Client(start().port)
    assert client.values("here", 0) == [b"1"]
    assert client.produce("later", 0, batch([b"1"])).error_code == 0


def test_a_deletion_that_a_kill_interrupted_goes_on_and_is_no_loss(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start()
    client = Client(process.port)
    assert client.create_topic("doomed", 1) == 0
    assert client.produce("doomed", 0, batch([b"1"])).error_code == 0
    process.end()
    data = tmp_path / "data"

    async def ask_for_the_deletion() -> None:
        tree = EmbeddedCoordination(real(), f"{data}/coordination.sqlite")
        await tree.start()
        await tree.create(f"{paths.DELETE_TOPICS}/doomed", b"")
        await tree.close()

    asyncio.run(ask_for_the_deletion())
    (data / "doomed-0").rename(data / f"doomed-0.{'0' * 32}-delete")
    process = start()
    answer = Client(process.port).produce("doomed", 0, batch([b"2"]))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    process.end()
    assert "begin empty" not in process.log.read_text()
    assert list(data.glob("doomed*")) == []


def test_a_topic_of_the_last_moment_before_a_kill_where_the_tree_is_a_link(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """SQLite follows the link, and has the -wal, with what is newest, beside the file."""
    (tmp_path / "larger-disk").mkdir()
    (tmp_path / "tree").symlink_to(tmp_path / "larger-disk" / "tree")
    place = {"coordination.path": str(tmp_path / "tree")}
    process = start(settings=place)
    client = Client(process.port)
    assert client.create_topic("late", 1) == 0
    assert client.produce("late", 0, batch([b"1"])).error_code == 0
    process.end(signal.SIGKILL)
    assert Client(start(settings=place).port).values("late", 0) == [b"1"]


def test_the_folder_of_a_killed_broker_that_is_put_back_is_told_where_the_tree_is_elsewhere(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """It was one life behind, and until 2026-12 that was told from the fourth on, and never after a new boot."""
    settings = {"coordination.path": str(tmp_path / "tree"), "control.sync.enable": "true"}
    data = tmp_path / "data"
    for life in ("copied", "newer"):
        process = start(settings=settings)
        client = Client(process.port)
        if life == "copied":
            assert client.create_topic("t", 1) == 0
        assert client.produce("t", 0, batch([life.encode()])).error_code == 0
        time.sleep(0.2)  # the tree hears a moment later what is on the disk
        process.end(signal.SIGKILL)
        if life == "copied":
            shutil.copytree(data, tmp_path / "copy")
    assert "an old copy" not in process.log.read_text()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    (data / ".boot_id").write_text("before the machine started anew")
    process = start(settings=settings)
    assert "an old copy of this broker's data directory" in process.log.read_text()
    assert Client(process.port).values("t", 0) == [b"copied"]
