"""Whole brokers, one and three, with a group whose members migrate between the protocols (KIP-848), in bad weather."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from barnabas.coordinators.groups import transactional_commits
from barnabas.coordinators.groups.commits import Commits
from barnabas.coordinators.groups.consumer import commits
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.journal import Cause
from barnabas.protocol.errors import ErrorCode
from simulator.consumer_members import ConsumerClusterWorld, ConsumerRetention, ConsumerWorld
from simulator.faults import Fault
from simulator.planting import planted
from simulator.simulation import Verdict

SEEDS = (4, 5, 7)
CLUSTER_SEEDS = (1,)
RETENTION_SEEDS = range(1, 9)
OWNED = "every partition has an owner"
Kind = type[ConsumerWorld | ConsumerClusterWorld]
pytestmark = pytest.mark.usefixtures("quiet")


@cache
def run(seed: int) -> tuple[ConsumerWorld, Verdict]:
    """A world of one broker that has ended."""
    world = ConsumerWorld(seed, 1.0)
    return world, world.run()


def violations(**options: bool) -> Iterator[str]:
    """What is found in short runs, which are run one after the other, as long as it is asked."""
    for seed in SEEDS:
        violation = ConsumerWorld(seed, 0.5, **options).run().violation
        if violation is not None:
            yield violation.invariant


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_in_bad_weather_keeps_what_it_promised_to_consumer_members(seed: int) -> None:
    world, verdict = run(seed)
    assert verdict.violation is None, str(verdict)
    assert sum(member.progress for member in world.book.members) > 100


@pytest.mark.parametrize("seed", CLUSTER_SEEDS)
def test_so_does_a_cluster(seed: int) -> None:
    world = ConsumerClusterWorld(seed, 0.3)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert world.book.assignments > 2


def test_members_of_both_protocols_are_in_these_runs() -> None:
    worlds = [run(seed)[0] for seed in SEEDS]
    assert sum(world.book.assignments for world in worlds) > 8
    assert {world.book.classic_share > 0 for world in worlds} == {False, True}


def test_a_commit_in_an_epoch_that_never_was_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_stale", lambda member: ErrorCode.NONE)
    assert "who is fenced commits nothing" in violations()


def test_the_last_look_finds_a_partition_that_is_assigned_to_nobody() -> None:
    right = "topics.partition_count(name)"
    fault = Fault("", "", "coordinators.groups.consumer.target:answer", right, f"{right} - 1", OWNED, SEEDS[0])
    with planted(fault):
        violation = ConsumerWorld(fault.seed, 0.3).run().violation
    assert violation is not None
    assert violation.invariant == OWNED


@pytest.mark.parametrize("kind", [ConsumerWorld, ConsumerClusterWorld])
def test_the_journal_says_what_such_members_commit(kind: Kind) -> None:
    world = kind(1, 0.3, with_journal=True)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert sum(member.progress for member in world.book.members) > 100


def test_a_journal_that_takes_their_commits_for_those_of_an_admin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_an_admin(self: Commits, request: Any, context: Any, group: Any, *, is_consumer_group: bool) -> bytes:
        return self._origins.of(Cause.RESET if is_consumer_group else Cause.COMMIT, context)

    monkeypatch.setattr(Commits, "_origin", of_an_admin)
    assert "the journal says why" in violations(with_journal=True)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize(("kind", "seed"), [(ConsumerWorld, 1), (ConsumerWorld, 4), (ConsumerClusterWorld, 1)])
def test_transactions_of_such_members_are_whole_or_nothing(kind: Kind, seed: int) -> None:
    world = kind(seed, 0.3, with_transactions=True)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    copiers = [book for group_id, book in world.books.items() if group_id.startswith("copiers")]
    assert sum(book.assignments for book in copiers) > 1
    assert world.transactions is not None
    assert sum(world.transactions.book.progress.values()) > 10


def test_a_transactional_commit_in_an_epoch_that_never_was_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_commits, "check_transactional_commit", lambda *of, **more: ErrorCode.NONE)
    assert "old generations are refused" in violations(with_transactions=True)


@pytest.mark.takes_turns("seed")
@pytest.mark.parametrize("seed", RETENTION_SEEDS)
def test_retention_waits_for_such_a_group(seed: int) -> None:
    world = ConsumerRetention(seed)
    verdict = world.run()
    assert verdict.violation is None, str(verdict)
    assert sum(member.progress for member in world.book.members) > 50
    assert min(world.waited, world.went) > 100


def test_retention_that_knows_no_groups_of_the_consumer_protocol_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "group_ids", lambda shard: list(shard.groups))
    found = (ConsumerRetention(seed).run().violation for seed in RETENTION_SEEDS)
    assert "retention waits for groups" in (violation.invariant for violation in found if violation is not None)
