"""Logs in by each case of a file (JSON) with a library of Python, writes records, reads them back, and says how that
ended; `secured_clients.py LIBRARY CASES.json`."""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as TokenProviderOfAiokafka
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

Case = Mapping[str, Any]
GIVEN_UP_AFTER_S = 60


def token(case: Case) -> str:
    with urlopen(case["token_url"], timeout=200) as answer:
        return str(json.load(answer)["access_token"])


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for kafka-python."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def token(self) -> str:
        return token(self._case)


class AsyncProvider(TokenProviderOfAiokafka):  # type: ignore[misc]
    """Tokens for aiokafka."""

    def __init__(self, case: Case) -> None:
        self._case = case

    async def token(self) -> str:
        return await asyncio.to_thread(token, self._case)


def protocol(case: Case) -> str:
    return ("SASL_" if case["mechanism"] else "") + ("SSL" if case["ca"] else "PLAINTEXT")


def settings(case: Case, provider: Any) -> dict[str, Any]:
    """Of kafka-python and aiokafka."""
    made: dict[str, Any] = {"bootstrap_servers": case["bootstrap"], "security_protocol": protocol(case)}
    if case["ca"]:
        made["ssl_context"] = ssl.create_default_context(cafile=case["ca"])
        if case["certificate"]:
            made["ssl_context"].load_cert_chain(case["certificate"])
    if case["mechanism"] == "OAUTHBEARER":
        made |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider(case)}
    elif case["mechanism"]:
        made |= {"sasl_mechanism": case["mechanism"]}
        made |= {"sasl_plain_username": case["user"], "sasl_plain_password": case["password"]}
    return made


def of_kafka_python(case: Case) -> str:
    made = settings(case, Provider)
    try:
        producer = KafkaProducer(**made, bootstrap_timeout_ms=20_000 if case["is_right"] else 2_000)
    except Exception as error:
        return f"refused: {error!r}"
    sent, until = 0, time.monotonic() + case["seconds"]
    while not sent or time.monotonic() < until:
        producer.send(case["topic"], b"x").get(timeout=GIVEN_UP_AFTER_S)
        sent += 1
        time.sleep(0.05)
    producer.close()
    consumer = KafkaConsumer(
        case["topic"],
        **made,
        group_id=case["topic"],
        auto_offset_reset="earliest",
        consumer_timeout_ms=GIVEN_UP_AFTER_S * 1000,
    )
    read = sum(1 for _ in zip(range(sent), consumer, strict=False))
    consumer.close()
    return "ok" if read == sent else f"failed: {read} of {sent} records were read"


def of_aiokafka(case: Case) -> str:
    async def story() -> str:
        made = settings(case, AsyncProvider)
        producer = AIOKafkaProducer(**made)
        try:
            await producer.start()
        except Exception as error:
            await producer.stop()
            return f"refused: {error!r}"
        sent, until = 0, time.monotonic() + case["seconds"]
        while not sent or time.monotonic() < until:
            await producer.send_and_wait(case["topic"], b"x")
            sent += 1
            await asyncio.sleep(0.05)
        await producer.stop()
        consumer = AIOKafkaConsumer(case["topic"], **made, group_id=case["topic"], auto_offset_reset="earliest")
        await consumer.start()
        for _ in range(sent):
            await asyncio.wait_for(consumer.getone(), GIVEN_UP_AFTER_S)
        await consumer.stop()
        return "ok"

    return asyncio.run(story())


def of_librdkafka(case: Case) -> str:
    made: dict[str, Any] = {
        "bootstrap.servers": case["bootstrap"],
        "security.protocol": protocol(case).lower(),
        "log_level": 2,
    }
    if case["ca"]:
        made["ssl.ca.location"] = case["ca"]
    if case["certificate"]:
        made |= {"ssl.certificate.location": case["certificate"], "ssl.key.location": case["certificate"]}
    if case["mechanism"] == "OAUTHBEARER":
        made |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (token(case), time.time() + case["token_s"])}
    elif case["mechanism"]:
        made |= {"sasl.mechanism": case["mechanism"]}
        made |= {"sasl.username": case["user"], "sasl.password": case["password"]}
    wrong: list[KafkaError] = []
    delivered: list[KafkaError | None] = []
    of_producer = {"error_cb": wrong.append, "delivery.timeout.ms": GIVEN_UP_AFTER_S * 1000}
    producer = Producer(made | of_producer)
    sent, until = 0, time.monotonic() + case["seconds"]
    while not sent or time.monotonic() < until:
        producer.produce(case["topic"], b"x", on_delivery=lambda error, _: delivered.append(error))
        sent += 1
        producer.poll(0.05)
    gives_up = time.monotonic() + GIVEN_UP_AFTER_S
    refusals = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN)
    while len(delivered) < sent and time.monotonic() < gives_up:
        producer.poll(0.1)
        if not case["is_right"] and any(error.code() in refusals for error in wrong):
            producer.purge()
            return f"refused: {wrong[0]}"
    if delivered != [None] * sent:
        return f"failed: {delivered} {wrong}"
    consumer = Consumer(made | {"group.id": case["topic"], "auto.offset.reset": "earliest"})
    consumer.subscribe([case["topic"]])
    read, gives_up = 0, time.monotonic() + GIVEN_UP_AFTER_S
    while read < sent and time.monotonic() < gives_up:
        message = consumer.poll(1)
        read += message is not None and message.error() is None
    consumer.close()
    return "ok" if read == sent else f"failed: {read} of {sent} records were read"


LIBRARIES: Mapping[str, Callable[[Case], str]] = {
    "kafka-python": of_kafka_python,
    "aiokafka": of_aiokafka,
    "confluent-kafka": of_librdkafka,
}


def main(library: str, path: str) -> None:
    cases = json.loads(Path(path).read_text())

    def run(case: Case) -> str:
        try:
            return LIBRARIES[library](case)
        except Exception as error:
            return f"failed: {error!r}"

    with ThreadPoolExecutor(len(cases)) as threads:
        told = dict(zip([case["name"] for case in cases], threads.map(run, cases), strict=True))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
