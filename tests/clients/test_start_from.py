"""`barnabas start --from DIR`, and the profile `docker` with variables of Kafka's images."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from barnabas.testing import Barnabas
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

START = [sys.executable, "-m", "barnabas", "start", "--json", "--exit-with-parent"]


@contextmanager
def started(*words: str, **environment: str) -> Iterator[tuple[dict[str, Any], str]]:
    """A broker's ready line, and what it has said until then."""
    process = subprocess.Popen(
        [*START, *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate() if not line else None
        yield (json.loads(line) if line else {}), "" if line else process.communicate()[1]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def refused(*words: str) -> str:
    done = subprocess.run([*START, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, done
    return done.stderr


def contents(folder: Path) -> dict[str, str]:
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_tree", [True, False], ids=["of Barnabas", "without a tree, as Kafka's"])
def test_a_copy_is_served_and_the_directory_stays_as_it_is(tmp_path: Path, has_tree: bool) -> None:
    with Barnabas() as kafka:
        topic, group = kafka.topic("orders", unique=False), kafka.group("billing", unique=False)
        topic.produce(["a", "b"])
        group.commit(topic, 0, 1)
        assert "a running broker uses it" in refused("--port", "0", "--from", str(kafka.processes[0].data))
        kafka.processes[0].stop()
        data = kafka.processes[0].data.rename(tmp_path / "data")
    if not has_tree:
        for path in data.glob("coordination*"):
            path.unlink()
    before = contents(data)
    with started("--port", "0", "--from", str(data)) as (ready, said):
        assert ready, said
        consumer = KafkaConsumer(bootstrap_servers=ready["bootstrap"], group_id="billing", enable_auto_commit=False)
        try:
            consumer.assign([TopicPartition("orders", 0)])
            assert next(consumer).value == b"b", "it goes on behind the committed offset"
            consumer.commit()
        finally:
            consumer.close()
        copy = Path(ready["data"])
        assert ready["temporary"]
        assert copy.exists()
    assert not copy.exists()
    assert contents(data) == before


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in refused("--from", str(tmp_path / "nowhere"))
    assert "it has no meta.properties" in refused("--from", str(tmp_path))
    assert "--from goes without --data" in refused("--from", str(tmp_path), "--data", str(tmp_path / "d"))


def test_variables_of_kafkas_images_are_settings(tmp_path: Path) -> None:
    environment = {
        "KAFKA_NUM_PARTITIONS": "4",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "KAFKA_ADVERTISED_LISTENERS": "",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CREATE_TOPICS": "orders",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    with started("--profile", "docker", "--data", str(tmp_path / "data"), **environment) as (ready, said):
        assert ready, said
        assert ready["node_id"] == 1
        admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
        try:
            admin.create_topics(["orders"])
            assert len(admin.describe_topics(["orders"])[0]["partitions"]) == 4
        finally:
            admin.close()
    wrong = subprocess.run(
        [*START, "--profile", "docker", "--data", str(tmp_path / "other")],
        env=os.environ | environment | {"KAFKA_NUM_PARTITIONS": "many"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode != 0
    assert "Invalid value many for configuration num.partitions" in wrong.stderr
