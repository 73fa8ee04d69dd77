import errno
from itertools import pairwise

import pytest
from barnabas.protocol import uuids
from barnabas.storage.directory_contents import DataDirectoryError
from barnabas.storage.directory_plan import Stray
from barnabas.storage.log_manager import LogManager
from simulator.clock import PIECES_PER_PASS


def text(world, path):
    file = world.disk.open(path)
    return file.read(0, file.size()).decode()


def test_a_clean_stop_leaves_what_kafka_leaves(world):
    manager = world.open()
    manager.initialise(4, "AAAAAAAAAAAAAAAAAAAAAQ")
    log = world.log("orders", segment_bytes=1000)
    world.fill(log, 20)
    log.delete_records_before(3)
    world.manager.shutdown()
    assert text(world, "/data/recovery-point-offset-checkpoint") == "0\n1\norders 0 20\n"
    assert text(world, "/data/replication-offset-checkpoint") == "0\n1\norders 0 20\n"
    assert text(world, "/data/log-start-offset-checkpoint") == "0\n1\norders 0 3\n"
    assert text(world, "/data/.kafka_cleanshutdown") == '{"version":0,"brokerEpoch":-1}'
    assert text(world, "/data/orders-0/leader-epoch-checkpoint") == "0\n1\n0 3\n"
    assert (
        text(world, "/data/orders-0/partition.metadata")
        == f"version: 0\ntopic_id: {uuids.to_text(bytes(15) + bytes([7]))}"
    )
    meta = dict(line.split("=") for line in text(world, "/data/meta.properties").split())
    assert (meta["version"], meta["node.id"], meta["cluster.id"]) == ("1", "4", "AAAAAAAAAAAAAAAAAAAAAQ")
    assert len(uuids.from_text(meta["directory.id"])) == 16
    assert "00000000000000000020.snapshot" in world.disk.list_directory("/data/orders-0")

    log = world.open().get("orders", 0)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 20, 20)
    assert world.manager.meta.node_id == 4
    assert not world.disk.exists("/data/.kafka_cleanshutdown")


def test_the_marker_says_whether_the_last_stop_was_clean(world):
    world.fill(world.log(), 1)
    assert world.restart().was_clean
    world.disk.crash("kept")
    assert not world.open().was_clean


class Names(list):
    """The names in a directory. Counts how often somebody goes through them all to find one."""

    searched = 0

    def __contains__(self, name):
        Names.searched += 1
        return super().__contains__(name)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_does_not_search_all_names_for_each_log(world, monkeypatch, is_clean):
    """With 10,000 partitions on disk these searches took more than half of a start."""
    for number in range(50):
        world.fill(world.log(f"topic-{number}"), 1)
    if is_clean:
        world.manager.shutdown()
    else:
        world.disk.crash("kept")
    list_directory = world.disk.list_directory
    monkeypatch.setattr(
        world.disk, "list_directory", lambda path: (Names if path == "/data" else list)(list_directory(path))
    )
    monkeypatch.setattr(Names, "searched", 0)
    manager = world.open()
    assert manager.was_clean is is_clean
    assert len(manager.all()) == 50
    assert Names.searched < 25


def test_a_second_broker_is_refused_with_advice(world):
    world.open()
    with pytest.raises(DataDirectoryError, match=r"Another broker uses the data directory /data .*Stop that one"):
        world.open()


@pytest.mark.parametrize(("node_id", "cluster_id", "words"), [(2, "c", "belongs to node 1"), (1, "d", "to cluster c")])
def test_the_directory_of_another_is_refused_with_advice(world, node_id, cluster_id, words):
    world.open().initialise(1, "c")
    world.restart().initialise(1, "c")
    manager = world.restart()
    with pytest.raises(DataDirectoryError, match=words):
        manager.initialise(node_id, cluster_id)


def test_version_0_of_meta_properties_is_accepted(world):
    world.disk.make_directory("/data")
    world.disk.open("/data/meta.properties", create=True).write(
        0, b"#\n#Sat Nov 21 09:27:27 UTC 2026\nversion=0\nbroker.id=3\ncluster.id=abc\n"
    )
    manager = world.open()
    assert (manager.meta.node_id, manager.meta.cluster_id, manager.meta.directory_id) == (3, "abc", None)
    manager.initialise(3, "abc")
    assert "version=0\nbroker.id=3\n" in text(world, "/data/meta.properties"), "Kafka can take it back"


@pytest.mark.parametrize("content", [b"version=9\nnode.id=1\n", b"version=1\nnode.id=x\n", b"what\n"])
def test_meta_properties_that_cannot_be_read_are_refused(world, content):
    world.disk.make_directory("/data")
    world.disk.open("/data/meta.properties", create=True).write(0, content)
    with pytest.raises(DataDirectoryError, match=r"meta\.properties"):
        world.open()


def test_a_file_in_the_place_of_the_directory_is_refused(world):
    world.disk.open("/data", create=True)
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        world.open()


def test_deleting_a_log_renames_its_folder_and_removes_it_later(world):
    log = world.log("t", file_delete_delay_ms=60_000)
    world.fill(log, 3)
    world.manager.delete("t", 0)
    world.manager.delete("t", 0)
    assert world.manager.get("t", 0) is None
    assert world.append(log, (b"k", b"v")).error == 56
    names = [name for name in world.disk.list_directory("/data") if name.startswith("t-0")]
    assert len(names) == 1
    assert names[0].endswith("-delete")
    again = world.log("t")
    assert again.log_end_offset == 0
    world.clock.advance(60_000)
    assert [name for name in world.disk.list_directory("/data") if name.startswith("t-0")] == ["t-0"]


