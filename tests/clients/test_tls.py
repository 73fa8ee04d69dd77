"""Clients over TLS, as they are: each library, with a certificate or a password, right and wrong; the commands."""

import asyncio
import json
import os
import re
import ssl
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import urlopen

import forked
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from certificates import PASSWORD, Authority, Certificate
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from ports import free_port
from waiting import until_said

BrokerProcess: TypeAlias = Any  # of conftest.py
MECHANISMS = (None, "PLAIN", "SCRAM-SHA-512")
OF_KAFKA = ("SSL", "SASL_SSL")  # the listeners with TLS; each reads its files by itself
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="admin-secret" user_alice="alice-secret";'
)


class Secured:
    """A broker with a listener SSL that wants certificates, and a listener SASL_SSL that wants logins."""

    def __init__(self, make_broker: Callable[..., BrokerProcess], folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.keys = folder / "broker.p12"
        self.authority.sign("broker", days=100).write_pkcs12(self.keys)
        self.ca = self.authority.write_pem(folder / "ca.pem")
        self.ports = {name: free_port() for name in (*OF_KAFKA, "HTTPS")}
        kafka = [f"{name}://127.0.0.1:{self.ports[name]}" for name in OF_KAFKA]
        self.broker = make_broker(
            f"listeners=PLAINTEXT://127.0.0.1:0,{','.join(kafka)}",
            f"ssl.keystore.location={self.keys}",
            f"ssl.keystore.password={PASSWORD}",
            f"ssl.truststore.location={self.authority.write_jks(folder / 'trusted.jks')}",
            f"ssl.truststore.password={PASSWORD}",
            "ssl.client.auth=required",
            f"http.listeners=https://127.0.0.1:{self.ports['HTTPS']}",
            "http.token=planted-token",
            "ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/$1/",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={JAAS}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:admin",
        )
        self.alice = self.authority.sign("alice", organization="Acme").write_pem(folder / "alice.pem")
        self.admin = folder / "admin.properties"
        own = self.authority.sign("admin").write_pkcs12(folder / "admin.p12")
        trusted = self.authority.write_pkcs12(folder / "trusted.p12")
        self.admin.write_text(
            f"security.protocol=SSL\nssl.keystore.location={own}\nssl.keystore.password={PASSWORD}\n"
            f"ssl.truststore.location={trusted}\nssl.truststore.password={PASSWORD}\n"
        )

    def address(self, mechanism: str | None) -> str:
        return f"localhost:{self.ports['SSL' if mechanism is None else 'SASL_SSL']}"

    def renew(self, certificate: Certificate, wait_until: Callable[..., None]) -> None:
        """Put another certificate in the place of the broker's; return when all listeners have read it."""
        lines = [f"listener {name}: keys and certificates were read again" for name in OF_KAFKA]
        before = {line: self.broker.log.read_text().count(line) for line in lines}
        certificate.write_pkcs12(self.keys)
        for line, count in before.items():
            wait_until(lambda line=line, count=count: self.broker.log.read_text().count(line) > count)  # type: ignore[misc]

    def ran(self, *words: str, config: Path | None = None, code: int = 0, stdin: str = "", port: int = 0) -> Any:
        environment = {
            "BARNABAS_HTTP_TOKEN": "planted-token",
            "BARNABAS_BOOTSTRAP": f"127.0.0.1:{port or self.ports['SSL']}",
            "BARNABAS_CONFIG": str(config or self.admin),
        }
        done = forked.barnabas(*words, code=code, given=stdin, **environment)
        assert "-secret" not in done.stdout + done.stderr
        return done

    def of_kafka_python(self, mechanism: str | None, certificate: str | None = None, ca: str = "") -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.address(mechanism),
            "security_protocol": "SSL" if mechanism is None else "SASL_SSL",
            "ssl_cafile": ca or self.ca,
        }
        if mechanism is None:
            own = certificate or self.alice
            return settings | {"ssl_certfile": own, "ssl_keyfile": own}
        user = {"sasl_plain_username": "alice", "sasl_plain_password": "alice-secret"}
        return settings | {"sasl_mechanism": mechanism} | user

    def of_librdkafka(self, mechanism: str | None, certificate: str | None = None, ca: str = "") -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address(mechanism),
            "security.protocol": "ssl" if mechanism is None else "sasl_ssl",
            "ssl.ca.location": ca or self.ca,
            "log_level": 2,
        }
        if mechanism is None:
            own = certificate or self.alice
            return settings | {"ssl.certificate.location": own, "ssl.key.location": own}
        return settings | {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "alice-secret"}


