"""Keys and values of committed offsets against the generated codec, every version."""

import random
import tracemalloc

import pytest
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetCommits,
    OffsetRemovals,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    key_version,
)
from barnabas.offsets.table import partitions_of
from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import PlainRecords
from barnabas.protocol.records import OffsetCommitKey, OffsetCommitValue, decode_versioned, encode_versioned

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("topic", ["t", "a.longer-topic_name", "ß組"])
def test_key_is_what_the_schema_says(topic: str) -> None:
    key = encode_key("gruppe-ß", topic, 7)
    assert key == encode_versioned(OffsetCommitKey(group="gruppe-ß", topic=topic, partition=7), 1)
    assert key_version(key) == 1
    assert decode_key(key) == ("gruppe-ß", topic, 7)


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
    read = decode_value(encode_versioned(value, version))
    assert (read.offset, read.metadata, read.commit_timestamp) == (11, "ünd", 77)
    assert read.leader_epoch == (4 if version >= 3 else -1)
    assert read.expire_timestamp == (99 if version == 1 else -1)


@pytest.mark.parametrize("version", range(5))
def test_truncated_values_and_keys_are_refused(version: int) -> None:
    value = encode_versioned(OffsetCommitValue(offset=11, metadata="abc", commit_timestamp=77), version)
    for length in range(len(value)):
        with pytest.raises(ValueError):
            decode_value(value[:length])
    key = encode_key("g", "t", 1)
    for length in range(2, len(key)):
        with pytest.raises(ValueError):
            decode_key(key[:length])


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 5"):
        decode_value(b"\x00\x05" + bytes(30))


def test_commits_are_written_as_key_and_value_would_be() -> None:
    rng = random.Random(7)

    def some_offset(topic_id: bytes) -> CommittedOffset:
        metadata = rng.choice(["", "", "", "m", "ß" * 64, "m" * 5000])
        expires = rng.choice([-1, -1, -1, 1_800_000_000_000])
        return CommittedOffset(rng.randrange(-1, 1 << 62), rng.randrange(-1, 9), metadata, 1234567, expires, topic_id)

    for partitions in (1, 2, 63, 64, 65, 9000):  # offset deltas of one, two and three bytes
        ids = {"t": NO_TOPIC_ID, "a.longer-topic_name" * 13: TOPIC_ID, "ß組": NO_TOPIC_ID}
        offsets = {
            topic: {rng.randrange(1 << 31): some_offset(topic_id) for _ in range(partitions)}
            for topic, topic_id in ids.items()
        }
        next(iter(offsets["t"].values())).topic_id = TOPIC_ID  # not that of the others
        commits = OffsetCommits("gruppe-ß", offsets)
        written, expected = PlainRecords(), PlainRecords()
        commits.append_to(written)
        for topic, partition in partitions_of(offsets):
            value = encode_value(offsets[topic][partition])
            expected.add(encode_key("gruppe-ß", topic, partition), value)
        assert written.count == expected.count == commits.count
        assert b"".join(written.parts) == b"".join(expected.parts)


def test_removals_are_tombstones() -> None:
    records = PlainRecords()
    removals = OffsetRemovals("g", [("t", 0), ("t", 300)])
    removals.append_to(records)
    assert removals.count == 2
    found = [(record.key, record.value) for record in record_batch.records(record_batch.build_plain(records, 5).data)]
    assert found == [(encode_key("g", "t", 0), None), (encode_key("g", "t", 300), None)]


def test_commits_of_very_many_offsets_leave_nothing_behind() -> None:
    tracemalloc.start()
    try:
        for count in range(6_000, 6_040):
            offsets = {index: CommittedOffset(index, commit_timestamp=9) for index in range(count)}
            records = PlainRecords()
            OffsetCommits("g", {"t": offsets}).append_to(records)
            assert records.count == count
        one_by_one = PlainRecords()
        for index, committed in offsets.items():
            one_by_one.add(encode_key("g", "t", index), encode_value(committed))
        assert b"".join(records.parts) == b"".join(one_by_one.parts)
        del offsets, records, one_by_one
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 8 << 20  # of tables, which are for commits that come again and again
