"""The tree is an older copy: the replicas say where their logs end, and those with the most are in sync."""

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr, LogEnd
from barnabas.controller import election

REPLICAS = (1, 2, 3)


def after(ends: dict[int, LogEnd], known: LeaderAndIsr) -> LeaderAndIsr:
    for member, end in ends.items():
        known = known.with_log_end(member, end, REPLICAS)
        assert LeaderAndIsr.decode(known.encode(), known.partition_epoch) == known
    return known


@pytest.mark.parametrize(
    ("ends", "isr"),
    [
        ({1: (True, 4, 20), 2: (True, 4, 30), 3: (True, 4, 10)}, (2,)),
        ({1: (True, 4, 30), 2: (True, 5, 21), 3: (True, 4, 10)}, (2,)),
        ({3: (True, 4, 30), 2: (True, 4, 30), 1: (True, 4, 20)}, (2, 3)),
        ({1: (False, 9, 90), 2: (True, 4, 30), 3: (False, 4, 30)}, (2,)),
        ({1: (True, -1, 0), 2: (True, -1, 0), 3: (False, -1, 0)}, (1, 2)),
    ],
    ids=["longest", "latest epoch", "as long", "who does not know has written since", "empty logs"],
)
def test_those_with_the_most_are_in_sync(ends: dict[int, tuple[bool, int, int]], isr: tuple[int, ...]) -> None:
    known = LeaderAndIsr(1, 4, (1, 2), 7, 3, eligible=(3,))
    state = after({member: LogEnd(*end) for member, end in ends.items()}, known)
    assert (state.leader, state.isr, state.eligible) == (-1, isr, ())
    assert state.leader_epoch > max(4, *(epoch for _, epoch, _ in ends.values()))
    assert not state.log_ends


def test_nobody_is_in_sync_until_all_have_said_where_their_logs_end() -> None:
    known = LeaderAndIsr(1, 4, (1, 2), 7, 3)
    state = after({2: LogEnd(True, 4, 30), 1: LogEnd(False, 4, 20)}, known)
    assert (state.leader, state.isr) == (-1, ())
    assert election.elect_offline(REPLICAS, state, REPLICAS, unclean=False) is None
    assert election.without_replicas(state, REPLICAS) is None
    unclean = election.elect_offline(REPLICAS, state, REPLICAS, unclean=True)
    assert unclean is not None
    assert (unclean.leader, unclean.isr, unclean.recovering) == (2, (2,), True)
    assert not unclean.log_ends, "that decides it"
    assert unclean.leader_epoch > state.leader_epoch
