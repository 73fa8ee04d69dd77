"""The checks of `barnabas doctor`, as tables of values: what fires, what does not, and that each command can be run."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import typer.main
from barnabas.cli.checks.facts import (
    LATER_FIELDS,
    NO_SETTINGS,
    Broker,
    Facts,
    Partition,
    Setting,
    Settings,
    Topic,
)
from barnabas.cli.checks.findings import Finding, Needs, Severity
from barnabas.cli.checks.groups import to_confirm
from barnabas.cli.checks.outcomes import examine
from barnabas.cli.checks.starting import start_again
from barnabas.cli.commands import app
from barnabas.cli.doctor import _print, as_document, missing_directories, not_known_yet
from barnabas.cli.open_transactions import Described, Open
from barnabas.cli.shared.exits import ExitCode
from barnabas.cli.start_options import parser
from barnabas.cluster.security.acls import Acl, AclOperation, Permission, Resource, ResourceType
from barnabas.offsets.lag import IsolationLag, PartitionLag, Status
from simulator.env import sim_env

NOW = 1_700_000_000_000
MINUTE = 60_000
NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

BROKER_SETTINGS = {
    "log.dirs": "/data/0",
    "message.max.bytes": "1048588",
    "socket.request.max.bytes": "104857600",
    "fetch.max.bytes": "57671680",
    "replica.fetch.max.bytes": "1048576",
    "replica.lag.time.max.ms": "30000",
    "replica.fetch.wait.max.ms": "500",
    "replica.socket.timeout.ms": "30000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.retention.minutes": "10080",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "1",
    "auto.create.topics.enable": "true",
    "log.retention.check.interval.ms": "300000",
    "log.cleaner.enable": "true",
    "min.insync.replicas": "1",
}
TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
    "min.insync.replicas": "1",
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}
CLUSTER = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "coordination.path": "/data/tree",
}
GIB = 1 << 30
MEMBER = {"member_id": "c-1", "instance_id": None, "client_id": "c", "host": "10.0.0.1"}
STOPPED_LOAD = {
    "topic": "__consumer_offsets",
    "partition": 3,
    "offset": 17,
    "end_offset": 19,
    "why": "in sync are [0] of [0, 1, 2], and min.insync.replicas wants 2",
    "waiting_groups": 2,
}
STATIC = MEMBER | {"instance_id": "one"}


def settings(values: dict[str, str], source: int = 4, **more: str) -> Settings:
    """Settings; those that are more were set: in the broker's file (4), or for a topic (1)."""
    rows = {name: Setting(text) for name, text in values.items()}
    return Settings(rows | {name.replace("_", "."): Setting(text, source) for name, text in more.items()})


def directory(**values: Any) -> dict[str, Any]:
    return {
        "path": "/data/0",
        "offline": None,
        "bytes": 100 * GIB,
        "free_bytes": 80 * GIB,
        "filling_bytes_per_second": 0.0,
        "full_in_seconds": None,
        "known_seconds": 7200.0,
        "largest": [{"topic": "orders", "bytes": 10 * GIB, "logs": 4}],
        "set_aside": 0,
        "first_set_aside": [],
    } | values


def health(node_id: int = 0, *groups: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "time_ms": NOW,
        "is_lease_held": True,
        "tree_trouble": None,
        "tree_held_by": None,
        "read_by_others": [],
        "certificates": [],
        "why_not_registered": None,
        "is_told_by_controller": True,
        "unreadable": [],
        "is_journal_on": True,
        "watching_since_ms": NOW - 120 * MINUTE,
        "loading_partitions": 0,
        "stopped_loads": [],
        "directories": [directory()],
        "behind": [],
        "failed_logs": 0,
        "failed": [],
        "write_blocked_logs": 0,
        "write_blocked": [],
        "handler_failures": 0,
        "upkeep_failures": 0,
        "are_all_watched": True,
        "groups_left_out": 0,
        "stopped_groups": 0,
        "expiring_groups": 0,
        "groups": list(groups),
    } | values


def group(**values: Any) -> dict[str, Any]:
    return {
        "group": "billing",
        "state": "Stable",
        "type": "classic",
        "members": 2,
        "clients": [MEMBER],
        "standing_partitions": 0,
        "unread_partitions": 0,
        "is_moving": False,
        "standing": [],
        "past_end_partitions": 0,
        "gone_topics": [],
        "expiring_partitions": 0,
        "expires_ms": None,
        "lost_records_max": 0,
        "threatened_records": 0,
        "threatened_topic": None,
        "goes_ms": None,
        "waits_ms": 0.0,
        "waited_for": [],
        "waited_for_members": 0,
        "rebalances": 0,
        "departures": 0,
        "last_rebalance_ms": None,
        "advice": None,
    } | values


def single(*groups: dict[str, Any], topics: Sequence[Topic] = (), lags: Any = None, **more: str) -> Facts:
    """One broker, with settings more than the defaults."""
    broker = Broker(0, True, "127.0.0.1", 9092, settings(BROKER_SETTINGS, **more), health(0, *groups))
    states = {row["group"]: row["state"] for row in groups}
    return Facts(NOW, [broker], 0, list(topics), states, lags or {})


def ending(days: int, ahead: float = 0) -> Facts:
    """One broker whose certificate ends in so many days, by a clock that is so many days behind the broker's."""
    ends = {"SSL": days, "INNER": days, "OTHER": 400}
    rows = [{"listener": name, "ends_ms": NOW + left * 86_400_000} for name, left in ends.items()]
    return with_health(single(), time_ms=NOW + int(ahead * 86_400_000), certificates=rows)


