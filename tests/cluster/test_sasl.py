"""Three brokers that log in to each other, by passwords or certificates, as clients do to them, through a kill."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.cluster.security import scram
from certificates import Authority
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.protocol.admin import AlterUserScramCredentialsRequest
from ports import free_port
from tokens import Issuer
from waiting import until_said

SECRET, SALT = "broker-secret", bytes(range(16))
PLAIN_USERS = f'user_broker="{SECRET}" user_alice="alice-secret"'
BROKERS = (1, 2, 3)


class SecuredCluster:
    """Brokers with SASL and access rules on one tree. Only the user `broker` may act as one."""

    def __init__(self, folder: Path, protocol: str, mechanism: str) -> None:
        self.folder = folder
        self.protocol = protocol
        self.mechanism = mechanism
        self.authority = Authority()
        self.ca = self.authority.write_pem(folder / "ca.pem")
        self.own = self.authority.sign("broker").write_pem(folder / "broker.pem")
        foreign = Authority("foreign")
        self.foreign = foreign.sign("broker").write_pem(folder / "foreign.pem")
        self.both = str(folder / "both.pem")
        (folder / "both.pem").write_text(self.authority.pem + foreign.pem)
        self.issuer = Issuer()
        self.keys = self.issuer.write_keys(folder / "keys.json")
        self.ports = {number: free_port() for number in (*BROKERS, 4)}
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int, password: str = SECRET, own: str = "", **more: str) -> None:
        issuer = self.issuer if password == SECRET else Issuer()
        (self.folder / f"token-{number}").write_text(issuer.token("broker"))
        module = "org.apache.kafka.common.security"
        jaas = f'username="broker" password="{password}"'
        prefix = "listener.name.inside"
        settings = {
            "node.id": number,
            "coordination.path": self.folder / "tree",
            "http.listeners": "none",
            "listeners": f"INSIDE://127.0.0.1:{self.ports[number]}",
            "listener.security.protocol.map": f"INSIDE:{self.protocol}",
            "inter.broker.listener.name": "INSIDE",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": self.mechanism,
            f"{prefix}.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {jaas} {PLAIN_USERS};",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required {jaas};",
            "connections.max.reauth.ms": 3_000,  # brokers, too, log in again all the time
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:broker;User:CN=broker",
            f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.keys,
            f"{prefix}.oauthbearer.sasl.oauthbearer.token.endpoint.url": (self.folder / f"token-{number}").as_uri(),
            "default.replication.factor": 3,
            "offsets.topic.replication.factor": 3,
            "min.insync.replicas": 2,
            "replica.lag.time.max.ms": 2_000,
        }
        if self.protocol.endswith("SSL"):
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": own or self.own,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.both if own else self.ca,  # a start wants one that takes its own
                "ssl.client.auth": "required",
            }
        settings |= {name.replace("_", "."): text for name, text in more.items()}
        command = [sys.executable, "-m", "barnabas", "start", "--json", "--data", str(self.folder / str(number))]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with (self.folder / f"{number}.log").open("a") as log:
            process = forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[number] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.log(number).read_text()
        assert json.loads(line)["event"] == "ready"

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(200)

    @property
    def client(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": [f"127.0.0.1:{self.ports[number]}" for number in BROKERS],
            "security_protocol": self.protocol,
        }
        if self.protocol.endswith("SSL"):
            settings |= {"ssl_cafile": self.ca, "ssl_certfile": self.own, "ssl_keyfile": self.own}
        if self.protocol.startswith("SASL"):
            settings |= {
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "broker",
                "sasl_plain_password": SECRET,
            }
        return settings

    def make_scram_user(self) -> None:
        request = AlterUserScramCredentialsRequest
        salted = scram.salted("SCRAM-SHA-512", SECRET, SALT, 4096)
        upsertion = request.ScramCredentialUpsertion(
            name="broker", mechanism=2, iterations=4096, salt=SALT, salted_password=salted
        )
        only = {"bootstrap_servers": f"127.0.0.1:{self.ports[BROKERS[0]]}"}  # kafka-python may ask the others for ever
        admin = KafkaAdminClient(**self.client | only)
        answer = admin._manager.run(admin._manager.send, request(deletions=[], upsertions=[upsertion]), None)
        admin.close()
        assert [result.error_code for result in answer.results] == [0]


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
        text = cluster.log(number).read_text()
        assert "Traceback" not in text
        assert SECRET not in text


@pytest.mark.takes_turns("secured")
def test_nothing_is_lost_when_a_broker_is_killed_and_comes_back(secured: SecuredCluster) -> None:
    admin = KafkaAdminClient(**secured.client)
    admin.create_topics([NewTopic("t", 3, 3)])
    producer = KafkaProducer(**secured.client, acks="all")
    for number in range(45):
        producer.send("t", b"%d" % number).get(timeout=200)
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
    producer.send("t", b"x").get(timeout=200)
    producer.close()
    admin.close()
    if secured.protocol == "SSL":  # the controller does not even reach it
        until_said("its certificate is refused", *map(secured.log, BROKERS))
    else:
        until_said("cannot log in to", secured.log(4))
    assert "planted-wrong" not in secured.log(4).read_text()
    logs = list((secured.folder / "4").glob("t-0/*.log"))
    assert all(path.stat().st_size == 0 for path in logs)
