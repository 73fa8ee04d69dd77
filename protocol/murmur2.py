"""The hash by which Kafka's clients choose the partition of a key."""

from struct import Struct

_M = 0x5BD1E995
_MASK = 0xFFFF_FFFF
_WORD = Struct("<I")


def murmur2(key: bytes) -> int:
    """MurmurHash2 with Kafka's seed."""
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for (word,) in _WORD.iter_unpack(key[:whole]):
        word = word * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        value = value * _M & _MASK ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition that clients choose for a key."""
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count
