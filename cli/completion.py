"""`barnabas completion`: the lines that let a shell complete commands and options.

The shell asks by running `barnabas` with the environment variable `COMPLETE_VARIABLE`; typer answers.
"""

import argparse
import inspect
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.cli.commands import COMPLETE_VARIABLE
from barnabas.cli.shared.terminal import new_app
from typer import completion as typer_completion

app = new_app()
_typer: Any = typer_completion  # it has no types for these functions


class Shell(StrEnum):
    """The shells that typer supports."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print what lets a shell complete commands and options with the tab key.

    \b
    eval "$(barnabas completion bash)"                       in ~/.bashrc
    eval "$(barnabas completion zsh)"                        in ~/.zshrc, behind compinit
    barnabas completion fish | source                        in config.fish
    """
    print(_typer.get_completion_script(prog_name="barnabas", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def begin() -> None:
    """Let typer answer the shell in this process."""
    _typer.completion_init()


def start_command() -> Any:
    """`barnabas start` as a command of typer, with the options of its own parser: for the shell alone."""
    from barnabas.cli.start_options import parser

    parameters = [
        inspect.Parameter(action.dest, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(action))
        for action in parser()._actions
        if action.dest != "help"
    ]

    def start(**_words: Any) -> None:
        """Serve until Ctrl-C or SIGTERM."""

    start.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    start.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    found = typer.Typer(add_completion=False)
    found.command("start")(start)
    return typer.main.get_command(found)


def _option(action: argparse.Action) -> Any:
    flags = action.option_strings
    if isinstance(action, argparse.BooleanOptionalAction):
        flags = ["/".join(flags)]
    kind: Any = bool | None if action.nargs == 0 else str | None
    return Annotated[kind, typer.Option(*flags, help=(action.help or "").partition(";")[0].replace("%", "%%"))]
