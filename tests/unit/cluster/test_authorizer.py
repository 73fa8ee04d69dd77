"""Access rules in the tree, as Kafka 3.9 keeps them, and brokers that follow their changes."""

import json
from typing import Any

import pytest
from barnabas.cluster.security import authorizer as authorizer_module
from barnabas.cluster.security.acls import (
    THIS_BROKER,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from barnabas.cluster.security.authorizer import Authorizer
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.broker import BrokerConfig
from simulator.coordination import Fate, SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

READ, TOPIC = AclOperation.READ, ResourceType.TOPIC
ORDERS = Acl(Resource(TOPIC, "orders"), "User:alice", "*", READ, Permission.ALLOW)
APPS = Acl(Resource(ResourceType.GROUP, "app-", PatternType.PREFIXED), "User:alice", "*", READ, Permission.ALLOW)


class Brokers:
    """Two brokers with one tree."""

    def __init__(self, env: Any, **settings: str) -> None:
        self.env = env
        self.tree = SimTree(env.clock)
        config = BrokerConfig.of({name.replace("_", "."): value for name, value in settings.items()})
        self.sessions = [SimCoordination(env.clock, self.tree) for _ in range(2)]
        self.first, self.second = (Authorizer(env, config, session, lambda: True) for session in self.sessions)

    async def start(self) -> None:
        for session, authorizer in zip(self.sessions, (self.first, self.second), strict=True):
            await session.start()
            await authorizer.start()

    def stop(self) -> None:
        self.first.stop()
        self.second.stop()


@pytest.fixture
def env() -> SimEnv:
    return sim_env(1)


@pytest.fixture
def brokers(env: Any) -> Any:
    brokers = Brokers(env, super_users="User:root; User:a,b")
    env.run(brokers.start())
    yield brokers
    brokers.stop()


def test_rules_are_kept_as_kafka_keeps_them(env: Any, brokers: Brokers) -> None:
    """The nodes and notices that Kafka 3.9 wrote for the same rules."""

    async def story() -> None:
        tree = brokers.sessions[0]
        await brokers.first.add([ORDERS, APPS])
        rule = {"principal": "User:alice", "permissionType": "Allow", "host": "*", "operation": "Read"}
        for path in ("/kafka-acl/Topic/orders", "/kafka-acl-extended/prefixed/Group/app-"):
            data, stat = await tree.get(path)
            assert json.loads(data) == {"acls": [rule], "version": 1}
            assert stat.version == 0
        assert await tree.get("/kafka-acl-changes/acl_changes_0000000000")
        assert (await tree.get("/kafka-acl-changes/acl_changes_0000000000"))[0] == b"TOPIC:orders"
        data, _ = await tree.get("/kafka-acl-extended-changes/acl_changes_0000000000")
        assert json.loads(data) == {"version": 1, "resourceType": "GROUP", "name": "app-", "patternType": "PREFIXED"}
        await brokers.first.remove(AclFilter(type=TOPIC))
        assert await tree.exists("/kafka-acl/Topic/orders") is None

    env.run(story())


def test_all_brokers_hear_of_a_change(env: Any, brokers: Brokers) -> None:
    async def story() -> None:
        rights = brokers.second.rights_of("User:alice", "192.0.2.1")
        assert not rights.may(READ, TOPIC, "orders")
        await brokers.first.add([ORDERS])
        assert brokers.first.rights_of("User:alice", "192.0.2.1").may(READ, TOPIC, "orders")
        await env.clock.sleep(1_000)
        assert brokers.second.rights_of("User:alice", "192.0.2.1").may(READ, TOPIC, "orders")
        assert await brokers.second.remove(AclFilter(principal="User:alice")) == [ORDERS]
        await env.clock.sleep(1_000)
        assert not brokers.first.rights_of("User:alice", "192.0.2.1").may(READ, TOPIC, "orders")

    env.run(story())


def test_changes_of_two_brokers_at_the_same_time_are_both_made(env: Any, brokers: Brokers) -> None:
    async def story() -> None:
        other = ORDERS._replace(principal="User:bob")
        first = env.clock.loop.create_task(brokers.first.add([ORDERS]))
        second = env.clock.loop.create_task(brokers.second.add([other]))
        await first
        await second
        await env.clock.sleep(1_000)
        assert set(brokers.first.table) == set(brokers.second.table) == {ORDERS, other}

    env.run(story())


def test_a_broker_that_starts_later_knows_the_rules(env: Any, brokers: Brokers) -> None:
    async def story() -> None:
        await brokers.first.add([ORDERS, APPS])
        session = SimCoordination(env.clock, brokers.tree)
        await session.start()
        later = Authorizer(env, BrokerConfig.of({}), session, lambda: True)
        await later.start()
        assert set(later.table) == {ORDERS, APPS}
        later.stop()

    env.run(story())


def test_names_that_no_node_can_have_have_rules_too(env: Any, brokers: Brokers) -> None:
    """As in Kafka 4.3.1. A name that is spelled like an encoded one is another name."""
    names = ("team/app", "team%2Fapp", "/", "a//b", ".", "..", "a\0b", "*/", "100%/ü")
    rules = [
        Acl(Resource(ResourceType.GROUP, name, pattern), "User:alice", "*", READ, Permission.ALLOW)
        for name in names
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
    ]

    async def story() -> None:
        await brokers.first.add(rules[:2])
        assert not brokers.first.rights_of("User:alice", "192.0.2.1").may(READ, ResourceType.GROUP, "team%2Fapp")
        assert brokers.first.rights_of("User:alice", "192.0.2.1").may(READ, ResourceType.GROUP, "team/app/one")
        await brokers.first.add(rules[2:])
        await env.clock.sleep(1_000)
        assert set(brokers.second.table) == set(rules)
        session = SimCoordination(env.clock, brokers.tree)
        await session.start()
        later = Authorizer(env, BrokerConfig.of({}), session, lambda: True)
        await later.start()
        assert set(later.table) == set(rules)
        later.stop()
        assert len(await brokers.second.remove(AclFilter(principal="User:alice"))) == len(rules)
        await env.clock.sleep(1_000)
        assert not list(brokers.first.table)

    env.run(story())


def test_a_lost_session_loses_no_change(env: Any, brokers: Brokers) -> None:
    async def story() -> None:
        brokers.tree.expire(brokers.sessions[1].session_id)
        await brokers.first.add([ORDERS])
        await env.clock.sleep(20_000)
        assert set(brokers.second.table) == {ORDERS}

    env.run(story())


def test_a_change_that_is_not_made_is_no_rule(env: Any, brokers: Brokers) -> None:
    async def story() -> None:
        brokers.tree.trouble = lambda name: Fate.LOST_BEFORE
        with pytest.raises(CoordinationError):
            await brokers.first.add([ORDERS])
        brokers.tree.trouble = lambda name: Fate.DONE
        assert not brokers.first.decide("User:alice", "h", READ, TOPIC, "orders").allowed

    env.run(story())


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[{"principal":"User:a"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","host":"*","operation":"Fly"}]}',
    ],
)
def test_rules_that_cannot_be_read_deny_everything_until_they_are_set_anew(
    env: Any, brokers: Brokers, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A start with them is none that nobody can mend, and others are not concerned. A rule that denies may be lost."""

    async def story() -> None:
        tree, resource = brokers.sessions[0], Resource(TOPIC, "t")
        await brokers.first.add([ORDERS])
        await tree.create("/kafka-acl/Topic/t", data)
        await tree.create("/kafka-acl-changes/acl_changes_", b"TOPIC:t", sequential=True)
        await env.clock.sleep(1_000)
        session = SimCoordination(env.clock, brokers.tree)
        await session.start()
        later = Authorizer(env, BrokerConfig.of({"super.users": "User:root"}), session, lambda: True)
        await later.start()
        brokers.tree.expire(session.session_id)
        await env.clock.sleep(20_000)
        for authorizer in (brokers.first, brokers.second, later):
            assert not authorizer.decide("User:alice", "h", READ, TOPIC, "t").allowed
            assert authorizer.decide("User:root", "h", READ, TOPIC, "t").allowed
            assert authorizer.decide("User:alice", "h", READ, TOPIC, "orders").allowed
        lines = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
        assert len(lines) == 3
        assert all("/kafka-acl/Topic/t" in line for line in lines)
        rule = ORDERS._replace(resource=resource)
        await later.add([rule])
        assert not later.decide("User:alice", "h", READ, TOPIC, "t").allowed
        [denying] = await later.remove(AclFilter(type=TOPIC, name="t", principal="User:*"))
        assert denying.permission is Permission.DENY
        await env.clock.sleep(1_000)
        assert brokers.second.decide("User:alice", "h", READ, TOPIC, "t").allowed
        later.stop()

    env.run(story())


def test_who_may_do_everything(brokers: Brokers) -> None:
    for principal, expected in (
        ("User:root", True),
        ("User:a,b", True),
        (THIS_BROKER, True),
        ("User:a", False),
        ("User:ANONYMOUS", False),
        ("User:", False),
        ("", False),
    ):
        assert brokers.first.rights_of(principal, "h").may(READ, TOPIC, "t") is expected
        assert brokers.first.rights_of(principal, "h").may_on_any(READ, TOPIC) is expected


def test_decisions_about_any_number_of_names_take_bounded_memory(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may ask about whatever they like, under many principals, and with names of 32 KB."""
    monkeypatch.setattr(authorizer_module, "DECISIONS_MAX", 500)
    for number in range(3_000):
        rights = brokers.first.rights_of(f"User:{number % 40}", "/192.0.2.1")
        assert not rights.may(READ, TOPIC, f"{number}")
        assert not rights.may(READ, TOPIC, f"{'n' * 30_000}{number}")
    remembered = [name for each in brokers.first.rights.values() for _, _, name in each]
    assert 0 < len(remembered) <= 500
    assert max(map(len, remembered)) < 1_000
