"""Java's hash of a string, by which Kafka shares out groups over partitions and partitions over fetchers."""

import struct


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
