"""The clients of a broker that is killed again and again, and the books of what the broker has acknowledged.

Each client is a thread, which lives through all kills and connects again. What was acknowledged must hold. A request
without an answer may have been done or not; an idempotent producer sends such requests again, in the same order.
"""

import json
import random
import struct
import threading
import time
import traceback
from collections import deque
from typing import Any, NamedTuple

from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, batch, produce_request

Partition = tuple[str, int]

REQUESTS_IN_FLIGHT = 5  # as many as an idempotent producer may have
PAUSE_S = 0.01  # between two requests of one client: ten of them share two cores with the broker
RECONNECT_S = 0.1
SESSION_TIMEOUT_MS = 3_000
COORDINATOR_MOVES = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
PRODUCE_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)


class AskAgainError(OSError):
    """The answer is an error that may be retried: try again on a new connection, as after a kill."""


class Acknowledged(NamedTuple):
    """A producer's records from `first` on are at these offsets. None: they are in the log, it is not said where."""

    first: int
    count: int
    offset: int | None


class Books:
    """What was acknowledged, by partition and producer, and what went wrong."""

    def __init__(self) -> None:
        self.produced: dict[Partition, dict[int, list[Acknowledged]]] = {}
        self.records = 0
        self.commits = 0
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def acknowledge(self, partition: Partition, producer: int, first: int, count: int, offset: int | None) -> None:
        """A producer's records were acknowledged."""
        with self._lock:
            self.produced.setdefault(partition, {}).setdefault(producer, []).append(Acknowledged(first, count, offset))
            self.records += count

    def snapshot(self) -> dict[Partition, dict[int, list[Acknowledged]]]:
        """A copy of what has been acknowledged until now."""
        with self._lock:
            return {
                partition: {number: list(rows) for number, rows in producers.items()}
                for partition, producers in self.produced.items()
            }

    def committed(self) -> None:
        """A commit was acknowledged."""
        with self._lock:
            self.commits += 1

    def problem(self, text: str) -> None:
        """Note something that is wrong."""
        self.problems.append(text)


