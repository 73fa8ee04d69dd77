"""The disk of one broker is full, or it has no free descriptor: the others go on, and it follows again later."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.errors import ErrorCode
from broker_process import batch

MakeCluster = Callable[..., Any]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty one of six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_follower_whose_disk_is_full_leaves_the_isr_and_comes_back_when_there_is_room(
    make_cluster: MakeCluster, disk: Path
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(3_000_000))
    cluster = make_cluster(own_data={2: disk / "data"})
    cluster.create_topic("t", 3)
    index = next(index for index in range(3) if cluster.leader("t", index) != 2)
    producer = cluster.producer("t", index)
    values = [b"%d %s" % (number, bytes(60_000)) for number in range(80)]
    for value in values:  # more than the disk holds
        cluster.produce(producer, [value])
    cluster.in_sync("t", index, {0, 1})
    log = cluster.until_said("refuses writes", 2)
    assert log.count("refuses writes") == 1
    assert "try again later" not in log, "the disk says it for all its partitions"
    ballast.unlink()
    more = [b"%d" % number for number in range(20)]
    cluster.produce(producer, more)
    cluster.in_sync("t", index, {0, 1, 2})
    assert cluster.values("t", index) == values + more


def test_a_leader_whose_disk_is_full_hands_over_and_leads_again_when_there_is_room(
    make_cluster: MakeCluster, disk: Path
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(3_000_000))
    cluster = make_cluster(own_data={2: disk / "data"})
    cluster.create_topic("t", 3)
    index = next(index for index in range(3) if cluster.leader("t", index) == 2)
    producer = cluster.producer("t", index)
    values = [b"%d %s" % (number, bytes(60_000)) for number in range(80)]
    for number, value in enumerate(values):  # more than the disk holds
        cluster.produce(producer, [value])
        cluster.commit("g", "t", {index: number})
    assert all(cluster.leader("t", each) != 2 for each in range(3)), "it leads nothing"
    for each in range(3):
        cluster.in_sync("t", each, {0, 1})
    epochs = [cluster.partition("t", each).leader_epoch for each in range(3)]
    values += [b"%d" % number for number in range(40)]
    for value in values[-40:]:
        cluster.produce(producer, [value])
        time.sleep(0.1)  # leaders are balanced each second
    assert [cluster.partition("t", each).leader_epoch for each in range(3)] == epochs
    ballast.unlink()
    more = [b"%d" % number for number in range(20)]
    cluster.produce(producer, more)
    cluster.in_sync("t", index, {0, 1, 2})
    cluster.balance()
    assert cluster.leader("t", index) == 2
    cluster.produce(producer, [b"end"])
    assert cluster.values("t", index) == [*values, *more, b"end"]
    assert cluster.committed("g", "t", index) == 79
    log = cluster.until_said("data can be written again (", 2)
    told = [line for line in log.splitlines() if f"{disk}/data " in line]
    assert ["refuses writes" in line for line in told] == [True, False], told


def test_nobody_waits_for_a_full_disk_that_had_all_records(make_cluster: MakeCluster, disk: Path) -> None:
    """Its replica was caught up lately. One that could come back would be waited for, for replica.lag.time.max.ms."""
    cluster = make_cluster(own_data={2: disk / "data"}, replica_lag_time_max_ms="600000")
    cluster.create_topic("t", 3)
    producers = [cluster.producer("t", index) for index in range(3)]
    for index in range(3):
        cluster.produce(producers[index], [b"before"])
        cluster.commit("g", "t", {index: 1})
        cluster.in_sync("t", index, {0, 1, 2})
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    values = [b"%d %s" % (number, bytes(60_000)) for number in range(5)]  # more than the last page has room for
    for number, value in enumerate(values):
        for index in range(3):
            cluster.produce(producers[index], [value])
            cluster.commit("g", "t", {index: 2 + number})
    cluster.until_said("refuses writes")
    for index in range(3):
        assert cluster.values("t", index) == [b"before", *values]


def test_where_no_disk_has_room_nobody_hands_over_and_all_goes_on_when_there_is(
    make_cluster: MakeCluster, disk: Path
) -> None:
    """All brokers have their logs on one disk."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(2_500_000))
    places = {node_id: disk / f"data-{node_id}" for node_id in range(3)}
    cluster = make_cluster(own_data=places)
    cluster.create_topic("t", 3)
    index = next(index for index in range(3) if cluster.leader("t", index) == 2)
    producer = cluster.producer("t", index)
    acknowledged: list[bytes] = []
    while len(acknowledged) < 200:
        value = b"%d %s" % (len(acknowledged), bytes(30_000))
        if not is_acknowledged(cluster, index, value):
            break
        acknowledged.append(value)
    cluster.until_said("refuses writes")
    cluster.until(partial(has_committed, cluster, index, acknowledged))
    state = settled(cluster)
    time.sleep(3)  # leaders are balanced each second
    assert settled(cluster) == state
    ballast.unlink()
    cluster.produce(producer, [b"end"])
    cluster.balance()
    values = cluster.values("t", index)
    assert values[: len(acknowledged)] == acknowledged
    assert values[-1] == b"end"


