"""Three broker processes: whoever is asked, the controller decides; and another goes on where it stops or dies."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import NewTopic as KafkaPythonTopic

from cluster import NotYetError, numbered

MakeCluster = Callable[..., Any]


def other_than(cluster: Any, *node_ids: int) -> int:
    return next(node_id for node_id in cluster.processes if node_id not in node_ids)


def elect_preferred(cluster: Any, topic: str, index: int) -> None:
    """Have the first replica lead, as soon as it is in sync."""
    Partitions = messages.ElectLeadersRequest.TopicPartitions
    request = messages.ElectLeadersRequest(topic_partitions=[Partitions(topic=topic, partitions=[index])])

    def ask() -> None:
        with cluster.client(cluster.controller()) as client:
            answer = client.ask(ApiKey.ELECT_LEADERS, 2, request)
        error = answer.replica_election_results[0].partition_result[0].error_code
        if error not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            raise NotYetError(f"elect {topic}-{index}: {answer}")

    cluster.until(ask)


def test_admin_clients_find_the_controller_from_another_broker(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    port = cluster.ports[other_than(cluster, cluster.controller())]
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    for future in admin.create_topics([NewTopic("t", 2, 3)]).values():
        future.result(200)
    for future in admin.create_partitions([NewPartitions("t", 4)]).values():
        future.result(200)
    cluster.in_sync("t", 3, {0, 1, 2})
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(200)
    assert [result and result.name() for result in elected.values()] == ["ELECTION_NOT_NEEDED"]
    for future in admin.delete_topics(["t"]).values():
        future.result(200)
    python = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    python.create_topics([KafkaPythonTopic("u", 1, 3)])
    cluster.in_sync("u", 0, {0, 1, 2})
    python.delete_topics(["u"])
    python.close()
    with cluster.client(other_than(cluster, cluster.controller())) as client:
        assert client.create_topic("v", 1, 3) == ErrorCode.NOT_CONTROLLER


def test_a_topic_is_made_on_demand_by_every_broker(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    for node_id in cluster.ports:
        Topic = messages.MetadataRequest.MetadataRequestTopic
        request = messages.MetadataRequest(topics=[Topic(name=f"t{node_id}")], allow_auto_topic_creation=True)

        def ask(node_id: int = node_id, request: Any = request) -> None:
            with cluster.client(node_id) as client:
                answer = client.ask(ApiKey.METADATA, 12, request)
            if answer.topics[0].error_code:  # clients ask again: the third broker may not be there yet
                raise NotYetError(f"t{node_id}: {answer.topics[0]}")

        cluster.until(ask)
        cluster.in_sync(f"t{node_id}", 0, {0, 1, 2})


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_another_controller_goes_on(make_cluster: MakeCluster, how: int) -> None:
    cluster = make_cluster()
    cluster.create_topic("before", 3)
    former = cluster.controller()
    cluster.end_one(former, how)
    for node_id in cluster.processes:

        def told(node_id: int = node_id) -> None:
            found = cluster.metadata("before", node_id)
            named = {found.controller_id, *(broker.node_id for broker in found.brokers)}
            if (named | {row.leader_id for row in found.topics[0].partitions}) - set(cluster.processes):
                raise NotYetError(f"broker {node_id}: {found}")

        cluster.until(told)
    with cluster.client(cluster.controller()) as client:
        assert client.create_topic("after", 2, 2) == ErrorCode.NONE
        assert client.create_topic("larger", 1, 3) == ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.start(former)
    for index in range(3):
        cluster.in_sync("before", index, {0, 1, 2})


def test_a_broker_that_is_stopped_hands_over_first(make_cluster: MakeCluster) -> None:
    """Producers go on: while it stops, another broker leads already."""
    cluster = make_cluster()
    cluster.create_topic("t", 3)
    controller = cluster.controller()
    stopped = other_than(cluster, controller)
    before = [cluster.partition("t", index) for index in range(3)]
    producers = [cluster.producer("t", index) for index in range(3)]
    for producer in producers:
        cluster.produce(producer, numbered(0))
    process = cluster.processes.pop(stopped)
    ending = threading.Thread(target=process.end, args=(signal.SIGTERM,))
    ending.start()
    for producer in producers:
        cluster.produce(producer, numbered(20))
    ending.join()
    log = next(text for text in cluster.logs() if f"broker {stopped} has stopped" in text)
    assert "still leads" not in log
    for index, row in enumerate(before):
        cluster.in_sync("t", index, set(cluster.processes))  # the broker that is asked hears of it later
        after = cluster.partition("t", index)
        assert after.leader_epoch == row.leader_epoch + 1, "led: one election; followed: left the ISR once"
        assert stopped not in after.isr_nodes
        assert cluster.values("t", index) == numbered(0, 40)
    cluster.start(stopped)
    for index, row in enumerate(before):
        cluster.in_sync("t", index, {0, 1, 2})
        elect_preferred(cluster, "t", index)

        def leads_again(index: int = index, preferred: int = row.replica_nodes[0]) -> None:
            if cluster.partition("t", index).leader_id != preferred:  # the broker that is asked hears of it later
                raise NotYetError(f"t-{index} is not led by {preferred}")

        cluster.until(leads_again)


def folders(path: Path, topic: str) -> list[str]:
    return sorted(folder.name for folder in path.rglob(f"{topic}-*") if folder.is_dir())


def test_a_topic_is_deleted_when_the_dead_broker_returns_and_can_be_made_again(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 2)
    for index in range(2):
        cluster.in_sync("t", index, {0, 1, 2})
    dead = other_than(cluster, cluster.controller())

    def has_files() -> None:  # a replica is in the ISR from the beginning, also before its broker has heard of it
        if len(folders(tmp_path / f"broker-{dead}", "t")) < 2:
            raise NotYetError("files of t")

    cluster.until(has_files)
    cluster.end_one(dead, signal.SIGKILL)
    cluster.until(lambda: cluster.leader("t", 0))
    with cluster.client(cluster.controller()) as client:
        request = messages.DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
        assert client.ask(ApiKey.DELETE_TOPICS, 5, request).responses[0].error_code == ErrorCode.NONE
        assert client.create_topic("t", 1, 2) == ErrorCode.TOPIC_ALREADY_EXISTS, "its last replica still has files"
    assert folders(tmp_path / f"broker-{dead}", "t") != []
    cluster.start(dead)

    def make_again() -> None:
        with cluster.client(cluster.controller()) as client:
            error = client.create_topic("t", 2, 3)
        if error:
            raise NotYetError(f"create: {ErrorCode(error).name}")

    cluster.until(make_again)
    producer = cluster.producer("t")
    cluster.produce(producer, numbered(0))
    for node_id in list(cluster.ports):
        cluster.end_one(node_id, signal.SIGKILL)
        cluster.start(node_id)
        cluster.in_sync("t", 0, {0, 1, 2})
    assert cluster.values("t", 0) == numbered(0)


def test_all_three_are_killed_at_once(make_cluster: MakeCluster) -> None:
    """None may register before a controller has taken it out of the ISRs, so one must be controller unregistered."""
    cluster = make_cluster()
    producers = cluster.filled_topic("t", 6)
    for node_id in list(cluster.ports):
        cluster.end_one(node_id, signal.SIGKILL)
    cluster.start_all()
    for index, producer in enumerate(producers):
        cluster.in_sync("t", index, {0, 1, 2})
        cluster.produce(producer, numbered(20))
        assert cluster.values("t", index) == numbered(0, 40)