class OneBroker:
    """Where clients find what they need, if there is one broker: always there."""

    def __init__(self, port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._port = port

    def anywhere(self) -> Client:
        """A connection to a broker. OSError while there is none."""
        return Client(self._port)

    def leader(self, partition: Partition) -> Client:
        """A connection to the broker that leads a partition. OSError while none does."""
        return Client(self._port)

    def coordinator(self, key: str, key_type: int = 0) -> Client:
        """A connection to the broker that coordinates a group, or a transactional id (1). OSError while none does."""
        return Client(self._port)

    def reader(self, client: Client) -> Client:
        """What reads all partitions, for a client that has this connection."""
        return client


class Worker(threading.Thread):
    """A client that connects again until it is told to stop."""

    def __init__(self, name: str, place: OneBroker, books: Books, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.place = place
        self.books = books
        self.rng = random.Random(f"{seed} {name}")
        self.stopping = False
        self.steps = 0  # acknowledged requests

    def run(self) -> None:
        """Work on one connection after the other."""
        while not self.is_done:
            try:
                client = self.connect()
                try:
                    self.work(client)
                finally:
                    client.close()
            except OSError:
                time.sleep(RECONNECT_S)
            except BaseException:
                self.books.problem(f"{self.name}: {traceback.format_exc()}")
                return

    def connect(self) -> Client:
        """A connection to the broker that it needs."""
        return self.place.anywhere()

    @property
    def is_done(self) -> bool:
        """Whether it may end."""
        return self.stopping

    def work(self, client: Client) -> None:
        """Until the connection breaks or there is nothing left to do."""
        raise NotImplementedError


class _Sent(NamedTuple):
    partition: Partition
    first: int
    sequence: int
    values: list[bytes]
    keys: list[bytes] | None


class Producer(Worker):
    """Idempotent, with five requests in flight; after a cut all that was not answered is sent again, in order."""

    def __init__(
        self, number: int, partitions: list[Partition], place: OneBroker, books: Books, seed: int, keys: int = 0
    ) -> None:
        super().__init__(f"producer {number}", place, books, seed)
        self.number = number
        self.partitions = partitions
        self.keys = keys
        self.identity: tuple[int, int] | None = None
        self.sent: dict[Partition, int] = {}  # records; also the next sequence
        self.known: set[Partition] = set()  # partitions that have something of it
        self.unanswered: deque[list[_Sent]] = deque()

    def connect(self) -> Client:
        """A connection to the leader of its partitions. In a cluster it has only one."""
        return self.place.leader(self.partitions[0])

    @property
    def is_done(self) -> bool:
        """Only when all its batches are acknowledged."""
        return self.stopping and not self.unanswered

    def work(self, client: Client) -> None:
        """Keep requests in flight."""
        if self.identity is None:
            self.identity = client.init_producer_id()
        for request in self.unanswered:
            self._send(client, request)
        while not self.is_done:
            # One batch at a time until the partition knows the producer, because it accepts any first sequence.
            most = REQUESTS_IN_FLIGHT if self.known.issuperset(self.partitions) else 1
            while len(self.unanswered) < most and not self.stopping:
                self.unanswered.append(self._next())
                self._send(client, self.unanswered[-1])
            self._take_answer(client)
            time.sleep(PAUSE_S)

    def _next(self) -> list[_Sent]:
        request = []
        for partition in self.rng.sample(self.partitions, min(self.rng.choice((1, 1, 2, 3)), len(self.partitions))):
            first = self.sent.get(partition, 0)
            numbers = range(first, first + self.rng.randint(1, 8))
            values = [b"%d %d %s" % (self.number, number, b"." * self.rng.randint(0, 300)) for number in numbers]
            keys = [b"%d %d" % (self.number, number % self.keys) for number in numbers] if self.keys else None
            self.sent[partition] = first + len(numbers)
            request.append(_Sent(partition, first, first, values, keys))
        return request

    def _send(self, client: Client, request: list[_Sent]) -> None:
        assert self.identity is not None
        producer_id, epoch = self.identity
        entries: list[tuple[str, int, bytes | bytearray]] = []
        for sent in request:
            data = batch(
                sent.values, sent.keys, base_sequence=sent.sequence, producer_id=producer_id, producer_epoch=epoch
            )
            entries.append((*sent.partition, data))
        client.send(ApiKey.PRODUCE, 9, produce_request(entries))

    def _take_answer(self, client: Client) -> None:
        response = client.answer(ApiKey.PRODUCE, 9)
        answers = {(topic.name, row.index): row for topic in response.responses for row in topic.partition_responses}
        request = self.unanswered[0]
        again = []
        for sent in request:
            row = answers[sent.partition]
            if row.error_code == ErrorCode.NONE:
                self.known.add(sent.partition)
                self.books.acknowledge(sent.partition, self.number, sent.first, len(sent.values), row.base_offset)
            elif row.error_code in PRODUCE_AGAIN:
                again.append(sent)
            else:
                raise AssertionError(f"{sent.partition} at {sent.first}: {ErrorCode(row.error_code).name}")
        request[:] = again
        if again:
            raise AskAgainError
        self.unanswered.popleft()
        self.steps += 1


class OffsetBook:
    """What was committed for a group: asked for, and acknowledged."""

    def __init__(self, group: str, books: Books) -> None:
        self.group = group
        self.books = books
        self.asked: dict[Partition, int] = {}
        self.acknowledged: dict[Partition, int] = {}
        self.seen: dict[Partition, int] = {}
        self.lock = threading.Lock()

    def check(self, client: Client, partitions: list[Partition]) -> dict[Partition, int]:
        """The committed offsets, which are at least what was acknowledged and at most what was asked for."""
        with self.lock:
            least = {key: max(self.acknowledged.get(key, -1), self.seen.get(key, -1)) for key in partitions}
        fetch = messages.OffsetFetchRequest
        rows = [fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[index]) for topic, index in partitions]
        response = client.ask(ApiKey.OFFSET_FETCH, 7, fetch(group_id=self.group, topics=rows))
        if response.error_code in COORDINATOR_MOVES:
            raise AskAgainError
        assert response.error_code == ErrorCode.NONE, response
        found = {(topic.name, row.partition_index): row for topic in response.topics for row in topic.partitions}
        with self.lock:
            for key in partitions:
                offset = found[key].committed_offset
                if not least[key] <= offset <= self.asked.get(key, -1):
                    self.books.problem(
                        f"{self.group}: committed {offset} of {key}, acknowledged {least[key]}, "
                        f"asked for {self.asked.get(key, -1)}"
                    )
                self.seen[key] = max(self.seen.get(key, -1), offset)
        return {key: found[key].committed_offset for key in partitions}

    def commit(
        self, client: Client, offsets: dict[Partition, int], generation: int = -1, member: str = ""
    ) -> ErrorCode:
        """Commit in one request; the first error."""
        with self.lock:
            for key, offset in offsets.items():
                self.asked[key] = max(self.asked.get(key, -1), offset)
        commit = messages.OffsetCommitRequest
        topics = [
            commit.OffsetCommitRequestTopic(
                name=topic,
                partitions=[commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)],
            )
            for (topic, index), offset in offsets.items()
        ]
        request = commit(group_id=self.group, generation_id_or_member_epoch=generation, member_id=member, topics=topics)
        response = client.ask(ApiKey.OFFSET_COMMIT, 7, request)
        first = ErrorCode.NONE
        with self.lock:
            for topic in response.topics:
                for row in topic.partitions:
                    error = ErrorCode(row.error_code)
                    if error is ErrorCode.NONE:
                        key = topic.name, row.partition_index
                        self.acknowledged[key] = max(self.acknowledged.get(key, -1), offsets[key])
                    elif first is ErrorCode.NONE:
                        first = error
        if first is ErrorCode.NONE:
            self.books.committed()
        return first


