"""Versions in front of stored keys and values, and bytes that Kafka wrote."""

import pytest
from barnabas.protocol import records
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
)


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_keys_begin_with_their_kind() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    data = hexed("0001 0001 67 0001 74 00000003")
    assert records.encode_versioned(key) == data
    assert records.version_of(data) == 1
    assert records.decode_versioned(OffsetCommitKey, data) == (1, key)
    assert records.encode_versioned(GroupMetadataKey(group="g")) == hexed("0002 0001 67")
    assert records.encode_versioned(TransactionLogKey(transactional_id="t")) == hexed("0000 0001 74")


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, "0000 0000000000000007 0002 6d64 0000000000000009"),
        (1, "0001 0000000000000007 0002 6d64 0000000000000009 ffffffffffffffff"),
        (3, "0003 0000000000000007 00000002 0002 6d64 0000000000000009"),
        (4, "0004 0000000000000007 00000002 03 6d64 0000000000000009 00"),
    ],
)
def test_offset_commit_values(version: int, data: str) -> None:
    epoch = 2 if version >= 3 else -1
    value = OffsetCommitValue(offset=7, metadata="md", commit_timestamp=9, leader_epoch=epoch)
    assert records.encode_versioned(value, version) == hexed(data)
    assert records.decode_versioned(OffsetCommitValue, hexed(data)) == (version, value)


def test_a_value_needs_its_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="say which"):
        records.encode_versioned(GroupMetadataValue())
    with pytest.raises(UnsupportedVersionError):
        records.encode_versioned(GroupMetadataValue(), 5)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0", b"\0\0\0\1"])
def test_a_value_that_ends_too_early(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        records.decode_versioned(OffsetCommitValue, data)


def test_newer_versions_of_the_consumer_protocol_only_append() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], generation_id=4, rack_id="r")
    data = bytearray(records.encode_versioned(subscription, 3))
    data[1] = 9
    data += b"something new"
    assert records.decode_versioned(ConsumerProtocolSubscription, data, newer_as_latest=True) == (9, subscription)
    with pytest.raises(UnsupportedVersionError):
        records.decode_versioned(ConsumerProtocolSubscription, data)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0, 1])]
    )
    assert (
        records.decode_versioned(ConsumerProtocolAssignment, records.encode_versioned(assignment, 1))[1] == assignment
    )
