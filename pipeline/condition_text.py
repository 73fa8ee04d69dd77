"""Reads the option `where`: comparisons of columns with constants, with `and` between them, as SQL writes them.

    log_partition = 3 and group_id in ('billing', 'shipping') and log_timestamp >= '2026-11-22 06:00:00'

Constants are numbers, texts in single quotes (a time is a text, in UTC if it says no zone), `true`, `false`. There are
`=`, `<>`, `<`, `<=`, `>`, `>=`, `in (…)`, `not in (…)`, `is null` and `is not null`. Spark applies everything else.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
from barnabas.pipeline.filters import Conditions, accept, column_of
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+)|(?P<word>\w+)|(?P<sign><>|!=|<=|>=|[=<>(),]))")
_COMPARISONS = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
_END = ""


def read_conditions(text: str, schema: pa.Schema) -> Conditions:
    """The conditions of a table's columns. ValueError says what cannot be read."""
    if not text.strip():
        return Conditions()
    try:
        filters = list(_Reader(text, schema).conditions())
    except ValueError as error:
        raise ValueError(f"where={text!r}: {error}") from None
    conditions, rest = accept(filters, schema)
    if rest:
        column = column_of(rest[0])
        raise ValueError(
            f"where={text!r}: {column} is compared with a value that {schema.field(column).type} cannot hold"
        )
    return conditions


class _Reader:
    """Goes through the words of a text."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._tokens = list(_tokens(text))
        self._at = 0

    def conditions(self) -> Iterator[Filter]:
        yield self._condition()
        while self._peek() != _END:
            self._expect("and")
            yield self._condition()

    def _condition(self) -> Filter:
        column = self._next()
        if column not in self._schema.names:
            raise ValueError(f"there is no column {column!r}")
        type_ = self._schema.field(column).type
        name = (column,)
        word = self._next().lower()
        if word in _COMPARISONS:
            return _COMPARISONS[word](name, self._constant(type_))
        if word in ("<>", "!="):
            return Not(EqualTo(name, self._constant(type_)))
        if word == "in":
            return In(name, self._list(type_))
        if word == "not":
            self._expect("in")
            return Not(In(name, self._list(type_)))
        if word == "is":
            is_not = self._peek().lower() == "not"
            if is_not:
                self._next()
            self._expect("null")
            return IsNotNull(name) if is_not else IsNull(name)
        raise ValueError(f"{word!r} is no comparison")

    def _list(self, type_: pa.DataType) -> tuple[Any, ...]:
        self._expect("(")
        found = [self._constant(type_)]
        while self._peek() == ",":
            self._next()
            found.append(self._constant(type_))
        self._expect(")")
        return tuple(found)

    def _constant(self, type_: pa.DataType) -> Any:
        token = self._next()
        if token.startswith("'"):
            text = token[1:-1].replace("''", "'")
            if pa.types.is_timestamp(type_):
                return datetime.fromisoformat(text)
            return text.encode() if pa.types.is_binary(type_) else text
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        if token.lstrip("-").isdigit():
            return int(token)
        raise ValueError(f"{token!r} is no constant")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> str:
        token = self._peek()
        if token == _END:
            raise ValueError("it ends too early")
        self._at += 1
        return token

    def _expect(self, word: str) -> None:
        found = self._peek()
        if found.lower() != word:
            raise ValueError(f"{found!r} comes where {word!r} must be" if found else f"{word!r} is missing at its end")
        self._at += 1


def _tokens(text: str) -> Iterator[str]:
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[position:].strip()[:20]!r} cannot be read")
        yield match[0].strip()
        position = match.end()
