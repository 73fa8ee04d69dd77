"""The offsets partition of a group: the absolute value of Java's `String.hashCode`, modulo the partition count."""

import struct
from functools import lru_cache


def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units (a character outside the BMP counts as its surrogates)."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
            value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=1 << 14)
def partition_for(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` (or, for a transactional id, of `__transaction_state`) that owns an id."""
    value = java_hash_code(group_id)
    if value == -(1 << 31):
        return 0  # -2**31 has no absolute value in an int32, and Kafka's abs returns 0 for it
    return abs(value) % partition_count
