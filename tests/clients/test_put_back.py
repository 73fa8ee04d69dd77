"""What is put back, of one broker and of three: all of it, in the same processes, and nothing else."""

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from barnabas.runtime.lives import LIVES_PER_COLLECTION
from barnabas.testing import Barnabas, CommandError, Group, Topic
from barnabas.testing.control import wait
from confluent_kafka import Consumer, Producer, TopicPartition

SETTINGS = {"log.segment.bytes": "1048576", "coordination.session.timeout.ms": "4000"}
# What a start writes into the tree anew, or what differs from election to election.
OF_A_LIFE = ("/brokers/ids", "/controller", "/latest_producer_id_block", "/brokers/seqid", "/barnabas/tree_marks")
ROUND = 2 * LIVES_PER_COLLECTION
VOLATILE = ("leader", "leader_epoch", "in_sync", "offline", "node_id", "at_ms", "time_ms", "expires_in_ms")


@pytest.fixture(scope="module", params=[1, 3])
def kafka(request: pytest.FixtureRequest) -> Iterator[Barnabas]:
    with Barnabas(request.param, SETTINGS) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def cluster() -> Iterator[Barnabas]:
    with Barnabas(3, SETTINGS) as kafka:
        yield kafka


def begun_transaction(kafka: Barnabas, topic: Topic, transactional_id: str) -> Producer:
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id}
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})  # a slow machine may need minutes
    producer.init_transactions(30)
    for value in ("committed", "open"):
        producer.begin_transaction()
        producer.produce(topic.name, value, partition=0)
        producer.flush(200)
        if value == "committed":
            producer.commit_transaction(30)
    return producer


