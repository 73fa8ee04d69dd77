"""`barnabas acls` on a running broker, and what a client library is told that lacks a right."""

import http.client
import json
import subprocess
from collections.abc import Callable
from typing import Any, TypeAlias

import forked
import pytest
from kafka import KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

BrokerProcess: TypeAlias = Any  # of conftest.py
AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NAMED = ("User:alice", "read", "topic", "orders")


@pytest.fixture(scope="module")
def guarded(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker with access rules. Who comes without a name (all do, without SASL) may alter them, and no more."""
    broker = make_broker(AUTHORIZER, "super.users=User:ANONYMOUS;User:root", "http.token=hidden-token")
    ran(broker, "acls", "add", "User:ANONYMOUS", "alter,describe,describe-configs", "cluster")
    broker.stop()
    broker.settings = (AUTHORIZER, "super.users=User:root", "http.token=hidden-token")
    broker.start()
    return broker


def ran(broker: BrokerProcess, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return forked.barnabas(*words, code=code, BARNABAS_BOOTSTRAP=broker.bootstrap)


def test_rules_outlive_the_broker_and_are_added_listed_and_removed(guarded: BrokerProcess) -> None:
    mine = json.loads(ran(guarded, "acls", "list", "--principal", "User:ANONYMOUS", "--json").stdout)
    assert {row["operation"] for row in mine} == {"alter", "describe", "describe-configs"}
    assert ran(guarded, "acls", "add", *NAMED).stdout == "User:alice may read topic orders: added\n"
    assert "orders" in ran(guarded, "acls", "list", "--kind", "topic", "--name", "orders").stdout
    assert ran(guarded, "acls", "remove", *NAMED, "--yes").stdout == "User:alice may read topic orders: removed\n"
    told = ran(guarded, "acls", "remove", *NAMED, "--yes", code=3).stderr
    assert "there is no such rule" in told
    ran(guarded, "acls", "list", "--kind", "topic", code=3)


@pytest.mark.parametrize("host", ["localhost", "10.0.0.0/8", ""])
def test_a_rule_for_what_is_no_address_is_refused(guarded: BrokerProcess, host: str) -> None:
    """Kafka keeps it, and it says nothing about anybody."""
    told = ran(guarded, "acls", "add", *NAMED, "--host", host, code=2).stderr
    assert "a rule is for an address" in told


def test_explain_names_the_rule_and_what_would_change_it(guarded: BrokerProcess) -> None:
    told = ran(guarded, "acls", "explain", *NAMED, code=1).stdout
    assert told.startswith("User:alice may not read topic orders: no rule allows it. ")
    assert "barnabas acls add User:alice read topic orders" in told
    ran(guarded, "acls", "add", "User:alice", "read", "topic", "ord", "--prefix")
    assert "a rule allows it: User:alice may read topic prefix ord" in ran(guarded, "acls", "explain", *NAMED).stdout
    ran(guarded, "acls", "add", *NAMED, "--deny")
    told = ran(guarded, "acls", "explain", *NAMED, code=1).stdout
    assert "barnabas acls remove User:alice read topic orders --deny" in told
    ran(guarded, "acls", "remove", *NAMED, "--deny", "--yes")
    ran(guarded, "acls", "remove", "User:alice", "read", "topic", "ord", "--prefix", "--yes")


def test_explain_gives_a_right_to_the_address_that_was_asked_for(guarded: BrokerProcess) -> None:
    asked = (*NAMED, "--host", "10.0.0.5")
    command = "acls add User:alice read topic orders --host 10.0.0.5"
    assert f"barnabas {command}\n" in ran(guarded, "acls", "explain", *asked, code=1).stdout
    ran(guarded, *command.split())
    assert "may read topic orders" in ran(guarded, "acls", "explain", *asked).stdout
    told = ran(guarded, "acls", "explain", *NAMED, code=1).stdout
    assert "barnabas acls add User:alice read topic orders\n" in told  # nobody named an address
    ran(guarded, "acls", "remove", *asked, "--yes")
    told = ran(guarded, "acls", "explain", "User:*", "read", "topic", "orders", code=1).stdout
    assert "barnabas acls add 'User:*' read topic orders\n" in told
    for host in ("localhost", "*"):
        told = ran(guarded, "acls", "explain", *NAMED, "--host", host, code=2).stderr
        assert f"nobody comes from {host!r}" in told


def test_wrong_words_are_refused(guarded: BrokerProcess) -> None:
    assert "a topic has all, read" in ran(guarded, "acls", "add", "User:a", "fly", "topic", "t", code=2).stderr
    assert "not for 'pizza'" in ran(guarded, "acls", "add", "User:a", "read", "pizza", "t", code=2).stderr
    assert "User:NAME" in ran(guarded, "acls", "add", "alice", "read", "topic", "t", code=2).stderr
    assert "User:NAME" in ran(guarded, "acls", "add", "user:alice", "read", "topic", "t", code=2).stderr
    assert "named by ord --prefix" in ran(guarded, "acls", "add", "User:a", "read", "topic", "ord*", code=2).stderr
    assert "name the topic" in ran(guarded, "acls", "add", "User:a", "read", "topic", code=2).stderr
    assert (
        "one operation at a time"
        in ran(guarded, "acls", "explain", "User:a", "read,write", "topic", "t", code=2).stderr
    )


def test_a_group_whose_name_has_a_slash_has_rules_as_any(guarded: BrokerProcess) -> None:
    rule = ("User:a", "read", "group", "team/app")
    ran(guarded, "acls", "add", *rule)
    assert "team/app" in ran(guarded, "acls", "list").stdout
    assert "a rule allows it" in ran(guarded, "acls", "explain", *rule).stdout
    ran(guarded, "acls", "remove", *rule, "--yes")
    assert "team/app" not in ran(guarded, "acls", "list").stdout


def test_a_client_without_rights_is_told_so_and_the_log_has_one_line(
    guarded: BrokerProcess, wait_until: Callable[..., None]
) -> None:
    producer = KafkaProducer(bootstrap_servers=guarded.bootstrap, max_block_ms=30_000, enable_idempotence=False)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secrets", b"x").get(timeout=200)
    producer.close()
    told = "has no right to describe topic 'secrets'"
    wait_until(lambda: told in guarded.log.read_text())  # a thread writes the log
    lines = [line for line in guarded.log.read_text().splitlines() if told in line]
    assert 1 <= len(lines) <= 2  # the minute of which it is told once may end in between
    assert "User:ANONYMOUS" in lines[0]
    assert "127.0.0.1" in lines[0]


def test_a_command_without_a_login_says_who_lacks_a_right(guarded: BrokerProcess) -> None:
    told = ran(guarded, "topics", "create", "secrets", code=1).stderr
    assert "a right is missing: barnabas acls add User:ANONYMOUS create topic secrets)" in told


def test_the_http_api_needs_its_token(guarded: BrokerProcess) -> None:
    address = ran(guarded, "status").stdout.rpartition("at http://")[2].strip()
    statuses = {}
    for path, headers in (
        ("/v1/groups", {}),
        ("/metrics", {"Authorization": "Bearer wrong"}),
        ("/health", {}),
        ("/metrics ", {"Authorization": "Bearer hidden-token"}),
    ):
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", path.strip(), headers=headers)
        statuses[path] = connection.getresponse().status
        connection.close()
    assert statuses == {"/v1/groups": 401, "/metrics": 401, "/health": 200, "/metrics ": 200}
