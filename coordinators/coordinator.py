"""The base of the coordinators: which partitions of its topic a coordinator owns, and which shard answers for a key.

A coordinator owns the partitions of its topic that this broker leads. Each is a shard (shard.py), which is loaded from
the log (loading.py) before it answers, and dropped when the leadership goes. Leadership is told in order, and what is
stale is refused before it comes here (`ReplicaManager._lead_or_follow`). So an epoch is remembered only while its shard
is owned: a partition that was let go may come back in the same epoch, and a topic that was made again begins with
epoch 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.java_hash import java_hash_code

if TYPE_CHECKING:  # tools need `partition_for` alone
    from barnabas.cluster.lease import LeaseView
    from barnabas.cluster.metadata_cache import BrokerMetadata, MetadataCache
    from barnabas.coordinators.loading import CoordinatorLoader, LedPartition, Progress
    from barnabas.coordinators.shard import CoordinatorLog, CoordinatorShard

Shard = TypeVar("Shard", bound="CoordinatorShard[Any]")

_KEPT_LENGTH_MAX: Final = 256  # clients may send ids of 32 KiB, thousands of them that are never used again
_KEPT_MAX: Final = 1 << 14
_kept: Final[dict[str, int]] = {}  # the absolute hash codes of the keys that were asked for last


def partition_for(key: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that owns a group, or of `__transaction_state` a transactional id.

    It is the absolute value of Java's `String.hashCode`, modulo the partition count.
    """
    value = _kept.get(key)
    if value is None:
        value = java_hash_code(key)
        # -2**31 has no absolute value in an int32, and Kafka's abs returns 0 for it.
        value = 0 if value == -(1 << 31) else abs(value)
        if len(key) <= _KEPT_LENGTH_MAX:
            if len(_kept) >= _KEPT_MAX:
                _kept.clear()
            _kept[key] = value
    return value % partition_count


def coordinator_of(cache: MetadataCache, topic: str, key: str) -> BrokerMetadata | None:
    """The live broker that coordinates a group or a transactional id, as the controller has said; None: there is none.

    `topic`: that of the coordinators.
    """
    count = cache.partition_count(topic)
    return cache.leader(topic, partition_for(key, count)) if count else None


class Topics(Protocol):
    """The part of the metadata cache that each coordinator needs."""

    @property
    def topics(self) -> Mapping[str, Sized]:
        """The partitions of each topic."""


class Coordinator(Generic[Shard]):
    """Owns the shards. Subclasses say how a shard is opened and loaded, and what follows."""

    topic: str
    kind: str  # of partition, in the lines of the log
    empty_key_error = ErrorCode.NONE  # what a request for the key "" is told; NONE: it is a key as any other
    logger: logging.Logger

    def __init__(
        self,
        log_of: Callable[[int], CoordinatorLog | ErrorCode],
        cluster: Topics,
        lease: LeaseView,
    ) -> None:
        self.shards: dict[int, Shard] = {}
        self.lease = lease
        self.is_active = False
        self._log_of = log_of
        self._cluster = cluster
        self._loaders: dict[int, CoordinatorLoader[Shard]] = {}

    # ---- what a coordinator says ----

    def _open(self, partition: int, leader_epoch: int, log: CoordinatorLog) -> Shard:
        """The shard of a partition, empty."""
        raise NotImplementedError

    def _begin_loading(self, shard: Shard, loaded: Callable[[], None]) -> CoordinatorLoader[Shard]:
        """Begin to load a shard. `loaded` is called when it can answer."""
        raise NotImplementedError

    def _loaded(self, shard: Shard) -> None:
        """A shard answers from now on."""
        raise NotImplementedError

    def _before_close(self, shard: Shard) -> None:
        """A shard is closed now."""

    # ---- life ----

    def start(self) -> None:
        """Answer requests from now on."""
        self.is_active = True

    def shutdown(self) -> None:
        """Stop answering. Waiting clients are told to look for another coordinator."""
        self.is_active = False
        for partition in list(self.shards):
            self.unload(partition)
        assert not self._loaders

    def on_leadership(self, became_leader: Iterable[LedPartition], became_follower: Iterable[LedPartition]) -> None:
        """Leaders changed: load partitions of the topic that this broker leads now, unload the others."""
        for partition in became_follower:
            if partition.topic == self.topic:
                self.unload(partition.index, partition.leader_epoch)
        for partition in became_leader:
            if partition.topic == self.topic:
                self.load(partition.index, partition.leader_epoch)

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Partitions are deleted. Those of the topic itself are unloaded."""
        for topic, partition in partitions:
            if topic == self.topic:
                self.unload(partition)

    def load(self, partition: int, leader_epoch: int) -> None:
        """Become the coordinator of a partition. Ignored if it is owned in this epoch already."""
        owned = self.shards.get(partition)
        if owned is not None and leader_epoch <= owned.leader_epoch:
            return
        log = self._log_of(partition)
        if isinstance(log, ErrorCode):
            self.logger.warning("%s partition %d: not loaded: %s", self.kind, partition, log.name)
            return
        self.unload(partition)
        assert partition not in self._loaders
        self.logger.debug("%s partition %d: loading in epoch %d", self.kind, partition, leader_epoch)
        shard = self.shards[partition] = self._open(partition, leader_epoch, log)
        self._loaders[partition] = self._begin_loading(shard, lambda: self._end_loading(shard))

    def _end_loading(self, shard: Shard) -> None:
        assert self.shards[shard.partition] is shard
        assert shard.loading
        del self._loaders[shard.partition]
        shard.loading = False
        self._loaded(shard)

    def unload(self, partition: int, leader_epoch: int | None = None) -> None:
        """Stop being the coordinator of a partition. Ignored if it is owned in a later epoch; None: never ignored."""
        owned = self.shards.get(partition)
        if owned is not None and leader_epoch is not None and leader_epoch < owned.leader_epoch:
            return
        loader = self._loaders.pop(partition, None)
        if owned is None:
            assert loader is None
            return
        assert owned.loading == (loader is not None)
        if loader is not None:
            loader.cancel()
        del self.shards[partition]
        self.logger.debug("%s partition %d: unloaded, was of epoch %d", self.kind, partition, owned.leader_epoch)
        self._before_close(owned)
        owned.close()

    # ---- the gate ----

    def shard_of(self, key: str) -> Shard | ErrorCode:
        """The shard that answers for a key, or the error for its client."""
        if not key and self.empty_key_error:
            return self.empty_key_error
        if not self.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partitions = self._cluster.topics.get(self.topic)
        shard = self.shards.get(partition_for(key, len(partitions))) if partitions else None
        if shard is None or not self.lease.holds:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else shard

    def loaded_shards(self) -> list[Shard]:
        """The shards that answer."""
        return [shard for shard in self.shards.values() if not shard.loading]

    def loading(self) -> list[Progress]:
        """How far the partitions are that are being loaded."""
        return [self._loaders[partition].progress for partition in sorted(self._loaders)]
