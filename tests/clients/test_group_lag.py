"""`barnabas groups lag` and `describe` against what a consumer is given: kafka-python reads to the end, and counts."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import Any

import forked
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition


def run(broker: Any, *words: str) -> str:
    return forked.barnabas(*words, "--bootstrap", broker.bootstrap, code=0).stdout


def produce(broker: Any, topic: str, partition: int, keys: list[bytes], **settings: Any) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)) as producer:
        for sent in [producer.send(topic, key=key, value=key * 3, partition=partition) for key in keys]:
            sent.get(200)


def commit(broker: Any, group: str, topic: str, *offsets: int) -> None:
    with closing(
        KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    ) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(len(offsets))]
        consumer.assign(partitions)
        consumer.commit({each: OffsetAndMetadata(offset, "", -1) for each, offset in zip(partitions, offsets)})


def unread(broker: Any, group: str, topic: str, count: int) -> dict[int, int]:
    with closing(
        KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
    ) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(count)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        counts = dict.fromkeys(range(count), 0)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for each, records in consumer.poll(500).items():
                counts[each.partition] += len(records)
        return counts


def lag(broker: Any, group: str) -> Any:
    return json.loads(run(broker, "groups", "lag", group, "--json"))


def records(found: Any) -> dict[int, int]:
    assert all(row["read_uncommitted"]["exact"] for row in found["partitions"])
    return {row["partition"]: row["read_uncommitted"]["records"] for row in found["partitions"]}


def test_the_lag_is_what_a_consumer_is_given(own_broker: Any) -> None:
    broker = own_broker
    run(broker, "topics", "create", "t", "--partitions", "3")
    produce(broker, "t", 0, [b"k%d" % number for number in range(500)], linger_ms=20)
    produce(broker, "t", 1, [b"k%d" % number for number in range(90)], compression_type="gzip", linger_ms=20)
    commit(broker, "g", "t", 123, 45, 0)
    found = lag(broker, "g")
    truth = unread(broker, "g", "t", 3)
    assert records(found) == truth == {0: 377, 1: 45, 2: 0}
    assert (found["records"], found["partitions_not_known"]) == (422, 0)
    assert 0 < found["seconds"] < 120
    (described,) = json.loads(run(broker, "groups", "describe", "g", "--json"))
    assert {row["partition"]: row["records"] for row in described["offsets"]} == truth
    table = run(broker, "groups", "describe", "g")
    assert "records" in table
    assert "behind" in table


def test_a_compacted_topic(own_broker: Any) -> None:
    broker = own_broker
    words = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01", "segment.ms=100", "max.compaction.lag.ms=100")
    run(broker, "topics", "create", "c", *(word for setting in words for word in ("--config", setting)))
    run(broker, "configs", "set", "broker", "default", "log.cleaner.threads=1")
    for _ in range(5):
        produce(broker, "c", 0, [b"a", b"b", b"c"])
    commit(broker, "g", "c", 2)
    before, found, truth = {0: 13}, {0: 13}, {0: -1}
    while before[0] == 13 or before != truth:  # the cleaner has not begun, or it came in between
        before, found, truth = unread(broker, "g", "c", 1), records(lag(broker, "g")), unread(broker, "g", "c", 1)
    assert found == truth


def test_records_that_were_deleted_before_they_were_read(own_broker: Any) -> None:
    from kafka import KafkaAdminClient

    broker = own_broker
    run(broker, "topics", "create", "d")
    produce(broker, "d", 0, [b"k%d" % number for number in range(50)])
    commit(broker, "g", "d", 10)
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.delete_records({TopicPartition("d", 0): 30})
    found = lag(broker, "g")
    (row,) = found["partitions"]
    assert (row["status"], row["lost_records_max"]) == ("before_log_start", 20)
    assert records(found) == unread(broker, "g", "d", 1) == {0: 20}
    assert "deleted before they were read: ≤ 20 records" in run(broker, "groups", "lag", "g")


def test_a_commit_past_the_end_and_a_topic_that_is_gone(own_broker: Any) -> None:
    broker = own_broker
    run(broker, "topics", "create", "e")
    produce(broker, "e", 0, [b"k"])
    commit(broker, "g", "e", 77)
    found = lag(broker, "g")
    assert [(row["status"], row["read_uncommitted"]) for row in found["partitions"]] == [("past_log_end", None)]
    assert (found["partitions_not_known"], found["seconds"]) == (1, None)
    assert "past the log end 1" in run(broker, "groups", "lag", "g")


def test_watch_prints_a_line_for_each_look_and_ends_with_ctrl_c(own_broker: Any) -> None:
    broker = own_broker
    run(broker, "topics", "create", "w")
    commit(broker, "g", "w", 0)
    words = ["groups", "lag", "g", "--watch", "--interval", "0.2", "--bootstrap", broker.bootstrap]
    command = [sys.executable, "-m", "barnabas", *words]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert "g  Empty, 0 members: 0 records" in watching.stdout.readline()
        produce(broker, "w", 0, [b"k", b"l"])
        while "2 records" not in watching.stdout.readline():
            pass
        os.kill(watching.pid, signal.SIGINT)
        assert watching.wait(200) == 0


def test_ctrl_c_in_the_midst_of_a_line_ends_a_watch_all_the_same() -> None:
    """Python runs the handler of a signal between two writes of a flush, and refuses another flush then."""
    program = """
import io, os, signal, sys
from barnabas.cli.lag import _end

class Raw(io.RawIOBase):
    def writable(self):
        return True
    def write(self, data):
        os.kill(os.getpid(), signal.SIGINT)
        return 1

signal.signal(signal.SIGINT, _end)
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Raw()))
print("g", flush=True)
"""
    done = forked.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
