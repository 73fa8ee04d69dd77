"""Three broker processes: records survive the death of any one of them."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from confluent_kafka.admin import AdminClient, NewTopic

from cluster import NotYetError, numbered

MakeCluster = Callable[..., Any]


def test_all_know_each_other_and_a_topic_is_led_by_all(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 3)
    for node_id in cluster.ports:

        def knows(node_id: int = node_id) -> None:
            answer = cluster.metadata("t", node_id)
            assert answer.controller_id in cluster.ports
            if {broker.node_id: broker.port for broker in answer.brokers} != cluster.ports:
                raise NotYetError(f"{node_id}: {answer}")
            if {row.leader_id for row in answer.topics[0].partitions} != set(cluster.ports):
                raise NotYetError(f"{node_id}: {answer}")

        cluster.until(knows)


@pytest.mark.parametrize("through", ["the controller", "another broker"])
def test_a_topic_is_made_by_a_client_of_any_broker(make_cluster: MakeCluster, through: str) -> None:
    cluster = make_cluster()
    controller_id = cluster.controller()
    other_id = next(node_id for node_id in cluster.ports if node_id != controller_id)
    port = cluster.ports[controller_id if through == "the controller" else other_id]
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    for future in admin.create_topics([NewTopic("t", 1, 3)]).values():
        future.result(200)
    cluster.in_sync("t", 0, {0, 1, 2})


def test_acknowledged_records_survive_a_killed_follower_and_then_a_killed_leader(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 1)
    producer = cluster.producer("t")
    cluster.produce(producer, numbered(0))
    leader = cluster.leader("t", 0)
    follower = next(node_id for node_id in cluster.ports if node_id != leader)

    cluster.end_one(follower, signal.SIGKILL)
    cluster.produce(producer, numbered(20))
    cluster.in_sync("t", 0, set(cluster.ports) - {follower})
    cluster.start(follower)
    cluster.in_sync("t", 0, set(cluster.ports))

    cluster.produce(producer, numbered(40))
    cluster.end_one(leader, signal.SIGKILL)
    cluster.produce(producer, numbered(60))
    assert cluster.leader("t", 0) != leader
    assert cluster.values("t", 0) == numbered(0, 80)

    cluster.start(leader)
    cluster.in_sync("t", 0, set(cluster.ports))
    cluster.produce(producer, numbered(80))
    assert cluster.values("t", 0) == numbered(0, 100)


def test_a_timestamp_that_the_version_lacks_is_refused_by_followers_as_such(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t")
    ask = messages.ListOffsetsRequest
    rows = [ask.ListOffsetsPartition(partition_index=0, timestamp=-3)]  # the largest timestamp: of version 7 (KIP-734)
    request = ask(replica_id=-1, topics=[ask.ListOffsetsTopic(name="t", partitions=rows)])
    for node_id in cluster.ports:
        with cluster.client(node_id) as client:
            answer = client.ask(ApiKey.LIST_OFFSETS, 4, request)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNSUPPORTED_VERSION, node_id
