"""Clients that close, half-close or reset at any byte of what they send, and a model of what must have been done.

Each case is one connection: some requests in one stream of bytes, cut anywhere, sent in pieces, then an end. Every
request that is whole before the cut must take effect, in order, and nothing else; a client that closes only one half
gets an answer to each. What a client closed behind may take a moment, so the model is compared until it fits.
"""

import fcntl
import socket
import struct
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, build
from mutations import case
from neighbour import Client
from wire import SETTINGS, Process

ENDS = ("closes", "half-closes", "resets")
PATIENCE_SECONDS = 60.0  # of the model, and of a client that waits for answers
ARRIVAL_SECONDS = 1.0
PARTITIONS = 2
REQUESTS_MAX = 12
BURST = 120  # produces in one go: more frames than a connection handles in a turn
EMPTY = "nothing-is-ever-written-here"
TARGET = "closing"


class Model:
    """The state that a broker must have for the names of one case, and the requests that change it."""

    def __init__(self, random: Random, number: int) -> None:
        self._random = random
        self.topic = f"closing-{number}"
        self.group = f"closing-group-{number}"
        self.ends = [0] * PARTITIONS
        self.starts = [0] * PARTITIONS
        self.committed: dict[int, int] = {}
        self.members: set[str] = set()
        self.other_topics: dict[str, int] = {}  # with so many partitions
        self.retention_ms: str | None = None

    def state(self) -> tuple[object, ...]:
        """All of it, to be compared."""
        return (
            self.starts,
            self.ends,
            self.committed,
            sorted(self.members),
            sorted(self.other_topics.items()),
            self.retention_ms,
        )

    def next_requests(self) -> list[tuple[bytes, bool, Callable[[], None]]]:
        """Frames, whether each is answered, and what each does to the model."""
        kinds = (
            *(self._produce, self._produce, self._burst, self._poll, self._poll, self._metadata, self._commit),
            *(self._commit, self._join, self._leave, self._create, self._delete, self._grow, self._alter, self._trim),
        )
        return self._random.choice(kinds)()

    def _one(self, key: ApiKey, version: int, message: Any, effect: Callable[[], None]) -> Any:
        return [(frames.encode_request(key, version, 0, "closing", message), True, effect)]

    def _produce(self, acks: int | None = None, size: int | None = None) -> Any:
        random = self._random
        acks = random.choice((0, 1, -1)) if acks is None else acks
        size = random.choice((1, 100, 3_000, 70_000)) if size is None else size
        index = random.randrange(PARTITIONS)
        request = messages.ProduceRequest
        records = bytes(build([Record(0, 1_700_000_000_000, None, bytes(size), [])]))
        data = request.TopicProduceData(
            name=self.topic, partition_data=[request.PartitionProduceData(index=index, records=records)]
        )

        def effect() -> None:
            self.ends[index] += 1

        message = request(acks=acks, timeout_ms=5_000, topic_data=[data])
        return [(frames.encode_request(ApiKey.PRODUCE, 9, 0, "closing", message), acks != 0, effect)]

    def _burst(self) -> Any:
        return [self._produce(0, 30)[0] for _ in range(self._random.randrange(BURST))]

    def _poll(self) -> Any:
        request = messages.FetchRequest
        partition = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
        topic = request.FetchTopic(topic=EMPTY, partitions=[partition])
        wait_ms = self._random.choice((1, 20, 60))
        message = request(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1_000, topics=[topic], session_epoch=-1)
        return self._one(ApiKey.FETCH, 11, message, lambda: None)

    def _metadata(self) -> Any:
        return self._one(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None), lambda: None)

    def _commit(self) -> Any:
        request = messages.OffsetCommitRequest
        index, offset = self._random.randrange(PARTITIONS), self._random.randrange(1_000)
        partition = request.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        topic = request.OffsetCommitRequestTopic(name=self.topic, partitions=[partition])
        message = request(group_id=self.group, generation_id_or_member_epoch=-1, topics=[topic])

        def effect() -> None:
            self.committed[index] = offset

        return self._one(ApiKey.OFFSET_COMMIT, 8, message, effect)

    def _join(self) -> Any:
        """A join of a static member, whose id need not be known. A second join waits: the first does not come back."""
        request = messages.JoinGroupRequest
        instance = self._random.choice("ab")
        message = request(
            group_id=f"{self.group}-of-{instance}",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[request.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        return self._one(ApiKey.JOIN_GROUP, 5, message, lambda: self.members.add(instance))

    def _leave(self) -> Any:
        instance = self._random.choice("ab")
        member = messages.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance)
        message = messages.LeaveGroupRequest(group_id=f"{self.group}-of-{instance}", members=[member])
        return self._one(ApiKey.LEAVE_GROUP, 3, message, lambda: self.members.discard(instance))

    def _other_topics(self) -> list[str]:
        count = self._random.choice((1, 3, 20))
        return [f"{self.topic}-{number}" for number in range(count)]

    def _create(self) -> Any:
        request = messages.CreateTopicsRequest
        names = self._other_topics()
        wanted = [request.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]

        def effect() -> None:
            for name in names:
                self.other_topics.setdefault(name, 1)

        return self._one(ApiKey.CREATE_TOPICS, 5, request(topics=wanted, timeout_ms=10_000), effect)

    def _delete(self) -> Any:
        names = self._other_topics()

        def effect() -> None:
            for name in names:
                self.other_topics.pop(name, None)

        message = messages.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
        return self._one(ApiKey.DELETE_TOPICS, 5, message, effect)

    def _grow(self) -> Any:
        request = messages.CreatePartitionsRequest
        names = self._other_topics()
        wanted = [request.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]

        def effect() -> None:
            for name in names:
                if name in self.other_topics:
                    self.other_topics[name] = 2

        return self._one(ApiKey.CREATE_PARTITIONS, 2, request(topics=wanted, timeout_ms=10_000), effect)

    def _alter(self) -> Any:
        request = messages.IncrementalAlterConfigsRequest
        value = str(self._random.randrange(10**9, 2 * 10**9))
        configs = [request.AlterableConfig(name="retention.ms", value=value)]
        resource = request.AlterConfigsResource(resource_type=2, resource_name=self.topic, configs=configs)

        def effect() -> None:
            self.retention_ms = value

        return self._one(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request(resources=[resource]), effect)

    def _trim(self) -> Any:
        request = messages.DeleteRecordsRequest
        index = self._random.randrange(PARTITIONS)
        partition = request.DeleteRecordsPartition(partition_index=index, offset=-1)
        topic = request.DeleteRecordsTopic(name=self.topic, partitions=[partition])

        def effect() -> None:
            self.starts[index] = self.ends[index]

        return self._one(ApiKey.DELETE_RECORDS, 1, request(topics=[topic], timeout_ms=5_000), effect)

    # ------------------------------------------------------------------ what the broker says

    def found(self, client: Client) -> tuple[object, ...]:
        """The state as the broker tells it to another client."""
        offsets = messages.ListOffsetsRequest
        bounds = []
        for timestamp in (-2, -1):
            asked = [offsets.ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in range(PARTITIONS)]
            topic = offsets.ListOffsetsTopic(name=self.topic, partitions=asked)
            answer = client.ask(ApiKey.LIST_OFFSETS, 5, offsets(replica_id=-1, topics=[topic]))
            bounds.append([row.offset for row in answer.topics[0].partitions])
        fetched = client.ask(ApiKey.OFFSET_FETCH, 7, messages.OffsetFetchRequest(group_id=self.group, topics=None))
        committed = {row.partition_index: row.committed_offset for t in fetched.topics for row in t.partitions}
        groups = [f"{self.group}-of-{instance}" for instance in "ab"]
        described = client.ask(ApiKey.DESCRIBE_GROUPS, 5, messages.DescribeGroupsRequest(groups=groups)).groups
        members = sorted(member.group_instance_id for group in described for member in group.members)
        topics = client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None)).topics
        others = sorted((t.name, len(t.partitions)) for t in topics if t.name.startswith(f"{self.topic}-"))
        describe = messages.DescribeConfigsRequest
        resource = describe.DescribeConfigsResource(
            resource_type=2, resource_name=self.topic, configuration_keys=["retention.ms"]
        )
        row = client.ask(ApiKey.DESCRIBE_CONFIGS, 1, describe(resources=[resource])).results[0].configs[0]
        return *bounds, committed, members, others, row.value if row.config_source == 1 else None

    def clean_up(self, client: Client) -> None:
        """Leave nothing behind."""
        names = [self.topic, *self.other_topics]
        client.ask(ApiKey.DELETE_TOPICS, 5, messages.DeleteTopicsRequest(topic_names=names, timeout_ms=10_000))


