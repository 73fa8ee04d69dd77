"""log.dirs with several directories: what goes where, what is refused, and what one lost disk takes with it."""

import errno

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.storage.checkpoints import TREE_MARK, TreeKnowledge, write_numbers
from barnabas.storage.directory_contents import DataDirectoryError


@pytest.fixture
def disks(make_world):
    world = make_world()
    world.directories = ["/a", "/b"]
    return world


def text(world, path):
    file = world.disk.open(path)
    return file.read(0, file.size()).decode()


def write(world, path, content):
    world.disk.make_directory(path.rpartition("/")[0])
    file = world.disk.open(path, create=True)
    file.truncate(0)
    file.write(0, content.encode())


def meta(world, directory):
    return dict(line.split("=") for line in text(world, f"{directory}/meta.properties").split())


def places(manager):
    return {directory.path: [topic for topic, _ in directory.logs] for directory in manager.directories}


def test_a_new_log_goes_where_the_fewest_are_and_stays_there(disks, read):
    for number, topic in enumerate("tuvwx"):
        disks.fill(disks.log(topic), number + 1)
    homes = {"/a": ["t", "v", "x"], "/b": ["u", "w"]}
    assert places(disks.manager) == homes
    disks.manager.delete("t", 0)
    disks.manager.delete("v", 0)
    disks.fill(disks.log("y"), 9)
    homes = {"/a": ["x", "y"], "/b": ["u", "w"]}
    assert places(disks.manager) == homes
    disks.restart()
    assert places(disks.manager) == homes
    assert {log.topic: len(read(log)) for log in disks.manager.all()} == {"x": 5, "y": 9, "u": 2, "w": 4}


def test_each_directory_has_its_own_files(disks):
    disks.open().initialise(4, "cluster")
    first, second = meta(disks, "/a"), meta(disks, "/b")
    ids = first.pop("directory.id"), second.pop("directory.id")
    assert ids[0] != ids[1]
    assert first.pop(f"barnabas.directory.{ids[1]}") == "/b", "each remembers the other"
    assert second.pop(f"barnabas.directory.{ids[0]}") == "/a"
    assert first == second == {"version": "1", "node.id": "4", "cluster.id": "cluster"}
    disks.fill(disks.log("t"), 3)
    disks.fill(disks.log("u"), 5)
    disks.clock.advance(60_000)
    for name in ("recovery-point", "replication"):
        assert disks.disk.exists(f"/b/{name}-offset-checkpoint"), "the upkeep writes them"
    disks.manager.shutdown()
    for name in ("recovery-point", "replication"):
        assert text(disks, f"/a/{name}-offset-checkpoint") == "0\n1\nt 0 3\n"
        assert text(disks, f"/b/{name}-offset-checkpoint") == "0\n1\nu 0 5\n"
    assert disks.disk.exists("/a/.kafka_cleanshutdown")
    assert disks.disk.exists("/b/.kafka_cleanshutdown")
    disks.open()
    assert disks.manager.meta.node_id == 4
    assert disks.manager.was_clean
    assert not disks.disk.exists("/b/.kafka_cleanshutdown")


def test_a_directory_that_was_not_stopped_cleanly_is_recovered_alone(disks, read):
    disks.fill(disks.log("t"), 3)
    disks.fill(disks.log("u"), 5)
    disks.manager.shutdown()
    disks.disk.remove("/b/.kafka_cleanshutdown")
    file = disks.disk.open("/b/u-0/00000000000000000000.log")
    file.write(file.size() - 20, b"damage")
    disks.open()
    assert [directory.was_clean for directory in disks.manager.directories] == [True, False]
    assert not disks.manager.was_clean
    assert {log.topic: len(read(log)) for log in disks.manager.all()} == {"t": 3, "u": 4}


def test_compaction_goes_on_where_it_was_in_each_directory(disks):
    for topic in "tu":
        disks.topics[topic] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        log = disks.log(topic, segment_bytes=1000)
        disks.fill(log, 30)
        disks.manager.cleaner.run(log)
        disks.clock.advance(1)  # written without waiting for the disk
        dirty = log.segments[-1].base_offset
        assert text(disks, f"/{'ab'['tu'.index(topic)]}/cleaner-offset-checkpoint") == f"0\n1\n{topic} 0 {dirty}\n"
    disks.restart()
    assert disks.manager.cleaner.dirtiest() is None
    disks.manager.delete("t", 0)
    disks.clock.advance(1)
    assert text(disks, "/a/cleaner-offset-checkpoint") == "0\n0\n"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("version=1\nnode.id=1\n", "version=1\nnode.id=2\n", "/a belongs to node 1, /b to node 2"),
        (
            "version=0\nbroker.id=1\ncluster.id=c\n",
            "version=1\nnode.id=1\ncluster.id=d\n",
            "cluster c, /b to cluster d",
        ),
        ("version=1\ndirectory.id=x\n", "version=1\ndirectory.id=x\n", "/a and /b have the same directory.id x"),
    ],
)
def test_directories_that_do_not_belong_together_are_refused(disks, first, second, words):
    for directory, content in (("/a", first), ("/b", second)):
        write(disks, f"{directory}/meta.properties", content)
        write(disks, f"{directory}/.kafka_cleanshutdown", "")
        disks.disk.make_directory(f"{directory}/t-0.{'0' * 32}-delete")
    with pytest.raises(DataDirectoryError, match=words):
        disks.open()
    assert not disks.disk.locks
    assert disks.disk.exists(f"/a/t-0.{'0' * 32}-delete")
    assert disks.disk.exists("/a/.kafka_cleanshutdown"), "nothing was touched"


