"""Times, sizes and names, for people."""

from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.runtime.counted import names_in_a_line


def shown(text: str) -> str:
    """Text on one line of a terminal. Clients choose the names of groups, and a name must not steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def partition_of(row: Mapping[str, Any]) -> str:
    """`orders-0`: the partition that a row is about."""
    return f"{row['topic']}-{row['partition']}"


def partitions_in_a_line(keys: Iterable[tuple[str, int]]) -> str:
    """`orders-0, orders-1, …`."""
    return names_in_a_line([f"{topic}-{index}" for topic, index in keys])


def duration(seconds: float | None) -> str:
    """`3 d 4 h`, `2 min 5 s`, `0.4 s`; `?` if it is not known."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    words = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        if number:
            words.append(f"{number} {unit}")
        elif words:
            break
    return " ".join(words[:2])


def size(number: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
