"""DescribeConfigs rows against what Kafka 4.3.1 answered (tests/golden/kafka-4.3.1/configs.jsonl)."""

import json
from pathlib import Path
from typing import Any

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.config.describe import (
    ConfigRow,
    ConfigSource,
    broker_rows,
    client_metrics_rows,
    cluster_rows,
    group_rows,
    topic_rows,
)
from barnabas.config.jaas import ZOOKEEPER_MODULE
from barnabas.config.settings import Type

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.1" / "configs.jsonl"
SOURCES = {source.name: source for source in ConfigSource}
# Settings of the file of the run that was asked; their values are not in the golden data.
FILE = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "log.dirs": "/d",
    "offsets.topic.replication.factor": "1",
    "default.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# Kafka turns eligible leader replicas on in new clusters, and then sets this for the whole cluster by itself.
OF_ELIGIBLE_LEADER_REPLICAS = "min.insync.replicas"
# What they would change is not built, so they are refused while a broker runs.
NOT_DYNAMIC_HERE = {"config.providers", "cordoned.log.dirs"}
# Kafka's default is 3; there, a broker alone cannot make these topics unless told otherwise. The backlog is 50 there.
OTHER_DEFAULTS = {
    "socket.listen.backlog.size",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
}


def golden(resource: str) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, GOLDEN.read_text().splitlines())
    return {row["name"]: row for row in rows if row["of"] == resource}


def ours(resource: str) -> dict[str, ConfigRow]:
    config = BrokerConfig.of(FILE)
    rows = {"broker": broker_rows(config), "topic": topic_rows({}, config), "group": group_rows({}, config)}
    return {row.name: row for row in rows[resource]}


@pytest.mark.parametrize("resource", ["broker", "topic", "group"])
def test_rows_equal_kafkas(resource: str) -> None:
    expected, found = golden(resource), ours(resource)
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        mine = found[name]
        assert Type(mine.config_type).name == row["type"], name
        assert mine.is_sensitive == row["sensitive"], name
        assert mine.read_only == (row["read_only"] or name in NOT_DYNAMIC_HERE), name
        if row["value"] is not None and name != "socket.listen.backlog.size":
            assert mine.value == row["value"], name
        if name == OF_ELIGIBLE_LEADER_REPLICAS:
            continue
        assert mine.config_source == SOURCES[row["source"]], name
        names = [(synonym[0], SOURCES[synonym[2]]) for synonym in row["synonyms"]]
        assert [(synonym[0], synonym[2]) for synonym in mine.synonyms] == names, name
        if name not in OTHER_DEFAULTS:
            for synonym, theirs in zip(mine.synonyms, row["synonyms"], strict=True):
                assert theirs[1] in (None, synonym[1]), name


def one(rows: list[ConfigRow]) -> ConfigRow:
    assert len(rows) == 1
    return rows[0]


def sources(row: ConfigRow) -> list[tuple[str, str | None, int]]:
    return [(name, value, int(source)) for name, value, source in row.synonyms]


def test_a_topics_own_value_stands_before_the_brokers() -> None:
    config = BrokerConfig.of({"log.retention.ms": "-1"})
    row = one(topic_rows({"segment.bytes": "1048576"}, config, ["segment.bytes"]))
    assert (row.value, row.config_source) == ("1048576", ConfigSource.TOPIC)
    assert sources(row) == [("segment.bytes", "1048576", 1), ("log.segment.bytes", "1073741824", 5)]
    row = one(topic_rows({}, config, ["retention.ms", "no.such"]))
    assert (row.value, row.config_source) == ("-1", ConfigSource.STATIC_BROKER)
    assert sources(row) == [("log.retention.ms", "-1", 4), ("log.retention.hours", "168", 5)]


def test_a_brokers_value_at_every_level() -> None:
    config = BrokerConfig.of({"message.max.bytes": "4"})
    config.set_dynamic({"message.max.bytes": "3"}, {"message.max.bytes": "2"})
    row = one(broker_rows(config, ["message.max.bytes"]))
    assert row.value == "2"
    assert sources(row) == [
        ("message.max.bytes", "2", 2),
        ("message.max.bytes", "3", 3),
        ("message.max.bytes", "4", 4),
        ("message.max.bytes", "1048588", 5),
    ]
    topic = one(topic_rows({"max.message.bytes": "1"}, config, ["max.message.bytes"]))
    assert [(name, source) for name, _, source in topic.synonyms] == [
        ("max.message.bytes", 1), ("message.max.bytes", 2), ("message.max.bytes", 3), ("message.max.bytes", 4),
        ("message.max.bytes", 5),
    ]  # fmt: skip


