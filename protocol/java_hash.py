"""Java's hashes, by which Kafka shares out groups, partitions and topics, and the order of its hash tables."""

import struct
from collections.abc import Callable, Collection, Generator
from typing import TypeVar

K = TypeVar("K")

TABLE_SIZE = 16  # of a new HashMap


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


def java_hash_of_uuid(uuid: bytes) -> int:
    """The hash of a Kafka `Uuid`, unsigned."""
    high, low = struct.unpack(">QQ", uuid)
    mixed = high ^ low
    return int((mixed >> 32) ^ (mixed & 0xFFFFFFFF))


def in_java_order(keys: Collection[K], hash_code: Callable[[K], int]) -> list[K]:
    """These keys in the order of Java's HashMap or HashSet, to which they were added in their order here."""
    mask = _table_size(len(keys)) - 1
    return sorted(keys, key=lambda key: _bucket(hash_code(key), mask))  # stable: in a bucket the order of the additions


def in_java_order_by_pieces(
    keys: Collection[K], hash_code: Callable[[K], int], *, is_copy: bool = False
) -> Generator[None, None, list[K]]:
    """`in_java_order` for many keys: in pieces, a key at a time.

    `is_copy`: of a HashSet that was made of another collection. It is larger if that just fills a smaller one.
    """
    mask = _table_size(len(keys) + is_copy) - 1
    table: dict[int, list[K]] = {}
    for key in keys:
        table.setdefault(_bucket(hash_code(key), mask), []).append(key)
        yield
    return [key for bucket in sorted(table) for key in table[bucket]]


def _bucket(code: int, mask: int) -> int:
    code &= 0xFFFFFFFF
    return (code ^ code >> 16) & mask


def _table_size(count: int) -> int:
    size = TABLE_SIZE
    while count > size * 3 // 4:
        size *= 2
    return size


def in_timeline_order(keys: Collection[K], hash_code: Callable[[K], int], peak: int) -> list[K]:
    """These keys in the order of the hash table in which Kafka's coordinators keep their state.

    It grows when `peak`, the most keys that it has held, and one more would fill more than four thirds of it.
    """
    bits = 1
    while (peak + 1) * 3 > 4 << bits:
        bits += 1

    def slot(key: K) -> int:
        return (hash_code(key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 64 - bits

    newest_first = list(keys)[::-1]
    return sorted(newest_first, key=slot)
