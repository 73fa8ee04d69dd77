"""A Pending that is completed or cancelled refers to nothing: requests that waited need no garbage collection."""

import gc
import weakref
from collections.abc import Callable

import pytest
from barnabas.runtime.pending import Pending


class Waiting:
    """Owner and observer of a Pending, as a parked request is."""

    def __init__(self) -> None:
        self.pending: Pending[int] = Pending()
        self.pending.on_cancel = self.leave
        self.pending.then(self.told)
        self.heard: list[object] = []

    def leave(self) -> None:
        self.heard.append("left")

    def told(self, value: int) -> None:
        self.heard.append(value)


@pytest.mark.parametrize(
    ("end", "heard"),
    [(lambda waiting: waiting.pending.complete(7), 7), (lambda waiting: waiting.pending.cancel(), "left")],
)
def test_no_cycle_is_left(end: Callable[[Waiting], None], heard: object) -> None:
    gc.disable()
    try:
        waiting = Waiting()
        end(waiting)
        assert waiting.heard == [heard]
        alive = weakref.ref(waiting)
        del waiting
        assert alive() is None
    finally:
        gc.enable()


def test_one_observer_only_also_after_completion() -> None:
    waiting = Waiting()
    waiting.pending.complete(7)
    with pytest.raises(AssertionError):
        waiting.pending.then(lambda value: None)
