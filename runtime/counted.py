"""`1 member`, `2 members`: numbers with their nouns, for log lines, commands and reports."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number and the noun in the form that goes with it. `many`: the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
