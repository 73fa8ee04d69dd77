"""What a consumer group must know of the cluster's topics: partitions, names, and a hash of them that tells changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from barnabas.runtime.turns import Pieces, chunks

NO_TOPIC_ID = bytes(16)
HASHED_AT_ONCE = 200
NO_HASH = 0  # of topics of which none exists, or that were never looked at


class Topics(Protocol):
    """The part of the metadata cache that groups need.

    `changes` grows with each change of it, `name_changes` when there are other topics.
    """

    changes: int
    name_changes: int

    @property
    def topics(self) -> Mapping[str, Collection[int]]:
        """The partitions of each topic."""

    def contains(self, topic: str, index: int | None = None) -> bool:
        """Whether the topic (and the partition in it) exists."""

    def topic_names(self) -> Collection[str]:
        """All topics."""

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0: no such topic."""

    def topic_hash(self, topic: str) -> int:
        """A hash of what the topic is: its id, its partitions and their racks. 0: no such topic."""

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; zeros when it has none or does not exist."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """A hash of ids, partitions and racks of these topics; 0 if none exists.

    It is compared only with what this coordinator, or the one before it, has stored. Kafka's is another function: a
    group that comes from Kafka, or goes there, has one rebalance more, which moves nothing.
    """
    return _as_long(sum(map(topics.topic_hash, names)))


def metadata_hash_by_pieces(topics: Topics, names: Iterable[str]) -> Pieces[int]:
    """The `metadata_hash` of many topics. It means something only if none of them changes meanwhile."""
    whole = 0
    for some in chunks(tuple(names), HASHED_AT_ONCE):
        whole += sum(map(topics.topic_hash, some))
        yield
    return _as_long(whole)


def changed_hash(topics: Topics, known: int, more: Iterable[str], gone: Iterable[str]) -> int:
    """The `metadata_hash` of other topics, some of which were in a hash that is known. No topic has changed since."""
    return _as_long(known + sum(map(topics.topic_hash, more)) - sum(map(topics.topic_hash, gone)))


def _as_long(whole: int) -> int:
    whole &= 0xFFFFFFFFFFFFFFFF
    return whole - (1 << 64) if whole >> 63 else whole
