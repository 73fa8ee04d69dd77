"""A broker that the system stops for longer than its session: the others go on, and it answers only what is so."""

from collections.abc import Callable
from typing import Any

import pytest
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import batch, produce_request

from cluster import numbered

MakeCluster = Callable[..., Any]


def chosen(cluster: Any, whom: str) -> int:
    if whom == "leader":
        return int(cluster.leader("t", 0))
    if whom == "controller":
        return int(cluster.controller())
    if whom == "coordinator":
        return int(cluster.coordinator("g"))
    leader = cluster.leader("t", 0)
    return next(node_id for node_id in cluster.ports if node_id != leader)


@pytest.mark.takes_turns("whom")
@pytest.mark.parametrize("whom", ["leader", "follower", "controller", "coordinator"])
def test_the_others_go_on_and_it_acknowledges_nothing_of_its_own(make_cluster: MakeCluster, whom: str) -> None:
    cluster = make_cluster(coordination_session_timeout_ms="2000")
    cluster.create_topic("t", 1)
    producer = cluster.producer("t")
    cluster.produce(producer, numbered(0))
    cluster.commit("g", "t", {0: 10})
    # The first commit has this topic made. Who is stopped while it changes the tree is ended, because others wait.
    cluster.in_sync("__offset_journal", 0, set(cluster.processes))
    node_id = chosen(cluster, whom)

    cluster.pause(node_id)
    # These lie in its sockets until it goes on: it must not answer them from what it knew before.
    write = produce_request([("t", 0, batch([b"zombie"]))])
    read = messages.OffsetFetchRequest(
        group_id="g",
        topics=[messages.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
    )
    with cluster.client(node_id) as writing, cluster.client(node_id) as reading:
        writing.send(ApiKey.PRODUCE, 9, write)
        reading.send(ApiKey.OFFSET_FETCH, 7, read)
        cluster.in_sync("t", 0, set(cluster.processes))
        cluster.produce(producer, numbered(20))
        cluster.commit("g", "t", {0: 20})
        assert cluster.committed("g", "t", 0) == 20
        cluster.resume(node_id)
        written = writing.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
        told = reading.answer(ApiKey.OFFSET_FETCH, 7)
    if told.error_code == ErrorCode.NONE:
        assert told.topics[0].partitions[0].committed_offset == 20

    cluster.in_sync("t", 0, set(cluster.ports))
    cluster.produce(producer, numbered(40))
    cluster.commit("g", "t", {0: 30})
    assert cluster.committed("g", "t", 0) == 30
    values = cluster.values("t", 0)
    assert [value for value in values if value != b"zombie"] == numbered(0, 60)
    if written.error_code == ErrorCode.NONE:
        assert values[written.base_offset] == b"zombie"
    else:
        assert written.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
    assert values.count(b"zombie") <= 1
