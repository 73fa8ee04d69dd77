"""Requests about one partition, which clients of many kinds send."""

from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.protocol import record_batch
from barnabas.protocol.messages import FetchRequest, ListOffsetsRequest, ProduceRequest
from barnabas.protocol.record_batch import Record

from simulator.ledger import TopicPartition

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


def batch_of(value: str, now_ms: int) -> bytes:
    """A batch with this value as its only record."""
    return bytes(record_batch.build([Record(offset=0, timestamp=now_ms, key=None, value=value.encode(), headers=[])]))


def produce_request(
    key: TopicPartition,
    data: bytes,
    *,
    topic_id: bytes = NO_TOPIC_ID,
    acks: int = -1,
    timeout_ms: int = 5_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request with one batch. From version 13 on the id names the topic."""
    partition = ProduceRequest.PartitionProduceData(index=key[1], records=data)
    topic = ProduceRequest.TopicProduceData(name=key[0], topic_id=topic_id, partition_data=[partition])
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


def fetch_request(
    key: TopicPartition,
    position: int,
    max_wait_ms: int,
    max_bytes: int,
    *,
    topic_id: bytes,
    isolation: int = READ_UNCOMMITTED,
) -> FetchRequest:
    """A request without a session. From version 13 on the id names the topic."""
    partition = FetchRequest.FetchPartition(partition=key[1], fetch_offset=position, partition_max_bytes=max_bytes)
    topic = FetchRequest.FetchTopic(topic=key[0], topic_id=topic_id, partitions=[partition])
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, topics=[topic]
    )


def list_offsets_request(key: TopicPartition, timestamp: int, isolation: int) -> ListOffsetsRequest:
    """Where the log starts (-2) or ends (-1)."""
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=key[1], timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name=key[0], partitions=[partition])
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