def test_hours_stand_behind_milliseconds_but_not_before_them() -> None:
    config = BrokerConfig.of({"log.retention.hours": "2"})
    assert one(broker_rows(config, ["log.retention.ms"])).synonyms == ()
    row = one(topic_rows({}, config, ["retention.ms"]))
    assert (row.value, row.config_source, row.synonyms) == ("7200000", ConfigSource.DEFAULT, ())


def test_passwords_and_unknown_names_are_never_shown() -> None:
    config = BrokerConfig.of(
        {
            "ssl.keystore.password": "secret",
            "super.users": "User:admin",
            "listener.name.sasl.plain.sasl.jaas.config": "secret",
            "zookeeper.sasl.jaas.config": f'{ZOOKEEPER_MODULE} required username="u" password="secret";',
            "listener.name.inside.ssl.keystore.type": "PEM",
        }
    )
    rows = {row.name: row for row in broker_rows(config)}
    for name, type_number in (
        ("ssl.keystore.password", Type.PASSWORD),
        ("super.users", 0),
        ("listener.name.sasl.plain.sasl.jaas.config", Type.PASSWORD),
        ("zookeeper.sasl.jaas.config", Type.PASSWORD),
    ):
        row = rows[name]
        assert (row.value, row.is_sensitive, row.config_type) == (None, True, type_number)
        assert row.synonyms[0] == (name, None, ConfigSource.STATIC_BROKER)
    of_listener = rows["listener.name.inside.ssl.keystore.type"]
    assert (of_listener.value, of_listener.read_only) == ("PEM", True)
    assert sources(of_listener) == [
        ("listener.name.inside.ssl.keystore.type", "PEM", 4),
        ("ssl.keystore.type", "JKS", 5),
    ]


def test_own_settings_are_listed_when_they_are_set() -> None:
    assert "offsets.storage" not in {row.name for row in broker_rows(BrokerConfig.of({}))}
    row = one(broker_rows(BrokerConfig.of({"offsets.storage": "zookeeper"}), ["offsets.storage"]))
    assert row.value == "zookeeper"


def test_settings_that_exist_only_while_running() -> None:
    config = BrokerConfig.of({})
    config.set_dynamic({"of.a.plugin": "x"}, {"leader.replication.throttled.rate": "5"})
    row = one(broker_rows(config, ["leader.replication.throttled.rate"]))
    assert (row.value, row.read_only, sources(row)) == ("5", True, [("leader.replication.throttled.rate", "5", 2)])
    assert one(cluster_rows(config)).is_sensitive


def test_a_hidden_topic_setting_is_listed_when_it_is_set() -> None:
    row = one(topic_rows({"internal.segment.bytes": "100"}, BrokerConfig.of({}), ["internal.segment.bytes"]))
    assert sources(row) == [("internal.segment.bytes", "100", 1)]


def test_the_default_of_all_brokers_lists_what_is_set() -> None:
    config = BrokerConfig.of({"message.max.bytes": "4"})
    assert cluster_rows(config) == []
    config.set_dynamic({"message.max.bytes": "3"}, {"message.max.bytes": "2"})
    row = one(cluster_rows(config))
    assert (row.name, row.value, row.config_source, row.read_only) == ("message.max.bytes", "3", 3, False)
    assert sources(row) == [("message.max.bytes", "3", 3)]
    assert cluster_rows(config, ["log.retention.ms"]) == []


def test_groups_and_client_metrics() -> None:
    config = BrokerConfig.of({"group.consumer.session.timeout.ms": "50000"})
    rows = {row.name: row for row in group_rows({"consumer.heartbeat.interval.ms": "6000"}, config)}
    assert rows["consumer.session.timeout.ms"].value == "50000"
    own = rows["consumer.heartbeat.interval.ms"]
    assert (own.value, own.config_source) == ("6000", ConfigSource.GROUP)
    assert sources(own) == [
        ("consumer.heartbeat.interval.ms", "6000", 8),
        ("group.consumer.heartbeat.interval.ms", "5000", 5),
    ]
    assert sources(rows["consumer.session.timeout.ms"]) == [
        ("group.consumer.session.timeout.ms", "50000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    metrics = {
        row.name: (row.value, row.config_type, row.config_source) for row in client_metrics_rows({"match": "a=b"})
    }
    assert metrics == {
        "interval.ms": ("300000", Type.INT, ConfigSource.DEFAULT),
        "match": ("a=b", Type.LIST, ConfigSource.CLIENT_METRICS),
        "metrics": ("", Type.LIST, ConfigSource.DEFAULT),
    }
