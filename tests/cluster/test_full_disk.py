"""The disk of one broker is full, or it has no free descriptor: the others go on, and it follows again later."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.errors import ErrorCode
from broker_process import batch

MakeCluster = Callable[..., Any]
pytestmark = pytest.mark.timeout(120)


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
    ballast.unlink()
    more = [b"%d" % number for number in range(20)]
    cluster.produce(producer, more)
    cluster.in_sync("t", index, {0, 1, 2})
    assert cluster.values("t", index) == values + more


def test_a_leader_whose_disk_is_full_hands_over(make_cluster: MakeCluster, disk: Path) -> None:
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
    assert cluster.leader("t", index) != 2
    cluster.in_sync("t", index, {0, 1})
    ballast.unlink()
    more = [b"%d" % number for number in range(20)]
    cluster.produce(producer, more)
    cluster.in_sync("t", index, {0, 1, 2})
    assert cluster.values("t", index) == values + more
    assert cluster.committed("g", "t", index) == len(values) - 1


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
        end = time.monotonic() + 20
        while cluster.partition("t", index, 0).leader_id == 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
    cluster.produce(cluster.producer("t", index), [value])
    cluster.in_sync("t", index, {0, 1, 2})
