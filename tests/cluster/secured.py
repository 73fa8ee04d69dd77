"""Three brokers that log in to each other, by passwords, tokens or certificates, as clients do to them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from barnabas.cluster.security import scram
from certificates import Authority
from kafka import KafkaAdminClient
from kafka.protocol.admin import AlterUserScramCredentialsRequest
from ports import free_port
from tokens import Issuer

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
        self.foreign = Authority("foreign").sign("broker").write_pem(folder / "foreign.pem")
        self.issuer = Issuer()
        self.keys = self.issuer.write_keys(folder / "keys.json")
        self.ports = {number: free_port() for number in (*BROKERS, 4)}
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int, password: str = SECRET, own: str = "") -> None:
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
                "ssl.truststore.location": self.ca,
                "ssl.client.auth": "required",
            }
        command = [sys.executable, "-m", "barnabas", "start", "--json", "--data", str(self.folder / str(number))]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with (self.folder / f"{number}.log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[number] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.log(number)
        assert json.loads(line)["event"] == "ready"

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)

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
        admin = KafkaAdminClient(**self.client)
        answer = admin._manager.run(admin._manager.send, request(deletions=[], upsertions=[upsertion]), None)
        admin.close()
        assert [result.error_code for result in answer.results] == [0]
