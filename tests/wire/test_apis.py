"""Every API that is offered: its row is complete, and Kafka's own request of every version is answered."""

import asyncio
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.broker import Broker
from barnabas.broker.dispatch import TABLE, announced
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.sim.env import SimEnv, sim_env

REQUESTS = {
    (line["key"], line["version"]): bytes.fromhex(line["request"])
    for line in map(
        json.loads, (Path(__file__).parent.parent / "golden" / "wire" / "requests.jsonl").read_text().splitlines()
    )
}
for _key, _version in ((2, 11), (8, 10), (9, 10)):  # came after Kafka 4.1: the request of the version before
    _header, _message = frames.decode_request(memoryview(REQUESTS[_key, _version - 1]))
    _frame = frames.encode_request(_key, _version, _header.correlation_id, _header.client_id, _message)
    REQUESTS[_key, _version] = _frame[4:]

REFUSED = {(ApiKey.PRODUCE, 0), (ApiKey.PRODUCE, 1), (ApiKey.PRODUCE, 2)}  # announced for the sake of librdkafka
EACH = [
    (key, version) for key, row in sorted(TABLE.items()) for version in range(row.announced_from, row.last_version + 1)
]


class Client(asyncio.Protocol):
    """One connection; answers come one by one."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False
        self.news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.news.set()

    async def answer(self) -> bytes | None:
        """The next frame, without its size; None when the broker closed."""
        while True:
            if len(self.data) >= 4:
                (size,) = struct.unpack_from(">i", self.data)
                if len(self.data) >= 4 + size:
                    frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
                    return frame
            if self.closed:
                return None
            self.news.clear()
            await self.news.wait()


class World:
    """A broker in virtual time, and clients of it."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(7)
        config = BrokerConfig.of(
            {
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "coordination.path": ":memory:",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "3",
            }
        )
        self.broker = Broker(self.env, config, "/data")
        self.env.run(self.broker.start())

    def exchange(self, *requests: bytes, answers: int | None = None) -> list[bytes | None]:
        """Send whole frames (without sizes) on a connection of their own, and wait for the answers."""

        async def run() -> list[bytes | None]:
            transport, client = await self.env.network.connect("127.0.0.1", 9092, Client)
            for request in requests:
                transport.write(struct.pack(">i", len(request)) + request)  # type: ignore[attr-defined]
            wanted = len(requests) if answers is None else answers
            got = [await client.answer() for _ in range(wanted)]  # type: ignore[attr-defined]
            transport.close()
            return got

        return self.env.run(run())

    def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer to one request."""
        (answer,) = self.exchange(frames.encode_request(api, version, 1, "test", message)[4:])
        assert answer is not None, "the connection was closed"
        return frames.decode_response(api, version, memoryview(answer))[1]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One broker for all tests of the module."""
    world = World()
    yield world
    assert world.broker.server.handler_failures == 0
    world.env.run(world.broker.stop())


@pytest.mark.parametrize("key", sorted(TABLE))
def test_a_row_is_complete(key: int) -> None:
    row = TABLE[key]
    served = messages.valid_versions(ApiKey(key))
    assert row.first_version in served
    assert row.last_version in served
    assert row.announced_from <= row.first_version
    assert callable(row.handler)
    assert frames.request_class(key)
    assert frames.response_class(key)


@pytest.mark.parametrize(("key", "version"), EACH)
def test_kafkas_request_is_answered(world: World, key: int, version: int) -> None:
    (answer,) = world.exchange(REQUESTS[key, version])
    assert world.broker.server.handler_failures == 0
    if (key, version) in REFUSED:
        assert answer is None
        return
    assert answer is not None, "the connection was closed"
    correlation_id, _ = frames.decode_response(key, version, memoryview(answer))
    header, _ = frames.decode_request(memoryview(REQUESTS[key, version]))
    assert correlation_id == header.correlation_id


@pytest.mark.parametrize("key", sorted(TABLE))
def test_an_error_answer_of_every_api_can_be_sent(key: int) -> None:
    row = TABLE[key]
    for version in range(row.first_version, row.last_version + 1):
        _, request = frames.decode_request(memoryview(REQUESTS[key, version]))
        response = row.failure_response(request, -1)
        if response is not None:
            frames.encode_response(key, version, 1, response)


@pytest.mark.parametrize(("key", "version"), [pair for pair in EACH if pair not in REFUSED])
def test_half_a_request_disturbs_nobody(world: World, key: int, version: int) -> None:
    request = REQUESTS[key, version]
    for size in {len(request) // 2, len(request) - 1}:
        world.exchange(request[:size], answers=1)
    assert world.broker.server.handler_failures == 0
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
    assert response.supported_features == []
    assert response.finalized_features == []