def check(port: int, seed: int, number: int) -> str | None:
    """One case; what went wrong, if anything."""
    random = case(seed, TARGET, number)
    client = Client(port)
    model = Model(random, number)
    client.create_topic(model.topic, PARTITIONS)
    stream, answered, cut_off = bytearray(), [], False
    requests = [one for _ in range(random.randint(1, REQUESTS_MAX)) for one in model.next_requests()]
    cut = random.randrange(sum(len(frame) for frame, _, _ in requests) + 1)
    if random.random() < 0.3:
        cut = 1 << 30
    for correlation_id, (frame, is_answered, effect) in enumerate(requests):
        if len(stream) + len(frame) > cut:
            stream += frame[: cut - len(stream)]
            cut_off = True
            break
        stream += frame[:8] + struct.pack(">i", correlation_id) + frame[12:]
        effect()
        if is_answered:
            answered.append(correlation_id)
    end = random.choice(ENDS)
    what = f"{len(answered)} requests with answers, {len(stream)} bytes{', the last cut off' * cut_off}, {end}"
    complaint = _send(random, port, bytes(stream), end, answered)
    if complaint is not None:
        return f"{what}: {complaint}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := model.found(client)) != model.state():
        if time.monotonic() > deadline:
            return f"{what}: the broker has {found}, it should have {model.state()}"
        time.sleep(0.01)
    model.clean_up(client)
    client.socket.close()
    return None


