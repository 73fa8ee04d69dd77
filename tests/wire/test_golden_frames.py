"""Every frame that real brokers exchanged: it decodes to the stored fields and encodes back to the same bytes."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.refusals import NOT_BUILT
from barnabas.protocol import frames
from barnabas.protocol.message import Struct
from barnabas.protocol.messages import request_class

FOLDER = Path(__file__).parent.parent / "golden" / "wire"
# Those that are compared, and those of APIs without a schema.
EXCHANGES = {"kafka-4.3.1": (229, 0), "kafka-4.1.0": (3600, 128), "kafka-3.9.1": (3502, 41)}
NOT_SPOKEN = {key for keys in NOT_BUILT.values() for key in keys}


def exchanges(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def field_name(name: str) -> str:
    """`ThrottleTimeMs` -> `throttle_time_ms`."""
    name = name.replace("KRaft", "Kraft").replace("2Pc", "_2pc")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def assert_same(stored: Any, value: Any, path: str) -> None:
    """Stored fields against a message; what the version lacks is not stored and has its default."""
    if isinstance(value, Struct):
        assert value.unknown_tagged_fields is None, path
        for name, item in stored.items():
            assert_same(item, getattr(value, field_name(name)), f"{path}.{name}")
    elif isinstance(value, list):
        assert len(stored) == len(value), path
        for index, (item, element) in enumerate(zip(stored, value, strict=True)):
            assert_same(item, element, f"{path}[{index}]")
    elif isinstance(value, bytes | memoryview):
        assert stored.replace("-", "") == value.hex(), path  # uuids are stored with dashes
    else:
        assert stored == value, path


def check(exchange: dict[str, Any]) -> None:
    key, version = exchange["key"], exchange["version"]
    data = bytes.fromhex(exchange["request"])
    if "request_body_version" not in exchange:
        header, request = frames.decode_request(data)
        assert (header.api_key, header.api_version) == (key, version)
        assert_same(exchange["request_fields"], request, "request")
        again = frames.encode_request(key, version, header.correlation_id, header.client_id, request)
        assert again[4:] == data
    if exchange["response"] is None:
        return
    data = bytes.fromhex(exchange["response"])
    body_version = exchange.get("response_version", version)
    correlation_id, response = frames.decode_response(key, body_version, data)
    assert_same(exchange["response_fields"], response, "response")
    again = b"".join(frames.encode_response(key, body_version, correlation_id, response))
    assert again == len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("name", EXCHANGES)
def test_every_exchange(name: str) -> None:
    """All of them: it takes a second. A request whose body is in another version than its header says is left out.

    So are the APIs that nothing here speaks (broker/refusals.py): they have no schema.
    """
    count = unknown = 0
    for exchange in exchanges(name):
        try:
            request_class(exchange["key"])
        except KeyError:
            assert exchange["key"] in NOT_SPOKEN
            unknown += 1
            continue
        try:
            check(exchange)
        except Exception as error:
            raise AssertionError(f"{exchange['api']} v{exchange['version']}, {exchange['case']}: {error!r}") from error
        count += 1
    assert (count, unknown) == EXCHANGES[name]


def test_the_comparison_sees_a_difference() -> None:
    exchange = next(exchange for exchange in exchanges("kafka-4.1.0") if exchange["api"] == "FindCoordinator")
    check(exchange)
    name, value = next(iter(exchange["request_fields"].items()))
    exchange["request_fields"][name] = [value]
    with pytest.raises((AssertionError, TypeError)):
        check(exchange)
