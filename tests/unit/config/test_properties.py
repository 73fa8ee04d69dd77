from pathlib import Path

import pytest
from barnabas import config as config_package
from barnabas.config import describe, profiles
from barnabas.config.broker import BrokerConfig
from barnabas.config.properties import PropertiesError, complaints, notes, read
from barnabas.config.settings import ConfigError

# The keys of the files that Kafka ships, with the settings people usually change.
KRAFT = """\
# a combined node
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/data
num.partitions=2
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
ZOOKEEPER = """\
broker.id=2
listeners=PLAINTEXT://:9092
num.network.threads=3
num.io.threads=8
log.dirs=/var/lib/data
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
inter.broker.protocol.version=3.9
log.message.format.version=3.0
metric.reporters=
confluent.support.metrics.enable=false
"""


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t\f1", {"a": "1"}),
        ("  a  :  1  ", {"a": "1  "}),
        ("a==1", {"a": "=1"}),
        ("a = = 1", {"a": "= 1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("# a=1\n! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=1\\\n   2,\\\n\t3", {"a": "12,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("a=\\t\\n\\r\\f\\\\\\q\\u00fC", {"a": "\t\n\r\f\\qü"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=C:\\\\dir", {"a": "C:\\dir"}),
        ("a=1\na=2", {"a": "2"}),
        ("\ufeff# no key\na=1", {"a": "1"}),
        ("\ufeffa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_java_syntax(text: str, values: dict[str, str]) -> None:
    assert read(text).values == values


def test_lines_are_those_where_a_setting_begins() -> None:
    assert read("# one\na=1\\\n  2\n\nb=3\na=4").lines == {"a": 6, "b": 5}
    assert read("\n\na=1\\\n2").lines == {"a": 3}


@pytest.mark.parametrize("text", ["\n\na=\\u12", "x=1\n\na=\\u12g4", "\n\n\\uzzzz=1", "\n\na=\\u+123"])
def test_a_broken_escape_names_its_line(text: str) -> None:
    with pytest.raises(PropertiesError, match="line 3"):
        read(text)


def test_everything_wrong_is_named_with_file_and_line() -> None:
    file = read("# mine\nnum.partitions=0\n\nno.such.key=1\nnode.id=x\n")
    assert complaints("my.properties", file) == [
        "my.properties:2: Invalid value 0 for configuration num.partitions: Value must be at least 1",
        "my.properties:4: Unknown configuration no.such.key",
        "my.properties:5: Invalid value x for configuration node.id: Not a number of type INT",
    ]


def test_rules_between_settings_are_named_too() -> None:
    assert complaints("f", read("listeners=PLAINTEXT://:1\nlog.retention.minutes=0")) == [
        "f: log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    ]
    assert complaints("f", read("num.partitions=2\nlisteners=FOO://:1"))[0].startswith("f:2: ")


def test_a_file_of_a_kraft_node_loads() -> None:
    file = read(KRAFT)
    assert complaints("kraft", file) == []
    config = BrokerConfig.of(file.values)
    assert (config.node_id, config.broker_id, config.num_partitions) == (1, 1, 2)
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_endpoints] == ["PLAINTEXT://localhost:9092"]
    said = notes("kraft", file)
    assert "kraft:4: controller.quorum.bootstrap.servers has no effect: there is no KRaft quorum here" in said
    assert "kraft:10: num.network.threads has no effect: a broker is one process with one thread" in said
    assert "kraft:5: listener CONTROLLER is ignored: controllers need none here" in said
    assert not any(" num.partitions " in note or " node.id " in note for note in said)


def test_a_file_of_a_broker_with_zookeeper_loads() -> None:
    file = read(ZOOKEEPER.replace("confluent.support.metrics.enable=false\n", ""))
    assert complaints("old", file) == []
    assert BrokerConfig.of(file.values).node_id == 2
    said = notes("old", file)
    for line in (
        "old:9: inter.broker.protocol.version has no effect here",
        "old:11: metric.reporters has no effect: metrics are not reported that way",
    ):
        assert line in said
    assert not any("broker.id" in note or "zookeeper" in note for note in said)


def test_a_key_that_is_not_kafkas_is_refused() -> None:
    assert complaints("old", read(ZOOKEEPER)) == ["old:12: Unknown configuration confluent.support.metrics.enable"]


def test_a_number_that_no_broker_can_have_is_told_at_its_line() -> None:
    (complaint,) = complaints("f", read("num.partitions=1\nbroker.id=-2"))
    assert complaint == "f:2: Invalid value -2 for configuration node.id: Value must be at least 0"


def test_what_is_not_text_is_told_on_one_printable_line() -> None:
    (complaint,) = complaints("f", read("\x1b[31mkey\x85\u2028=" + "v" * 10_000))
    assert complaint == "f:1: Unknown configuration \\x1b[31mkey\\x85\\u2028"
    (complaint,) = complaints("f", read("node.id=" + "v" * 10_000))
    assert len(complaint) < 600


def test_the_shipped_file_is_good_and_says_nothing_idle() -> None:
    file = read((Path(config_package.__file__).parent / "server.properties").read_text())
    assert complaints("server.properties", file) == []
    assert notes("server.properties", file) == []


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("listener.name.internal.ssl.client.auth=required", "listeners names no such listener"),
        ("listener.name.SASL_SSL.ssl.client.auth=required", "here it is written in small letters"),
        ("listener.name.sasl_ssl.sasl.jaas.config=x", "it is written listener.name.NAME.MECHANISM.sasl.jaas.config"),
        ("sasl.jaas.config=x", "it is written listener.name.NAME.MECHANISM.sasl.jaas.config"),
        (
            "listener.name.sasl_ssl.plan.sasl.jaas.config=x",
            "it is written listener.name.NAME.MECHANISM.sasl.jaas.config",
        ),
        (
            "listener.name.sasl_ssl.PLAIN.sasl.jaas.config=x",
            "it is written listener.name.NAME.MECHANISM.sasl.jaas.config",
        ),
        ("ssl.clientt.auth=required", "there is no such setting"),
        ("listener.name.sasl_ssl.ssl.clientt.auth=required", "there is no such setting"),
        ("ssl.provider=x", "OpenSSL and Python do this, not Java"),
        ("super.users=User:a,User:b", "nobody is called User:a,User:b: each begins with User:, and semicolons"),
        ("super.users=user:a;User:b", "nobody is called user:a: each begins with User:"),
    ],
)
def test_a_typing_mistake_about_security_is_told_of(line: str, note: str) -> None:
    listener = (
        "listeners=SASL_SSL://127.0.0.1:9092\nssl.keystore.location=/keys\nsasl.enabled.mechanisms=SCRAM-SHA-512\n"
    )
    [found] = notes("server.properties", read(listener + line))
    assert found.startswith("server.properties:4: ")
    assert note in found


@pytest.mark.parametrize(
    "line",
    [
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=ScramLoginModule",
        "listener.name.sasl_ssl.oauthbearer.sasl.oauthbearer.expected.issuer=x",
        "listener.name.sasl_ssl.ssl.client.auth=none",
        "listener.name.https.ssl.client.auth=none",
        "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms=1000",
        "super.users=User:CN=a,O=b;User:c",
    ],
)
def test_a_setting_that_counts_is_not_told_of(line: str) -> None:
    listener = "listeners=SASL_SSL://127.0.0.1:9092\nssl.keystore.location=/keys\nsasl.enabled.mechanisms=OAUTHBEARER\n"
    file = read(listener + "sasl.oauthbearer.jwks.endpoint.url=file:///keys\n" + line)
    assert notes("server.properties", file) == []


def test_the_shipped_file_leaves_topics_their_defaults() -> None:
    """Otherwise Kafka's topics tool shows every topic as one with settings of its own."""
    file = read((Path(config_package.__file__).parent / "server.properties").read_text())
    rows = describe.topic_rows({}, BrokerConfig.of(file.values))
    assert {row.name for row in rows if row.config_source is not describe.ConfigSource.DEFAULT} == set()


# Profiles


def test_the_profile_for_tests_makes_a_good_config() -> None:
    config = BrokerConfig.of(profiles.profile("ci").settings)
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.offsets_topic_num_partitions == 1
    assert config.without_effect() == []


def test_a_profile_says_what_it_changes() -> None:
    values = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "7"}
    changes = profiles.changes(profiles.profile("ci"), values)
    assert "group.initial.rebalance.delay.ms" not in changes
    assert changes["offsets.topic.num.partitions"] == "1"
    assert changes["log.retention.check.interval.ms"] == "1000"


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown profile prod: the profiles are ci"):
        profiles.profile("prod")


def test_a_key_that_stands_twice_is_noted_with_both_lines() -> None:
    file = read("num.partitions=3\n\nnum.partitions=4\n")
    assert notes("f", file) == ["f:1: num.partitions has no effect: line 3 says it again"]


def test_a_setting_that_is_nearly_written_right_is_named() -> None:
    (complaint,) = complaints("f", read("num.partitons=3\n"))
    assert complaint == "f:1: Unknown configuration num.partitons: did you mean num.partitions?"
