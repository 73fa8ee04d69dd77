"""`barnabas`: the command line.

`barnabas start` has 0.35 s from exec to its first answer, and typer (with pydantic behind it) would take 0.09 of them:
start reads its own words with argparse, and typer and the Kafka clients are imported for the other commands only.
"""

import os
import sys
from contextlib import suppress

from barnabas.broker.cli.exits import ExitCode, Failure


def main() -> None:
    """Entry point of the command `barnabas`, of `python -m barnabas` and of `python -m barnabas.broker.main`."""
    words = sys.argv[1:]
    try:
        code = run(words)
    except SystemExit as end:  # typer and argparse end with it
        code = end.code if isinstance(end.code, int) else ExitCode.DONE
    if words[:1] == ["start"]:
        sys.exit(code)
    # A client's threads may wait for a broker that does not answer: nobody waits for them.
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def run(words: list[str]) -> int:
    """Run one command; its exit code."""
    # Before the words are understood: what is wrong with them is told as JSON too.
    as_json = "--json" in words
    try:
        if words[:1] == ["start"]:
            from barnabas.broker.cli.start import run as start

            return start(words[1:])
        from barnabas.broker.cli.commands import run as run_command

        return run_command(words, as_json)
    except Failure as failure:
        failure.tell(as_json)
        return failure.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    main()
