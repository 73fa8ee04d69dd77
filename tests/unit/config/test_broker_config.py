# ruff: noqa: E501

import pytest
from barnabas.config.broker import BrokerConfig, check_dynamic, problems
from barnabas.config.listeners import Endpoint
from barnabas.config.settings import ConfigError, address_limits
from barnabas.config.topic import TOPIC_SETTINGS, TopicConfig
from barnabas.protocol.errors import ErrorCode


def reasons(**values: str) -> list[str]:
    return [str(problem) for problem in problems({name.replace("_", "."): text for name, text in values.items()})]


def test_attributes_are_typed_values() -> None:
    config = BrokerConfig.of({"num.partitions": " 3 ", "auto.create.topics.enable": "False"})
    assert config.num_partitions == 3
    assert config.auto_create_topics_enable is False
    assert config.broker_rack is None
    assert config.log_cleanup_policy == ("delete",)
    assert config.log_cleaner_min_cleanable_ratio == 0.5
    assert config.offsets_topic_replication_factor == 1  # one broker is the default here


@pytest.mark.parametrize(
    ("values", "number"),
    [({}, 0), ({"node.id": "3"}, 3), ({"broker.id": "4"}, 4), ({"node.id": "5", "broker.id": "5"}, 5), ({"broker.id": "-1"}, 0)],
)  # fmt: skip
def test_node_id_and_broker_id_are_one(values: dict[str, str], number: int) -> None:
    config = BrokerConfig.of(values)
    assert (config.node_id, config.broker_id) == (number, number)


def test_everything_wrong_is_said_at_once() -> None:
    values = {"num.partitions": "0", "no.such": "1", "log.retention.ms": "x", "num.io.threads": "8"}
    assert [(problem.key, str(problem)) for problem in problems(values)] == [
        ("num.partitions", "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ("no.such", "Unknown configuration no.such"),
        ("log.retention.ms", "Invalid value x for configuration log.retention.ms: Not a number of type LONG"),
    ]
    with pytest.raises(ConfigError) as error:
        BrokerConfig.of(values)
    assert error.value.key == "num.partitions"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"node.id": "1", "broker.id": "2"}, "broker.id"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.retention.minutes": "0"}, "log.retention.ms"),
        ({"log.retention.hours": "0"}, "log.retention.ms"),
        ({"log.roll.ms": "0"}, "log.roll.ms"),
        ({"replica.fetch.wait.max.ms": "40000"}, "replica.fetch.wait.max.ms"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "group.max.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "1"}, "group.consumer.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "60001"}, "group.consumer.session.timeout.ms"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip"),
        ({"offsets.topic.compression.codec": "5"}, "offsets.topic.compression.codec"),
        ({"log.dirs": " , "}, "log.dirs"),
        ({"log.cleaner.dedupe.buffer.size": "100"}, "log.cleaner.dedupe.buffer.size"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "group.coordinator.rebalance.protocols"),
        ({"group.consumer.assignors": ""}, "group.consumer.assignors"),
        ({"process.roles": "controller"}, "process.roles"),
        ({"listeners": "nonsense"}, "listeners"),
        ({"listeners": "PLAINTEXT://:x"}, "listeners"),
        ({"listeners": "PLAINTEXT://:65536"}, "listeners"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "listeners"),
        ({"listeners": ""}, "listeners"),
        ({"listeners": "FOO://:9092"}, "listeners"),
        ({"listeners": "SSL://:9092"}, "ssl.keystore.location"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "listeners"),
        ({"listeners": "A://:1,B://:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}, "listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "advertised.listeners"),
        ({"listener.security.protocol.map": "FOO:BAR"}, "listener.security.protocol.map"),
        ({"listener.security.protocol.map": "FOO"}, "listener.security.protocol.map"),
        ({"inter.broker.listener.name": "FOO"}, "inter.broker.listener.name"),
        ({"inter.broker.listener.name": "SSL"}, "inter.broker.listener.name"),
        # Else brokers would speak to each other by a listener without TLS, say.
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "security.inter.broker.protocol",
        ),
        ({"port": "9092"}, "port"),
    ],
)  # fmt: skip
def test_rules_between_settings(values: dict[str, str], key: str) -> None:
    assert key in [problem.key for problem in problems(values)]


