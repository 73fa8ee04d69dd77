"""`python -m bench secured [ROW...]`: TLS and logins, beside an Apache Kafka with the same certificates, in turn.

- `produce-tls`, `consume-tls`: Kafka's Java producer (records of 1 KB, acks=all) and consumer over TLS 1.3
- `logins`: new connections with TLS 1.3 and SCRAM-SHA-512, eight at a time, and what a neighbour feels of it, who
  produces one record in ten milliseconds without TLS

Beside the rates stands the processor time of the broker. It means more where other work is on the machine, and where
the client is what takes the time, as in `logins`.
"""

import argparse
import asyncio
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.cluster.security import scram
from barnabas.cluster.security.authority import Authority
from barnabas.cluster.security.scram import ScramClient
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.env import real

from bench import apache_kafka
from bench.apache_kafka import SETTINGS, ApacheKafka
from bench.loads import Figures, batch, fill, in_turn, own_topic, produce_frame
from bench.neighbour import Neighbour
from bench.targets import Barnabas, Target
from bench.wire import Connection

MECHANISM, USER, PASSWORD = "SCRAM-SHA-512", "bench", "bench-secret"
AT_ONCE = 8  # connections that are being made
PACE_S = 0.01  # of the neighbour


class Secured(NamedTuple):
    """A broker with a listener for TLS, and one for TLS and logins, beside that without."""

    target: Target
    tls: str
    logins: str


Load = Callable[[Secured, str, float], Awaitable[Figures]]


def settings(folder: str, tls_port: int, login_port: int, own: str) -> list[str]:
    """Of both brokers. `own`: the address without TLS."""
    return [
        f"listeners={own},SSL://127.0.0.1:{tls_port},SASL_SSL://127.0.0.1:{login_port}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={folder}/broker.pem",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={folder}/ca.pem",
        f"sasl.enabled.mechanisms={MECHANISM}",
    ]


def of_clients(folder: str) -> list[str]:
    """Of Java's clients."""
    return [
        "security.protocol=SSL",
        "ssl.enabled.protocols=TLSv1.3",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={folder}/ca.pem",
    ]


async def java_produce(secured: Secured, folder: str, seconds: float) -> Figures:
    """As `produce-1k`, over TLS."""
    target, count = secured.target, int(20_000 * seconds)
    async with own_topic(target, "produce") as (_, topic):
        produce = partial(apache_kafka.produce, properties=of_clients(folder))
        cpu = target.cpu_seconds()
        made = await asyncio.to_thread(produce, secured.tls, topic, count, 1024)
        cpu = target.cpu_seconds() - cpu
    return {"records/s": made["records/sec"], "cpu µs per MiB": cpu / (count / 1024) * 1e6}


async def java_consume(secured: Secured, folder: str, seconds: float) -> Figures:
    """As `consume`, over TLS."""
    target, count = secured.target, int(60_000 * seconds)
    async with own_topic(target, "consume") as (_, topic):
        await fill(target, topic, count)
        cpu = target.cpu_seconds()
        found = await asyncio.to_thread(apache_kafka.consume, secured.tls, topic, count, of_clients(folder))
        cpu = target.cpu_seconds() - cpu
    return {"MB/s": found["MB/s"], "cpu µs per MiB": cpu / (count / 1024) * 1e6}


async def logins(secured: Secured, folder: str, seconds: float) -> Figures:
    """Connections that log in and are closed; and the neighbour's p99."""
    target, made = secured.target, 0

    async def log_in_until(ends: float) -> None:
        nonlocal made
        while time.monotonic() < ends:
            await log_in(secured.logins, folder)
            made += 1

    async with own_topic(target, "neighbour") as (_, topic):
        frame, port = produce_frame(topic, 0, batch([bytes(100)])), int(target.address.rpartition(":")[2])
        neighbour = Neighbour(port, frame, Path(folder, topic), PACE_S)
        await neighbour.start()
        alone = time.monotonic()
        await asyncio.sleep(seconds / 2)
        cpu, began = target.cpu_seconds(), time.monotonic()
        await asyncio.gather(*(log_in_until(began + seconds) for _ in range(AT_ONCE)))
        cpu, ended = target.cpu_seconds() - cpu, time.monotonic()
        await neighbour.stop()
    return {
        "logins/s": made / seconds,
        "cpu ms per login": cpu / made * 1e3,
        "neighbour's p99 ms": neighbour.felt((began, ended))[0].percentile_ms(0.99),
        "the same, alone": neighbour.felt((alone, began))[0].percentile_ms(0.99),
    }


