"""Client libraries and commands log in with tokens: right ones, wrong ones, and some that end in mid-stream."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import forked
import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as TokenProviderOfAiokafka
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from tokens import Issuer
from waiting import until_said

BrokerProcess: TypeAlias = Any  # of conftest.py
ISSUER, FOREIGN = Issuer(), Issuer(name="https://foreign.test")
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
AUDIENCE = {"aud": "kafka"}


class Provider(AbstractTokenProvider, TokenProviderOfAiokafka):  # type: ignore[misc]
    """Tokens for kafka-python."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()


class AsyncProvider(TokenProviderOfAiokafka):  # type: ignore[misc]
    """Tokens for aiokafka."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


@pytest.fixture(scope="module")
def guarded(make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker that takes tokens of the issuer for kafka."""
    folder = tmp_path_factory.mktemp("oauth")
    broker = make_broker(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"sasl.oauthbearer.jwks.endpoint.url={ISSUER.write_keys(folder / 'keys.json')}",
        "sasl.oauthbearer.expected.audience=kafka",
        f"sasl.oauthbearer.expected.issuer={ISSUER.name}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:alice",
    )
    broker.folder = folder
    return broker


def good() -> str:
    return ISSUER.token(**AUDIENCE)


WRONG = {
    "expired": lambda: ISSUER.token(lifetime_s=-100, iat=1, **AUDIENCE),
    "signature": lambda: ISSUER.token(key=FOREIGN.key, **AUDIENCE),
    "audience": lambda: ISSUER.token(aud="others"),
    "issuer": lambda: ISSUER.token(iss=FOREIGN.name, **AUDIENCE),
    "none": lambda: jwt.encode(
        {"sub": "alice", "iat": 1, "exp": time.time() + 100, **AUDIENCE}, None, algorithm="none"
    ),
}


def of_kafka_python(broker: BrokerProcess, token: Callable[[], str], kind: type = Provider) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": kind(token),
    }


def of_librdkafka(broker: BrokerProcess, token: Callable[[], str], lifetime_s: float = 3600) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(), time.time() + lifetime_s),
        "log_level": 2,
    }


