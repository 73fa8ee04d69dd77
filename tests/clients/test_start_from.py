"""`barnabas start --from DIR`, and the profile `docker` with variables of Kafka's images."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.testing import Barnabas
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from ports import free_port

START = [sys.executable, "-m", "barnabas", "start", "--json", "--exit-with-parent"]


@contextmanager
def started(*words: str, **environment: str) -> Iterator[tuple[dict[str, Any], str]]:
    """A broker's ready line, and what it has said until then."""
    process = forked.Popen(
        [*START, *words],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.terminate()
        yield (json.loads(line) if line else {}), "" if line else process.communicate()[1]
    finally:
        process.terminate()
        process.communicate(timeout=200)


def refused(*words: str) -> str:
    done = forked.run([*START, *words], capture_output=True, text=True, timeout=200)
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
        data = Path(shutil.move(kafka.processes[0].data, tmp_path / "data"))  # from memory to a disk, perhaps
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


def test_the_tree_of_the_original_stays_as_it_is(tmp_path: Path) -> None:
    """A configuration names a tree outside of the directory: the copy has one of its own."""
    tree, data = tmp_path / "tree" / "tree.sqlite", tmp_path / "data"
    tree.parent.mkdir()
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=5\nlog.dirs={data}\ncoordination.path={tree}\n")
    with started("--config", str(config), "--port", "0") as (ready, said):
        assert ready, said
        admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
        admin.create_topics(["orders"])
        admin.close()
    before = contents(tmp_path)
    for words in (["--config", str(config)], []):
        with started(*words, "--port", "0", "--from", str(data)) as (ready, said):
            assert ready, said
            assert ready["node_id"] == 5
            admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
            assert "orders" in admin.list_topics()
            admin.create_topics(["of-the-copy"])
            admin.delete_topics(["orders"])
            admin.close()
        assert contents(tmp_path) == before
    refusal = "--from goes without log.dirs, coordination.path and zookeeper.connect"
    for setting in (f"coordination.path={tree}", "zookeeper.connect=127.0.0.1:1", f"log.dirs={data}"):
        assert refusal in refused("--from", str(data), "--set", setting)


def test_one_of_three_brokers_is_copied_for_itself(tmp_path: Path) -> None:
    with Barnabas(brokers=3) as kafka:
        topic = kafka.topic("orders", unique=False)
        topic.produce(["a"])
        for process in kafka.processes.values():
            process.stop()
        before = contents(kafka.folder)
        with started("--port", "0", "--from", str(kafka.processes[0].data)) as (ready, said):
            assert ready, said
            admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
            assert "orders" in admin.list_topics()
            admin.delete_topics(["orders"])
            admin.close()
        assert contents(kafka.folder) == before


def test_what_is_odd_in_a_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started("--port", "0", "--data", str(data)) as (ready, said):
        assert ready, said
        admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
        admin.create_topics(["orders"])
        admin.close()
    (data / "orders-0").rename(tmp_path / "elsewhere")
    (data / "orders-0").symlink_to(tmp_path / "elsewhere")
    with started("--port", "0", "--from", str(data)) as (ready, said):
        assert ready, said
    os.mkfifo(data / "pipe")
    assert f"{data / 'pipe'}: it is no file of a data directory: cannot be copied" in refused("--from", str(data))
    (data / "pipe").unlink()
    outside = forked.run(
        [*START, "--from", str(data)],
        env=os.environ | {"TMPDIR": str(data)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "the copy would be in it: set TMPDIR to a folder outside" in outside.stderr


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
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    }
    with started("--profile", "docker", "--data", str(tmp_path / "data"), **environment) as (ready, said):
        assert ready, said
        assert ready["node_id"] == 1
        assert ready["cluster_id"] == "4L6g3nShT-eMCtK--X86sw"
        admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
        try:
            admin.create_topics(["orders"])
            assert len(admin.describe_topics(["orders"])[0]["partitions"]) == 4
        finally:
            admin.close()
    for variable, value, why in (
        ("KAFKA_NUM_PARTITIONS", "many", "Invalid value many for configuration num.partitions"),
        ("CLUSTER_ID", "mine", "is no id of a cluster: 'mine'"),
    ):
        wrong = forked.run(
            [*START, "--profile", "docker", "--data", str(tmp_path / "other")],
            env=os.environ | environment | {variable: value},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert wrong.returncode != 0
        assert f"the variable {variable}" in wrong.stderr
        assert why in wrong.stderr


def test_a_second_profile_is_refused() -> None:
    assert "--profile is given twice" in refused("--profile", "ci", "--profile", "docker")


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--port", "0"], {}),
        ([], {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0", "KAFKA_BROKER_ID": "5"}),
        (
            [],
            {
                "KAFKA_LISTENERS": "OUTSIDE://127.0.0.1:0",
                "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "OUTSIDE:PLAINTEXT",
                "KAFKA_INTER_BROKER_LISTENER_NAME": "OUTSIDE",
            },
        ),
    ],
)
def test_clients_are_told_where_it_listens(tmp_path: Path, words: list[str], variables: dict[str, str]) -> None:
    data = str(tmp_path / "data")
    with started("--profile", "docker", *words, KAFKA_LOG_DIR=data, **variables) as (ready, said):
        assert ready, said
        assert ready["data"] == data
        assert ready["node_id"] == int(variables.get("KAFKA_BROKER_ID", 1))
        admin = KafkaAdminClient(bootstrap_servers=ready["bootstrap"])
        try:
            admin.create_topics(["orders"])
        finally:
            admin.close()


def test_the_profile_of_an_image_is_one_broker() -> None:
    assert "--profile docker is one broker" in refused("--profile", "docker", "--brokers", "3")


def instruction(dockerfile: Path, name: str) -> str:
    """The words of an instruction, with the lines that it goes on in."""
    text = dockerfile.read_text().replace("\\\n", " ")
    (found,) = [line.partition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]
    return found


def test_what_the_dockerfile_starts_serves_and_passes_its_health_check(tmp_path: Path) -> None:
    """Without Docker, which the project's checks do not have: its words, with another port and folder."""
    dockerfile = Path(__file__).parents[2] / "Dockerfile"
    port = str(free_port())
    variable, _, url = instruction(dockerfile, "ENV").partition("=")
    entry: list[str] = json.loads(instruction(dockerfile, "ENTRYPOINT"))
    check: list[str] = json.loads(instruction(dockerfile, "HEALTHCHECK").partition("CMD ")[2])
    assert entry[:2] == START[2:4]
    assert entry[-1] in instruction(dockerfile, "VOLUME")
    words = [str(tmp_path) if word == entry[-1] else word for word in entry[2:]]
    health = [sys.executable, *(word.replace("8080", port) for word in check[1:])]
    assert subprocess.run(health, capture_output=True, timeout=200).returncode != 0
    variables = {variable: url.replace("8080", port), "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
    with started(*words, **variables) as (ready, said):
        assert ready, said
        subprocess.run(health, check=True, timeout=200)