@pytest.mark.parametrize(
    "values",
    [
        {"log.retention.ms": "-1"},
        {"log.retention.ms": "1"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
        {"offsets.topic.compression.codec": "4"},
        {"listeners": "PLAINTEXT://[::1]:0"},
        {"listeners": "plaintext://0.0.0.0:65535"},
        {"listeners": "A://:0,B://:0", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"},
        {"group.consumer.migration.policy": "bidirectional"},
        {"group.consumer.assignors": "range,org.apache.kafka.coordinator.group.assignor.UniformAssignor"},
    ],
)
def test_what_is_allowed(values: dict[str, str]) -> None:
    assert list(problems(values)) == []


def test_endpoints() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "plaintext://h:9092,CONTROLLER://:9093,INSIDE://[::1]:9094",
            "advertised.listeners": "PLAINTEXT://a:1,CONTROLLER://a:2",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        }
    )
    assert config.endpoints == (Endpoint("PLAINTEXT", "h", 9092), Endpoint("INSIDE", "::1", 9094))
    assert config.advertised_endpoints == (Endpoint("PLAINTEXT", "a", 1),)
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://h:9092", "INSIDE://[::1]:9094"]
    assert BrokerConfig.of({}).advertised_endpoints == ()


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:x", ":5", "10.0.0.1:-5", "a:1,,b:2"])
def test_limits_of_addresses_are_refused_when_they_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides: .* is not address:number"):
        BrokerConfig.of({"max.connections.per.ip.overrides": text})


def test_limits_of_addresses() -> None:
    assert address_limits(BrokerConfig.of({}).max_connections_per_ip_overrides) == {}
    config = BrokerConfig.of({"max.connections.per.ip.overrides": "10.0.0.1:5, ::1:7"})
    assert address_limits(config.max_connections_per_ip_overrides) == {"10.0.0.1": 5, "0:0:0:0:0:0:0:1": 7}


def test_data_directories() -> None:
    assert BrokerConfig.of({}).data_directories == ("/tmp/kafka-logs",)
    assert BrokerConfig.of({"log.dir": "/a"}).data_directories == ("/a",)
    assert BrokerConfig.of({"log.dir": "/a", "log.dirs": "/b, /c"}).data_directories == ("/b", "/c")


# Dynamic settings


def test_dynamic_settings_by_strength() -> None:
    config = BrokerConfig.of({"message.max.bytes": "1000"})
    seen: list[frozenset[str]] = []
    config.on_change.append(seen.append)
    config.set_dynamic({"message.max.bytes": "2000", "log.retention.ms": "5"}, {})
    assert (config.message_max_bytes, config.log_retention_ms) == (2000, 5)
    config.set_dynamic({"message.max.bytes": "2000", "log.retention.ms": "5"}, {"message.max.bytes": "3000"})
    assert config.message_max_bytes == 3000
    config.set_dynamic({}, {"message.max.bytes": "3000"})
    assert config.log_retention_ms is None
    config.set_dynamic({}, {})
    assert config.message_max_bytes == 1000
    assert seen == [
        {"message.max.bytes", "log.retention.ms"},
        {"message.max.bytes"},
        {"log.retention.ms"},
        {"message.max.bytes"},
    ]