def test_kafka_python(guarded: BrokerProcess) -> None:
    settings = of_kafka_python(guarded, good)
    producer = KafkaProducer(**settings)
    producer.send("of-kafka-python", b"x").get(timeout=200)
    producer.close()
    consumer = KafkaConsumer(
        "of-kafka-python", **settings, group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(consumer).value == b"x"
    consumer.close()


def test_librdkafka(guarded: BrokerProcess) -> None:
    settings = of_librdkafka(guarded, good)
    delivered: list[Any] = []
    producer = Producer(settings)
    producer.produce("of-librdkafka", b"x", on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(200) == 0
    assert delivered == [None]
    consumer = Consumer(settings | {"group.id": "h", "auto.offset.reset": "earliest"})
    consumer.subscribe(["of-librdkafka"])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"x"


def test_aiokafka(guarded: BrokerProcess) -> None:
    settings = of_kafka_python(guarded, good, AsyncProvider)

    async def story() -> bytes | None:
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait("of-aiokafka", b"x")
        await producer.stop()
        consumer = AIOKafkaConsumer("of-aiokafka", **settings, group_id="i", auto_offset_reset="earliest")
        await consumer.start()
        message = await asyncio.wait_for(consumer.getone(), 20)
        await consumer.stop()
        value: bytes | None = message.value
        return value

    assert asyncio.run(story()) == b"x"


@pytest.mark.parametrize("what", sorted(WRONG))
def test_who_is_not_let_in(guarded: BrokerProcess, what: str, wait_until: Callable[..., None]) -> None:
    token = WRONG[what]
    with pytest.raises(KafkaError):
        KafkaAdminClient(**of_kafka_python(guarded, token), bootstrap_timeout_ms=1_000)

    async def of_aiokafka() -> None:
        producer = AIOKafkaProducer(**of_kafka_python(guarded, token, AsyncProvider))
        with pytest.raises(AioKafkaError):
            await producer.start()
        await producer.stop()

    asyncio.run(of_aiokafka())
    wrong: list[Any] = []
    admin = AdminClient(of_librdkafka(guarded, token) | {"error_cb": wrong.append})
    wait_until(lambda: admin.poll(0.1) or any("AUTHENTICATION" in str(error.name()) for error in wrong))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    assert token() not in guarded.log.read_text()


def test_tokens_that_end_in_mid_stream(guarded: BrokerProcess) -> None:
    """librdkafka asks for the next one in time, and logs in again: no record is lost, and each connection goes on."""
    given: list[str] = []

    def short() -> str:
        given.append(ISSUER.token(lifetime_s=3, **AUDIENCE))
        return given[-1]

    delivered: list[Any] = []
    producer = Producer(of_librdkafka(guarded, short, 3))
    ends = time.monotonic() + 10
    sent = 0
    while time.monotonic() < ends:
        producer.produce("mid-stream", str(sent).encode(), on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.05)
        sent += 1
    assert producer.flush(200) == 0
    assert delivered == [None] * sent
    assert len(given) > 2


def test_who_does_not_log_in_again_is_put_out(guarded: BrokerProcess) -> None:
    """kafka-python connects anew; a token that has ended does not count then."""
    token = ISSUER.token(lifetime_s=1, iat=int(time.time()) - 100, exp=int(time.time()) - 25, **AUDIENCE)
    with pytest.raises(KafkaError):  # within the clock's skew, but its session has no time left
        KafkaAdminClient(**of_kafka_python(guarded, lambda: token), bootstrap_timeout_ms=1_000).list_topics()


def ran(broker: BrokerProcess, config: Path, *words: str, code: int = 0) -> Any:
    command = [
        sys.executable,
        "-m",
        "barnabas",
        *words,
        "--bootstrap",
        broker.bootstrap,
        "--command-config",
        str(config),
    ]
    result = forked.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == code, result
    assert "Traceback" not in result.stderr
    return result


def properties(*lines: str) -> str:
    return "\n".join(("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", *lines, ""))


@contextmanager
def served(answer: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives this answer to all who ask; what they asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((body, self.headers["Authorization"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    server.server_close()


def test_commands(guarded: BrokerProcess, tmp_path: Path) -> None:
    config, token = tmp_path / "client.properties", tmp_path / "token"
    config.write_text(properties(f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}"))
    token.write_text(good() + "\n")
    ran(guarded, config, "topics", "create", "of-commands")
    token.write_text(WRONG["audience"]())
    told = ran(guarded, config, "topics", "list", "--timeout", "5", code=1).stderr
    assert "token that" in told
    assert "invalid_token" in told
    assert token.read_text() not in told
    token.unlink()
    assert "token.endpoint.url" in ran(guarded, config, "topics", "list", code=2).stderr
    with served(json.dumps({"access_token": good()}).encode()) as (url, asked):
        config.write_text(
            properties(
                f"sasl.oauthbearer.token.endpoint.url={url}",
                f'sasl.jaas.config={MODULE} required clientId="me" clientSecret="planted-secret" scope="kafka";',
            )
        )
        assert "of-commands" in ran(guarded, config, "topics", "list").stdout
    assert asked[0] == (b"grant_type=client_credentials&scope=kafka", "Basic bWU6cGxhbnRlZC1zZWNyZXQ=")


def test_keys_of_a_server_and_tokens_without_a_signature(
    make_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    with served(ISSUER.keys()) as (url, _):
        broker = make_broker(
            "listeners=PLAINTEXT://127.0.0.1:0,OPEN://127.0.0.1:0",
            "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,OPEN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=OAUTHBEARER",
            f"listener.name.plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={url}",
            f"listener.name.open.oauthbearer.sasl.jaas.config={MODULE} required;",
        )
        config, token = tmp_path / "client.properties", tmp_path / "token"
        config.write_text(properties(f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}"))
        token.write_text(ISSUER.token())
        ran(broker, config, "topics", "list")
        config.write_text(properties(f'sasl.jaas.config={MODULE} required unsecuredLoginStringClaim_sub="bob";'))
        ran(broker, config, "topics", "list", "--timeout", "5", code=1)
    until_said("everybody can be anybody", broker.log)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((), "jwks.endpoint.url"),
        (("sasl.oauthbearer.jwks.endpoint.url=file:///nothing/here",), "/nothing/here"),
        (("sasl.server.callback.handler.class=com.example.Handler",), "names Java code"),
    ],
)
def test_a_start_that_is_refused_says_why(settings: tuple[str, ...], told: str, tmp_path: Path) -> None:
    words = ("listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT", "sasl.enabled.mechanisms=OAUTHBEARER")
    set_to = [word for each in (*words, *settings) for word in ("--set", each)]
    result = forked.barnabas("start", "--data", str(tmp_path / "data"), "--port", "0", *set_to)
    assert result.returncode != 0
    assert told in result.stderr
    assert not (tmp_path / "data").exists()


def test_without_the_extra_a_start_says_how_to_get_it(tmp_path: Path) -> None:
    keys = ISSUER.write_keys(tmp_path / "keys.json")
    words = (
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"sasl.oauthbearer.jwks.endpoint.url={keys}",
    )
    program = "import sys; sys.modules['jwt'] = None; from barnabas.cli.main import main; main()"
    command = [sys.executable, "-c", program, "start", "--data", str(tmp_path / "data"), "--port", "0"]
    command += [word for each in words for word in ("--set", each)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 1, result
    assert "pip install 'barnabas[oauth]'" in result.stderr
