"""The decoders and encoders in C do what those do that compile.py writes: messages, wrong bytes, wrong values."""

import random
from typing import Any

import pytest
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compile import DecoderWriter, EncoderWriter
from barnabas.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import BY_REFERENCE_BYTES, Message, Reference, make_class
from barnabas.protocol.messages import FetchResponse, HeartbeatResponse, ListOffsetsRequest, MetadataRequest
from barnabas.protocol.plan import constructor_plans, plan
from mutations import spoil
from native import build
from random_messages import all_classes, random_message, versions


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module, built of this source."""
    return build("native_codec", "protocol/native/*.c", tmp_path_factory.mktemp("native"))


def outcome(function: Any, *arguments: Any) -> Any:
    """What it returns, or the kind and the text of its error."""
    try:
        return function(*arguments)
    except (ProtocolError, UnsupportedVersionError) as error:
        return type(error), str(error)
    except Exception as error:
        return type(error)


def encoded(encode: Any, message: Any) -> Any:
    """The parts of a frame that begins with four bytes."""
    parts: list[Any] = []
    out = encode(message, bytearray(b"head"), parts)
    return [*map(bytes, parts), bytes(out)]


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_messages_and_wrong_bytes(native: Any, cls: type[Message]) -> None:
    rng = random.Random(f"native {cls.SCHEMA.name}")
    for version in versions(cls):
        of_version = plan(cls, version)
        decode, encode = DecoderWriter(cls, version).build(), EncoderWriter(cls, version).build()
        native_decode = native.Decoder(cls.SCHEMA.name, version, of_version)
        native_encode = native.Encoder(cls.SCHEMA.name, version, of_version)
        for message in (cls(), *(random_message(cls, version, rng) for _ in range(4))):
            parts = outcome(encoded, encode, message)
            assert outcome(encoded, native_encode, message) == parts
            if not isinstance(parts, list):
                continue
            if cls.SCHEMA.name.endswith("Response"):
                answer = frames.encode_response(cls.API_KEY, version, -7, message)
                has_tags = cls.API_KEY != ApiKey.API_VERSIONS
                assert [*map(bytes, native_encode.frame(message, -7, has_tags))] == [*map(bytes, answer)]
            data = b"".join(parts)
            assert native_decode(memoryview(data + b"behind"), 4) == (message, len(data))
            for _ in range(30):
                spoilt = memoryview(spoil(rng, data, 4))
                expected = outcome(decode, spoilt, 4)
                found = outcome(native_decode, spoilt, 4)
                assert found == expected or repr(found) == repr(expected)  # the second: a number that is none
                if isinstance(expected[0], cls):  # another message: text that is not UTF-8, tags that are not known
                    assert outcome(encoded, native_encode, expected[0]) == outcome(encoded, encode, expected[0])


def test_request_headers(native: Any) -> None:
    rng = random.Random("request headers")
    seen = 0
    for cls in all_classes():
        if not cls.SCHEMA.name.endswith("Request"):
            continue
        for version in versions(cls):
            client_id = rng.choice(("", "a client", "é€😀", "x" * 300))
            frame = frames.encode_request(cls.API_KEY, version, rng.randrange(-(2**31), 2**31), client_id, cls())[4:]
            for data in (frame, *(spoil(rng, frame, 0) for _ in range(30))):
                expected = outcome(frames.decode_request_header, memoryview(data))
                found = native.request_header(memoryview(data), frames._FLEXIBLE_SINCE)
                if found is not None:
                    header, position = expected
                    assert found == (
                        *(header.api_key, header.api_version, header.correlation_id, header.client_id),
                        position,
                    )
                    seen += data is frame
    assert seen > 200


def random_values(cls: type[Message], rng: random.Random) -> dict[str, Any]:
    """Values for some fields of a class."""
    message = random_message(cls, versions(cls)[-1], rng)
    names = [*cls._FIELDS, "unknown_tagged_fields"]
    return {name: getattr(message, name) for name in names if rng.random() < 0.5}


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_constructors(native: Any, cls: type[Message]) -> None:
    rng = random.Random(f"constructors {cls.SCHEMA.name}")
    made = make_class(cls.SCHEMA, cls.__module__)
    for each, fields in constructor_plans(made):
        native.construct_natively(each, fields)
        with pytest.raises(TypeError):
            each(no_such_field=1)
        with pytest.raises(TypeError):
            each(*["value"])
    for name in cls.SCHEMA.structures:
        assert repr(getattr(made, name)()) == repr(getattr(cls, name)())
    for _ in range(10):
        values = random_values(cls, rng)
        assert repr(made(**values)) == repr(cls(**values))
    first, second = made(), made()
    for name in made._FIELDS:  # each has lists of its own
        value = getattr(first, name)
        assert not isinstance(value, list) or value is not getattr(second, name)


WRONG = (None, -1, 2**15, 2**31, 2**63, 2**70, -(2**63), 1.5, "x" * 40_000, b"b")


def spoil_values(message: Any, rng: random.Random) -> None:
    """Put wrong values into some fields."""
    for name in message._FIELDS:
        value = getattr(message, name)
        if isinstance(value, list):
            for item in value:
                if hasattr(item, "_FIELDS"):
                    spoil_values(item, rng)
        if rng.random() < 0.1:
            setattr(message, name, rng.choice(WRONG))


@pytest.mark.parametrize("cls", all_classes(), ids=lambda cls: cls.SCHEMA.name)
def test_wrong_values(native: Any, cls: type[Message]) -> None:
    """Both refuse the same values. One that is of another type may be refused with another error."""
    rng = random.Random(f"wrong values {cls.SCHEMA.name}")
    for version in versions(cls):
        encode = EncoderWriter(cls, version).build()
        native_encode = native.Encoder(cls.SCHEMA.name, version, plan(cls, version))
        for _ in range(10):
            message = random_message(cls, version, rng)
            spoil_values(message, rng)
            expected, found = outcome(encoded, encode, message), outcome(encoded, native_encode, message)
            assert found == expected or not (isinstance(found, list) or isinstance(expected, list)), message


def both(native: Any, cls: type[Message], version: int) -> tuple[Any, Any]:
    """The two encoders of a version."""
    return EncoderWriter(cls, version).build(), native.Encoder(cls.SCHEMA.name, version, plan(cls, version))


class InAFile(Reference):
    """Stands for records that are not in memory."""

    __slots__ = ()

    def __len__(self) -> int:
        return BY_REFERENCE_BYTES


def test_large_records_are_parts(native: Any) -> None:
    partition = FetchResponse.PartitionData(partition_index=1, records=InAFile())  # type: ignore[arg-type]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])
    for version in versions(FetchResponse):
        found = []
        for encode in both(native, FetchResponse, version):
            out, parts = bytearray(b"head"), []
            last = encode(response, out, parts)
            assert parts[0] is out
            assert parts[1] is partition.records
            found.append((bytes(out), bytes(last)))
        assert found[0] == found[1]


def test_an_error_code_is_a_number(native: Any) -> None:
    for encode in both(native, HeartbeatResponse, 4):
        assert encoded(encode, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)) == [b"head\0\0\0\0\0\x19\0"]


def test_a_field_that_the_version_lacks(native: Any) -> None:
    message = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    first, second = (outcome(encoded, encode, message) for encode in both(native, MetadataRequest, 1))
    assert first == second == (UnsupportedVersionError, "MetadataRequest has no allow_auto_topic_creation in version 1")


def test_an_object_of_another_class_is_asked_by_name(native: Any) -> None:
    class Topic:
        name = "orders"
        partitions = ()
        unknown_tagged_fields = None

    message = ListOffsetsRequest(topics=[Topic()])  # type: ignore[list-item]
    first, second = (encoded(encode, message) for encode in both(native, ListOffsetsRequest, 9))
    assert first == second
    assert b"orders" in first[0]


def test_wrong_arguments_are_refused(native: Any) -> None:
    decode = native.Decoder("HeartbeatResponse", 0, plan(HeartbeatResponse, 0))
    for arguments in ((), (b"",), (b"", -1), (b"", "0"), (None, 0)):
        with pytest.raises((TypeError, ValueError)):
            decode(*arguments)
    encode = native.Encoder("HeartbeatResponse", 0, plan(HeartbeatResponse, 0))
    for words in ((), (HeartbeatResponse(), b"", []), (HeartbeatResponse(), bytearray(), ())):
        with pytest.raises(TypeError):
            encode(*words)
    with pytest.raises(ProtocolError, match="ends too early"):
        decode(b"", 7)
    for wrong in ((), (HeartbeatResponse, False, (), (), ()), (HeartbeatResponse, False, ((),), (), (), ())):
        with pytest.raises(TypeError):
            native.Decoder("HeartbeatResponse", 0, wrong)
