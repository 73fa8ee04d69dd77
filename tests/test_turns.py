"""Whose turn it is (turns.py): each value of a parameter has its day, and who names a test gets all of them."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import turns


def item(test: str, value: str, more: str, names: tuple[str, ...] = ("tree",)) -> Any:
    """One of pytest's: a test that takes turns, with its parameters."""
    return SimpleNamespace(
        nodeid=f"{test}[{value}-{more}]",
        callspec=SimpleNamespace(params={"tree": value, "more": more}),
        get_closest_marker=lambda _: pytest.mark.takes_turns(*names).mark,
    )


ITEMS = [item(f"test_{test}", value, more) for test in "abcd" for value in ("x", "y", "z") for more in "12"]
OTHERS: list[Any] = [
    SimpleNamespace(nodeid="test_e[x]", get_closest_marker=lambda _: None),
    SimpleNamespace(nodeid="test_f", get_closest_marker=lambda _: pytest.mark.takes_turns("tree").mark),
]


def run(monkeypatch: pytest.MonkeyPatch, day: int, *words: str, items: Sequence[Any] = (*ITEMS, *OTHERS)) -> set[str]:
    """What of these runs on a day."""
    monkeypatch.delenv("ALL_TURNS", raising=False)
    monkeypatch.setattr(turns, "TODAY", turns.TODAY + timedelta(days=day))
    config: Any = SimpleNamespace(args=words or ("tests",))
    waiting = turns.waiting(config, list(items))
    monkeypatch.undo()
    return {one.nodeid for one in items if one not in waiting}


def test_each_has_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    days = [run(monkeypatch, day) for day in range(3)]
    assert {len(each) for each in days} == {4 * 2 + len(OTHERS)}
    assert set.union(*days) == {one.nodeid for one in (*ITEMS, *OTHERS)}
    assert all({one.nodeid for one in OTHERS} <= each for each in days)
    assert run(monkeypatch, 3) == days[0]


def test_each_combination_of_several_parameters_has_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("tree", "more", "what another test has")
    some = [item("test_g", value, more, names=names) for value in ("x", "y") for more in "12"]
    days = [run(monkeypatch, day, items=some) for day in range(4)]
    assert [len(each) for each in days] == [1] * 4
    assert set.union(*days) == {one.nodeid for one in some}


def test_who_names_a_test_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run(monkeypatch, 0, str(Path("tests/test_x.py::test_a")))) == len(ITEMS) + len(OTHERS)
