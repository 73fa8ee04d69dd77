"""Sends the markers of ended transactions to the leaders of their partitions, until every partition has its marker.

Markers go by WriteTxnMarkers, also to this broker itself. Those of one pass of the loop that go to the same broker
travel in one request. A marker may arrive twice: it does no harm (storage/producer_state.py).

A topic may be deleted while a transaction is open, and made again under its name. The deleted partition needs no
marker. In the new one a marker would do harm: after it, a producer that has written nothing there would have to begin
with sequence 0. But the producer may have written there, too. So if a topic has another id than the transaction knows,
the partition's leader is asked whether it knows the producer. A transaction that was loaded knows no ids: there the
topic is the same if the tree says that it is older than the transaction. In Kafka, WriteTxnMarkers has only names. Here
it has the id, too, as a tagged field that Kafka ignores: a leader refuses a marker that was under way while its topic
was made again, and the coordinator looks anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from barnabas.cluster.metadata_cache import NO_TOPIC_ID, MetadataCache
from barnabas.coordinators.transactions.decisions import EPOCH_BUMP_VERSION
from barnabas.coordinators.transactions.metadata import Transaction
from barnabas.coordinators.transactions.shard import TransactionShard
from barnabas.coordinators.transactions.states import PREPARE_COMMIT
from barnabas.coordinators.transactions.topic_ages import Ages, TopicAges
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.grouped import grouped
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer

logger = logging.getLogger("barnabas.transactions")

RETRY_MS = 100.0
MISSING_MS = 10_000.0  # a partition that is not known for so long was deleted, and needs no marker
VERSION, VERSION_THAT_RAISES_EPOCHS = 1, 2
DESCRIBE_PRODUCERS_VERSION = 0

TopicPartition = tuple[str, int]
AskBroker = Callable[[int, Message, int], Pending[Any]]

_DONE = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


class Ending:
    """A transaction whose markers are on their way. `left`: the partitions that have none yet.

    `topic_ids` are those of the topics that the producer has written to, as far as they are known. `is_looked_up`: the
    tree was asked for the others.
    """

    __slots__ = ("dropped", "is_looked_up", "left", "missing_since_ms", "shard", "topic_ids", "value")

    def __init__(self, shard: TransactionShard, value: Transaction, topic_ids: dict[TopicPartition, bytes]) -> None:
        self.shard = shard
        self.value = value
        self.topic_ids = topic_ids
        self.left = set(value.partitions)
        self.missing_since_ms: dict[TopicPartition, float] = {}
        self.is_looked_up = False
        self.dropped = False

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for its markers any more."""
        return self.dropped or self.shard.closed


