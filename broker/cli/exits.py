"""How a command ends: its exit codes, and the sentence that says why."""

import json
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import NoReturn


class ExitCode(IntEnum):
    """What a script can tell from `$?`; the text of it is in commands.py."""

    DONE = 0
    FAILED = 1
    NOT_VALID = 2
    NOTHING_THERE = 3
    INTERRUPTED = 130  # as a shell reports what Ctrl-C has ended


class Failure(Exception):
    """The end of a command that could not do what it was asked to do."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def tell(self, as_json: bool) -> None:
        """Write it to standard error: a sentence (or several lines) for a person, one JSON object for a script."""
        if as_json:
            say(json.dumps({"error": self.message, "exit_code": int(self.code)}, ensure_ascii=False))
        else:
            say("\n".join(f"barnabas: {line}" for line in self.message.splitlines()))


def say(message: str) -> None:
    """A line for the person, on standard error, so that standard output stays what was asked for."""
    print(message, file=sys.stderr, flush=True)


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
