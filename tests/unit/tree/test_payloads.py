"""Payloads against the tree that Kafka 3.9.1 wrote (tests/golden/kafka-3.9.1-zookeeper/changes.jsonl)."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.payloads import (
    AclRule,
    BrokerEndpoint,
    BrokerRegistration,
    ControllerNode,
    PartitionState,
    ProducerIdBlock,
    TopicAssignment,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-3.9.1-zookeeper" / "changes.jsonl"


def same(data: bytes) -> bytes:
    return data


def both(value_type: Any) -> Callable[[bytes], bytes]:
    return lambda data: value_type.decode(data).encode()


def pair(name: str, *, spread: bool = False) -> Callable[[bytes], bytes]:
    decode, encode = getattr(payloads, f"decode_{name}"), getattr(payloads, f"encode_{name}")
    return lambda data: encode(*decode(data)) if spread else encode(decode(data))


AGAIN: dict[str, Callable[[bytes], bytes]] = {
    r"/cluster/id": pair("cluster_id"),
    r"/controller": both(ControllerNode),
    r"/controller_epoch": pair("number"),
    r"/brokers/ids/\d+": both(BrokerRegistration),
    r"/brokers/topics/[^/]+": both(TopicAssignment),
    r"/brokers/topics/[^/]+/partitions/\d+/state": both(PartitionState),
    r"/config/(topics|brokers|users|clients|ips)/.+": pair("config"),
    r"/config/changes/config_change_\d{10}": pair("config_change"),
    r"/latest_producer_id_block": both(ProducerIdBlock),
    r"/feature": pair("feature"),
    r"/kafka-acl/\w+/.+": pair("acls"),
    r"/kafka-acl-extended/prefixed/\w+/.+": pair("acls"),
    r"/kafka-acl-changes/acl_changes_\d{10}": pair("acl_change", spread=True),
    r"/kafka-acl-extended-changes/acl_changes_\d{10}": pair("extended_acl_change", spread=True),
    r"/isr_change_notification/isr_change_\d{10}": pair("isr_change"),
}


def test_every_payload_that_kafka_wrote_is_written_the_same() -> None:
    seen = set()
    for line in GOLDEN.read_text().splitlines():
        change = json.loads(line)
        if change.get("data") in (None, ""):
            continue
        patterns = [pattern for pattern in AGAIN if re.fullmatch(pattern, change["path"])]
        assert len(patterns) == 1, change["path"]
        data = change["data"].encode()
        assert AGAIN[patterns[0]](data) == data, change["path"]
        seen.add(patterns[0])
    assert len(seen) >= 14


def test_paths_are_those_that_kafka_made() -> None:
    made = {json.loads(line).get("path") for line in GOLDEN.read_text().splitlines()}
    assert set(paths.PERSISTENT) <= made
    for path in (
        paths.broker(1),
        paths.topic("orders"),
        paths.partitions("orders"),
        paths.partition("orders", 2),
        paths.partition_state("orders", 2),
        paths.topic_config("orders"),
        paths.config("users/alice"),
        paths.config("users/alice/clients/app"),
        paths.acls("Topic", "orders"),
        paths.acls("Group", "app-", prefixed=True),
        paths.CLUSTER_ID,
        paths.CONTROLLER,
        paths.CONTROLLER_EPOCH,
        paths.PRODUCER_ID_BLOCK,
        paths.FEATURE,
        f"{paths.CONFIG_CHANGE_PREFIX}0000000001",
        f"{paths.ACL_CHANGE_PREFIX}0000000000",
        f"{paths.EXTENDED_ACL_CHANGE_PREFIX}0000000000",
    ):
        assert path in made, path
    assert paths.sequence_number("config_change_0000000042") == 42


@pytest.mark.parametrize(
    ("name", "node"),
    [
        (None, "<default>"),
        ("alice", "alice"),
        ("a b*c/ü", "a%20b%2Ac%2F%C3%BC"),
        ("<default>", "%3Cdefault%3E"),
        ("~", "%7E"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
    ],
)
def test_names_of_users_and_clients_are_percent_encoded(name: str | None, node: str) -> None:
    assert paths.encode_name(name) == node
    assert paths.decode_name(node) == name


def test_older_registrations_are_read() -> None:
    first = BrokerRegistration.decode(b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"5"}')
    assert first.endpoints == (BrokerEndpoint("PLAINTEXT", "h", 9092),)
    assert first.timestamp_ms == 5
    third = BrokerRegistration.decode(
        b'{"version":3,"host":null,"port":-1,"jmx_port":9,"timestamp":"5","rack":"r","endpoints":["SSL://[::1]:9093"]}'
    )
    assert third.endpoints == (BrokerEndpoint("SSL", "::1", 9093),)
    assert third.security_protocols == {"SSL": "SSL"}
    assert (third.rack, third.jmx_port) == ("r", 9)


def test_a_registration_repeats_its_first_plaintext_endpoint() -> None:
    endpoints = (BrokerEndpoint("OUTSIDE", "o", 1), BrokerEndpoint("INSIDE", "::1", 2))
    registration = BrokerRegistration(endpoints, 7, None, {"OUTSIDE": "SSL", "INSIDE": "PLAINTEXT"})
    value = json.loads(registration.encode())
    assert (value["host"], value["port"]) == ("::1", 2)
    assert value["endpoints"] == ["OUTSIDE://o:1", "INSIDE://[::1]:2"]
    assert "rack" not in value
    assert BrokerRegistration.decode(registration.encode()) == registration
    secure = BrokerRegistration(endpoints[:1], 7, None, {"OUTSIDE": "SSL"})
    assert (json.loads(secure.encode())["host"], json.loads(secure.encode())["port"]) == (None, -1)


def test_older_topics_have_no_id() -> None:
    assert TopicAssignment.decode(b'{"version":1,"partitions":{"1":[2,3],"0":[1,2]}}') == TopicAssignment(
        {0: (1, 2), 1: (2, 3)}
    )
    moving = TopicAssignment({0: (1, 2)}, None, {0: (2,)}, {0: (3,)})
    assert json.loads(moving.encode())["version"] == 2
    assert TopicAssignment.decode(moving.encode()) == moving


def test_recovering_stands_in_a_state_only_while_it_is_so() -> None:
    state = PartitionState(1, 3, (1, 2), 7, recovering=True)
    assert state.encode() == (
        b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2],"leader_recovery_state":1}'
    )
    assert PartitionState.decode(state.encode()) == state


def test_eligible_replicas_stand_in_a_state_only_while_there_are_some() -> None:
    state = PartitionState(1, 3, (1,), 7, eligible=(2, 0))
    assert state.encode() == (
        b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":3,"isr":[1],"eligible_leader_replicas":[2,0]}'
    )
    assert PartitionState.decode(state.encode()) == state


def test_producer_id_blocks_follow_each_other() -> None:
    assert ProducerIdBlock.decode(b"") is None
    first = ProducerIdBlock.after(None, 1)
    assert (first.first, first.last) == (0, 999)
    assert ProducerIdBlock.after(first, 2) == ProducerIdBlock(2, 1000, 1999)


def test_other_payloads_are_read_back() -> None:
    assert payloads.encode_isr_change([("t", 0)]) == b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    assert payloads.encode_log_dir_event(1) == b'{"version":1,"broker":1,"event":1}'
    assert payloads.decode_log_dir_event(payloads.encode_log_dir_event(3)) == 3
    assert payloads.decode_config_change(b'{"version":1,"entity_type":"topics","entity_name":"t"}') == "topics/t"
    assert payloads.decode_config(b"") == {}
    assert payloads.decode_feature(b'{"features":{"f":{"max_version_level":2}},"version":2,"status":0}') == {}
    assert payloads.decode_acls(b"") == []
    assert payloads.decode_acls(payloads.encode_acls([AclRule("User:a", "Deny", "*", "All")]))[0].operation == "All"
    assert payloads.decode_number(payloads.encode_number(12)) == 12
    assert ControllerNode.decode(b'{"version":1,"brokerid":1,"timestamp":"9"}') == ControllerNode(1, 9)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_payload_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        payloads.decode_cluster_id(data)


DECODERS = {name: getattr(payloads, name) for name in dir(payloads) if name.startswith("decode_")}
del DECODERS["decode_topic_deletion"]  # Kafka's wishes have no data: what is no id says nothing
DECODERS |= {
    each.__name__: each.decode
    for each in (BrokerRegistration, ControllerNode, PartitionState, ProducerIdBlock, TopicAssignment)
}
ODD = [b"\xff", b"{", b"7", b"null", b"[]", b'"text"', b"{}", b'{"version":1}']
ODD += [
    json.dumps(dict.fromkeys(("partitions", "endpoints", "config", "acls", "features", "subscription", "isr"), value))
    .encode()
    .replace(b"}", b',"status":1}')
    for value in (7, None, [7], "x", {"x": 7})
]


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_no_such_payload_is_a_value_error(name: str) -> None:
    refused = 0
    for data in ODD:
        try:
            DECODERS[name](data)
        except ValueError:
            refused += 1
    assert refused > 0