class Committer(Worker):
    """Commits rising offsets of some partitions, and checks the committed offsets after every kill."""

    def __init__(self, number: int, partitions: list[Partition], place: OneBroker, books: Books, seed: int):
        super().__init__(f"committer {number}", place, books, seed)
        self.partitions = partitions
        self.book = OffsetBook(f"committer-{number}", books)

    def connect(self) -> Client:
        """A connection to the coordinator of its group."""
        return self.place.coordinator(self.book.group)

    def work(self, client: Client) -> None:
        """Check, then commit."""
        find_coordinator(client, self.book.group)
        self.book.check(client, self.partitions)
        while not self.stopping:
            chosen = self.rng.sample(self.partitions, self.rng.randint(1, min(3, len(self.partitions))))
            offsets = {key: self.book.asked.get(key, -1) + self.rng.randint(1, 5) for key in chosen}
            error = self.book.commit(client, offsets)
            if error in COORDINATOR_MOVES:
                raise AskAgainError
            assert error is ErrorCode.NONE, error.name
            self.steps += 1
            time.sleep(PAUSE_S)


class PolicyChanger(Worker):
    """An operator who changes a topic's cleanup.policy again and again."""

    def __init__(self, topic: str, place: OneBroker, books: Books, seed: int):
        super().__init__("policy changer", place, books, seed)
        self.topic = topic

    def work(self, client: Client) -> None:
        """Choose a policy now and then."""
        while not self.stopping:
            error = client.set_config(
                self.topic, cleanup_policy=self.rng.choice(("compact", "delete", "compact,delete"))
            )
            assert error == 0, ErrorCode(error).name
            self.steps += 1
            time.sleep(self.rng.uniform(0.1, 1.0))


def find_coordinator(client: Client, key: str, key_type: int = 0) -> None:
    """Return when the group, or the transactional id (`key_type` 1), has a coordinator."""
    response = client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=key, key_type=key_type))
    if response.error_code:
        raise AskAgainError


