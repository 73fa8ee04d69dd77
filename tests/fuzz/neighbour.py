"""A well-behaved client in a process of its own, beside clients that attack the broker.

It produces, fetches, commits and asks for metadata, and notes how long each request took. It must find all its records
again, once and in order.
"""

import multiprocessing
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, batches, build, records

TOPIC = GROUP = "neighbour"
PAUSE_SECONDS = 0.005
PATIENCE_SECONDS = 100.0

Latencies = dict[str, list[float]]


class Client:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer. OSError when the broker closed or does not answer."""
        self.socket.sendall(frames.encode_request(api, version, 1, "neighbour", message))
        (size,) = struct.unpack(">i", self._read(4))
        return frames.decode_response(api, version, memoryview(self._read(size)))[1]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data

    def create_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        """Make a topic; harmless when it is there."""
        create = messages.CreateTopicsRequest
        topic = create.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                create.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in (configs or {}).items()
            ],
        )
        self.ask(ApiKey.CREATE_TOPICS, 7, create(topics=[topic], timeout_ms=10_000))

    def find_coordinator(self, group: str) -> None:
        """Until there is one; the offsets topic is made by the first who asks."""
        begin = time.monotonic()
        while self.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=group)).error_code:
            assert time.monotonic() - begin < PATIENCE_SECONDS, "no coordinator"
            time.sleep(0.02)


class Neighbour:
    """The process. `latencies` gives what it measured since the last time it was asked; `stop` its errors."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run, args=(port, other), daemon=True)
        self._process.start()
        other.close()

    def latencies(self) -> Latencies:
        """Seconds by kind of request. AssertionError with what went wrong."""
        self._pipe.send("latencies")
        answer = self._pipe.recv()
        assert not isinstance(answer, str), f"the neighbour: {answer}"
        return answer  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Let it go."""
        self._pipe.close()
        self._process.join(PATIENCE_SECONDS)


def _run(port: int, pipe: Connection) -> None:
    try:
        client = Client(port)
        client.create_topic(TOPIC)
        client.find_coordinator(GROUP)
        rounds = 0
        found: Latencies = {}
        while True:
            _round(client, rounds, found)
            rounds += 1
            if pipe.poll(PAUSE_SECONDS):
                pipe.recv()
                pipe.send(found)
                found = {}
    except EOFError:
        return
    except BaseException as error:
        pipe.recv()
        pipe.send(repr(error))


def _round(client: Client, number: int, found: Latencies) -> None:
    """One record there and back, its offset committed."""
    produce, fetch, commit = messages.ProduceRequest, messages.FetchRequest, messages.OffsetCommitRequest

    def ask(api: ApiKey, version: int, message: Any) -> Any:
        begin = time.perf_counter()
        answer = client.ask(api, version, message)
        found.setdefault(api.name.lower(), []).append(time.perf_counter() - begin)
        return answer

    batch = build([Record(0, int(time.time() * 1000), b"k", b"%d" % number, [])])
    data = produce.TopicProduceData(
        name=TOPIC, partition_data=[produce.PartitionProduceData(index=0, records=bytes(batch))]
    )
    answer = ask(ApiKey.PRODUCE, 9, produce(acks=-1, timeout_ms=10_000, topic_data=[data]))
    row = answer.responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (0, number), f"produce {number}: {row}"
    wanted = fetch.FetchTopic(
        topic=TOPIC, partitions=[fetch.FetchPartition(partition=0, fetch_offset=number, partition_max_bytes=1 << 20)]
    )
    answer = ask(ApiKey.FETCH, 11, fetch(max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20, topics=[wanted]))
    row = answer.responses[0].partitions[0]
    values = [record.value for _, piece in batches(row.records or b"") for record in records(piece)]
    assert (row.error_code, values) == (0, [b"%d" % number]), f"fetch {number}: {row.error_code} {values}"
    offset = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=number)
    topic = commit.OffsetCommitRequestTopic(name=TOPIC, partitions=[offset])
    answer = ask(ApiKey.OFFSET_COMMIT, 7, commit(group_id=GROUP, topics=[topic]))
    error = answer.topics[0].partitions[0].error_code
    assert error == 0, f"commit {number}: {error}"
    answer = ask(
        ApiKey.METADATA, 9, messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name=TOPIC)])
    )
    assert answer.topics[0].error_code == 0, f"metadata {number}: {answer.topics[0].error_code}"
