"""Three brokers that log in to each other, by passwords or certificates, as clients do to them, through a kill."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from secured import BROKERS, SECRET, SecuredCluster

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(
    params=[
        "SASL_PLAINTEXT PLAIN",
        "SASL_PLAINTEXT SCRAM-SHA-512",
        "SASL_PLAINTEXT OAUTHBEARER",
        "SASL_SSL SCRAM-SHA-512",
        "SSL GSSAPI",
    ]
)
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(tmp_path, *request.param.split())
    try:
        cluster.start(1)
        if cluster.protocol != "SSL":
            cluster.make_scram_user()
        for number in BROKERS[1:]:
            cluster.start(number)
        yield cluster
    finally:
        cluster.end()
    for number in BROKERS:
        assert "Traceback" not in cluster.log(number)
        assert SECRET not in cluster.log(number)


def test_nothing_is_lost_when_a_broker_is_killed_and_comes_back(secured: SecuredCluster) -> None:
    admin = KafkaAdminClient(**secured.client)
    admin.create_topics([NewTopic("t", 3, 3)])
    producer = KafkaProducer(**secured.client, acks="all")
    for number in range(45):
        producer.send("t", b"%d" % number).get(timeout=60)
        if number == 15:
            secured.kill(2)
        if number == 30:
            secured.start(2)
    producer.close()
    consumer = KafkaConsumer(
        "t", **secured.client, group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=10_000
    )
    found = set()
    for message in consumer:
        found.add(int(message.value))
        if len(found) == 45:
            break
    consumer.close()
    admin.close()
    assert found == set(range(45))


def test_a_broker_with_a_wrong_password_or_certificate_follows_nothing(secured: SecuredCluster) -> None:
    admin = KafkaAdminClient(**secured.client)
    if secured.protocol == "SSL":
        secured.start(4, own=secured.foreign)
    else:
        secured.start(4, password="planted-wrong")
    admin.create_topics([NewTopic("t", replica_assignments={0: [1, 4]})])
    producer = KafkaProducer(**secured.client, acks=1)
    producer.send("t", b"x").get(timeout=30)
    producer.close()
    admin.close()
    if secured.protocol == "SSL":  # the controller does not even reach it
        assert any("its certificate is refused" in secured.log(number) for number in BROKERS)
    else:
        assert "cannot log in to" in secured.log(4)
    assert "planted-wrong" not in secured.log(4)
    logs = list((secured.folder / "4").glob("t-0/*.log"))
    assert all(path.stat().st_size == 0 for path in logs)
