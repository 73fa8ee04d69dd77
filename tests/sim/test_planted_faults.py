"""The checkers can fail: each planted fault is caught by the checker that its row in sim/faults.py names.

Each row has a seed. Under this seed, or one of the next few, the fault is caught, and the same run without the fault
holds, so the checker has found the planted line. All of them take a quarter of an hour, so a run takes a twenty-eighth;
the date (UTC) decides which, and each has its day of four weeks: `python -m simulator --faults`, in tests/, takes all.
The simulation draws its random numbers in another order after most changes of the product, and the next seeds then take
the place of a stale one. When none of them is a catch, the test fails and says how to find another seed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from barnabas.cluster.lease import Lease
from barnabas.replication.fetching import Fetching
from barnabas.runtime.grouped import grouped
from simulator import planting
from simulator.access_faults import ACCESS_FAULTS
from simulator.cluster_faults import CLUSTER_FAULTS
from simulator.consumer_group_faults import CONSUMER_GROUP_FAULTS
from simulator.faults import FAULTS, Change, Fault
from simulator.planting import ALL_FAULTS
from simulator.transaction_faults import TRANSACTION_FAULTS
from simulator.tree_faults import TREE_FAULTS
from simulator.violation import Violation

DAYS = 28
# Seconds of a run without a fault, roughly. Few faults share one, so that no day has all of a campaign.
RUN_S = {
    "cluster": 5,
    "cluster transactions": 7,
    "storage": 4,
    "world": 3,
    "journal": 3,
    "transactions": 3,
    "rights": 3,
    "rights of members": 3,
    "tree accidents": 5,
    "old disks": 5,
}
SHARED_MAX = 8
SEEDS_NEXT = 30  # a stale seed costs seconds; a red run after a change that is right costs a day
pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(900)]  # thirty seeds take minutes


def cost_s(faults: Sequence[Fault]) -> float:
    """What faults that share a run take: the run without a fault, and about half of it until each one is caught."""
    return RUN_S.get(faults[0].campaign, 0.5) * (1 + len(faults) / 2)


def days() -> list[list[Fault]]:
    """The faults of each day: days take as long as each other, and faults of the same run have the same day."""
    runs = grouped(((fault.campaign, fault.focus, fault.seed), fault) for fault in ALL_FAULTS)
    parts = [each[at : at + SHARED_MAX] for each in runs.values() for at in range(0, len(each), SHARED_MAX)]
    found: list[list[Fault]] = [[] for _ in range(DAYS)]
    costs = [0.0] * DAYS
    for part in sorted(parts, key=cost_s, reverse=True):
        day = costs.index(min(costs))
        found[day] += part
        costs[day] += cost_s(part)
    return found


OF_TODAY = days()[datetime.now(UTC).toordinal() % DAYS]


def test_each_has_its_day() -> None:
    assert sorted(fault.name for day in days() for fault in day) == sorted(fault.name for fault in ALL_FAULTS)


def test_there_are_enough_of_them() -> None:
    assert len({fault.name for fault in ALL_FAULTS}) == len(ALL_FAULTS)
    assert len(FAULTS) >= 50
    assert {fault.campaign for fault in FAULTS} == {"storage", "world", "live resets", "journal", "retention"}
    assert len(CLUSTER_FAULTS) >= 30
    assert {fault.campaign for fault in CLUSTER_FAULTS} == {"cluster"}
    assert len(CONSUMER_GROUP_FAULTS) >= 15
    assert {fault.campaign for fault in CONSUMER_GROUP_FAULTS} == {"consumer groups"}
    assert len(ACCESS_FAULTS) >= 30
    assert {fault.campaign for fault in ACCESS_FAULTS} == {"rights", "rights of members"}
    assert len(TREE_FAULTS) >= 7
    assert {fault.campaign for fault in TREE_FAULTS} == {"tree accidents", "old disks"}
    assert len(TRANSACTION_FAULTS) >= 20
    assert {fault.campaign for fault in TRANSACTION_FAULTS} == {"transactions", "cluster transactions"}


@pytest.mark.parametrize("fault", ALL_FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_line_that_a_fault_changes_is_there(fault: Fault) -> None:
    with planting.planted(fault):
        pass


@pytest.mark.parametrize("fault", OF_TODAY, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_fault_is_caught_by_the_checker_that_is_meant(fault: Fault) -> None:
    seed, others = planting.find_seed(fault, range(fault.seed, fault.seed + SEEDS_NEXT))
    assert seed is not None, (
        f"seeds from {fault.seed} on come to {others}, expected was {fault.invariant!r}: "
        f'python -m simulator --find "{fault.name}" looks for a seed that says so'
    )


def test_another_violation_than_the_expected_one_is_no_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[0]
    assert planting.is_catch(fault, Violation(fault.invariant, "as expected"))
    assert not planting.is_catch(fault, None)
    assert not planting.is_catch(fault, Violation("nothing escapes", "AssertionError()"))
    monkeypatch.setattr(planting, "run", lambda campaign, focus, seed: Violation("something else", ""))
    assert planting.find_seed(fault, range(1, 4)) == (None, {"something else": 3})


def test_a_seed_whose_run_does_not_hold_without_the_fault_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[0]._replace(focus="of this test alone, because runs without a fault are remembered")
    monkeypatch.setattr(planting, "run", lambda campaign, focus, seed: Violation(fault.invariant, ""))
    assert planting.find_seed(fault, range(1, 4)) == (None, {fault.invariant: 3})


def test_a_fault_whose_text_is_gone_is_an_error() -> None:
    fault = FAULTS[0]._replace(where="storage.log:Log.roll", right="no such text", wrong="pass")
    with pytest.raises(LookupError, match="has 0 times"), planting.planted(fault):
        pass


def test_a_fault_of_several_lines_changes_all_and_gives_all_back() -> None:
    more = Change("cluster.lease:Lease.holds", "return True", "return -7")
    fault = FAULTS[0]._replace(
        where="replication.fetching:Fetching.upper_bound",
        right="return partition.log.high_watermark",
        wrong="return -7",
        also=(more,),
    )
    before = vars(Lease)["holds"], vars(Fetching)["upper_bound"]
    with planting.planted(fault):
        assert all(
            one is not other for one, other in zip(before, (vars(Lease)["holds"], vars(Fetching)["upper_bound"]))
        )
    assert before == (vars(Lease)["holds"], vars(Fetching)["upper_bound"])
    with (
        pytest.raises(LookupError, match="has 0 times"),
        planting.planted(fault._replace(also=(more._replace(right="?"),))),
    ):
        pass
    assert before == (vars(Lease)["holds"], vars(Fetching)["upper_bound"])


@pytest.mark.parametrize(
    ("owner", "name", "right"),
    [(Lease, "holds", "return True"), (Fetching, "upper_bound", "return partition.log.high_watermark")],
    ids=["property", "static method"],
)
def test_a_fault_in_a(owner: type, name: str, right: str) -> None:
    original = vars(owner)[name]
    where = f"{owner.__module__.removeprefix('barnabas.')}:{owner.__name__}.{name}"
    fault = FAULTS[0]._replace(where=where, right=right, wrong="return -7")
    with planting.planted(fault):
        assert type(vars(owner)[name]) is type(original)
        assert vars(owner)[name] is not original
    assert vars(owner)[name] is original
