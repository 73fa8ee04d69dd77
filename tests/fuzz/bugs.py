"""What a broker in this process logs with a traceback: a bug, whatever was done to its directory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("barnabas", "asyncio")


class Bugs(logging.Handler):
    """What was logged with a traceback, and which warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(logging.Formatter().format(record))


@contextmanager
def heard() -> Iterator[Bugs]:
    """Listen to the log; nothing of it is printed meanwhile."""
    bugs = Bugs()
    was_disabled = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    for name in _NAMES:
        logging.getLogger(name).addHandler(bugs)
        logging.getLogger(name).propagate = False
    try:
        yield bugs
    finally:
        for name in _NAMES:
            logging.getLogger(name).removeHandler(bugs)
            logging.getLogger(name).propagate = True
        logging.disable(was_disabled)
