"""`Pending`: a value that is not there yet. A request that must wait returns one instead of its answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Pending(Generic[T]):
    """The owner completes it exactly once, and at most one callback observes it. It needs no event loop.

    It is lighter than an asyncio future. The callback runs inside `complete`, so the owner calls `complete` after its
    own state has changed (design: signal now, serve afterwards). An owner whose wait can be cancelled sets `on_cancel`.
    """

    __slots__ = ("_callback", "_value", "cancelled", "done", "on_cancel", "on_failure")

    def __init__(self) -> None:
        self.done = False
        self.cancelled = False
        self._value: T | None = None
        self._callback: Callable[[T], None] | None = None
        self.on_cancel: Callable[[], object] | None = None
        self.on_failure: Callable[[Exception], None] | None = None  # set by the observer, before `then`

    @staticmethod
    def of(value: R) -> "Pending[R]":
        """One whose value is there already."""
        pending: Pending[R] = Pending()
        pending.complete(value)
        return pending

    def complete(self, value: T) -> None:
        """Give the value to the observer. To complete twice is a bug. After `cancel` this does nothing."""
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
        """There will be no value, because of a bug. Call the observer's `on_failure`; without one, raise the error."""
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
        """Call `callback` with the value: at once if it is there already."""
        assert self._callback is None, "one observer only"
        if self.done:
            self._callback = _told
            value, self._value = self._value, None
            callback(value)  # type: ignore[arg-type]  # T may include None
        else:
            self._callback = callback

    def take(self) -> T:
        """Take the value, once, instead of calling `then`. It must be there (`done`)."""
        assert self.done, "the value is not there yet"
        box: list[T] = []
        self.then(box.append)
        return box[0]

    def map(self, change: Callable[[T], R], kind: "type[Pending[Any]] | None" = None) -> "Pending[R]":
        """A Pending of `change(value)`. To cancel it cancels this one too, if this one can be cancelled.

        If `change` raises, the new Pending fails, so that its observer does not wait for ever.
        """
        changed: Pending[R] = (kind or Pending)()
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

    def and_then(self, go_on: "Callable[[T], R | Pending[R]]") -> "Pending[R]":
        """A Pending of what `go_on(value)` returns, or of what that waits for. It cannot be cancelled."""
        ended: Pending[R] = Pending()
        self.on_failure = ended.fail

        def take(value: T) -> None:
            try:
                result = go_on(value)
            except Exception as error:
                ended.fail(error)
                return
            if isinstance(result, Pending):
                result.on_failure = ended.fail
                result.then(ended.complete)
            else:
                ended.complete(result)

        self.then(take)
        return ended

    @staticmethod
    def all(pendings: "Sequence[Pending[R]]") -> "Pending[list[R]]":
        """A Pending of all values, in order. It completes with the last of them."""
        every: Pending[list[R]] = Pending()
        found: dict[int, R] = {}

        def take(position: int, value: R) -> None:
            found[position] = value
            if len(found) == len(pendings):
                every.complete([found[position] for position in range(len(pendings))])

        def give_up(error: Exception) -> None:
            if not every.done:
                every.fail(error)

        for position, pending in enumerate(pendings):
            pending.on_failure = give_up
            pending.then(partial(take, position))
        if not pendings:
            every.complete([])
        return every

    def cancel(self) -> bool:
        """The observer does not wait any more. True: the wait is cancelled, and the observer will not be called.

        False: the owner set no `on_cancel`. Then nothing changes, and the observer will be called.
        """
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is None:
            return self.cancelled
        self.cancelled = True
        self._callback = _told
        on_cancel()
        return True


class CarriedOut(Pending[T]):
    """The answer to a request that has had its whole effect: the next request of its client may be carried out."""

    __slots__ = ()


def _told(value: object) -> None:
    """Replaces a callback that was called, or that will never be called.

    Owner and observer usually refer to the Pending. If it kept its reference to them, each request that waited would
    be a cycle for the garbage collector.
    """
    raise AssertionError("completed twice")
