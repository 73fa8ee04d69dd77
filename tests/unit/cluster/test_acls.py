"""Which rule decides: names, prefixes, all; who denies; what one operation implies."""

import pytest
from barnabas.cluster.security.acls import (
    OPERATIONS_OF,
    Acl,
    AclFilter,
    AclOperation,
    AclTable,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)

READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICE, HOST = "User:alice", "192.0.2.1"


def rule(
    name: str,
    operation: AclOperation = READ,
    principal: str = ALICE,
    host: str = "*",
    *,
    deny: bool = False,
    prefix: bool = False,
    type: ResourceType = TOPIC,
) -> Acl:
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    return Acl(Resource(type, name, pattern), principal, host, operation, permission)


def table_of(*rules: Acl, allow_without_rules: bool = False) -> AclTable:
    table = AclTable(allow_without_rules=allow_without_rules)
    for each in rules:
        table.put(each.resource, {*table.of(each.resource), each})
    return table


def may(table: AclTable, operation: AclOperation, name: str, principal: str = ALICE, host: str = HOST) -> bool:
    return table.decide(principal, host, operation, TOPIC, name).allowed


@pytest.mark.parametrize(
    ("given", "operation", "name", "expected"),
    [
        ([], READ, "orders", False),
        ([rule("orders")], READ, "orders", True),
        ([rule("orders")], READ, "orders2", False),
        ([rule("orders")], WRITE, "orders", False),
        ([rule("*")], READ, "orders", True),
        ([rule("ord", prefix=True)], READ, "orders", True),
        ([rule("orders", prefix=True)], READ, "orders", True),
        ([rule("orders2", prefix=True)], READ, "orders", False),
        ([rule("*", prefix=True)], READ, "orders", False),  # a prefix is no wildcard
        ([rule("orders", principal="User:*")], READ, "orders", True),
        ([rule("orders", principal="User:bob")], READ, "orders", False),
        ([rule("orders", host=HOST)], READ, "orders", True),
        ([rule("orders", host="192.0.2.2")], READ, "orders", False),
        ([rule("orders", type=GROUP)], READ, "orders", False),
        ([rule("orders", ALL)], WRITE, "orders", True),
        ([rule("orders", WRITE)], DESCRIBE, "orders", True),
        ([rule("orders", AclOperation.CREATE)], DESCRIBE, "orders", False),
        ([rule("orders", AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS, "orders", True),
        ([rule("orders", AclOperation.ALTER)], AclOperation.DESCRIBE_CONFIGS, "orders", False),
        ([rule("orders"), rule("orders", deny=True)], READ, "orders", False),
        ([rule("orders"), rule("*", deny=True)], READ, "orders", False),
        ([rule("orders"), rule("o", deny=True, prefix=True)], READ, "orders", False),
        ([rule("orders"), rule("orders", ALL, deny=True)], READ, "orders", False),
        ([rule("orders"), rule("orders", READ, "User:*", deny=True)], READ, "orders", False),
        ([rule("orders"), rule("orders", WRITE, deny=True)], READ, "orders", True),
        ([rule("orders"), rule("orders", DESCRIBE, deny=True)], DESCRIBE, "orders", False),
        ([rule("orders"), rule("orders", READ, deny=True, host="192.0.2.2")], READ, "orders", True),
        ([rule("orders", READ, deny=True), rule("orders", DESCRIBE)], DESCRIBE, "orders", True),
    ],
)
def test_which_rules_allow(given: list[Acl], operation: AclOperation, name: str, expected: bool) -> None:
    assert may(table_of(*given), operation, name) is expected
    assert may(table_of(*reversed(given)), operation, name) is expected


def test_without_any_rule_for_it_everybody_may_if_the_setting_says_so() -> None:
    table = table_of(rule("orders", principal="User:bob"), allow_without_rules=True)
    assert not may(table, READ, "orders")
    assert may(table, READ, "free")
    table.put(Resource(TOPIC, "*"), [rule("*", principal="User:bob")])
    assert not may(table, READ, "free")


def test_the_rule_that_decides_is_named() -> None:
    denies = rule("orders", READ, "User:*", deny=True)
    assert table_of(rule("orders"), denies).decide(ALICE, HOST, READ, TOPIC, "orders").rule == denies
    assert table_of(rule("*")).decide(ALICE, HOST, READ, TOPIC, "orders").rule == rule("*")
    assert table_of().decide(ALICE, HOST, READ, TOPIC, "orders").rule is None


def test_rules_that_are_taken_back_count_no_more() -> None:
    table = table_of(rule("ord", prefix=True), rule("o", prefix=True), rule("q", prefix=True))
    for _ in range(2):  # the second time there is none
        table.put(Resource(TOPIC, "ord", PatternType.PREFIXED), [])
        table.put(Resource(TOPIC, "q", PatternType.PREFIXED), [])
    assert may(table, READ, "orders")
    assert not may(table, READ, "quotes")
    table.put(Resource(TOPIC, "o", PatternType.PREFIXED), [])
    assert not may(table, READ, "orders")
    assert list(table) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], False),
        ([rule("orders", WRITE)], True),
        ([rule("o", WRITE, prefix=True)], True),
        ([rule("*", WRITE)], True),
        ([rule("orders", READ)], False),
        ([rule("orders", WRITE), rule("*", WRITE, deny=True)], False),
        ([rule("orders", WRITE), rule("orders", ALL, deny=True)], False),
        ([rule("orders", WRITE), rule("ord", WRITE, deny=True, prefix=True)], False),
        ([rule("o", WRITE, prefix=True), rule("ord", WRITE, deny=True, prefix=True)], True),
        ([rule("o", WRITE, prefix=True), rule("o", WRITE, deny=True, prefix=True)], False),
        ([rule("*", WRITE), rule("o", WRITE, deny=True, prefix=True)], True),
        ([rule("orders", WRITE, "User:bob")], False),
    ],
)
def test_whether_there_is_anything_to_write_to(given: list[Acl], expected: bool) -> None:
    assert table_of(*given).allows_on_any(ALICE, HOST, WRITE, TOPIC) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], True),
        ([rule("orders", WRITE, deny=True)], True),
        ([rule("orders", WRITE, "User:bob")], True),
        ([rule("*", WRITE, "User:bob")], False),  # no topic is without rules
        ([rule("*", READ, deny=True)], False),
        ([rule("*", WRITE, "User:bob"), rule("orders", WRITE)], True),
    ],
)
def test_where_everybody_may_use_what_has_no_rules_there_may_be_nothing(given: list[Acl], expected: bool) -> None:
    """As Kafka 4.3.1 answers InitProducerId."""
    assert table_of(*given, allow_without_rules=True).allows_on_any(ALICE, HOST, WRITE, TOPIC) is expected


