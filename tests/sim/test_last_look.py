"""The check of groups at the end of a run: it waits for a rebalance, but not for ever."""

from types import SimpleNamespace
from typing import Any

import pytest
from simulator import last_look
from simulator.clients.member import Member
from simulator.env import sim_env
from simulator.ledger import TopicPartition
from simulator.violation import Violation

KEYS: list[TopicPartition] = [("t", 0), ("t", 1)]


def member(generation: int, *owned: TopicPartition) -> Any:
    made = object.__new__(Member)
    made.group_id, made.generation, made.owned = "group", generation, list(owned)
    return made


def look(*members: Any, later: Any = lambda: None) -> None:
    env = sim_env()
    env.clock.call_later(2 * last_look.BETWEEN_LOOKS_MS, later)
    world: Any = SimpleNamespace(clock=env.clock, clients=list(members))
    env.run(last_look.check_groups(world, KEYS))


def test_one_owner_for_each_partition_is_fine() -> None:
    look(member(3, KEYS[1]), member(3, KEYS[0]))


@pytest.mark.parametrize("owned", [KEYS[:1], [*KEYS, KEYS[0]]], ids=["without an owner", "with two owners"])
def test_a_partition_is(owned: list[TopicPartition]) -> None:
    with pytest.raises(Violation, match=r"every partition has an owner: group: \["):
        look(member(3), member(3, *owned))


@pytest.mark.parametrize("generation", [-1, 2])
def test_a_rebalance_under_way_is_waited_for(generation: int) -> None:
    late = member(generation)

    def arrive() -> None:
        late.generation, late.owned = 3, KEYS[1:]

    look(member(3, KEYS[0]), late, later=arrive)


def test_what_comes_of_the_rebalance_is_looked_at() -> None:
    late = member(2)

    def arrive() -> None:
        late.generation = 3

    with pytest.raises(Violation, match="every partition has an owner"):
        look(member(3, KEYS[0]), late, later=arrive)


def test_a_rebalance_that_does_not_end_is_a_violation() -> None:
    with pytest.raises(Violation, match="a rebalance ends: group"):
        look(member(2, KEYS[0]), member(3, KEYS[1]))