JAAS_OF_PLAIN = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    ("dynamic", "ignored"),
    [
        ({"sasl.enabled.mechanisms": "PLAIN"}, {"sasl.enabled.mechanisms"}),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, {"sasl.enabled.mechanisms"}),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256", JAAS_OF_PLAIN: "?"}, None),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS_OF_PLAIN: "?"}, {"sasl.enabled.mechanisms"}),
    ],
)
def test_dynamic_settings_that_contradict_others_are_left_out(
    dynamic: dict[str, str], ignored: set[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Another version has written them, say."""
    config = BrokerConfig.of({"listeners": "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    config.set_dynamic({"log.retention.ms": "5"}, dynamic)
    left_out = ignored or set()
    assert config.dynamic_broker == {name: text for name, text in dynamic.items() if name not in left_out}
    assert config.log_retention_ms == 5
    assert ("ignored dynamic configs " + ", ".join(left_out) in caplog.text) == bool(ignored)


def test_listeners_are_those_of_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody opens others, and by their names the broker would reach the others without encryption, or not at all."""
    config = BrokerConfig.of({"listeners": "PLAINTEXT://:1"})
    changed = {"listeners": "SSL://:2", "listener.security.protocol.map": "PLAINTEXT:SSL"}
    for name, text in changed.items():
        with pytest.raises(ConfigError, match=f"{name} counts at a start here") as refused:
            check_dynamic(config, {name: text}, cluster=False)
        assert refused.value.error is ErrorCode.INVALID_REQUEST
    check_dynamic(config, {"listeners": "PLAINTEXT://:1"}, cluster=False)
    config.set_dynamic({}, changed)
    assert config.listeners == "PLAINTEXT://:1"
    assert config.dynamic_broker == {}
    assert "ignored dynamic config listeners: it counts at a start here" in caplog.text


def test_nobody_is_called_when_nothing_changed() -> None:
    config = BrokerConfig.of({"message.max.bytes": "1000"})
    config.on_change.append(lambda names: pytest.fail(str(names)))
    config.set_dynamic({"message.max.bytes": " 1000"}, {})


def test_what_cannot_be_taken_from_the_tree_is_left_out() -> None:
    config = BrokerConfig.of({})
    config.set_dynamic(
        {"num.partitions": "5", "listeners": "PLAINTEXT://:1", "message.max.bytes": "x", "gone": "1", "min.insync.replicas": "2"},
        {},
    )  # fmt: skip
    assert config.num_partitions == 1
    assert config.listeners == "PLAINTEXT://:9092"
    assert config.dynamic_cluster == {"gone": "1", "min.insync.replicas": "2"}
    assert config.min_insync_replicas == 2


@pytest.mark.parametrize(
    ("changed", "cluster", "reason", "error"),
    [
        ({"broker.rack": "r"}, False, "Cannot update these configs dynamically: [broker.rack]", ErrorCode.INVALID_REQUEST),
        (
            {"ssl.keystore.location": "/k"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: [ssl.keystore.location]",
            ErrorCode.INVALID_REQUEST,
        ),
        (
            {"message.max.bytes": "x"},
            True,
            "Invalid value x for configuration message.max.bytes: Not a number of type INT",
            ErrorCode.INVALID_REQUEST,
        ),
        ({"listeners": "PLAINTEXT://:1"}, True, "Cannot update these configs at default cluster level, broker id must be specified: [listeners]", ErrorCode.INVALID_REQUEST),
        ({"leader.replication.throttled.rate": "-5"}, False, "Invalid value -5 for configuration leader.replication.throttled.rate: Value must be at least 0", ErrorCode.INVALID_REQUEST),
        ({"num.io.threads": "17"}, False, "Dynamic thread count update validation failed for num.io.threads=17, value should not be greater than double the current value 8", ErrorCode.INVALID_REQUEST),
        ({"num.io.threads": "3"}, False, "Dynamic thread count update validation failed for num.io.threads=3, value should be at least half the current value 8", ErrorCode.INVALID_REQUEST),
        ({"num.replica.fetchers": "0"}, False, "Dynamic thread count update validation failed for num.replica.fetchers=0, value should be at least 1", ErrorCode.INVALID_REQUEST),
        ({"log.retention.ms": "0"}, True, "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1", ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_dynamic_changes_are_checked(changed: dict[str, str], cluster: bool, reason: str, error: ErrorCode) -> None:
    with pytest.raises(ConfigError) as refused:
        check_dynamic(BrokerConfig.of({}), changed, cluster=cluster)
    assert str(refused.value) == reason
    assert refused.value.error == error


def test_good_dynamic_changes_pass_and_change_nothing() -> None:
    config = BrokerConfig.of({})
    check_dynamic(config, {"log.cleaner.threads": "2", "leader.replication.throttled.rate": "1"}, cluster=False)
    check_dynamic(config, {"message.max.bytes": "2000000", "of.a.plugin": "1"}, cluster=True)
    check_dynamic(config, {"num.io.threads": "16", "num.network.threads": "1"}, cluster=True)
    assert config.log_cleaner_threads == 1


# Topics


def test_a_topic_takes_the_brokers_settings_where_it_has_none() -> None:
    broker = BrokerConfig.of({"log.segment.bytes": "2097152", "log.retention.hours": "2", "log.roll.jitter.hours": "1"})
    topic = TopicConfig.of({"segment.ms": "7", "cleanup.policy": "compact,delete"}, broker)
    assert topic.segment_bytes == 2097152
    assert topic.retention_ms == 7_200_000
    assert topic.segment_jitter_ms == 3_600_000
    assert topic.segment_ms == 7
    assert topic.cleanup_policy == {"compact", "delete"}
    assert topic.flush_ms == 2**63 - 1
    assert topic.overrides == {"segment.ms": "7", "cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("values", "retention_ms"),
    [
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.ms": "5", "log.retention.minutes": "3"}, 5),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-7"}, -1),
        ({}, 604_800_000),
    ],
)
def test_retention_in_its_units(values: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig.of({}, BrokerConfig.of(values)).retention_ms == retention_ms


def test_a_dynamic_broker_setting_reaches_topics_made_anew() -> None:
    broker = BrokerConfig.of({})
    broker.set_dynamic({"log.retention.ms": "9"}, {})
    assert TopicConfig.of({}, broker).retention_ms == 9


def test_what_the_tree_holds_for_a_topic_never_stops_it() -> None:
    topic = TopicConfig.of({"no.such": "1", "segment.bytes": "x"}, BrokerConfig.of({}))
    assert topic.segment_bytes == 1 << 30


def test_tests_may_have_small_segments() -> None:
    topic = TopicConfig.of({"internal.segment.bytes": "100"}, BrokerConfig.of({}))
    assert topic.segment_bytes == 100


def test_topic_attributes_are_declared_for_every_setting_that_has_an_effect() -> None:
    if not TopicConfig.__annotations__:
        pytest.skip("a compiled class has none")
    declared = set(TopicConfig.__annotations__) - {"overrides"}
    assert declared == {setting.attribute for setting in TOPIC_SETTINGS.values() if setting.has_effect}


def test_the_offset_manager_has_the_settings_of_older_releases() -> None:
    of = BrokerConfig.of
    assert of({}).offsets_commit_required_acks == -1
    assert of({"offsets.commit.required.acks": "1"}).offsets_commit_required_acks == 1
    older = of({"offsets.topic.retention.minutes": "1440"})
    assert older.offsets_retention_minutes == 1440
    assert older.without_effect() == []
    both = {"offsets.topic.retention.minutes": "1440", "offsets.retention.minutes": "7"}
    assert of(both).offsets_retention_minutes == 7
    assert of({"offsets.topic.segment.bytes": "10485760"}).offsets_topic_segment_bytes == 10_485_760
    assert [problem.key for problem in problems({"offsets.topic.retention.minutes": "0"})] == [
        "offsets.topic.retention.minutes"
    ]


@pytest.mark.parametrize("name", ["offsets.topic.segment.bytes", "transaction.state.log.segment.bytes"])
def test_segments_of_internal_topics_are_as_large_as_topics_must_have_them(name: str) -> None:
    """Kafka 4.1 starts with less, and then never creates the topic: `segment.bytes` is at least 1 MiB (KIP-1030)."""
    assert list(problems({name: "1048576"})) == []
    assert [problem.key for problem in problems({name: "1048575"})] == [name]


@pytest.mark.parametrize("acks", ["-2", "2", "all"])
def test_acks_of_commits_are_minus_1_0_or_1(acks: str) -> None:
    with pytest.raises(ConfigError, match=r"offsets\.commit\.required\.acks"):
        BrokerConfig.of({"offsets.commit.required.acks": acks})


def test_a_password_that_kafka_has_encoded_is_not_taken_for_one(caplog: pytest.LogCaptureFixture) -> None:
    """In a tree that comes from Kafka 3.9. What the file says stays."""
    name = "listener.name.plaintext.ssl.keystore.password"
    encoded = (
        "initializationVector:3yW+5ckRxoCD2lEMqKe1sA==,keyLength:128,salt:8HgL2h6R,keyFactoryAlgorithm:"
        "PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:13,"
        "encryptedPassword:yTGhu2ngYy6IjTO5/ra7PQ=="
    )
    config = BrokerConfig.of({name: "of-the-file"})
    config.set_dynamic({}, {name: encoded})
    assert config.text(name) == "of-the-file"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"ignored dynamic config {name}: Kafka has encoded it with password.encoder.secret")
    assert "yTGhu2" not in line
