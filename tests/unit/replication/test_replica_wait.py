"""A request that waits in several partitions is answered once, whoever comes first."""

from collections.abc import Callable

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.parked import Parked
from barnabas.replication.replica_wait import ReplicaWait
from simulator.env import sim_env


@pytest.mark.parametrize("first", ["the lease lapses", "the time is over", "the client leaves"])
def test_a_partition_that_has_let_go_of_it_may_say_so_later(first: str) -> None:
    """Until 2026-11 a leader that was told to follow, in the moment in which its lease lapsed, met a KeyError."""
    clock = sim_env().clock
    partitions: list[Parked[ErrorCode]] = [Parked(), Parked()]
    wait = ReplicaWait([ErrorCode.NONE] * 2, lambda result, error: error)
    answers: list[list[ErrorCode]] = []
    ends: list[object] = []
    wait.on_end = ends.append
    for position, partition in enumerate(partitions):

        def park(waiter: Callable[[ErrorCode], None], partition: Parked[ErrorCode] = partition) -> object:
            return partition.park(5, waiter)

        wait.park(position, park)  # type: ignore[arg-type]
    wait.begin(clock, 1_000)
    if first != "the client leaves":
        wait.pending.then(answers.append)
    let_go = partitions[0].take_all()
    if first == "the lease lapses":
        wait.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    elif first == "the time is over":
        clock.advance(2_000)
    else:
        assert wait.pending.cancel()
    before = list(answers)
    for waiter in let_go:
        waiter(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert answers == before
    assert len(ends) == 1
    assert partitions[1].count == 0
    if before:
        expected = ErrorCode.REQUEST_TIMED_OUT if first == "the time is over" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert before == [[expected] * 2]
