"""Transactions made request by request, as no client leaves them: open, hanging, by the thousand."""

import time
from collections.abc import Sequence
from typing import Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeConfigsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from barnabas.protocol.record_batch import Record, build
from barnabas.runtime.grouped import grouped
from broker_process import Client

PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
WITHIN_S = 100
HOUR_MS = 3_600_000


def asked(client: Client, api: ApiKey, version: int, request: Any, error_of: Any) -> Any:
    """The answer that is no passing error."""
    end = time.monotonic() + WITHIN_S
    while True:
        answer = client.ask(api, version, request)
        if error_of(answer) not in PASSING:
            return answer
        assert time.monotonic() < end, answer
        time.sleep(0.05)


def find_coordinator(client: Client, transactional_id: str) -> int:
    """Node id of the coordinator. The first call makes __transaction_state."""
    request = FindCoordinatorRequest(key=transactional_id, key_type=1)
    return int(asked(client, ApiKey.FIND_COORDINATOR, 2, request, lambda answer: answer.error_code).node_id)


def begin(
    client: Client, transactional_id: str, partitions: Sequence[tuple[str, int]], timeout_ms: int = 600_000
) -> tuple[int, int]:
    """Begin a transaction at its coordinator; the producer id and epoch."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )
    given = asked(client, ApiKey.INIT_PRODUCER_ID, 4, request, lambda answer: answer.error_code)
    assert not given.error_code, given
    producer = given.producer_id, given.producer_epoch
    add(client, transactional_id, producer, partitions)
    return producer


def add(
    client: Client, transactional_id: str, producer: tuple[int, int], partitions: Sequence[tuple[str, int]]
) -> None:
    """Add partitions to a transaction; the first ones begin it."""
    request = adding(transactional_id, producer, partitions)

    def error_of(answer: Any) -> int:
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    assert not error_of(asked(client, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request, error_of))


def adding(transactional_id: str, producer: tuple[int, int], partitions: Sequence[tuple[str, int]]) -> Any:
    """The request that adds partitions."""
    request = AddPartitionsToTxnRequest
    return request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[
            request.AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in grouped(partitions).items()
        ],
    )


def end(client: Client, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> int:
    """End a transaction as its producer; the error code."""
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], committed=commit
    )
    answer = asked(client, ApiKey.END_TXN, 3, request, lambda answer: answer.error_code)
    return int(answer.error_code)


def write(
    client: Client, transactional_id: str, producer: tuple[int, int], topic: str, index: int, ago_ms: int = 0
) -> int:
    """Write a record in the transaction; its offset."""
    record = Record(timestamp=int(time.time() * 1000) - ago_ms, value=b"x")
    batch = build([record], producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
    data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=index, records=batch)]
    )
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=20_000, topic_data=[data])
    row = client.ask(ApiKey.PRODUCE, 11, request).responses[0].partition_responses[0]
    assert not row.error_code, row
    return int(row.base_offset)


def commit_in_transaction(
    client: Client,
    transactional_id: str,
    producer: tuple[int, int],
    group: str,
    topic: str,
    offset: int,
    of_group: Client | None = None,
) -> None:
    """Commit an offset of partition 0 in a transaction, which this may begin. `of_group`: another coordinator."""
    offsets = AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer[0], producer_epoch=producer[1], group_id=group
    )
    answer = asked(client, ApiKey.ADD_OFFSETS_TO_TXN, 3, offsets, lambda answer: answer.error_code)
    assert not answer.error_code, answer
    request = TxnOffsetCommitRequest
    rows = [request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]

    def error_of(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    commit = request(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[request.TxnOffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
    assert not error_of(asked(of_group or client, ApiKey.TXN_OFFSET_COMMIT, 3, commit, error_of))


def trust_producers(client: Client) -> None:
    """From now on partitions take transactional batches without a question to the coordinator: some will hang."""
    alter = IncrementalAlterConfigsRequest
    setting = alter.AlterableConfig(name="transaction.partition.verification.enable", config_operation=0, value="false")
    resource = alter.AlterConfigsResource(resource_type=4, resource_name="", configs=[setting])
    (row,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, alter(resources=[resource])).responses
    assert not row.error_code, row
    describe = DescribeConfigsRequest
    broker = describe.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=[setting.name])
    end = time.monotonic() + WITHIN_S
    while True:
        answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=[broker]))
        if answer.results[0].configs[0].value == setting.value:
            return
        assert time.monotonic() < end, answer
        time.sleep(0.02)
