"""A backup of the tree is put back while no broker runs: the logs have more than it knows of.

The replica with the shorter log starts first, and the tree says that it is in sync. It must not lead: the others would
cut off what was acknowledged without it.
"""

import re
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreatePartitionsRequest

from cluster import numbered


class Trees:
    """The tree of a cluster, which can be kept and put back."""

    def __init__(self, folder: Path, server: Any) -> None:
        from cluster import Cluster

        self.folder = folder
        self._server = server
        self._tree = folder / ("tree" if server is None else "zookeeper/data")
        self._kept = folder / "kept"
        address = None if server is None else f"{server.address}/restored"
        self.cluster = Cluster(folder, {}, address)

    def keep(self) -> None:
        """Make a backup: with the command, while brokers run; of ZooKeeper's folder while it is stopped for a moment.

        The command's says that it is one. The other says nothing.
        """
        if self._server is None:
            forked.barnabas("cluster", "backup", str(self._kept), "--tree", str(self._tree), code=0)
        else:
            lengths = list(map(len, self.cluster.logs()))
            self._server.stop()
            shutil.copytree(self._tree, self._kept)
            self._server.start()
            self._until_back(lengths)
            all_in_sync(self.cluster)

    def _until_back(self, lengths: list[int]) -> None:
        """Wait until the brokers go on in their sessions, or in others if ZooKeeper has taken long to start. What they
        say before may be of the sessions that have ended. `lengths`: of their logs before it was stopped.
        """
        from cluster import NotYetError

        def check() -> None:
            for log, length in zip(self.cluster.logs(), lengths, strict=True):
                if not re.search(
                    "reconnected to ZooKeeper|new ZooKeeper session.*became leader of", log[length:], re.S
                ):
                    raise NotYetError(log[length:])

        self.cluster.until(check)

    def marks(self) -> list[int]:
        """What the brokers have counted on their disks."""
        return [int((self.folder / f"broker-{node_id}" / ".tree_mark").read_text().split()[0]) for node_id in range(3)]

    def counted_since(self, marks: list[int], *node_ids: int) -> None:
        """Wait until these brokers have counted on: they do so at once, but beside what clients ask of them."""

        def check() -> None:
            from cluster import NotYetError

            now = self.marks()
            if not all(now[node_id] > marks[node_id] for node_id in node_ids):
                raise NotYetError(f"{now} since {marks}")

        self.cluster.until(check)

    def put_back(self) -> None:
        """No broker runs: the backup is the tree now."""
        if self._server is None:
            for name in ("tree-wal", "tree-shm"):
                (self._tree.parent / name).unlink(missing_ok=True)
            shutil.copy(self._kept, self._tree)
        else:
            self._server.stop()
            shutil.rmtree(self._tree)
            shutil.copytree(self._kept, self._tree)
            self._server.start()


@pytest.fixture(params=["embedded", "zookeeper"])
def trees(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trees]:
    """Three brokers, whose tree can be put back. None of them may log a traceback."""
    server = None
    if request.param == "zookeeper":
        request.getfixturevalue("zookeeper_or_skip")()
        from zookeeper_server import ZooKeeperServer

        server = ZooKeeperServer(tmp_path / "zookeeper")
        server.start()
    trees = Trees(tmp_path, server)
    trees.cluster.start_all()
    trees.cluster.create_topic("t", 3)
    yield trees
    trees.cluster.end()
    if server is not None:
        server.stop()
    for log in trees.cluster.logs():
        assert "Traceback" not in log, log[-6000:]


def all_in_sync(cluster: Any) -> None:
    for index in range(3):
        cluster.in_sync("t", index, {0, 1, 2})


def fill(trees: Trees) -> list[Any]:
    """Records in all replicas. Returns the producers, who go on."""
    producers = [trees.cluster.producer("t", index) for index in range(3)]
    for producer in producers:
        trees.cluster.produce(producer, numbered(0))
    # The first commit has the topic of the journal made, some time later. A tree without it would be refused.
    trees.cluster.commit("first", "t", {0: 0})
    for index in range(3):
        trees.cluster.in_sync("__offset_journal", index, set(trees.cluster.processes))
    all_in_sync(trees.cluster)
    return producers


def check_that_all_is_there(cluster: Any, producers: list[Any]) -> None:
    all_in_sync(cluster)
    cluster.balance()  # so that no leader is new, and shows less than is committed for a moment
    for index, producer in enumerate(producers):
        cluster.produce(producer, numbered(40))
        assert cluster.values("t", index) == numbered(0, 60)
    assert cluster.committed("g", "t", 0) == 40


@pytest.mark.takes_turns("trees", "how")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_replica_with_the_shorter_log_registers_first(trees: Trees, how: int) -> None:
    """It may have died so soon after the backup that it cannot know, and leads then, until the others come."""
    cluster = trees.cluster
    producers = fill(trees)
    trees.keep()
    marks = trees.marks()
    cluster.end_one(0, how)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    cluster.commit("g", "t", {0: 40})
    trees.counted_since(marks, 1, 2)
    for node_id in (1, 2):
        cluster.end_one(node_id, how)
    trees.put_back()
    cluster.start(0)
    if how == signal.SIGKILL:
        write_alone(cluster)
    cluster.start(1)
    cluster.start(2)
    check_that_all_is_there(cluster, producers)


