"""What the checkers of one broker take down while only some of the offsets partitions are there."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from barnabas.broker.broker import Broker
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.members import Members
from barnabas.coordinators.groups.states import State
from barnabas.offsets.records import CommittedOffset
from barnabas.offsets.table import OffsetTable
from simulator.commits import Commits
from simulator.coordination import SimTree
from simulator.env import sim_env
from simulator.inspection import OFFSETS_PARTITIONS, Inspector
from simulator.ledger import Ledger
from simulator.violation import Violation

GROUP = "group1"
PARTITION = partition_for(GROUP, OFFSETS_PARTITIONS)
KEY = ("events", 0)


class _Looks:
    """A broker that has one of the two offsets partitions, and what is known of it."""

    def __init__(self, partition: int = PARTITION) -> None:
        self.shard: Any = SimpleNamespace(
            partition=partition,
            groups={},
            consumer=SimpleNamespace(by_id={}),
            offsets=OffsetTable(),
        )
        coordinator = SimpleNamespace(loaded_shards=lambda: [self.shard])
        self.broker = cast(
            Broker, SimpleNamespace(replica_manager=SimpleNamespace(partitions={}), group_coordinator=coordinator)
        )
        commits = Commits(lambda: 0.0, lambda: 0, lambda since_ms: 0)
        self.ledger = Ledger(commits)
        self.inspector = Inspector(self.ledger, SimTree(sim_env().clock), offsets_in_tree=False)

    def has(self, state: State, generation: int) -> None:
        self.shard.groups[GROUP] = SimpleNamespace(
            group_id=GROUP,
            generation=generation,
            state=state,
            members=Members(),
            rebalance=SimpleNamespace(join_deadline_ms=9e9, sync_deadline_ms=9e9),
        )

    def look(self) -> None:
        self.inspector.look(self.broker, 1, 0.0)


def test_a_group_that_expires_while_the_other_partition_is_left_out_begins_anew() -> None:
    looks = _Looks()
    looks.ledger.assigned(GROUP, 3, "a member", [KEY], 0.0)
    looks.has(State.EMPTY, 4)
    looks.look()
    looks.shard.groups.clear()
    looks.look()
    assert GROUP not in looks.ledger.generations
    looks.has(State.PREPARING_REBALANCE, 0)
    looks.look()
    looks.ledger.assigned(GROUP, 1, "another member", [KEY], 1.0)


def test_a_living_group_stays_also_then() -> None:
    looks = _Looks()
    looks.has(State.STABLE, 3)
    looks.look()
    looks.shard.groups.clear()
    with pytest.raises(Violation, match="a living group stays"):
        looks.look()


def test_offsets_of_a_partition_that_is_not_there_are_not_missed() -> None:
    looks = _Looks(1 - PARTITION)
    looks.ledger.commits.table[GROUP, *KEY] = 7
    looks.look()
    assert looks.ledger.commits.table == {(GROUP, *KEY): 7}


def test_offsets_of_a_partition_that_is_there_are() -> None:
    looks = _Looks()
    looks.shard.offsets.decoded[GROUP] = {KEY[0]: {KEY[1]: CommittedOffset(7)}}
    looks.ledger.commits.asked[GROUP, *KEY] = {7: cast(Any, None)}
    looks.look()
    looks.shard.offsets.decoded.clear()
    with pytest.raises(Violation, match="offsets stay for their time"):
        looks.look()
