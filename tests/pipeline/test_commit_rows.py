"""Commits in columns, compared record by record with the broker's own decoder, on right and on damaged records."""

import random
import struct

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    key_version,
)
from barnabas.pipeline.batches import walk
from barnabas.pipeline.commit_rows import commit_rows
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import take_apart
from barnabas.pipeline.schemas import COMMITS
from barnabas.pipeline.transactions import Ended, Transactions
from barnabas.protocol import uuids
from barnabas.protocol.record_batch import Record, build

NOW_MS = 1_700_000_000_000
PLACE = Place("__consumer_offsets", 4, Transactions(lambda: Ended(0, ())))


def some_value(rng: random.Random) -> bytes:
    """A value of any version, as Kafka and Barnabas have written them over the years."""
    offset, metadata = rng.choice((0, 1, 1 << 62)), rng.choice(("", "m", "ü" * 70, "x" * 126, "x" * 127, "x" * 20_000))
    version = rng.randrange(5)
    text = metadata.encode()
    short = struct.pack(">h", len(text)) + text
    if version in (0, 2):
        return struct.pack(">hq", version, offset) + short + struct.pack(">q", NOW_MS)
    if version == 3:
        return struct.pack(">hqi", 3, offset, 7) + short + struct.pack(">q", NOW_MS)
    expires = NOW_MS + 9 if version == 1 else -1
    topic_id = rng.choice((NO_TOPIC_ID, bytes(range(16))))
    value = encode_value(CommittedOffset(offset, 7, metadata, NOW_MS, expires, topic_id))
    if version == 4 and rng.random() < 0.2:  # tags of a newer version
        ours = b"" if topic_id == NO_TOPIC_ID else b"\x00\x10" + topic_id
        end = len(value) - (1 if topic_id == NO_TOPIC_ID else 19)
        value = value[:end] + (b"\x02" if ours else b"\x01") + ours + b"\x05\x03new"
    return value


def some_record(rng: random.Random) -> tuple[bytes, bytes | None]:
    key = encode_key(rng.choice(("", "g", "größe" * 30)), rng.choice(("t", "x" * 249)), rng.choice((0, 1 << 30)))
    if rng.random() < 0.1:
        key = b"\x00\x00" + key[2:]  # keys of before 0.9
    value = None if rng.random() < 0.1 else some_value(rng)
    if rng.random() < 0.3:
        key = damaged(rng, key)
    if value is not None and rng.random() < 0.3:
        wrong = damaged(rng, value)
        value = value if is_wrong_text(wrong) else wrong
    return key, value


def is_wrong_text(value: bytes) -> bool:
    """Whether only the metadata cannot be read. The broker refuses such a value, the table keeps the commit."""
    try:
        decode_value(value)
    except UnicodeDecodeError:
        return True
    except ValueError:
        return False
    return False


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Cut off, or with another byte."""
    if rng.random() < 0.5:
        return content[: rng.randrange(len(content))]
    at = rng.randrange(min(40, len(content)))
    return content[:at] + bytes([rng.choice((0, 1, 127, 128, 255))]) + content[at + 1 :]


def expected(records: list[tuple[bytes, bytes | None]]) -> tuple[list[tuple[object, ...]], list[int]]:
    """The rows, and the offsets of records that cannot be read."""
    rows: list[tuple[object, ...]] = []
    bad = []
    for offset, (key, value) in enumerate(records):
        try:
            if key_version(key) not in (0, 1):
                continue
            group, topic, partition = decode_key(key)
            if value is None:
                rows.append((offset, group, topic, partition, None, None, None, None, None, None))
                continue
            if value[:2] == b"\x00\x04" and value[14:15] == b"\x00":
                raise ValueError("a null string where there must be one")
            one = decode_value(value)
        except ValueError:
            bad.append(offset)
            continue
        row = (one.offset, None if one.leader_epoch == -1 else one.leader_epoch, one.metadata)
        times = [None if time == -1 else time for time in (one.commit_timestamp, one.expire_timestamp)]
        topic_id = None if one.topic_id == NO_TOPIC_ID else uuids.to_text(one.topic_id)
        rows.append((offset, group, topic, partition, *row, *times, topic_id))
    return rows, bad


@pytest.mark.parametrize("seed", range(60))
def test_commits_are_what_the_broker_reads(seed: int) -> None:
    rng = random.Random(seed)
    records = [some_record(rng) for _ in range(200)]
    batch = build([Record(-1, NOW_MS, key, value) for key, value in records])
    (part,), corrupt = take_apart(walk(batch))
    assert corrupt == []
    rows = commit_rows(part, PLACE)
    table = rows.batch(COMMITS.arrow)
    milliseconds = [
        [None if time is None else time // 1000 for time in table[name].cast("int64").to_pylist()]
        for name in ("commit_timestamp", "expire_timestamp")
    ]
    names = ("log_offset", "group_id", "topic", "partition", "offset", "leader_epoch", "metadata")
    found = list(zip(*(table[name].to_pylist() for name in names), *milliseconds, table["topic_id"].to_pylist()))
    wanted, bad = expected(records)
    in_range = 2**63 // 1000  # what is beyond fits into no time of Spark
    wanted = [
        tuple(
            None if index in (7, 8) and value is not None and abs(value) > in_range else value
            for index, value in enumerate(row)
        )  # type: ignore[arg-type]
        for row in wanted
    ]
    assert len(bad) > 5
    assert sorted(one.offset for one in rows.corrupt) == bad
    assert found == wanted


def test_metadata_that_is_no_text_costs_no_commit() -> None:
    value = encode_value(CommittedOffset(5, 7, "ab", NOW_MS)).replace(b"ab", b"a\xff")
    (part,), _ = take_apart(walk(build([Record(-1, NOW_MS, encode_key("g", "t", 0), value)])))
    rows = commit_rows(part, PLACE)
    assert rows.corrupt == []
    assert rows.batch(COMMITS.arrow)["metadata"].to_pylist() == ["a\ufffd"]