def cluster(
    *groups: dict[str, Any], topics: Sequence[Topic] = (), away: Sequence[int] = (), count: int = 3, **more: str
) -> Facts:
    """Several brokers. Those that are `away` are not registered."""
    brokers = [
        Broker(node, is_registered=False)
        if node in away
        else Broker(
            node,
            True,
            "127.0.0.1",
            9092 + node,
            settings(BROKER_SETTINGS | {"log.dirs": f"/data/{node}"}, **(CLUSTER | more)),
            health(node, *(groups if not node else ())),
        )
        for node in range(count)
    ]
    controller = next(node for node in range(count) if node not in away)
    return Facts(NOW, brokers, controller, list(topics), {})


def topic(
    name: str = "orders", replicas: Sequence[int] = (0,), leader: int | None = 0, in_sync: Any = None, **more: str
) -> Topic:
    isr = tuple(replicas if in_sync is None else in_sync)
    return Topic(name, [Partition(name, 0, leader, tuple(replicas), isr)], settings(TOPIC_SETTINGS, 1, **more))


def inherited(found: Topic, name: str) -> Topic:
    """The topic, which has that setting from its broker."""
    assert found.settings is not None
    values = {**found.settings.values, name: Setting(found.settings.text(name), 4)}
    return replace(found, settings=Settings(values))


THREE = (0, 1, 2)


def three(name: str = "orders", **values: Any) -> Topic:
    return topic(name, THREE, **({"min_insync_replicas": "2"} | values))


def with_order(*replicas: int) -> Topic:
    return topic("other", replicas, in_sync=(0,), min_insync_replicas="2")


def lag(status: Status = Status.OK, offset: int = 7, unread: int = 3, **values: Any) -> PartitionLag:
    found = IsolationLag(unread, unread, 100 * unread, 5.0 if unread else 0.0)
    if status is Status.PAST_LOG_END:
        return PartitionLag("orders", 0, offset, -1, b"", status, 0, log_end_offset=5, **values)
    return PartitionLag("orders", 0, offset, -1, b"", status, 0, read_uncommitted=found, log_end_offset=10, **values)


def standing(minutes: int = 12, offset: int = 7) -> dict[str, Any]:
    rows = [{"topic": "orders", "partition": 0, "offset": offset, "since_ms": NOW - minutes * MINUTE}]
    return {"unread_partitions": 1, "standing_partitions": 1, "standing": rows}


def changed(facts: Facts, node_id: int = 0, **values: Any) -> Facts:
    """The same, with another broker in a place."""
    brokers = [replace(each, **values) if each.node_id == node_id else each for each in facts.brokers]
    return replace(facts, brokers=brokers)


def with_health(facts: Facts, **values: Any) -> Facts:
    """The same, where broker 0 says other things of itself."""
    return changed(facts, health=health(0, **values))


LOG = [{"topic": "orders", "partition": 0, "why": "No space left on device"}]
UNDECIDED = {"topic": "orders", "partition": 0, "waits_for": [2]}
STALLED = {"billing": [lag()]}


# check, what is so, its severity, and a piece of the command.
def with_transaction(state: str = "Ongoing", minutes: float = 20, timeout_minutes: float = 60) -> Facts:
    """One that began some minutes ago."""
    began, timeout_ms = NOW - int(minutes * MINUTE), int(timeout_minutes * MINUTE)
    one = Described("-invoices", state, 0, 12, 0, timeout_ms, began, (("orders", 0), ("orders", 1)))
    return replace(single(), transactions=[one])


def with_rules(*rules: Acl, listeners: str = "S://127.0.0.1:1", **more: str) -> Facts:
    """Access rules of brokers at which people log in by SCRAM."""
    known = {"listener_security_protocol_map": "S:SASL_SSL,T:SSL,P:PLAINTEXT", "listeners": listeners}
    facts = single(**({"sasl_enabled_mechanisms": "SCRAM-SHA-512"} | known | more))
    return replace(facts, rules=rules, scram_users=frozenset({"alice"}))


def rule(principal: str, name: str = "t", permission: Permission = Permission.ALLOW) -> Acl:
    return Acl(Resource(ResourceType.TOPIC, name), principal, "*", AclOperation.READ, permission)


def of_the_consumer_protocol(state: str, level: int | None, **more: str) -> Facts:
    """A group of KIP-848, and the level of group.version."""
    return replace(single(**more), groups={"billing": state}, consumer_groups=["billing"], group_version=level)


BOB, DENYING = rule("User:bob"), rule("User:bob", permission=Permission.DENY)
PLAIN = {"listener_name_s_sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-512"}
CERTIFICATES = {"listener_name_t_ssl_client_auth": "required"}
WITHOUT_DIRECTORY = replace(
    cluster(topics=[three(), topic("alone", (2,), leader=None, in_sync=(2,))], away=[2]),
    missing_directories={"/data/2"},
)

