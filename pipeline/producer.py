"""An idempotent producer for tasks, on `wire.py`: brokers put each batch into a log once, however often it is sent.

One batch of a partition is on its way at a time, and a request to each leader at once, while the next batches are
filled. A batch that was not acknowledged is sent again with the same sequence numbers to the leader of that time.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from barnabas.pipeline.errors import RefusedRecordsError
from barnabas.pipeline.wire import (
    INVALID_METADATA_ERRORS,
    RETRY_TIMEOUT_S,
    Answer,
    Cluster,
    LostConnectionError,
    UnreachableError,
    error_name,
)
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.murmur2 import partition_of_key
from barnabas.protocol.record_batch import Record

REQUEST_BYTES = 1 << 20
"""From so many bytes of full batches on, they are sent."""

BUFFER_BYTES = 64 << 20
"""More than so many bytes do not wait for brokers that do not answer."""

TOPIC_RETRY_TIMEOUT_S = 3.0  # a topic that was just created is not known to all brokers at once
RECORD_BYTES_MAX = 64 << 20  # brokers close connections with requests of more than 100 MB (socket.request.max.bytes)
_RECORD_OVERHEAD_BYTES = 24
_SEQUENCES = 1 << 31
_PRODUCE_TIMEOUT_MS = 30_000
_ACKS_OF_ALL = -1

_RETRIABLE_ERRORS = INVALID_METADATA_ERRORS | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CORRUPT_MESSAGE,
}
_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_UNKNOWN_PRODUCER = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_WHAT_TO_DO: dict[int, str] = {
    ErrorCode.INVALID_TIMESTAMP: "change the column `timestamp`, or message.timestamp.before.max.ms of the topic",
    ErrorCode.INVALID_RECORD: "a compacted topic wants a key in every record",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "let this client write to the topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "let this client write idempotently",
}


@dataclass
class _Batch:
    records: list[Record]
    size_bytes: int  # about, not compressed
    sequence: int
    data: bytearray = field(default_factory=bytearray)  # made when it is sent first


@dataclass
class _Log:
    """What is to be written to a partition."""

    topic: str
    partition: int
    records: list[Record] = field(default_factory=list)  # of the batch that is being filled
    size_bytes: int = 0
    next_sequence: int = 0
    batches: deque[_Batch] = field(default_factory=deque)  # full ones; the first may be on its way
    is_asked: bool = False
    deadline: float | None = None  # until when the first batch is tried again, if it has failed
    why: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Producer:
    """Writes records in the order in which they come, partition by partition. To be used in a `with`."""

    def __init__(self, cluster: Cluster, compression: Compression, batch_bytes: int) -> None:
        self.cluster = cluster
        self.compression = compression
        self.batch_bytes = batch_bytes
        self._logs: dict[tuple[str, int], _Log] = {}
        self._open: list[tuple[Answer, list[_Log]]] = []
        self._full_bytes = 0
        self._asked_bytes = 0  # of them on their way
        self._is_stale = False  # the metadata must be read again
        self._id = self._new_id()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *error: object) -> None:
        """Write what is left; after an error only wait for what is on its way, so that who tries again can see it."""
        if error[0] is None:
            self.flush()
        else:
            self._receive()

    def _new_id(self) -> tuple[int, int]:
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        while True:
            request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
            answer = self.cluster.ask_any(ApiKey.INIT_PRODUCER_ID, request)
            if answer.error_code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch
            why = f"no broker assigns a producer id: {error_name(answer.error_code)}"
            if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise UnreachableError(f"{why}: {_WHAT_TO_DO[ErrorCode.CLUSTER_AUTHORIZATION_FAILED]}")
            self.cluster.wait(deadline, why)

    def add(self, topic: str, partition: int, record: Record) -> bool:
        """Write a record, some time until the end of `flush`. Returns whether it filled a batch."""
        size_bytes = _size_bytes(record)
        if size_bytes > RECORD_BYTES_MAX:
            raise RefusedRecordsError(f"{topic}-{partition}: a record of {size_bytes} bytes is larger than a request")
        log = self._logs.get((topic, partition))
        if log is None:
            log = self._logs[topic, partition] = _Log(topic, partition)
        is_full = bool(log.records) and log.size_bytes + size_bytes > self.batch_bytes
        if is_full:
            self._close(log)
            if self._full_bytes - self._asked_bytes >= REQUEST_BYTES:
                self._exchange()
        log.records.append(record)
        log.size_bytes += size_bytes
        return is_full

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 if brokers do not know it for some seconds."""
        found = self.cluster.partition_count(topic)
        if not found:
            self._receive()
            deadline = time.monotonic() + TOPIC_RETRY_TIMEOUT_S
            self.cluster.refresh([topic])
            while not (found := self.cluster.partition_count(topic)) and time.monotonic() < deadline:
                self.cluster.wait(deadline + RETRY_TIMEOUT_S, topic, [topic])
        return found

    def flush(self) -> None:
        """Return when everything is written by all replicas."""
        for log in self._logs.values():
            if log.records:
                self._close(log)
        while self._full_bytes:
            self._exchange()
            self._receive()
            self._wait_to_retry()

    def _close(self, log: _Log) -> None:
        """The batch that is being filled is full."""
        log.batches.append(_Batch(log.records, log.size_bytes, log.next_sequence))
        self._full_bytes += log.size_bytes
        log.next_sequence = (log.next_sequence + len(log.records)) % _SEQUENCES
        log.records, log.size_bytes = [], 0

    def _exchange(self) -> None:
        """Receive the answers, and send the next batches."""
        while True:
            self._receive()
            self._send()
            if self._full_bytes < BUFFER_BYTES:
                return
            self._receive()
            self._wait_to_retry()

    def _wait_to_retry(self) -> None:
        """Wait, if every partition with batches has failed."""
        failed = [log for log in self._logs.values() if log.deadline is not None]
        if failed and len(failed) == sum(bool(log.batches) for log in self._logs.values()):
            first = min(failed, key=lambda log: log.deadline or 0)
            assert first.deadline is not None
            self.cluster.wait(first.deadline, f"{first}: {first.why}", {log.topic for log in failed})

    def _send(self) -> None:
        """Send the first batch of each partition to its leader."""
        assert not self._open, "a connection has one request at a time, and an answer is on its way"
        if self._is_stale:
            self._is_stale = False
            self.cluster.refresh(sorted({log.topic for log in self._logs.values() if log.batches}))
        by_leader: dict[int, list[_Log]] = {}
        for log in self._logs.values():
            if not log.batches or log.is_asked:
                continue
            leader = self.cluster.leader_of(log.topic, log.partition)
            if leader is None:
                self._failed(log, "it has no leader")
            else:
                by_leader.setdefault(leader, []).append(log)
        for leader, logs in by_leader.items():
            for some in _requests(logs):
                try:
                    answer = self.cluster.send(leader, ApiKey.PRODUCE, self._request(some))
                except LostConnectionError as error:
                    for log in some:
                        self._failed(log, f"lost the connection to its leader ({error})")
                    continue
                for log in some:
                    log.is_asked = True
                    self._asked_bytes += log.batches[0].size_bytes
                self._open.append((answer, some))
                break  # one request of a connection at a time; the others go with the next exchange

    def _request(self, logs: Iterable[_Log]) -> messages.ProduceRequest:
        produce = messages.ProduceRequest
        topics: dict[str, list[Any]] = {}
        for log in logs:
            batch = log.batches[0]
            if not batch.data:
                producer_id, producer_epoch = self._id
                batch.data = record_batch.build(
                    batch.records,
                    compression=self.compression,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=batch.sequence,
                )
            one = produce.PartitionProduceData(index=log.partition, records=batch.data)
            topics.setdefault(log.topic, []).append(one)
        data = [produce.TopicProduceData(name=topic, partition_data=rows) for topic, rows in topics.items()]
        return produce(acks=_ACKS_OF_ALL, timeout_ms=_PRODUCE_TIMEOUT_MS, topic_data=data)

    def _receive(self) -> None:
        """Receive all answers that are on their way."""
        waiting, self._open, self._asked_bytes = self._open, [], 0
        for _, logs in waiting:
            for log in logs:
                log.is_asked = False
        for answer, logs in waiting:
            try:
                said = answer.receive()
            except LostConnectionError as error:
                for log in logs:
                    self._failed(log, f"lost the connection to its leader ({error})")
                continue
            results = {(topic.name, one.index): one for topic in said.responses for one in topic.partition_responses}
            for log in logs:
                self._answered(log, results.get((log.topic, log.partition)))

    def _answered(self, log: _Log, result: Any) -> None:
        if result is None:
            self._failed(log, "its leader's answer leaves it out")
            return
        batch, error = log.batches[0], result.error_code
        if error in _WRITTEN:
            log.batches.popleft()
            self._full_bytes -= batch.size_bytes
            assert self._full_bytes >= 0, f"{log}: more bytes were written than were full"
            log.deadline = None
        elif error in _RETRIABLE_ERRORS:
            self._failed(log, f"its leader answered {error_name(error)}")
        elif error in _TOO_LARGE and len(batch.records) > 1:
            self._halve(log)
        else:
            raise RefusedRecordsError(f"{log}: {_refusal(error, batch, result.error_message)}")

    def _failed(self, log: _Log, why: str) -> None:
        log.why = why
        self._is_stale = True
        if log.deadline is None:
            log.deadline = time.monotonic() + RETRY_TIMEOUT_S

    def _halve(self, log: _Log) -> None:
        """Two batches in place of one that is too large."""
        batch = log.batches.popleft()
        middle = len(batch.records) // 2
        assert middle, f"{log}: a batch of one record cannot be halved"
        for records, first in ((batch.records[middle:], middle), (batch.records[:middle], 0)):
            size_bytes = sum(map(_size_bytes, records))
            log.batches.appendleft(_Batch(records, size_bytes, (batch.sequence + first) % _SEQUENCES))


