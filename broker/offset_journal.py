"""Where the offset journal is: its logs here, and how the leaders of its other partitions are reached (by Produce and
Fetch, as any client does). What is written there, and when, is in offsets/journal_writer.py."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barnabas.broker.api.produce import ADMIN_CLIENT_ID
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.coordinators.shard import PartitionLog
from barnabas.offsets.journal_place import Leader
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import PlainBatch
from barnabas.replication.partition import ALL_IN_SYNC, Partition
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer
from barnabas.storage.validation import AppendOrigin

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.cluster.broker_client import BrokerClient
    from barnabas.protocol.messages import FetchResponse, ListOffsetsResponse, ProduceResponse

logger = logging.getLogger("barnabas.offsets")

PURPOSE = "offset-journal"
ANSWER_WITHIN_MS = 10_000
READ_BYTES = 1 << 20
MISSING_TOLD_AFTER_MS = 10_000.0  # partitions of a new topic are told one after the other
LATEST = -1
ACKS_LEADER = 1
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION = 9, 12, 6  # topics by name


class LedJournalLog:
    """A `JournalLog` over the local replica."""

    __slots__ = ("_node_id", "_partition")

    def __init__(self, node_id: int, partition: Partition) -> None:
        self._node_id = node_id
        self._partition = partition

    @property
    def leader(self) -> Leader:
        """This broker and the epoch in which it leads now; another value if it does not."""
        partition = self._partition
        return (self._node_id if partition.is_leader else -1), partition.leader_epoch, partition.topic_id or NO_TOPIC_ID

    def append(self, batch: PlainBatch) -> ErrorCode:
        """Append without waiting for replicas."""
        return self._partition.append_as_leader(batch, origin=AppendOrigin.COORDINATOR, required_acks=ACKS_LEADER).error

    @property
    def log_end_offset(self) -> int:
        """The offset after its last record."""
        return self._partition.log.log_end_offset

    def last_batch(self, before: int | None) -> Buffer:
        """The last batch before an offset, or of all; empty if there is none. OSError when it cannot be read."""
        log = self._partition.log
        end = log.log_end_offset if before is None else before
        if end <= log.log_start_offset:
            return b""
        return PartitionLog(self._partition).read(end - 1, 1)


class JournalOfBroker:
    """A `JournalPlace` for one broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.topic_id = services.metadata_cache.topic_id
        self._missing_ms = (float("-inf"), float("-inf"))  # a partition of the journal was missing from then to then
        self._missing_is_told = False

    def leader(self, partition: int) -> Leader | None:
        """Who leads a partition of the journal; None: it does not exist, or has no live leader."""
        led = self._services.replica_manager.partitions.get((JOURNAL_TOPIC, partition))
        if led is not None and led.is_leader:
            return self._services.node_id, led.leader_epoch, led.topic_id or NO_TOPIC_ID
        cache = self._services.metadata_cache
        state = cache.partition(JOURNAL_TOPIC, partition)
        if state is None and self.exists():
            self._note_missing()
        if state is None or state.leader_id == self._services.node_id or not cache.is_alive(state.leader_id):
            return None
        return state.leader_id, state.leader_epoch, self.topic_id(JOURNAL_TOPIC)

    def _note_missing(self) -> None:
        """Say once that a journal was made by hand, or for another `__consumer_offsets`."""
        now_ms = self._services.env.clock.monotonic_ms()
        since_ms, last_ms = self._missing_ms
        if now_ms - last_ms > MISSING_TOLD_AFTER_MS / 2:
            since_ms = now_ms  # it was there meanwhile
        self._missing_ms = (since_ms, now_ms)
        if now_ms - since_ms >= MISSING_TOLD_AFTER_MS and not self._missing_is_told:
            self._missing_is_told = True
            text = "%s has fewer partitions than %s, so not all changes can be written. Delete it: it is made again"
            logger.warning(text, JOURNAL_TOPIC, OFFSETS_TOPIC)

    def local(self, partition: int) -> LedJournalLog | None:
        led = self._services.replica_manager.partitions.get((JOURNAL_TOPIC, partition))
        return LedJournalLog(self._services.node_id, led) if led is not None and led.is_leader else None

    def exists(self) -> bool:
        return self._services.metadata_cache.contains(JOURNAL_TOPIC)

    def create(self) -> None:
        self._services.auto_topics.create(JOURNAL_TOPIC)

    def send(self, partition: int, leader_id: int, batch: Buffer) -> Pending[ErrorCode]:
        """Append at the broker that leads it."""
        client = self._client(leader_id)
        if client is None:
            return Pending.of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        topic_type = messages.ProduceRequest.TopicProduceData
        row = messages.ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = messages.ProduceRequest(
            acks=ALL_IN_SYNC,
            timeout_ms=ANSWER_WITHIN_MS // 2,
            topic_data=[topic_type(name=JOURNAL_TOPIC, partition_data=[row])],
        )
        answer: Pending[ProduceResponse | None] = client.send(request, PRODUCE_VERSION)
        return answer.map(_produced)

    def fetch_last_batch(self, partition: int, leader_id: int, before: int | None) -> Pending[Buffer | None]:
        """The last batch before an offset, or of all, from the broker that leads it; None: it cannot be read now."""
        client = self._client(leader_id)
        if client is None:
            return Pending.of(None)
        if before is not None:
            return _fetch(client, partition, before - 1)
        topic_type = messages.ListOffsetsRequest.ListOffsetsTopic
        row = messages.ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = messages.ListOffsetsRequest(topics=[topic_type(name=JOURNAL_TOPIC, partitions=[row])])

        def ended(response: ListOffsetsResponse | None) -> Pending[Buffer | None] | None:
            row = None if response is None else response.topics[0].partitions[0]
            return None if row is None or row.error_code else _fetch(client, partition, row.offset - 1)

        return client.send(request, LIST_OFFSETS_VERSION).and_then(ended)

    def _client(self, leader_id: int) -> BrokerClient | None:
        # Under this name a client may write to internal topics, as in Kafka.
        return self._services.broker_clients.to(leader_id, PURPOSE, ANSWER_WITHIN_MS, ADMIN_CLIENT_ID)


def _fetch(client: BrokerClient, partition: int, offset: int) -> Pending[Buffer | None]:
    if offset < 0:
        return Pending.of(b"")
    topic_type = messages.FetchRequest.FetchTopic
    row = messages.FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=READ_BYTES)
    request = messages.FetchRequest(
        max_wait_ms=0,
        max_bytes=READ_BYTES,
        topics=[topic_type(topic=JOURNAL_TOPIC, partitions=[row])],
    )

    def fetched(response: FetchResponse | None) -> Buffer | None:
        row = None if response is None or response.error_code else response.responses[0].partitions[0]
        if row is not None and row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return b""  # all of it is older than its retention
        # Without an error and without records: its followers lack the batch, as just after a change of the leader.
        return None if row is None or row.error_code else row.records or None

    return client.send(request, FETCH_VERSION).map(fetched)


def _produced(response: ProduceResponse | None) -> ErrorCode:
    if response is None:
        return ErrorCode.NETWORK_EXCEPTION
    return ErrorCode(response.responses[0].partition_responses[0].error_code)
