"""A value that is not there yet: what a request that must wait returns instead of its answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Pending(Generic[T]):
    """Completed exactly once by its owner, observed by at most one callback; no event loop needed.

    Lighter than an asyncio future, and its callback runs inside `complete`: its owner completes it after the owner's
    own state has settled (design: signal now, serve afterwards). An owner that can let a wait go says how, in
    `on_cancel`.
    """

    __slots__ = ("_callback", "_value", "cancelled", "done", "on_cancel", "on_failure")

    def __init__(self) -> None:
        self.done = False
        self.cancelled = False
        self._value: T | None = None
        self._callback: Callable[[T], None] | None = None
        self.on_cancel: Callable[[], object] | None = None
        self.on_failure: Callable[[Exception], None] | None = None  # set by the observer, before `then`

    def complete(self, value: T) -> None:
        """Hand the value to the observer. Completing twice is a bug; of a cancelled one nothing comes."""
        if self.cancelled:
            return
        assert not self.done, "completed twice"
        self.done = True
        self.on_cancel = self.on_failure = None
        callback = self._callback
        if callback is None:
            self._value = value
        else:
            self._callback = _told
            callback(value)

    def fail(self, error: Exception) -> None:
        """There will be no value, because of a bug: tell the observer, or raise where it has no ear for that."""
        if self.cancelled:
            return
        assert not self.done, "completed twice"
        self.done = True
        self.on_cancel = None
        self._callback = _told
        on_failure, self.on_failure = self.on_failure, None
        if on_failure is None:
            raise error
        on_failure(error)

    def then(self, callback: Callable[[T], None]) -> None:
        """Call with the value, at once when it is there already."""
        assert self._callback is None, "one observer only"
        if self.done:
            self._callback = _told
            value, self._value = self._value, None
            callback(value)  # type: ignore[arg-type]  # T may include None
        else:
            self._callback = callback

    def taken(self) -> T:
        """The value, which is there (`done`) and is taken once: instead of `then`."""
        box: list[T] = []
        self.then(box.append)
        return box[0]

    def map(self, change: Callable[[T], R]) -> "Pending[R]":
        """What `change` makes of the value, as soon as that is there. To cancel it cancels this one, if that can be.

        If `change` raises, the new one fails: who waits for it must not wait for ever.
        """
        changed: Pending[R] = Pending()
        if self.on_cancel is not None:
            changed.on_cancel = self.cancel
        self.on_failure = changed.fail

        def take(value: T) -> None:
            try:
                result = change(value)
            except Exception as error:
                changed.fail(error)
            else:
                changed.complete(result)

        self.then(take)
        return changed

    @staticmethod
    def all(pendings: "Sequence[Pending[R]]") -> "Pending[list[R]]":
        """All values, in their order, as soon as the last of them is there."""
        every: Pending[list[R]] = Pending()
        found: dict[int, R] = {}

        def take(position: int, value: R) -> None:
            found[position] = value
            if len(found) == len(pendings):
                every.complete([found[position] for position in range(len(pendings))])

        for position, pending in enumerate(pendings):
            pending.then(partial(take, position))
        if not pendings:
            every.complete([])
        return every

    def cancel(self) -> bool:
        """Nobody waits any more. Returns whether the owner has let the wait go: then the observer is not called.

        Where the owner cannot, all stays as it is, and the observer is called as ever.
        """
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is None:
            return self.cancelled
        self.cancelled = True
        self._callback = _told
        on_cancel()
        return True


def _told(value: object) -> None:
    """In place of a callback that has been called or never will be.

    Owner and observer mostly hold the Pending too: were it to hold them for longer, each request that waited would
    be left to the garbage collector.
    """
    raise AssertionError("completed twice")
