"""The partition of a key is that of other clients."""

import pytest
from barnabas.protocol.murmur2 import murmur2, partition_of_key
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python


@pytest.mark.parametrize("key", [b"", b"a", b"ab", b"abc", b"abcd", b"customer-4711", bytes(range(256))])
def test_keys_go_to_the_partition_of_other_clients(key: bytes) -> None:
    assert murmur2(key) == murmur2_of_kafka_python(key) & 0xFFFF_FFFF
    assert partition_of_key(key, 3) == (murmur2_of_kafka_python(key) & 0x7FFF_FFFF) % 3
