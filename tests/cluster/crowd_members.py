"""Members of the crowd by librdkafka: `python crowd_members.py BOOTSTRAP GROUP` (consumer_crowd.py starts it).

It is told by lines, as are its twins in Java (crowd/Members.java) and Go (tests/clients/go/crowd):

    start NAME PROTOCOL SUBSCRIPTION INSTANCE RACK      consumer or classic; ^EXPRESSION or topics; - is no instance id
    stop NAME

and prints what its members see, a JSON list each: the time, the member, what, and more of it.
"""

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

COMMIT_S = 0.5
FAILED_PAUSE_S = 1.0


def tell(name: str, what: str, *more: Any) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps([time.time(), name, what, *more]) + "\n")
    sys.stdout.flush()


def named(partitions: list[TopicPartition]) -> list[str]:
    """Their names."""
    return [f"{each.topic}-{each.partition}" for each in partitions]


class Member(threading.Thread):
    """A consumer that tells what it owns, reads and commits."""

    def __init__(self, bootstrap: str, group: str, words: list[str]) -> None:
        name, self._protocol, self._subscription, self._instance, self._rack = words
        super().__init__(name=name, daemon=True)
        self._servers, self._group = bootstrap, group
        self._positions: dict[tuple[str, int], int] = {}  # not committed yet
        self.stopped = threading.Event()

    def run(self) -> None:
        """Read until it is stopped. After an error that a consumer does not survive there is another one."""
        while not self.stopped.is_set():
            consumer = self._subscribed()
            try:
                self._read(consumer)
            except KafkaException as error:
                tell(self.name, "failed", str(error.args[0].name()))
                self.stopped.wait(FAILED_PAUSE_S)
            consumer.close()
        tell(self.name, "left")

    def _subscribed(self) -> Consumer:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "group.id": self._group,
            "group.protocol": self._protocol,
            "client.id": self.name,
            "client.rack": self._rack,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 5000,
        }
        if self._protocol == "classic":
            settings |= {"session.timeout.ms": 10000, "heartbeat.interval.ms": 1000}
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        if self._instance != "-":
            settings["group.instance.id"] = self._instance
        consumer = Consumer(settings)

        def assigned(_: Any, partitions: list[TopicPartition]) -> None:
            tell(self.name, "assigned", named(partitions))

        def revoked(_: Any, partitions: list[TopicPartition]) -> None:
            self._commit(consumer)
            for each in partitions:  # if that was refused, somebody else reads them again
                self._positions.pop((each.topic, each.partition), None)
            tell(self.name, "revoked", named(partitions))

        def lost(_: Any, partitions: list[TopicPartition]) -> None:
            self._positions = {}
            tell(self.name, "lost", named(partitions))

        is_expression = self._subscription.startswith("^")
        topics = [self._subscription] if is_expression else self._subscription.split(",")
        consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        return consumer

    def _read(self, consumer: Consumer) -> None:
        next_commit = time.monotonic() + COMMIT_S
        while not self.stopped.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                if message.error().fatal():
                    raise KafkaException(message.error())
            elif message is not None:
                self._take(message)
            if time.monotonic() > next_commit:
                self._commit(consumer)
                next_commit = time.monotonic() + COMMIT_S

    def _take(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self._positions[topic, partition] = offset + 1
        tell(self.name, "read", f"{topic}-{partition}", offset)

    def _commit(self, consumer: Consumer) -> None:
        positions, self._positions = self._positions, {}
        if not positions:
            return
        began = time.time()
        rows = [TopicPartition(*key, offset) for key, offset in positions.items()]
        try:
            answer = consumer.commit(offsets=rows, asynchronous=False) or []
        except KafkaException as error:
            tell(self.name, "refused", str(error.args[0].name()))
            self._positions = positions | self._positions  # tried again, if it still owns them
            return
        done = [(f"{each.topic}-{each.partition}", each.offset) for each in answer if each.error is None]
        tell(self.name, "committed", began, sorted(done))


def main() -> None:
    """Start and stop members, as the lines say that come in."""
    bootstrap, group = sys.argv[1:]
    members: dict[str, Member] = {}
    for line in sys.stdin:
        what, *words = line.split()
        if what == "start":
            members[words[0]] = Member(bootstrap, group, words)
            members[words[0]].start()
        else:
            members.pop(words[0]).stopped.set()


if __name__ == "__main__":
    main()
