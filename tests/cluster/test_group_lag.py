"""Three brokers: the lag of a group whose partitions have several leaders, and retention that waits for groups."""

import json
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

import forked
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from waiting import until

from cluster import NotYetError

Start = Callable[..., Any]
FAST = ("--set", "log.retention.check.interval.ms=500", "--set", "group.initial.rebalance.delay.ms=0")


def run(bootstrap: str, *words: str) -> str:
    return forked.barnabas(*words, "--bootstrap", bootstrap, code=0).stdout


def produce(bootstrap: str, topic: str, counts: dict[int, int]) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)) as producer:
        sent = [
            producer.send(topic, b"value", partition=index) for index, count in counts.items() for _ in range(count)
        ]
        for each in sent:
            each.get(200)


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in offsets])
        consumer.commit(
            {TopicPartition(topic, index): OffsetAndMetadata(offset, "", -1) for index, offset in offsets.items()}
        )


def count_unread(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The truth: how many records a consumer of the group is given."""
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)) as consumer:
        assigned = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        counts = dict.fromkeys(range(partitions), 0)
        while any(consumer.position(each) < ends[each] for each in assigned):
            for each, found in consumer.poll(500).items():
                counts[each.partition] += len(found)
        return counts


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    (described,) = json.loads(run(bootstrap, "topics", "describe", topic, "--json"))
    return {row["partition"]: row["leader"] for row in described["partitions"]}


def starts(bootstrap: str, topic: str, partitions: int) -> list[int]:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        found = consumer.beginning_offsets([TopicPartition(topic, index) for index in range(partitions)])
        return [found[TopicPartition(topic, index)] for index in range(partitions)]


def test_every_leader_says_how_much_is_not_read(start: Start) -> None:
    bootstrap = start("--brokers", "3", "--port", "0", *FAST).ready()["bootstrap"]
    run(bootstrap, "topics", "create", "t", "--partitions", "6")
    produce(bootstrap, "t", {index: 10 * (index + 1) for index in range(6)})
    for number in range(3):  # groups of several coordinators
        commit(bootstrap, f"g{number}", "t", {index: 3 * number + index for index in range(6)})
    assert len(set(leaders(bootstrap, "t").values())) == 3
    for number in range(3):
        found = json.loads(run(bootstrap, "groups", "lag", f"g{number}", "--json"))
        truth = count_unread(bootstrap, f"g{number}", "t", 6)
        assert {row["partition"]: row["read_uncommitted"]["records"] for row in found["partitions"]} == truth
        assert {row["status"] for row in found["partitions"]} == {"ok"}
        assert (found["records"], found["records_min"]) == (sum(truth.values()), sum(truth.values()))
        assert found["partitions_not_known"] == 0


def test_retention_waits_for_groups_whoever_coordinates_them(start: Start) -> None:
    bootstrap = start("--brokers", "3", "--port", "0", *FAST).ready()["bootstrap"]
    words = ("--partitions", "3", "--config", "retention.ms=1000")
    names = [f"team-{number}" for number in range(4)]
    wait = "barnabas.retention.wait.for.groups=billing,team-*"
    for group in ("billing", *names):
        run(bootstrap, "topics", "create", f"of-{group}")
        commit(bootstrap, group, f"of-{group}", {0: 0})
    run(bootstrap, "topics", "create", "t", *words, "--config", wait)
    run(bootstrap, "topics", "create", "free", *words)
    short = ("--config", "barnabas.retention.wait.max.ms=3000")
    run(bootstrap, "topics", "create", "short", *words, "--config", "barnabas.retention.wait.for.groups=nobody", *short)
    for topic in ("t", "free", "short"):
        produce(bootstrap, topic, {0: 20, 1: 20, 2: 20})
    for group in (*names, "billing"):  # billing is named, so it holds all until it has committed
        commit(bootstrap, group, "t", {0: 20, 1: 20, 2: 20 if group != "team-2" else 7})
    until(lambda: starts(bootstrap, "free", 3) == [20, 20, 20])
    until(lambda: starts(bootstrap, "t", 3)[:2] == [20, 20])
    until(lambda: starts(bootstrap, "short", 3) == [20, 20, 20])
    assert starts(bootstrap, "t", 3)[2] == 0, "team-2 has read seven records of it"
    commit(bootstrap, "team-2", "t", {2: 20})
    until(lambda: starts(bootstrap, "t", 3)[2] == 20)


def commit_with_epoch(cluster: Any, group: str, offset: int, leader_epoch: int) -> None:
    """Commit as a client does that says in which leader epoch the record before the offset was written."""
    commit = messages.OffsetCommitRequest
    row = commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=leader_epoch
    )
    request = commit(group_id=group, topics=[commit.OffsetCommitRequestTopic(name="t", partitions=[row])])

    def send() -> None:
        with cluster.client(cluster.coordinator(group)) as client:
            (error,) = [each.error_code for each in client.ask(ApiKey.OFFSET_COMMIT, 8, request).topics[0].partitions]
        if error:
            raise NotYetError(f"commit: {ErrorCode(error).name}")

    cluster.until(send)


def test_after_an_unclean_election_the_group_is_where_the_log_was_cut(make_cluster: Callable[..., Any]) -> None:
    cluster = make_cluster(min_insync_replicas="1", log_retention_check_interval_ms="100000000")
    cluster.create_topic("t", **{"unclean.leader.election.enable": "true"})
    for group in ("knows", "does-not", "new"):
        cluster.commit(group, "t", {0: 0})
    producer = cluster.producer("t")
    cluster.produce(producer, [b"kept"] * 10)
    cluster.in_sync("t", 0, {0, 1, 2})
    leader = cluster.leader("t", 0)
    others = [node_id for node_id in cluster.ports if node_id != leader]
    for node_id in others:
        cluster.end_one(node_id, signal.SIGKILL)
    cluster.in_sync("t", 0, {leader})
    epoch = cluster.until(lambda: cluster.partition("t", 0)).leader_epoch
    cluster.produce(producer, [b"lost"] * 10)
    commit_with_epoch(cluster, "knows", 20, epoch)
    commit_with_epoch(cluster, "does-not", 20, -1)
    cluster.end_one(leader, signal.SIGKILL)
    for node_id in others:
        cluster.start(node_id)
    cluster.until(lambda: cluster.partition("t", 0))  # one that lacks ten records leads
    cluster.produce(cluster.producer("t"), [b"other"] * 4)
    assert cluster.values("t", 0) == [b"kept"] * 10 + [b"other"] * 4
    cluster.start(leader)  # it alone has what the groups have committed
    cluster.in_sync("t", 0, {0, 1, 2})
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())

    def lag(group: str) -> Any:
        """Once the leader of the partition has been asked."""

        def ask() -> Any:
            (row,) = json.loads(run(bootstrap, "groups", "lag", group, "--json"))["partitions"]
            if row["status"] in ("no_leader", "other_leader") or row["error"] == "REQUEST_TIMED_OUT":
                raise NotYetError(str(row))
            return row

        return cluster.until(ask)

    assert cluster.committed("knows", "t", 0) == 20
    cut = lag("knows")
    assert (cut["status"], cut["cut_at"], cut["read_uncommitted"]["records"]) == ("log_cut", 10, 4)
    assert lag("does-not")["status"] == "past_log_end"
    cluster.produce(cluster.producer("t"), [b"other"] * 16)
    cut = lag("knows")
    assert (cut["status"], cut["cut_at"], cut["read_uncommitted"]["records"]) == ("log_cut", 10, 20)
    commit_with_epoch(cluster, "new", 14, cluster.partition("t", 0).leader_epoch)
    assert (lag("new")["status"], lag("new")["read_uncommitted"]["records"]) == ("ok", 16)
    commit_with_epoch(cluster, "new", 14, cluster.partition("t", 0).leader_epoch + 5)
    assert (lag("new")["status"], lag("new")["error"]) == ("unknown", "UNKNOWN_LEADER_EPOCH")


def test_offsets_go_with_a_topic_that_is_deleted_and_made_again_while_their_coordinator_is_down(
    make_cluster: Callable[..., Any],
) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 1)
    cluster.create_topic("stays", 1)
    for topic in ("t", "stays"):
        cluster.produce(cluster.producer(topic), [b"old"] * 10)
        cluster.commit("g", topic, {0: 10})
    cluster.balance()
    coordinator = cluster.coordinator("g")
    cluster.end_one(coordinator, signal.SIGKILL)
    for index in range(3):
        cluster.until(lambda index=index: cluster.partition("__consumer_offsets", index))
    with cluster.client(cluster.controller()) as client:
        delete = messages.DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
        client.ask(ApiKey.DELETE_TOPICS, 4, delete)
    cluster.start(coordinator)  # its replica of the old topic can be deleted only now

    def made_again() -> None:
        with cluster.client(cluster.controller()) as client:
            error = client.create_topic("t", 1, 3)
        if error:
            raise NotYetError(ErrorCode(error).name)

    cluster.until(made_again)
    cluster.balance()
    assert cluster.coordinator("g") == coordinator
    cluster.produce(cluster.producer("t"), [b"new"] * 20)
    assert (cluster.committed("g", "t", 0), cluster.committed("g", "stays", 0)) == (-1, 10)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    rows = json.loads(run(bootstrap, "groups", "lag", "g", "--json"))["partitions"]
    assert [(row["topic"], row["status"]) for row in rows] == [("stays", "ok")]
