"""Client libraries log in, with right and wrong passwords, and are told what they may not do."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import forked
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

BrokerProcess: TypeAlias = Any  # of conftest.py
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="admin-secret" user_alice="alice-secret";'
)


@pytest.fixture(scope="module")
def guarded(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker whose clients log in. alice may use topics and groups that begin with `open`."""
    broker = make_broker(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"listener.name.plaintext.plain.sasl.jaas.config={JAAS}",
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
        "super.users=User:admin",
    )
    broker.config = tmp_path_factory.mktemp("client") / "client.properties"
    broker.config.write_text(properties("admin", "admin-secret"))
    for mechanism in MECHANISMS[1:]:
        ran(broker, "users", "add", "alice", "--mechanism", mechanism, stdin="alice-secret\n")
    for kind in ("topic", "group"):
        ran(broker, "acls", "add", "User:alice", "all", kind, "open", "--prefix")
    return broker


def properties(user: str, password: str, mechanism: str = "PLAIN") -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";\n'
    )


def ran(broker: BrokerProcess, *words: str, code: int = 0, stdin: str = "", config: Path | None = None) -> Any:
    told = str(config or broker.config)
    result = forked.barnabas(*words, code=code, given=stdin, BARNABAS_BOOTSTRAP=broker.bootstrap, BARNABAS_CONFIG=told)
    assert "-secret" not in result.stdout + result.stderr
    return result