def _requests(logs: list[_Log]) -> list[list[_Log]]:
    """The partitions whose first batches go into one request, and those of the next one, …"""
    found: list[list[_Log]] = []
    size_bytes = 0
    for log in sorted(logs, key=lambda log: log.deadline is not None):  # those that have not failed go first
        size = log.batches[0].size_bytes
        if not found or size_bytes + size > max(REQUEST_BYTES, size):
            found.append([])
            size_bytes = 0
        found[-1].append(log)
        size_bytes += size
    return found


def _size_bytes(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 4
    return size


def _refusal(error: int, batch: _Batch, message: str | None) -> str:
    if error in _TOO_LARGE:
        size_bytes = _size_bytes(batch.records[0])
        return (
            f"a record of about {size_bytes} bytes is too large for the topic: "
            "raise its max.message.bytes, or write a smaller value"
        )
    if error in _UNKNOWN_PRODUCER:
        return f"the broker no longer knows this producer's last batches ({error_name(error)}): run the task again"
    parts = [f"the broker refuses the records: {error_name(error)}", message, _WHAT_TO_DO.get(error)]
    return "; ".join(part for part in parts if part)


# Which partition


class Partitioner:
    """Which partition a record without one goes to: by its key, else to one after the other, a batch to each."""

    def __init__(self, first: int) -> None:
        self._numbers = count(first)
        self._keyless: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """As Kafka's clients choose it."""
        if key is not None:
            return partition_of_key(key, partition_count)
        if topic not in self._keyless:
            self.batch_is_full(topic)
        return self._keyless[topic] % partition_count

    def batch_is_full(self, topic: str) -> None:
        """Records without a key go to another partition from now on."""
        self._keyless[topic] = next(self._numbers)
