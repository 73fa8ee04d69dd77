"""The offsets partition of a group: the absolute value of Java's `String.hashCode`, modulo the partition count."""

from functools import lru_cache

from barnabas.protocol.java_hash import java_hash_code

_KEPT_LENGTH_MAX = 256  # clients may send ids of 32 KiB, thousands of them that are never used again


def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` (or, for a transactional id, of `__transaction_state`) that owns an id."""
    find = _kept if len(group_id) <= _KEPT_LENGTH_MAX else _find
    return find(group_id, partition_count)


def _find(group_id: str, partition_count: int) -> int:
    value = java_hash_code(group_id)
    if value == -(1 << 31):
        return 0  # -2**31 has no absolute value in an int32, and Kafka's abs returns 0 for it
    return abs(value) % partition_count


_kept = lru_cache(maxsize=1 << 14)(_find)
