"""Whether a log can be written, and who is told when that changes."""

from collections.abc import Callable

from barnabas.runtime.ports import may_pass


class Health:
    """Of one log. Its parts share it, because each of them can meet an error of the disk.

    - `hindered`: the last write was not possible (there was no room, say), and nothing has changed. The next write may
      be possible. It is over with a write, or when the directory is found to have room (`LogManager._look_for_room`).
    - `failed`: nobody knows what is on the disk. The log is not written again before the next start.
    - `closed`: the broker stops, or the partition is deleted.
    - `is_held`: a truncation is under way, and nothing else may write.
    """

    __slots__ = ("closed", "failed", "hindered", "is_held", "on_failed", "on_hindered")

    def __init__(self) -> None:
        self.failed: OSError | None = None
        self.hindered: OSError | None = None
        self.closed = False
        self.is_held = False
        self.on_failed: Callable[[], None] | None = None
        self.on_hindered: Callable[[], None] | None = None  # is called when a hindrance begins and when it ends

    @property
    def is_writable(self) -> bool:
        """Whether a write can be tried."""
        return self.failed is None and not self.closed and not self.is_held

    def fail(self, error: OSError) -> None:
        """Never write again in this process."""
        if self.failed is None:
            self.failed = error
            self.hindered = None
            if self.on_failed is not None:
                self.on_failed()

    def hinder(self, error: OSError) -> None:
        """Something could not be done, and everything is as before. If the error `may_pass`, it is tried again.

        With any other error the log fails.
        """
        if not may_pass(error):
            self.fail(error)
        elif self.hindered is None and self.failed is None:
            self.hindered = error
            if self.on_hindered is not None:
                self.on_hindered()

    def end_hindrance(self) -> None:
        """A write was possible again, or would be."""
        if self.hindered is not None:
            self.hindered = None
            if self.on_hindered is not None:
                self.on_hindered()