@pytest.mark.parametrize(
    ("given", "expected", "if_open"),
    [
        ([], False, True),
        ([rule("*")], True, True),
        ([rule("*"), rule("orders", deny=True)], False, False),
        ([rule("*"), rule("ord", ALL, deny=True, prefix=True)], False, False),
        ([rule("*"), rule("orders", principal="User:bob", deny=True)], True, True),
        ([rule("*"), rule("orders", WRITE, deny=True)], True, True),
        ([rule("*"), rule("orders", deny=True, type=GROUP)], True, True),
        ([rule("orders", principal="User:bob")], False, False),
        ([rule("o", prefix=True)], False, True),
    ],
)
def test_whether_everything_of_a_kind_may_be_read(given: list[Acl], expected: bool, if_open: bool) -> None:
    tables = [table_of(*given, allow_without_rules=each) for each in (False, True)]
    assert [table.allows_on_all(ALICE, HOST, READ, TOPIC) for table in tables] == [expected, if_open]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclFilter(), {"orders", "*", "ord", "billing"}),
        (AclFilter(type=TOPIC), {"orders", "*", "ord"}),
        (AclFilter(name="orders"), {"orders"}),
        (
            AclFilter(name="orders", pattern=PatternType.MATCH),
            {
                "orders",
                "*",
                "ord",
            },
        ),
        (AclFilter(name="orders", pattern=PatternType.PREFIXED), set()),
        (AclFilter(pattern=PatternType.PREFIXED), {"ord"}),
        (AclFilter(principal="User:bob"), {"billing"}),
        (AclFilter(operation=WRITE), {"*"}),
        (AclFilter(permission=Permission.DENY), {"ord"}),
        (AclFilter(host="10.0.0.1"), set()),
        (AclFilter(type=ResourceType.UNKNOWN), set()),
    ],
)
def test_which_rules_a_filter_finds(wanted: AclFilter, expected: set[str]) -> None:
    given = [
        rule("orders"),
        rule("*", WRITE),
        rule("ord", prefix=True, deny=True),
        rule("billing", principal="User:bob", type=GROUP),
    ]
    assert {each.resource.name for each in given if wanted.finds(each)} == expected


def test_the_bits_of_kafkas_answers() -> None:
    bits = {type: sum(1 << each for each in operations) for type, operations in OPERATIONS_OF.items()}
    assert (bits[TOPIC], bits[GROUP], bits[ResourceType.CLUSTER]) == (3576, 3400, 8096)


@pytest.mark.parametrize("written", ["0:0:0:0:0:0:0:1", "::1", "0000::0001"])
def test_an_address_of_ipv6_is_known_however_it_is_written(written: str) -> None:
    """Kafka knows the first form only; that of a client is the second here."""
    table = table_of(rule("orders", host=written))
    assert may(table, READ, "orders", host="::1")
    assert not may(table, READ, "orders", host="::2")
    table = table_of(rule("orders"), rule("orders", host=written, deny=True))
    assert not may(table, READ, "orders", host="::1")


@pytest.mark.parametrize("written", ["localhost", "192.0.2.0/24", "192.0.2.01", ":", "::1%"])
def test_what_is_no_address_is_nobodys(written: str) -> None:
    assert not may(table_of(rule("orders", host=written)), READ, "orders", host=HOST)
    assert not may(table_of(rule("orders", host=written)), READ, "orders", host="::1")
