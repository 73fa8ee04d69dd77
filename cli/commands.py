"""The commands of `barnabas` for typer. A command's module is imported when that command runs."""

import os
from importlib import import_module
from typing import Any

import typer
import typer.main
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.terminal import Group

# In the order of `--help`: the first commands are those that a newcomer needs first.
COMMANDS = (
    *("start", "status", "cluster", "doctor", "demo", "topics", "produce", "consume", "records", "groups", "offsets"),
    *("transactions", "configs", "features", "acls", "users", "tokens", "quotas", "secure"),
    *("trace", "replay", "pipeline", "completion"),
)

COMPLETE_VARIABLE = "_BARNABAS_COMPLETE"  # a shell asks what could stand there (completion.py)

# The base class of click's errors of usage. typer exports only its subclasses.
USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]

EXIT_CODES = """Exit codes:
0  done
1  it failed, and the message says why
2  the command or a setting is not valid
3  nothing was there: no such topic or group, or no record before the time-out
4  doctor has warnings
5  doctor has errors
6  pipeline: another run writes to the same place, or no broker answers: try again later
7  pipeline: records are gone that it was to read, and it stopped there (--on-loss)
8  pipeline: records are gone that it was to read, and it went on behind them; all else is done
9  pipeline: nothing was new (only with --tell-nothing-new)
130  Ctrl-C ended it before it was done

With --json, an error is one JSON object on standard error: {"error": "…", "exit_code": 1}"""


class LazyCommands(Group):
    """Knows the names of the commands, and imports barnabas.cli.NAME for the one that runs."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        names: Any = dict.fromkeys(COMMANDS)
        self.commands = names  # typer suggests one of them for a wrong one

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "start":  # only for the list in --help: main.py runs `start` without typer
            if COMPLETE_VARIABLE in os.environ:
                from barnabas.cli.completion import start_command

                return start_command()
            return typer.main.get_command(_start)
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"barnabas.cli.{cmd_name}").app)
        command.name = cmd_name
        return command


_start = typer.Typer(add_completion=False)


@_start.command("start")
def _listed() -> None:
    """Serve until Ctrl-C or SIGTERM."""


app = typer.Typer(
    cls=LazyCommands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from barnabas.runtime.build import build_name

        print(f"barnabas {version('barnabas')} ({build_name()})")
        raise typer.Exit


@app.callback()
def _root(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version, and which build it is."
    ),
) -> None:
    """A Kafka-protocol broker in one process, and the commands to use it.

    \b
    barnabas demo                                 see it work
    barnabas start                                127.0.0.1:9092, ./data
    barnabas topics create orders --partitions 3
    echo "hello" | barnabas produce orders
    barnabas consume orders --from-beginning --max 1
    """


def run(words: list[str], as_json: bool) -> int:
    """Run a command; its exit code. Errors of usage are shown with the way to help, or as JSON."""
    if COMPLETE_VARIABLE in os.environ:
        from barnabas.cli import completion

        completion.begin()
    if not as_json:
        app(words, prog_name="barnabas")
        raise AssertionError("typer ends the process")
    try:
        return app(words, prog_name="barnabas", standalone_mode=False) or ExitCode.DONE
    except USAGE_ERROR as error:
        fail(error.format_message(), ExitCode.NOT_VALID)
    except typer.Abort:
        fail("nothing was changed.")
