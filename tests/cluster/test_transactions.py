"""Transactions on three broker processes: markers are replicated, and what they decide survives the leader."""

import signal
import time
from collections.abc import Callable
from typing import Any

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FetchRequest, ProduceRequest, WriteTxnMarkersRequest
from barnabas.protocol.record_batch import Record

from cluster import NotYetError

MakeCluster = Callable[..., Any]
SETTINGS = {"transaction.partition.verification.enable": "false"}


def send(cluster: Any, producer_id: int, sequence: int, value: bytes) -> None:
    records = record_batch.build(
        [Record(timestamp=int(time.time() * 1000), value=value)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=5000, topic_data=topics)

    def attempt() -> None:
        with cluster.client(cluster.leader("t", 0)) as client:
            answer = client.ask(ApiKey.PRODUCE, 11, request).responses[0].partition_responses[0]
        if answer.error_code:
            raise NotYetError(str(answer))

    cluster.until(attempt)


def end(cluster: Any, producer_id: int, *, commit: bool) -> None:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id, transaction_result=commit, topics=[topic]
    )

    def attempt() -> None:
        with cluster.client(cluster.leader("t", 0)) as client:
            answer = client.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
        if answer.markers[0].topics[0].partitions[0].error_code:
            raise NotYetError(str(answer))

    cluster.until(attempt)


def shown(cluster: Any, stable: int) -> tuple[list[tuple[int, int]], int]:
    """Aborted transactions, and the offset behind what a consumer is given, when the leader is stable up to there."""
    partition = FetchRequest.FetchPartition(partition_max_bytes=1 << 20)
    topics = [FetchRequest.FetchTopic(topic="t", partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics)

    def read() -> tuple[list[tuple[int, int]], int]:
        with cluster.client(cluster.leader("t", 0)) as client:
            answer = client.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
        if answer.error_code or answer.last_stable_offset != stable:
            raise NotYetError(f"{answer.error_code} {answer.last_stable_offset}")
        ends = [header.next_offset for header, _ in record_batch.batches(answer.records)]
        return [(row.producer_id, row.first_offset) for row in answer.aborted_transactions], ends[-1]

    return cluster.until(read)  # type: ignore[no-any-return]


def test_what_markers_decide_survives_the_leader(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**SETTINGS)
    cluster.create_topic("t", 1)
    send(cluster, 1, 0, b"to be aborted")
    send(cluster, 2, 0, b"to be committed")
    end(cluster, 1, commit=False)
    send(cluster, 1, 1, b"open when the leader dies")
    assert shown(cluster, 1) == ([(1, 0)], 1)
    first = cluster.leader("t", 0)
    cluster.end_one(first, signal.SIGKILL)
    assert shown(cluster, 1) == ([(1, 0)], 1)
    assert cluster.leader("t", 0) != first
    end(cluster, 2, commit=True)
    assert shown(cluster, 3) == ([(1, 0)], 3)
    cluster.start(first)
    cluster.in_sync("t", 0, set(cluster.ports))
    end(cluster, 1, commit=False)
    assert shown(cluster, 6) == ([(1, 0), (1, 3)], 6)
    second = cluster.leader("t", 0)
    cluster.end_one(second, signal.SIGKILL)
    assert shown(cluster, 6) == ([(1, 0), (1, 3)], 6)
