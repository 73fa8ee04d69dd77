"""A start that is refused leaves every byte and every name as it was, and the next correct start serves everything."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import forked
import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteTopicsRequest, DescribeLogDirsRequest
from broker_process import Client, Process, batch
from directory_state import changes, state

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.1.0"
TOPICS = ("orders", "invoices", "letters")
Case = Callable[[Path], tuple[list[str], str]]


def start(*words: str, listeners: str = "PLAINTEXT://127.0.0.1:0") -> subprocess.CompletedProcess[str]:
    """Run a `barnabas start` that ends by itself."""
    return forked.barnabas("start", "--log-level", "warning", "--listeners", listeners, *words)


def fill(folder: Path, stop: int, *, directories: int = 1) -> None:
    """A broker's data in the folders d, e, … below it: three topics with records."""
    names = [str(folder / name) for name in "defg"[:directories]]
    process = Process(folder / "d", settings={"log.dirs": ",".join(names), "node.id": "0"})
    client = Client(process.port)
    for topic in TOPICS:
        assert client.create_topic(topic, 2, retention_ms="86400000") == 0
        for index in range(2):
            assert client.produce(topic, index, batch([f"{topic} {index}".encode()])).error_code == 0
    process.end(stop)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of brokers: one was stopped, one was killed, and one with two directories was killed."""
    found = {}
    for name, stop, directories in (
        ("stopped", signal.SIGTERM, 1),
        ("killed", signal.SIGKILL, 1),
        ("two", signal.SIGKILL, 2),
    ):
        found[name] = tmp_path_factory.mktemp(name)
        fill(found[name], stop, directories=directories)
    assert (found["killed"] / "d" / "coordination.sqlite-wal").stat().st_size > 0, "changes that are only in the log"
    return found


def check_all_is_served(folder: Path, data: str = "", **options: str) -> None:
    """Check that a correct start serves all records, and has the topics' settings."""
    process = Process(folder / "d", settings={"log.dirs": data or str(folder / "d")} | options)
    try:
        client = Client(process.port)
        for topic in TOPICS:
            for index in range(2):
                assert client.values(topic, index) == [f"{topic} {index}".encode()]
                produced = client.produce(topic, index, batch([b"more"]))
                assert (produced.error_code, produced.base_offset) == (0, 1)
    finally:
        process.end()


# ------------------------------------------------------------------ the ways to be refused


def wrong_node(folder: Path) -> tuple[list[str], str]:
    return ["--data", f"{folder}/d", "--set", "node.id=5"], "belongs to node 0, this is node 5"


def an_edited_node_id(folder: Path) -> tuple[list[str], str]:
    """Until 2026-11-30 the advice was --adopt, which would have set all logs aside."""
    shutil.copytree(folder / "d", folder / "edited")
    meta = folder / "edited" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=0", "node.id=4"))
    said = "By the tree, those are on node 0, and this is node 4: if somebody has changed node.id in meta.properties"
    return ["--data", f"{folder}/edited"], said


def a_new_tree_elsewhere(folder: Path) -> tuple[list[str], str]:
    tree = f"{folder}/elsewhere/tree.sqlite"
    return ["--data", f"{folder}/d", "--set", f"coordination.path={tree}"], f"but coordination.path names {tree}"


def a_port_in_use(folder: Path) -> tuple[list[str], str]:
    return ["--data", f"{folder}/d"], "is in use. Stop what listens there"


def the_directory_and_a_copy(folder: Path) -> tuple[list[str], str]:
    shutil.copytree(folder / "d", folder / "copy")
    (folder / "copy" / "coordination.sqlite").unlink()
    return ["--set", f"log.dirs={folder}/d,{folder}/copy"], "one is a copy of the other"


def a_second_tree(folder: Path) -> tuple[list[str], str]:
    (folder / "new").mkdir()
    shutil.copy(folder / "d" / "coordination.sqlite", folder / "new")
    return ["--set", f"log.dirs={folder}/new,{folder}/d"], "There are two coordination trees"


