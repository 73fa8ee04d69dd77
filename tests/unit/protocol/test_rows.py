"""Rows that stay bytes: a sequence of the rows that objects would be, in Python and in C."""

import random
from typing import Any

import pytest
from barnabas.protocol import codec, rows
from barnabas.protocol.compile import DecoderWriter, EncoderWriter
from barnabas.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from barnabas.protocol.plan import plan
from barnabas.protocol.rows import Rows, row_layout
from native import build

make_row = OffsetCommitRequest.OffsetCommitRequestPartition
make_topic = OffsetCommitRequest.OffsetCommitRequestTopic


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module, built of this source."""
    return build("native_codec", "protocol/native/*.c", tmp_path_factory.mktemp("native"))


def request(*texts: str | None, tags: dict[int, bytes] | None = None) -> OffsetCommitRequest:
    made = [
        make_row(partition_index=index - 1, committed_offset=2**40 - index, committed_metadata=text)
        for index, text in enumerate(texts)
    ]
    if tags is not None:
        made[-1].unknown_tagged_fields = tags
    return OffsetCommitRequest(group_id="g", topics=[make_topic(name="t", partitions=made)])


def decoded(native: Any, message: OffsetCommitRequest, version: int) -> OffsetCommitRequest:
    """The message, decoded by Python and in C."""
    data = memoryview(codec.encode(message, version))
    one, end = DecoderWriter(OffsetCommitRequest, version).build()(data, 0)
    other = native.Decoder("OffsetCommitRequest", version, plan(OffsetCommitRequest, version))(data, 0)
    assert (one, end) == other
    assert type(one.topics[0].partitions) is type(other[0].topics[0].partitions)
    assert end == len(data)
    found: OffsetCommitRequest = one
    return found


@pytest.mark.parametrize("version", range(11))
@pytest.mark.parametrize(
    "texts", [("",), ("", ""), (None, "", None), ("",) * 300, ("", "m"), ("m", ""), ("", "x" * 300)]
)
def test_rows_are_bytes_where_they_say_numbers_alone(native: Any, version: int, texts: tuple[str | None, ...]) -> None:
    message = request(*texts)
    found = decoded(native, message, version)
    assert found.topics[0].partitions == message.topics[0].partitions
    is_plain = version >= 6 and len(texts) > 1 and not any(texts)
    assert isinstance(found.topics[0].partitions, Rows) == is_plain
    assert codec.encode(found, version) == codec.encode(message, version)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_rows_with_tagged_fields_are_objects(native: Any, version: int) -> None:
    message = request("", "", tags={3: b"t"})
    found = decoded(native, message, version)
    assert found.topics[0].partitions == message.topics[0].partitions
    assert type(found.topics[0].partitions) is list


def test_a_sequence(native: Any) -> None:
    expected = request("", None, "").topics[0].partitions
    found: Any = decoded(native, request("", None, ""), 9).topics[0].partitions
    assert [found[0], found[1], found[-1]] == expected
    assert found[1:] == expected[1:]
    assert list(found) == expected
    assert expected == found
    assert found != expected[1:]
    assert repr(found) == repr(expected)
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize("version", range(11))
def test_rows_of_an_answer(native: Any, version: int) -> None:
    make_answer_topic = OffsetCommitResponse.OffsetCommitResponseTopic
    make_answer_row = OffsetCommitResponse.OffsetCommitResponsePartition
    layout, older = (row_layout(OffsetCommitResponse, make_answer_row.__name__, each) for each in (version, 0))
    assert layout is not None
    assert older is not None
    indexes = (0, -1, 7, 2**31 - 1)
    column = b"".join(index.to_bytes(4, "big", signed=True) for index in indexes)
    expected = [make_answer_row(partition_index=index) for index in indexes]
    native_encode = native.Encoder("OffsetCommitResponse", version, plan(OffsetCommitResponse, version))
    for encode in (EncoderWriter(OffsetCommitResponse, version).build(), native_encode):
        answers: list[bytes] = []
        of_another_version = Rows(older, rows.pad(column, 4, older.size_bytes), 4)
        for partitions in (expected, Rows(layout, rows.pad(column, 4, layout.size_bytes), 4), of_another_version):
            assert partitions == expected
            message = OffsetCommitResponse(topics=[make_answer_topic(name="t", partitions=partitions)])
            answers.append(bytes(encode(message, bytearray(), [])))
        assert answers == [answers[0]] * 3


@pytest.mark.parametrize("seed", range(50))
def test_columns(native: Any, seed: int) -> None:
    rng = random.Random(seed)
    row_bytes, count = rng.randrange(2, 20), rng.choice((0, 1, 2, 300))
    first = rng.randrange(1, row_bytes)
    second = rng.randrange(row_bytes - first + 1)
    data = rng.randbytes(row_bytes * count)
    columns = rows.cut(data, row_bytes, first, second)
    assert native.cut(data, row_bytes, first, second) == columns
    assert rows.split(columns[0], first) == tuple(data[at : at + first] for at in range(0, len(data), row_bytes))
    padded = rows.pad(columns[0], first, row_bytes) if count else b""
    assert native.pad(columns[0], first, row_bytes) == padded
    assert rows.cut(padded, row_bytes, first, 0) == (columns[0], b"")


@pytest.mark.parametrize("arguments", [(bytes(5), 2, 1, 1), (bytes(4), 2, 2, 1), (bytes(4), 0, 0, 0), ("x", 1, 1, 0)])
def test_columns_that_are_not_there(native: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        native.cut(*arguments)
    with pytest.raises((ValueError, TypeError)):
        native.pad(arguments[0], 2, 1)