class Group:
    """What must hold for all members of a group together."""

    def __init__(self, group: str, partitions: list[Partition], books: Books) -> None:
        self.partitions = partitions
        self.offsets = OffsetBook(group, books)
        self.generation = 0
        self.read: dict[Partition, int] = {}  # up to where the group has read
        self._owners: dict[int, dict[Partition, str]] = {}
        self._lock = threading.Lock()

    def owns(self, generation: int, member: str, partitions: list[Partition]) -> None:
        """A member was given partitions in a generation."""
        with self._lock:
            owners = self._owners.setdefault(generation, {})
            for key in partitions:
                if owners.setdefault(key, member) != member:
                    self.offsets.books.problem(f"{key} is {owners[key]}'s and {member}'s in generation {generation}")
            self.generation = max(self.generation, generation)

    def reads(self, key: Partition, first: int, following: int) -> None:
        """A member got the records from `first` on: nothing before them was left out."""
        with self._lock:
            expected = self.read.get(key, 0)
            if first > expected:
                self.offsets.books.problem(f"{self.offsets.group}: {key} was read from {first}, left out {expected}")
            self.read[key] = max(expected, following)


class _Rejoin(Exception):
    """The group wants its members to join again."""


class Member(Worker):
    """A member of a group: joins, reads its partitions, commits; now and then it leaves or dies."""

    def __init__(self, number: int, group: Group, place: OneBroker, books: Books, seed: int):
        super().__init__(f"member {number}", place, books, seed)
        self.group = group
        self.id = ""
        self.generation = -1
        self.positions: dict[Partition, int] = {}

    def connect(self) -> Client:
        """A connection to the coordinator of its group."""
        return self.place.coordinator(self.group.offsets.group)

    def work(self, client: Client) -> None:
        """Rebalance and read in turn."""
        find_coordinator(client, self.group.offsets.group)
        while not self.stopping:
            try:
                if self.generation < 0:
                    self._join(client)
                self._read(client)
            except _Rejoin:
                self.generation = -1

    def _judge(self, code: int) -> None:
        if code in COORDINATOR_MOVES:
            raise AskAgainError
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            raise _Rejoin
        assert code == ErrorCode.NONE, f"{self.name}: {ErrorCode(code).name}"

    def _join(self, client: Client) -> None:
        join = messages.JoinGroupRequest
        group = self.group.offsets.group
        topics = sorted({topic for topic, _ in self.group.partitions})
        names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
        subscription = struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)
        while True:
            request = join(
                group_id=group,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=SESSION_TIMEOUT_MS,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[join.JoinGroupRequestProtocol(name="random", metadata=subscription)],
            )
            response = client.ask(ApiKey.JOIN_GROUP, 5, request)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.id = response.member_id
        self._judge(response.error_code)
        self.id = response.member_id
        assignments = []
        if response.leader == self.id:
            shares: dict[str, list[Partition]] = {member.member_id: [] for member in response.members}
            for key in self.group.partitions:
                shares[self.rng.choice(list(shares))].append(key)
            assignments = [
                messages.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member, assignment=json.dumps(share).encode()
                )
                for member, share in shares.items()
            ]
        generation = response.generation_id
        sync = messages.SyncGroupRequest(
            group_id=group, generation_id=generation, member_id=self.id, assignments=assignments
        )
        response = client.ask(ApiKey.SYNC_GROUP, 3, sync)
        self._judge(response.error_code)
        mine = [(topic, index) for topic, index in json.loads(bytes(response.assignment))]
        self.group.owns(generation, self.id, mine)
        committed = self.group.offsets.check(client, mine) if mine else {}
        self.positions = {key: max(offset, 0) for key, offset in committed.items()}
        self.generation = generation

    def _read(self, client: Client) -> None:
        heartbeat = messages.HeartbeatRequest(
            group_id=self.group.offsets.group, generation_id=self.generation, member_id=self.id
        )
        reader = self.place.reader(client)
        while not self.stopping:
            self._judge(client.ask(ApiKey.HEARTBEAT, 3, heartbeat).error_code)
            moved = False
            for key, position in self.positions.items():
                row = reader.fetch(*key, position, 1 << 17)
                if row.error_code in PRODUCE_AGAIN:
                    raise AskAgainError
                assert row.error_code == ErrorCode.NONE, f"{key} at {position}: {ErrorCode(row.error_code).name}"
                if row.records:
                    first, following = offsets_of(row.records)
                    self.group.reads(key, max(first, position), following)
                    self.positions[key] = following
                    moved = True
            if moved:
                offsets = self.group.offsets
                self._judge(offsets.commit(client, dict(self.positions), self.generation, self.id))
                self.steps += 1
            chance = self.rng.random()
            if chance < 0.02:
                leave = messages.LeaveGroupRequest(group_id=self.group.offsets.group, member_id=self.id)
                client.ask(ApiKey.LEAVE_GROUP, 2, leave)
            if chance < 0.025:  # or dies without leaving, and comes back as a new member
                self.id = ""
                raise _Rejoin
            time.sleep(0.05)


