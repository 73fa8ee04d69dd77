"""Whoever reaches a broker can send what only brokers should send. A wrong one costs nobody anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from cluster import BROKERS

MakeCluster = Callable[..., Any]
FUTURE_EPOCH = 1 << 62
Fetch = messages.FetchRequest
Lead = messages.LeaderAndIsrRequest


def fetch_as(cluster: Any, topic: str, replica_id: int, leader_id: int, **state: int) -> None:
    """A fetch of `topic`-0 from the beginning, as if a follower had lost its records."""
    topic_id = cluster.metadata(topic).topics[0].topic_id
    request = Fetch(
        replica_state=Fetch.ReplicaState(replica_id=replica_id, **state),
        max_wait_ms=0,
        topics=[
            Fetch.FetchTopic(
                topic_id=topic_id,
                partitions=[
                    Fetch.FetchPartition(partition=0, fetch_offset=0, log_start_offset=0, partition_max_bytes=1)
                ],
            )
        ],
    )
    with cluster.client(leader_id) as client:
        answer = client.ask(ApiKey.FETCH, 17, request)
    assert [row.error_code for row in answer.responses[0].partitions] == [ErrorCode.NONE]


def lead_alone(name: str, index: int, node_id: int) -> messages.LeaderAndIsrRequest:
    """What the controller would say if there were such a topic."""
    state = Lead.LeaderAndIsrPartitionState(
        partition_index=index, controller_epoch=1, leader=node_id, leader_epoch=0, isr=[node_id], replicas=[node_id]
    )
    topic = Lead.LeaderAndIsrTopicState(topic_name=name, topic_id=b"hostile topic id", partition_states=[state])
    return Lead(controller_id=0, controller_epoch=1, broker_epoch=FUTURE_EPOCH, topic_states=[topic])


def test_fetches_in_the_name_of_followers_shut_nobody_out(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t")
    producer = cluster.producer("t")
    cluster.produce(producer, [b"0"])
    row = cluster.partition("t", 0)
    followers = set(cluster.ports) - {row.leader_id}
    for follower in followers:
        fetch_as(cluster, "t", follower, row.leader_id, replica_epoch=FUTURE_EPOCH)
    for number in range(1, 4):  # each needs a follower that is heard, and the lag that is allowed passes meanwhile
        cluster.produce(producer, [b"%d" % number])
        cluster.in_sync("t", 0, set(cluster.ports))
    for follower in followers:  # nothing moves in the partition after this
        fetch_as(cluster, "t", follower, row.leader_id)
    cluster.produce(cluster.producer("t"), [b"4"])
    assert cluster.values("t", 0) == [b"%d" % number for number in range(5)]
    assert cluster.partition("t", 0).leader_epoch == row.leader_epoch


def test_no_log_is_made_for_a_topic_that_cannot_be(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster()
    cluster.create_topic("t")
    for node_id in range(BROKERS):
        for name, index in (("../evil", 0), ("a/b", 0), ("", 0), ("a\0b", 0), ("a b", 0), ("u", -1)):
            with cluster.client(node_id) as client:
                answer = client.ask(ApiKey.LEADER_AND_ISR, 7, lead_alone(name, index, node_id))
            (error,) = answer.topics[0].partition_errors
            assert error.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [path.name for path in tmp_path.rglob("*evil*")] == []
    producer = cluster.producer("t")
    cluster.produce(producer, [b"0"])
    for node_id in range(BROKERS):
        cluster.end_one(node_id)
        cluster.start(node_id)
    cluster.produce(producer, [b"1"])
    assert cluster.values("t", 0) == [b"0", b"1"]
