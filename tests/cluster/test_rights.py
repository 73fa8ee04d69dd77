"""Rights, users and quotas that change while one of three brokers is stopped or dead: it knows them when it is back."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.cli.shared import login
from barnabas.cluster.security import scram
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from test_sasl import BROKERS, SALT, SECRET, SecuredCluster
from waiting import until

PACKAGE = "org.apache.kafka.common.security"
AWAY = 2


class Administered(SecuredCluster):
    """Three brokers that log in to each other by passwords, and their administrator."""

    def ask(self, number: int, request: Any, version: int, user: str = "broker", password: str = SECRET) -> Any:
        """What a broker answers to a user; None: it does not let it in."""
        module = "plain.PlainLoginModule" if user == "broker" else "scram.ScramLoginModule"
        mechanism = "PLAIN" if user == "broker" else "SCRAM-SHA-512"
        config = self.folder / f"{user}-{password}.properties"  # a file is read once
        config.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={PACKAGE}.{module} required username="{user}" password="{password}";\n'
        )
        return login.ask(("127.0.0.1", self.ports[number]), login.read(str(config)), request, version)[0]

    def make_user(self, user: str, password: str) -> None:
        make = messages.AlterUserScramCredentialsRequest
        salted = scram.salted("SCRAM-SHA-512", password, SALT, 4096)
        row = make.ScramCredentialUpsertion(name=user, mechanism=2, iterations=4096, salt=SALT, salted_password=salted)
        answer = self.ask(1, make(deletions=[], upsertions=[row]), 0)
        assert [each.error_code for each in answer.results] == [0]

    def set_rule(self, user: str, permission: int) -> None:
        make = messages.CreateAclsRequest
        row = make.AclCreation(
            resource_type=2,
            resource_name=f"of-{user}",
            resource_pattern_type=3,
            principal=f"User:{user}",
            host="*",
            operation=8,
            permission_type=permission,
        )
        assert [each.error_code for each in self.ask(1, make(creations=[row]), 2).results] == [0]

    def set_quota(self, user: str) -> None:
        make = messages.AlterClientQuotasRequest
        entity = make.EntityData(entity_type="user", entity_name=user)
        row = make.EntryData(
            entity=[entity], ops=[make.OpData(key="producer_byte_rate", value=1_000_000.0, remove=False)]
        )
        assert [each.error_code for each in self.ask(1, make(entries=[row]), 1).entries] == [0]

    def may_describe(self, number: int, user: str, password: str) -> bool | None:
        """Whether a broker lets the user describe its topic, which is not there; None: it does not let it in."""
        topic = messages.MetadataRequest.MetadataRequestTopic(name=f"of-{user}")
        request = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
        answer = self.ask(number, request, 8, user, password)
        return None if answer is None else answer.topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def has_quota(self, number: int, user: str) -> bool:
        make = messages.DescribeClientQuotasRequest
        component = make.ComponentData(entity_type="user", match_type=0, match=user)
        answer = self.ask(number, make(components=[component], strict=True), 1)
        return answer is not None and bool(answer.entries)


@pytest.fixture
def administered(tmp_path: Path) -> Iterator[Administered]:
    cluster = Administered(tmp_path, "SASL_PLAINTEXT", "PLAIN")
    try:
        for number in BROKERS:
            cluster.start(number)
        yield cluster
    finally:
        cluster.end()
    assert not any("Traceback" in cluster.log(number).read_text() for number in BROKERS)


def test_a_broker_that_was_away_knows_what_has_changed(administered: Administered) -> None:
    allowed, denied = 3, 2
    for how in ("stopped", "killed"):
        user = f"user-{how}"
        administered.make_user(user, "first")
        administered.set_rule(user, allowed)
        until(lambda user=user: administered.may_describe(AWAY, user, "first"))
        process = administered.processes[AWAY]
        if how == "stopped":
            os.kill(process.pid, signal.SIGSTOP)
        else:
            administered.kill(AWAY)
        try:
            administered.make_user(user, "second")
            administered.set_rule(user, denied)
            administered.set_quota(user)
        finally:
            if how == "stopped":
                os.kill(process.pid, signal.SIGCONT)
        if how == "killed":
            administered.start(AWAY)
        until(lambda user=user: administered.may_describe(AWAY, user, "second") is False)
        until(lambda user=user: administered.has_quota(AWAY, user))
        assert administered.may_describe(AWAY, user, "first") is None


def test_doctor_finds_a_broker_that_refuses_its_controller(tmp_path: Path) -> None:
    """Its super.users lacks the user of the controller, so it is never told of anything."""
    cluster = Administered(tmp_path, "SASL_PLAINTEXT", "PLAIN")
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required username="alice" password="alice-secret";\n'
    )

    def ran(number: int, *words: str) -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap", f"127.0.0.1:{cluster.ports[number]}", "--command-config", str(config))
        return forked.barnabas(*words, *where)

    try:
        for number, users in ((1, "User:broker;User:alice"), (2, "User:alice")):
            cluster.start(number, super_users=users, http_listeners="http://127.0.0.1:0")
        told = ran(1, "doctor", "--json")
        assert told.returncode == 5, told
        found = {(each["check"], each["where"]) for each in json.loads(told.stdout)["findings"]}
        assert ("told brokers", "broker 2") in found
        assert "knows of no broker, not even of itself" in ran(2, "topics", "list", "--timeout", "4").stderr
    finally:
        cluster.end()
