"""Keys and values of committed offsets against the generated codec, every version."""

import pytest
from barnabas.offsets.records import CommittedOffset, OffsetRecord, decode_key, decode_value, encode_value, key_version
from barnabas.protocol.records import OffsetCommitKey, OffsetCommitValue, decode_versioned, encode_versioned

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("topic", ["t", "a.longer-topic_name", "ß組"])
def test_key_is_what_the_schema_says(topic: str) -> None:
    record = OffsetRecord("gruppe-ß", topic, 7, None)
    assert record.key() == encode_versioned(OffsetCommitKey(group="gruppe-ß", topic=topic, partition=7), 1)
    assert key_version(record.key()) == 1
    assert decode_key(record.key()) == ("gruppe-ß", topic, 7)
    assert record.value() is None


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 4096, 16382, 16383, 20000])
def test_value_is_written_in_version_4(length: int) -> None:
    committed = CommittedOffset(5, 3, "m" * length, 1234, -1, TOPIC_ID)
    value = OffsetCommitValue(offset=5, leader_epoch=3, metadata="m" * length, commit_timestamp=1234, topic_id=TOPIC_ID)
    assert encode_value(committed) == encode_versioned(value, 4)
    assert decode_value(encode_value(committed)) == committed


def test_value_without_topic_id_has_no_tag() -> None:
    committed = CommittedOffset(-7, -1, "", 1234)
    value = OffsetCommitValue(offset=-7, leader_epoch=-1, metadata="", commit_timestamp=1234)
    assert encode_value(committed) == encode_versioned(value, 4)


def test_explicit_retention_is_written_in_version_1() -> None:
    committed = CommittedOffset(5, -1, "note", 1000, 9000)
    assert decode_versioned(OffsetCommitValue, encode_value(committed))[0] == 1
    assert decode_value(encode_value(committed)) == committed


@pytest.mark.parametrize("version", range(5))
def test_every_version_is_read(version: int) -> None:
    value = OffsetCommitValue(offset=11, metadata="ünd", commit_timestamp=77)
    if version >= 3:
        value.leader_epoch = 4
    if version == 1:
        value.expire_timestamp = 99
    read = decode_value(encode_versioned(value, version), record_offset=6)
    assert (read.offset, read.metadata, read.commit_timestamp, read.record_offset) == (11, "ünd", 77, 6)
    assert read.leader_epoch == (4 if version >= 3 else -1)
    assert read.expire_timestamp == (99 if version == 1 else -1)


@pytest.mark.parametrize("version", range(5))
def test_truncated_values_and_keys_are_refused(version: int) -> None:
    value = encode_versioned(OffsetCommitValue(offset=11, metadata="abc", commit_timestamp=77), version)
    for length in range(len(value)):
        with pytest.raises(ValueError):
            decode_value(value[:length])
    key = OffsetRecord("g", "t", 1, None).key()
    for length in range(2, len(key)):
        with pytest.raises(ValueError):
            decode_key(key[:length])


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 5"):
        decode_value(b"\x00\x05" + bytes(30))
