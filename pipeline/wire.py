"""A small client for tasks: one request at a time on blocking sockets, to the leader of each partition.

kafka-python would decode every record into an object, which is what the pipeline avoids. So this asks for raw batches.
`producer.py` writes over it.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from barnabas.protocol import frames, messages, uuids
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import LEADER_MOVES, ErrorCode, ProtocolError
from barnabas.protocol.message import Message
from barnabas.runtime.grouped import grouped

CLIENT_ID = "barnabas-pipeline"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 40.0
RETRY_TIMEOUT_S = 60.0
"""How long a request is tried again while brokers are away or leaders move."""

_RETRY_BACKOFF_S = 0.1
_TOPIC = 2  # as a type of what has settings
_ANSWER_BYTES_MAX = 2**31 - 1
_INT32 = struct.Struct(">i")

# The newest versions that name topics by their names, which every broker since Kafka 2.1 and every newer one has.
_VERSIONS = {
    ApiKey.PRODUCE: (5, 9),
    ApiKey.METADATA: (7, 12),
    ApiKey.LIST_OFFSETS: (2, 6),
    ApiKey.FETCH: (4, 12),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.OFFSET_COMMIT: (2, 8),
    ApiKey.OFFSET_FETCH: (2, 7),
    ApiKey.CREATE_TOPICS: (4, 7),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
}

EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER, DEBUGGING_CONSUMER = -1, -2  # as replica ids: who sees only what all replicas have, and who sees everything

INVALID_METADATA_ERRORS = LEADER_MOVES | {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
"""What a client tries again with new metadata, as with an InvalidMetadataException of Kafka's own clients."""

_CREATED = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
_COORDINATOR_MOVES = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class UnreachableError(Exception):
    """No broker has answered for as long as a client waits, or none leads the partition."""


class LostConnectionError(Exception):
    """A connection could not be made, or is gone."""


class Partition(NamedTuple):
    """A partition, as the metadata says."""

    leader_id: int
    topic_id: str | None


