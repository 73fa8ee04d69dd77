"""The broker's knowledge of the cluster: brokers, topics, partition states. Only UpdateMetadata changes it."""

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Final

from barnabas.cluster.leader_and_isr import LEADER_DURING_DELETE
from barnabas.protocol.messages import UpdateMetadataRequest
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer

NO_TOPIC_ID = bytes(16)
_COUNT: Final = struct.Struct(">i")
FULL = 2  # the type of an UpdateMetadata that has all topics


class Endpoint(NamedTuple):
    """An address at which a broker listens. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerMetadata(NamedTuple):
    """A live broker."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its endpoint on a listener, if it has one there."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


class PartitionMetadata(NamedTuple):
    """The last state of a partition that the controller sent."""

    leader_id: int  # -1: none
    leader_epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]
    offline_replicas: Sequence[int]


class _Waiter:
    __slots__ = ("pending", "predicate", "timer")

    def __init__(self, pending: Pending[bool], predicate: Callable[[], bool]) -> None:
        self.pending = pending
        self.predicate = predicate
        self.timer: Timer | None = None


def hash_of_topic(topic_id: bytes, racks: Sequence[Sequence[str]]) -> int:
    """A hash of a topic's id, its partitions, and the racks of their replicas: for each partition sorted, each once."""
    digest = blake2b(topic_id, digest_size=8)
    digest.update(_COUNT.pack(len(racks)))
    if any(racks):
        for of_partition in racks:
            digest.update(repr(list(of_partition)).encode())
    return int.from_bytes(digest.digest(), "big")


