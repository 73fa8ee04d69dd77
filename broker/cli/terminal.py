"""What every command shares: its options, how it prints, how it ends."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from barnabas.broker.cli.exits import ExitCode, fail
from barnabas.broker.cli.target import no_time_limit, with_target
from typer.core import TyperCommand, TyperGroup

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1  # the numbers that fit into a request

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class Plain:
    """What groups and commands have in common: how their help looks, and what a pipe that is closed means."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; flags as `--json`, and not as `--json <bool>`, which reads as if a value had to follow."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        try:
            with until_the_reader_leaves():
                super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:  # what rich makes of a closed pipe
            raise typer.Exit(ExitCode.DONE) from None


class Group(Plain, TyperGroup):
    """A command that has commands."""


class Command(Plain, TyperCommand):
    """A command that does something."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        with until_the_reader_leaves():
            super().invoke(ctx)


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """When the reader of the output has seen enough (`barnabas topics list | head -1`), the command is done."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.DONE) from None


class App(typer.Typer):
    """Makes its commands of the class Command."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """As typer's; `target` stands for the options that say which broker to ask."""
        register = super().command(name, cls=Command, **settings)
        return lambda command: register(with_target(command))


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
    lines = [[column.removeprefix("#") for column in columns]]
    lines += [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["─" * width for width in widths])
    for line in lines:
        cells = [
            cell.rjust(width) if column.startswith("#") else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns)
        ]
        print("  ".join(cells).rstrip())


def print_paragraph(text: str) -> None:
    """Text below a heading: indented, folded where a person reads it, and followed by an empty line."""
    # A pipe has no width, and a script wants to read by line.
    width = os.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "), end="\n\n")


def print_outcomes(noun: str, rows: Sequence[dict[str, Any]], as_json: bool, *, nothing_there: bool = False) -> None:
    """What became of each thing: `noun`, "result", and "error" where it failed; any error ends the command."""
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if "error" not in row:
                print(f"{row[noun]}: {row['result']}", flush=True)
    errors = [f"{row[noun]}: {row['result']}: {row['error']}" for row in rows if "error" in row]
    if errors:
        fail("\n".join(errors), ExitCode.NOTHING_THERE if nothing_there else ExitCode.FAILED)


def confirm(question: str, yes: bool) -> None:
    """Go on only when the person agrees; a script must have said --yes."""
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
