"""What a consumer group must know of the cluster's topics: partitions, racks, and a hash of them that tells changes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Protocol

_COUNT = struct.Struct(">i")
_HASH = struct.Struct(">q")
NO_TOPIC_ID = bytes(16)


class Topics(Protocol):
    """The part of the metadata cache that consumer groups need.

    `changes` grows with each change of it, `name_changes` when there are other topics.
    """

    changes: int
    name_changes: int

    def topic_names(self) -> Collection[str]:
        """All topics."""

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0: no such topic."""

    def partition_racks(self, topic: str) -> Sequence[Sequence[str]]:
        """For each partition in order, the racks of its replicas, sorted, each once."""

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; zeros when it has none or does not exist."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """A hash of ids, partitions and racks of these topics; 0 if none exists.

    It is compared only with what this coordinator, or the one before it, has stored. Kafka's is another function: a
    group that comes from Kafka, or goes there, has one rebalance more, which moves nothing.
    """
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic_id = topics.topic_id(name)
        if topic_id == NO_TOPIC_ID:
            continue
        is_empty = False
        racks = topics.partition_racks(name)
        digest.update(topic_id)
        digest.update(_COUNT.pack(len(racks)))
        if any(racks):
            for of_partition in racks:
                digest.update(repr(list(of_partition)).encode())
    return 0 if is_empty else int(_HASH.unpack(digest.digest())[0])