def test_long_topic_names_are_shortened_for_the_folder_that_is_deleted(world):
    topic = "x" * 249
    world.log(topic)
    world.manager.delete(topic, 0)
    name = next(name for name in world.disk.list_directory("/data") if name.endswith("-delete"))
    assert len(name) == 255


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_start(world):
    world.log("t")
    world.manager.delete("t", 0)
    world.crash("kept")
    assert world.manager.all() == []
    assert not [name for name in world.disk.list_directory("/data") if name.endswith("-delete")]


def test_checkpoints_of_a_deleted_log_do_not_speak_of_its_successor(world, read):
    log = world.log("t")
    world.fill(log, 50)
    log.delete_records_before(40)
    log.flush()
    world.manager.checkpoint()
    world.manager.delete("t", 0)
    log = world.log("t", segment_bytes=1000)
    world.fill(log, 30)
    damaged = log.segments[1]
    world.disk.open(damaged.path).write(70, b"damage")
    log = world.crash("kept").get("t", 0)
    assert (log.log_start_offset, log.log_end_offset) == (0, damaged.base_offset)


def test_topic_settings_reach_the_logs(world):
    log, other = world.log("t"), world.log("other")
    assert log.config is other.config
    world.topics["t"] = {"retention.ms": "5"}
    world.manager.update_topic_config("t")
    assert (log.config.retention_ms, other.config.retention_ms) == (5, 604_800_000)
    world.broker.set_dynamic({"log.retention.ms": "9"}, {})
    assert (log.config.retention_ms, other.config.retention_ms) == (5, 9)


def test_the_upkeep_writes_checkpoints_and_deletes_what_is_old(world):
    log = world.log("t", segment_bytes=1000, retention_ms=400_000)
    world.fill(log, 30)
    world.clock.advance(5_000)
    assert "t 0 30" in text(world, "/data/replication-offset-checkpoint")
    log.flush()
    world.clock.advance(60_000)
    assert "t 0 30" in text(world, "/data/recovery-point-offset-checkpoint")
    world.clock.advance(600_000)
    assert log.log_start_offset == 30


def test_other_folders_and_files_are_left_alone(world):
    world.disk.make_directory("/data/lost+found")
    world.disk.make_directory("/data/__cluster_metadata-0")
    world.disk.open("/data/coordination-1", create=True)
    manager = world.open()
    assert manager.all() == []
    manager.shutdown()
    assert {"lost+found", "__cluster_metadata-0", "coordination-1"} <= set(world.disk.list_directory("/data"))


def test_a_stop_without_a_start_does_no_harm(world):
    LogManager(world.env, "/data", world.broker, lambda topic: {}).shutdown()
    assert not world.disk.exists("/data/.kafka_cleanshutdown")


def test_the_memory_of_indexes_nobody_reads_is_given_back(world, read):
    log = world.log("t", segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)
    world.fill(log, 30)
    first = log.segments[0]
    assert len(first.offset_index) > 0
    world.manager.apply_retention()
    world.manager.apply_retention()
    assert len(first.offset_index) == 0
    assert len(read(log)) == 30
    assert len(first.offset_index) > 0


def test_folders_of_many_topics_that_were_deleted_together_go_in_pieces(world):
    count = 3 * PIECES_PER_PASS
    for number in range(count):
        world.log(f"t{number}", file_delete_delay_ms=1_000)
    for number in range(count):
        world.manager.delete(f"t{number}", 0)
    clock = world.env.clock
    left = []

    def look():
        left.append(sum(name.endswith("-delete") for name in world.disk.list_directory("/data")))
        if left[-1]:
            clock.call_soon(look)

    clock.advance(999)
    clock.call_later(1, look)
    clock.advance(2)
    assert (left[0], left[-1]) == (count, 0)
    assert max(before - after for before, after in pairwise(left)) <= PIECES_PER_PASS


@pytest.mark.parametrize("then", ["made while it fails", "made when it can be renamed", "after a start"])
def test_a_folder_of_a_former_topic_that_cannot_be_renamed_is_not_the_log_of_the_new_one(world, read, then):
    world.append(world.log(), (b"k", b"former"))
    world.manager.shutdown()

    def refuse(operation, path):
        if operation == "rename" and path == "/data/t-0":
            raise PermissionError(errno.EPERM, "Operation not permitted", path)

    def start_without_it():
        world.manager = LogManager(world.env, "/data", world.broker, lambda topic: {})
        world.manager.open()
        strays = [Stray("/data", "t", 0)]
        world.manager.leave_out(strays)
        world.manager.take()
        world.manager.set_aside(strays)
        world.manager.start()

    world.disk.on_change = refuse
    start_without_it()
    if then == "made while it fails":
        with pytest.raises(PermissionError):
            world.manager.get_or_create("t", 0, bytes(15) + b"\x08")
        assert world.disk.list_directory("/data/t-0")
    world.disk.on_change = lambda operation, path: None
    if then == "after a start":
        world.manager.shutdown()
        start_without_it()
    log = world.manager.get_or_create("t", 0, bytes(15) + b"\x08")
    assert (log.topic_id, read(log)) == (bytes(15) + b"\x08", [])
    assert [name for name in world.disk.list_directory("/data") if name.endswith("-stray")]
    world.append(log, (b"k", b"new"))
    assert read(world.restart().get("t", 0)) == [(0, b"k", b"new")]
