"""Options that several commands have: a dataclass whose fields are options, taken by a command as one parameter."""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import typer


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter of a command that is such a dataclass by its options.

    They come behind the command's own ones. A field whose name is that of an own one, too, is the same option if it has
    no default (`as_json`); else the command's own option has another meaning, and the field keeps its default.
    """
    told = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in told.items() if is_dataclass(each.annotation)}
    if not groups:
        return command
    own = {name: each for name, each in told.items() if name not in groups}
    parameters = list(own.values())
    taken = {
        name: [field for field in fields(group) if field.name not in own or field.default is MISSING]
        for name, group in groups.items()
    }
    for field in (field for group in taken.values() for field in group if field.name not in own):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=field.type))

    @functools.wraps(command)
    def grouped(**words: Any) -> Any:
        given = {name: words[name] for name in own}
        for name, group in groups.items():
            given[name] = group(**{field.name: words[field.name] for field in taken[name]})
        return command(**given)

    parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    grouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {each.name: each.annotation for each in parameters}
    return grouped


def with_numbers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse `nan` for the numbers of a command. No bound of an option refuses it, because it compares as false."""

    @functools.wraps(command)
    def checked(*values: Any, **words: Any) -> Any:
        if any(isinstance(value, float) and math.isnan(value) for value in (*values, *words.values())):
            raise typer.BadParameter("nan is no number")
        return command(*values, **words)

    return checked


class Names:
    """Base of those dataclasses whose texts are sent to brokers as they are."""


def with_names(command: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a text that is no UTF-8 as an own parameter of a command or in its `Names`, because kafka-python would try
    to send it until the time is over. (What `produce` sends may be any bytes, and so may the name of a file.)
    """

    @functools.wraps(command)
    def checked(*values: Any, **words: Any) -> Any:
        given = [*values, *words.values()]
        for names in (each for each in given.copy() if isinstance(each, Names)):
            given += vars(names).values()
        for value in given:
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and text != text.encode(errors="replace").decode():
                    raise typer.BadParameter(f"{text!r} is no text in UTF-8")
        return command(*values, **words)

    return checked
