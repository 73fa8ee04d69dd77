"""The way of a test to topics, records and offsets: Kafka's protocol, on connections that stay open.

A client of kafka-python needs 10 ms to begin, and then waits for 100 because it does not know a broker yet. About the
brokers of a test, nothing need be found out. What is refused for a while, or lost with a connection, is asked again
until the time is over. Errors are those of kafka-python.
"""

import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.batch_records import Record
from barnabas.protocol.errors import LEADER_MOVES, ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.counted import counted
from barnabas.testing.kafka_python import kafka_errors
from barnabas.testing.kept import Address, Kept, address_of

CLIENT_ID = "barnabas-testing"
GIVES_UP_AFTER_S = 30.0
RETRY_S = 0.01
BATCH_BYTES = 16_384
FETCH_BYTES, PARTITION_BYTES = 52_428_800, 1_048_576
LATEST, EARLIEST = -1, -2
ALL = -1  # acks
WITHIN_MS = round(GIVES_UP_AFTER_S * 1000)
SIZE = struct.Struct(">i")
# Versions. From 5 on, an answer to CreateTopics has all settings of the topic.
CREATE_TOPICS, PRODUCE, FETCH, LIST_OFFSETS, METADATA = 4, 9, 12, 7, 12
INIT_PRODUCER_ID, FIND_COORDINATOR, OFFSET_COMMIT = 4, 4, 8
ASKED_AGAIN = LEADER_MOVES | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
PRODUCER_IS_FORGOTTEN = frozenset(
    (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)
)
OF_MEMBERS = frozenset(  # the group has some, so nobody else may commit
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
)
T = TypeVar("T")


class _NotNowError(Exception):
    """It may be asked again."""


class _NotKnownError(_NotNowError):
    """A broker does not know the topic or the partition: it has not heard of it yet, or there is none."""


