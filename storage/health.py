"""Whether a log can be written, and who is told when that changes."""

from collections.abc import Callable
from typing import TypeVar

from barnabas.runtime.ports import may_pass

T = TypeVar("T")


class Health:
    """Of one log. Its parts share it, because each of them can meet an error of the disk.

    - `write_blocked`: the last write was not possible (no room, say), and nothing has changed. The next write may be
      possible. It is over with a write, or when the directory is found to have room (`WriteBlocks.look`).
    - `failed`: nobody knows what is on the disk. The log is not written again before the next start.
    - `closed`: the broker stops, or the partition is deleted.
    - `is_held`: a truncation is under way, and nothing else may write.
    """

    __slots__ = ("closed", "failed", "is_held", "on_failed", "on_write_blocked", "write_blocked")

    def __init__(self) -> None:
        self.failed: OSError | None = None
        self.write_blocked: OSError | None = None
        self.closed = False
        self.is_held = False
        self.on_failed: Callable[[], None] | None = None
        self.on_write_blocked: Callable[[], None] | None = None  # is called when a write block begins and when it ends

    @property
    def is_writable(self) -> bool:
        """Whether a write can be tried."""
        return self.failed is None and not self.closed and not self.is_held

    def fail(self, error: OSError) -> None:
        """Never write again in this process."""
        if self.failed is None:
            self.failed = error
            self.write_blocked = None
            if self.on_failed is not None:
                self.on_failed()

    def block_writes(self, error: OSError) -> None:
        """Something could not be done, and everything is as before. If the error `may_pass`, it is tried again.

        With any other error the log fails.
        """
        if not may_pass(error):
            self.fail(error)
        elif self.write_blocked is None and self.failed is None:
            self.write_blocked = error
            if self.on_write_blocked is not None:
                self.on_write_blocked()

    def end_write_block(self) -> None:
        """A write was possible again, or would be."""
        if self.write_blocked is not None:
            self.write_blocked = None
            if self.on_write_blocked is not None:
                self.on_write_blocked()


def if_room(write: Callable[[], T], is_needed: bool) -> T | None:
    """What `write` returns. None if there was no room, and the file is not needed."""
    try:
        return write()
    except OSError as error:
        if is_needed or not may_pass(error):
            raise
        return None
