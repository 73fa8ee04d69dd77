"""What each commit writes: C packs what Python packs."""

import random
import struct
from typing import Any

import pytest
from barnabas.offsets import journal, stored
from barnabas.offsets.journal import NO_OFFSET, Cause, Row, encode_origin, encode_rows
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetCommits,
    TopicColumns,
    encode_key,
    encode_positions,
    encode_value,
    pack,
)
from barnabas.offsets.stored import found_rows, run_of
from barnabas.protocol.record_batch import PlainRecords
from native import build

NAMES = ("", "g", "é€😀", "x" * 100, "y" * 20_000)
PARTS_OF_ONE = 7  # of `PlainRecords`
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
    time_ms = rng.choice(NUMBERS[64])
    partitions = rng.sample((*NUMBERS[32], *range(2, 300)), rng.choice((2, 3, 200)))
    offsets = {
        partition: CommittedOffset(rng.choice(NUMBERS[64]), rng.choice(NUMBERS[32]), "", time_ms, -1, topic_id)
        for partition in partitions
    }
    first = rng.choice((0, 60, 63, 64, 8190, 100_000))
    numbers = struct.pack(f">{len(offsets)}i", *offsets)
    positions = encode_positions([number for each in offsets.values() for number in (each.offset, each.leader_epoch)])
    expected = PlainRecords()
    expected.count = first
    for partition, each in offsets.items():
        delta = expected.count
        expected.add(encode_key(group_id, topic, partition), encode_value(each))
        of_one = (delta, group_id, topic, topic_id, partition, each.offset, each.leader_epoch, time_ms)
        assert native.offset_record(*of_one) == b"".join(expected.parts[-PARTS_OF_ONE:])
    arguments = (first, group_id, topic, topic_id, numbers, positions, time_ms)
    records, data, key_start_bytes = pack(*arguments)
    assert records == b"".join(expected.parts)
    assert native.offset_records(*arguments) == (records, data, key_start_bytes)
    columns = TopicColumns(topic, topic_id, numbers, positions)
    assert columns.offsets(time_ms) == offsets
    assert run_of((topic, topic_id, key_start_bytes, data), 0).columns() == columns
    commits, plain = OffsetCommits(group_id, {topic: offsets}), PlainRecords()
    plain.count = first
    commits.append_to(plain)
    assert (b"".join(plain.parts), commits.packed) == (records, [(topic, topic_id, key_start_bytes, data)])
    assert commits.columns == [columns]


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
    (3, b"short"),
    (4, bytes(5)),
    (4, bytes(8)),
    (5, bytes(13)),
    (6, 2**63),
    (6, 1.5),
)
WRONG_OF_ONE: tuple[tuple[int, Any], ...] = ((4, 2**31), (5, 2**63), (6, -(2**31) - 1), (7, 1.5), (1, "x" * 40_000))


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_what_has_no_room_is_refused(native: Any, place: int, value: Any) -> None:
    arguments: list[Any] = [0, "g", "t", NO_TOPIC_ID, bytes(4), bytes(12), 0]
    native.offset_records(*arguments)
    arguments[place] = value
    with pytest.raises(REFUSALS):
        native.offset_records(*arguments)


@pytest.mark.parametrize(("place", "value"), WRONG_OF_ONE)
def test_what_one_record_has_no_room_for_is_refused(native: Any, place: int, value: Any) -> None:
    arguments: list[Any] = [0, "g", "t", NO_TOPIC_ID, 0, NO_OFFSET, -1, 0]
    native.offset_record(*arguments)
    arguments[place] = value
    with pytest.raises(REFUSALS):
        native.offset_record(*arguments)


@pytest.mark.parametrize("seed", range(50))
def test_the_rows_of_an_answer(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    partitions = rng.sample((*NUMBERS[32], *range(2, 300)), rng.choice((1, 2, 200)))
    offsets = {
        partition: CommittedOffset(rng.choice(NUMBERS[64]), rng.choice(NUMBERS[32]), "", 1, -1, NO_TOPIC_ID)
        for partition in partitions
    }
    records = PlainRecords()
    commits = OffsetCommits("g" * rng.choice((1, 60, 200)), {"t": offsets})
    commits.append_to(records)
    if commits.packed is None:
        return
    run = run_of(commits.packed[0], 0)
    layout = run._layout
    end = rng.randbytes(rng.choice((0, 4)))
    asked = [*partitions, 1_000, -7]
    if rng.random() < 0.5:
        rng.shuffle(asked)
    expected = [
        struct.pack(">iqi", partition, known.offset, known.leader_epoch) + end
        for partition in asked
        for known in [offsets.get(partition, CommittedOffset(-1))]
    ]
    arguments = (run._data, layout.size_bytes, layout.partition_at, layout.offset_at, asked, end)
    assert found_rows(*arguments) == native.found_rows(*arguments) == b"".join(expected)
    assert run.rows(asked, NO_TOPIC_ID, end) == b"".join(expected)


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "x"), (0, bytes(30)), (1, 0), (1, 30), (2, 17), (2, -1), (3, 9), (4, 1), (4, [2**31]), (4, ["x"]), (5, "x")],
)
def test_rows_of_what_is_no_run(native: Any, place: int, value: Any) -> None:
    arguments: list[Any] = [bytes(40), 20, 0, 4, [1], b""]
    native.found_rows(*arguments)
    arguments[place] = value
    with pytest.raises((ValueError, TypeError)):
        native.found_rows(*arguments)


@pytest.mark.parametrize("seed", range(50))
def test_where_a_run_ends(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    topic_id, metadata = rng.choice((NO_TOPIC_ID, rng.randbytes(16))), rng.choice(("", "", "m" * 20))
    partitions = range(rng.choice((0, 60, 120)), rng.choice((121, 130)))
    offsets = {each: CommittedOffset(7 * each, 3, metadata, 1, -1, topic_id) for each in partitions}
    records = PlainRecords()
    records.count = rng.choice((0, 60))
    OffsetCommits("g" * rng.choice((1, 60)), {"topic": offsets}).append_to(records)
    right = b"".join(records.parts)
    for _ in range(30):
        data = bytearray(right)
        for _ in range(rng.choice((0, 1, 2))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        position, wrong = 0, bytes(data[: len(data) - rng.choice((0, 1, 70))])
        while (layout := stored._layout_at(wrong, position)) is not None:
            end = stored.run_end(layout, wrong, position)
            assert native.run_end(wrong, position, layout.template, layout.in_layout, layout.in_run) == end
            if end == position:
                break
            position = end
        assert data != right or position == len(wrong) or len(wrong) < len(right)
    for arguments in ((right, -1), (right, len(right) + 1)):
        with pytest.raises(ValueError, match="no such records"):
            native.run_end(*arguments, b"t", b"t", b"t")
    with pytest.raises(ValueError, match="no such records"):
        native.run_end(right, 0, b"tt", b"t", b"tt")