async def log_in(address: str, folder: str) -> None:
    """One new connection, to the end of its login."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, host, int(port), ssl=context, server_hostname=host)
    shake: Any = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, messages.SaslHandshakeRequest(mechanism=MECHANISM))
    assert not shake.error_code, shake
    client = ScramClient(MECHANISM, USER, PASSWORD, os.urandom(scram.NONCE_BYTES))
    token: bytes | None = client.first()
    while token is not None:
        request = messages.SaslAuthenticateRequest(auth_bytes=token)
        answer: Any = await connection.ask(ApiKey.SASL_AUTHENTICATE, 1, request)
        assert not answer.error_code, answer
        token = client.step(bytes(answer.auth_bytes))
    connection.transport.abort()


LOADS: dict[str, Load] = {"produce-tls": java_produce, "consume-tls": java_consume, "logins": logins}


def make_user(address: str) -> None:
    """The user of `logins`, made as a client makes it."""
    words = ["-m", "barnabas", "users", "add", USER, "--mechanism", MECHANISM, "--bootstrap", address]
    subprocess.run([sys.executable, *words], input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m bench secured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loads", nargs="*", metavar="ROW", help=", ".join(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    said = parser.parse_args(words)
    scram.salted = lru_cache(scram.salted)  # the client must not be what takes the time
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as folder:
        authority = Authority("bench", real().clock.now_ms())
        Path(folder, "ca.pem").write_text(authority.pem)
        Path(folder, "broker.pem").write_text(authority.sign("broker", ("127.0.0.1", "localhost")))
        ports = [apache_kafka.free_port() for _ in range(5)]
        listeners = f"PLAINTEXT://127.0.0.1:{ports[4]},CONTROLLER://127.0.0.1:{ports[4] + 10_000}"
        security = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        jaas = f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module} required;"
        advertised = (
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{ports[4]},SSL://127.0.0.1:{ports[2]},"
            f"SASL_SSL://127.0.0.1:{ports[3]}"
        )
        of_own = settings(folder, ports[0], ports[1], "PLAINTEXT://127.0.0.1:0")
        of_kafka = [*SETTINGS, *settings(folder, ports[2], ports[3], listeners), advertised, security, jaas]
        with Barnabas(settings=of_own) as own, ApacheKafka(of_kafka, ports[4]) as kafka:
            targets = [
                Secured(own, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"),
                Secured(kafka, f"127.0.0.1:{ports[2]}", f"127.0.0.1:{ports[3]}"),
            ]
            for each in targets:
                make_user(each.target.address)
            for name in said.loads or LOADS:
                measure(name, targets, folder, said.rounds, said.seconds)
    return 0


def measure(name: str, targets: Sequence[Secured], folder: str, rounds: int, seconds: float) -> None:
    """One row in turn; prints the medians without the first round, and the ratios of neighbouring runs."""

    async def load(target: Secured, seconds: float) -> Figures:
        return await LOADS[name](target, folder, seconds)

    found = asyncio.run(in_turn(load, targets, rounds, seconds, warm_up=True))
    for what in found[0][0]:
        pairs = [(own[what], other[what]) for own, other in zip(*found, strict=True)]
        own, other = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = sorted(first / second for first, second in pairs)
        shown = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:12} {what:20} barnabas {own:10.1f}   kafka {other:10.1f}   ratio {shown}", flush=True)
