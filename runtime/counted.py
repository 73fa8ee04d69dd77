"""`1 member`, `2 members`; `a, b, …`: numbers with their nouns, and names, for log lines, commands and reports."""

from collections.abc import Sequence

NAMES_IN_A_LINE_MAX = 10


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number and the noun in the form that goes with it. `many`: the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def names_in_a_line(names: Sequence[str]) -> str:
    """The first of the names, for a message."""
    return ", ".join(names[:NAMES_IN_A_LINE_MAX]) + (", …" if len(names) > NAMES_IN_A_LINE_MAX else "")
