"""`barnabas offsets migrate`: offsets of old consumers go from the tree into the topic, and are compared."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import forked
import pytest
from barnabas.cli.shared.kafka_python import send
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(broker: Any) -> Run:
    """Runs `barnabas offsets migrate` to its end against the broker."""

    def run_command(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return forked.barnabas("offsets", "migrate", *words, code=code, BARNABAS_BOOTSTRAP=broker.bootstrap)

    return run_command


@pytest.fixture
def client(broker: Any) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield admin
    admin.close()


def commit_in_tree(client: Any, group: str, topic: str, offsets: dict[int, int]) -> None:
    """As a client of 0.8 does: OffsetCommit version 0."""
    make = OffsetCommitRequest.OffsetCommitRequestTopic
    rows = [
        make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    request = OffsetCommitRequest(group_id=group, topics=[make(name=topic, partitions=rows)], max_version=0)
    answer = send(client, request)
    assert [row.error_code for row in answer.topics[0].partitions] == [0] * len(offsets)


def in_topic(client: Any, group: str) -> dict[int, int]:
    found = client.list_group_offsets(group)[group]
    return {partition.partition: row.offset for partition, row in found.items() if row.offset >= 0}


def test_the_offsets_of_a_group_are_migrated_and_compared(run: Run, client: Any) -> None:
    client.create_topics([NewTopic("moved", 4, 1)])
    commit_in_tree(client, "old", "moved", {0: 10, 1: 20, 2: 30})
    client.alter_group_offsets(
        "old",
        {
            TopicPartition("moved", 1): OffsetAndMetadata(25, "newer", -1),
            TopicPartition("moved", 2): OffsetAndMetadata(29, "", -1),
        },
    )
    options = ("--from", "zookeeper", "--group", "old")

    done = run(*options, "--dry-run")
    assert "3 offsets in the tree, 2 to be committed. Nothing was changed" in done.stderr
    assert in_topic(client, "old") == {1: 25, 2: 29}

    told = json.loads(run(*options, "--yes", "--json").stdout)
    assert {key: told[key] for key in ("found", "committed", "kept", "compared_equal")} == {
        "found": 3,
        "committed": 2,
        "kept": 1,
        "compared_equal": 3,
    }
    assert [row["result"] for row in told["partitions"]] == ["committed", "kept, because it is larger", "committed"]
    assert in_topic(client, "old") == {0: 10, 1: 25, 2: 30}

    again = run(*options, "--yes")
    assert "0 committed, 3 kept; read again, 3 of 3 as they should be." in again.stderr


def test_a_group_without_offsets_in_the_tree_is_told(run: Run) -> None:
    done = run("--from", "zookeeper", "--group", "nobody", "--yes", code=3)
    assert "nobody has no offsets in the tree" in done.stderr


def test_a_living_group_is_refused(run: Run, client: Any, broker: Any) -> None:
    client.create_topics([NewTopic("living", 1, 1)])
    commit_in_tree(client, "alive", "living", {0: 10})
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="alive", enable_auto_commit=False)
    consumer.partitions_for_topic("living")  # else kafka-python joins before it knows the topic, and once more after it
    consumer.subscribe(["living"])
    try:
        while not consumer.assignment():
            consumer.poll(1000)
        done = run("--from", "zookeeper", "--group", "alive", "--yes", code=1)
        assert "alive has 1 member," in done.stderr
        assert in_topic(client, "alive") == {}
    finally:
        consumer.close()


def test_only_zookeeper_can_be_migrated_from(run: Run) -> None:
    done = run("--from", "kafka", "--group", "g", code=2)
    assert "--from wants zookeeper" in done.stderr
