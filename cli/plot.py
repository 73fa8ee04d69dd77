"""A small plot of a value over time, made of block characters. Pure."""

import math
from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"


def plot(points: Sequence[tuple[float, float]], *, begin: float, end: float, width: int, height: int) -> list[str]:
    """Lines of `width` columns from the time `begin` to `end`, the top line first.

    Each (time, value) holds until the next one. A column shows the largest value in its time. Before the first point it
    is empty; the value 0 has the lowest block.
    """
    columns = column_values(points, begin=begin, end=end, width=width)
    largest = max((value for value in columns if value is not None), default=0.0)
    steps = height * 8
    lines = []
    for line in range(height - 1, -1, -1):
        text = ""
        for value in columns:
            if value is None:
                text += " "
                continue
            filled = max(round(value / largest * steps), 1) if largest else 1
            text += _BLOCKS[min(max(filled - line * 8, 0), 8)]
        lines.append(text)
    return lines


def column_values(points: Sequence[tuple[float, float]], *, begin: float, end: float, width: int) -> list[float | None]:
    """The largest value in the time of each column; None before the first point."""
    columns: list[float | None] = [None] * width
    if width <= 0 or end <= begin:
        return columns
    span = (end - begin) / width
    for number, (time, value) in enumerate(points):
        until = points[number + 1][0] if number + 1 < len(points) else end
        if until < begin or time > end:
            continue
        first = max(int((time - begin) / span), 0)
        last = min(math.ceil((until - begin) / span), width)
        for column in range(min(first, width - 1), min(max(last, first + 1), width)):
            known = columns[column]
            if known is None or known < value:
                columns[column] = value
    return columns
