"""Three brokers: the lag of a group whose partitions have several leaders, and retention that waits for groups."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from supervised import until

Start = Callable[..., Any]
FAST = ("--set", "log.retention.check.interval.ms=500", "--set", "group.initial.rebalance.delay.ms=0")


def run(bootstrap: str, *words: str) -> str:
    command = [sys.executable, "-m", "barnabas", *words, "--bootstrap", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def produce(bootstrap: str, topic: str, counts: dict[int, int]) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)) as producer:
        sent = [
            producer.send(topic, b"value", partition=index) for index, count in counts.items() for _ in range(count)
        ]
        for each in sent:
            each.get(30)


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in offsets])
        consumer.commit(
            {TopicPartition(topic, index): OffsetAndMetadata(offset, "", -1) for index, offset in offsets.items()}
        )


def count_unread(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The truth: how many records a consumer of the group is given."""
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)) as consumer:
        assigned = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        counts = dict.fromkeys(range(partitions), 0)
        while any(consumer.position(each) < ends[each] for each in assigned):
            for each, found in consumer.poll(500).items():
                counts[each.partition] += len(found)
        return counts


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    (described,) = json.loads(run(bootstrap, "topics", "describe", topic, "--json"))
    return {row["partition"]: row["leader"] for row in described["partitions"]}


def starts(bootstrap: str, topic: str, partitions: int) -> list[int]:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        found = consumer.beginning_offsets([TopicPartition(topic, index) for index in range(partitions)])
        return [found[TopicPartition(topic, index)] for index in range(partitions)]


def test_every_leader_says_how_much_is_not_read(start: Start) -> None:
    bootstrap = start("--brokers", "3", "--port", "0", *FAST).event()["bootstrap"]
    run(bootstrap, "topics", "create", "t", "--partitions", "6")
    produce(bootstrap, "t", {index: 10 * (index + 1) for index in range(6)})
    for number in range(3):  # groups of several coordinators
        commit(bootstrap, f"g{number}", "t", {index: 3 * number + index for index in range(6)})
    assert len(set(leaders(bootstrap, "t").values())) == 3
    for number in range(3):
        found = json.loads(run(bootstrap, "groups", "lag", f"g{number}", "--json"))
        truth = count_unread(bootstrap, f"g{number}", "t", 6)
        assert {row["partition"]: row["read_uncommitted"]["records"] for row in found["partitions"]} == truth
        assert {row["status"] for row in found["partitions"]} == {"ok"}
        assert (found["records"], found["records_min"]) == (sum(truth.values()), sum(truth.values()))
        assert found["partitions_not_known"] == 0


def test_retention_waits_for_groups_whoever_coordinates_them(start: Start) -> None:
    bootstrap = start("--brokers", "3", "--port", "0", *FAST).event()["bootstrap"]
    words = ("--partitions", "3", "--config", "retention.ms=1000")
    names = [f"team-{number}" for number in range(4)]
    wait = "barnabas.retention.wait.for.groups=billing,team-*"
    for group in ("billing", *names):
        run(bootstrap, "topics", "create", f"of-{group}")
        commit(bootstrap, group, f"of-{group}", {0: 0})
    run(bootstrap, "topics", "create", "t", *words, "--config", wait)
    run(bootstrap, "topics", "create", "free", *words)
    short = ("--config", "barnabas.retention.wait.max.ms=3000")
    run(bootstrap, "topics", "create", "short", *words, "--config", "barnabas.retention.wait.for.groups=nobody", *short)
    for topic in ("t", "free", "short"):
        produce(bootstrap, topic, {0: 20, 1: 20, 2: 20})
    for group in ("billing", *names):
        commit(bootstrap, group, "t", {0: 20, 1: 20, 2: 20 if group != "team-2" else 7})
    until(lambda: starts(bootstrap, "free", 3) == [20, 20, 20])
    until(lambda: starts(bootstrap, "t", 3)[:2] == [20, 20])
    until(lambda: starts(bootstrap, "short", 3) == [20, 20, 20])
    assert starts(bootstrap, "t", 3)[2] == 0, "team-2 has read seven records of it"
    commit(bootstrap, "team-2", "t", {2: 20})
    until(lambda: starts(bootstrap, "t", 3)[2] == 20)
