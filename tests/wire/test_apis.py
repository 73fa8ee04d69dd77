"""Every API that is offered: its row is complete, and Kafka's own request of every version is answered."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.requests import TABLE, announced
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import Structure
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS, infer_broker_version_from_api_versions

REQUESTS = {
    (line["key"], line["version"]): bytes.fromhex(line["request"])
    for line in map(
        json.loads, (Path(__file__).parent.parent / "golden" / "wire" / "requests.jsonl").read_text().splitlines()
    )
}
for _key, _version in ((2, 11), (8, 10), (9, 10), (35, 5)):  # not recorded from 4.1: the request of the version before
    _header, _message = frames.decode_request(memoryview(REQUESTS[_key, _version - 1]))
    _frame = frames.encode_request(_key, _version, _header.correlation_id, _header.client_id, _message)
    REQUESTS[_key, _version] = _frame[4:]

_JOIN = messages.ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=["t"])
for _version in (0, 1):  # refused, as by Kafka where this protocol is off: no request of the recorded ones was
    REQUESTS[68, _version] = frames.encode_request(68, _version, 1, "1", _JOIN)[4:]

_MARKER = messages.WriteTxnMarkersRequest.WritableTxnMarker(
    topics=[messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
)
_FILLED = {ApiKey.WRITE_TXN_MARKERS: messages.WriteTxnMarkersRequest(markers=[_MARKER])}
for _key, _row in TABLE.items():  # what brokers send each other was not recorded
    for _version in range(_row.first_version, _row.last_version + 1):
        if (_key, _version) not in REQUESTS and _row.is_of_brokers is True:
            _message = _FILLED.get(ApiKey(_key)) or messages.request_class(_key)()
            _frame = frames.encode_request(_key, _version, 1, "1", _message)
            REQUESTS[_key, _version] = _frame[4:]

REFUSED = {(ApiKey.PRODUCE, 0), (ApiKey.PRODUCE, 1), (ApiKey.PRODUCE, 2)}  # announced for the sake of librdkafka
EACH = [
    (key, version) for key, row in sorted(TABLE.items()) for version in range(row.announced[0], row.last_version + 1)
]
World = Any  # of conftest.py


@pytest.mark.parametrize("key", sorted(TABLE))
def test_a_row_is_complete(key: int) -> None:
    row = TABLE[key]
    first, last = messages.request_class(key).SCHEMA.versions
    assert first <= row.first_version <= row.last_version <= last
    assert row.announced[0] <= row.first_version
    assert row.announced[1] <= row.last_version
    assert callable(row.handler)
    assert messages.request_class(key)
    assert messages.response_class(key)


@pytest.mark.parametrize(("key", "version"), EACH)
def test_kafkas_request_is_answered(world: World, key: int, version: int) -> None:
    (answer,) = world.exchange(REQUESTS[key, version])
    assert world.broker.request_gate.handler_failures == 0
    if (key, version) in REFUSED:
        assert answer is None
        return
    assert answer is not None, "the connection was closed"
    correlation_id, _ = frames.decode_response(key, version, memoryview(answer))
    header, _ = frames.decode_request(memoryview(REQUESTS[key, version]))
    assert correlation_id == header.correlation_id


def error_codes(value: Any, structure: Structure, version: int) -> list[int]:
    """Every error code that this version of a message has, at whatever depth."""
    found = []
    for field in structure.fields:
        if not field.is_in(version):
            continue
        content = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(content)
        elif field.structure is not None and content is not None:
            for entry in content if field.array else [content]:
                found += error_codes(entry, field.structure, version)
    return found


# Versions whose answer has no place for an error, when all topics or all directories are asked for.
WITHOUT_A_PLACE = {(ApiKey.METADATA, v) for v in range(13)} | {(ApiKey.DESCRIBE_LOG_DIRS, v) for v in range(3)}


@pytest.mark.parametrize("key", sorted(TABLE))
def test_an_error_answer_of_every_api_says_the_error_for_all_that_was_asked(key: int) -> None:
    row = TABLE[key]
    for version in range(row.first_version, row.last_version + 1):
        _, request = frames.decode_request(memoryview(REQUESTS[key, version]))
        answer = row.failure_response(request, ErrorCode.KAFKA_STORAGE_ERROR)
        assert answer is not None, "the connection would be closed"
        frame = b"".join(frames.encode_response(key, version, 1, answer))
        _, response = frames.decode_response(key, version, memoryview(frame)[4:])
        codes = error_codes(response, response.SCHEMA.root, version)
        expected = set() if (key, version) in WITHOUT_A_PLACE else {ErrorCode.KAFKA_STORAGE_ERROR}
        assert set(codes) == expected, f"version {version} says {codes}"


@pytest.mark.parametrize(("key", "version"), [pair for pair in EACH if pair not in REFUSED])
def test_half_a_request_disturbs_nobody(world: World, key: int, version: int) -> None:
    request = REQUESTS[key, version]
    for size in {len(request) // 2, len(request) - 1}:
        world.exchange(request[:size], answers=1)
    assert world.broker.request_gate.handler_failures == 0
    assert world.exchange(REQUESTS[18, 0])[0] is not None


def test_lying_array_lengths_take_no_memory(world: World) -> None:
    huge = struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + struct.pack(">i", 2**31 - 1)
    assert world.exchange(huge) == [None]


def test_announced_versions(world: World) -> None:
    from barnabas.protocol.messages import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = world.ask(ApiKey.API_VERSIONS, 4, request)
    assert [(entry.api_key, entry.min_version, entry.max_version) for entry in response.api_keys] == announced()
    assert (0, 0, 13) in announced()
    assert (1, 4, 18) in announced()
    newest = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert newest == {"group.version": 1, "metadata.version": 30, "transaction.version": 2}


@pytest.mark.parametrize("seed", range(20))
def test_mutilated_requests_are_answered_or_closed(world: World, seed: int) -> None:
    """Bits flipped, bytes cut, inserted and repeated in real requests: no handler may raise."""
    rng = random.Random(seed)
    for key, version in rng.sample(EACH, 40):
        request = bytearray(REQUESTS[key, version])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(8, len(request))  # the first eight bytes say which API is meant
            match rng.randrange(4):
                case 0:
                    request[place] ^= 1 << rng.randrange(8)
                case 1:
                    del request[place : place + rng.randint(1, 8)]
                case 2:
                    request[place:place] = rng.randbytes(rng.randint(1, 8))
                case 3:
                    request[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            if len(request) < 12:
                break
        before = world.broker.request_gate.handler_failures
        world.send_and_close(bytes(request))
        assert world.broker.request_gate.handler_failures == before, (key, version, bytes(request).hex())
    assert world.exchange(REQUESTS[18, 0])[0] is not None


def test_a_client_that_asks_which_kafka_this_is_finds_4_3() -> None:
    told = {key: (first, last) for key, first, last in announced()}
    assert infer_broker_version_from_api_versions(told) == (4, 3)
    of_kafka = BROKER_API_VERSIONS[4, 3]
    asked_by_brokers = {ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS}  # of Kafka 3.9, see requests.py
    assert told.keys() - of_kafka.keys() <= asked_by_brokers
    assert {key: last for key, (_, last) in told.items() if key in of_kafka and last > of_kafka[key][1]} == {}
