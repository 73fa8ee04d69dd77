"""Sizes, headers of requests and responses, and the exceptions that ApiVersions needs."""

import struct

import pytest
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from barnabas.protocol.messages import (
    ApiVersionsResponse,
    ControlledShutdownRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
)


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(("size", "fine"), [(-1, False), (0, True), (99, True), (100, True), (101, False)])
def test_size_limit(size: int, fine: bool) -> None:
    if fine:
        frames.check_frame_size(size, 100)
    else:
        with pytest.raises(ProtocolError, match=f"{size} bytes"):
            frames.check_frame_size(size, 100)


REQUEST = HeartbeatRequest(group_id="g", generation_id=5, member_id="m")


@pytest.mark.parametrize(
    ("version", "client_id", "frame"),
    [
        (0, "me", "000c 0000 00000007 0002 6d65 0001 67 00000005 0001 6d"),
        (0, None, "000c 0000 00000007 ffff 0001 67 00000005 0001 6d"),
        (4, "me", "000c 0004 00000007 0002 6d65 00 02 67 00000005 02 6d 00 00"),
    ],
)
def test_request(version: int, client_id: str | None, frame: str) -> None:
    data = hexed(frame)
    assert (
        frames.encode_request(ApiKey.HEARTBEAT, version, 7, client_id, REQUEST) == len(data).to_bytes(4, "big") + data
    )
    header, message = frames.decode_request(data)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (12, version, 7, client_id)
    assert message == REQUEST


def test_controlled_shutdown_0_has_no_client_id() -> None:
    data = frames.encode_request(ApiKey.CONTROLLED_SHUTDOWN, 0, 7, "ignored", ControlledShutdownRequest(broker_id=3))
    assert data[4:] == hexed("0007 0000 00000007 00000003")
    header, message = frames.decode_request(data[4:])
    assert header.client_id is None
    assert message == ControlledShutdownRequest(broker_id=3)


def test_tagged_fields_of_a_request_header_are_read() -> None:
    data = hexed("000c 0004 00000007 0002 6d65 01 05 02 ffff 02 67 00000005 02 6d 00 00")
    assert frames.decode_request(data)[1] == REQUEST


def test_bytes_behind_a_request_are_ignored_as_kafka_does() -> None:
    assert frames.decode_request(hexed("000c 0000 00000007 ffff 0001 67 00000005 0001 6d 99"))[1] == REQUEST


@pytest.mark.parametrize(
    "frame", ["", "000c", "000c 0000 00000007", "000c 0000 00000007 0005 6d", "000c 0004 00000007 ffff"]
)
def test_a_header_that_ends_too_early(frame: str) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_request_header(memoryview(hexed(frame)))


@pytest.mark.parametrize("key", ["7fff", "005f", "ffff"])
def test_an_unknown_api(key: str) -> None:
    with pytest.raises(ProtocolError, match="no API"):
        frames.decode_request_header(memoryview(hexed(key + "0000 00000007 ffff")))


def test_an_unknown_version() -> None:
    data = hexed("0012 0063 00000007 ffff 00")
    header, position = frames.decode_request_header(memoryview(data))
    assert (header.api_version, position) == (99, len(data))
    with pytest.raises(UnsupportedVersionError):
        frames.decode_request(data)


def test_response() -> None:
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert b"".join(frames.encode_response(12, 0, 7, response)) == hexed("00000006 00000007 001b")
    data = hexed("00000007 00 00000000 001b 00")
    assert b"".join(frames.encode_response(12, 4, 7, response))[4:] == data
    assert frames.decode_response(12, 4, data) == (7, response)
    with pytest.raises(ProtocolError):
        frames.decode_response(12, 4, data[:3])


def test_api_versions_never_has_tagged_fields_in_its_response_header() -> None:
    data = b"".join(frames.encode_response(ApiKey.API_VERSIONS, 3, 7, ApiVersionsResponse()))
    assert data == hexed("0000000c 00000007 0000 01 00000000 00")
    assert frames.decode_response(ApiKey.API_VERSIONS, 3, data[4:]) == (7, ApiVersionsResponse())


def test_api_versions_too_new_is_answered_in_version_0() -> None:
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    data = b"".join(frames.encode_response(ApiKey.API_VERSIONS, 0, 7, response))
    assert data[4:] == hexed("00000007 0023 00000001 0012 0000 0004")


def test_the_size_counts_every_part() -> None:
    content = bytes(20_000)
    partition = ProduceRequest.PartitionProduceData(records=content)
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[partition])])
    data = frames.encode_request(ApiKey.PRODUCE, 9, 1, None, request)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert frames.decode_request(data[4:])[1] == request


def test_a_request_of_an_api_without_a_schema_is_told_apart_from_one_that_cannot_be_read() -> None:
    frame = struct.pack(">hhihB", ApiKey.SHARE_FETCH, 1, 7, -1, 0)
    header, _ = frames.decode_request_header(frame)
    assert (header.api_key, header.correlation_id, header.client_id) == (ApiKey.SHARE_FETCH, 7, None)
    with pytest.raises(UnsupportedVersionError, match=f"API {ApiKey.SHARE_FETCH:d} "):
        frames.decode_request(frame)
