"""`barnabas groups explain`, after real members have come and gone."""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import forked
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import NewTopic

pytestmark = [
    pytest.mark.skipif("CLIENTS_BROKER_COMMAND" in os.environ, reason="Apache Kafka cannot explain"),
]


class Consumer:
    """A consumer that polls in a thread, until it is closed."""

    def __init__(self, broker: Any, name: str, client_id: str) -> None:
        self._settings = {
            "bootstrap_servers": broker.bootstrap,
            "group_id": name,
            "client_id": client_id,
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 10_000,
        }
        self._topic = name
        self.partitions = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = KafkaConsumer(self._topic, **self._settings)
        while not self._stop.is_set():
            consumer.poll(timeout_ms=200)
            self.partitions = len(consumer.assignment())
        consumer.close()

    def close(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(200)


def explain(broker: Any, name: str, *words: str) -> str:
    done = forked.run(
        [
            sys.executable,
            "-m",
            "barnabas.cli.main",
            "groups",
            "explain",
            name,
            *words,
            "--bootstrap",
            broker.bootstrap,
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_rolling_restart_is_explained(broker: Any, name: str, wait_until: Callable[..., None]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic(name, 4, 1)])
    admin.close()
    members = {client_id: Consumer(broker, name, client_id) for client_id in ("one", "two")}
    try:
        wait_until(lambda: all(one.partitions == 2 for one in members.values()))
        for client_id in members:
            members[client_id].close()
            members[client_id] = Consumer(broker, name, client_id)
            wait_until(lambda: all(one.partitions == 2 for one in members.values()))
        story = json.loads(explain(broker, name, "--json", "--last", "20"))
        assert "rolling restart without static ids" in [row["cause"] for row in story["advice"]]
        kinds = [
            (event["kind"], event["member"]["client_id"]) for one in story["rebalances"] for event in one["events"]
        ]
        assert [who for kind, who in kinds if kind == "left"] == ["one", "two"]
        assert [who for kind, who in kinds if kind == "joined"][-2:] == ["one", "two"]
        last = story["rebalances"][-1]
        assert (last["outcome"], last["members"], last["protocol"]) == ("stable", 2, "range")
        assert last["moved_count"]
        assert last["moved"][0]["topic"] == name
        assert last["moved"][0]["before"]["client_id"] in ("one", "two")
        assert last["join_ms"] is not None
        assert last["last_to_join"]["client_id"] in ("one", "two")
        text = explain(broker, name)
        assert "one at 127.0.0.1 left" in text
        assert f"moved {name}-" in text
        assert "Give every member a group.instance.id" in text
    finally:
        for one in members.values():
            one.close()


def test_a_group_without_a_story(broker: Any, name: str) -> None:
    where = ["--bootstrap", broker.bootstrap]
    forked.barnabas("topics", "create", name, *where, code=0)
    forked.barnabas("offsets", "set", name, "--topic", name, "--to", "0", "--yes", *where, code=0)
    assert json.loads(explain(broker, name, "--json"))["rebalances"] == []
    forked.barnabas("groups", "explain", f"{name}-unknown", *where, code=3)
