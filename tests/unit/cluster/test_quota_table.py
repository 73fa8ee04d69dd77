"""Which quota counts for a client, who shares it, which are valid, and which a filter finds."""

import pytest
from barnabas.cluster.client_quotas import entity_at, entity_path
from barnabas.cluster.quota_table import (
    CONNECTIONS,
    DEFAULT,
    PRODUCE,
    REQUEST,
    Entity,
    Match,
    Problem,
    QuotaTable,
    check_filter,
    check_value,
    entity_of,
    is_matched,
    text_of,
)

# Kafka's order of precedence, and who shares the quota of each: the user, the client id, or both.
ORDER = [
    (Entity("alice", "app"), "alice", "app"),
    (Entity("alice", DEFAULT), "alice", "app"),
    (Entity("alice"), "alice", None),
    (Entity(DEFAULT, "app"), "alice", "app"),
    (Entity(DEFAULT, DEFAULT), "alice", "app"),
    (Entity(DEFAULT), "alice", None),
    (Entity(None, "app"), None, "app"),
    (Entity(None, DEFAULT), None, "app"),
]


def test_the_order_of_precedence() -> None:
    """All are set; one after the other is removed, and the next one counts."""
    table = QuotaTable()
    for number, (entity, _, _) in enumerate(ORDER):
        table.set(entity, {PRODUCE: float(number)})
    for number, (entity, user, client_id) in enumerate(ORDER):
        assert table.limit(PRODUCE, "alice", "app") == (float(number), user, client_id)
        assert table.limit(REQUEST, "alice", "app") is None
        table.set(entity, {})
    assert table.limit(PRODUCE, "alice", "app") is None
    assert table.all == {}


def test_a_quota_of_another_kind_does_not_hide_one_below() -> None:
    table = QuotaTable()
    table.set(Entity("alice", "app"), {REQUEST: 5.0})
    table.set(Entity(None, "app"), {PRODUCE: 7.0})
    assert table.limit(PRODUCE, "alice", "app") == (7.0, None, "app")
    assert table.limit(REQUEST, "alice", "app") == (5.0, "alice", "app")
    assert table.limit(REQUEST, "alice", "other") is None


def test_the_rate_of_an_address() -> None:
    table = QuotaTable()
    assert table.connection_rate("192.0.2.1") is None
    table.set(Entity(ip=DEFAULT), {CONNECTIONS: 9.0})
    table.set(Entity(ip="192.0.2.1"), {CONNECTIONS: 2.0})
    assert (table.connection_rate("192.0.2.1"), table.connection_rate("192.0.2.2")) == (2.0, 9.0)


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("a/b c*"), "users/a%2Fb%20c%2A"),
        (Entity(DEFAULT), "users/<default>"),
        (Entity("u", DEFAULT), "users/u/clients/<default>"),
        (Entity(DEFAULT, "é"), "users/<default>/clients/%C3%A9"),
        (Entity(None, "c"), "clients/c"),
        (Entity(None, DEFAULT), "clients/<default>"),
        (Entity(ip="10.1.2.3"), "ips/10.1.2.3"),
        (Entity(ip=DEFAULT), "ips/<default>"),
    ],
)
def test_where_an_entity_is_in_the_tree(entity: Entity, path: str) -> None:
    assert entity_path(entity) == path
    assert entity_at(path) == entity


def test_other_paths_are_no_entity() -> None:
    assert [entity_at(path) for path in ("topics/t", "users", "users/u/clients", "users/u/other/c", "a/b/c/d/e")] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "Invalid empty client quota entity"),
        ([("planet", "earth")], "Unhandled client quota entity type: planet"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "somewhere.invalid")], "somewhere.invalid is not a valid IP or resolvable host."),
        ([("ip", "10.0.0.1"), ("user", "u")], "Invalid quota entity combination"),
    ],
)
def test_entities_that_are_none(parts: list[tuple[str, str | None]], problem: str) -> None:
    with pytest.raises(Problem, match=problem):
        entity_of(parts)


