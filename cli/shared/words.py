"""Times, sizes, names and commands, for people."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
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


def line_of(command: tuple[str, ...], bootstrap: str | None) -> str:
    """The words of a command as a shell takes them. `bootstrap` None: the default, or it asks no broker."""
    end = command.index("--") if "--" in command else len(command)
    options, names = command[:end], command[end:]
    if bootstrap is not None and "--bootstrap" not in options:
        options += ("--bootstrap", bootstrap)
    return " ".join(map(_quoted, ("barnabas", *options, *names)))


def _quoted(word: str) -> str:
    """A word for a shell. What is not printable is escaped, so that a name cannot look like a line of its own."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        "\\" + character if character in "\\'" else character if character.isprintable() else _octal(character)
        for character in word
    )
    return f"$'{''.join(escaped)}'"


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogatepass"))


def command_of(command: str, names: Sequence[str], *options: str) -> tuple[str, ...]:
    """The words of a command for things with these names. A name may begin with a dash, and is no option then."""
    words = tuple(command.split())
    if any(name.startswith("-") for name in names):
        return (*words, *options, "--", *names)
    return (*words, *names, *options)
