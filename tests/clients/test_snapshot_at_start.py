"""A broker that notes what it begins with before it serves, or starts while its data is made (`control.start.*`)."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import forked
import pytest
from barnabas.cli.start_settings import CLUSTER_FILE
from barnabas.testing import Barnabas, CommandError, StartError

START = [sys.executable, "-m", "barnabas", "start", "--json", "--port", "0"]


def said(*words: str) -> tuple[int, str]:
    """The exit code of a start that is refused, and what it says."""
    done = forked.run([*START, *words], capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr


@pytest.mark.parametrize("brokers", [1, 3])
def test_what_came_since_is_gone_when_it_is_put_back(brokers: int) -> None:
    kafka = Barnabas(brokers)
    mark = kafka.start_with_snapshot()
    try:
        pids = [process.pid for process in kafka.processes.values()]
        assert mark.next_requests == dict.fromkeys(range(brokers), 1)
        assert (mark.folder / "0" / "__consumer_offsets-0").is_dir()  # or each test would wait until it is made
        for _ in range(2):
            topic, group = kafka.topic("orders", unique=False), kafka.group("billing", unique=False)
            topic.produce(["a", "b"])
            group.commit(topic, 0, 1)
            kafka.restore(mark)
            assert kafka.ask("GET", "/v1/topics")["topics"] == []
            assert group.offsets == {}
        assert [process.pid for process in kafka.processes.values()] == pids
    finally:
        kafka.stop()


def test_a_copy_notes_its_time_and_its_data() -> None:
    with Barnabas() as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a"])
        kafka.clock.advance(days=8)
        copy = Barnabas(snapshot=kafka.snapshot())
        mark = copy.start_with_snapshot()
        try:
            copy.restore(mark)
            assert copy.clock.ahead_ms == mark.clock_ahead_ms >= 8 * 24 * 3_600_000
            assert [row["topic"] for row in copy.ask("GET", "/v1/topics")["topics"]][-1] == topic.name
        finally:
            copy.stop()


def test_the_ready_line_says_where_it_is(tmp_path: Path) -> None:
    """As a suite in any language uses it: one line to read, then one request a test."""
    snapshot = tmp_path / "start"
    words = ["--profile", "ci", "--data", str(tmp_path / "data"), "--set", f"control.start.snapshot={snapshot}"]
    process = forked.Popen([*START, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["snapshot"] == {"folder": str(snapshot), "next_request": 1}
        body = json.dumps({"folder": ready["snapshot"]["folder"]}).encode()
        address = f"http://{ready['http']}/v1/control/restore"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["life"] == 3
    finally:
        process.terminate()
        process.communicate(timeout=200)


def test_it_goes_on_from_data_that_is_there(tmp_path: Path) -> None:
    """With a full segment, which is linked."""
    kafka = Barnabas(config={"log.segment.bytes": "1048576"})
    mark = kafka.start_with_snapshot()
    try:
        topic = kafka.topic("orders")
        topic.produce(["x" * 1000] * 1500)
        again = Barnabas(config={"log.segment.bytes": "1048576"}, snapshot=kafka.snapshot())
        second = again.start_with_snapshot()
        try:
            logs = sorted(second.folder.glob(f"0/{topic.name}-0/*.log"))
            assert len(logs) > 1
            assert os.stat(logs[0]).st_nlink > 1
        finally:
            again.stop()
        kafka.restore(mark)
    finally:
        kafka.stop()


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("there", "there is there already: name a folder that is not"),
        ("data/deep", "data/deep is in a data directory"),
        ("file/deep", "Not a directory"),
    ],
)
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    words = ("--profile", "ci", "--data", str(tmp_path / "data"))
    code, told = said(*words, "--set", f"control.start.snapshot={tmp_path / folder}")
    assert code in (1, 2)
    assert why in told.splitlines()[-1]
    assert os.listdir(tmp_path / "there") == []
    code, _ = said(*words, "--set", "num.partitions=x")  # the data can be used again
    assert code == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "say --profile ci, or control.enable=true"),
        (("--profile", "ci", "--brokers", "3"), "is for one broker"),
        (("--profile", "ci", "--set", "coordination.path=tree.sqlite"), "is for one broker"),
        (("--profile", "ci", "--set", "zookeeper.connect=127.0.0.1:1"), "is for one broker"),
    ],
)
def test_brokers_that_it_is_not_for_are_refused(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    place = ("--data", str(tmp_path / "data"), "--set", f"control.start.snapshot={tmp_path / 'snapshot'}")
    code, told = said(*words, *place)
    assert (code, why in told.splitlines()[-1]) == (2, True), told
    assert not (tmp_path / "snapshot").exists()
    assert not (tmp_path / "data").exists()


def test_brokers_of_a_cluster_that_is_there_are_refused_at_once(tmp_path: Path) -> None:
    """Until 2026-12 each process of the cluster was started, and refused it, if --brokers was not said again."""
    (tmp_path / CLUSTER_FILE).write_text(json.dumps({"node_ids": [0, 1, 2]}))
    words = ("--profile", "ci", "--data", str(tmp_path))
    code, told = said(*words, "--set", f"control.start.snapshot={tmp_path / 'snapshot'}")
    assert (code, "control.start.snapshot is for one broker" in told.splitlines()[-1]) == (2, True), told
    for more in ((), ("--brokers", "3")):
        code, told = said(*words, *more, "--set", "control.start.waits=true")
        assert (code, "control.start.waits is for one broker" in told.splitlines()[-1]) == (2, True), told
    assert os.listdir(tmp_path) == [CLUSTER_FILE]


def test_an_empty_folder_is_none(tmp_path: Path) -> None:
    """Until 2026-12 it was the folder where the start was said."""
    words = ["--profile", "ci", "--data", str(tmp_path / "data"), "--set", "control.start.snapshot="]
    process = forked.Popen([*START, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "snapshot" not in json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate(timeout=200)


def test_a_test_hears_why_it_does_not_start() -> None:
    kafka = Barnabas(config={"control.enable": "false"})
    with pytest.raises(StartError, match=r"control\.start\.snapshot is for tests"):
        kafka.start_with_snapshot()
    assert kafka.running == []


def test_a_broker_may_start_while_its_data_is_made(tmp_path: Path) -> None:
    """As a fork does: most of a start needs no data."""
    with Barnabas() as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a"])
        mark = kafka.snapshot()
        words = ["--profile", "ci", "--data", str(tmp_path / "0"), "--set", "control.start.waits=true"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = forked.Popen([*START, *words], **streams, text=True)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            time.sleep(1)
            assert not (tmp_path / "0").exists()
            mark.copy_to(tmp_path)
            process.stdin.write("\n")
            process.stdin.flush()
            ready = json.loads(process.stdout.readline())
            with urllib.request.urlopen(f"http://{ready['http']}/v1/topics", timeout=60) as answer:
                assert [row["topic"] for row in json.load(answer)["topics"]] == [topic.name]
        finally:
            process.terminate()
            process.communicate(timeout=200)


def test_who_is_never_told_to_begin_touches_nothing(tmp_path: Path) -> None:
    words = ("--profile", "ci", "--data", str(tmp_path / "data"), "--set", "control.start.waits=true")
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        done = forked.run([*START, *words], stdin=stdin, capture_output=True, text=True, timeout=200)
        assert (done.returncode, "no line came" in done.stderr) == (2, True), done.stderr
    process = forked.Popen([*START, *words], stdin=subprocess.PIPE)
    time.sleep(1)
    process.terminate()
    assert process.wait(200) == 0
    process.communicate()
    assert not (tmp_path / "data").exists()


def test_what_lacks_files_or_is_of_other_brokers_is_refused(tmp_path: Path) -> None:
    """Until 2026-12 a broker began with what was left of it, or did not start and did not say why."""
    with Barnabas() as kafka:
        mark = kafka.snapshot()
        with pytest.raises(CommandError, match="is of 1 broker, not of 3"):
            Barnabas(3, snapshot=mark).start()
        for given in (None, str(mark.folder)):
            with pytest.raises(TypeError, match=r"snapshot is what kafka\.snapshot\(\) returns, not "):
                kafka.restore(given)  # type: ignore[arg-type]
        next(mark.folder.glob("0/__consumer_offsets-0/*.log")).unlink()
        begun = Barnabas(snapshot=mark)
        with pytest.raises(CommandError, match="is not the folder of a whole snapshot"):
            begun.start()
        assert not begun.folder.exists()
    with pytest.raises(CommandError, match="is not the folder of a whole snapshot"):
        Barnabas(snapshot=mark).start_with_snapshot()
    with pytest.raises(TypeError, match=r"snapshot is what kafka\.snapshot\(\) returns, not str"):
        Barnabas(snapshot=str(mark.folder))  # type: ignore[arg-type]


def test_data_that_somebody_has_removed_is_named() -> None:
    """Until 2026-12 it was called a bug of the broker."""
    with Barnabas() as kafka:
        mark = kafka.snapshot()
        data = kafka.processes[0].data
        shutil.rmtree(data)
        for change in (kafka.snapshot, lambda: kafka.restore(mark), kafka.fork().__enter__):
            with pytest.raises(CommandError, match=f"{data}: No such file or directory"):
                change()


def test_forks_leave_nothing_behind() -> None:
    """Until 2026-12 each left a snapshot, in memory, for as long as the brokers ran."""
    with Barnabas() as kafka:
        kafka.topic("orders").produce(["a"])
        before = set(kafka.folder.iterdir())
        for _ in range(2):
            with kafka.fork():
                assert set(kafka.folder.iterdir()) == before


def test_no_fork_shares_a_tree(tmp_path: Path) -> None:
    """Until 2026-12 it began with the tree of the living, and heard there that its node id is taken."""
    with Barnabas(config={"coordination.path": str(tmp_path / "tree.sqlite")}) as kafka:
        with pytest.raises(CommandError, match=r"coordination\.path of yours"), kafka.fork():
            pytest.fail("there is no fork")
        assert kafka.topic("orders").values() == []


def test_a_fork_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Barnabas() as kafka:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device", "somewhere")

        monkeypatch.setattr("barnabas.testing.snapshot.Snapshot.copy_to", fail)
        with pytest.raises(OSError, match="No space left"), kafka.fork():
            pytest.fail("there is no fork")
        assert kafka.topic("orders").values() == []