def test_a_further_directory_of_another_node_is_refused(disks):
    disks.open().initialise(1, "c")
    disks.manager.shutdown()
    write(disks, "/b/meta.properties", "version=1\nnode.id=2\ncluster.id=c\n")
    disks.disk.remove("/a/meta.properties")
    with pytest.raises(DataDirectoryError, match="/b belongs to node 2, this is node 1"):
        disks.manager.open(1)


def test_a_partition_in_two_directories_is_refused(disks):
    disks.log("t")
    disks.manager.shutdown()
    write(disks, "/b/t-0/00000000000000000000.log", "")
    with pytest.raises(DataDirectoryError, match=r"t-0 is in two data directories, /a/t-0 and /b/t-0\. Keep"):
        disks.open()
    assert disks.disk.exists("/a/.kafka_cleanshutdown"), "nothing was touched"
    disks.disk.remove_tree("/b/t-0")
    assert disks.open().was_clean


def test_a_directory_in_use_is_refused_and_the_others_are_let_go(disks):
    disks.disk.make_directory("/b")
    lock = disks.disk.lock("/b/.lock")
    with pytest.raises(DataDirectoryError, match="Another broker uses the data directory /b"):
        disks.open()
    lock.release()
    disks.open()


@pytest.mark.parametrize("broken", ["list", "read", "sync_directory"])
def test_the_others_serve_when_one_directory_does_not_work_at_the_start(disks, read, caplog, broken):
    disks.fill(disks.log("t"), 3)
    disks.fill(disks.log("u"), 5)
    disks.manager.shutdown()
    disks.disk.fail(broken, "/b", times=1000)
    manager = disks.open()
    assert "The data directory /b cannot be used: [Errno 5] simulated" in caplog.text
    assert places(manager) == {"/a": ["t"], "/b": []}
    assert len(read(manager.get("t", 0))) == 3
    with pytest.raises(OSError, match="it may be in a data directory that is offline: /b") as refused:
        manager.get_or_create("u", 0, None)
    assert refused.value.errno == errno.EIO
    manager.get_or_create("new", 0, None, is_new=True)
    assert places(manager) == {"/a": ["t", "new"], "/b": []}
    disks.clock.advance(600_000)
    manager.shutdown()
    disks.disk.repair()
    manager = disks.open()
    assert places(manager) == {"/a": ["new", "t"], "/b": ["u"]}
    assert len(read(manager.get("u", 0))) == 5


def test_without_any_directory_that_works_there_is_no_start(disks):
    for path in disks.directories:
        disks.disk.open(path, create=True)
    with pytest.raises(DataDirectoryError, match=r"/a cannot be used: .* The data directory /b cannot be used: "):
        disks.open()


def test_a_log_that_fails_takes_no_other_with_it(disks):
    logs = {topic: disks.log(topic) for topic in "tuv"}
    disks.disk.fail("sync", "/a/t-0/")
    disks.fill(logs["t"], 1)
    logs["t"].flush()
    assert logs["t"].failed is not None
    answers = {topic: disks.append(log, (b"k", b"v")).error for topic, log in logs.items()}
    assert answers == {"t": ErrorCode.KAFKA_STORAGE_ERROR, "u": ErrorCode.NONE, "v": ErrorCode.NONE}
    disks.manager.shutdown()
    assert not disks.disk.exists("/a/.kafka_cleanshutdown")
    assert disks.disk.exists("/b/.kafka_cleanshutdown")


def test_a_log_that_could_not_be_made_is_not_made_in_another_directory(disks):
    disks.open()
    disks.disk.fail("create", "/a/t-0/")
    with pytest.raises(OSError, match="simulated"):
        disks.log("t")
    assert disks.disk.is_directory("/a/t-0")
    disks.manager.directories[0].create("u", 0)
    assert disks.log("t").directory == "/a/t-0"


def test_a_log_whose_folder_is_there_is_made_though_another_directory_is_offline(disks):
    disks.open().initialise(1, "c")
    disks.manager.shutdown()
    disks.disk.make_directory("/a/t-0")  # a crash has left it empty
    disks.disk.fail("list", "/b", times=1000)
    disks.open()
    assert disks.log("t").directory == "/a/t-0"
    with pytest.raises(OSError, match="it may be in a data directory that is offline: /b"):
        disks.log("u")