@pytest.fixture(scope="module")
def secured(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> Secured:
    secured = Secured(make_broker, tmp_path_factory.mktemp("secured"))
    secured.ran("users", "add", "alice", "--mechanism", "SCRAM-SHA-512", stdin="alice-secret\n")
    for kind in ("topic", "group"):
        secured.ran("acls", "add", "User:alice", "all", kind, "open", "--prefix")
    return secured


def name_of(library: str, mechanism: str | None) -> str:
    return f"open-{library}-{mechanism or 'ssl'}".lower()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, mechanism: str | None) -> None:
    settings, topic = secured.of_kafka_python(mechanism), name_of("kafka-python", mechanism)
    producer = KafkaProducer(**settings)
    producer.send(topic, b"x" * 300_000).get(timeout=200)
    producer.close()
    consumer = KafkaConsumer(
        topic, **settings, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(consumer).value == b"x" * 300_000
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(secured: Secured, mechanism: str | None) -> None:
    settings, topic = secured.of_librdkafka(mechanism), name_of("librdkafka", mechanism)
    delivered: list[Any] = []
    producer = Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(200) == 0
    assert delivered == [None]
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"x"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Secured, mechanism: str | None) -> None:
    settings, topic = secured.of_kafka_python(mechanism), name_of("aiokafka", mechanism)
    context = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
    if mechanism is None:
        context.load_cert_chain(settings.pop("ssl_certfile"), settings.pop("ssl_keyfile"))

    async def story() -> bytes | None:
        producer = AIOKafkaProducer(**settings, ssl_context=context)
        await producer.start()
        await producer.send_and_wait(topic, b"x")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, **settings, ssl_context=context, group_id=topic, auto_offset_reset="earliest"
        )
        await consumer.start()
        message = await asyncio.wait_for(consumer.getone(), 20)
        await consumer.stop()
        value: bytes | None = message.value
        return value

    assert asyncio.run(story()) == b"x"