def is_acknowledged(cluster: Any, index: int, value: bytes) -> bool:
    """Whether a record was. If only the followers had no room, the leader answers when the request times out.

    Below min.insync.replicas the high watermark does not rise (KIP-966), as in Kafka.
    """
    with cluster.client(cluster.leader("t", index)) as client:
        try:
            error: int = client.produce("t", index, batch([value])).error_code
        except TimeoutError:
            return False
    return error == ErrorCode.NONE


def has_committed(cluster: Any, index: int, values: list[bytes]) -> None:
    """Raise NotYetError unless a partition begins with these: who leads last must hear that all have them."""
    from cluster import NotYetError

    if (found := cluster.values("t", index)[: len(values)]) != values:
        raise NotYetError(f"{len(found)} of {len(values)}")


def settled(cluster: Any) -> list[tuple[int, int]]:
    """Leaders and their epochs, when they have stayed for a second."""
    from cluster import NotYetError

    def leaders() -> list[tuple[int, int]]:
        rows = [cluster.partition("t", each) for each in range(3)]
        return [(row.leader_id, row.leader_epoch) for row in rows]

    def stay() -> list[tuple[int, int]]:
        before = leaders()
        time.sleep(1)
        if (after := leaders()) != before:
            raise NotYetError(f"{before}, {after}")
        return after

    found: list[tuple[int, int]] = cluster.until(stay)
    return found


@pytest.mark.parametrize("make_cluster", ["embedded"], indirect=True)
def test_a_full_disk_under_the_tree_stops_nothing_but_changes_of_the_tree(
    disk: Path, make_cluster: MakeCluster
) -> None:
    cluster = make_cluster(coordination_path=str(disk / "tree"))
    cluster.create_topic("t", 3)
    cluster.create_topic("many", 50)
    time.sleep(1.5)  # what is in the -wal is brought into the file, so the -wal has room for more
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    cluster.create_topic("more", 20)
    cluster.until_said("database or disk is full")
    time.sleep(1.5)  # the file is looked at ten times and more
    producer = cluster.producer("t")
    cluster.produce(producer, [b"1"])
    cluster.end_one(2)
    cluster.start(2, wait=False)
    process = cluster.processes[2].process
    assert process.wait(200) == 1
    assert f"{disk / 'tree'}: No space left on device. Make room there" in cluster.logs()[2]
    (disk / "ballast").unlink()
    cluster.start(2)
    cluster.in_sync("t", 0, {0, 1, 2})
    cluster.produce(producer, [b"2"])
    cluster.create_topic("later", 3)
    assert cluster.values("t", 0) == [b"1", b"2"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can change the limits of another process")
def test_a_leader_without_free_descriptors_hands_over(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 3, segment_bytes="1048576")
    index = next(index for index in range(3) if cluster.leader("t", index) == 2)
    process = cluster.processes[2].process.pid
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    value = bytes(400_000)
    with cluster.client(2) as client:
        assert client.produce("t", index, batch([value])).error_code == ErrorCode.NONE
        resource.prlimit(process, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{process}/fd")), hard))
        errors = [client.produce("t", index, batch([value])).error_code for _ in range(3)]
        assert ErrorCode.KAFKA_STORAGE_ERROR in errors, "a new segment needs a descriptor"
        end = time.monotonic() + 200
        while cluster.partition("t", index, 0).leader_id == 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
    cluster.produce(cluster.producer("t", index), [value])
    cluster.in_sync("t", index, {0, 1, 2})
