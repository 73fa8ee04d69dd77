"""Access rules and quotas that change while brokers come and go, and clients that ask for more than they may."""

import pytest
from simulator import access_members, access_world
from simulator.access_model import (
    ALL,
    ALLOW,
    DENY,
    DESCRIBE,
    LITERAL,
    READ,
    TOPIC,
    Answered,
    Asker,
    History,
    Right,
    Rule,
)

SEEDS = range(1, 5)
MEMBERS_SEEDS = (8, 9, 11, 16)  # of both protocols
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_gets_what_is_refused_and_everybody_what_is_allowed(seed: int) -> None:
    world = access_world.AccessWorld(seed)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert min(world.allowed, world.refused, world.changes) > 20
    assert world.throttled


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = access_world.run(3, 0.3), access_world.run(3, 0.3)
    assert first.event_count > 15
    assert first.digest == second.digest


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", MEMBERS_SEEDS)
def test_members_of_groups_are_given_what_their_user_may_see(seed: int) -> None:
    world = access_members.ConsumerAccessWorld(seed)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert world.told > 0
    assert sum(member.progress for member in world.book.members) > 30


def test_what_rules_mean() -> None:
    alice, right = Asker("User:alice", "client0"), Right(DESCRIBE, TOPIC, "orders")
    reads = Rule(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW)
    denied = reads._replace(principal="User:*", host="client0", operation=ALL, permission=DENY)
    assert not alice.may(right, frozenset())
    assert alice.may(right, frozenset({reads}))
    assert alice.may(right, frozenset({reads, reads._replace(permission=DENY)}))  # who may not read may describe
    assert not alice.may(right, frozenset({reads, denied}))
    assert Asker("User:alice", "client1").may(right, frozenset({reads, denied}))


def test_a_broker_may_know_a_change_or_not_until_it_has_had_the_time_to_hear_of_it() -> None:
    history = History("old")
    history.change("new", 1_000)
    assert history.known_to(Answered("a", 900, 999, 0)) == ["old"]
    assert history.known_to(Answered("a", 900, 1_000, 0)) == ["old", "new"]
    history.changed("a", 1_100)
    assert history.known_to(Answered("a", 1_100, 1_200, 0)) == ["new"]
    assert history.known_to(Answered("b", 2_099, 2_100, 0)) == ["old", "new"]
    assert history.known_to(Answered("b", 2_100, 2_200, 0)) == ["new"]
    assert history.known_to(Answered("b", 2_100, 2_200, 1_500)) == ["old", "new"]  # it was away until then
