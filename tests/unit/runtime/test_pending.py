"""A Pending made from another: it completes with the other, and to cancel it cancels the other."""

from barnabas.runtime.pending import Pending


def test_a_changed_value_comes_with_the_value() -> None:
    first: Pending[int] = Pending()
    heard: list[str] = []
    first.map(str).then(heard.append)
    assert heard == []
    first.complete(7)
    assert heard == ["7"]


def test_a_value_that_is_there_is_changed_at_once() -> None:
    first: Pending[int] = Pending()
    first.complete(7)
    assert first.map(str).done


def test_who_waits_learns_that_what_should_be_made_of_the_value_failed() -> None:
    first: Pending[str] = Pending()
    heard: list[Exception] = []
    changed = first.map(int)
    changed.on_failure = heard.append
    changed.then(lambda value: None)
    first.complete("not a number")
    assert [type(error) for error in heard] == [ValueError]


def test_nobody_waits_for_the_first_when_nobody_waits_for_what_is_made_of_it() -> None:
    first: Pending[int] = Pending()
    left: list[bool] = []
    first.on_cancel = lambda: left.append(True)
    first.map(str).cancel()
    assert left == [True]
    assert first.cancelled


def test_all_values_come_in_their_order_with_the_last() -> None:
    pendings: list[Pending[str]] = [Pending() for _ in range(3)]
    pendings[1].complete("b")
    heard: list[list[str]] = []
    Pending.all(pendings).then(heard.append)
    pendings[2].complete("c")
    assert heard == []
    pendings[0].complete("a")
    assert heard == [["a", "b", "c"]]


def test_all_fail_with_the_first_that_fails() -> None:
    pendings: list[Pending[str]] = [Pending() for _ in range(3)]
    heard: list[Exception] = []
    every = Pending.all(pendings)
    every.on_failure = heard.append
    every.then(lambda values: None)
    errors = [ValueError("first"), ValueError("second")]
    pendings[0].complete("a")
    pendings[2].fail(errors[0])
    pendings[1].fail(errors[1])
    assert heard == errors[:1]


def test_all_of_none_are_there() -> None:
    nothing: list[Pending[int]] = []
    assert Pending.all(nothing).done


def test_what_its_owner_cannot_let_go_of_stays() -> None:
    pending: Pending[int] = Pending()
    heard: list[str] = []
    changed = pending.map(str)
    changed.then(heard.append)
    assert not changed.cancel()
    pending.complete(7)
    assert heard == ["7"]