@pytest.mark.parametrize("what", ["expired", "foreign", "no-trust"])
def test_who_is_not_let_in(secured: Secured, what: str, tmp_path: Path) -> None:
    """An expired certificate, one of another authority, and a client that does not trust the broker."""
    own: Certificate = {
        "expired": secured.authority.sign("alice", days=-1),
        "foreign": Authority("foreign").sign("alice"),
        "no-trust": secured.authority.sign("alice"),
    }[what]
    pem = own.write_pem(tmp_path / "own.pem")
    ca = Authority("other").write_pem(tmp_path / "other.pem") if what == "no-trust" else ""
    with pytest.raises(KafkaError):
        KafkaAdminClient(**secured.of_kafka_python(None, pem, ca), bootstrap_timeout_ms=1_000)
    told: list[Any] = []
    admin = AdminClient(secured.of_librdkafka(None, pem, ca) | {"error_cb": told.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(1)
    assert any(error.name() in ("_SSL", "_ALL_BROKERS_DOWN", "_TRANSPORT") for error in told)
    context = ssl.create_default_context(cafile=ca or secured.ca)
    context.load_cert_chain(pem)

    async def story() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.address(None), security_protocol="SSL", ssl_context=context
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(story())


def test_a_renewed_certificate_needs_no_restart(secured: Secured, wait_until: Callable[..., None]) -> None:
    settings = secured.of_kafka_python(None)
    producer = KafkaProducer(**settings)
    producer.send("open-renewed", b"before").get(timeout=200)
    for foreign, setting in (
        (secured.authority.sign("another"), "ssl.allow.dn.changes"),
        (secured.authority.sign("broker", hosts=["localhost"]), "ssl.allow.san.changes"),
    ):
        foreign.write_pkcs12(secured.keys)
        until_said(setting, secured.broker.log)
    more = ("127.0.0.1", "localhost", "renewed.test")
    secured.renew(secured.authority.sign("broker", hosts=more, days=100), wait_until)
    context = ssl.create_default_context(cafile=secured.ca)
    context.load_cert_chain(secured.alice)
    import socket

    with (
        socket.create_connection(("127.0.0.1", secured.ports["SSL"])) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        shown = encrypted.getpeercert() or {}
    assert ("DNS", "renewed.test") in shown["subjectAltName"]
    producer.send("open-renewed", b"after").get(timeout=200)
    producer.close()


def test_commands_by_kafkas_own_file(secured: Secured, tmp_path: Path) -> None:
    """PKCS12 in the fixture; here PEM in one line, and a login over TLS."""
    config = tmp_path / "client.properties"
    authority = secured.authority.pem.replace("\n", "\\n\\\n")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    config.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.certificates={authority}\n"
        f'sasl.jaas.config={module} required username="alice" password="alice-secret";\n'
    )
    secured.ran("topics", "create", "open-commands", config=config, port=secured.ports["SASL_SSL"])
    listed = secured.ran("topics", "list", config=config, port=secured.ports["SASL_SSL"]).stdout
    assert "open-commands" in listed


def test_what_commands_say_when_there_is_no_tls(secured: Secured, tmp_path: Path) -> None:
    none, foreign, nobody = (tmp_path / name for name in ("none", "foreign", "nobody"))
    none.write_text("")
    told = secured.ran("topics", "list", config=none, code=1).stderr
    assert "speaks TLS. Say how with --command-config FILE" in told
    other = Authority("other").write_pem(tmp_path / "other.pem")
    foreign.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={other}\n")
    told = secured.ran("topics", "list", config=foreign, code=1).stderr
    assert "its certificate is refused" in told
    nobody.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={secured.ca}\n")
    told = secured.ran("topics", "list", config=nobody, code=1).stderr
    assert "it wants a certificate of this side (ssl.keystore)" in told
    plain = int(secured.broker.bootstrap.rpartition(":")[2])
    told = secured.ran("topics", "list", port=plain, code=1).stderr
    assert "there is no TLS with 127.0.0.1" in told
    nobody.write_text("security.protocol=SSL\nssl.truststore.location=/no/such\n")
    told = secured.ran("topics", "list", config=nobody, code=2).stderr
    assert "ssl.truststore.location=/no/such cannot be read" in told


def test_the_http_api_over_tls(secured: Secured, wait_until: Callable[..., None]) -> None:
    """The commands find it by themselves; it wants no certificate unless that is said for it."""
    told = secured.ran("status").stdout
    assert f"https://127.0.0.1:{secured.ports['HTTPS']}" in told
    secured.ran("groups", "lag", "open-nobody", code=3)
    context = ssl.create_default_context(cafile=secured.ca)
    with urlopen(f"https://localhost:{secured.ports['HTTPS']}/health", timeout=200, context=context) as answer:
        assert answer.status == 200
    with pytest.raises((OSError, HTTPException)):
        urlopen(f"http://localhost:{secured.ports['HTTPS']}/health", timeout=200)
    told = f"it speaks HTTP without TLS, and this port has TLS: ask https://127.0.0.1:{secured.ports['HTTPS']}"
    until_said(told, secured.broker.log)
    assert "planted-token" not in secured.broker.log.read_text()


def test_a_broker_serves_whose_http_api_is_not_trusted(secured: Secured, tmp_path: Path) -> None:
    """Once, `status` said that it did not answer. Who has no rights to ask where that API is, is told no more."""
    plain, nothing = int(secured.broker.bootstrap.rpartition(":")[2]), tmp_path / "nothing.properties"
    nothing.write_text("")
    assert "A broker serves" in secured.ran("status", config=nothing, port=plain).stdout
    secured.ran("acls", "add", "User:ANONYMOUS", "describe,describe-configs", "cluster")
    try:
        assert "A broker serves" in secured.ran("status", config=nothing, port=plain).stdout
        told = secured.ran("groups", "lag", "g", config=nothing, port=plain, code=1).stderr
        assert "is not trusted here" in told
        assert "--command-config" in told
        nothing.write_text(f"ssl.truststore.type=PEM\nssl.truststore.location={secured.ca}\n")  # as that says
        secured.ran("groups", "lag", "g", config=nothing, port=plain, code=3)
    finally:
        secured.ran("acls", "remove", "User:ANONYMOUS", "describe,describe-configs", "cluster", "--yes")


def test_doctor_sees_that_a_certificate_ends(secured: Secured, wait_until: Callable[..., None]) -> None:
    assert "certificates" not in str(doctor(secured))
    more = ("127.0.0.1", "localhost", "renewed.test")
    secured.renew(secured.authority.sign("broker", hosts=more, days=20), wait_until)
    [found] = doctor(secured)
    assert (found["check"], found["severity"]) == ("certificates", "warning")
    assert re.search(r"ends in (19 d 23 h|20 d)\b", found["what"])  # the latter within its first second
    assert all(listener in found["what"] for listener in OF_KAFKA), "also of those that the command does not use"


def doctor(secured: Secured) -> list[dict[str, Any]]:
    """What it finds of certificates and listeners."""
    done = forked.barnabas(
        *("doctor", "--json", "--bootstrap", secured.address(None)),
        BARNABAS_CONFIG=str(secured.admin),
        BARNABAS_HTTP_TOKEN="planted-token",
    )
    checks = ("certificates", "open listeners", "weak settings")
    return [row for row in json.loads(done.stdout)["findings"] if row["check"] in checks]


def test_nothing_shows_a_secret(secured: Secured) -> None:
    told = secured.ran("configs", "describe", "broker", "0", "--all").stdout
    assert "ssl.keystore.password" in told
    assert PASSWORD not in told
    assert PASSWORD not in secured.broker.log.read_text()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ["ssl.keystore.location=/no/such"],
            "listener SSL: ssl.keystore.location=/no/such cannot be read: No such file",
        ),
        (["ssl.keystore.location={keys}", "ssl.keystore.password=planted-secret"], "the password is wrong"),
        ([], "it has TLS, and no certificate: set ssl.keystore.location"),
    ],
)
def test_a_start_that_is_refused_says_why(secured: Secured, settings: list[str], told: str, tmp_path: Path) -> None:
    words = [word for each in settings for word in ("--set", each.format(keys=secured.keys))]
    done = forked.barnabas("start", "--data", str(tmp_path / "data"), *words, "--listeners", "SSL://127.0.0.1:0")
    assert done.returncode != 0
    assert told in done.stderr
    assert "planted-secret" not in done.stderr
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_a_pipe_in_the_place_of_a_key_store_stops_nobody(secured: Secured, wait_until: Callable[..., None]) -> None:
    """Whoever opens one waits for somebody who writes, and so would everybody who is served."""
    kept = Path(secured.keys).read_bytes()
    Path(secured.keys).unlink()
    os.mkfifo(secured.keys)
    until_said(f"ssl.keystore.location={secured.keys} cannot be read: ", secured.broker.log)
    secured.ran("topics", "list")
    Path(secured.keys).unlink()
    Path(secured.keys).write_bytes(kept)