FIRES: list[tuple[str, Facts, Severity, str]] = [
    ("access rules", with_rules(BOB), NOTE, "acls list --principal User:bob"),
    ("access rules", with_rules(BOB, DENYING), WARNING, "acls list --principal User:bob"),
    ("access rules", with_rules(rule("user:alice")), NOTE, "acls list --principal user:alice"),
    ("access rules", with_rules(rule("User:alice", "t*")), NOTE, "acls list --principal User:alice"),
    ("access rules", with_rules(rule("User:ANONYMOUS")), NOTE, "acls list --principal User:ANONYMOUS"),
    ("brokers", cluster(topics=[three()], away=[2]), ERROR, "start --data /data/2 --port 9094 --set node.id=2"),
    ("brokers", WITHOUT_DIRECTORY, ERROR, "start --data /data/2 --port 9094 --set node.id=2"),
    ("brokers", changed(cluster(), 1, settings=None, why_not="silent"), ERROR, "status --wait 10"),
    ("brokers", with_health(single(), is_lease_held=False), ERROR, "status"),
    ("brokers", with_health(single(), why_not_registered="the tree is empty"), ERROR, "cluster"),
    (
        "replicas",
        with_health(cluster(topics=[three(leader=None, in_sync=())], away=[2]), undecided=[UNDECIDED]),
        ERROR,
        "start --data /data/2 --port 9094 --set node.id=2",
    ),
    ("told brokers", with_health(cluster(), is_told_by_controller=False), ERROR, "super.users"),
    ("unreadable", with_health(single(), unreadable=[{"of": "users", "name": "'bob'"}]), WARNING, "users list"),
    ("unreadable", with_health(single(), unreadable=[{"of": "acls", "name": "topic 't'"}]), WARNING, "acls list"),
    ("files that others read", with_health(single(), read_by_others=["/data/tree"]), WARNING, "coordination.path"),
    ("tree", with_health(single(), tree_trouble="tree-wal was removed"), ERROR, "cluster"),
    ("tree", with_health(single(), tree_trouble="tree was replaced", is_lease_held=False), ERROR, "cluster"),
    (
        "set aside",
        with_health(single(), directories=[directory(set_aside=4, first_set_aside=["a-0.f-stray", "a-1.f-stray"])]),
        NOTE,
        "topics list",
    ),
    ("tree", with_health(single(), tree_held_by="process 7 (/bin/sqlite3)"), ERROR, "cluster"),
    (
        "hanging transactions",
        replace(single(), hanging=[Open("-t", 0, 12, 0, 0, 4711, NOW - 30 * MINUTE)]),
        ERROR,
        "transactions abort --topic=-t --partition 0 --start-offset 4711",
    ),
    ("open transactions", with_transaction(), WARNING, "transactions abort -- -invoices"),
    ("open transactions", with_transaction(minutes=62), ERROR, "transactions abort -- -invoices"),
    ("open transactions", with_transaction("PrepareCommit", minutes=2), ERROR, "cluster"),
    ("controller", replace(single(), controller=None), ERROR, "cluster"),
    ("controller", replace(cluster(), controller=7), ERROR, "cluster"),
    ("replicas", cluster(topics=[three(in_sync=(0, 1))], away=[2]), WARNING, "start --data /data/2"),
    ("replicas", cluster(topics=[three(in_sync=(0, 1))]), WARNING, "topics describe orders"),
    (
        "replicas",
        changed(cluster(topics=[three(in_sync=(0, 1))]), 2, health=health(2, watching_since_ms=NOW - MINUTE)),
        NOTE,
        "topics describe orders",
    ),
    ("replicas", cluster(topics=[three(in_sync=(0,))], away=[1, 2]), ERROR, "start --data /data/1"),
    (
        "replicas",
        cluster(topics=[three(in_sync=(0,)), with_order(2, 1, 0)], away=[1, 2]),
        ERROR,
        "start --data /data/1",
    ),
    ("replicas", cluster(topics=[three(leader=None, in_sync=(2,))], away=[2]), ERROR, "start"),
    ("replicas", cluster(topics=[three(leader=None)]), ERROR, "cluster"),
    ("coordinators", with_health(single(), stopped_loads=[STOPPED_LOAD]), ERROR, "cluster"),
    (
        "coordinators",
        with_health(cluster(away=[2]), stopped_loads=[STOPPED_LOAD, STOPPED_LOAD | {"waiting_groups": None}]),
        ERROR,
        "start --data /data/2",
    ),
    (
        "coordinators",
        with_health(single(), stopped_loads=[STOPPED_LOAD | {"topic": "__transaction_state", "waiting_groups": None}]),
        ERROR,
        "cluster",
    ),
    ("logs", with_health(single(), write_blocked_logs=1, write_blocked=LOG), ERROR, "configs describe topic orders"),
    ("logs", with_health(single(), failed_logs=1, failed=LOG), ERROR, "start --data /data/0 --port 9092"),
    ("logs", with_health(single(), directories=[directory(offline="I/O error", bytes=None)]), ERROR, "start"),
    (
        "disks",
        with_health(single(), directories=[directory(full_in_seconds=1800.0)]),
        ERROR,
        "configs describe topic orders",
    ),
    ("disks", with_health(single(), directories=[directory(full_in_seconds=20_000.0)]), WARNING, "topic orders"),
    ("disks", with_health(single(), directories=[directory(free_bytes=4 * GIB)]), WARNING, "topic orders"),
    ("disks", with_health(single(), directories=[directory(free_bytes=GIB // 2)]), ERROR, "topic orders"),
    ("disks", with_health(single(), directories=[directory(free_bytes=0, largest=[])]), ERROR, "cluster"),
    ("failures", with_health(single(), handler_failures=2), WARNING, "status"),
    ("failures", with_health(single(), upkeep_failures=2), WARNING, "status"),
    ("consumer groups", of_the_consumer_protocol("Stable", 0), ERROR, "features upgrade --feature group.version=1"),
    ("consumer groups", of_the_consumer_protocol("Empty", 0), NOTE, "features upgrade --feature group.version=1"),
    (
        "consumer groups",
        of_the_consumer_protocol("Stable", 1, group_coordinator_rebalance_protocols="classic, streams"),
        ERROR,
        "--set group.coordinator.rebalance.protocols=classic,consumer",
    ),
    ("stalled groups", single(group(**standing()), lags=STALLED), ERROR, "--topic orders:0 --shift-by 1 --live"),
    ("stalled groups", single(group(**standing(), is_moving=True), lags=STALLED), WARNING, "--live"),
    ("stalled groups", single(group(**standing(), type="consumer"), lags=STALLED), ERROR, "--shift-by 1 --live"),
    (
        "stalled groups",
        single(group(**standing()), lags={"billing": [lag(last_stable_offset=7, high_watermark=10)]}),
        ERROR,
        "groups describe billing",
    ),
    (
        "stalled groups",
        single(group(**standing()), lags={"billing": [lag(last_stable_offset=8, high_watermark=10)]}),
        ERROR,
        "--shift-by 1 --live",
    ),
    ("stopped groups", single(group(**standing(), members=0, state="Empty")), NOTE, "groups lag billing"),
    ("commits past the end", single(group(), lags={"billing": [lag(Status.PAST_LOG_END)]}), ERROR, "latest --live"),
    (
        "commits past the end",
        single(group(type="consumer"), lags={"billing": [lag(Status.PAST_LOG_END)]}),
        ERROR,
        "latest --live",
    ),
    (
        "commits past the end",
        single(group(members=0, state="Empty"), lags={"billing": [lag(Status.PAST_LOG_END)]}),
        WARNING,
        "offsets set billing --topic orders:0 --to latest",
    ),
    ("commits past the end", single(group(), lags={"billing": [lag(Status.LOG_CUT, cut_at=6)]}), ERROR, "--to 6"),
    ("commits past the end", single(group(), lags={"billing": [lag(Status.TOPIC_MADE_AGAIN)]}), ERROR, "earliest"),
    ("offsets of topics that are gone", single(group(gone_topics=["old"])), NOTE, "cleanup --group billing --gone"),
    (
        "expiring offsets",
        single(group(**standing(), members=0, expiring_partitions=1, expires_ms=NOW + MINUTE)),
        WARNING,
        "offsets.retention.minutes=20160",
    ),
    (
        "expiring offsets",
        single(group(members=0, expiring_partitions=1, expires_ms=NOW + MINUTE)),
        NOTE,
        "offsets.retention.minutes=20160",
    ),
    (
        "hanging members",
        single(group(state="PreparingRebalance", waits_ms=45_000.0, waited_for=[MEMBER], waited_for_members=1)),
        WARNING,
        "groups remove billing --member c-1",
    ),
    (
        "hanging members",
        single(group(state="CompletingRebalance", waits_ms=4e5, waited_for=[STATIC], waited_for_members=1)),
        ERROR,
        "groups remove billing --instance one",
    ),
    (
        "hanging members",
        single(
            group(type="consumer", state="Reconciling", waits_ms=45_000.0, waited_for=[MEMBER], waited_for_members=1)
        ),
        WARNING,
        "groups remove billing --member c-1",
    ),
    (
        "rebalance storms",
        single(group(rebalances=8, departures=4, last_rebalance_ms=NOW - 10_000)),
        WARNING,
        "groups explain billing",
    ),
    (
        "unread records that go",
        single(group(threatened_records=9, threatened_topic="orders", goes_ms=NOW + 5 * MINUTE), topics=[topic()]),
        ERROR,
        "barnabas.retention.wait.for.groups=billing",
    ),
    (
        "unread records that go",
        single(
            group(threatened_records=9, threatened_topic="orders", goes_ms=NOW + 300 * MINUTE),
            topics=[topic(barnabas_retention_wait_for_groups="audit")],
        ),
        WARNING,
        "barnabas.retention.wait.for.groups=audit,billing",
    ),
    ("unread records that go", single(group(lost_records_max=3)), WARNING, "offsets set billing --to earliest"),
    ("unread records that go", single(group(lost_records_max=3, members=0)), NOTE, "offsets set billing"),
    ("in-sync replicas", cluster(topics=[three(min_insync_replicas="4")]), WARNING, "min.insync.replicas=2"),
    ("in-sync replicas", cluster(topics=[three(min_insync_replicas="3")]), WARNING, "min.insync.replicas=2"),
    ("in-sync replicas", cluster(topics=[three(min_insync_replicas="1")]), WARNING, "min.insync.replicas=2"),
    (
        "in-sync replicas",
        cluster(topics=[topic(min_insync_replicas="2")]),
        WARNING,
        "create orders-replicated --partitions 1",
    ),
    ("in-sync replicas", cluster(topics=[topic(replicas=THREE)]), WARNING, "set broker default min.insync.replicas=2"),
    ("replication", single(offsets_topic_replication_factor="3"), ERROR, "offsets.topic.replication.factor=1"),
    (
        "replication",
        cluster(transaction_state_log_replication_factor="4"),
        WARNING,
        "transaction.state.log.replication.factor=3",
    ),
    ("replication", cluster(topics=[topic("__consumer_offsets")]), WARNING, "topics describe __consumer_offsets"),
    ("replication", cluster(default_replication_factor="1"), WARNING, "default.replication.factor=3"),
    (
        "replication",
        cluster(default_replication_factor="1", auto_create_topics_enable="false"),
        NOTE,
        "default.replication.factor=3",
    ),
    ("replication", cluster(topics=[topic()]), NOTE, "topics describe orders"),
    ("replication", cluster(transaction_state_log_min_isr="4"), WARNING, "transaction.state.log.min.isr=3"),
    (
        "unclean elections",
        cluster(topics=[three(unclean_leader_election_enable="true")]),
        WARNING,
        "unclean.leader.election.enable=false",
    ),
    (
        "unclean elections",
        cluster(topics=[three("__consumer_offsets", unclean_leader_election_enable="true")]),
        ERROR,
        "configs set topic __consumer_offsets",
    ),
    (
        "open listeners",
        single(listeners="PLAINTEXT://0.0.0.0:9092", listener_security_protocol_map="PLAINTEXT:PLAINTEXT"),
        WARNING,
        "configs describe broker 0 authorizer.class.name --docs",
    ),
    (
        "open listeners",
        single(
            listeners="USERS://:9092",
            listener_security_protocol_map="USERS:SASL_PLAINTEXT",
            sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256",
        ),
        WARNING,
        "users list",
    ),
    (
        "weak settings",
        single(
            listeners="SSL://:9092", listener_security_protocol_map="SSL:SSL", ssl_enabled_protocols="TLSv1.1,TLSv1.2"
        ),
        WARNING,
        "ssl.enabled.protocols=TLSv1.2,TLSv1.3",
    ),
    ("certificates", ending(20), WARNING, "describe broker 0 ssl.keystore.location"),
    ("certificates", ending(0), ERROR, "describe broker 0 ssl.keystore.location"),
    ("certificates", ending(100, ahead=99.5), ERROR, "describe broker 0 ssl.keystore.location"),
    ("retention", single(topics=[topic(retention_bytes="104857600")]), WARNING, "topic orders segment.bytes"),
    ("retention", single(topics=[topic(retention_ms="60000")]), NOTE, "log.retention.check.interval.ms=60000"),
    ("retention", single(log_retention_check_interval_ms="86400000"), WARNING, "check.interval.ms=300000"),
    ("retention", single(offsets_retention_minutes="60"), WARNING, "offsets.retention.minutes=10080"),
    (
        "retention",
        replace(single(topics=[topic(barnabas_retention_wait_for_groups="billing")]), groups={"billing": "Empty"}),
        WARNING,
        "offsets.retention.minutes=12960",
    ),
    (
        "retention",
        single(topics=[topic(retention_ms="1000000", barnabas_retention_wait_for_groups="nobody")]),
        WARNING,
        "configs describe topic orders",
    ),
    (
        "retention",
        single(topics=[topic(retention_ms="1000000", barnabas_retention_wait_for_groups="no-*")]),
        NOTE,
        "configs describe topic orders",
    ),
    ("sizes", single(message_max_bytes="209715200"), WARNING, "configs set broker default message.max.bytes="),
    ("sizes", single(topics=[topic(max_message_bytes="209715200")]), WARNING, "topic orders max.message.bytes="),
    ("sizes", single(topics=[topic(max_message_bytes="62914560")]), NOTE, "topic orders max.message.bytes="),
    ("sizes", cluster(topics=[three(max_message_bytes="2097152")]), NOTE, "replica.fetch.max.bytes=2097152"),
    ("group settings", single(group_min_session_timeout_ms="2000000"), ERROR, "group.min.session.timeout.ms=6000"),
    ("group settings", single(group_min_session_timeout_ms="60000"), WARNING, "group.min.session.timeout.ms=6000"),
    ("group settings", single(group_max_session_timeout_ms="30000"), WARNING, "group.max.session.timeout.ms=1800000"),
    ("group settings", single(group_initial_rebalance_delay_ms="90000"), WARNING, "rebalance.delay.ms=3000"),
    ("group settings", single(group_initial_rebalance_delay_ms="300000"), ERROR, "rebalance.delay.ms=3000"),
    ("group settings", cluster(offsets_commit_required_acks="1"), WARNING, "offsets.commit.required.acks=-1"),
    ("group settings", with_health(single(), is_journal_on=False), NOTE, "offsets.journal.enable=true"),
    (
        "compaction",
        single(topics=[topic("__consumer_offsets", cleanup_policy="compact,delete")]),
        ERROR,
        "cleanup.policy=compact",
    ),
    (
        "compaction",
        single(topics=[topic(cleanup_policy="compact")], log_cleaner_enable="false"),
        ERROR,
        "log.cleaner.enable=true",
    ),
    ("time-outs", cluster(replica_lag_time_max_ms="600"), WARNING, "replica.lag.time.max.ms=30000"),
    ("time-outs", cluster(replica_socket_timeout_ms="500"), ERROR, "replica.socket.timeout.ms=30000"),
    ("time-outs", cluster(coordination_session_timeout_ms="600"), NOTE, "coordination.session.timeout.ms=6000"),
    (
        "settings that differ",
        changed(cluster(), 1, settings=settings(BROKER_SETTINGS, **CLUSTER | {"fetch_max_bytes": "1000000"})),
        WARNING,
        "fetch.max.bytes=57671680",
    ),
    ("HTTP access", single(http_listeners="http://0.0.0.0:8080"), WARNING, "http.token=SECRET"),
]

QUIET: list[tuple[str, Facts]] = [
    ("consumer groups", replace(single(), group_version=0)),
    ("consumer groups", of_the_consumer_protocol("Stable", 1)),
    ("consumer groups", of_the_consumer_protocol("Stable", 1, group_coordinator_rebalance_protocols="consumer")),
    ("consumer groups", of_the_consumer_protocol("Stable", None)),
    ("access rules", with_rules(rule("User:alice"), rule("User:*", "*"))),
    ("access rules", with_rules(rule("User:ANONYMOUS"), listeners="S://:1,P://:2")),
    ("access rules", with_rules(BOB, **PLAIN)),  # users of PLAIN are known to the broker only
    ("access rules", with_rules(BOB, listeners="S://:1,T://:2", **CERTIFICATES)),
    (
        "open listeners",
        single(listeners="PLAINTEXT://localhost:1", listener_security_protocol_map="PLAINTEXT:PLAINTEXT"),
    ),
    (
        "all",
        single(
            listeners="SSL://:1,SASL_SSL://:2",
            listener_security_protocol_map="SSL:SSL,SASL_SSL:SASL_SSL",
            ssl_client_auth="required",
            ssl_enabled_protocols="TLSv1.2,TLSv1.3",
            sasl_enabled_mechanisms="PLAIN",
        ),
    ),
    ("certificates", ending(31)),
    ("certificates", ending(1, ahead=-40)),
    ("all", single()),
    ("all", single(topics=[topic(), topic("__consumer_offsets", cleanup_policy="compact", retention_ms="1")])),
    ("all", cluster(topics=[three(), three("__consumer_offsets", cleanup_policy="compact")])),
    ("all", replace(single(), controller=0, groups={"done": "Empty", "quiet": "Stable"})),
    # A partition of one replica is whole; an ISR that has grown beyond the minimum, too.
    ("replicas", single(topics=[topic(min_insync_replicas="2")])),
    ("in-sync replicas", single(topics=[topic(min_insync_replicas="2")])),
    ("in-sync replicas", cluster(topics=[inherited(topic(min_insync_replicas="2"), "min.insync.replicas")])),
    # The disk fills slowly; a large one has five per cent left, which is much.
    ("disks", with_health(single(), directories=[directory(full_in_seconds=3e6, filling_bytes_per_second=9.0)])),
    ("disks", with_health(single(), directories=[directory(bytes=10_000 * GIB, free_bytes=90 * GIB)])),
    ("disks", with_health(single(), directories=[directory(bytes=None, free_bytes=None, offline="x")])),
    # What seemed unread is none (control records), or was read since; or the group cannot be looked at.
    ("stalled groups", single(group(**standing()), lags={"billing": [lag(unread=0)]})),
    ("stalled groups", single(group(**standing()), lags={"billing": [lag(offset=8)]})),
    ("stalled groups", single(group(**standing()), lags={"billing": []})),
    ("stalled groups", replace(single(group(**standing())), not_confirmed=["billing"])),
    # Nobody is there to read: no alarm.
    ("stalled groups", single(group(**standing(), members=0, state="Empty"))),
    ("stopped groups", single(group(members=0, state="Empty", rebalances=3))),
    # A commit that was ahead of what the coordinator knew.
    ("commits past the end", single(group(past_end_partitions=1), lags={"billing": [lag()]})),
    ("hanging members", single(group(waits_ms=20_000.0, waited_for=[MEMBER], waited_for_members=1))),
    ("hanging members", single(group(waits_ms=90_000.0))),
    # A group that grew; one that was restarted and is quiet again; a few rebalances.
    ("rebalance storms", single(group(rebalances=12, departures=0, last_rebalance_ms=NOW - 1_000))),
    ("rebalance storms", single(group(rebalances=12, departures=6, last_rebalance_ms=NOW - 6 * MINUTE))),
    ("rebalance storms", single(group(rebalances=3, departures=3, last_rebalance_ms=NOW))),
    # More brokers are known than live, and the topic is there already.
    ("replication", single(topics=[topic("__consumer_offsets")], offsets_topic_replication_factor="3")),
    ("replication", single(topics=[topic()])),
    ("retention", single(topics=[topic(retention_bytes="-1"), topic("__consumer_offsets", retention_bytes="1")])),
    ("retention", single(topics=[topic(cleanup_policy="compact", retention_ms="1", retention_bytes="1")])),
    (
        "retention",
        replace(
            single(topics=[topic(retention_ms="86400000", barnabas_retention_wait_for_groups="bill*")]),
            groups={"billing": "Empty"},
        ),
    ),
    ("group settings", single(offsets_commit_required_acks="1")),
    ("group settings", single(group_initial_rebalance_delay_ms="0")),
    ("compaction", single(topics=[topic()], log_cleaner_enable="false")),
    ("time-outs", single(replica_lag_time_max_ms="600")),
    ("settings that differ", changed(cluster(), 1, settings=None)),
    ("HTTP access", single(http_listeners="http://127.0.0.1:0,http://[::1]:80,http://localhost:1")),
    ("HTTP access", single(http_listeners="none")),
    ("HTTP access", single(http_listeners="http://0.0.0.0:8080", http_token="x")),
    ("open transactions", with_transaction(minutes=9)),
    ("open transactions", with_transaction(minutes=9.5, timeout_minutes=9)),
    ("open transactions", with_transaction("PrepareAbort", minutes=0.5)),
]


def found_by(name: str, facts: Facts) -> list[Finding]:
    outcomes = examine(facts, 100)
    return [finding for one in outcomes if name in ("all", one.check.name) for finding in one.findings]


@pytest.mark.parametrize(("name", "facts", "severity", "command"), FIRES, ids=lambda value: str(value)[:30])
def test_a_trouble_is_found(name: str, facts: Facts, severity: Severity, command: str) -> None:
    rows = found_by(name, facts)
    assert [(row.severity, command in row.command_line(None)) for row in rows].count((severity, True)) == 1, rows
    for row in rows:
        assert not row.what.endswith("."), "a piece of a sentence"
        assert row.why.endswith("."), "sentences"


@pytest.mark.parametrize(("name", "facts"), QUIET, ids=[f"{name}-{number}" for number, (name, _) in enumerate(QUIET)])
def test_what_is_no_trouble_is_not_told(name: str, facts: Facts) -> None:
    assert found_by(name, facts) == []


@pytest.mark.parametrize(("days", "left"), [(20, "20 d"), (1, "1 d"), (0, "0 s")])
def test_when_a_certificate_ends_is_told(days: int, left: str) -> None:
    [found] = found_by("certificates", ending(days))
    assert found.what == f"the certificate of listener SSL, INNER ends in {left}"


def test_every_check_has_a_row_that_fires() -> None:
    made = {one.check.name for one in examine(single(), 1)}
    assert {name for name, *_ in FIRES} == made


@pytest.mark.parametrize(
    "command", sorted({row.command for name, facts, *_ in FIRES for row in found_by(name, facts)}), ids=" ".join
)
def test_every_command_is_one_that_there_is(command: tuple[str, ...]) -> None:
    words = shlex.split(Finding(NOTE, "", "", "", command).command_line(None if command[0] == "start" else "h:1"))[1:]
    if words[0] == "start":
        parser().parse_args(words[1:])
        return
    found: Any = typer.main.get_command(app)
    context = None
    while hasattr(found, "get_command"):
        context = found.make_context(words[0], words, parent=context) if context is None else context
        words = ["show", *words] if words[0].startswith("-") else words  # `barnabas cluster` alone
        found, words = found.get_command(context, words[0]), words[1:]
        assert found is not None, command
    assert found.make_context("command", list(words)).params, command


# What makes retention, compaction or an admin take records that are there.
REMOVES_RECORDS = (
    *("retention.bytes=", "retention.ms=", "retention.minutes=", "retention.hours=", "segment.bytes=", "segment.ms="),
    *("roll.ms=", "roll.hours=", "cleanup.policy=delete", "election.enable=true"),
    *("topics delete", "records delete", "--give-up", "--set-aside"),
)


def test_no_command_removes_records() -> None:
    lines = {row.command_line(None) for name, facts, *_ in FIRES for row in found_by(name, facts)}
    # How long committed offsets stay is not how long records do.
    lines = {line.replace("offsets.retention.minutes=", "") for line in lines}
    assert [line for line in lines if any(each in line for each in REMOVES_RECORDS)] == []


def test_the_worst_is_first_and_the_rest_is_counted() -> None:
    many = [group(group=f"g{number}", lost_records_max=1) for number in range(10_000)]
    facts = with_health(single(), failed_logs=1, failed=LOG)
    facts = changed(facts, health=health(0, *many, failed_logs=1, failed=LOG))
    outcomes = examine(facts, 5)
    assert [one.check.name for one in outcomes[:2]] == ["logs", "unread records that go"]
    assert (len(outcomes[1].findings), outcomes[1].left_out, outcomes[1].found) == (5, 9_995, 10_000)
    document = as_document(facts, outcomes, None, ExitCode.TROUBLED)
    assert (document["errors"], document["warnings"], document["exit_code"]) == (1, 10_000, 5)
    assert [row["severity"] for row in document["findings"]] == ["error", *["warning"] * 5]
    assert len(str(document)) < 20_000


def test_who_has_no_leader_though_all_replicas_are_there_is_sent_to_the_log_of_the_controller() -> None:
    """Somebody wrote the state of the partition by hand, say."""
    (finding,) = found_by("replicas", cluster(topics=[three(leader=None, in_sync=())]))
    assert "The log of broker 0, the controller, says why" in finding.why
    assert "is back" not in finding.why


def test_who_waits_for_log_ends_says_for_whom_and_how_to_go_on() -> None:
    facts = with_health(cluster(topics=[three(leader=None, in_sync=())]), undecided=[UNDECIDED])
    (finding,) = found_by("replicas", facts)
    assert "older copy: orders-0" in finding.what
    assert "broker 2 must say first where the logs end" in finding.why
    assert "--give-up" in finding.why
    assert "unclean.leader.election.enable" in finding.why


def test_nobody_is_told_to_make_room_where_the_broker_may_not_write() -> None:
    log = {"topic": "orders", "partition": 0, "why": "Read-only file system"}
    (finding,) = found_by("logs", with_health(single(), write_blocked_logs=1, write_blocked=[log]))
    assert "mounted read-only" in finding.why
    assert "room" not in finding.why


@pytest.mark.parametrize(("free_bytes", "is_said"), [(80 * GIB, True), (0, False)])
def test_a_disk_that_has_room_and_no_inodes(free_bytes: int, is_said: bool) -> None:
    facts = with_health(
        single(), write_blocked_logs=1, write_blocked=LOG, directories=[directory(free_bytes=free_bytes)]
    )
    (finding,) = found_by("logs", facts)
    assert ("df -i" in finding.why) == is_said


def test_a_broker_of_an_earlier_release_says_less() -> None:
    known = {name: value for name, value in health(0).items() if name not in LATER_FIELDS}
    facts = changed(single(), health=known)
    assert [one.check.name for one in examine(facts, 5) if one.findings or one.not_made] == []


def test_since_when_a_broker_is_away() -> None:
    facts = cluster(topics=[three(in_sync=(0, 1))], away=[2])
    behind = [{"node_id": 2, "partitions": 1, "since_ms": NOW - MINUTE}]
    facts = changed(changed(facts, health=health(0, behind=behind)), 1, health=health(1, behind=[]))
    assert {(row.where, row.since_ms) for row in found_by("all", facts) if row.severity > NOTE} == {
        ("broker 2", NOW - MINUTE),
        ("topic orders", NOW - MINUTE),
    }
    own = Finding(NOTE, "", "", "", ("status", "--bootstrap", "h:1"))
    assert own.command_line("other:2") == "barnabas status --bootstrap h:1"


def test_how_a_broker_is_started_again() -> None:
    facts = cluster(away=[2])
    words = start_again(facts, facts.brokers[2])
    assert words[:7] == ("start", "--data", "/data/2", "--port", "9094", "--set", "node.id=2")
    assert {f"{name}={value}" for name, value in CLUSTER.items()} == set(words[8::2])
    many = cluster(away=[2], **{f"more.{number}": "1" for number in range(100)}, **{"coordination.path": "/data/tree"})
    assert start_again(many, many.brokers[2])[5:] == ("--set", "node.id=2", "--set", "coordination.path=/data/tree")
    odd = changed(facts, 1, port=40_000)
    assert start_again(odd, odd.brokers[2]) == ("cluster",), "nobody knows its port"
    free = changed(cluster(away=[2], listeners="PLAINTEXT://127.0.0.1:0"), 1, port=40_000)
    assert start_again(free, free.brokers[2])[:5] == ("start", "--data", "/data/2", "--port", "0")
    elsewhere = changed(facts, 1, settings=settings({"log.dirs": "/disk1,/disk2"}))
    assert start_again(elsewhere, elsewhere.brokers[2]) == ("cluster",)
    assert start_again(elsewhere, elsewhere.brokers[1])[:3] == ("start", "--set", "log.dirs=/disk1,/disk2")
    assert start_again(single(), single().brokers[0], {"min.insync.replicas": "2"}) == (
        *("start", "--data", "/data/0", "--port", "9092", "--set", "min.insync.replicas=2"),
    )


def test_a_directory_counts_as_gone_only_if_those_of_the_others_are_here() -> None:
    """An empty one may be the mount point of a disk that is not mounted, and other machines have directories, too."""
    disk = sim_env().disk
    facts = cluster(away=[2])

    def made(number: int) -> None:
        disk.make_directory(f"/data/{number}")
        file = disk.open(f"/data/{number}/meta.properties", create=True)
        file.write(0, f"version=1\nnode.id={number}\n".encode())
        file.close()

    made(0)
    assert missing_directories(disk, facts) == frozenset()
    made(1)
    lost = missing_directories(disk, facts)
    assert lost == {"/data/2"}
    disk.make_directory("/data/2")
    assert missing_directories(disk, facts) == frozenset()


def test_who_lost_a_directory_is_told_what_begins_empty_without_it() -> None:
    (finding,) = found_by("brokers", WITHOUT_DIRECTORY)
    assert "add --give-up /data/2 to the command" in finding.why
    assert "no other replica, and begin empty: alone-0" in finding.why


def test_a_start_again_of_a_broker_with_secrets_wants_its_file() -> None:
    """Without its passwords, and those who may do everything, it would let nobody in."""
    hidden = settings(BROKER_SETTINGS)
    hidden.values = {**hidden.values, "super.users": Setting(None, 4), "ssl.enabled.protocols": Setting("TLSv1", 4)}
    facts = changed(single(), settings=hidden)
    words = start_again(facts, facts.brokers[0], {"ssl.enabled.protocols": "TLSv1.3"})
    assert words == ("start", "--config", "server.properties", "--set", "ssl.enabled.protocols=TLSv1.3")


def test_what_could_not_be_asked_is_said() -> None:
    kafka = changed(single(), health=None, has_http=False, why_not="it has no HTTP API")
    outcomes = examine(kafka, 5)
    for one in outcomes:
        assert (one.not_made is None) == (one.check.needs is not Needs.HTTP)
        assert one.not_made is None or "Apache Kafka" in one.not_made
    silent = changed(cluster(), 1, health=None, why_not="the HTTP API at h:1 does not answer")
    assert {one.not_made for one in examine(silent, 5)} == {
        None,
        "broker 1: the HTTP API at h:1 does not answer",
    }


def test_without_the_right_to_see_settings_no_check_of_them_was_made() -> None:
    untold = "its settings are not told: a right is missing"
    facts = changed(single(), settings=NO_SETTINGS, health=None, why_not=untold, untold=untold)
    for one in examine(facts, 5):
        assert one.not_made == (None if one.check.needs is Needs.KAFKA else f"broker 0: {untold}")
    hidden = replace(single(), topics=[Topic("t", [])])
    assert not_known_yet(hidden) == ["1 topic whose settings are not told (the right describe-configs)"]


def test_checks_that_were_not_made_are_not_said_to_have_found_nothing_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = changed(single(), health=None, why_not="UNAUTHORIZED: it needs a token. Set TOKEN.")
    for facts, last, before in ((single(), "Nothing is wrong: ", ""), (silent, "Nothing was found: ", "Set TOKEN.\n")):
        _print(facts, examine(facts, 5), None)
        said = capsys.readouterr().out
        assert said.splitlines()[-1].startswith(last)
        assert before in said


def test_what_is_not_known_yet_is_said() -> None:
    assert not_known_yet(single()) == []
    new = with_health(single(), watching_since_ms=NOW - MINUTE, directories=[directory(known_seconds=30.0)])
    assert [line[:25] for line in not_known_yet(new)] == ["broker 0 has watched its ", "broker 0 has watched its "]
    newer = with_health(
        single(), watching_since_ms=None, loading_partitions=3, groups_left_out=7, are_all_watched=False
    )
    assert len(not_known_yet(newer)) == 4
    assert not_known_yet(replace(single(), groups=None, not_confirmed=["g"])) == [
        "the groups could not be listed",
        "1 group that may have a problem: not looked at more closely",
    ]


def test_only_groups_that_seem_wrong_are_looked_at_again_the_worst_first() -> None:
    rows = [
        group(group="fine"),
        group(group="stalled", **standing()),
        group(group="stopped", **standing(), members=0),
        group(group="past", past_end_partitions=1),
    ]
    assert to_confirm([health(0, *rows)]) == ["past", "stalled"]
