"""`barnabas`: the command line.

`barnabas start` reads its options with argparse, because importing typer would add 0.09 s to every start. Typer and
kafka-python are imported for the other commands only.
"""

import gc
import os
import signal
import sys
import warnings


def main() -> None:
    """Entry point of the command `barnabas` and of `python -m barnabas`."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A script's `command &` starts it so. SIGINT ends a command, whatever started it (docs/command-line.md).
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _main()
    except KeyboardInterrupt:  # while modules are imported
        os._exit(130)  # ExitCode.INTERRUPTED


def _main() -> None:
    from contextlib import suppress

    from barnabas.cli.shared.exits import ExitCode

    words = sys.argv[1:]
    try:
        code = run(words)
    except SystemExit as end:  # typer and argparse end with it
        code = end.code if isinstance(end.code, int) else ExitCode.DONE
    if words[:1] == ["start"]:
        sys.exit(code)
    # Do not wait for a client's threads: they may wait for a broker that does not answer.
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def run(words: list[str]) -> int:
    """Run one command; its exit code."""
    from contextlib import suppress

    from barnabas.cli.shared.exits import ExitCode, Failure

    # Looked for before the words are parsed, because errors of usage are JSON too.
    as_json = "--json" in words
    try:
        if words[:1] == ["start"]:
            gc.disable()  # until the broker serves, because what the start makes stays
            from barnabas.cli.start import run as start

            return start(words[1:])
        from barnabas.runtime.output import open_closed_streams

        open_closed_streams()
        # Of libraries: kafka-python has one at its import, and PYTHONWARNINGS=error would end the command.
        warnings.simplefilter("ignore", DeprecationWarning)
        from barnabas.cli.commands import run as run_command

        return run_command(words, as_json)
    except Failure as failure:
        with suppress(OSError):  # nothing can be said where standard error cannot be written
            failure.tell(as_json)
        return failure.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    main()
