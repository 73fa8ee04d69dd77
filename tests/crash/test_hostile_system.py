"""A real process on a bad day: killed under load, too few open files, a folder that vanishes. It lives on."""

import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, batches, build, records

LOAD_ROUNDS = 3
ACKNOWLEDGED_PER_ROUND = 400  # then the process is killed


class Client:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)

    def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer. OSError when the broker has gone."""
        self.socket.sendall(frames.encode_request(api, version, 1, "test", message))
        (size,) = struct.unpack(">i", self._read(4))
        return frames.decode_response(api, version, memoryview(self._read(size)))[1]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data

    def create_topic(self, name: str, partitions: int) -> int:
        """The error code."""
        create = messages.CreateTopicsRequest
        topic = create.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        response = self.ask(ApiKey.CREATE_TOPICS, 7, create(topics=[topic], timeout_ms=20_000))
        error: int = response.topics[0].error_code
        return error

    def produce(self, topic: str, partition: int, batch: bytes | bytearray) -> Any:
        """The answer for the one partition."""
        produce = messages.ProduceRequest
        data = produce.PartitionProduceData(index=partition, records=batch)
        request = produce(
            acks=-1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
        )
        return self.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """All records of a partition, by offset without a gap."""
        fetch = messages.FetchRequest
        found: list[bytes | None] = []
        while True:
            rows = [fetch.FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)]
            request = fetch(
                max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[fetch.FetchTopic(topic=topic, partitions=rows)]
            )
            (row,) = self.ask(ApiKey.FETCH, 11, request).responses[0].partitions
            assert row.error_code == 0
            if not row.records:
                return found
            for _, batch in batches(row.records):
                for record in records(batch, max_bytes=1 << 24):
                    assert record.offset == len(found)
                    found.append(record.value)


class Process:
    """A broker process on a data directory."""

    def __init__(self, data: Path, open_files: int | None = None) -> None:
        def limit() -> None:
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        command = [sys.executable, "-m", "barnabas.broker.main", "start", "--json", "--port", "0", "--data", str(data)]
        command += ["--profile", "ci", "--log-level", "warning"]
        self.log = data.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=limit)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.port = int(json.loads(line)["bootstrap"].rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes, all on one directory."""
    started: list[Process] = []

    def start(**options: Any) -> Process:
        started.append(Process(tmp_path / "data", **options))
        return started[-1]

    yield start
    for process in started:
        process.end()
    assert "Traceback" not in started[0].log.read_text()


def batch(values: list[bytes], now_ms: int = 0, **producer: int) -> bytearray:
    from time import time

    made = [Record(index, now_ms or int(time() * 1000), None, value, []) for index, value in enumerate(values)]
    return build(made, **producer)


