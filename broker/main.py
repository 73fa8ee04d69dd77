"""`barnabas`: the command line.

`barnabas start` has 0.35 s from exec to its first answer, and typer (with pydantic behind it) would take 0.09 of them:
start reads its own words with argparse, and typer, rich and the Kafka clients are imported for the other commands only.
"""

import sys


def main() -> None:
    """Entry point of the command `barnabas` and of `python -m barnabas.broker.main`."""
    words = sys.argv[1:]
    if words[:1] == ["start"]:
        from barnabas.broker.cli.start import run

        sys.exit(run(words[1:]))
    from barnabas.broker.cli.commands import app

    app(prog_name="barnabas")


if __name__ == "__main__":
    main()
