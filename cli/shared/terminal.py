"""What every command shares: its options, how it prints, how it ends."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.options import with_names, with_numbers, with_options
from barnabas.cli.shared.target import no_time_limit
from barnabas.cli.shared.words import shown
from typer.core import TyperCommand, TyperGroup

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1  # the largest numbers of the fields of a request

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Columns = Mapping[str, str | Callable[[Any], Any]]  # of a table: the field of a row, or what is made of the row
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class Plain:
    """What groups and commands have in common: the form of their help, and that a closed pipe is no error."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters. Help shows a flag as `--json`, not as `--json <bool>`, because no value follows it."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        try:
            with until_the_reader_leaves():
                super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:  # rich raises it when the pipe is closed
            raise typer.Exit(ExitCode.DONE) from None


class Group(Plain, TyperGroup):
    """A command that has commands."""


class Command(Plain, TyperCommand):
    """A command that does something."""

    def invoke(self, ctx: Any) -> Any:
        with until_the_reader_leaves():
            super().invoke(ctx)


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """End the command without an error when nobody reads its output any more (`barnabas topics list | head -1`).

    Where its output cannot be written for another reason (a full disk), or its input not be read, it has failed.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what waits to be written
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(ExitCode.DONE) from None
        fail(f"the command cannot read its input or write its output: {error.strerror or error}.")


class App(typer.Typer):
    """An app whose commands are of the class Command."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """As typer's decorator; a parameter that is a dataclass of options (`target`) becomes these options."""
        register = super().command(name, cls=Command, **settings)
        return lambda command: register(with_numbers(with_options(with_names(command))))


def new_app(summary: str | None = None, cls: type[Group] = Group) -> typer.Typer:
    """An app for a group of commands. With one command and no summary, the app is that command itself."""
    return App(
        cls=cls,
        help=summary,
        add_completion=False,
        no_args_is_help=summary is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_json(value: Any) -> None:
    """Print a JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as wide as its content. Columns whose name begins with `#` hold numbers."""
    for line in table_lines(columns, rows):
        print(line)


def print_rows(columns: Columns, rows: Iterable[Any]) -> None:
    """Print rows as such a table: under each column the field of that name, or what the function makes of the row."""
    cells = [[row[take] if isinstance(take, str) else take(row) for take in columns.values()] for row in rows]
    print_table(list(columns), cells)


def print_list(rows: Sequence[Any], columns: Columns, as_json: bool, nothing: str) -> None:
    """Print what was found: as JSON, or as such a table; if it is nothing, say so."""
    if as_json:
        print_json(rows)
    elif rows:
        print_rows(columns, rows)
    else:
        say(nothing)


def print_found(rows: Sequence[Any], columns: Columns, as_json: bool, nothing: str) -> None:
    """The same; but without --json it ends the command that nothing was found."""
    if not rows and not as_json:
        fail(nothing, ExitCode.NOTHING_THERE)
    print_list(rows, columns, as_json, nothing)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of such a table."""
    lines = [[column.removeprefix("#") for column in columns]]
    lines += [["-" if cell is None else shown(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["─" * width for width in widths])
    return [
        "  ".join(
            cell.rjust(width) if column.startswith("#") else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns)
        ).rstrip()
        for line in lines
    ]


def print_paragraph(text: str, end: str = "\n\n") -> None:
    """Print text below a heading: indented, folded on a terminal, and followed by an empty line."""
    # A pipe has no width, and a script reads line by line.
    width = os.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    line = shown(text.replace("\n", " "))
    print(textwrap.fill(line, width, initial_indent="    ", subsequent_indent="    "), end=end)


def print_outcomes(noun: str, rows: Sequence[dict[str, Any]], as_json: bool, *, nothing_there: bool = False) -> None:
    """Print the outcome of each row: `noun`, "result", and "error" if it failed. Any error ends the command."""
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if "error" not in row:
                print(shown(f"{row[noun]}: {row['result']}"), flush=True)
    errors = [f"{row[noun]}: {row['result']}: {row['error']}" for row in rows if "error" in row]
    if errors:
        fail("\n".join(errors), ExitCode.NOTHING_THERE if nothing_there else ExitCode.FAILED)


def confirm(question: str, yes: bool) -> None:
    """Return if the person agrees, or --yes was given; otherwise end the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f'nothing was changed: nobody is there to ask "{question}" Add --yes to agree.', ExitCode.NOT_VALID)
    with no_time_limit():
        agreed = typer.confirm(question, err=True)
    if not agreed:
        fail("nothing was changed.")


@contextmanager
def progress(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error if it is a terminal; yields a function that advances it.

    It is a bar, or a counter if the total is not known.
    """
    if not sys.stderr.isatty() or total == 1:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda count: bar.advance(task, count)
