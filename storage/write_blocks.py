"""Which data directories refuse writes that may be possible again later: no room on the disk, say."""

import logging
from collections.abc import Callable

from barnabas.runtime.counted import counted
from barnabas.runtime.ports import DISK_FULL, READ_ONLY, TOO_MANY_OPEN, Clock
from barnabas.storage.log import Log
from barnabas.storage.log_directory import LogDirectory

logger = logging.getLogger("barnabas.storage")

_ROOM, _RIGHT, _LIMIT = ". Make room there", ". Let this user write it", ". Raise the limit of open files (ulimit -n)"
_WHAT_TO_DO = {
    **dict.fromkeys(DISK_FULL, _ROOM),
    **dict.fromkeys(READ_ONLY, _RIGHT),
    **dict.fromkeys(TOO_MANY_OPEN, _LIMIT),
}


class WriteBlocks:
    """A log that is refused a write speaks for its whole directory: the others there are refused next.

    So the directory is write-blocked from the first refusal on, or when its disk is seen to be full, until it has
    room and has refused nothing for a while, also if some writes succeed meanwhile: on a disk that is nearly full, a
    small write fits between two that do not. Both are said once for all logs.
    """

    def __init__(
        self, clock: Clock, directory_of: Callable[[Log], LogDirectory | None], settled_ms: Callable[[], float]
    ) -> None:
        self.on_change: list[Callable[[], None]] = []  # called when a directory is write-blocked, and when it is over
        self._clock = clock
        self._directory_of = directory_of
        self._settled_ms = settled_ms
        self._refused_ms: dict[LogDirectory, float] = {}  # when a write was refused last, where it is write-blocked
        self._logs: dict[Log, LogDirectory] = {}  # whose last write was refused

    def note(self, log: Log) -> None:
        """A log was refused a write, or could be written again."""
        if log.write_blocked is None:
            self._logs.pop(log, None)
            return
        directory = self._directory_of(log)
        if directory is None:
            return
        self._logs[log] = directory
        self._block(directory, f"{log.write_blocked}{_WHAT_TO_DO.get(log.write_blocked.errno or 0, '')}")

    def _block(self, directory: LogDirectory, why: str) -> None:
        is_new = directory not in self._refused_ms
        self._refused_ms[directory] = self._clock.monotonic_ms()
        if is_new:
            logger.error(
                "%s refuses writes, which are not acknowledged, and tries again with each request (%s): %s",
                directory.path,
                counted(len(directory.logs), "partition"),
                why,
            )
            self._tell()

    def is_write_blocked(self, log: Log) -> bool:
        """Whether the directory of a log is write-blocked."""
        return any(directory.logs.get((log.topic, log.partition)) is log for directory in self._refused_ms)

    def refuses(self, directory: LogDirectory) -> bool:
        """Whether a directory is write-blocked."""
        return directory in self._refused_ms

    def of(self, directory: LogDirectory) -> list[Log]:
        """The logs in a directory whose last write was refused."""
        for log in [log for log in self._logs if log.write_blocked is None or log.closed]:
            del self._logs[log]
        return [log for log, place in self._logs.items() if place is directory]

    def look(self, directory: LogDirectory) -> None:
        """A log that nobody writes does not find out by itself that it cannot be written, or can be again."""
        if directory not in self._refused_ms:
            if directory.is_full():
                self._block(directory, f"its disk is full{_ROOM}")
            return
        if not directory.has_room():
            return
        for log in self.of(directory):
            log.health.end_write_block()
        if self._clock.monotonic_ms() - self._refused_ms[directory] >= self._settled_ms():
            del self._refused_ms[directory]
            logger.info("%s can be written again (%s)", directory.path, counted(len(directory.logs), "partition"))
            self._tell()

    def _tell(self) -> None:
        for callback in self.on_change:
            callback()
