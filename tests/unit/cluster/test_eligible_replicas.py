"""Who was in sync before only one replica was left: `LeaderAndIsr.remembering`."""

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr


@pytest.mark.parametrize(
    ("before", "eligible_before", "isr", "eligible"),
    [
        ((1, 2, 3), (), (1,), (2, 3)),
        ((1, 2), (), (1,), (2,)),
        ((1,), (2, 3), (1,), (2, 3)),
        ((1,), (2, 3), (1, 2), ()),
        ((1, 2), (), (1, 2, 3), ()),
        ((1, 2, 3), (), (1, 2), ()),
        ((1,), (2, 3), (2,), ()),
        ((1, 2), (), (3,), ()),
    ],
    ids=[
        "two leave",
        "one leaves",
        "nobody comes or leaves",
        "one comes, and what is acknowledged from now on the others do not have",
        "another one comes",
        "two are left",
        "another one leads, uncleanly: what it lacks does not count any more, and what it gets the others do not have",
        "one from outside leads, uncleanly",
    ],
)
def test_who_is_eligible(
    before: tuple[int, ...], eligible_before: tuple[int, ...], isr: tuple[int, ...], eligible: tuple[int, ...]
) -> None:
    known = LeaderAndIsr(before[0], 4, before, eligible=eligible_before)
    state = known._replace(leader=isr[0], leader_epoch=5, isr=isr).remembering(known)
    assert state.eligible == eligible
    assert state.isr == isr
    assert LeaderAndIsr.decode(state.encode(), 0).eligible == eligible
