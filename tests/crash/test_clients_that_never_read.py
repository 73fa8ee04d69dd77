"""Clients that ask for much and never read the answers: the process stays small, and other clients are served."""

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import batches
from broker_process import Client, Process, batch

READERS = 50
ASKED_BYTES = 50 << 20
GROWTH_BYTES_MAX = 32 << 20  # of all readers together; one answer alone is more


def resident_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def segments_open(process: Process) -> int:
    return sum("/big-0/" in str(file.readlink()) for file in Path(f"/proc/{process.process.pid}/fd").iterdir())


def receive(reader: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        more = reader.recv(size - len(data))
        assert more, "closed"
        data += more
    return data


def fetch_frame(topic: str) -> bytes:
    fetch = messages.FetchRequest
    row = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=ASKED_BYTES)
    request = fetch(
        max_wait_ms=0, min_bytes=1, max_bytes=ASKED_BYTES, topics=[fetch.FetchTopic(topic=topic, partitions=[row])]
    )
    return frames.encode_request(ApiKey.FETCH, 11, 7, "test", request)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is looked up in /proc")
def test_fifty_clients_that_never_read_their_fifty_megabytes(start: Callable[..., Process]) -> None:
    broker = start()
    neighbour = Client(broker.port)
    assert neighbour.create_topic("big", 1) == ErrorCode.NONE
    one = batch([bytes(900_000)])
    produced = 0
    while produced <= ASKED_BYTES:
        assert neighbour.produce("big", 0, one).error_code == ErrorCode.NONE
        produced += len(one)
    readers = [socket.create_connection(("127.0.0.1", broker.port), 20) for _ in range(READERS)]
    memory = resident_bytes(broker)
    for reader in readers:
        reader.sendall(fetch_frame("big"))
    for reader in readers:
        (size,) = struct.unpack(">i", reader.recv(4, socket.MSG_PEEK))
        assert size > ASKED_BYTES - len(one), "the answer has begun, and nobody takes it"
    for _ in range(20):
        assert neighbour.produce("big", 0, one).error_code == ErrorCode.NONE
        found = neighbour.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
        assert "big" in [topic.name for topic in found.topics]
    assert resident_bytes(broker) - memory < GROWTH_BYTES_MAX
    assert segments_open(broker) == 1, "all of them refer to the same file"
    answer = receive(readers[0], 4 + size)
    (row,) = frames.decode_response(ApiKey.FETCH, 11, memoryview(answer)[4:])[1].responses[0].partitions  # type: ignore[attr-defined]
    assert [header.base_offset for header, _ in batches(row.records)] == list(range(len(row.records) // len(one)))
    for reader in readers:
        reader.close()
