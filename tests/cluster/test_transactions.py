"""Transactions on three broker processes: markers are replicated, and what they decide survives the leader."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import hand_made_transactions as by_hand
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.record_batch import Record
from broker_process import batch, produce_request

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
    # The leader that is back does not lead again: a marker that is sent meanwhile would be written twice.
    cluster = make_cluster(**SETTINGS, auto_leader_rebalance_enable="false")
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


def coordinator(cluster: Any, transactional_id: str) -> int:
    def find() -> int:
        with cluster.client(cluster.any_broker()) as client:
            answer = client.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=transactional_id, key_type=1))
        if answer.error_code:
            raise NotYetError(str(answer))
        return int(answer.node_id)

    return int(cluster.until(find))


def ask_coordinator(cluster: Any, api: ApiKey, version: int, request: Any, error_of: Callable[[Any], int]) -> Any:
    """The answer of the coordinator of `t`, when it is no error."""

    def ask() -> Any:
        with cluster.client(coordinator(cluster, "t")) as client:
            answer = client.ask(api, version, request)
        if error_of(answer):
            raise NotYetError(str(answer))
        return answer

    return cluster.until(ask)


def begin(cluster: Any, partitions: int) -> tuple[int, int]:
    init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
    given = ask_coordinator(cluster, ApiKey.INIT_PRODUCER_ID, 4, init, lambda answer: answer.error_code)
    add = AddPartitionsToTxnRequest
    topics = [add.AddPartitionsToTxnTopic(name="t", partitions=list(range(partitions)))]
    request = add(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=given.producer_id,
        v3_and_below_producer_epoch=given.producer_epoch,
        v3_and_below_topics=topics,
    )
    ask_coordinator(
        cluster,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        request,
        lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
    )
    return given.producer_id, given.producer_epoch


def end_of_log(cluster: Any, index: int) -> int:
    with cluster.client(cluster.leader("t", index)) as client:
        offset: int = client.end_offset("t", index)
    return offset


def is_complete(cluster: Any, partitions: int, markers: int) -> None:
    def check() -> None:
        with cluster.client(coordinator(cluster, "t")) as client:
            request = DescribeTransactionsRequest(transactional_ids=["t"])
            state = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states[0]
        ends = [end_of_log(cluster, index) for index in range(partitions)]
        if state.transaction_state != "CompleteCommit" or min(ends) < markers:
            raise NotYetError(f"{state} {ends}")

    cluster.until(check)


def test_a_coordinator_ends_transactions_on_all_brokers_and_its_successor_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**{"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"})
    cluster.create_topic("t", 3)
    cluster.balance()
    producer_id, epoch = begin(cluster, 3)
    assert len({cluster.leader("t", index) for index in range(3)}) == 3
    end_request = EndTxnRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch, committed=True)
    ask_coordinator(cluster, ApiKey.END_TXN, 4, end_request, lambda answer: answer.error_code)
    is_complete(cluster, 3, markers=1)
    # The coordinator dies in the middle of a transaction. Its successor has loaded it, and ends it.
    producer_id, epoch = begin(cluster, 3)
    first = coordinator(cluster, "t")
    cluster.end_one(first, signal.SIGKILL)
    end_request.producer_id, end_request.producer_epoch = producer_id, epoch
    ask_coordinator(cluster, ApiKey.END_TXN, 4, end_request, lambda answer: answer.error_code)
    assert coordinator(cluster, "t") != first
    is_complete(cluster, 3, markers=2)


THREE_STATES = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}


def produce_to(cluster: Any, index: int, producer: tuple[int, int], sequence: int, version: int) -> int:
    """The error of one batch, asked of the partition's leader."""
    records = record_batch.build(
        [Record(timestamp=int(time.time() * 1000), value=b"%d" % sequence)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=True,
    )
    data = ProduceRequest.PartitionProduceData(index=index, records=records)
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=5000, topic_data=topics)
    with cluster.client(cluster.leader("t", index)) as client:
        answer = client.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]
    return int(answer.error_code)


def end_version_two(cluster: Any, producer: tuple[int, int]) -> tuple[int, int]:
    """Commit; what the producer uses next."""
    request = EndTxnRequest(transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], committed=True)
    answer = ask_coordinator(cluster, ApiKey.END_TXN, 5, request, lambda answer: answer.error_code)
    return answer.producer_id, answer.producer_epoch


