"""Broker processes that form a cluster, and what a test says to them and asks them."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import AnsweredError, Client, Process, batch, produce_request
from ports import free_port
from waiting import pauses, until_said

T = TypeVar("T")

BROKERS = 3
GOES_ON_WITHIN_S = 100.0
ANSWER_WITHIN_S = 5.0
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "2000",
    "controlled.shutdown.enable": "true",
}


class NotYetError(Exception):
    """What a test waits for has not happened; str() says what it is."""


def numbered(first: int, count: int = 20) -> list[bytes]:
    """Values that tell where they are."""
    return [b"%d" % number for number in range(first, first + count)]


class Cluster:
    """The processes by node id. A broker that was killed can be started again, on its data and its port."""

    def __init__(self, folder: Path, settings: dict[str, str], zookeeper: str | None = None) -> None:
        self._folder = folder
        tree = {"coordination.path": str(folder / "tree")}
        if zookeeper is not None:
            tree = {"zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": "2000"}
        self._settings = {**tree, **SETTINGS, **settings}
        self.ports = {node_id: free_port() for node_id in range(BROKERS)}
        self.own: dict[int, dict[str, str]] = {}  # settings of single brokers
        self.processes: dict[int, Process] = {}  # those that run
        self._paused: dict[int, Process] = {}
        self.words: dict[int, list[str]] = {}  # more of a broker's command line

    # ------------------------------------------------------------------ processes

    def start_all(self) -> None:
        """Start all at once, and wait until each serves."""
        for node_id in self.ports:
            self.start(node_id, wait=False)
        for process in self.processes.values():
            process.wait_until_ready()

    def start(self, node_id: int, *, wait: bool = True) -> None:
        """Start one."""
        self.processes[node_id] = Process(
            self._folder / f"broker-{node_id}",
            self.ports[node_id],
            settings={**self._settings, **self.own.get(node_id, {}), "node.id": str(node_id)},
            words=self.words.get(node_id, ()),
            wait=wait,
            log_level="info",
        )

    def end_one(self, node_id: int, number: int = signal.SIGTERM) -> None:
        """Stop (SIGTERM) or kill (SIGKILL) one."""
        self.processes.pop(node_id).end(number)

    def pause(self, node_id: int) -> None:
        """Have the system stop one (SIGSTOP): it does nothing, and its connections stay open."""
        process = self._paused[node_id] = self.processes.pop(node_id)
        process.pause(self._folder / "tree")

    def resume(self, node_id: int) -> None:
        """Let it go on (SIGCONT)."""
        process = self.processes[node_id] = self._paused.pop(node_id)
        os.kill(process.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Stop all."""
        for node_id in list(self._paused):
            self.resume(node_id)
        for node_id in list(self.processes):
            self.end_one(node_id)

    def logs(self) -> list[str]:
        """What each broker has logged."""
        return [path.read_text() for path in sorted(self._folder.glob("broker-*.log"))]

    def until_said(self, text: str, node_id: int | None = None) -> str:
        """Wait until a broker, or this one, has logged it; returns all that is in its log."""
        name = "broker-*.log" if node_id is None else f"broker-{node_id}.log"
        return until_said(text, *sorted(self._folder.glob(name)))

    # ------------------------------------------------------------------ waiting

    def until(self, done: Callable[[], T], within_s: float = GOES_ON_WITHIN_S) -> T:
        """Try until it raises no NotYetError, is answered no error and keeps its connection; returns its value."""
        end = time.monotonic() + within_s
        for pause_s in pauses():
            try:
                return done()
            except (NotYetError, AnsweredError, OSError) as error:
                if time.monotonic() >= end:
                    logs = "\n".join(log[-3000:] for log in self.logs())
                    raise AssertionError(f"not within {within_s} s: {error}\n{logs}") from error
                time.sleep(pause_s)
        raise AssertionError  # pauses never end

    def client(self, node_id: int) -> Any:
        """A connection to a broker, to be used in a `with`."""
        return closing(Client(self.ports[node_id], ANSWER_WITHIN_S))

    def any_broker(self) -> int:
        """A broker that runs."""
        return next(iter(self.processes))

    # ------------------------------------------------------------------ topics

    def metadata(self, topic: str | None = None, node_id: int | None = None) -> Any:
        """What a broker says of the cluster and of one topic."""
        request = messages.MetadataRequest
        topics = [request.MetadataRequestTopic(name=topic)] if topic is not None else []
        with self.client(self.any_broker() if node_id is None else node_id) as client:
            return client.ask(ApiKey.METADATA, 12, request(topics=topics, allow_auto_topic_creation=False))

    def partition(self, topic: str, index: int, node_id: int | None = None) -> Any:
        """What a broker says of one partition; NotYetError if it has no live leader."""
        answer = self.metadata(topic, node_id)
        for row in answer.topics[0].partitions:
            if row.partition_index == index and row.leader_id in self.processes:
                return row
        raise NotYetError(f"{topic}-{index} has no leader: {answer}")

    def leader(self, topic: str, index: int) -> int:
        """The broker that leads a partition."""
        leader_id: int = self.until(lambda: self.partition(topic, index)).leader_id
        return leader_id

    def in_sync(self, topic: str, index: int, replicas: set[int]) -> None:
        """Wait until these are the in-sync replicas."""

        def check() -> None:
            row = self.partition(topic, index)
            if set(row.isr_nodes) != replicas:
                raise NotYetError(f"{topic}-{index}: {row}")

        self.until(check)

    def create_topic(self, name: str, partitions: int = 1, node_id: int | None = None, **configs: str) -> None:
        """Make a topic of three replicas through some broker, as a client does; return when all brokers know it."""
        with self.client(self.controller() if node_id is None else node_id) as client:
            error = client.create_topic(name, partitions, BROKERS, **configs)
        assert error == ErrorCode.NONE, ErrorCode(error).name
        for each in self.processes:
            for index in range(partitions):
                self.until(partial(self.partition, name, index, each))

    def controller(self) -> int:
        """The broker that is controller."""

        def find() -> int:
            controller_id: int = self.metadata().controller_id
            if controller_id not in self.processes:
                raise NotYetError(f"the controller is {controller_id}")
            return controller_id

        return self.until(find)

    def balance(self) -> None:
        """Have all preferred leaders elected; return when every broker knows them, and all replicas are in sync.

        So no leader moves afterwards: the controller's own balance finds nothing to do.
        """

        def elect() -> None:
            with self.client(self.controller()) as client:
                answer = client.ask(ApiKey.ELECT_LEADERS, 2, messages.ElectLeadersRequest(topic_partitions=None))
            if answer.error_code:
                raise NotYetError(f"elect leaders: {answer}")
            for node_id in self.processes:
                with self.client(node_id) as client:
                    topics = client.ask(ApiKey.METADATA, 12, messages.MetadataRequest(topics=None)).topics
                for row in (row for topic in topics for row in topic.partitions):
                    if row.leader_id != row.replica_nodes[0] or set(row.isr_nodes) != set(row.replica_nodes):
                        raise NotYetError(f"broker {node_id} says: {row}")

        self.until(elect)

    # ------------------------------------------------------------------ records

    def produce(self, producer: "Producer", values: list[bytes]) -> int:
        """Have values acknowledged by all in-sync replicas; returns the offset of the first. Tries as clients do."""
        records = producer.batch(values)
        request = produce_request([(producer.topic, producer.index, records)])

        def send() -> int:
            with self.client(self.partition(producer.topic, producer.index).leader_id) as client:
                answer = client.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0]
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                raise NotYetError(f"produce: {answer}")
            offset: int = answer.base_offset
            return offset

        return self.until(send)

    def filled_topic(self, name: str, partitions: int) -> "list[Producer]":
        """Make a topic, and have `numbered(0)` in each of its partitions; their producers."""
        self.create_topic(name, partitions)
        producers = [self.producer(name, index) for index in range(partitions)]
        for producer in producers:
            self.produce(producer, numbered(0))
        return producers

    def values(self, topic: str, index: int) -> list[bytes | None]:
        """All committed records of a partition, by offset without a gap."""

        def read() -> list[bytes | None]:
            with self.client(self.partition(topic, index).leader_id) as client:
                values: list[bytes | None] = client.values(topic, index)
                return values

        return self.until(read)

    # ------------------------------------------------------------------ groups

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group."""

        def find() -> int:
            with self.client(self.any_broker()) as client:
                answer = client.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=group))
            if answer.error_code or answer.node_id not in self.processes:
                raise NotYetError(f"coordinator of {group}: {answer}")
            node_id: int = answer.node_id
            return node_id

        return self.until(find)

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Have offsets of partitions committed, by a client that is no member. Tries as clients do."""
        commit = messages.OffsetCommitRequest
        rows = [commit.OffsetCommitRequestPartition(partition_index=p, committed_offset=o) for p, o in offsets.items()]
        request = commit(group_id=group, topics=[commit.OffsetCommitRequestTopic(name=topic, partitions=rows)])

        def send() -> None:
            with self.client(self.coordinator(group)) as client:
                answer = client.ask(ApiKey.OFFSET_COMMIT, 8, request)
            errors = {row.error_code for row in answer.topics[0].partitions}
            if errors != {ErrorCode.NONE}:
                raise NotYetError(f"commit: {errors}")

        self.until(send)

    def committed(self, group: str, topic: str, index: int) -> int:
        """The committed offset, as the coordinator says it."""

        def ask() -> int:
            with self.client(self.coordinator(group)) as client:
                error, offset = client.committed(group, topic, index)
            if error:
                raise NotYetError(f"committed offsets of {group}: {ErrorCode(error).name}")
            return int(offset)

        return self.until(ask)

    def producer(self, topic: str, index: int = 0) -> "Producer":
        """A new idempotent producer."""

        def begin() -> tuple[int, int]:
            with self.client(self.any_broker()) as client:
                pair: tuple[int, int] = client.init_producer_id()
                return pair

        return Producer(topic, index, *self.until(begin))


class Producer:
    """An idempotent producer to one partition: what it sends again is not written twice."""

    def __init__(self, topic: str, index: int, producer_id: int, producer_epoch: int) -> None:
        self.topic = topic
        self.index = index
        self._ids = {"producer_id": producer_id, "producer_epoch": producer_epoch}
        self._next_sequence = 0

    def batch(self, values: list[bytes]) -> bytearray:
        """The next batch."""
        records = batch(values, **self._ids, base_sequence=self._next_sequence)
        self._next_sequence += len(values)
        return records
