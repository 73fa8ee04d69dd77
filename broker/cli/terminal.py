"""What every command shares: its options, how it prints, how it ends."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from barnabas.broker.cli.exits import ExitCode, fail, say
from typer.core import TyperCommand, TyperGroup

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="BARNABAS_BOOTSTRAP", metavar="HOST:PORT", help="A broker of the cluster."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class PlainFlags:
    """Help that shows `--json`, and not `--json <bool>`, which reads as if a value had to follow."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, flags without the name of their type."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Group(PlainFlags, TyperGroup):
    """A command that has commands."""


class Command(PlainFlags, TyperCommand):
    """A command that does something."""


class App(typer.Typer):
    """Makes its commands of the class Command."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """As typer's."""
        return super().command(name, cls=Command, **settings)


def new_app(summary: str | None = None) -> typer.Typer:
    """A group of commands; with one command and no summary, that command itself."""
    return App(
        cls=Group,
        help=summary,
        add_completion=False,
        no_args_is_help=summary is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table as wide as its content; columns whose name begins with `#` hold numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column.startswith("#") else "left"
        # Names stay whole; in a narrow terminal the rest is folded.
        table.add_column(column.removeprefix("#"), justify=justify, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    _console().print(table)


def print_paragraph(text: str) -> None:
    """Text below a heading: indented, folded where a person reads it, and followed by an empty line."""
    from rich.padding import Padding

    _console().print(Padding(text, (0, 0, 0, 4), expand=False), end="\n\n")


def _console() -> Any:
    from rich.console import Console

    # A pipe has no width; without one rich would fold at 80 columns what a script wants to read by line.
    return Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False)


def print_outcomes(noun: str, rows: Sequence[dict[str, Any]], as_json: bool, *, nothing_there: bool = False) -> None:
    """What became of each thing: `noun`, "result", and "error" where it failed; any error ends the command."""
    if as_json:
        print_json(rows)
    for row in rows:
        if "error" in row:
            say(f"barnabas: {row[noun]}: {row['result']}: {row['error']}")
        elif not as_json:
            print(f"{row[noun]}: {row['result']}")
    if any("error" in row for row in rows):
        raise typer.Exit(ExitCode.NOTHING_THERE if nothing_there else ExitCode.FAILED)


def confirm(question: str, yes: bool) -> None:
    """Go on only when the person agrees; a script must have said --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f'nothing was changed: nobody is there to ask "{question}" Add --yes to agree.', ExitCode.NOT_VALID)
    if not typer.confirm(question, err=True):
        fail("nothing was changed.")


@contextmanager
def progress(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar (without a total: a counter) on standard error, where a person looks; yields how to advance it."""
    if not sys.stderr.isatty() or total == 1:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda count: bar.advance(task, count)