class Connection:
    """To one broker, for one question at a time."""

    def __init__(self, address: Address, timeout_s: float, client_id: str = CLIENT_ID) -> None:
        self.sock = socket.create_connection(address, timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self.sock.makefile("rb")
        self._client_id = client_id

    def ask(self, version: int, request: Message, timeout_s: float) -> Any:
        """The answer. OSError: it does not come. ProtocolError: what comes is none."""
        self.sock.settimeout(timeout_s)
        self.sock.sendall(frames.encode_request(request.API_KEY, version, 0, self._client_id, request))
        size = SIZE.unpack(self._read(SIZE.size))[0]
        return frames.decode_response(request.API_KEY, version, self._read(max(size, 0)))[1]

    def _read(self, size: int) -> bytes:
        found = self._answers.read(size)
        if len(found) < size:
            raise ConnectionResetError("the broker has closed the connection")
        return found

    def close(self) -> None:
        self._answers.close()
        self.sock.close()


class _Producer:
    """An idempotent producer: what is sent twice is written once."""

    def __init__(self) -> None:
        self.producer_id = -1  # none yet
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def begin(self, producer_id: int, epoch: int) -> None:
        """The broker knows it by this id."""
        self.producer_id, self.epoch = producer_id, epoch
        self.sequences = {}

    def batch(self, place: tuple[str, int], records: Sequence[Record]) -> bytearray:
        """What it sends next to this partition."""
        sequence = self.sequences.get(place, 0)
        return record_batch.build(
            records, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence
        )


def _cut(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Batches of about the size that clients have."""
    batch: list[Record] = []
    size_bytes = 0
    for record in records:
        more_bytes = len(record.key or b"") + len(record.value or b"")
        if batch and size_bytes + more_bytes > BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += more_bytes
    if batch:
        yield batch


def _until(what: str, attempt: Callable[[float], T], check_known: Callable[[], None] = lambda: None) -> T:
    """What an attempt returns that is not refused for now; it gets the seconds that are left.

    KafkaTimeoutError: the time is over. `check_known` raises what is of no use to wait for.
    """
    deadline = time.monotonic() + GIVES_UP_AFTER_S
    while True:
        try:
            return attempt(deadline - time.monotonic())
        except (_NotNowError, OSError) as error:
            why = str(error) or type(error).__name__
            if isinstance(error, _NotKnownError):
                with suppress(OSError):
                    check_known()
        if time.monotonic() + RETRY_S >= deadline:
            raise kafka_errors().KafkaTimeoutError(f"{what} within {GIVES_UP_AFTER_S:g} s: {why}")
        time.sleep(RETRY_S)


def _check(code: int, what: str, message: str | None = None) -> None:
    """Nothing if it is no error. _NotNowError: ask again; KafkaError: that is of no use."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise _NotKnownError(ErrorCode(code).name)
    if code in ASKED_AGAIN:
        raise _NotNowError(ErrorCode(code).name)
    if code:
        raise kafka_errors().for_code(code)(f"{what}: {message}" if message else what)


class Wire:
    """Asks the brokers of a test. `addresses`: of those that run, by node id, as host:port.

    `count_partitions`: how many a topic has; 0: no broker that runs knows it. OSError: none answers.
    """

    def __init__(
        self, brokers: int, addresses: Callable[[], Mapping[int, str]], count_partitions: Callable[[str], int]
    ) -> None:
        self._is_single = brokers == 1
        self._addresses = addresses
        self.count_partitions = count_partitions
        self._kept: Kept[Connection] = Kept()
        self._producers: list[_Producer] = []  # those that nobody uses now

    def forget_producers(self) -> None:
        """What they have sent is put back, so their next numbers would be too high."""
        self._producers = []

    def close(self) -> None:
        self._kept.close()

    def ask(self, node_id: int | None, version: int, request: Message, timeout_s: float) -> Any:
        """The answer of a broker; None: of any that runs. OSError: it does not come."""
        addresses = self._addresses()
        address = next(iter(addresses.values()), None) if node_id is None else addresses.get(node_id)
        if address is None:
            raise ConnectionError("no broker runs" if node_id is None else f"broker {node_id} does not run")
        connection = self._kept.take(address) or Connection(address_of(address), max(timeout_s, RETRY_S))
        try:
            answer = connection.ask(version, request, max(timeout_s, RETRY_S))
        except BaseException:
            connection.close()
            raise
        self._kept.give(address, connection)
        return answer

    def metadata(self, topic: str | None, timeout_s: float) -> Any:
        """What a broker knows of the cluster, and of this topic."""
        make = messages.MetadataRequest
        topics = [] if topic is None else [make.MetadataRequestTopic(name=topic)]
        return self.ask(None, METADATA, make(topics=topics, allow_auto_topic_creation=False), timeout_s)

    def led(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int | None, list[int]]:
        """Which of these partitions each broker leads. None: the only one."""
        if self._is_single:
            return {None: list(partitions)}
        (found,) = self.metadata(topic, timeout_s).topics
        _check(found.error_code, f"topic {topic}")
        leaders = {row.partition_index: row.leader_id for row in found.partitions}
        led: dict[int | None, list[int]] = {}
        for partition in partitions:
            if partition not in leaders:
                raise _NotKnownError(f"{topic}-{partition} is not known")
            if leaders[partition] < 0:
                raise _NotNowError(f"{topic}-{partition} has no leader")
            led.setdefault(leaders[partition], []).append(partition)
        return led

    def partitions_of(self, topic: str) -> int:
        """How many a topic has. UnknownTopicOrPartitionError: there is no such topic; KafkaTimeoutError: who knows?"""
        count = _until(f"nobody has told of topic {topic}", lambda _: self.count_partitions(topic))
        if not count:
            raise kafka_errors().UnknownTopicOrPartitionError(f"there is no topic {topic}")
        return count

    def check_known(self, topic: str, partition: int) -> None:
        """UnknownTopicOrPartitionError: no broker knows it. OSError: none answers."""
        count = self.count_partitions(topic)
        if partition not in range(count):
            there = f"topic {topic} has {counted(count, 'partition')}, and none is {partition}"
            raise kafka_errors().UnknownTopicOrPartitionError(there if count else f"there is no topic {topic}")

    # ------------------------------------------------------------------ topics

    def create_topic(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        make = messages.CreateTopicsRequest
        configs = [make.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
        topic = make.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=configs
        )
        request = make(topics=[topic], timeout_ms=WITHIN_MS)

        def attempt(left_s: float) -> None:
            controller = None if self._is_single else self.metadata(None, left_s).controller_id
            (found,) = self.ask(controller, CREATE_TOPICS, request, left_s).topics
            _check(found.error_code, f"topic {name} cannot be made", found.error_message)

        _until(f"topic {name} was not made", attempt)

    # ------------------------------------------------------------------ records

    def produce(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Write records to a partition, and return when all are acknowledged (acks=all)."""
        producer = self._producers.pop() if self._producers else _Producer()
        for batch in _cut(records):
            write = partial(self._produce, topic, partition, batch, producer)
            _until(f"{topic}-{partition} was not written", write, partial(self.check_known, topic, partition))
        self._producers.append(producer)  # one that has failed does not know its next number

    def _produce(self, topic: str, partition: int, batch: Sequence[Record], producer: _Producer, left_s: float) -> None:
        place = topic, partition
        if producer.producer_id < 0:
            given = self.ask(None, INIT_PRODUCER_ID, messages.InitProducerIdRequest(transactional_id=None), left_s)
            _check(given.error_code, "a producer gets no id")
            producer.begin(given.producer_id, given.producer_epoch)
        make = messages.ProduceRequest
        rows = [make.PartitionProduceData(index=partition, records=producer.batch(place, batch))]
        data = [make.TopicProduceData(name=topic, partition_data=rows)]
        request = make(transactional_id=None, acks=ALL, timeout_ms=WITHIN_MS, topic_data=data)
        (leader,) = self.led(topic, [partition], left_s)
        (answer,) = self.ask(leader, PRODUCE, request, left_s).responses[0].partition_responses
        if answer.error_code in PRODUCER_IS_FORGOTTEN:  # nothing was written
            producer.producer_id = -1
            raise _NotNowError(ErrorCode(answer.error_code).name)
        _check(answer.error_code, f"{topic}-{partition}", answer.error_message)
        producer.sequences[place] = producer.sequences.get(place, 0) + len(batch)

    # ------------------------------------------------------------------ offsets

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset for a group without members."""
        make = messages.OffsetCommitRequest
        row = make.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics = [make.OffsetCommitRequestTopic(name=topic, partitions=[row])]
        request = make(group_id=group, generation_id_or_member_epoch=-1, topics=topics)

        def attempt(left_s: float) -> None:
            coordinator = None if self._is_single else self._coordinator(group, left_s)
            answer = self.ask(coordinator, OFFSET_COMMIT, request, left_s)
            code = answer.topics[0].partitions[0].error_code
            if code in OF_MEMBERS:
                raise kafka_errors().CommitFailedError(f"the group {group} has members ({ErrorCode(code).name})")
            _check(code, f"the group {group} cannot commit")

        _until(f"the group {group} has not committed", attempt, partial(self.check_known, topic, partition))

    def _coordinator(self, group: str, left_s: float) -> int:
        request = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (found,) = self.ask(None, FIND_COORDINATOR, request, left_s).coordinators
        _check(found.error_code, f"the group {group} has no coordinator", found.error_message)
        return int(found.node_id)


class Reader:
    """Reads a topic from its beginning. `until_now`: up to the ends that the partitions have at first.

    Else it waits for a topic that is not there yet, and for partitions that are added.
    """

    def __init__(self, wire: Wire, topic: str, *, until_now: bool) -> None:
        self._wire = wire
        self._topic = topic
        self._partitions = range(0)
        self._until_now = until_now
        self._ends: dict[int, int] | None = None
        self._positions: dict[int, int] = {}

    @property
    def is_there(self) -> bool:
        """Whether there was such a topic when it was last looked for."""
        return len(self._partitions) > 0

    @property
    def is_done(self) -> bool:
        """Whether all was read up to these ends."""
        ends = self._ends
        return ends is not None and all(self._positions.get(each, -1) >= ends[each] for each in self._partitions)

    def poll(self, wait_ms: int, left_s: float) -> list[tuple[int, Record]]:
        """Records with their partitions, if some come in that time. KafkaError: none will."""
        found: list[tuple[int, Record]] = []
        try:
            if not self._until_now:
                self._partitions = range(self._wire.count_partitions(self._topic))
                if not self.is_there:
                    raise _NotKnownError(f"there is no topic {self._topic}")
            elif self._ends is None:
                self._partitions = range(self._wire.partitions_of(self._topic))
                self._ends = self._offsets(self._partitions, LATEST, left_s)
            missing = [each for each in self._partitions if each not in self._positions]
            if missing:
                self._positions |= self._offsets(missing, EARLIEST, left_s)
            if not self.is_done:
                self._fetch(found, wait_ms, left_s)
        except (_NotNowError, OSError):
            time.sleep(RETRY_S)
        return found

    def _offsets(self, partitions: Collection[int], which: int, left_s: float) -> dict[int, int]:
        """The first or the next offset of each partition."""
        make = messages.ListOffsetsRequest
        found = {}
        for leader, led in self._wire.led(self._topic, partitions, left_s).items():
            rows = [make.ListOffsetsPartition(partition_index=each, timestamp=which) for each in led]
            request = make(replica_id=-1, topics=[make.ListOffsetsTopic(name=self._topic, partitions=rows)])
            for row in self._wire.ask(leader, LIST_OFFSETS, request, left_s).topics[0].partitions:
                _check(row.error_code, f"{self._topic}-{row.partition_index}")
                found[row.partition_index] = row.offset
        return found

    def _fetch(self, found: list[tuple[int, Record]], wait_ms: int, left_s: float) -> None:
        make = messages.FetchRequest
        wanted = [each for each in self._partitions if self._ends is None or self._positions[each] < self._ends[each]]
        led = self._wire.led(self._topic, wanted, left_s)
        for leader, partitions in led.items():
            rows = [
                make.FetchPartition(
                    partition=each, fetch_offset=self._positions[each], partition_max_bytes=PARTITION_BYTES
                )
                for each in partitions
            ]
            topics = [make.FetchTopic(topic=self._topic, partitions=rows)]
            request = make(max_wait_ms=wait_ms // len(led), min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
            answer = self._wire.ask(leader, FETCH, request, left_s)
            _check(answer.error_code, f"topic {self._topic}")
            for row in (row for topic in answer.responses for row in topic.partitions):
                found += self._taken(row)

    def _taken(self, row: Any) -> list[tuple[int, Record]]:
        partition = row.partition_index
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # they were removed meanwhile
            del self._positions[partition]
            return []
        _check(row.error_code, f"{self._topic}-{partition}")
        found = []
        for header, batch in record_batch.batches(row.records or b""):
            if not header.is_control:
                records = (each for each in record_batch.records(batch) if each.offset >= self._positions[partition])
                found += [(partition, record) for record in records]
            self._positions[partition] = header.next_offset
        return found
