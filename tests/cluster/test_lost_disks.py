"""One broker has lost its disk, or somebody has put an old copy of its folder back: the others have everything."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import numbered

MakeCluster = Callable[..., Any]


def all_in_sync(cluster: Any) -> None:
    for topic in ("t", "__consumer_offsets"):
        all_in_sync_of(cluster, topic)


def all_in_sync_of(cluster: Any, topic: str) -> None:
    for index in range(3):
        cluster.in_sync(topic, index, {0, 1, 2})


@pytest.mark.takes_turns("make_cluster", "what", "how")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("what", ["empty", "old copy", "old copy of a killed one", "killed, other boot"])
def test_the_disk_of_the_broker_that_was_the_last_one(
    make_cluster: MakeCluster, tmp_path: Path, how: int, what: str
) -> None:
    """It was in sync alone, and leads everything, says the tree. What it has now must not count."""
    cluster = make_cluster(control_sync_enable="true")  # what is not synced, a new boot may have lost
    producers = cluster.filled_topic("t", 3)
    cluster.commit("g", "t", {0: 10})
    all_in_sync(cluster)
    folder, copy = tmp_path / "broker-2", tmp_path / "copy"
    cluster.end_one(2, signal.SIGKILL if "killed" in what else signal.SIGTERM)
    shutil.copytree(folder, copy)
    cluster.start(2)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    cluster.commit("g", "t", {0: 30})
    all_in_sync(cluster)

    for node_id in range(3):
        cluster.end_one(node_id, how)
        if how == signal.SIGKILL:
            time.sleep(0.3)  # so that the others may hear of it
    shutil.rmtree(folder)
    if what == "empty":
        cluster.words[2] = ["--give-up", str(folder)]
    else:
        shutil.copytree(copy, folder)
    if "other boot" in what:
        (folder / ".boot_id").write_text("before the machine started anew")
    cluster.start_all()
    if what != "empty":
        cluster.until_said("an old copy of this broker's data directory", 2)
    all_in_sync(cluster)
    for index, producer in enumerate(producers):
        assert cluster.values("t", index) == numbered(0, 40)
        cluster.produce(producer, numbered(40))
        assert cluster.values("t", index) == numbered(0, 60)
    assert cluster.committed("g", "t", 0) == 30


@pytest.mark.takes_turns("make_cluster", "newest", "how")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("newest", [0, 1, 2])
def test_the_disks_of_all_are_old_copies_of_different_ages(
    make_cluster: MakeCluster, tmp_path: Path, newest: int, how: int
) -> None:
    """The tree is as it was, and names those in sync. Whoever they are, what the newest copy has is not cut off.

    Until 2026-12 the one that was in sync last, or before, led with what it had.
    """
    cluster = make_cluster()
    producers = cluster.filled_topic("t", 3)
    cluster.commit("g", "t", {0: 10})
    for age in ("older", "newer"):
        all_in_sync(cluster)
        for node_id in range(3):
            cluster.end_one(node_id, how)
        for node_id in range(3):
            shutil.copytree(tmp_path / f"broker-{node_id}", tmp_path / age / f"broker-{node_id}")
        cluster.start_all()
        all_in_sync(cluster)
        for producer in producers:
            cluster.produce(producer, numbered(20 if age == "older" else 40))
        cluster.commit("g", "t", {0: 30 if age == "older" else 50})
        for index in range(4):  # the mark of each broker is counted up, more often than a kill may take back
            cluster.create_topic(f"after-{age}-{index}", 1)
            time.sleep(0.1)
    for node_id in range(3):
        cluster.end_one(node_id, how)
    for node_id in range(3):
        shutil.rmtree(tmp_path / f"broker-{node_id}")
        age = "newer" if node_id == newest else "older"
        shutil.copytree(tmp_path / age / f"broker-{node_id}", tmp_path / f"broker-{node_id}")
    cluster.start_all()
    all_in_sync(cluster)
    for node_id in range(3):
        cluster.until_said("an old copy of this broker's data directory", node_id)
    for index in range(3):
        assert cluster.values("t", index) == numbered(0, 40)
        cluster.produce(cluster.producer("t", index), numbered(40))
        assert cluster.values("t", index) == numbered(0, 60)
    assert cluster.committed("g", "t", 0) == 30


@pytest.mark.takes_turns("make_cluster", "what")
@pytest.mark.parametrize("what", ["old folders", "a log without its end", "folders of a former topic"])
def test_some_logs_of_the_broker_that_was_the_last_one(make_cluster: MakeCluster, tmp_path: Path, what: str) -> None:
    """It says that records were removed, and must not lead: the others would be cut to what it has."""
    cluster = make_cluster()
    producers = cluster.filled_topic("t", 3)
    all_in_sync_of(cluster, "t")
    cluster.end_one(2)
    folders = [tmp_path / "broker-2" / f"t-{index}" for index in range(3)]
    for folder in folders:
        shutil.copytree(folder, tmp_path / "copy" / folder.name)
    cluster.start(2)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    all_in_sync_of(cluster, "t")
    for node_id in range(3):
        cluster.end_one(node_id)
    for folder in folders:
        copy = tmp_path / "copy" / folder.name
        if what != "a log without its end":
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
            if what == "folders of a former topic":
                (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
        else:
            name = "00000000000000000000.log"
            os.truncate(folder / name, (copy / name).stat().st_size)
    for node_id in (2, 0, 1):
        cluster.start(node_id)
    all_in_sync_of(cluster, "t")
    for index in range(3):
        assert cluster.values("t", index) == numbered(0, 40)


@pytest.mark.takes_turns("make_cluster", "what")
@pytest.mark.parametrize("what", ["given up", "a copy made while it ran"])
def test_one_of_the_disks_of_the_broker_that_was_the_last_one(
    make_cluster: MakeCluster, tmp_path: Path, what: str
) -> None:
    """It stopped cleanly. One disk is taken out of log.dirs and given up, or restored from a backup."""
    cluster = make_cluster()
    folders = [tmp_path / "broker-2", tmp_path / "disk"]
    cluster.end_one(2)
    cluster.own[2] = {"log.dirs": ",".join(map(str, folders))}
    cluster.start(2)
    cluster.create_topic("t", 4)
    producers = [cluster.producer("t", index) for index in range(4)]
    for index, producer in enumerate(producers):
        cluster.produce(producer, numbered(0))
        cluster.in_sync("t", index, {0, 1, 2})
    assert list(folders[1].glob("t-*"))
    shutil.copytree(folders[1], tmp_path / "copy")
    for index, producer in enumerate(producers):
        cluster.produce(producer, numbered(20))
        cluster.in_sync("t", index, {0, 1, 2})
    for node_id in range(3):
        cluster.end_one(node_id)
    shutil.rmtree(folders[1])
    if what == "given up":
        cluster.own[2] = {"log.dirs": str(folders[0])}
        cluster.words[2] = ["--give-up", str(folders[1])]
    else:
        shutil.copytree(tmp_path / "copy", folders[1])
    for node_id in (2, 0, 1):
        cluster.start(node_id)
    for index in range(4):
        cluster.in_sync("t", index, {0, 1, 2})
        assert cluster.values("t", index) == numbered(0, 40)


def test_all_are_killed_before_they_have_made_their_logs(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Nobody has anything, and each says that the others were in sync before it."""
    cluster = make_cluster()
    cluster.create_topic("t", 3)
    all_in_sync_of(cluster, "t")
    for process in cluster.processes.values():
        process.process.kill()
    for node_id in range(3):
        cluster.end_one(node_id, signal.SIGKILL)
        for index in range(3):
            if index != node_id:
                shutil.rmtree(tmp_path / f"broker-{node_id}" / f"t-{index}")
        if node_id == 0:
            shutil.rmtree(tmp_path / "broker-0" / "t-0")
    cluster.start_all()
    all_in_sync_of(cluster, "t")
    for index in range(3):
        cluster.produce(cluster.producer("t", index), numbered(0))