def stable(value: Any) -> Any:
    """An answer without what differs from life to life."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items() if key not in VOLATILE}
    return [stable(each) for each in value] if isinstance(value, list) else value


def logs_of(folder: Path) -> dict[str, str]:
    """The records of all logs, and who may write to them, as hexadecimal digits."""
    paths = (path for kind in ("*.log", "*.snapshot", "partition.metadata") for path in folder.glob(f"[!.]*/{kind}"))
    return {str(path.relative_to(folder)): path.read_bytes().rstrip(b"\0").hex() for path in paths}


def tree_of(kafka: Barnabas) -> dict[str, Any]:
    """The nodes of the tree, but for what differs from life to life."""
    folder = kafka.processes[0].data if len(kafka.processes) == 1 else kafka.folder
    path = folder / "coordination.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT parent, name, data FROM node").fetchall()
    nodes = {f"{parent.rstrip('/')}/{name}": data.decode() for parent, name, data in rows}
    kept = {path: data for path, data in nodes.items() if not path.startswith(OF_A_LIFE)}
    for path, data in kept.items():
        if path.endswith("/state"):
            state = json.loads(data)
            kept[path] = {name: sorted(state[name]) if name == "isr" else "" for name in state}
    return kept


def state_of(kafka: Barnabas) -> dict[str, Any]:
    """All that brokers have, by what they answer, and by what is in their folders."""
    found: dict[str, Any] = {"topics": {}, "groups": {}, "tree": tree_of(kafka), "positions": []}
    for row in kafka.ask("GET", "/v1/topics")["topics"]:
        found["topics"][row["topic"]] = kafka.ask("GET", f"/v1/topics/{row['topic']}")
    for node_id in kafka.processes:
        for row in kafka.ask("GET", "/v1/groups", node_id=node_id)["groups"]:
            found["groups"][row["group"]] = kafka.ask("GET", f"/v1/groups/{row['group']}")
    for node_id, process in kafka.processes.items():
        found[f"logs of {node_id}"] = logs_of(process.data)
    answer: dict[str, Any] = stable(found)
    return answer


def wait_until_loaded(kafka: Barnabas, group: Group) -> None:
    """Wait until its coordinator has read what was committed."""

    def is_loaded() -> bool:
        answers = [kafka.ask("GET", "/v1/groups", node_id=node_id) for node_id in kafka.processes]
        return any(row["group"] == group.name for answer in answers for row in answer["groups"])

    wait(is_loaded, lambda: f"no broker has the group {group.name}", 50)


def wait_until_in_sync(kafka: Barnabas) -> None:
    for row in kafka.ask("GET", "/v1/topics")["topics"]:
        Topic(kafka, row["topic"]).wait(in_sync=len(kafka.processes), timeout=50)


def test_what_is_put_back_is_what_a_fresh_broker_finds_on_the_copy(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders", partitions=2, config={"retention.ms": "-1"}), kafka.group("billing")
    compacted = kafka.topic("state", config={"cleanup.policy": "compact"})
    topic.produce([f"{number} {'x' * 400_000}" for number in range(7)], partition=1)  # several segments
    compacted.produce(["1"], key="k")
    group.commit(topic, 1, 3)
    kafka.clock.advance(hours=1)
    open_one = begun_transaction(kafka, topic, "tx")
    mark = kafka.snapshot()
    processes, bootstrap = [process.pid for process in kafka.processes.values()], kafka.bootstrap
    leaders = [kafka.leader_of(topic, index) for index in range(2)]

    other = kafka.topic("other")
    other.produce(["later"])
    compacted.produce(["2"], key="k")
    topic.produce([f"later {'y' * 400_000}"] * 4, partition=1)
    group.commit(topic, 1, 9)
    kafka.group("later").commit(topic, 0, 0)
    later = begun_transaction(kafka, topic, "tx")
    kafka.clock.advance(days=2)
    kafka.clock.freeze()
    kafka.restore(mark)
    del open_one, later

    assert [process.pid for process in kafka.processes.values()] == processes
    assert kafka.bootstrap == bootstrap
    assert [kafka.leader_of(topic, index) for index in range(2)] == leaders
    rows = kafka.ask("GET", f"/v1/topics/{topic.name}")["partitions"]
    assert all(len(row["in_sync"]) == len(processes) for row in rows), "nobody was taken for dead"
    wait_until_loaded(kafka, group)
    found = state_of(kafka)
    with Barnabas(len(processes), SETTINGS, snapshot=mark) as fresh:
        wait_until_in_sync(fresh)
        wait_until_loaded(fresh, group)
        expected = state_of(fresh)
        assert abs(fresh.clock.now_ms - kafka.clock.now_ms) < 600_000, "not the two days"
        assert Topic(fresh, topic.name).values() == topic.values()
    for what, there in expected.items():
        assert found[what] == there, what
    assert set(found) == set(expected)
    assert len(topic.wait_records(8, timeout=50)) == 8
    assert kafka.wait_transaction("tx", "Ongoing") == "Ongoing"
    kafka.clock.advance(minutes=12)
    kafka.wait_transaction("tx", "CompleteAbort")
    group.commit(topic, 1, 4)
    topic.produce(["after"], partition=0)


def told(kafka: Barnabas, path: str, bodies: dict[int, dict[str, Any]]) -> dict[int, str]:
    """What each of these brokers says to such a command."""

    def tell(node_id: int) -> str:
        try:
            kafka.ask("POST", f"/v1/control/{path}", body=bodies[node_id], node_id=node_id)
        except CommandError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(bodies)) as threads:
        return dict(zip(bodies, threads.map(tell, bodies)))


def test_clients_go_on_with_a_cluster_that_is_put_back(cluster: Barnabas) -> None:
    topic, group = cluster.topic("orders", partitions=3), cluster.group("billing")
    topic.produce(["a"], partition=0)
    mark = cluster.snapshot()
    with closing(cluster.consumer(group_id=group.name, auto_offset_reset="earliest")) as consumer:
        consumer.subscribe([topic.name])
        assert next(consumer).value == b"a"
        fault = cluster.delay("Fetch", ms=1)
        for _ in range(3):
            topic.produce(["later"], partition=0)
            cluster.restore(mark)
        topic.produce(["b"], partition=0)
        while (value := next(consumer).value) != b"b":  # "a" once more if its group was not found before it had read on
            assert value == b"a", "not what was there before, and its connections were cut"
        assert fault.fired > 0, "faults go on"
        fault.remove()
        deadline = time.monotonic() + 200
        while len(group.members) != 1:  # its group was not there yet at the snapshot
            consumer.poll(100)
            assert time.monotonic() < deadline
    assert topic.values() == ["a", "b"]


def test_a_snapshot_whose_tree_was_damaged_since_it_was_put_back_is_refused(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    mark = kafka.snapshot()
    time.sleep(0.05)  # a tree that has just been written is looked through each time
    for _ in range(2):
        kafka.restore(mark)
    topic.produce(["a"])
    (tree,) = mark.folder.rglob("*.sqlite")
    with tree.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(CommandError, match=r"not the folder of a whole snapshot .*tree"):
        kafka.restore(mark)
    assert topic.values() == ["a"]


def test_producers_from_before_and_after_do_not_share_their_numbers(kafka: Barnabas) -> None:
    """Until 2026-11 both had one producer id, so that a record of one was taken for a repeated one of the other."""
    topic = kafka.topic("orders")
    mark = kafka.snapshot()
    acknowledged: list[str] = []
    settings = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 0}

    def write(producer: Producer, value: str) -> None:
        def note(error: Any, message: Any) -> None:
            if error is None:
                acknowledged.append(value)

        producer.produce(topic.name, value, on_delivery=note)
        assert producer.flush(200) == 0

    before = Producer({**settings, "message.timeout.ms": 5_000})
    write(before, "before")
    kafka.restore(mark)
    acknowledged.clear()
    after = Producer(settings)
    for number in range(3):
        write(after, f"after {number}")
        write(before, f"before {number}")
    assert sorted(acknowledged) == sorted(map(str, topic.values()))
    assert {f"after {number}" for number in range(3)} <= set(acknowledged)


@pytest.mark.takes_turns("kafka")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_many_restores_leave_memory_and_descriptors_as_they_were(kafka: Barnabas) -> None:
    """The longer form: bench/README.md has what 1,000 of them leave."""
    kafka.topic("orders").produce(["a"])
    mark = kafka.snapshot()

    def used() -> list[tuple[int, int]]:
        """By broker: open files, and memory of its own in kB."""
        found = []
        for process in kafka.processes.values():
            place = Path(f"/proc/{process.pid}")
            rows = (line.split() for line in (place / "smaps_rollup").read_text().splitlines()[1:])
            memory = next(int(row[1]) for row in rows if row[0] == "Private_Dirty:")
            found.append((len(list((place / "fd").iterdir())), memory))
        return found

    seen = []
    for _ in range(3):
        for _ in range(ROUND):
            kafka.restore(mark)
        seen.append(used())
    for (files, memory), (files_later, memory_later) in zip(seen[1], seen[2]):
        assert files_later <= files + 3
        assert memory_later <= memory + 150 * ROUND, "a life that stays takes 500 kB"


def test_a_cluster_of_which_one_is_away_is_put_back(cluster: Barnabas) -> None:
    topic = cluster.topic("orders")
    topic.produce(["a"])
    cluster.kill(1)
    mark, bootstrap = cluster.snapshot(), cluster.bootstrap
    topic.produce(["later"])
    cluster.pause(2)
    cluster.restore(mark)
    assert (cluster.running, cluster.bootstrap) == ([0, 1, 2], bootstrap)
    topic.wait(in_sync=3, timeout=50)
    assert topic.values() == ["a"]
    topic.produce(["later"])
    cluster.restore(mark)  # that snapshot is as good as one of brokers that ran
    assert topic.values() == ["a"]


def test_a_producer_goes_on_with_leaders_that_are_put_back(cluster: Barnabas) -> None:
    """Until 2026-11 their epochs were less than those that it knew, so that it never heard of them."""
    topic = cluster.topic("orders")
    topic.wait(in_sync=3)
    mark = cluster.snapshot()
    leader = cluster.leader_of(topic, 0)
    assert leader is not None
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": False, "linger.ms": 0})
    cluster.restart(leader)
    topic.wait(in_sync=3, timeout=50)
    for value in ("later", "b"):
        producer.produce(topic.name, value, on_delivery=lambda error, message: told.append(error))
        assert producer.flush(200) == 0
        if value == "later":
            cluster.restore(mark)
            assert cluster.leader_of(topic, 0) == leader
    assert told == [None, None]
    assert topic.values() == ["b"]


def test_a_consumer_goes_on_with_leaders_that_are_put_back(cluster: Barnabas) -> None:
    """It asks for no committed offset: librdkafka may stand still if the coordinator moves then (its issue 5586)."""
    topic = cluster.topic("orders")
    topic.wait(in_sync=3, timeout=50)
    mark = cluster.snapshot()
    leader = cluster.leader_of(topic, 0)
    assert leader is not None
    settings = {"group.id": topic.name, "auto.offset.reset": "earliest", "bootstrap.servers": cluster.bootstrap}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        cluster.restart(leader)
        topic.wait(in_sync=3, timeout=50)
        for value in ("later", "b"):
            deadline = time.monotonic() + 200
            record = None
            while record is None or record.error() or record.value() != value.encode():
                assert time.monotonic() < deadline, f"the consumer stands still before {value!r}"
                topic.produce([value])  # again: it may have read an offset of this number before
                record = consumer.poll(1)
            if value == "later":
                cluster.restore(mark)
                assert cluster.leader_of(topic, 0) == leader
    assert set(topic.values()) == {"b"}


def test_brokers_that_are_not_told_the_same_stay_as_they_are(cluster: Barnabas, tmp_path: Path) -> None:
    topic = cluster.topic("orders")
    topic.produce(["a"])
    mark = cluster.snapshot()
    topic.produce(["b"])
    body = {"folder": str(mark.folder)}
    assert "do not come together" in told(cluster, "restore", {2: body})[2]
    foreign = {"folder": str(tmp_path), "brokers": [0, 1]}
    assert "this one (2) also" in told(cluster, "restore", {2: foreign})[2]
    assert "not the folder of a whole snapshot" in told(cluster, "restore", {2: {"folder": str(tmp_path)}})[2]
    assert "name a folder" in told(cluster, "snapshots", {2: {}})[2]
    with Barnabas(1) as other:
        alone = {"folder": str(other.snapshot().folder)}
    assert "is of" in told(cluster, "restore", {2: alone})[2] or not Path(alone["folder"]).exists()
    assert topic.values() == ["a", "b"]
    assert set(told(cluster, "restore", dict.fromkeys(range(3), body)).values()) == {""}
    assert topic.values() == ["a"]


def test_a_cluster_of_which_one_cannot_start_on_the_copy_is_as_it_was(cluster: Barnabas, tmp_path: Path) -> None:
    topic = cluster.topic("orders")
    topic.produce(["a"])
    mark = cluster.snapshot()
    topic.produce(["b"])
    cluster.clock.advance(days=1)
    moved_ms = cluster.ask("GET", "/v1/control/clock")["moved_ms"]
    odd = tmp_path / "odd"
    shutil.copytree(mark.folder, odd)
    checkpoint = odd / "1" / "replication-offset-checkpoint"
    checkpoint.write_bytes(b"x" * checkpoint.stat().st_size)
    (metadata,) = odd.glob(f"1/{topic.name}-0/partition.metadata")
    metadata.write_bytes(b"x" * metadata.stat().st_size)
    processes = [process.pid for process in cluster.processes.values()]
    for _ in range(2):
        said = told(cluster, "restore", {node_id: {"folder": str(odd)} for node_id in range(3)})
        assert all("so all is as it was" in each for each in said.values()), said
        assert topic.values() == ["a", "b"]
        for node_id in cluster.processes:
            assert cluster.ask("GET", "/v1/control/clock", node_id=node_id)["moved_ms"] == moved_ms
    cluster.restore(mark)
    assert topic.values() == ["a"]
    assert [process.pid for process in cluster.processes.values()] == processes


@pytest.mark.parametrize("killed", [0, 2])
def test_who_is_killed_meanwhile_holds_nobody_up(cluster: Barnabas, killed: int) -> None:
    topic = cluster.topic("orders")
    topic.produce(["a"])
    mark = cluster.snapshot()
    topic.produce(["b"])
    body = {"folder": str(mark.folder), "brokers": [0, 1, 2]}
    cluster.pause(killed)
    with ThreadPoolExecutor(1) as threads:
        saying = threads.submit(told, cluster, "restore", dict.fromkeys({0, 1, 2} - {killed}, body))
        time.sleep(0.2)
        cluster.processes[killed].kill()
        said = saying.result(200)
    assert all("do not come together" in each for each in said.values()), said
    cluster.restart(killed)
    assert topic.wait_records(2, timeout=50)[-1].text == "b"


def test_what_keeps_one_broker_from_a_snapshot_is_told(cluster: Barnabas, tmp_path: Path) -> None:
    """Until 2026-11-30 it was told that the brokers do not come together."""
    link = cluster.processes[2].data / "linked-0"
    link.symlink_to(tmp_path)
    with pytest.raises(CommandError, match="linked-0 is a link to a folder"):
        cluster.snapshot()
    link.unlink()
    cluster.restore(cluster.snapshot())