class Cluster:
    """The brokers of a cluster, and the leaders of its partitions."""

    def __init__(self, addresses: Sequence[str], retry_timeout_s: float | None = None) -> None:
        self.retry_timeout_s = RETRY_TIMEOUT_S if retry_timeout_s is None else retry_timeout_s
        self._bootstrap = [_address(text) for text in addresses]
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], _Connection] = {}
        self._controller_id = -1
        self.cluster_id: str | None = None
        self.partitions: dict[tuple[str, int], Partition] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Ask any broker for the metadata of these topics (None: of all). UnreachableError."""
        request = messages.MetadataRequest(
            topics=None
            if topics is None
            else [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        answer = self.ask_any(ApiKey.METADATA, request)
        self._controller_id = answer.controller_id
        self.cluster_id = answer.cluster_id
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        if topics is None:
            self.partitions = {}
        for topic in answer.topics:
            topic_id = uuids.to_text(topic.topic_id) if any(topic.topic_id) else None
            for one in topic.partitions:
                self.partitions[topic.name, one.partition_index] = Partition(one.leader_id, topic_id)

    def offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        timestamp: int,
        isolation: int = READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
    ) -> dict[tuple[str, int], int]:
        """The offset of each partition at a time, EARLIEST or LATEST; −1: no record is so new. UnreachableError."""
        found: dict[tuple[str, int], int] = {}
        left = list(partitions)
        deadline = time.monotonic() + self.retry_timeout_s
        while left:
            for broker_id, some in self._by_leader(left).items():
                request = _list_offsets(some, timestamp, isolation, replica_id)
                try:
                    answer = self.send(broker_id, ApiKey.LIST_OFFSETS, request).receive()
                except LostConnectionError:
                    continue
                for topic in answer.topics:
                    for one in topic.partitions:
                        if one.error_code == ErrorCode.NONE:
                            found[topic.name, one.partition_index] = one.offset
                        elif one.error_code not in INVALID_METADATA_ERRORS:
                            raise UnreachableError(f"{topic.name}-{one.partition_index}: {error_name(one.error_code)}")
            left = [one for one in left if one not in found]
            if left:
                self.wait(deadline, f"{left[0][0]}-{left[0][1]} has no leader")
        return found

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; 0 if it is not known."""
        return sum(name == topic for name, _ in self.partitions)

    def create_topic(self, name: str) -> None:
        """Create a topic with the defaults of the brokers, unless it is there. UnreachableError."""
        make = messages.CreateTopicsRequest
        topic = make.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        deadline = time.monotonic() + self.retry_timeout_s
        self.refresh([name])
        while not self.partition_count(name):
            why = f"the topic {name} was not created"
            if self._controller_id in self._brokers:
                with contextlib.suppress(LostConnectionError):
                    request = make(topics=[topic], timeout_ms=int(ANSWER_TIMEOUT_S * 500))
                    (answer,) = self.send(self._controller_id, ApiKey.CREATE_TOPICS, request).receive().topics
                    why = f"the topic {name} was not created: {answer.error_message or error_name(answer.error_code)}"
                    if answer.error_code not in (*_CREATED, *INVALID_METADATA_ERRORS):
                        raise UnreachableError(why)
            self.wait(deadline, why, [name])

    def wait(self, deadline: float, why: str, topics: Iterable[str] | None = None) -> None:
        """Wait a moment and ask for the metadata again. UnreachableError when the time is over."""
        if time.monotonic() > deadline:
            raise UnreachableError(f"{why}, for more than {self.retry_timeout_s:.0f} s")
        time.sleep(_RETRY_BACKOFF_S)
        self.refresh(sorted({topic for topic, _ in self.partitions}) if topics is None else topics)

    def log_bytes(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The sizes of the logs of these leaders. UnreachableError."""
        wanted = set(partitions)
        found: dict[tuple[str, int], int] = {}
        for broker_id, some in self._by_leader(wanted).items():
            with contextlib.suppress(LostConnectionError):
                request = messages.DescribeLogDirsRequest(topics=None)
                answer = self.send(broker_id, ApiKey.DESCRIBE_LOG_DIRS, request).receive()
                for directory in answer.results:
                    for topic in directory.topics:
                        for one in topic.partitions:
                            if (topic.name, one.partition_index) in some:
                                found[topic.name, one.partition_index] = one.partition_size
        return found

    def topic_setting(self, topic: str, name: str) -> str | None:
        """The value of a topic's setting that holds; None: it is not said. UnreachableError."""
        make = messages.DescribeConfigsRequest.DescribeConfigsResource
        resource = make(resource_type=_TOPIC, resource_name=topic, configuration_keys=[name])
        answer = self.ask_any(ApiKey.DESCRIBE_CONFIGS, messages.DescribeConfigsRequest(resources=[resource]))
        return next((row.value for one in answer.results for row in one.configs if row.name == name), None)

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str]]:
        """The offsets of a group in a topic, with their metadata. UnreachableError."""
        fetch = messages.OffsetFetchRequest
        indexes = sorted(index for name, index in self.partitions if name == topic)
        wanted = fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
        answer = self._ask_coordinator(
            group,
            ApiKey.OFFSET_FETCH,
            fetch(group_id=group, topics=[wanted]),
            lambda answer: {answer.error_code, *(one.error_code for row in answer.topics for one in row.partitions)},
        )
        rows = (one for row in answer.topics for one in row.partitions)
        return {one.partition_index: (one.committed_offset, one.metadata) for one in rows if one.committed_offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> None:
        """Commit offsets of a group without members. UnreachableError."""
        commit = messages.OffsetCommitRequest
        make = commit.OffsetCommitRequestPartition
        rows = [
            make(partition_index=index, committed_offset=offset, committed_metadata=metadata)
            for index, offset in offsets.items()
        ]
        request = commit(group_id=group, topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=rows)])
        self._ask_coordinator(
            group,
            ApiKey.OFFSET_COMMIT,
            request,
            lambda answer: {one.error_code for row in answer.topics for one in row.partitions},
        )

    def _ask_coordinator(
        self, group: str, api_key: ApiKey, request: Message, errors_of: Callable[[Any], set[int]]
    ) -> Any:
        deadline = time.monotonic() + self.retry_timeout_s
        while True:
            found = self.ask_any(ApiKey.FIND_COORDINATOR, messages.FindCoordinatorRequest(key=group))
            why = f"the group {group} has no coordinator"
            if not found.error_code:
                self._brokers[found.node_id] = (found.host, found.port)
                try:
                    answer = self.send(found.node_id, api_key, request).receive()
                except LostConnectionError as error:
                    why = f"{why} that answers: {error}"
                else:
                    errors = errors_of(answer) - {ErrorCode.NONE}
                    if not errors:
                        return answer
                    why = f"the coordinator of the group {group} answered {', '.join(map(error_name, sorted(errors)))}"
                    if not errors <= _COORDINATOR_MOVES:
                        raise UnreachableError(why)
            self.wait(deadline, why)

    def _by_leader(self, partitions: Iterable[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        led = ((self.leader_of(*one), one) for one in partitions)
        return grouped((leader, one) for leader, one in led if leader is not None)

    def leader_of(self, topic: str, partition: int) -> int | None:
        """The leader of a partition, if it has one that is known."""
        known = self.partitions.get((topic, partition))
        return known.leader_id if known is not None and known.leader_id in self._brokers else None

    def send(self, broker_id: int, api_key: ApiKey, request: Message) -> "Answer":
        """Send a request; `receive` waits for its answer. LostConnectionError."""
        return self._send(self._brokers[broker_id], api_key, request)

    def ask_any(self, api_key: ApiKey, request: Message) -> Any:
        """What any broker answers. UnreachableError."""
        deadline = time.monotonic() + self.retry_timeout_s
        reason = ""
        while True:
            for address in [*self._brokers.values(), *self._bootstrap]:
                try:
                    return self._send(address, api_key, request).receive()
                except LostConnectionError as error:
                    reason = str(error)
            if time.monotonic() > deadline:
                raise UnreachableError(f"no broker answers: {reason}")
            time.sleep(_RETRY_BACKOFF_S)

    def _send(self, address: tuple[str, int], api_key: ApiKey, request: Message) -> "Answer":
        connection = self._connection(address)
        try:
            connection.send(api_key, request)
        except LostConnectionError:
            self.lost(connection)
            raise
        return Answer(self, connection)

    def _connection(self, address: tuple[str, int]) -> "_Connection":
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = _Connection(address)
        return connection

    def lost(self, connection: "_Connection") -> None:
        """Forget a connection."""
        connection.close()
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]


def why_silent(address: str) -> str | None:
    """Why no broker answers at an address; None: one does."""
    try:
        _Connection(_address(address)).close()
    except (LostConnectionError, OverflowError) as error:
        return str(error)
    return None


class Answer:
    """An answer that is on its way."""

    def __init__(self, cluster: Cluster, connection: "_Connection") -> None:
        self._cluster = cluster
        self._connection = connection

    def receive(self) -> Any:
        """Wait for it. LostConnectionError."""
        try:
            return self._connection.receive()
        except LostConnectionError:
            self._cluster.lost(self._connection)
            raise


class _Connection:
    """A connection to one broker, with the versions that both know."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._name = f"{address[0]}:{address[1]}"
        self._correlation_id = 0
        self._asked: tuple[ApiKey, int] | None = None
        try:
            self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        except OSError as error:
            raise LostConnectionError(f"{self._name}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._versions: dict[int, int] = {}
        try:
            self._learn_versions()  # no broker has to wait for anything to answer this, so it gets no more time
        except LostConnectionError:
            self.close()
            raise
        self._socket.settimeout(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _learn_versions(self) -> None:
        self._send(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
        answer = self.receive()
        for one in answer.api_keys:
            if one.api_key in _VERSIONS:
                lowest, highest = _VERSIONS[ApiKey(one.api_key)]
                version = min(highest, one.max_version)
                if version >= max(lowest, one.min_version):
                    self._versions[one.api_key] = version

    def send(self, api_key: ApiKey, request: Message) -> None:
        """Send a request. Its answer must be received before the next one."""
        if api_key not in self._versions:
            raise UnreachableError(f"{self._name} supports no version of {api_key.kafka_name} that this client knows")
        self._send(api_key, self._versions[api_key], request)

    def _send(self, api_key: ApiKey, version: int, request: Message) -> None:
        assert self._asked is None, "the answer to the request before was not received"
        self._correlation_id += 1
        try:
            self._socket.sendall(frames.encode_request(api_key, version, self._correlation_id, CLIENT_ID, request))
        except OSError as error:
            raise LostConnectionError(f"{self._name}: {error}") from None
        self._asked = api_key, version

    def receive(self) -> Any:
        """The answer to the request."""
        assert self._asked is not None, "nothing was asked"
        api_key, version = self._asked
        try:
            (size,) = _INT32.unpack(self._read(4))
            frames.check_frame_size(size, _ANSWER_BYTES_MAX)
            correlation_id, answer = frames.decode_response(api_key, version, self._read(size))
        except (OSError, ProtocolError) as error:
            raise LostConnectionError(f"{self._name}: {error}") from None
        if correlation_id != self._correlation_id:
            raise LostConnectionError(f"{self._name} answered another request")
        self._asked = None
        return answer

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError("the broker has closed the connection")
            filled += count
        return buffer


def fetch_request(topic: str, partition: int, offset: int, bytes_max: int, isolation: int) -> Message:
    """A Fetch of one partition that does not wait long."""
    wanted = messages.FetchRequest.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max
    )
    return messages.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=isolation,
        topics=[messages.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )


def _list_offsets(partitions: Iterable[tuple[str, int]], timestamp: int, isolation: int, replica_id: int) -> Message:
    make = messages.ListOffsetsRequest
    topics = grouped(
        (topic, make.ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
        for topic, partition in partitions
    )
    return make(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[make.ListOffsetsTopic(name=name, partitions=some) for name, some in topics.items()],
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def error_name(error_code: int) -> str:
    """The name of an error, also of one that is newer than this program."""
    try:
        return ErrorCode(error_code).name
    except ValueError:
        return f"error {error_code}"
