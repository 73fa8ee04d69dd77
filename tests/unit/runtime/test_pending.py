"""A Pending made of another: its value comes with the other's, and who cancels it cancels the other."""

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


def test_nobody_waits_for_the_first_when_nobody_waits_for_what_is_made_of_it() -> None:
    first: Pending[int] = Pending()
    left: list[bool] = []
    first.on_cancel = lambda: left.append(True)
    first.map(str).cancel()
    assert left == [True]
    assert first.cancelled