class IdempotentProducer:
    """Sends until the broker dies, and what was not acknowledged again to the next one."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.producer: tuple[int, int] | None = None
        self.sequence = 0
        self.sent = 0
        self.waiting: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.refused: list[int] = []

    def run(self, port: int, enough: threading.Semaphore) -> None:
        """Until the connection breaks."""
        try:
            client = Client(port)
            while not self.refused:
                self._send(client)
                enough.release()
        except OSError:
            pass

    def _send(self, client: Client) -> None:
        if self.producer is None:
            request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
            response = client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
            self.producer = (response.producer_id, response.producer_epoch)
        if not self.waiting:
            count = 1 + self.sent % 3
            self.waiting = [b"%d" % (self.sent + index) for index in range(count)]
            self.sent += count
        identity = {"producer_id": self.producer[0], "producer_epoch": self.producer[1]}
        answer = client.produce("load", self.partition, batch(self.waiting, base_sequence=self.sequence, **identity))
        if answer.error_code == ErrorCode.NONE:
            self.sequence += len(self.waiting)
            self.acknowledged += self.waiting
            self.waiting = []
        elif answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.refused.append(answer.error_code)


class Committer:
    """Commits rising offsets."""

    def __init__(self) -> None:
        self.committed = 0

    def run(self, port: int) -> None:
        """Until the connection breaks."""
        commit = messages.OffsetCommitRequest
        try:
            client = Client(port)
            while True:
                row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=self.committed + 1)
                topic = commit.OffsetCommitRequestTopic(name="load", partitions=[row])
                answer = client.ask(ApiKey.OFFSET_COMMIT, 7, commit(group_id="g", topics=[topic]))
                if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                    self.committed += 1
        except OSError:
            pass


def committed_offset(client: Client) -> int:
    """Of the group, as soon as it is loaded."""
    fetch = messages.OffsetFetchRequest
    while True:
        client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key="g"))
        topic = fetch.OffsetFetchRequestTopic(name="load", partition_indexes=[0])
        response = client.ask(ApiKey.OFFSET_FETCH, 7, fetch(group_id="g", topics=[topic]))
        if response.error_code == ErrorCode.NONE:
            offset: int = response.topics[0].partitions[0].committed_offset
            return offset


def test_nothing_acknowledged_is_lost_or_there_twice_after_a_kill(start: Callable[..., Process]) -> None:
    producers = [IdempotentProducer(partition) for partition in range(3)]
    committer = Committer()
    for number in range(LOAD_ROUNDS):
        process = start()
        client = Client(process.port)
        if number == 0:
            assert client.create_topic("load", 3) == 0
        offset = committed_offset(client)
        assert number == 0 or committer.committed <= offset <= committer.committed + 1
        committer.committed = max(0, offset)
        enough = threading.Semaphore(0)
        threads = [threading.Thread(target=producer.run, args=(process.port, enough)) for producer in producers]
        threads.append(threading.Thread(target=committer.run, args=(process.port,)))
        for thread in threads:
            thread.start()
        for _ in range(ACKNOWLEDGED_PER_ROUND):
            assert enough.acquire(timeout=20)
        process.end(signal.SIGKILL)
        for thread in threads:
            thread.join()
    client = Client(start().port)
    assert committed_offset(client) >= committer.committed > 0
    for producer in producers:
        assert producer.refused == []
        values = client.values("load", producer.partition)
        unknown = values[len(producer.acknowledged) :]  # written, but the process died before it said so
        assert values[: len(producer.acknowledged)] == producer.acknowledged
        assert unknown in ([], producer.waiting)


def test_a_hundred_partitions_with_few_open_files(start: Callable[..., Process]) -> None:
    process = start(open_files=64)
    client = Client(process.port)
    assert client.create_topic("many", 100) == 0
    for turn in range(2):
        assert {client.produce("many", index, batch([b"v"])).error_code for index in range(100)} == {0}, turn
    assert [len(client.values("many", index)) for index in range(0, 100, 9)] == [2] * 12
    process.end()
    assert "offline" not in process.log.read_text()


def test_a_segment_whose_maker_died_before_its_indexes_were_made(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start()
    assert Client(process.port).create_topic("half", 1) == 0
    process.end(signal.SIGKILL)
    assert not (tmp_path / "data" / "half-0" / ("0" * 20 + ".index")).exists(), "an empty segment has none"
    process = start()
    client = Client(process.port)
    assert client.produce("half", 0, batch([b"1"])).error_code == 0
    process.end()
    assert "offline" not in process.log.read_text()
    assert Client(start().port).values("half", 0) == [b"1"]


def test_a_folder_that_vanishes_does_not_take_the_broker_with_it(start: Callable[..., Process], tmp_path: Path) -> None:
    client = Client(start(open_files=64).port)
    assert client.create_topic("gone", 1) == 0
    assert client.create_topic("here", 60) == 0  # so that no file of the first one is still open
    assert client.produce("gone", 0, batch([b"1"])).error_code == 0
    for index in range(60):
        client.produce("here", index, batch([b"1"]))
    shutil.rmtree(tmp_path / "data" / "gone-0")
    answers = [client.produce("gone", 0, batch([b"2"])).error_code for _ in range(3)]
    assert set(answers) <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert client.produce("here", 0, batch([b"2"])).error_code == 0