def test_the_last_one_went_on_alone_and_lost_its_disk(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What was acknowledged by several is there, although min.insync.replicas was lowered later."""
    cluster = make_cluster()
    producers = cluster.filled_topic("t", 3)
    all_in_sync_of(cluster, "t")
    cluster.end_one(0)
    cluster.end_one(1)
    with cluster.client(2) as client:
        assert client.set_config("t", min_insync_replicas="1") == 0
    for producer in producers:
        cluster.produce(producer, [b"has one copy"])
    cluster.end_one(2)
    shutil.rmtree(tmp_path / "broker-2")
    cluster.words[2] = ["--give-up", str(tmp_path / "broker-2")]
    cluster.start_all()
    all_in_sync_of(cluster, "t")
    for index in range(3):
        assert cluster.values("t", index) == numbered(0)


def test_the_last_one_lost_its_power_and_the_one_before_its_disk(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Who begins empty was in sync before, but is not who has more than a log that may lack its end."""
    cluster = make_cluster()
    cluster.create_topic("t", 1)
    cluster.produce(cluster.producer("t", 0), numbered(0))
    cluster.in_sync("t", 0, {0, 1, 2})
    cluster.end_one(0)
    cluster.end_one(1, signal.SIGKILL)
    cluster.in_sync("t", 0, {2})
    cluster.end_one(2, signal.SIGKILL)
    shutil.rmtree(tmp_path / "broker-1")
    cluster.words[1] = ["--give-up", str(tmp_path / "broker-1")]
    (tmp_path / "broker-2" / ".boot_id").write_text("before the power went")
    cluster.start(1)
    cluster.start(2)
    cluster.start(0)
    cluster.in_sync("t", 0, {0, 1, 2})
    assert cluster.values("t", 0) == numbered(0)


def test_the_last_one_lost_its_power_and_is_stopped_while_it_waits(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """A stop before it is registered is no clean one: who lacks the end of a log does so in the next life, too."""
    cluster = make_cluster()
    cluster.create_topic("t", 1)
    cluster.produce(cluster.producer("t", 0), numbered(0))
    cluster.in_sync("t", 0, {0, 1, 2})
    cluster.end_one(0)
    cluster.end_one(1, signal.SIGKILL)
    cluster.in_sync("t", 0, {2})
    cluster.end_one(2, signal.SIGKILL)
    (tmp_path / "broker-2" / ".boot_id").write_text("before the power went")
    log = tmp_path / "broker-2" / "t-0" / f"{0:020}.log"
    os.truncate(log, log.stat().st_size // 2)
    cluster.start(2, wait=False)
    cluster.until_said("or its logs lack records: it waits", 2)
    cluster.end_one(2)
    for node_id in (1, 2, 0):
        cluster.start(node_id)
    cluster.in_sync("t", 0, {0, 1, 2})
    assert cluster.values("t", 0) == numbered(0)


def test_a_broker_without_its_disk_is_refused_and_given_up_catches_up(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster()
    producers = cluster.filled_topic("t", 3)
    cluster.commit("g", "t", {0: 10})
    all_in_sync(cluster)
    cluster.end_one(1, signal.SIGKILL)
    shutil.rmtree(tmp_path / "broker-1")
    with pytest.raises(AssertionError, match="is their disk mounted"):
        cluster.start(1)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    cluster.words[1] = ["--give-up", str(tmp_path / "broker-1")]
    cluster.start(1)
    all_in_sync(cluster)
    cluster.end_one(0, signal.SIGKILL)
    for index, producer in enumerate(producers):
        cluster.produce(producer, numbered(40))
        assert cluster.values("t", index) == numbered(0, 60)
    assert cluster.committed("g", "t", 0) == 10