def a_partition_in_two_directories(folder: Path) -> tuple[list[str], str]:
    (folder / "other").mkdir()
    shutil.copytree(folder / "d" / "orders-1", folder / "other" / "orders-1")
    return ["--set", f"log.dirs={folder}/d,{folder}/other"], "The partition orders-1 is in two data directories"


def something_foreign_without_meta_properties(folder: Path) -> tuple[list[str], str]:
    photos = folder / "home" / "photos-2023"
    photos.mkdir(parents=True)
    (photos / "letter.tmp").write_text("Dear")
    (photos / "1.jpg").write_bytes(bytes(100))
    return ["--data", f"{folder}/home"], "has no meta.properties and is not empty (photos-2023)"


def a_further_directory_with_something_foreign(folder: Path) -> tuple[list[str], str]:
    (folder / "home").mkdir()
    (folder / "home" / "letter.txt").write_text("Dear")
    return ["--set", f"log.dirs={folder}/d,{folder}/home"], "has no meta.properties and is not empty (letter.txt)"


def a_directory_of_kafka_under_another_id(folder: Path) -> tuple[list[str], str]:
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return ["--data", f"{folder}/data", "--set", "node.id=5"], "belongs to node 1, this is node 5"


def a_directory_of_another_cluster(folder: Path) -> tuple[list[str], str]:
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    words = ["--set", f"log.dirs={folder}/data", "--set", f"coordination.path={folder}/d/coordination.sqlite"]
    return words, "belongs to cluster AAAAAAAAAAAAAAAAAAAAAQ, this broker to cluster"


def a_setting_that_cannot_be(folder: Path) -> tuple[list[str], str]:
    return ["--data", f"{folder}/new", "--set", "num.partitions=x"], "num.partitions"


def a_copied_folder_and_no_tree(folder: Path) -> tuple[list[str], str]:
    shutil.copytree(folder / "d", folder / "lost")
    for path in (folder / "lost").glob("coordination.sqlite*"):
        path.unlink()
    shutil.copytree(folder / "lost" / "orders-0", folder / "lost" / "orders-20231122")
    return ["--data", f"{folder}/lost"], "/lost/orders-20231122 would give topic orders 20231123 partitions"


CASES: list[Case] = [
    a_copied_folder_and_no_tree,
    wrong_node,
    an_edited_node_id,
    a_new_tree_elsewhere,
    a_port_in_use,
    the_directory_and_a_copy,
    a_second_tree,
    a_partition_in_two_directories,
    something_foreign_without_meta_properties,
    a_further_directory_with_something_foreign,
    a_directory_of_kafka_under_another_id,
    a_directory_of_another_cluster,
    a_setting_that_cannot_be,
]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("left", ["stopped", "killed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_refused_start_changes_nothing(
    case: Case, left: str, images: dict[str, Path], tmp_path: Path, taken_port: int
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images[left], folder)
    words, sentence = case(folder)
    before = state(folder)
    port = taken_port if case is a_port_in_use else 0
    refused = start(*words, listeners=f"PLAINTEXT://127.0.0.1:{port}")
    assert refused.returncode in (1, 2), refused.stderr
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
    assert state(folder) == before
    check_all_is_served(folder)


def _damage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 damaged\n")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("meta.properties", "meta.properties"),
        ("replication-offset-checkpoint", "replication-offset-checkpoint"),
        ("coordination.sqlite", "coordination.sqlite"),
        ("orders-0/partition.metadata", "partition.metadata"),
        ("orders-0/leader-epoch-checkpoint", "leader-epoch-checkpoint"),
    ],
)
def test_a_damaged_file_is_refused_and_all_is_served_when_it_is_restored(
    name: str, sentence: str, images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["stopped"], folder)
    _damage(folder / "d" / name)
    before = state(folder)
    refused = start("--data", f"{folder}/d")
    assert (refused.returncode, sentence in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)
    assert state(folder) == before
    shutil.copy(images["stopped"] / "d" / name, folder / "d" / name)
    check_all_is_served(folder)


