"""The format of the offset journal: round trips, versions, damage."""

import random
import struct
import sys

import pytest
from barnabas.cluster.security.acls import ANONYMOUS
from barnabas.offsets import journal
from barnabas.offsets.journal import (
    NO_OFFSET,
    NOT_KNOWN,
    ROWS_MAX,
    TEXT_BYTES_MAX,
    Cause,
    Changes,
    Gap,
    Row,
    UnknownVersionError,
    decode,
    encode_gap,
    encode_one,
    encode_origin,
    encode_plain,
    encode_rows,
    key_of,
    without_repetitions,
)

ID = bytes(range(16))
ORIGIN = encode_origin(Cause.RESET, 7, "a client", "/10.0.0.5", ANONYMOUS, "member-1")


def row(topic: str = "t", partition: int = 0, old: int = 5, new: int = 9, texts: tuple[str, str] = ("", "")) -> Row:
    return Row(topic, ID, partition, old, 2, texts[0], new, 3, texts[1])


def changes(rows: list[Row], position: int = 40) -> Changes:
    return Changes("g", position, 1_000, Cause.RESET, 7, "a client", "/10.0.0.5", ANONYMOUS, "member-1", rows)


def test_a_record_of_one_row() -> None:
    value = encode_one(ORIGIN, 40, 1_000, "t", ID, 0, 5, 2, 9, 3)
    assert decode(b"g", value) == changes([row()])
    assert [value] == [value for value, _ in encode_rows(ORIGIN, 40, 1_000, [row()])]


def test_the_bytes_of_a_record() -> None:
    """What the module says about the format, byte for byte."""
    value = encode_one(encode_origin(Cause.COMMIT, 3, "c", "/h", "P", "m"), 40, 1_000, "t", ID, 6, 5, 2, 9, 4)
    assert value == (
        b"\x00\x01"  # version, kind
        b"\x00\x01"  # one topic
        + struct.pack(">qq", 40, 1_000)
        + b"\x00"  # a commit
        + struct.pack(">i", 3)
        + b"\x00\x01c\x00\x02/h\x00\x01P\x00\x01m"
        + b"\x00\x01t"
        + ID
        + struct.pack(">i", 1)
        + struct.pack(">iqiqi", 6, 5, 2, 9, 4)
        + struct.pack(">i", 0)
    )


def test_the_bytes_of_several_rows() -> None:
    """First all partitions of a topic, then what is old, then what is new."""
    ((value, _),) = encode_rows(ORIGIN, 40, 1_000, [row(partition=6), row(partition=8, old=6, new=10)])
    assert value.endswith(
        b"\x00\x01t"
        + ID
        + struct.pack(">i", 2)
        + struct.pack(">ii", 6, 8)
        + struct.pack(">qiqi", 5, 2, 6, 2)
        + struct.pack(">qiqi", 9, 3, 10, 3)
        + struct.pack(">i", 0)
    )


def test_the_bytes_of_a_gap() -> None:
    gap = Gap(10, 20, 1_000, 2_000, 7, "why")
    assert encode_gap(gap) == b"\x00\x02" + struct.pack(">qqqqq", 10, 20, 1_000, 2_000, 7) + b"\x00\x03why"
    assert decode(b"", encode_gap(gap)) == gap


def test_a_record_of_many_rows_is_the_same_by_both_ways() -> None:
    one, old, new = struct.pack(">i", 0), struct.pack(">qi", 5, 2), struct.pack(">qi", 9, 3)
    topics = [("t", ID, struct.pack(">ii", 0, 1), 2 * old, 2 * new), ("u", ID, one, old, new)]
    rows = [row(), row(partition=1), row("u")]
    value = encode_plain(ORIGIN, 40, 1_000, topics)
    assert decode(b"g", value) == changes(rows)
    assert list(encode_rows(ORIGIN, 40, 1_000, rows)) == [(value, 3)]


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_back(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        row(
            chance.choice(["t", "u", "ünïcode"]),
            chance.randrange(2**31),
            chance.choice([NO_OFFSET, NOT_KNOWN, chance.randrange(2**63)]),
            chance.randrange(2**63),
            (chance.choice(["", "old", "é"]), chance.choice(["", "new" * 100])),
        )
        for _ in range(chance.randrange(1, 30))
    ]
    ((value, count),) = encode_rows(ORIGIN, 40, 1_000, rows)
    assert count == len(rows)
    assert decode(key_of("g"), value) == changes(rows)


