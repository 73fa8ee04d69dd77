"""How many files a warm request passes from socket to log and back: `-rP` prints them.

A file counts if one of its functions runs for each of some equal requests, on a broker with a real clock and disk. So
what a request does now and then (an index entry) does not count, nor what runs beside it.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from barnabas.broker.broker import Broker
from barnabas.broker.connection import Connection
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

WARM, COUNTED = 20, 10
RECORDS = record_batch.build([record_batch.Record(offset=0, timestamp=1, value=bytes(100))])
PARTITION = messages.ProduceRequest.PartitionProduceData(index=0, records=RECORDS)
PRODUCE = messages.ProduceRequest(
    acks=-1,
    timeout_ms=1_000,
    topic_data=[messages.ProduceRequest.TopicProduceData(name="topic", partition_data=[PARTITION])],
)
OFFSET = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
COMMIT = messages.OffsetCommitRequest(
    group_id="group",
    topics=[messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="topic", partitions=[OFFSET])],
)


class Client(asyncio.Transport):
    """A connection without a socket, and the client at its other end."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 9092)})
        self.answer = b""
        self._connection = Connection(broker.server, "PLAINTEXT")
        self._connection.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.answer += data

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    async def exchange(self, frame: bytes) -> None:
        """Send a request, and wait for its answer."""
        self.answer = b""
        memoryview(self._connection.get_buffer(-1))[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))
        while not self.answer:
            await asyncio.sleep(0)

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer to a request."""
        await self.exchange(frames.encode_request(api, version, 1, "test", request))
        return frames.decode_response(api, version, self.answer[4:])[1]


async def files_passed(client: Client, frame: bytes) -> dict[str, set[str]]:
    """Which functions run in which modules each time that the request is sent."""
    ran: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        module = frame.f_globals.get("__name__", "")
        is_of_a_file = frame.f_code.co_filename.endswith(".py")  # and not made by protocol/compile.py
        if event == "call" and module.startswith("barnabas.") and is_of_a_file:
            ran.append((module, frame.f_code.co_qualname))

    for _ in range(WARM):
        await client.exchange(frame)
    each_time: set[tuple[str, str]] | None = None
    for _ in range(COUNTED):
        ran.clear()
        sys.setprofile(note)
        try:
            await client.exchange(frame)
        finally:
            sys.setprofile(None)
        each_time = set(ran) if each_time is None else each_time & set(ran)
    found: dict[str, set[str]] = {}
    for module, function in sorted(each_time or ()):
        found.setdefault(module, set()).add(function)
    return found


async def count(directory: Path, frame: bytes, prepare: Callable[[Client], Any]) -> dict[str, set[str]]:
    config = BrokerConfig.of({"listeners": "PLAINTEXT://127.0.0.1:0", "offsets.journal.enable": "false"})
    broker = Broker(real(), config, str(directory))
    await broker.start()
    try:
        client = Client(broker)
        topic = messages.CreateTopicsRequest.CreatableTopic(name="topic", num_partitions=1, replication_factor=1)
        request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        (made,) = (await client.ask(ApiKey.CREATE_TOPICS, 7, request)).topics
        assert made.error_code == 0
        await prepare(client)
        return await files_passed(client, frame)
    finally:
        await broker.stop()


async def until_produced(client: Client) -> None:
    while True:
        (topic,) = (await client.ask(ApiKey.PRODUCE, 9, PRODUCE)).responses
        if topic.partition_responses[0].error_code == 0:
            return
        await asyncio.sleep(0.01)


async def until_committed(client: Client) -> None:
    find = messages.FindCoordinatorRequest(key="group")
    while (await client.ask(ApiKey.FIND_COORDINATOR, 3, find)).error_code:
        await asyncio.sleep(0.01)
    while True:
        (topic,) = (await client.ask(ApiKey.OFFSET_COMMIT, 8, COMMIT)).topics
        if topic.partitions[0].error_code == 0:
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("api", "version", "request_", "prepare", "files_max"),
    [
        (ApiKey.PRODUCE, 9, PRODUCE, until_produced, 14),
        (ApiKey.OFFSET_COMMIT, 8, COMMIT, until_committed, 20),
    ],
    ids=["produce", "commit"],
)
def test_few_files_from_socket_to_log_and_back(
    tmp_path: Path,
    api: ApiKey,
    version: int,
    request_: Any,
    prepare: Callable[[Client], Any],
    files_max: int,
) -> None:
    frame = frames.encode_request(api, version, 1, "test", request_)
    found = asyncio.run(count(tmp_path, frame, prepare))
    for module, functions in found.items():
        print(f"{module}: {', '.join(sorted(functions))}")
    assert len(found) <= files_max, "\n".join(found)
    assert {"barnabas.broker.connection", "barnabas.replication.partition", "barnabas.runtime.disk"} <= found.keys()