@pytest.mark.parametrize(
    ("entity", "key", "value", "problem"),
    [
        (Entity("u"), "no_such_rate", 1.0, "Invalid configuration key no_such_rate"),
        (Entity("u"), CONNECTIONS, 1.0, "Invalid configuration key"),
        (Entity(ip="10.0.0.1"), PRODUCE, 1.0, "Invalid configuration key"),
        (Entity("u"), PRODUCE, 1.5, "producer_byte_rate cannot be a fractional value."),
        (Entity("u"), PRODUCE, 0.0, "must be greater than 0"),
        (Entity("u"), REQUEST, -1.0, "must be greater than 0"),
        (Entity("u"), REQUEST, float("nan"), "must be greater than 0"),
        (Entity("u"), REQUEST, float("-inf"), "must be greater than 0"),
        (Entity("u"), PRODUCE, 1e19, "too large for a LONG."),
        (Entity("u"), PRODUCE, float("inf"), "too large for a LONG."),
        (Entity(ip="10.0.0.1"), CONNECTIONS, 0.0, "must be greater than 0"),
        (Entity(ip="10.0.0.1"), CONNECTIONS, 2.0**31, "too large for an INT."),
        (Entity(ip="10.0.0.1"), CONNECTIONS, float("inf"), "too large for an INT."),
    ],
)
def test_values_that_are_none(entity: Entity, key: str, value: float, problem: str) -> None:
    with pytest.raises(Problem, match=problem):
        check_value(entity, key, value)


def test_values_and_how_the_tree_has_them() -> None:
    for entity, key, value in (
        (Entity("u"), REQUEST, 0.5),
        (Entity("u"), REQUEST, float("inf")),
        (Entity(ip="::1"), CONNECTIONS, 2.0**31 - 1),
        (Entity("u"), PRODUCE, 2.0**63),
        (Entity("u"), PRODUCE, None),
    ):
        check_value(entity, key, value)
    assert (text_of(PRODUCE, 2.0**63), text_of(REQUEST, float("inf"))) == ("9223372036854775807", "Infinity")
    assert (text_of(PRODUCE, 1048576.0), text_of(REQUEST, 50.0), text_of(CONNECTIONS, 7.0)) == ("1048576", "50.0", "7")


@pytest.mark.parametrize(
    ("matches", "strict", "found"),
    [
        ([], False, "u+c u d i"),
        ([], True, ""),
        ([Match("user", 0, "u")], False, "u+c u"),
        ([Match("user", 0, "u")], True, "u"),
        ([Match("user", 2, None)], True, "u"),
        ([Match("user", 2, None), Match("client-id", 2, None)], True, "u+c"),
        ([Match("client-id", 1, None)], False, "d"),
        ([Match("client-id", 2, None)], False, "u+c d"),
        ([Match("ip", 2, None)], False, "i"),
        ([Match("user", 1, None)], False, ""),
    ],
)
def test_what_a_filter_finds(matches: list[Match], strict: bool, found: str) -> None:
    check_filter(matches)
    there = {"u+c": Entity("u", "c"), "u": Entity("u"), "d": Entity(None, DEFAULT), "i": Entity(ip="10.0.0.1")}
    assert [name for name, entity in there.items() if is_matched(entity, matches, strict=strict)] == found.split()


@pytest.mark.parametrize(
    ("matches", "problem"),
    [
        ([Match("user", 0, "a"), Match("user", 0, "b")], "cannot appear more than once"),
        ([Match("user", 9, None)], "Unknown match type 9"),
        ([Match("user", 0, None)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([Match("user", 1, "a")], "MATCH_TYPE_DEFAULT"),
        ([Match("ip", 2, None), Match("user", 2, None)], "Invalid entity filter"),
        ([Match("", 0, "a")], "Invalid empty entity type."),
    ],
)
def test_filters_that_are_none(matches: list[Match], problem: str) -> None:
    with pytest.raises(Problem, match=problem):
        check_filter(matches)


def test_an_address_may_be_written_in_any_way() -> None:
    table = QuotaTable()
    table.set(Entity(ip="0:0:0:0:0:0:0:1"), {CONNECTIONS: 3.0})
    table.set(Entity(ip="::ffff:10.0.0.1"), {CONNECTIONS: 4.0})
    assert [table.connection_rate(each) for each in ("::1", "10.0.0.1", "::ffff:10.0.0.1")] == [3.0, 4.0, 4.0]
    table.set(Entity(ip="0:0:0:0:0:0:0:1"), {})
    assert table.connection_rate("::1") is None


def test_long_names_are_not_kept() -> None:
    table = QuotaTable()
    table.set(Entity(user="u"), {PRODUCE: 3.0})
    for number in range(3):
        assert table.limit(PRODUCE, "u", f"{number}" * 30_000) == (3.0, "u", None)
    assert table._found == {}