def write_alone(cluster: Any) -> None:
    """Records with acks=1 where broker 0 leads: no other replica has them, and they have the same epochs as others."""
    from broker_process import batch, produce_request

    with cluster.client(0) as client:
        for index in range(3):
            request = produce_request([("t", index, batch([b"alone"] * 5))])
            request.acks = 1
            client.ask(ApiKey.PRODUCE, 9, request)


def test_all_wait_for_the_one_that_has_the_most(trees: Trees) -> None:
    """What is waited for is said; without it, those that are there go on when the operator says so."""
    cluster = trees.cluster
    producers = fill(trees)
    trees.keep()
    cluster.end_one(0)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    cluster.commit("g", "t", {0: 40})
    cluster.end_one(1)
    cluster.end_one(2)
    trees.put_back()
    cluster.start(0)
    cluster.start(1)
    cluster.until_said("no leader until broker 2 has said where the logs end there")
    for index in range(3):
        assert cluster.metadata("t").topics[0].partitions[index].leader_id == -1
    cluster.start(2)
    check_that_all_is_there(cluster, producers)


def is_controller(cluster: Any, node_id: int) -> None:
    """Raise NotYetError unless a broker that has started again is controller."""
    from cluster import NotYetError

    if (
        "was elected controller, epoch"
        not in cluster.logs()[node_id].rpartition("The tree is a copy that was put back")[2]
    ):
        raise NotYetError(node_id)


@pytest.mark.parametrize("trees", ["embedded"], indirect=True)
def test_a_killed_broker_adopts_the_topics_of_after_the_backup_while_another_is_controller(trees: Trees) -> None:
    cluster = trees.cluster
    trees.keep()
    for name in ("u", "v", "w"):
        cluster.create_topic(name)
    cluster.produce(cluster.producer("u"), numbered(0))
    for node_id in range(3):
        cluster.end_one(node_id, signal.SIGKILL)
    trees.put_back()
    for node_id, word in {0: "--set-aside", 1: "--adopt", 2: "--set-aside"}.items():
        cluster.words[node_id] = [word]
        cluster.start(node_id, wait=False)
        if node_id == 0:
            cluster.until_said("The tree is a copy that was put back")
            cluster.until(partial(is_controller, cluster, 0))
    for process in cluster.processes.values():
        process.wait_until_ready()
    assert cluster.values("u", 0) == numbered(0)
    all_in_sync(cluster)


@pytest.mark.parametrize("trees", ["embedded"], indirect=True)
def test_the_wrong_one_adopts_first_and_nothing_is_lost(trees: Trees) -> None:
    """Each says where its logs end. The folders that were set aside get their names back, and another one adopts."""
    cluster = trees.cluster
    trees.keep()
    for name in ("u", "v"):
        cluster.create_topic(name)
    for name in ("u", "v"):
        producer = cluster.producer(name)
        cluster.produce(producer, numbered(0))
        cluster.in_sync(name, 0, {0, 1, 2})
    cluster.end_one(0)
    for name in ("u", "v"):
        cluster.produce(cluster.producer(name), numbered(20))
    cluster.end_one(1)
    cluster.end_one(2)
    trees.put_back()
    cluster.start(0, wait=False)
    assert cluster.processes[0].process.wait(200) != 0
    assert re.search(r"here u-0 in epoch \d+ at 20, v-0 in epoch \d+ at 20\)", cluster.logs()[0]), cluster.logs()[0]

    def begin(first: int) -> None:
        for node_id in (first, *(each for each in range(3) if each != first)):
            cluster.words[node_id] = ["--adopt" if node_id == first else "--set-aside"]
            cluster.start(node_id, wait=False)
            if node_id == first:
                cluster.until_said("adopted the topic v")
        for process in cluster.processes.values():
            process.wait_until_ready()

    begin(0)
    assert cluster.values("u", 0) == numbered(0)
    for node_id in range(3):
        cluster.end_one(node_id)
    trees.put_back()
    for node_id in (1, 2):
        for folder in (trees.folder / f"broker-{node_id}").glob("*-stray"):
            folder.rename(folder.with_name(folder.name.partition(".")[0]))
    begin(2)
    for name in ("u", "v"):
        assert cluster.values(name, 0) == numbered(0, 40)


def refused(cluster: Any, node_id: int) -> str:
    """What a broker says that does not start."""
    cluster.start(node_id, wait=False)
    assert cluster.processes.pop(node_id).process.wait(200) != 0
    said: str = cluster.logs()[node_id].splitlines()[-1]
    return said