class MetadataCache:
    """Reads are plain look-ups. `topics` maps a name to its partitions by index; do not change what you are given."""

    def __init__(self, clock: Clock) -> None:
        self.controller_id = -1
        self.changes = 0  # grows with each UpdateMetadata
        self.name_changes = 0  # grows when there are other topics
        self.largest_leader_epoch = -1  # of all partitions, and of all that were deleted since this broker started
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, dict[int, PartitionMetadata]] = {}
        self.on_brokers: list[Callable[[], None]] = []  # called when other brokers live, or another one is controller
        self.on_missing: list[Callable[[list[tuple[str, int]]], None]] = []  # told of partitions that are gone
        self.on_update: list[Callable[[], None]] = []  # called when the controller has told something
        self._racks: dict[int, str] = {}  # of each broker that has one, as it was when the broker lived last
        self._hashes: dict[str, int] = {}  # of topics that somebody has asked for
        self._ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._clock = clock
        self._waiters: dict[_Waiter, None] = {}

    # --- look-ups ---

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker is registered, as far as the controller has said."""
        return broker_id in self.brokers

    def contains(self, topic: str, index: int | None = None) -> bool:
        """Whether the topic (and the partition in it) exists."""
        partitions = self.topics.get(topic)
        return partitions is not None and (index is None or index in partitions)

    def partition(self, topic: str, index: int) -> PartitionMetadata | None:
        partitions = self.topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0: no such topic."""
        return len(self.topics.get(topic, ()))

    def topic_names(self) -> Collection[str]:
        return self.topics.keys()

    def topic_hash(self, topic: str) -> int:
        """A hash of what the topic is: its id, its partitions and their racks. 0: no such topic."""
        found = self._hashes.get(topic)
        if found is None:
            topic_id = self.topic_id(topic)
            if topic_id == NO_TOPIC_ID:
                return 0
            found = self._hashes[topic] = hash_of_topic(topic_id, self._partition_racks(topic))
        return found

    def _partition_racks(self, topic: str) -> list[list[str]]:
        """For each partition in order, the racks of its replicas, sorted, each once. A broker that is down has one."""
        partitions = self.topics.get(topic, {})
        racks = self._racks
        if not racks:
            return [[]] * len(partitions)
        return [
            sorted({racks[broker_id] for broker_id in partitions[index].replicas if broker_id in racks})
            for index in sorted(partitions)
        ]

    def topic_id(self, topic: str) -> bytes:
        """Id of a topic; zero when it has none or does not exist."""
        return self._ids.get(topic, NO_TOPIC_ID)

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names.get(topic_id)

    def leader(self, topic: str, index: int) -> BrokerMetadata | None:
        """The live leader of a partition."""
        state = self.partition(topic, index)
        return None if state is None else self.brokers.get(state.leader_id)

    def has_leaders(self, topic: str, partition_count: int, first: int = 0) -> bool:
        """Whether the partitions from `first` to that count exist and each has a live leader.

        A request that makes partitions waits for this. Older ones may be offline meanwhile.
        """
        partitions = self.topics.get(topic)
        return partitions is not None and all(
            index in partitions and partitions[index].leader_id in self.brokers
            for index in range(first, partition_count)
        )

    # --- waiting ---

    def wait_for(self, predicate: Callable[[], bool], timeout_ms: float) -> Pending[bool]:
        """True as soon as `predicate` holds after some UpdateMetadata (or now), False at the timeout."""
        pending: Pending[bool] = Pending()
        if predicate():
            pending.complete(True)
            return pending
        if timeout_ms <= 0:
            pending.complete(False)
            return pending
        waiter = _Waiter(pending, predicate)
        self._waiters[waiter] = None
        waiter.timer = self._clock.call_later(timeout_ms, lambda: self._end_wait(waiter, False))
        pending.on_cancel = lambda: self._end_wait(waiter, False)
        return pending

    def _end_wait(self, waiter: _Waiter, value: bool) -> None:
        if waiter not in self._waiters:
            return
        del self._waiters[waiter]
        if waiter.timer is not None:
            waiter.timer.cancel()
        waiter.pending.complete(value)

    def _serve_waiters(self) -> None:
        for waiter in list(self._waiters):
            if waiter.predicate():
                self._end_wait(waiter, True)

    # --- UpdateMetadata ---

    def update(self, request: UpdateMetadataRequest) -> list[tuple[str, int]]:
        """Apply an UpdateMetadata: it replaces the brokers and adds to the partitions. Returns deleted partitions.

        Topics that a full one does not have were deleted while this broker heard nothing. They are forgotten, and
        `on_missing` is told, but they are no deletions that happen now.
        """
        self.changes += 1
        former = (self.controller_id, self.brokers)
        self.controller_id = request.controller_id
        self._replace_brokers(request.live_brokers)
        if former != (self.controller_id, self.brokers):
            for listener in self.on_brokers:
                listener()
        deleted: list[tuple[str, int]] = []
        if request.type == FULL:
            present = {topic_state.topic_name for topic_state in request.topic_states}
            missing = {topic: list(self.topics[topic]) for topic in self.topics if topic not in present}
            for topic in missing:
                self._forget(topic)
            if missing:
                for tell in self.on_missing:
                    tell([(topic, index) for topic, indexes in missing.items() for index in indexes])
        for topic_state in request.topic_states:
            topic = topic_state.topic_name
            if topic_state.topic_id not in (NO_TOPIC_ID, self._ids.get(topic, topic_state.topic_id)):
                self._forget(topic)  # it was deleted and made again
            partitions = self.topics.get(topic)
            count = 0 if partitions is None else len(partitions)
            for state in topic_state.partition_states:
                if state.leader == LEADER_DURING_DELETE:
                    deleted.append((topic, state.partition_index))
                    if partitions is not None:
                        partitions.pop(state.partition_index, None)
                    continue
                if partitions is None:
                    partitions = self.topics[topic] = {}
                    self.name_changes += 1
                self.largest_leader_epoch = max(self.largest_leader_epoch, state.leader_epoch)
                partitions[state.partition_index] = PartitionMetadata(
                    state.leader,
                    state.leader_epoch,
                    state.isr,
                    state.replicas,
                    state.offline_replicas,
                )
            if self._racks or partitions is None or len(partitions) != count:
                self._hashes.pop(topic, None)
            if partitions is not None and not partitions:
                del self.topics[topic]
                self.name_changes += 1
            self._set_topic_id(topic, topic_state.topic_id if topic in self.topics else NO_TOPIC_ID)
        if self._waiters:
            self._clock.call_soon(self._serve_waiters)
        for listener in self.on_update:
            listener()
        return deleted

    def _forget(self, topic: str) -> None:
        del self.topics[topic]
        self.name_changes += 1
        self._set_topic_id(topic, NO_TOPIC_ID)

    def _replace_brokers(self, live: Iterable[UpdateMetadataRequest.UpdateMetadataBroker]) -> None:
        self.brokers = {
            broker.id: BrokerMetadata(
                broker.id,
                tuple(
                    Endpoint(endpoint.listener, endpoint.host, endpoint.port, endpoint.security_protocol)
                    for endpoint in broker.endpoints
                ),
                broker.rack,
            )
            for broker in live
        }
        before = dict(self._racks)
        for broker_id, broker in self.brokers.items():
            if broker.rack is not None:
                self._racks[broker_id] = broker.rack
            else:
                self._racks.pop(broker_id, None)
        if self._racks != before:
            self._hashes.clear()

    def _set_topic_id(self, topic: str, topic_id: bytes) -> None:
        known = self._ids.get(topic)
        if known == topic_id:
            return
        self._hashes.pop(topic, None)
        if known is not None:
            del self._ids[topic]
            self._names.pop(known, None)
        if topic_id != NO_TOPIC_ID:
            self._ids[topic] = topic_id
            self._names[topic_id] = topic
