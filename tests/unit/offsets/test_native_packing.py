"""What each commit writes: C packs what Python packs."""

import random
from typing import Any

import pytest
from barnabas.offsets import journal
from barnabas.offsets.journal import NO_OFFSET, Cause, Row, encode_origin, encode_rows
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset, OffsetCommits
from barnabas.offsets.stored import columns_of
from barnabas.protocol.record_batch import PlainRecords
from native import build

NAMES = ("", "g", "é€😀", "x" * 100, "y" * 20_000)
NUMBERS = {bits: (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))) for bits in (32, 64)}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module, built of this source."""
    return build("native_packing", "offsets/native/*.c", tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("seed", range(100))
def test_the_records_of_a_commit(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    group_id, topic = rng.choice(NAMES), rng.choice(NAMES)
    topic_id = rng.choice((NO_TOPIC_ID, rng.randbytes(16)))
    partitions = rng.sample((*NUMBERS[32], *range(2, 300)), rng.choice((2, 3, 200)))
    numbers = [
        (partition, rng.choice(NUMBERS[64]), rng.choice(NUMBERS[32]), rng.choice(NUMBERS[64]))
        for partition in partitions
    ]
    offsets = {
        partition: CommittedOffset(offset, leader_epoch, "", time_ms, -1, topic_id)
        for partition, offset, leader_epoch, time_ms in numbers
    }
    commits = OffsetCommits(group_id, {topic: offsets})
    plain = PlainRecords()
    plain.count = first = rng.choice((0, 60, 63, 64, 8190, 100_000))
    commits.append_to(plain)
    assert commits.packed is not None
    ((_, _, key_start_bytes, data),) = commits.packed
    flat = [number for row in numbers for number in row]
    found = native.offset_records(first, group_id, topic, topic_id, flat)
    columns = columns_of(commits.packed[0])
    assert found == (b"".join(plain.parts), data, key_start_bytes, columns.partitions, columns.positions)


@pytest.mark.parametrize("seed", range(100))
def test_a_change_of_an_offset(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    topic, topic_id, partition = rng.choice(NAMES), rng.randbytes(16), rng.choice(NUMBERS[32])
    old, new = ((rng.choice(NUMBERS[64]), rng.choice(NUMBERS[32])) for _ in range(2))
    origin = encode_origin(Cause.COMMIT, rng.choice(NUMBERS[32]), "client", "/host", "User:u", "member")
    position, time_ms = rng.choice(NUMBERS[64]), rng.choice(NUMBERS[64])
    arguments = (origin, position, time_ms, topic, topic_id, partition, *old, *new)
    rows = [Row(topic, topic_id, partition, *old, "", *new, "")]
    ((expected, _),) = encode_rows(origin, position, time_ms, rows)
    assert journal.one_change(*arguments) == expected
    assert native.one_change(*arguments) == expected


REFUSALS = (ValueError, OverflowError, TypeError)
WRONG: tuple[tuple[int, Any], ...] = (
    (1, "x" * 40_000),
    (2, 7),
    (4, [2**31, 0, 0, 0]),
    (4, [0, 2**63, 0, 0]),
    (4, [0, 0, -(2**31) - 1, 0]),
    (4, [0, 0, 0, 1.5]),
)


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_what_has_no_room_is_refused(native: Any, place: int, value: Any) -> None:
    arguments: list[Any] = [0, "g", "t", NO_TOPIC_ID, [0, NO_OFFSET, -1, 0]]
    arguments[place] = value
    with pytest.raises(REFUSALS):
        native.offset_records(*arguments)
