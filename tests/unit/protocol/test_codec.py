"""Every message in every version: round trips, cut off, changed; and the rules one by one."""

import contextlib
import random
import struct
import tracemalloc
from typing import Any

import pytest
from barnabas.protocol import codec, messages, records
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compile import NUMBERS_PER_PIECE
from barnabas.protocol.compiled_calls import STRING_BYTES_MAX, UNKNOWN_TAGS_MAX
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import BY_REFERENCE_BYTES, Message
from barnabas.protocol.messages import (
    ApiVersionsResponse,
    DeleteGroupsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from barnabas.protocol.varint import encode_unsigned
from barnabas.runtime.turns import at_once
from random_messages import all_classes, random_message, versions


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_every_version(cls: type[Message]) -> None:
    rng = random.Random(cls.SCHEMA.name)
    assert cls() == cls()
    assert repr(cls()).startswith(cls.SCHEMA.name + "(")
    for version in versions(cls):
        for _ in range(3):
            message = random_message(cls, version, rng)
            data = codec.encode(message, version)
            decoded, position = codec.decode(cls, version, b"before" + data + b"behind", 6)
            assert position == 6 + len(data)
            assert decoded == message
            assert codec.encode(decoded, version) == data
            assert in_pieces(decoded, version) == data
            assert decoded_in_pieces(cls, version, b"before" + data + b"behind", 6) == (message, position)
        for _ in range(20):  # cut off or changed: an error or another value, never another exception
            end = rng.randrange(len(data) + 1)
            if end < len(data):
                for decode in (codec.decode, decoded_in_pieces):
                    with pytest.raises(ProtocolError):
                        decode(cls, version, data[:end])
            if data:
                changed = bytearray(data)
                changed[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
                with contextlib.suppress(ProtocolError):
                    codec.decode(cls, version, changed)


def in_pieces(message: Message, version: int) -> bytes:
    """What the encoder for long answers writes."""
    parts: list[Any] = []
    parts.append(at_once(codec.encoder_in_pieces(type(message), version)(message, bytearray(), parts)))
    return b"".join(parts)


def decoded_in_pieces(cls: type[Message], version: int, data: bytes, position: int = 0) -> tuple[Message, int]:
    """What the decoder for long requests reads."""
    return at_once(codec.decoder_in_pieces(cls, version)(memoryview(data), position))


def test_long_arrays_are_decoded_with_pauses() -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [topic(name="t", partition_indexes=list(range(NUMBERS_PER_PIECE + 1))) for _ in range(3)]
    request = OffsetFetchRequest(groups=[group(group_id="g", topics=topics) for _ in range(2)])
    data = codec.encode(request, 8)
    assert decoded_in_pieces(OffsetFetchRequest, 8, data)[0] == request
    pieces = list(codec.decoder_in_pieces(OffsetFetchRequest, 8)(memoryview(data), 0))
    assert len(pieces) == 2 * (1 + 3 * (1 + 2))  # groups, topics in each, and two pieces of the numbers in each
    names = DeleteGroupsRequest(groups_names=["g"] * 10)
    assert len(list(codec.decoder_in_pieces(DeleteGroupsRequest, 2)(memoryview(codec.encode(names, 2)), 0))) == 10


@pytest.mark.parametrize(("count", "is_refused"), [(UNKNOWN_TAGS_MAX, False), (UNKNOWN_TAGS_MAX + 1, True)])
def test_unknown_tagged_fields_are_limited(count: int, is_refused: bool) -> None:
    request = MetadataRequest(topics=[])
    request.unknown_tagged_fields = dict.fromkeys(range(count), b"")
    data = codec.encode(request, 12)
    for decode in (codec.decode, decoded_in_pieces):
        with pytest.raises(ProtocolError, match="tagged fields") if is_refused else contextlib.nullcontext():
            assert decode(MetadataRequest, 12, data)[0] == request


def test_a_long_array_is_encoded_with_pauses() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(10)]
    encoding = codec.encoder_in_pieces(MetadataRequest, 12)(MetadataRequest(topics=topics), bytearray(), [])
    assert len(list(encoding)) == len(topics)


@pytest.mark.parametrize("version", [-1, 19, 1000])
def test_a_version_that_does_not_exist(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="no version"):
        codec.decode(FetchRequest, version, b"")
    with pytest.raises(UnsupportedVersionError, match="no version"):
        codec.encode(FetchRequest(), version)


def test_ranges() -> None:
    assert (FetchRequest.SCHEMA.versions, FetchRequest.SCHEMA.flexible_since) == ((0, 18), 12)
    assert messages.request_class(1) is FetchRequest
    assert messages.response_class(1) is FetchResponse
    assert FetchRequest.API_KEY == FetchResponse.API_KEY == ApiKey.FETCH
    with pytest.raises(KeyError):
        messages.request_class(95)
    with pytest.raises(AttributeError):
        messages.NoSuchRequest  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        records.NoSuchValue  # type: ignore[attr-defined]  # noqa: B018


def test_bytes_of_a_plain_request() -> None:
    data = bytes.fromhex("0001 67 00000005 0001 6d".replace(" ", ""))
    request = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")
    assert codec.encode(request, 0) == data
    assert codec.decode(HeartbeatRequest, 0, data) == (request, len(data))


def test_bytes_of_a_flexible_request() -> None:
    data = bytes.fromhex("02 67 00000005 02 6d 00 00".replace(" ", ""))
    request = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")
    assert codec.encode(request, 4) == data
    assert codec.decode(HeartbeatRequest, 4, data) == (request, len(data))


def test_a_field_that_the_version_lacks() -> None:
    request = HeartbeatRequest(group_id="g", group_instance_id="instance")
    with pytest.raises(UnsupportedVersionError, match="group_instance_id"):
        codec.encode(request, 2)
    assert codec.encode(request, 3)
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(committed_leader_epoch=5)
    commit = OffsetCommitRequest(
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    plain = codec.decode(OffsetCommitRequest, 2, codec.encode(commit, 2))[0]  # this one may be dropped
    assert plain.topics[0].partitions[0].committed_leader_epoch == -1


@pytest.mark.parametrize(
    ("cls", "version", "data", "reason"),
    [
        (HeartbeatRequest, 0, "ffff", "must not be null"),
        (HeartbeatRequest, 4, "00", "must not be null"),
        (HeartbeatRequest, 0, "0002 67", "longer than"),
        (HeartbeatRequest, 4, "03 67", "longer than"),
        (HeartbeatRequest, 4, "ffffffff0f 67", "a string of"),
        (HeartbeatRequest, 4, "ffffffffff0f 67", "too long"),
        (HeartbeatRequest, 4, "80", "past the end"),
        (HeartbeatRequest, 0, "", "ends too early"),
        (MetadataRequest, 0, "ffffffff", "must not be null"),
        (MetadataRequest, 0, "7fffffff", "longer than"),
        (ListOffsetsRequest, 1, "ffffffff 7fffffff", "longer than"),
        (HeartbeatRequest, 4, "02 67 00000005 02 6d 00 02 05 00 05 00", "repeated or out of order"),
        (HeartbeatRequest, 4, "02 67 00000005 02 6d 00 02 06 00 05 00", "repeated or out of order"),
        (HeartbeatRequest, 4, "02 67 00000005 02 6d 00 01 05 01", "longer than"),
        (HeartbeatRequest, 4, "02 67 00000005 02 6d 00 7f", "past the end"),
        (ApiVersionsResponse, 3, "0000 01 00000000 02 03 01 00 01 08 00000000000000ff", "repeated or out of order"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 03 02 0000", "size given"),
    ],
)
def test_malformed(cls: type[Message], version: int, data: str, reason: str) -> None:
    for decode in (codec.decode, decoded_in_pieces):
        with pytest.raises(ProtocolError, match=reason):
            decode(cls, version, bytes.fromhex(data.replace(" ", "")))


def produce(size: int, version: int) -> bytes:
    partition = ProduceRequest.PartitionProduceData(index=1, records=bytes(size))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return codec.encode(ProduceRequest(acks=1, timeout_ms=5, topic_data=[topic]), version)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_count_against_the_bytes_left(count: int) -> None:
    """Three partitions of the smallest size fit; a count of four is refused before anything is read."""
    partitions = 3 * bytes.fromhex("00000001 0000000000000005".replace(" ", ""))
    data = bytes.fromhex("ffffffff 00000001 0001 74".replace(" ", "")) + count.to_bytes(4, "big") + partitions
    if count <= 3:
        request, position = codec.decode(ListOffsetsRequest, 1, data)
        assert len(request.topics[0].partitions) == count
        assert position == len(data) - 12 * (3 - count)
    else:
        with pytest.raises(ProtocolError, match="partitions is longer"):
            codec.decode(ListOffsetsRequest, 1, data)


@pytest.mark.parametrize("size", [STRING_BYTES_MAX - 1, STRING_BYTES_MAX, STRING_BYTES_MAX + 1])
@pytest.mark.parametrize("version", [0, 4])
def test_length_of_strings(size: int, version: int) -> None:
    text = "x" * size
    length = size.to_bytes(2, "big") if version == 0 else encode_unsigned(size + 1)
    data = length + text.encode() + codec.encode(HeartbeatRequest(), version)[2 if version == 0 else 1 :]
    if size <= STRING_BYTES_MAX:
        assert codec.encode(HeartbeatRequest(group_id=text), version) == data
        assert codec.decode(HeartbeatRequest, version, data)[0].group_id == text
    else:
        with pytest.raises((ValueError, struct.error)):
            codec.encode(HeartbeatRequest(group_id=text), version)
        with pytest.raises(ProtocolError):
            codec.decode(HeartbeatRequest, version, data)


def test_a_lying_count_takes_no_memory() -> None:
    data = bytes.fromhex("7ffffff0") + bytes(100)
    codec.decoder(MetadataRequest, 1)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            codec.decode(MetadataRequest, 1, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [BY_REFERENCE_BYTES - 1, BY_REFERENCE_BYTES, BY_REFERENCE_BYTES + 1])
@pytest.mark.parametrize("version", [3, 9])
def test_large_records_by_reference(size: int, version: int) -> None:
    content = bytearray(size)
    partitions: list[Any] = [
        ProduceRequest.PartitionProduceData(index=index, records=data)
        for index, data in enumerate((content, b"ab", None))
    ]
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=partitions)
    message = ProduceRequest(topic_data=[topic])
    parts: list[Any] = []
    parts.append(codec.encoder(ProduceRequest, version)(message, bytearray(), parts))
    assert any(part is content for part in parts) == (size >= BY_REFERENCE_BYTES)
    assert b"".join(parts) == codec.encode(message, version)
    assert codec.decode(ProduceRequest, version, b"".join(parts))[0] == message


def test_records_are_slices_and_bytes_are_copies() -> None:
    data = produce(100, 9)
    request, _ = codec.decode(ProduceRequest, 9, memoryview(data))
    content = request.topic_data[0].partition_data[0].records
    assert isinstance(content, memoryview)
    assert content.obj is data


def test_unknown_tagged_fields_survive() -> None:
    data = bytes.fromhex("02 67 00000005 02 6d 00 02 05 01 ff 9001 00".replace(" ", ""))
    request, _ = codec.decode(HeartbeatRequest, 4, data)
    assert request.unknown_tagged_fields == {5: b"\xff", 144: b""}
    assert codec.encode(request, 4) == data
    fetch = FetchRequest(cluster_id="c", unknown_tagged_fields={9: b"nine"})
    assert codec.decode(FetchRequest, 12, codec.encode(fetch, 12))[0] == fetch


def test_text_that_is_not_utf8_reads_as_kafka_reads_it() -> None:
    request, _ = codec.decode(HeartbeatRequest, 0, bytes.fromhex("0001 ff 00000005 0000".replace(" ", "")))
    assert request.group_id == "\ufffd"


def test_any_negative_length_is_null() -> None:
    assert codec.decode(MetadataRequest, 1, bytes.fromhex("fffffffe"))[0].topics is None


def test_defaults_are_not_shared_unless_frozen() -> None:
    first, second = FetchResponse.PartitionData(), FetchResponse.PartitionData()
    assert first.current_leader == FetchResponse.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    with pytest.raises(AttributeError, match="assign a new one"):
        first.current_leader.leader_id = 1
    first.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=1)
    assert second.current_leader.leader_id == -1
    response = FetchResponse()
    response.responses.append(FetchResponse.FetchableTopicResponse())
    assert FetchResponse().responses == []


def test_a_tagged_structure_is_written_when_it_differs() -> None:
    partition = FetchResponse.PartitionData(
        current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=3, leader_epoch=1), aborted_transactions=None
    )
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])
    data = codec.encode(response, 12)
    assert bytes.fromhex("01 01 09 00000003 00000001 00".replace(" ", "")) in data
    assert codec.decode(FetchResponse, 12, data)[0] == response


def test_equality_and_unknown_constructor_arguments() -> None:
    assert HeartbeatRequest(group_id="a") != HeartbeatRequest(group_id="b")
    assert HeartbeatRequest() != MetadataRequest()
    with pytest.raises(TypeError):
        HeartbeatRequest(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        HeartbeatRequest().nonsense = 1  # type: ignore[attr-defined]
