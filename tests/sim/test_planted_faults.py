"""The checkers can fail: each planted fault is caught within 300 seeds.

`CAUGHT` remembers which seed caught a fault, so that the test need not look for it; when that seed no longer does, the
test looks through all 300 and says which one does now. `python -m barnabas.sim --faults` makes the whole list.
"""

import logging
from collections.abc import Iterator

import pytest
from barnabas.sim import faults, storage, world

CAUGHT: dict[str, int] = {
    "checksum not looked at": 1,  # batches are whole
    "torn tail kept": 1,  # a data directory opens
    "every stop taken for a clean one": 1,  # the epochs agree
    "gap in the log not seen": 1,  # a prefix
    "snapshot's checksum not looked at": 1,  # producers are a function of the log
    "producer forgotten at the log start": 8,  # producers are a function of the log
    "epochs not recovered": 1,  # the epochs agree
    "flush that does not sync": 1,  # everything synced is there
    "checkpoint not synced": 1,  # a data directory opens
    "indexes not synced at a clean stop": 1,  # the time index agrees
    "indexes not synced before a roll": 2,  # the time index agrees
    "cut not synced": 1,  # no invented record
    "recovery point not lowered on disk": 1,  # a data directory opens
    "compaction keeps the older record": 3,  # the last record of a key stays
    "compaction gives up a durable record": 6,  # the last record of a key stays
    "new batches under old indexes": 44,  # the time index agrees
    "index entry one batch too far": 1,  # the offset index agrees
    "time index not truncated": 3,  # the time index agrees
    "epochs not truncated": 1,  # the epochs agree
    "producers not truncated": 1,  # producers are a function of the log
    "duplicate window of one": 1,  # a producer in order is accepted
    "duplicates not recognised": 1,  # a producer in order is accepted
    "sequences not checked": 1,  # once and in order
    "high watermark before the write": 1,  # the high watermark is in the log
    "acknowledged before it is synced": 3,  # generations only grow
    "producer ids given twice": 1,  # a producer id is given once
    "fetch without its timer": 1,  # every request is answered
    "table updated before the commit": 39,  # no commit goes back
    "only half of the groups' log loaded": 1,  # commits outlive the broker
    "the first commit wins in loading": 1,  # commits outlive the broker
    "tombstones ignored in loading": 1,  # no invented offset
    "commits are answered and not written": 1,  # nothing escapes
    "generation of a commit not checked": 1,  # old generations are refused
    "generation of a sync not checked": 2,  # old generations are refused
    "group's timer not armed again": 1,  # timers fire
    "end of the join phase not waited for": 1,  # timers fire
    "everybody gets the leader's assignment": 1,  # one owner per generation
    "generation does not grow": 1,  # one owner per generation
    "sessions not begun after loading": 2,  # timers fire
    "session keeps the old position": 1,  # no gap
    "session leaves out records": 1,  # a session leaves nothing out
    "session repeats what it said": 1,  # a session tells only news
    "new topic in the log of the old": 1,  # a topic takes records
    "ids of deleted topics stay known": 1,  # a deleted topic takes nothing
    "offsets of deleted topics stay": 1,  # offsets go with their topic
    "one record too many deleted": 1,  # the log starts where it may
    "deleted offsets come back": 1,  # no invented offset
    "offsets expire too soon": 1,  # offsets stay for their time
    "offsets never expire": 1,  # offsets expire
    "offsets of a living group expire": 1,  # offsets stay for their time
    "offsets in the tree are answered and not written": 4,  # acknowledged commits are there
    "deleted keys come back": 1,  # the latest value of a key stays
    "latest value of a key thrown away": 1,  # the latest value of a key stays
    "log start not written before files go": 1,  # a prefix
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_there_are_enough_of_them() -> None:
    names = [fault.name for fault in faults.FAULTS]
    assert len(names) >= 50
    assert sorted(CAUGHT) == sorted(names)


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_the_fault_is_caught(fault: faults.Fault) -> None:
    remembered = CAUGHT[fault.name]
    if faults.caught_by(fault, range(remembered, remembered + 1)) is None:
        caught = faults.caught_by(fault, range(1, faults.SEEDS_MAX + 1))
        assert caught is not None, f"{fault.name}: not caught by {faults.SEEDS_MAX} seeds"
        pytest.skip(f"caught by seed {caught[0]} now ({caught[1]}): say so in CAUGHT")


@pytest.mark.parametrize("fault", [faults.FAULTS[0], faults.FAULTS[-1]], ids=["storage", "world"])
def test_without_the_fault_the_same_seed_holds(fault: faults.Fault) -> None:
    seed = CAUGHT[fault.name]
    if fault.campaign == "world":
        assert world.run(seed, minutes=1).violation is None
    else:
        storage.run(seed, steps=40, keep_every=17)


def test_a_fault_whose_text_is_gone_is_an_error() -> None:
    fault = faults.Fault("gone", "world", "storage.log:Log.roll", "no such text", "pass")
    with pytest.raises(LookupError, match="has 0 times"), faults.planted(fault):
        pass
