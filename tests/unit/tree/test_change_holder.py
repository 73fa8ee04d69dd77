"""Which process keeps others from changing the tree: only one that stays inside a change, not one that makes many."""

from collections.abc import Callable
from typing import Any

import pytest
from barnabas.cluster.tree.change_holder import LOOKS_MIN, ChangeHolder
from barnabas.cluster.tree.tree_opening import WRITE_LOCK_BYTE
from barnabas.runtime import lock_holders
from barnabas.runtime.lock_holders import Holder
from barnabas.runtime.processes import ProcessIdentity

STOPPED, OTHER = ProcessIdentity(7, 70, "/bin/broker"), ProcessIdentity(8, 80, "/bin/broker")


class Sessions:
    """Those of both processes, 1 and 2, are over."""

    def lives_until_ms(self, session_id: int) -> float:
        return 0.0

    def processes(self, session_id: int) -> set[ProcessIdentity]:
        return {{1: STOPPED, 2: OTHER}[session_id]}


class Locks:
    """Who is inside a change at each look, and who was ended."""

    def __init__(self) -> None:
        self.inside: ProcessIdentity | None = None
        self.ended: list[ProcessIdentity] = []

    def holders(self, path: str) -> list[Holder]:
        return [] if self.inside is None else [Holder(self.inside, WRITE_LOCK_BYTE, WRITE_LOCK_BYTE, is_exclusive=True)]

    def end(self, process: ProcessIdentity, is_still_the_one: Callable[[], bool]) -> bool:
        assert is_still_the_one()
        self.ended.append(process)
        return True


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Locks:
    locks = Locks()
    monkeypatch.setattr(lock_holders, "holders", locks.holders)
    monkeypatch.setattr(lock_holders, "end_process", locks.end)
    return locks


def look(holder: ChangeHolder, locks: Locks, *inside: ProcessIdentity | None) -> None:
    for locks.inside in inside:
        holder.look([1, 2], 1000.0)


def test_who_stays_inside_a_change_is_ended(locks: Locks) -> None:
    sessions: Any = Sessions()
    holder = ChangeHolder("tree", sessions)
    look(holder, locks, *[STOPPED] * (LOOKS_MIN - 1))
    assert (locks.ended, holder.held_by) == ([], "")
    look(holder, locks, STOPPED)
    assert (locks.ended, holder.held_by) == ([STOPPED], str(STOPPED))


@pytest.mark.parametrize("between", [None, OTHER])
def test_processes_that_make_many_short_changes_are_left_alone(locks: Locks, between: ProcessIdentity | None) -> None:
    """Until 2026-11-30 one that lived was ended, where a damaged tree let the changes of all brokers fail."""
    sessions: Any = Sessions()
    holder = ChangeHolder("tree", sessions)
    look(holder, locks, *[*[STOPPED] * (LOOKS_MIN - 1), between] * 5)
    holder.note_gone()
    look(holder, locks, *[STOPPED] * (LOOKS_MIN - 1))
    assert (locks.ended, holder.held_by) == ([], "")
