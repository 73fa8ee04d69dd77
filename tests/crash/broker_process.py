"""A broker process that can be killed, and a blocking client that talks to it."""

import json
import os
import resource
import shlex
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import forked
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, batches, build, records
from barnabas.runtime.grouped import grouped

ANSWER_WITHIN_S = 20.0


class AnsweredError(Exception):
    """The broker has answered an error code; str() says of what, and its name."""


class Client:
    """One blocking connection. OSError when the broker has gone."""

    def __init__(self, port: int, answer_within_s: float = ANSWER_WITHIN_S, client_id: str = "crash-test") -> None:
        self.port = port
        self.client_id = client_id
        self.socket = socket.create_connection(("127.0.0.1", port), answer_within_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def ask(self, api: ApiKey, version: int, message: Any) -> Any:
        """The decoded answer."""
        self.send(api, version, message)
        return self.answer(api, version)

    def send(self, api: ApiKey, version: int, message: Any) -> None:
        """Send a request; `answer` gets what comes back, in order."""
        self.socket.sendall(frames.encode_request(api, version, 1, self.client_id, message))

    def answer(self, api: ApiKey, version: int) -> Any:
        """The next decoded answer."""
        (size,) = struct.unpack(">i", self.read(4))
        return frames.decode_response(api, version, memoryview(self.read(size)))[1]

    def read(self, size: int) -> bytes:
        """So many bytes. ConnectionError: the broker has closed the connection before."""
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return bytes(data)

    def create_topic(self, name: str, partitions: int, factor: int = 1, **configs: str) -> int:
        """The error code. An underscore in a setting's name stands for a dot."""
        create = messages.CreateTopicsRequest
        rows = [create.CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
        topic = create.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=rows)
        response = self.ask(ApiKey.CREATE_TOPICS, 7, create(topics=[topic], timeout_ms=20_000))
        error: int = response.topics[0].error_code
        return error

    def set_config(self, topic: str, **configs: str) -> int:
        """Change settings of a topic; the error code. Names as in `create_topic`."""
        alter = messages.IncrementalAlterConfigsRequest
        rows = [
            alter.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=text)
            for key, text in configs.items()
        ]
        resource = alter.AlterConfigsResource(resource_type=2, resource_name=topic, configs=rows)
        response = self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, alter(resources=[resource], validate_only=False))
        error: int = response.responses[0].error_code
        return error

    def init_producer_id(self) -> tuple[int, int]:
        """Id and epoch of a new idempotent producer."""
        request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
        response = self.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
        if response.error_code:
            raise ConnectionError(f"no producer id: error {response.error_code}")
        return response.producer_id, response.producer_epoch

    def produce(self, topic: str, partition: int, batch: bytes | bytearray) -> Any:
        """The answer for the one partition."""
        return (
            self.ask(ApiKey.PRODUCE, 9, produce_request([(topic, partition, batch)]))
            .responses[0]
            .partition_responses[0]
        )

    def committed(self, group: str, topic: str, partition: int) -> Any:
        """The error code of the group, and the offset."""
        fetch = messages.OffsetFetchRequest
        rows = [fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
        response = self.ask(ApiKey.OFFSET_FETCH, 7, fetch(group_id=group, topics=rows))
        return response.error_code, response.topics[0].partitions[0].committed_offset if response.topics else -1

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> Any:
        """The answer for the one partition, at once."""
        fetch = messages.FetchRequest
        rows = [fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)]
        topics = [fetch.FetchTopic(topic=topic, partitions=rows)]
        request = fetch(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=topics)
        row = self.ask(ApiKey.FETCH, 11, request).responses[0].partitions[0]
        row.records = whole_batches(row.records or b"")
        return row

    def end_offset(self, topic: str, partition: int) -> int:
        """The high watermark. AnsweredError, among others, of a new leader that does not know it yet (KIP-207)."""
        ask = messages.ListOffsetsRequest
        rows = [ask.ListOffsetsPartition(partition_index=partition, timestamp=-1)]
        request = ask(replica_id=-1, topics=[ask.ListOffsetsTopic(name=topic, partitions=rows)])
        row = self.ask(ApiKey.LIST_OFFSETS, 5, request).topics[0].partitions[0]
        if row.error_code:
            raise AnsweredError(f"the end of {topic}-{partition}: {ErrorCode(row.error_code).name}")
        offset: int = row.offset
        return offset

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """All records of a partition, by offset without a gap. AnsweredError if the broker does not give them."""
        found: list[bytes | None] = []
        while True:
            row = self.fetch(topic, partition, len(found))
            if row.error_code:
                raise AnsweredError(f"fetch of {topic}-{partition}: {ErrorCode(row.error_code).name}")
            if not row.records:
                if self.end_offset(topic, partition) <= len(found):
                    return found
                continue
            for _, batch in batches(row.records):
                for record in records(batch, max_bytes=1 << 24):
                    assert record.offset == len(found), f"{topic}-{partition}: {record.offset}, not {len(found)}"
                    found.append(record.value)


