"""`barnabas quotas` on a running broker, and what client libraries see of them."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import forked
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import NodeNotReadyError, ThrottlingQuotaExceededError

BrokerProcess: TypeAlias = Any  # of conftest.py


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker of this module."""
    return make_broker()


def ran(broker: BrokerProcess, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return forked.barnabas(*words, code=code, BARNABAS_BOOTSTRAP=broker.bootstrap)


def test_quotas_are_set_listed_and_removed(broker: BrokerProcess) -> None:
    told = ran(broker, "quotas", "set", "--user", "alice", "produce=1MB", "request=12.5").stdout
    assert told == "user alice: has produce=1MB, request=12.5\n"
    ran(broker, "quotas", "set", "--user", "alice", "--default-client-id", "fetch=500KB")
    ran(broker, "quotas", "set", "--ip", "192.0.2.7", "connections=10")
    ran(broker, "quotas", "set", "--user", "bob", "request=inf")
    rows = json.loads(ran(broker, "quotas", "list", "--json").stdout)
    alice = {"user": "alice", "client_id": None, "ip": None}
    assert alice | {"quota": "producer_byte_rate", "value": 1048576} in rows
    assert alice | {"quota": "request_percentage", "value": 12.5} in rows
    assert alice | {"user": "bob", "quota": "request_percentage", "value": "Infinity"} in rows
    assert alice | {"client_id": "<default>", "quota": "consumer_byte_rate", "value": 512000} in rows
    assert "192.0.2.7" in ran(broker, "quotas", "list", "--ip", "192.0.2.7").stdout
    ran(broker, "quotas", "remove", "--user", "alice", "produce", "--yes")
    ran(broker, "quotas", "remove", "--user", "alice", "produce", "--yes", code=3)
    ran(broker, "quotas", "remove", "--user", "alice", "--yes")
    ran(broker, "quotas", "remove", "--user", "bob", "--yes")
    ran(broker, "quotas", "remove", "--user", "alice", "--default-client-id", "--yes")
    ran(broker, "quotas", "remove", "--ip", "192.0.2.7", "--yes")
    ran(broker, "quotas", "list", code=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "--user", "a", "fly=1"), "a quota is one of produce, fetch"),
        (("set", "--user", "a", "produce"), "produce=VALUE"),
        (("set", "--user", "a", "produce=many"), "a value is a number"),
        (("set", "produce=1"), "name whom it is for"),
        (("set", "--user", "a", "--default-user", "produce=1"), "name one"),
    ],
)
def test_what_is_not_valid(broker: BrokerProcess, words: tuple[str, ...], said: str) -> None:
    assert said in ran(broker, "quotas", *words, code=2).stderr


def test_what_the_broker_refuses_is_told(broker: BrokerProcess) -> None:
    told = ran(broker, "quotas", "set", "--ip", "192.0.2.7", "produce=1", code=1)
    assert "Invalid configuration key producer_byte_rate" in told.stdout + told.stderr


def test_librdkafka_hears_how_long_it_has_to_wait(broker: BrokerProcess) -> None:
    ran(broker, "topics", "create", "throttled")
    ran(broker, "quotas", "set", "--client-id", "greedy", "produce=20KB")
    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": "greedy",
            "linger.ms": 0,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    delivered: list[Any] = []
    for _ in range(3):
        producer.produce("throttled", b"x" * 100_000, on_delivery=lambda error, _: delivered.append(error))
        producer.flush(200)
    assert delivered == [None] * 3
    assert throttled
    assert max(throttled) > 0
    ran(broker, "quotas", "remove", "--client-id", "greedy", "--yes")


def test_a_refused_mutation_can_be_tried_again(broker: BrokerProcess) -> None:
    """By kafka-python, which knows the error; librdkafka asks in a version that does not, and is only kept waiting."""
    ran(broker, "quotas", "set", "--client-id", "maker", "mutations=2")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id="maker")
    refused = None
    for number in range(5):
        try:
            admin.create_topics([NewTopic(f"made-{number}", num_partitions=15, replication_factor=1)])
        except ThrottlingQuotaExceededError as error:
            refused = number, error
            break
    assert refused is not None, "45 partitions at once are more than eleven seconds' worth"
    topic = NewTopic(f"made-{refused[0]}", num_partitions=1, replication_factor=1)
    while True:  # until its time is over
        try:
            admin.create_topics([topic])
            break
        except (NodeNotReadyError, ThrottlingQuotaExceededError):  # the library waits, too
            time.sleep(0.2)
    admin.close()
    ran(broker, "quotas", "remove", "--client-id", "maker", "--yes")
