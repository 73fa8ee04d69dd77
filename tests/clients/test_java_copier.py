"""Kafka's own TransactionalMessageCopier, killed again and again, beside a broker that is killed too."""

import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.timeout(200)

RECORDS = 10_000


def class_path() -> str:
    """Kafka's jars; skips where they or Java are missing (`python -m bench.apache_kafka fetch`)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "barnabas-bench-kafka-4.1.0"
    folder = Path(os.environ.get("KAFKA_JARS", cache))
    if shutil.which("java") is None or not list(folder.glob("kafka-tools-*.jar")):
        pytest.skip("needs java and Kafka's jars")
    return f"{folder}/*"


def fill(broker: Any) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
        future.result(200)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce("in", b"%d" % number)
    assert producer.flush(200) == 0


def copied(broker: Any) -> tuple[list[int], int]:
    """What is committed in the output, and the committed offset."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "copier", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})
    (committed,) = consumer.committed([TopicPartition("in", 0)], 20)
    consumer.assign([TopicPartition("out", 0, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "neither a record nor the end"
        if message.error():
            break
        found.append(int(message.value()))
    consumer.close()
    return found, committed.offset


def test_each_record_is_copied_once(make_broker: Any, tmp_path: Path) -> None:
    own_broker = make_broker("transaction.abort.timed.out.transaction.cleanup.interval.ms=300")
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path()]
    command.append("org.apache.kafka.tools.TransactionalMessageCopier")
    command += ["--broker-list", own_broker.bootstrap, "--input-topic", "in", "--input-partition", "0"]
    command += ["--output-topic", "out", "--consumer-group", "copier", "--transactional-id", "copier"]
    # It asks for its offsets before it takes its id, so those of one that was killed are open until they time out.
    command += [
        "--transaction-timeout",
        "2000",
        "--transaction-size",
        "20",
        "--enable-random-aborts",
        "--use-group-metadata",
    ]
    fill(own_broker)
    rng = random.Random(1)
    killed = 0
    while True:
        log = tmp_path / f"copier-{killed}.log"
        with log.open("w") as said:
            copier = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            until_s = time.monotonic() + 200
            while "ProcessLoop" not in log.read_text() and copier.poll() is None:  # it has begun to copy
                assert time.monotonic() < until_s, log.read_text()[-3000:]
                time.sleep(0.02)
            code = copier.wait(rng.uniform(0.1, 0.5) if killed < 6 else 100)
            break
        except subprocess.TimeoutExpired:
            killed += 1
            if killed == 3:
                own_broker.kill()
                own_broker.start()
        finally:
            copier.kill()
            copier.wait()
    assert code == 0, log.read_text()[-3000:]
    assert killed >= 3
    assert copied(own_broker) == (list(range(RECORDS)), RECORDS)