def of_kafka_python(broker: BrokerProcess, mechanism: str, user: str = "alice", password: str = "alice-secret") -> Any:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def of_librdkafka(broker: BrokerProcess, mechanism: str, password: str = "alice-secret") -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 2,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(guarded: BrokerProcess, mechanism: str) -> None:
    settings = of_kafka_python(guarded, mechanism)
    topic = f"open-kafka-python-{mechanism.lower()}"
    producer = KafkaProducer(**settings)
    producer.send(topic, b"x").get(timeout=200)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, group_id=f"open-{topic}", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(consumer).value == b"x"
    consumer.close()
    admin = KafkaAdminClient(**settings)
    assert all(name.startswith("open") for name in admin.list_topics())
    with pytest.raises(KafkaError, match=r"(?i)authorization"):
        admin.create_topics([NewTopic("closed", 1, 1)])
    admin.close()
    with pytest.raises(KafkaError):
        KafkaAdminClient(**of_kafka_python(guarded, mechanism, password="wrong"), bootstrap_timeout_ms=1_000)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(guarded: BrokerProcess, mechanism: str) -> None:
    settings = of_librdkafka(guarded, mechanism)
    topic = f"open-librdkafka-{mechanism.lower()}"
    delivered: list[Any] = []
    producer = Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(200) == 0
    assert delivered == [None]
    consumer = Consumer(settings | {"group.id": f"open-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"x"
    wrong: list[Any] = []
    admin = AdminClient(of_librdkafka(guarded, mechanism, "wrong") | {"error_cb": wrong.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(1)
    assert any("AUTHENTICATION" in str(error.name()) for error in wrong)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(guarded: BrokerProcess, mechanism: str) -> None:
    settings = of_kafka_python(guarded, mechanism)
    topic = f"open-aiokafka-{mechanism.lower()}"

    async def story() -> bytes | None:
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait(topic, b"x")
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **settings, group_id=f"open-{topic}", auto_offset_reset="earliest")
        await consumer.start()
        message = await asyncio.wait_for(consumer.getone(), 20)
        await consumer.stop()
        with pytest.raises(AioKafkaError):
            await AIOKafkaProducer(**of_kafka_python(guarded, mechanism, password="wrong")).start()
        value: bytes | None = message.value
        return value

    assert asyncio.run(story()) == b"x"


def test_users_are_made_listed_and_removed(guarded: BrokerProcess, tmp_path: Path) -> None:
    told = ran(guarded, "users", "add", "bob", stdin="bob-secret\n").stdout
    assert told == "bob: can log in by SCRAM-SHA-256, SCRAM-SHA-512\n"
    rows = {row["user"]: row for row in json.loads(ran(guarded, "users", "list", "--json").stdout)}
    assert rows["bob"]["mechanisms"] == {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    config = tmp_path / "bob.properties"
    config.write_text(properties("bob", "bob-secret", "SCRAM-SHA-512"))
    ran(guarded, "topics", "list", config=config)
    ran(guarded, "users", "remove", "bob", "--mechanism", "SCRAM-SHA-512", "--yes")
    assert "password" in ran(guarded, "topics", "list", "--timeout", "5", config=config, code=1).stderr
    ran(guarded, "users", "remove", "bob", "--yes")
    ran(guarded, "users", "remove", "bob", "--yes", code=3)


def test_a_command_says_which_right_is_missing(guarded: BrokerProcess, tmp_path: Path) -> None:
    config = tmp_path / "alice.properties"
    config.write_text(properties("alice", "alice-secret"))
    told = ran(guarded, "topics", "create", "closed", config=config, code=1).stderr
    assert "barnabas acls add" in told


def test_a_command_without_a_login_says_what_to_set(guarded: BrokerProcess, tmp_path: Path) -> None:
    config = tmp_path / "none.properties"
    config.write_text("")
    told = ran(guarded, "topics", "list", "--timeout", "5", config=config, code=1).stderr
    assert "--command-config" in told


def test_a_command_says_which_right_is_missing_and_how_to_give_it(guarded: BrokerProcess, tmp_path: Path) -> None:
    own = tmp_path / "alice.properties"
    own.write_text(properties("alice", "alice-secret"))
    for words, right in (
        (("topics", "delete", "closed", "--yes"), "delete topic closed"),
        (("groups", "delete", "closed", "--yes"), "read|describe|delete group NAME"),  # to find its coordinator
        (("configs", "describe", "topic", "closed"), "describe-configs topic closed"),
        (("configs", "set", "broker", "0", "log.retention.ms=1"), "alter-configs cluster"),
        (("users", "list"), "describe cluster"),
        (("quotas", "set", "--user", "bob", "produce=1MB"), "alter-configs cluster"),
        (("acls", "list"), "describe cluster"),
        (("produce", "closed", "--value", "x"), "write topic closed"),
        (("consume", "closed", "--group", "my group", "--max", "1"), "read group 'my group'"),
        (("groups", "lag", "closed"), "describe-configs cluster"),  # which say where the HTTP API is
        (("offsets", "log", "closed"), "describe-configs cluster"),
        (("trace", "--kept"), "describe-configs cluster"),
    ):
        told = ran(guarded, *words, code=1, config=own).stderr
        assert f"a right is missing: barnabas acls add User:alice {right})" in told
    told = ran(guarded, "consume", "closed", "--max", "1", code=3, config=own).stderr
    assert "a right is missing: barnabas acls add User:alice read topic closed)" in told
    told = json.loads(ran(guarded, "doctor", "--json", config=own).stdout)
    untold = [check["check"] for check in told["checks"] if "describe-configs cluster" in str(check["not_made"])]
    assert {"open listeners", "disks", "retention"} <= set(untold)


def test_a_command_without_a_login_ends_long_before_its_time(guarded: BrokerProcess, tmp_path: Path) -> None:
    """kafka-python connects again and again."""
    (tmp_path / "none.properties").write_text("security.protocol=PLAINTEXT\n")
    told = ran(guarded, "topics", "list", "--timeout", "1000", code=1, config=tmp_path / "none.properties").stderr
    assert "wants its clients to log in (SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512)" in told


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [("GSSAPI", "GSSAPI: it is not built"), ("SCRAM-SHA-256", "does not have SCRAM-SHA-256")],
)
def test_a_start_is_refused_whose_brokers_could_not_log_in_to_each_other(
    mechanism: str, told: str, tmp_path: Path
) -> None:
    settings = (
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        f"listener.name.plaintext.plain.sasl.jaas.config={JAAS}",
        f"sasl.mechanism.inter.broker.protocol={mechanism}",
    )
    words = [word for each in settings for word in ("--set", each)]
    result = forked.barnabas("start", "--data", str(tmp_path / "data"), "--port", "0", *words, code=2)
    assert told in result.stderr
    assert not (tmp_path / "data").exists()