def test_leaders_on_all_brokers_ask_the_coordinator_and_its_successor(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**THREE_STATES, add_partitions_to_txn_retry_backoff_max_ms="4000")
    cluster.create_topic("t", 3)
    cluster.balance()
    assert len({cluster.leader("t", index) for index in range(3)}) == 3, "one of them coordinates the transaction"
    producer = begin(cluster, 1)
    assert [produce_to(cluster, index, producer, 0, 11) for index in range(2)] == [
        ErrorCode.NONE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ]
    producer = end_version_two(cluster, producer)
    for _ in range(5):  # without a pause: the markers are still on their way, and who leads waits for them
        assert [produce_to(cluster, index, producer, 0, 12) for index in range(3)] == [ErrorCode.NONE] * 3
        producer = end_version_two(cluster, producer)
    is_complete(cluster, 3, markers=10)
    assert [end_of_log(cluster, index) for index in range(3)] == [12, 10, 10]

    # The coordinator dies. Until the leaders know its successor, their producers hear an error that is retried.
    first = coordinator(cluster, "t")
    index = next(each for each in range(3) if cluster.leader("t", each) != first)
    ended = end_of_log(cluster, index)
    cluster.end_one(first, signal.SIGKILL)
    heard = set()

    def attempt() -> None:
        error = produce_to(cluster, index, producer, 0, 12)
        if error:
            heard.add(error)
            raise NotYetError(str(error))

    cluster.until(attempt)
    assert heard <= {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS}
    assert coordinator(cluster, "t") != first
    end_version_two(cluster, producer)
    is_complete(cluster, 3, markers=10)
    assert end_of_log(cluster, index) == ended + 2, "a record and its marker"


def command(cluster: Any, node_id: int, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.barnabas("transactions", *words, BARNABAS_BOOTSTRAP=f"127.0.0.1:{cluster.ports[node_id]}")


def test_a_transaction_is_described_while_a_new_leader_waits_for_replicas(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(transaction_state_log_replication_factor="3", transaction_state_log_min_isr="2")
    cluster.create_topic("t", 3)
    coordinator(cluster, "t")
    cluster.balance()
    left = coordinator(cluster, "t")
    with cluster.client(left) as client:
        by_hand.begin(client, "t", [("t", index) for index in range(3)])
    index = next(index for index in range(3) if cluster.leader("t", index) != left)
    leader = cluster.leader("t", index)
    other = 3 - left - leader
    with cluster.client(leader) as client:
        cluster.pause(other)  # so what is written now is in two replicas, and not committed
        client.send(ApiKey.PRODUCE, 9, produce_request([("t", index, batch([b"x"]))]))
        cluster.until(lambda: has_records(tmp_path / f"broker-{left}" / f"t-{index}"))
    cluster.end_one(leader, signal.SIGKILL)
    cluster.resume(other)
    cluster.end_one(other, signal.SIGKILL)
    for each in range(3):
        cluster.until(lambda each=each: cluster.partition("t", each))

    described = command(cluster, left, "describe", "t", "--json")
    assert described.returncode == 0, described
    found = json.loads(described.stdout)
    assert (found["state"], len(found["partitions"])) == ("Ongoing", 3)
    row = found["partitions"][index]
    assert (row["last_stable_offset"], row["high_watermark"]) == (None, None)
    assert row["note"] == "its leader waits for replicas: it does not say how far consumers get"
    assert command(cluster, left, "find-hanging", "--longer-than", "0").returncode == 0
    refused = command(cluster, left, "abort", "t", "--yes")
    assert refused.returncode == 1
    assert "t is not aborted: its coordinator cannot write that now (COORDINATOR_NOT_AVAILABLE)" in refused.stderr
    assert "barnabas doctor" in refused.stderr


def has_records(folder: Path) -> None:
    if not any(path.stat().st_size for path in folder.glob("*.log")):
        raise NotYetError(f"nothing in {folder}")


def test_a_transaction_whose_coordinator_is_gone_is_not_called_hanging(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(transaction_state_log_replication_factor="1")
    cluster.create_topic("t", 1)
    gone = coordinator(cluster, "t")
    with cluster.client(gone) as client:
        producer = by_hand.begin(client, "t", [("t", 0)])
    with cluster.client(cluster.leader("t", 0)) as client:
        by_hand.write(client, "t", producer, "t", 0)
    cluster.end_one(gone, signal.SIGKILL)
    left = cluster.leader("t", 0)
    cluster.until(lambda: without_leader(cluster))
    looked = command(cluster, left, "find-hanging", "--longer-than", "0")
    assert (looked.returncode, "transactions abort" in looked.stdout) == (0, False), looked
    assert "__transaction_state-0" in looked.stderr
    refused = command(cluster, left, "abort", "--topic=t", "--partition", "0", "--start-offset", "0", "--yes")
    assert (refused.returncode, "__transaction_state-0 has no leader" in refused.stderr) == (1, True), refused


def without_leader(cluster: Any) -> None:
    """Wait until the broker that led __transaction_state is known to be gone."""
    if cluster.metadata("__transaction_state").topics[0].partitions[0].leader_id != -1:
        raise NotYetError("it has a leader")
