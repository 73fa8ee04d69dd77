"""Consumers of the consumer protocol (KIP-848) in threads, by librdkafka, and a referee of what they own."""

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

MOVES = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
)


class Referee:
    """What members own, by what they acknowledge.

    Nobody is given what another has not given up. But a member that was fenced owns nothing any more for the others,
    and hears of that later, as a loss: that is no fault.
    """

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int], str] = {}
        self.read: dict[tuple[str, int], list[int]] = {}
        self.lock = threading.Lock()
        self._disputed: list[tuple[tuple[str, int], str, str]] = []

    @property
    def faults(self) -> list[str]:
        """Partitions that two members had at a time, and which neither of them had lost."""
        return [f"{topic}-{index} is {other}'s and {name}'s" for (topic, index), other, name in self._disputed]

    def assigned(self, name: str, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for each in partitions:
                partition = (each.topic, each.partition)
                other = self.owners.get(partition, name)
                if other != name:
                    self._disputed.append((partition, other, name))
                self.owners[partition] = name

    def lost(self, name: str, partitions: list[TopicPartition]) -> None:
        with self.lock:
            gone = {(each.topic, each.partition) for each in partitions}
            self._disputed = [row for row in self._disputed if row[0] not in gone or row[1] != name]
        self.revoked(name, partitions)

    def revoked(self, name: str, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for each in partitions:
                if self.owners.get((each.topic, each.partition)) == name:
                    del self.owners[each.topic, each.partition]

    def of(self, name: str) -> set[tuple[str, int]]:
        with self.lock:
            return {partition for partition, owner in self.owners.items() if owner == name}


class Member(threading.Thread):
    """A consumer in a thread of its own, which commits what it has read before it gives a partition up."""

    def __init__(self, bootstrap: str, group: str, name: str, referee: Referee, topics: list[str], **more: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.referee = referee
        self.topics = topics
        self.stopped = threading.Event()
        self.errors: list[KafkaError] = []
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 300,
            # A commit that was in flight when its coordinator died is retried inside librdkafka (2.16). If that comes
            # before the new coordinator is known (it is asked for each 500 ms), the commit fails by the connection
            # that is just being made, this coordinator is given up, too, and so on, until the member, which is silent
            # meanwhile, has lost its place in the group.
            "retry.backoff.ms": 1_000,
            "retry.backoff.max.ms": 1_000,
        }
        self.config: dict[str, Any] = config | {key.replace("_", "."): value for key, value in more.items()}
        self.start()

    def run(self) -> None:
        consumer = Consumer(self.config)

        def assigned(_: Any, partitions: list[TopicPartition]) -> None:
            self.referee.assigned(self.name, partitions)

        def revoked(_: Any, partitions: list[TopicPartition]) -> None:
            self.referee.revoked(self.name, partitions)

        def lost(_: Any, partitions: list[TopicPartition]) -> None:
            self.referee.lost(self.name, partitions)

        consumer.subscribe(self.topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        while not self.stopped.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.errors.append(message.error())
                continue
            with self.referee.lock:
                self.referee.read.setdefault((message.topic(), message.partition()), []).append(message.offset())
            self._commit(consumer, message)
        consumer.close()
        self.referee.revoked(self.name, [TopicPartition(*each) for each in self.referee.of(self.name)])

    def _commit(self, consumer: Consumer, message: Message) -> None:
        """Commit, again while the coordinator moves. A member that was fenced reads the record again elsewhere."""
        while not self.stopped.is_set():
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() in MOVES:
                    time.sleep(0.1)
                    continue
            return

    def stop(self) -> None:
        self.stopped.set()
        self.join(200)