@pytest.mark.parametrize("count", [ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1])
def test_a_record_has_a_limited_number_of_rows(count: int) -> None:
    rows = [row(partition=index) for index in range(count)]
    values = list(encode_rows(ORIGIN, 40, 1_000, rows))
    assert len(values) == (1 if count <= ROWS_MAX else 2)
    found = [decode(b"g", value) for value, _ in values]
    assert [each for record in found if isinstance(record, Changes) for each in record.rows] == rows
    assert [record.position for record in found] == [40, 40 + ROWS_MAX][: len(values)]


def test_a_record_has_a_limited_size() -> None:
    rows = [row(partition=index, texts=("", "x" * 4096)) for index in range(100)]
    values = list(encode_rows(ORIGIN, 40, 1_000, rows))
    assert len(values) > 1
    assert max(len(value) for value, _ in values) < TEXT_BYTES_MAX + 10_000
    assert sum(count for _, count in values) == 100


def test_a_group_with_an_odd_name() -> None:
    for group in ("", "ünï", "\ud800"):
        found = decode(key_of(group), encode_one(ORIGIN, 40, 1_000, "t", ID, 0, 5, 2, 9, 3))
        assert found == changes([row()])._replace(group_id=group)


def test_a_client_without_a_name() -> None:
    found = decode(b"g", encode_one(encode_origin(Cause.COMMIT, client_id=None), 1, 1, "t", ID, 0, 5, 2, 9, 3))
    assert isinstance(found, Changes)
    assert found.client_id == ""


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_comes_back(cause: Cause) -> None:
    found = decode(b"g", encode_one(encode_origin(cause), 1, 1, "t", ID, 0, 5, 2, 9, 3))
    assert isinstance(found, Changes)
    assert found.cause is cause


def test_a_later_version_is_said_so() -> None:
    value = bytearray(encode_one(ORIGIN, 40, 1_000, "t", ID, 0, 5, 2, 9, 3))
    value[0] = journal.VERSION + 1
    with pytest.raises(UnknownVersionError, match="version 1"):
        decode(b"g", bytes(value))


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\x00\x09\x00\x00"])
def test_what_is_no_record(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="journal"):
        decode(b"g", value)


def test_every_cut_is_noticed() -> None:
    ((value, _),) = encode_rows(ORIGIN, 40, 1_000, [row(texts=("a", "b")), row("u", 3)])
    for whole in (value, encode_gap(Gap(10, 20, 1_000, 2_000, 7, "why"))):
        for end in range(len(whole)):
            with pytest.raises(ValueError, match="journal"):
                decode(b"g", whole[:end])
        with pytest.raises(ValueError, match="left over"):
            decode(b"g", whole + b"\0")


@pytest.mark.parametrize("seed", range(5))
def test_damage_raises_nothing_else(seed: int) -> None:
    """Any bytes are read, or refused with ValueError; they never end in another exception or in endless rows."""
    chance = random.Random(seed)
    ((value, _),) = encode_rows(ORIGIN, 40, 1_000, [row(texts=("a", "b")), row("u", 3)])
    for _ in range(3_000):
        damaged = bytearray(value)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decode(b"g", bytes(damaged))
        except ValueError:
            continue


def test_repetitions_are_left_out() -> None:
    first, second, third = changes([row()], 40), changes([row(), row()], 41), changes([row()], 43)
    gap = Gap(60, 70, 1, 2, 10, "why")
    late = changes([row()], 70)
    assert list(without_repetitions([first, second, first, second, third, gap, third, late])) == [
        *(first, second, third, gap, late)
    ]


def test_after_the_log_has_lost_its_end_positions_begin_again() -> None:
    first, undone, again = changes([row()], 40), Gap(30, 30, 0, 2, -1, "lost its end"), changes([row()], 30)
    assert list(without_repetitions([first, undone, again])) == [first, undone, again]


def test_origins_with_long_names_are_not_kept() -> None:
    name = "m" * 32_000
    before = sys.getrefcount(name)
    assert name.encode() in encode_origin(Cause.COMMIT, client_id="c", member_id=name)
    assert name.encode() in encode_origin(Cause.COMMIT, client_id=name)
    assert sys.getrefcount(name) == before