@pytest.mark.parametrize("trees", ["embedded"], indirect=True)
def test_topics_that_end_last_on_different_brokers_are_all_adopted(trees: Trees) -> None:
    """`u` ends last on two of three killed brokers, each has a partition of `v`, and one of them has `w` alone."""
    cluster = trees.cluster
    trees.keep()
    cluster.create_topic("u")
    with cluster.client(cluster.controller()) as client:
        assert client.create_topic("v", 3) == client.create_topic("w", 1) == ErrorCode.NONE
    producers = [cluster.producer(*each) for each in (("u", 0), ("v", 0), ("v", 1), ("v", 2), ("w", 0))]
    for producer in producers:
        cluster.produce(producer, numbered(0))
    cluster.in_sync("u", 0, {0, 1, 2})
    places = {index: cluster.leader("v", index) for index in range(3)}
    of_w = cluster.leader("w", 0)
    first, *others = (node_id for node_id in (1, 2, 0) if node_id != of_w)
    late = next(node_id for node_id in others if node_id != of_w)
    cluster.end_one(late, signal.SIGKILL)
    cluster.produce(producers[0], numbered(20))
    for node_id in (first, of_w):
        cluster.end_one(node_id, signal.SIGKILL)
    trees.put_back()
    for node_id, end in {first: 40, of_w: 40, late: 20}.items():
        text = refused(cluster, node_id)
        assert re.search(rf"[( ]u-0 in epoch \d+ at {end}[,)]", text), text
        assert ("w-0 in epoch" in text) == (node_id == of_w), text
    for index, node_id in places.items():
        if node_id != first:
            shutil.copytree(
                trees.folder / f"broker-{node_id}" / f"v-{index}", trees.folder / f"broker-{first}/v-{index}"
            )
    for node_id in (first, late, of_w):
        cluster.words[node_id] = ["--adopt"]
        cluster.start(node_id)
    assert cluster.values("u", 0) == numbered(0, 40)
    for index in range(3):
        assert cluster.values("v", index) == numbered(0)
    assert cluster.values("w", 0) == numbered(0)
    assert len(list((trees.folder / f"broker-{late}").glob("u-0.*-stray"))) == 1


def test_who_has_reported_goes_on_if_the_operator_says_so(trees: Trees) -> None:
    cluster = trees.cluster
    producers = fill(trees)
    trees.keep()
    cluster.end_one(0)
    for producer in producers:
        cluster.produce(producer, numbered(20))
    cluster.end_one(1)
    cluster.end_one(2)
    trees.put_back()
    cluster.start(0)
    cluster.start(1)
    cluster.until_said("no leader until broker 2 has said where the logs end there")
    with cluster.client(cluster.controller()) as client:
        assert client.set_config("t", unclean_leader_election_enable="true") == 0
    for index in range(3):
        cluster.in_sync("t", index, {0, 1})
        cluster.produce(producers[index], numbered(40))
        assert cluster.values("t", index) == numbered(0, 60), "the one with more of those that are there leads"


@pytest.mark.parametrize("trees", ["embedded"], indirect=True)
def test_partitions_that_were_added_after_the_backup_are_asked_about(trees: Trees) -> None:
    """The tree knows their topic, so nothing is adopted; what was acknowledged there is not set aside unasked."""
    cluster = trees.cluster
    trees.keep()

    def add() -> None:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=4, assignments=None)
        with cluster.client(cluster.controller()) as client:
            asked = CreatePartitionsRequest(topics=[topic], timeout_ms=20_000)
            assert client.ask(ApiKey.CREATE_PARTITIONS, 2, asked).results[0].error_code == ErrorCode.NONE
        cluster.in_sync("t", 3, {0, 1, 2})

    add()
    cluster.produce(cluster.producer("t", 3), numbered(0))
    for node_id in range(3):
        cluster.end_one(node_id)
    trees.put_back()
    for node_id in range(3):
        said = refused(cluster, node_id)
        assert re.search(r"older copy, and does not know 1 log with records in \S+broker-\d: t-3\.", said), said
        assert "start first" not in said, "nobody can adopt it"
    cluster.words = {node_id: ["--set-aside"] for node_id in range(3)}
    cluster.start_all()
    add()
    for node_id in range(3):
        cluster.end_one(node_id)
    for node_id in range(3):
        (stray,) = (trees.folder / f"broker-{node_id}").glob("t-3.*-stray")
        shutil.rmtree(stray.with_name("t-3"))
        stray.rename(stray.with_name("t-3"))
    cluster.words = {}
    cluster.start_all()
    assert cluster.values("t", 3) == numbered(0)


@pytest.mark.parametrize("trees", ["embedded"], indirect=True)
def test_one_topic_of_after_the_backup_is_asked_about(trees: Trees) -> None:
    cluster = trees.cluster
    trees.keep()
    cluster.create_topic("u")
    cluster.produce(cluster.producer("u"), numbered(0))
    cluster.in_sync("u", 0, {0, 1, 2})
    for node_id in range(3):
        cluster.end_one(node_id)
    trees.put_back()
    said = refused(cluster, 1)
    assert re.search(r"t know 1 log with records in \S+broker-1: u-0\. .* \(here u-0 in epoch \d+ at 20\)", said), said
    for node_id in range(3):
        cluster.words[node_id] = ["--adopt"]
        cluster.start(node_id)
    assert cluster.values("u", 0) == numbered(0)