class Markers:
    """The endings under way. `done` is called with each whose partitions all have their marker."""

    def __init__(
        self,
        clock: Clock,
        metadata_cache: MetadataCache,
        ages: TopicAges,
        ask: AskBroker,
        done: Callable[[Ending], None],
    ) -> None:
        self._clock = clock
        self._metadata_cache = metadata_cache
        self._ages = ages
        self._ask = ask
        self._done = done
        self._endings: dict[Ending, None] = {}
        self._unsent: list[tuple[Ending, list[TopicPartition]]] = []
        self._refused: list[tuple[Ending, list[TopicPartition]]] = []
        self._retry: Timer | None = None
        self._flush_is_due = False

    def __len__(self) -> int:
        return len(self._endings)

    def end(self, shard: TransactionShard, value: Transaction) -> None:
        """Send the markers of a prepared transaction."""
        entry = shard.entries[value.transactional_id]
        ending = Ending(shard, value, entry.topic_ids)
        entry.unmarked = ending.left
        self._endings[ending] = None
        self._send(ending, sorted(ending.left))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions were deleted: they need no markers."""
        gone = set(partitions)
        for ending in [each for each in self._endings if not gone.isdisjoint(each.left)]:
            ending.left -= gone
            self._look(ending)

    def stop(self) -> None:
        for ending in list(self._endings):
            self._drop(ending)
        self._ages.stop()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _drop(self, ending: Ending) -> None:
        ending.dropped = True
        self._endings.pop(ending, None)

    def _send(self, ending: Ending, partitions: list[TopicPartition]) -> None:
        self._unsent.append((ending, partitions))
        if not self._flush_is_due:
            self._flush_is_due = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        unsent, self._unsent = self._unsent, []
        by_broker: dict[int, list[tuple[Ending, list[TopicPartition]]]] = {}
        doubtful: dict[int, list[tuple[Ending, TopicPartition]]] = {}
        loaded: list[tuple[Ending, list[TopicPartition]]] = []
        for ending, partitions in unsent:
            if ending.is_over:
                self._drop(ending)
                continue
            if not ending.is_looked_up and any(self._lacks_id(ending, each) for each in partitions):
                loaded.append((ending, partitions))
                continue
            places: dict[int, list[TopicPartition]] = {}
            unknown: list[TopicPartition] = []
            for partition in partitions:
                if partition not in ending.left:
                    continue
                leader = self._metadata_cache.leader(*partition)
                topic_id, known = self._metadata_cache.topic_id(partition[0]), ending.topic_ids.get(partition)
                if leader is not None and topic_id in (known, NO_TOPIC_ID):
                    places.setdefault(leader.broker_id, []).append(partition)
                elif leader is not None:
                    doubtful.setdefault(leader.broker_id, []).append((ending, partition))
                elif not self._is_deleted(ending, partition):
                    unknown.append(partition)
            for leader_id, led in places.items():
                by_broker.setdefault(leader_id, []).append((ending, led))
            if unknown:
                self._again(ending, unknown)
            self._look(ending)
        for broker_id, sendings in by_broker.items():
            self._send_to(broker_id, sendings)
        for broker_id, asked in doubtful.items():
            self._ask_for_producers(broker_id, asked)
        if loaded:
            self._look_up(loaded)

    def _lacks_id(self, ending: Ending, partition: TopicPartition) -> bool:
        """Whether it is not known to which topic a partition belongs. A topic without an id is known by its name."""
        cache = self._metadata_cache
        has_none = cache.contains(*partition) and cache.topic_id(partition[0]) == NO_TOPIC_ID
        return partition not in ending.topic_ids and not has_none

    def _look_up(self, loaded: list[tuple[Ending, list[TopicPartition]]]) -> None:
        """Ask the tree which topics are gone, and which are older than their transactions."""
        topic_ids = {topic: self._metadata_cache.topic_id(topic) for _, parts in loaded for topic, _ in parts}
        self._ages.ask(list(topic_ids)).then(lambda ages: self._ages_are_known(loaded, topic_ids, ages))

    def _ages_are_known(
        self, loaded: list[tuple[Ending, list[TopicPartition]]], topic_ids: dict[str, bytes], ages: Ages
    ) -> None:
        for ending, partitions in loaded:
            ending.is_looked_up = True
            for partition in partitions:
                topic, _ = partition
                made_ms = ages.get(topic)
                if not self._lacks_id(ending, partition):
                    continue
                if topic in ages and made_ms is None:
                    ending.left.discard(partition)
                elif made_ms is not None and made_ms <= ending.value.start_ms and topic_ids[topic] != NO_TOPIC_ID:
                    ending.topic_ids[partition] = topic_ids[topic]
            self._send(ending, partitions)

    def _ask_for_producers(self, broker_id: int, asked: list[tuple[Ending, TopicPartition]]) -> None:
        """Ask a leader in which of these partitions the producer has written."""
        topic_ids = {partition: self._metadata_cache.topic_id(partition[0]) for _, partition in asked}
        make_topic = messages.DescribeProducersRequest.TopicRequest
        request = messages.DescribeProducersRequest(
            topics=[make_topic(name=topic, partition_indexes=indexes) for topic, indexes in grouped(topic_ids).items()]
        )
        answer = self._ask(broker_id, request, DESCRIBE_PRODUCERS_VERSION)
        answer.then(lambda response: self._producers_are_known(broker_id, asked, topic_ids, response))

    def _producers_are_known(
        self,
        broker_id: int,
        asked: list[tuple[Ending, TopicPartition]],
        topic_ids: dict[TopicPartition, bytes],
        response: messages.DescribeProducersResponse | None,
    ) -> None:
        producers: dict[TopicPartition, set[int]] = {}
        for topic in () if response is None else response.topics:
            for row in topic.partitions:
                if not row.error_code:
                    producers[topic.name, row.partition_index] = {each.producer_id for each in row.active_producers}
        for ending, partition in asked:
            if ending.is_over:
                self._drop(ending)
                continue
            leader = self._metadata_cache.leader(*partition)
            if partition not in producers or leader is None or leader.broker_id != broker_id:
                self._again(ending, [partition])
            elif ending.value.producer_id in producers[partition]:
                ending.topic_ids[partition] = topic_ids[partition]
                self._send(ending, [partition])
            else:
                ending.left.discard(partition)
            self._look(ending)

    def _is_deleted(self, ending: Ending, partition: TopicPartition) -> bool:
        """Whether a partition without a leader is gone. One that is just not known yet comes soon."""
        if self._metadata_cache.contains(*partition):
            ending.missing_since_ms.pop(partition, None)
            return False
        now_ms = self._clock.monotonic_ms()
        was_known = partition in ending.topic_ids
        if not was_known and now_ms - ending.missing_since_ms.setdefault(partition, now_ms) < MISSING_MS:
            return False
        ending.left.discard(partition)
        return True

    def _send_to(self, broker_id: int, sendings: list[tuple[Ending, list[TopicPartition]]]) -> None:
        raises = any(ending.value.client_version >= EPOCH_BUMP_VERSION for ending, _ in sendings)
        request = messages.WriteTxnMarkersRequest(
            markers=[_marker(ending, partitions) for ending, partitions in sendings]
        )
        answer = self._ask(broker_id, request, VERSION_THAT_RAISES_EPOCHS if raises else VERSION)
        answer.then(lambda response: self._answered(sendings, response))

    def _answered(
        self, sendings: list[tuple[Ending, list[TopicPartition]]], response: messages.WriteTxnMarkersResponse | None
    ) -> None:
        errors: dict[tuple[int, str, int], int] = {}
        if response is not None:
            for result in response.markers:
                for topic in result.topics:
                    for row in topic.partitions:
                        errors[result.producer_id, topic.name, row.partition_index] = row.error_code
        for ending, partitions in sendings:
            if ending.is_over:
                self._drop(ending)
                continue
            refused = []
            for partition in partitions:
                code = errors.get((ending.value.producer_id, *partition))
                if code in _DONE:
                    ending.left.discard(partition)
                elif code in _FENCED:
                    text = "transaction of %s: %s-%d refuses its marker (%s), so another coordinator has ended it"
                    name = ErrorCode.of(code).name
                    logger.warning(text, ending.value.transactional_id, *partition, name)
                    self._drop(ending)  # the others that are done are taken out all the same
                else:
                    refused.append(partition)
            if refused and not ending.dropped:
                self._again(ending, refused)
            self._look(ending)

    def _again(self, ending: Ending, partitions: list[TopicPartition]) -> None:
        self._refused.append((ending, partitions))
        if self._retry is None:
            self._retry = self._clock.call_later(RETRY_MS, self._send_again)

    def _send_again(self) -> None:
        self._retry = None
        refused, self._refused = self._refused, []
        for ending, partitions in refused:
            self._send(ending, partitions)

    def _look(self, ending: Ending) -> None:
        if not ending.left and not ending.is_over and ending in self._endings:
            del self._endings[ending]
            self._done(ending)


def _marker(ending: Ending, partitions: list[TopicPartition]) -> messages.WriteTxnMarkersRequest.WritableTxnMarker:
    value = ending.value
    topics: dict[tuple[str, bytes], list[int]] = {}
    for topic, index in partitions:
        topic_id = ending.topic_ids.get((topic, index), NO_TOPIC_ID)
        topics.setdefault((topic, topic_id), []).append(index)
    return messages.WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        transaction_result=value.state is PREPARE_COMMIT,
        topics=[
            messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                name=topic, partition_indexes=indexes, topic_id=topic_id
            )
            for (topic, topic_id), indexes in topics.items()
        ],
        coordinator_epoch=ending.shard.leader_epoch,
        transaction_version=value.client_version,
    )