def offsets_of(data: Any) -> tuple[int, int]:
    """First offset of the first batch, and the one behind the last."""
    headers = [header for header, _ in record_batch.batches(data)]
    return headers[0].base_offset, headers[-1].base_offset + headers[-1].last_offset_delta + 1


class LibrdkafkaProducer(Worker):
    """librdkafka's idempotent producer, which clients in most languages use."""

    def __init__(self, number: int, partitions: list[Partition], place: OneBroker, books: Books, seed: int):
        super().__init__(f"producer {number}", place, books, seed)
        self.number = number
        self.partitions = partitions
        self.sent: dict[Partition, int] = {}

    def run(self) -> None:
        """Produce; the library does the rest."""
        from confluent_kafka import KafkaException
        from confluent_kafka import Producer as Library

        library = Library(
            {
                "bootstrap.servers": self.place.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
                "reconnect.backoff.max.ms": 300,
                "queue.buffering.max.messages": 500,
                "socket.timeout.ms": 4_000,  # a broker that is paused does not answer
                "request.timeout.ms": 4_000,
            }
        )
        while not self.stopping:
            key = self.rng.choice(self.partitions)
            number = self.sent.get(key, 0)
            try:
                library.produce(
                    key[0],
                    b"%d %d %s" % (self.number, number, b"." * self.rng.randint(0, 300)),
                    partition=key[1],
                    on_delivery=lambda error, message, key=key, number=number: self._told(error, message, key, number),
                )
            except BufferError:  # while the broker is away
                library.poll(0.05)
                continue
            except KafkaException as error:
                self.books.problem(f"{self.name}: {error}")
                return
            self.sent[key] = number + 1
            library.poll(0)
            time.sleep(PAUSE_S / 4)
        if library.flush(20):
            self.books.problem(f"{self.name}: not everything was answered")

    def _told(self, error: Any, message: Any, key: Partition, number: int) -> None:
        if error is not None:
            self.books.problem(f"{self.name}: {error}")
            return
        self.steps += 1
        # The offset is None if the library has lost the answer, and knows from a later one that the record is there.
        self.books.acknowledge(key, self.number, number, 1, message.offset())


class LibrdkafkaMember(Worker):
    """librdkafka's consumer in a group: no record may be left out."""

    def __init__(self, number: int, group: Group, place: OneBroker, books: Books, seed: int):
        super().__init__(f"librdkafka member {number}", place, books, seed)
        self.group = group

    def run(self) -> None:
        """Subscribe and read."""
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self.place.bootstrap,
                "group.id": self.group.offsets.group,
                "log_level": 0,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS * 2,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 300,
                "socket.timeout.ms": 4_000,
            }
        )
        consumer.subscribe(sorted({topic for topic, _ in self.group.partitions}))
        while not self.stopping:
            got = [message for message in consumer.consume(500, 0.1) if not message.error()]
            for message in got:
                self.group.reads((message.topic(), message.partition()), message.offset(), message.offset() + 1)
            if got:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:  # the broker is away, or the group has moved on
                    continue
                self.books.committed()
                self.steps += 1
        consumer.close()