def _send(random: Random, port: int, stream: bytes, end: str, answered: list[int]) -> str | None:
    """Send it all, and end; what is wrong with the answers, if anything is."""
    client = Client(port)  # asks something first, so that the broker has accepted the connection
    client.ask(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest())
    position = 0
    while position < len(stream):
        size = random.choice((1, 10, 1_000, 100_000, 1 << 30))
        client.socket.sendall(stream[position : position + size])
        position += size
        if random.random() < 0.1:
            time.sleep(random.choice((0.001, 0.03)))
    if end == "resets" and _has_arrived(client.socket):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif end == "half-closes":
        client.socket.shutdown(socket.SHUT_WR)
        return _wrong_answers(client.socket, answered)
    client.socket.close()
    return None


def _has_arrived(sender: socket.socket) -> bool:
    """Whether all bytes have reached the broker's socket. If the broker reads no more, the rest stays here."""
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _wrong_answers(client: socket.socket, answered: list[int]) -> str | None:
    data = b""
    try:
        while piece := client.recv(1 << 20):
            data += piece
    except OSError as error:
        return f"no end after the answers: {error!r}"
    found = []
    while data:
        size, correlation_id = struct.unpack_from(">ii", data)
        if len(data) < 4 + size:
            return "half an answer"
        found.append(correlation_id)
        data = data[4 + size :]
    return None if found == answered else f"answers to {found}, not to {answered}"


def run(seed: int, first: int, count: int, seconds: float, say: Callable[[str], None]) -> str | None:
    """So many cases, or as many as the time allows; what went wrong, if anything."""
    begin = time.monotonic()
    number = first
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Path(folder), SETTINGS)
        try:
            client = Client(process.port)
            client.create_topic(EMPTY)
            client.find_coordinator("any")
            client.socket.close()
            while number < first + count and time.monotonic() - begin < seconds:
                complaint = check(process.port, seed, number) or process.complaint()
                if complaint is not None:
                    again = f"python tests/fuzz/fuzz.py {TARGET} --seed {seed} --case {number}"
                    return f"{TARGET}, seed {seed}, case {number}: {complaint}\n{again}"
                number += 1
        finally:
            process.end()
    say(f"{TARGET}: {number - first} cases in {time.monotonic() - begin:.0f} s, all well")
    return None
