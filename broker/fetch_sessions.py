"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changed.

These are the rules, without messages or IO: which session a request belongs to, which partitions it asks for now, and
which of their results the answer must contain. A session lives until another needs its slot: see `FetchSessionCache`.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.cluster.metadata_cache import NO_TOPIC_ID
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.fetch_values import FetchPartition
from barnabas.replication.follower_fetches import FollowerFetches

EPOCH_FINAL: Final = -1  # a full request without a session; closes the session it names
EPOCH_INITIAL: Final = 0  # a full request that asks for a session
EPOCH_MAX: Final = 2**31 - 1
EVICTION_MS: Final = 120_000  # a session that is idle for so long gives way to any other; one so old, to a larger one

PartitionKey = tuple[bytes | str, int]  # topic id (requests of version 13 and later) or name, partition


class SessionPartition(FetchPartition):
    """One partition of a request; in a session also the values that were last sent for it.

    `topic` is None while this broker does not know the topic id. `key` is how the client names the partition.
    """

    __slots__ = ("key", "sent_high_watermark", "sent_log_start_offset")

    def __init__(
        self,
        topic: str | None,
        index: int,
        fetch_offset: int,
        max_bytes: int,
        *,
        topic_id: bytes = NO_TOPIC_ID,
        log_start_offset: int = -1,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        # By place: a fetch without a session makes one for each partition.
        super().__init__(
            topic,
            index,
            fetch_offset,
            max_bytes,
            topic_id,
            log_start_offset,
            current_leader_epoch,
            last_fetched_epoch,
        )
        self.key: PartitionKey = (topic_id if topic is None else topic, index)
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    def ask(self, asked: "SessionPartition") -> None:
        """Take over what the client asks now, and keep the values that were sent."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.log_start_offset = asked.log_start_offset
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    def note_result(self, error: int, high_watermark: int, log_start_offset: int, has_more: bool) -> bool:
        """Note a result as sent; returns whether an incremental answer must contain it.

        `has_more`: the result has records, a preferred replica or a diverging epoch. After an error the next result is
        always sent.
        """
        must = has_more
        if high_watermark != self.sent_high_watermark:
            self.sent_high_watermark = high_watermark
            must = True
        if log_start_offset != self.sent_log_start_offset:
            self.sent_log_start_offset = log_start_offset
            must = True
        if error != ErrorCode.NONE:
            self.sent_high_watermark = -1
            must = True
        return must


class FetchSession:
    """The partitions that one client fetches."""

    __slots__ = ("created_ms", "epoch", "follower", "id", "last_used_ms", "partitions", "privileged", "uses_topic_ids")

    def __init__(self, session_id: int, privileged: bool, uses_topic_ids: bool, now_ms: float) -> None:
        self.id = session_id
        self.privileged = privileged  # a follower's session, which does not give way to a consumer's
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = EPOCH_INITIAL + 1  # of the next request
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.follower: FollowerFetches[SessionPartition] | None = None  # knows which partitions a follower must read

    def follow(self, follower: FollowerFetches[SessionPartition]) -> None:
        """It is a follower's session: its partitions are watched."""
        self.follower = follower
        for partition in self.partitions.values():
            follower.ask(partition)

    def update(self, asked: Iterable[SessionPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Take over an incremental request: partitions that were added or changed, and those to drop."""
        follower = self.follower
        for partition in asked:
            known = self.partitions.get(partition.key)
            if known is None:
                known = self.partitions[partition.key] = partition
            else:
                known.ask(partition)
            if follower is not None:
                follower.ask(known)
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None and follower is not None:
                follower.forget(gone)

    def to_read(self) -> Sequence[SessionPartition]:
        """The partitions that the next answer is about: all; of a follower's those that may have news."""
        return list(self.partitions.values()) if self.follower is None else self.follower.asked

    def end(self) -> None:
        """The session is closed, or gives way to another."""
        if self.follower is not None:
            self.follower.close()

    def move_to_end(self, partition: SessionPartition) -> None:
        """Read this partition last next time: it returned records, and the others must get their share of the bytes."""
        self.partitions[partition.key] = self.partitions.pop(partition.key)


class FetchSessionCache:
    """All sessions of a broker, at most `slots_max`, the least recently used one first."""

    def __init__(self, rng: random.Random, slots_max: int) -> None:
        self._rng = rng
        self.slots_max = slots_max
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def open(
        self,
        partitions: dict[PartitionKey, SessionPartition],
        *,
        privileged: bool,
        uses_topic_ids: bool,
        now_ms: float,
    ) -> FetchSession | None:
        """A new session for these partitions, by their keys; None when there is no slot for it."""
        if len(self._sessions) >= self.slots_max and not self._evict(privileged, len(partitions), now_ms):
            return None
        session_id = self._rng.randrange(1, EPOCH_MAX)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, EPOCH_MAX)
        session = FetchSession(session_id, privileged, uses_topic_ids, now_ms)
        session.partitions = partitions
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, *, uses_topic_ids: bool, now_ms: float) -> FetchSession | ErrorCode:
        """The session of an incremental request, which now expects the next epoch; or the error."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def _evict(self, privileged: bool, size: int, now_ms: float) -> bool:
        """Free a slot for a session of this kind and size; False if none may be taken.

        The least recently used session goes if it is idle. Otherwise the least one goes: consumers' sessions before
        followers', small before large. It must be less than the new one, and old unless a follower's takes the slot of
        a consumer's.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        victim: FetchSession | None = None
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            victim = oldest
        else:
            wanted = (privileged, size)
            for session in self._sessions.values():
                old = now_ms - session.created_ms > EVICTION_MS
                may_go = old or (privileged and not session.privileged)
                weight = (session.privileged, len(session.partitions))
                if may_go and weight < wanted:
                    wanted, victim = weight, session
        if victim is None:
            return False
        self.close(victim.id)
        return True