def test_a_crash_does_not_bring_a_deleted_log_back_beside_its_successor(disks):
    disks.log("t")
    disks.manager.checkpoint()
    disks.disk.sync_directory("/a")
    disks.manager.delete("t", 0)
    disks.manager.directories[0].create("u", 0)
    assert disks.log("t").directory == "/b/t-0"
    disks.disk.sync_directory("/b")
    disks.crash("lost")
    assert "t" not in places(disks.manager)["/a"]
    assert disks.log("t").directory == "/b/t-0"


def test_a_folder_of_somebody_else_does_not_say_where_a_log_is(disks):
    disks.open().initialise(4, "cluster")
    disks.fill(disks.log("t"), 3)
    disks.manager.shutdown()
    write(disks, "/b/t-0/readme.txt", "mine")
    disks.directories = ["/b"]
    manager = disks.open()
    with pytest.raises(OSError, match="may be in a data directory that is offline"):
        manager.get_or_create("t", 0, None)
    assert disks.disk.list_directory("/b/t-0") == ["readme.txt"]


def test_a_directory_of_an_earlier_life_is_an_old_copy_and_its_logs_count_as_lost(disks):
    disks.open()
    disks.fill(disks.log("t"), 1)
    disks.fill(disks.log("u"), 1)
    disks.manager.broker_epoch = 7
    disks.manager.shutdown()
    write(disks, "/b/.kafka_cleanshutdown", '{"version":0,"brokerEpoch":5}')
    manager = disks.open()
    manager.take_epoch(7)
    assert [directory.path for directory in manager.old_copies] == ["/b"]
    assert (manager.has_lost("t", 0), manager.has_lost("u", 0), manager.has_lost("v", 0)) == (False, True, True)
    assert manager.may_lack_records
    manager.shutdown()
    assert text(disks, "/a/.kafka_cleanshutdown") == '{"version":0,"brokerEpoch":5}', "it was not registered since"


@pytest.mark.parametrize(
    ("boot", "copies"),
    [("same", {0: False, 4: True, 6: True, 7: False}), ("other", {0: False, 4: True, 5: False, 6: False})],
)
def test_a_directory_whose_mark_is_smaller_than_one_that_was_durable_is_an_old_copy(disks, boot, copies):
    """Until 2026-12 the directory of a killed broker counted as whole but for its end after a start of the machine."""
    disks.open()
    disks.manager.write_boot_ids()
    disks.fill(disks.log("t"), 1)
    for number, is_copy in copies.items():
        disks.disk.crash("kept")
        write_numbers(disks.disk, f"/a/{TREE_MARK}", TreeKnowledge(number)).close()
        if boot == "other":
            write(disks, "/a/.boot_id", "another")
        manager = disks.open()
        manager.take_mark(10, 5)
        assert bool(manager.old_copies) is is_copy, number


@pytest.mark.parametrize("marker", ["", "{}", "damaged", "7", '{"version":0,"brokerEpoch":-1}'])
def test_a_marker_that_says_no_epoch_is_believed(disks, marker):
    disks.open()
    disks.fill(disks.log("t"), 1)
    disks.manager.shutdown()
    write(disks, "/a/.kafka_cleanshutdown", marker)
    manager = disks.open()
    manager.take_epoch(7)
    assert not manager.may_lack_records
    assert not manager.has_lost("t", 0)


def test_a_log_that_is_offline_is_not_lost(disks):
    disks.open().initialise(1, "c")
    disks.manager.shutdown()
    disks.disk.fail("list", "/b", times=1000)
    assert not disks.open().has_lost("t", 0)


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_log_whose_end_somebody_has_cut_counts_as_lost_and_no_other(disks, caplog, stop):
    disks.open()
    for topic in "tu":
        disks.fill(disks.log(topic), 3)
    disks.manager.write_boot_ids()
    if stop == "clean":
        disks.manager.shutdown()
    else:
        disks.log("t").flush()
        disks.manager.checkpoint()
        disks.manager.abandon()
    file = disks.disk.open("/a/t-0/00000000000000000000.log")
    file.truncate(file.size() * 2 // 3)
    manager = disks.open()
    assert "t-0: the log ends at offset 2, though all up to 3 was synced" in caplog.text
    assert (manager.has_lost("t", 0), manager.has_lost("u", 0), manager.may_lack_records) == (True, False, True)
    manager.shutdown()
    caplog.clear()
    assert not disks.open().may_lack_records, "it is said once, and what is there counts from then on"
    assert not caplog.messages


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_log_that_ends_below_its_high_watermark_counts_as_lost_unless_its_machine_lost_its_power(disks, boot):
    """Nothing was synced, so that the recovery point says nothing."""
    disks.open()
    disks.fill(disks.log("t"), 3)
    disks.manager.write_boot_ids()
    disks.manager.checkpoint()
    disks.manager.abandon()
    disks.disk.boots += boot == "another"
    file = disks.disk.open("/a/t-0/00000000000000000000.log")
    file.truncate(file.size() * 2 // 3)
    assert disks.open().has_lost("t", 0) is (boot == "this")