def whole_batches(data: Any) -> memoryview:
    """The batches without the last one, if the broker has cut it off."""
    view = memoryview(data)
    position = 0
    while position + 12 <= len(view):
        (size,) = struct.unpack_from(">i", view, position + 8)
        if position + 12 + size > len(view):
            break
        position += 12 + size
    return view[:position]


def produce_request(entries: list[tuple[str, int, bytes | bytearray]]) -> messages.ProduceRequest:
    """A produce with acks=all of one batch for each partition."""
    produce = messages.ProduceRequest
    topics = grouped(
        (topic, produce.PartitionProduceData(index=index, records=batch)) for topic, index, batch in entries
    )
    data = [produce.TopicProduceData(name=topic, partition_data=some) for topic, some in topics.items()]
    return produce(acks=-1, timeout_ms=10_000, topic_data=data)


def batch(values: list[bytes], keys: list[bytes] | None = None, **producer: int) -> bytearray:
    """A record batch with the present time."""
    now_ms = int(time.time() * 1000)
    return build(
        [Record(index, now_ms, keys[index] if keys else None, value, []) for index, value in enumerate(values)],
        **producer,
    )


def is_locked(tree: Path) -> bool:
    """Whether a change of the tree in this file does not end. There is no file if the tree is in ZooKeeper."""
    if not tree.exists():
        return False
    with closing(sqlite3.connect(tree, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False


class Process:
    """A broker process on a data directory.

    `port` 0 takes a free one. `words` are more of `barnabas start`. `command` runs another broker than ours:
    words with {port} and {data} in them. `popen` is `subprocess.Popen` where the start itself is measured.
    """

    def __init__(
        self,
        data: Path,
        port: int = 0,
        *,
        open_files: int | None = None,
        settings: dict[str, str] | None = None,
        words: Sequence[str] = (),
        command: str | None = None,
        wait: bool = True,
        log_level: str = "warning",
        popen: type["subprocess.Popen[Any]"] = forked.Popen,
    ) -> None:
        limits = (open_files, open_files)
        limit = None if open_files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        line = [sys.executable, "-m", "barnabas", "start", "--json", "--profile", "ci"]
        line += ["--log-level", log_level, "--listeners", f"PLAINTEXT://127.0.0.1:{port}"]
        for key, text in {"log.dirs": str(data), **(settings or {})}.items():
            line += ["--set", f"{key}={text}"]
        line += words
        if command is not None:
            line = shlex.split(command.format(port=port, data=data))
        self.port = port
        self.log = data.with_suffix(".log")
        environment = {**os.environ}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # it would be compiled anew at every start
        self.started = time.monotonic()
        with self.log.open("a") as log:
            output = log if command is not None else subprocess.PIPE
            self.process = popen(line, stdout=output, stderr=log, text=True, env=environment, preexec_fn=limit)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait for the ready line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        self.port = int(json.loads(line)["bootstrap"].rpartition(":")[2])

    @property
    def processor_ms(self) -> float:
        """The processor time that it has used; 0 if the system does not say it."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def pause(self, tree: Path) -> None:
        """Have the system stop it (SIGSTOP), not in the middle of a change of the tree: others would wait for it."""
        os.kill(self.process.pid, signal.SIGSTOP)
        while is_locked(tree):
            os.kill(self.process.pid, signal.SIGCONT)
            time.sleep(0.02)
            os.kill(self.process.pid, signal.SIGSTOP)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait. One that has just ended, which nobody has been told yet, is no error."""
        self.process.send_signal(number)
        self.process.wait(200)
        if self.process.stdout is not None:
            self.process.stdout.close()