@pytest.mark.parametrize("left", ["stopped", "killed"])
def test_logs_without_meta_properties_are_served_when_the_operator_says_so(
    left: str, images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images[left], folder)
    (folder / "d" / "meta.properties").unlink()
    before = state(folder)
    refused = start("--data", f"{folder}/d")
    assert refused.returncode == 1
    assert "no meta.properties, but logs of 4 topics (__consumer_offsets, invoices, letters, orders)" in refused.stderr
    assert state(folder) == before
    process = Process(folder / "d", words=["--adopt"])
    assert Client(process.port).values("orders", 1) == [b"orders 1"]
    process.end()
    check_all_is_served(folder)


def test_what_no_client_can_be_told_of(tmp_path: Path) -> None:
    """Until 2026-11-30 such a path ended the start with a traceback, and such a rack each answer that names it."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    refused = start("--data", odd)
    assert (refused.returncode, "log.dirs: its value is no text in UTF-8" in refused.stderr) == (2, True)
    refused = start("--data", str(tmp_path / "d"), "--set", "broker.rack=" + os.fsdecode(b"\xff"))
    assert (refused.returncode, "broker.rack: its value is no text" in refused.stderr) == (2, True)
    assert not os.listdir(tmp_path)


def test_a_start_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    """Until 2026-11-30 it ended with a traceback."""
    command = f"mkdir {tmp_path}/f && cd {tmp_path}/f && rmdir {tmp_path}/f && {sys.executable} -m barnabas start"
    refused = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=200)
    assert refused.returncode == 1
    assert refused.stderr.startswith("barnabas: the folder in which this was started is gone")
    assert refused.stderr.count("\n") == 1


def test_data_that_a_running_broker_uses(tmp_path: Path) -> None:
    fill(tmp_path, signal.SIGTERM)
    process = Process(tmp_path / "d", settings={"coordination.session.timeout.ms": "60000"})
    process.pause(tmp_path / "d" / "coordination.sqlite")  # so that it changes nothing meanwhile
    try:
        before = state(tmp_path)
        refused = start("--data", f"{tmp_path}/d")
        assert refused.returncode == 1
        assert "Another broker uses the data directory" in refused.stderr
        other = start("--data", f"{tmp_path}/new", "--set", f"coordination.path={tmp_path}/d/coordination.sqlite")
        assert other.returncode == 1
        assert "A broker with id 0 is running already in this cluster" in other.stderr
        assert state(tmp_path) == before
    finally:
        os.kill(process.process.pid, signal.SIGCONT)
        process.end()
    check_all_is_served(tmp_path)


def test_of_two_that_start_at_once_on_a_new_directory_one_serves(tmp_path: Path) -> None:
    both = [Process(tmp_path / "d", wait=False) for _ in range(2)]
    lines = [process.process.stdout.readline() for process in both if process.process.stdout]
    assert sorted(map(bool, lines)) == [False, True], "the other has ended"
    (loser,) = [process for process, line in zip(both, lines) if not line]
    assert loser.process.wait(200) == 1
    said = (tmp_path / "d.log").read_text()
    assert "Another broker uses the data directory" in said or "was changed while this broker started" in said
    assert "Traceback" not in said
    for process in both:
        process.end()
    Process(tmp_path / "d").end()


# ------------------------------------------------------------------ a tree that does not know the topics


def forget_topics(tree: Path, *topics: str) -> None:
    """Remove topics from the tree, as if it were an older copy."""
    with sqlite3.connect(tree) as connection:
        for topic in topics:
            path = f"/brokers/topics/{topic}"
            connection.execute("DELETE FROM node WHERE parent = '/brokers/topics' AND name = ?", (topic,))
            connection.execute("DELETE FROM node WHERE parent = ? OR parent LIKE ?", (path, f"{path}/%"))
        connection.execute(
            "UPDATE node SET num_children = num_children - ? WHERE parent = '/brokers' AND name = 'topics'",
            (len(topics),),
        )
    connection.close()


@pytest.mark.parametrize("left", ["stopped", "killed"])
def test_a_tree_that_knows_few_of_the_topics_is_a_reason_to_ask(
    left: str, images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images[left], folder)
    forget_topics(folder / "d" / "coordination.sqlite", "orders", "letters")
    before = state(folder)
    refused = start("--data", f"{folder}/d")
    assert refused.returncode == 1
    assert "The tree knows 2 of the 4 topics that have logs in" in refused.stderr
    assert "not letters, orders" in refused.stderr
    assert state(folder) == before

    shutil.copytree(folder, tmp_path / "aside")
    aside = tmp_path / "aside" / "d"
    Process(aside, words=["--set-aside"]).end()
    names = [path.name for path in aside.iterdir()]
    assert len([name for name in names if name.startswith(("orders-", "letters-")) and name.endswith("-stray")]) == 4
    assert not {"orders-0", "orders-1", "letters-0", "letters-1"} & set(names)
    assert {"invoices-0", "invoices-1"} <= set(names)

    Process(folder / "d", words=["--adopt"]).end()
    check_all_is_served(folder)


def test_a_tree_that_does_not_know_the_offsets_topic_is_a_reason_to_ask(
    images: dict[str, Path], tmp_path: Path
) -> None:
    """Nobody deletes that topic: set aside without a question, every group would lose its position."""
    folder = tmp_path / "all"
    shutil.copytree(images["killed"], folder)
    forget_topics(folder / "d" / "coordination.sqlite", "__consumer_offsets")
    before = state(folder)
    refused = start("--data", f"{folder}/d")
    assert refused.returncode == 1
    assert "The tree knows 3 of the 4 topics that have logs in" in refused.stderr
    assert "not __consumer_offsets" in refused.stderr
    assert state(folder) == before
    Process(folder / "d", words=["--adopt"]).end()
    assert not list((folder / "d").glob("__consumer_offsets-*-stray"))
    check_all_is_served(folder)


def test_one_stray_among_topics_that_are_known_is_set_aside(images: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(images["killed"], tmp_path / "all")
    data = tmp_path / "all" / "d"
    forget_topics(data / "coordination.sqlite", "orders")
    process = Process(data)
    assert Client(process.port).values("letters", 0) == [b"letters 0"]
    said = forked.barnabas("doctor", "--bootstrap", f"127.0.0.1:{process.port}").stdout
    process.end()
    strays = sorted(path.name for path in data.glob("orders-*-stray"))
    assert len(strays) == 2
    assert f"2 folders of logs that were set aside: {', '.join(strays)}" in said


def test_a_directory_comes_back_with_a_topic_that_was_made_again_elsewhere(tmp_path: Path) -> None:
    """It was given up, and its folder has the topic's old id: it is set aside. Such starts were once refused."""
    old, new = tmp_path / "old", tmp_path / "new"

    def run(deed: Callable[[Client], None], *directories: Path, words: Sequence[str] = ()) -> None:
        process = Process(new, settings={"log.dirs": ",".join(map(str, directories))}, words=words)
        deed(Client(process.port))
        process.end()

    def write(client: Client) -> None:
        assert client.create_topic("orders", 2) == 0
        assert [client.produce("orders", index, batch([b"first"])).error_code for index in range(2)] == [0, 0]

    def write_again(client: Client) -> None:
        deleted = client.ask(ApiKey.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=["orders"], timeout_ms=20_000))
        assert deleted.responses[0].error_code == 0
        assert client.create_topic("orders", 2) == 0
        assert [client.produce("orders", index, batch([b"second"])).error_code for index in range(2)] == [0, 0]

    run(write, new, old)
    assert len(list(old.glob("orders-?"))) == 1
    run(write_again, new, words=["--give-up", str(old)])
    run(lambda client: check_values(client, [b"second"]), new, old)
    assert len(list(old.glob("orders-?.*-stray"))) == 1


