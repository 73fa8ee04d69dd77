"""Varints, uuids, the tables of errors and API keys, the checksum."""

import pytest
from barnabas.protocol import checksum, uuids, varint
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode, ProtocolError

SIGNED = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    64: "8001",
    -64: "7f",
    -65: "8101",
    300: "d804",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("value", "encoded"), SIGNED.items())
def test_signed(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert varint.encode_signed(value) == data


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**32 - 1])
def test_unsigned(value: int) -> None:
    data = varint.encode_unsigned(value)
    assert varint.decode_unsigned(memoryview(data), 0) == (value, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 20])
def test_a_varint_that_does_not_end(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        varint.decode_unsigned(data, 0)


def test_uuid_text() -> None:
    uuid = bytes(range(240, 256))
    assert uuids.to_text(uuid) == "8PHy8_T19vf4-fr7_P3-_w"
    assert uuids.from_text(uuids.to_text(uuid)) == uuid
    assert uuids.to_text(uuids.ZERO) == "A" * 22


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 21 + "+", "A" * 21 + "é"])
def test_text_that_is_no_uuid(text: str) -> None:
    with pytest.raises(ValueError, match="not a base64 id"):
        uuids.from_text(text)


def test_every_error_code() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 137))
    assert ErrorCode.of(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ErrorCode.of(30000) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_every_api_key() -> None:
    assert [int(key) for key in ApiKey] == list(range(95))
    assert ApiKey.OFFSET_COMMIT == 8


def test_checksum() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(memoryview(b"6789"), checksum.crc32c(bytearray(b"12345"))) == 0xE3069283
