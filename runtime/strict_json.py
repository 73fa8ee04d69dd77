"""JSON of clients, read strictly: what has two meanings, or none, is refused. A value can be had as it stands there."""

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")


def loads(text: str) -> Any:
    """The value. ValueError also for NaN, Infinity, and a name that stands twice in an object."""
    return _DECODER.decode(text)


def members(text: str) -> dict[str, str]:
    """The members of an object that `loads` takes: by their names the values, in the very characters of the text."""
    return dict(_parts(text, are_named=True))


def items(text: str) -> list[str]:
    """The items of an array that `loads` takes, in the very characters of the text."""
    return [item for _, item in _parts(text, are_named=False)]


def _parts(text: str, *, are_named: bool) -> Iterator[tuple[str, str]]:
    at = _behind_space(text, _behind_space(text, 0) + 1)
    while text[at] not in "]}":
        name = ""
        if are_named:
            name, at = _DECODER.raw_decode(text, at)
            at = _behind_space(text, _behind_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _behind_space(text, end)
        if text[at] == ",":
            at = _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)