def check_values(client: Client, values: list[bytes]) -> None:
    assert [client.values("orders", index) for index in range(2)] == [values] * 2


def test_a_log_that_cannot_be_opened_refuses_the_start_before_strays_are_renamed(
    images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["stopped"], folder)
    forget_topics(folder / "d" / "coordination.sqlite", "orders")
    segment = folder / "d" / "letters-0" / f"{0:020}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:16] + b"\x01" + whole[17:])  # a batch of an older format
    before = state(folder)
    refused = start("--data", f"{folder}/d")
    assert refused.returncode == 1
    assert str(segment) in refused.stderr
    # The tree has had a session: which topics have which settings must be known to open a log.
    assert set(changes(before, state(folder))) <= {"d", "d/coordination.sqlite", "d/coordination.sqlite.newest"}
    segment.write_bytes(whole)
    Process(folder / "d", words=["--adopt"]).end()
    check_all_is_served(folder)


# ------------------------------------------------------------------ what is not ours in a directory of ours


def test_foreign_files_in_a_directory_of_ours_stay_as_they_are(images: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["killed"], folder)
    data = folder / "d"
    foreign = {
        "photos-2023/letter.tmp": b"Dear",
        "photos-2023/old.deleted": b"x",
        "invoices.0123456789abcdef0123456789abcdef-delete/keep.txt": b"mine",
        "backup.tmp": b"y",
        "orders-0/notes.tmp": b"z",
        "orders-0/notes.log": b"z",
        "lost+found/inode": b"",
    }
    for name, content in foreign.items():
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_bytes(content)
    (data / "empty-7").mkdir()
    check_all_is_served(folder)
    assert {name: (data / name).read_bytes() for name in foreign} == foreign
    assert (data / "empty-7").is_dir()
    said = (folder / "d.log").read_text()
    assert said.count("holds files that no broker has made") == 1
    assert "photos-2023" in said
    process = Process(data)
    topics = {path.name for path in data.iterdir() if path.is_dir()}
    assert "photos-0" not in topics
    process.end()


