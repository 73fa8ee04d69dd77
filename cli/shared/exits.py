"""How a command ends: its exit codes, and the sentence that says why."""

import json
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import NoReturn

from barnabas.cli.shared.words import shown


class ExitCode(IntEnum):
    """The exit codes; commands.py explains them in --help."""

    DONE = 0
    FAILED = 1
    NOT_VALID = 2
    NOTHING_THERE = 3
    WARNED = 4  # `doctor` found warnings
    TROUBLED = 5  # `doctor` found errors
    TRY_AGAIN = 6  # of `pipeline`: another run is at work in the same place, or no broker answers
    STOPPED_AT_LOSS = 7  # of `pipeline`: records are gone that it was to read, and it did not go on
    WENT_ON = 8  # of `pipeline`: the same, and it went on behind them (`--on-loss continue`)
    NOTHING_NEW = 9  # of `pipeline`, with `--tell-nothing-new`
    INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class Failure(Exception):
    """Ends a command that cannot do what it was asked to do."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def tell(self, as_json: bool) -> None:
        """Write the message to standard error: as text for a person, as one JSON object for a script."""
        if as_json:
            say(json.dumps({"error": self.message, "exit_code": int(self.code)}, ensure_ascii=False))
        else:
            say("\n".join(f"barnabas: {line}" for line in self.message.splitlines()))


def say(message: str) -> None:
    """Print a line to standard error, because standard output holds nothing but the result."""
    print("\n".join(map(shown, message.split("\n"))), file=sys.stderr, flush=True)


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command with a sentence on standard error."""
    raise Failure(message, code)


def key_values(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`["a=1"]` as a dictionary; a pair without `=` ends the command."""
    result = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            fail(f"{option} wants name=value, not {pair!r}.", ExitCode.NOT_VALID)
        result[name.strip()] = value
    return result
