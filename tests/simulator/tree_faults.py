"""Planted faults as in faults.py: what `tree_accidents.py` and `old_disks.py` must find, whose tree is in a file."""

from simulator.faults import Change, Fault
from simulator.tree_accidents import ALONE, COMES_BACK, LOST, SAID, UNDISTURBED

CAMPAIGN = "tree accidents"
OLD_DISKS = "old disks"


def _fault(name: str, where: str, right: str, wrong: str, invariant: str, seed: int, *also: Change) -> Fault:
    return Fault(name, CAMPAIGN, where, right, wrong, invariant, seed, also=also)


TREE_FAULTS = (
    _fault(
        "a broker starts beside others that use other files",
        "cluster.tree.tree_place:TreePlace.check_that_nobody_uses_another",
        "if strangers:",
        "if False:",
        ALONE,
        1,
        Change("cluster.tree.tree_copy:check_sessions", "    if strangers:", "    if False:"),
    ),
    _fault(
        "nobody notices that a file of the tree is gone",
        "cluster.tree.tree_place:TreePlace.look",
        "gone = {part for part, now, then in zip(PARTS, here, self.files) if then and not now}",
        "gone = set()",
        SAID,
        1,
    ),
    _fault(
        "a file that is shorter is taken for an older one",
        "cluster.tree.tree_place:TreePlace._is_as_new_as_it_was",
        "if counters.zxid < self._zxid_on_disk:",
        "if counters.zxid < self._zxid_on_disk or (self._written and written[1] < self._written[1]):",
        UNDISTURBED,
        1,
    ),
    _fault(
        "a tree that lacks its last changes is believed",
        "broker.restored_tree:RestoredTree.report",
        "if mark.reports_since is not None or is_older:",
        "if False:",
        LOST,
        2,
    ),
    _fault(
        "a registration that was deleted stays deleted",
        "cluster.registration:Registration._look",
        "self._on_deleted()",
        "pass",
        COMES_BACK,
        2,
    ),
    Fault(
        "who is alone in sync leads with an old copy",
        OLD_DISKS,
        "broker.before_registering:_counted_on",
        "elif is_alone and len(replicas) > 1 and loss >= Loss.SOME:",
        "elif False:",
        LOST,
        1,
    ),
    Fault(
        "the shortest of the old copies leads",
        OLD_DISKS,
        "cluster.leader_and_isr:LeaderAndIsr.with_log_end",
        "most = max(",
        "most = min(",
        LOST,
        1,
    ),
)