def delete_topic(client: Client, name: str) -> None:
    topics = [DeleteTopicsRequest.DeleteTopicState(name=name)]
    response = client.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=topics, timeout_ms=20_000))
    assert response.responses[0].error_code == 0


def test_a_topic_of_the_name_of_a_foreign_folder_is_not_made_in_it(images: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["stopped"], folder)
    photos = folder / "d" / "photos-0"
    photos.mkdir()
    (photos / "letter.txt").write_text("Dear")
    process = Process(folder / "d")
    client = Client(process.port)
    client.create_topic("photos", 1)
    assert client.produce("photos", 0, batch([b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert list(photos.iterdir()) == [photos / "letter.txt"]
    delete_topic(client, "photos")
    process.end()
    check_all_is_served(folder)
    assert list(photos.iterdir()) == [photos / "letter.txt"]
    assert "it is no log, and holds letter.txt: move it away" in (folder / "d.log").read_text()


def test_deleting_a_topic_removes_no_file_that_is_not_ours(images: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["stopped"], folder)
    data = folder / "d"
    process = Process(data)
    client = Client(process.port)
    assert client.create_topic("drafts", 2, file_delete_delay_ms="0") == 0
    (data / "drafts-1" / "notes.txt").write_text("mine")
    delete_topic(client, "drafts")
    deadline = time.monotonic() + 200
    while list(data.glob("drafts-0*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.end()
    for _ in range(2):
        assert [path.read_text() for path in data.glob("drafts-1.*-delete/notes.txt")] == ["mine"]
        process = Process(data)
        process.end()
    assert "because no broker made what is in it: notes.txt" in (folder / "d.log").read_text()


def test_the_folder_of_a_deleted_log_that_cannot_be_removed_hinders_no_start(
    images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["stopped"], folder)
    process = Process(folder / "d")
    assert Client(process.port).create_topic("drafts", 1) == 0
    process.end()
    (folder / "d" / "drafts-0").rename(folder / "another disk")
    (folder / "d" / "drafts-0").symlink_to(folder / "another disk")
    process = Process(folder / "d")
    delete_topic(Client(process.port), "drafts")
    process.end()
    check_all_is_served(folder)


# ------------------------------------------------------------------ several directories


def test_a_directory_that_log_dirs_leaves_out_is_offline_until_it_is_back(
    images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["two"], folder)
    # The directories may be moved together, because their ids are remembered, not their paths.
    both = f"{folder}/d,{folder}/e"
    tree_in = next(name for name in "de" if (folder / name / "coordination.sqlite").exists())
    kept, left_out = tree_in, {"d": "e", "e": "d"}[tree_in]
    offline = {path.name for path in (folder / left_out).iterdir() if (path / "partition.metadata").exists()}
    assert offline
    before = state(folder)
    refused = start("--set", f"log.dirs={folder}/{left_out}")
    assert refused.returncode == 1
    assert "The coordination is new, and the data directory" in refused.stderr, "the tree is in the other one"
    assert state(folder) == before

    process = Process(folder / "d", settings={"log.dirs": f"{folder}/{kept}"})
    client = Client(process.port)
    for topic in TOPICS:
        for index in range(2):
            name = f"{topic}-{index}"
            error = client.produce(topic, index, batch([b"x"])).error_code
            assert (error in (6, 56)) == (name in offline), name
            assert not (folder / kept / name).exists() or name not in offline
    results = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None)).results
    assert {result.log_dir.rpartition("/")[2]: result.error_code for result in results} == {kept: 0, left_out: 56}
    process.end()
    assert "log.dirs does not name it" in (folder / "d.log").read_text()

    process = Process(folder / "d", settings={"log.dirs": both})
    client = Client(process.port)
    for name in sorted(offline):
        topic, _, index = name.rpartition("-")
        assert client.values(topic, int(index)) == [f"{topic} {index}".encode()]
        assert client.produce(topic, int(index), batch([b"more"])).base_offset == 1
    process.end()


def test_the_order_of_log_dirs_means_nothing(images: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["two"], folder)
    check_all_is_served(folder, f"{folder}/e,{folder}/d")
    assert not ((folder / "d" / "coordination.sqlite").exists() and (folder / "e" / "coordination.sqlite").exists())


def test_a_directory_whose_disk_is_not_mounted_is_not_formatted_until_it_is_given_up(
    images: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["two"], folder)
    both = f"{folder}/d,{folder}/e"
    Process(folder / "d", settings={"log.dirs": both}).end()  # it remembers where they are now
    (folder / "e").rename(folder / "unmounted")
    (folder / "e").mkdir()
    process = Process(folder / "d", settings={"log.dirs": both})
    assert list((folder / "e").iterdir()) == []
    lost = sorted(path.name for path in (folder / "unmounted").iterdir() if (path / "partition.metadata").exists())
    topic, _, index = lost[0].rpartition("-")
    assert Client(process.port).produce(topic, int(index), batch([b"x"])).error_code in (6, 56)
    process.end()
    assert "Mount its disk" in (folder / "d.log").read_text()

    process = Process(folder / "d", settings={"log.dirs": both}, words=["--give-up", f"{folder}/e"])
    assert Client(process.port).produce(topic, int(index), batch([b"x"])).base_offset == 0
    process.end()
    Process(folder / "d", settings={"log.dirs": both}).end()
    assert (folder / "e" / "meta.properties").exists()


@pytest.mark.parametrize("by", ["id", "name"])
def test_a_directory_that_is_lost_for_good_is_given_up(
    by: str, images: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(images["two"], folder)
    Process(
        folder / "d", settings={"log.dirs": f"{folder}/d,{folder}/e"}
    ).end()  # they are remembered where they are now
    lines = (folder / "d" / "meta.properties").read_text().splitlines()
    (other,) = [line.partition("=")[0].removeprefix("barnabas.directory.") for line in lines if "barnabas." in line]
    lost = sorted(path.name for path in (folder / "e").iterdir() if (path / "partition.metadata").exists())
    topic, _, index = lost[0].rpartition("-")
    shutil.rmtree(folder / "e")
    monkeypatch.chdir(folder)
    process = Process(folder / "d", words=["--give-up", other if by == "id" else "e", "--give-up", "typo"])
    assert Client(process.port).produce(topic, int(index), batch([b"x"])).base_offset == 0
    process.end()
    assert other not in (folder / "d" / "meta.properties").read_text()
    said = (folder / "d.log").read_text()
    assert "is given up: the partitions that were in it begin empty" in said
    assert f"there is nothing to give up: no data directory {folder}/typo is missing" in said
    Process(folder / "d").end()
    assert "offline" not in (folder / "d.log").read_text()


def test_new_directories_where_the_tree_has_partitions_of_this_broker_are_a_reason_to_ask(tmp_path: Path) -> None:
    tree = {"coordination.path": f"{tmp_path}/tree.sqlite"}
    process = Process(tmp_path / "d", settings=tree)
    assert Client(process.port).create_topic("t", 3) == 0
    process.end()
    (tmp_path / "d").rename(tmp_path / "unmounted")
    (tmp_path / "d").mkdir()
    refused = start("--data", f"{tmp_path}/d", "--set", f"coordination.path={tmp_path}/tree.sqlite")
    assert refused.returncode == 1
    assert "The tree says that node 0 has 4 partitions, and its data directories are new" in refused.stderr
    assert list((tmp_path / "d").iterdir()) == []
    process = Process(tmp_path / "d", settings=tree, words=["--give-up", f"{tmp_path}/d"])
    assert Client(process.port).produce("t", 0, batch([b"x"])).base_offset == 0
    process.end()


def test_a_mistyped_place_of_the_tree_makes_no_other_tree(tmp_path: Path) -> None:
    tree = f"{tmp_path}/trees/mine.sqlite"
    settings = {"coordination.path": tree, "log.dirs": f"{tmp_path}/d"}
    process = Process(tmp_path / "d", settings=settings)
    client = Client(process.port)
    assert client.create_topic("orders", 1, retention_ms="86400000") == 0
    assert client.produce("orders", 0, batch([b"one"])).error_code == 0
    process.end()
    before = state(tmp_path)
    for words in ([], ["--set", f"coordination.path={tmp_path}/trees/mime.sqlite"]):
        ended = start("--data", f"{tmp_path}/d", *words)
        assert ended.returncode == 1
        assert f"Start with --set coordination.path={tree}" in ended.stderr
        assert changes(before, state(tmp_path)) == []
    process = Process(tmp_path / "d", settings=settings)
    assert Client(process.port).values("orders", 0) == [b"one"]
    process.end()
    moved = f"{tmp_path}/trees/moved.sqlite"
    Path(tree).rename(moved)
    process = Process(tmp_path / "d", settings=settings | {"coordination.path": moved})
    assert Client(process.port).values("orders", 0) == [b"one"]
    process.end()


def test_a_lost_tree_that_other_brokers_may_share_is_a_reason_to_ask(tmp_path: Path) -> None:
    settings = {"coordination.path": f"{tmp_path}/tree.sqlite"}
    process = Process(tmp_path / "d", settings=settings)
    client = Client(process.port)
    assert client.create_topic("orders", 1) == 0
    assert client.produce("orders", 0, batch([b"one"])).error_code == 0
    process.end()
    for path in tmp_path.glob("tree.sqlite*"):
        path.unlink()
    before = state(tmp_path)
    ended = start("--data", f"{tmp_path}/d", "--set", f"coordination.path={tmp_path}/tree.sqlite")
    assert ended.returncode == 1
    assert f"its coordination tree {tmp_path}/tree.sqlite is new or lost" in ended.stderr
    assert changes(before, state(tmp_path)) == []
    process = Process(tmp_path / "d", settings=settings, words=["--adopt"])
    assert Client(process.port).values("orders", 0) == [b"one"]
    process.end()
    process = Process(tmp_path / "d", settings=settings)
    assert Client(process.port).values("orders", 0) == [b"one"]
    process.end()


def test_a_tree_of_another_name_in_a_data_directory_is_not_foreign(tmp_path: Path) -> None:
    tree = {"coordination.path": f"{tmp_path}/d/tree.sqlite"}
    Process(tmp_path / "d", settings=tree).end(signal.SIGKILL)
    (tmp_path / "d" / "meta.properties").unlink()  # as when it was killed before it was written
    for topic in (tmp_path / "d").glob("__consumer_offsets-*"):
        shutil.rmtree(topic)
    for name in (tmp_path / "d").glob("*-checkpoint"):
        name.unlink()
    refused = start("--data", f"{tmp_path}/d", "--set", f"coordination.path={tmp_path}/d/tree.sqlite")
    assert "and its data directories are new" in refused.stderr, "the tree is no reason to call the directory used"
    Process(tmp_path / "d", settings=tree, words=["--give-up", f"{tmp_path}/d"]).end()
    assert "no broker's" not in (tmp_path / "d.log").read_text()
