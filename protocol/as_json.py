"""Requests and answers as values of JSON, for people and tests: names of fields as in the schemas."""

from collections.abc import Iterator
from typing import Any

from barnabas.protocol import uuids
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Struct
from barnabas.protocol.rows import Rows

TEXT_BYTES_MAX = 200  # of bytes that are shown as text
ITEMS_MAX = 1_000  # of a list that is shown
UUID_BYTES = 16
KNOWN = frozenset(map(int, ErrorCode))


def as_json(value: Any) -> Any:
    """A structure of the protocol as values of JSON. Records are a length, other bytes a text if they are one."""
    if isinstance(value, Struct):
        return {name: _field(name, getattr(value, name)) for name in value._FIELDS}
    return _field("", value)


def error_names(value: Any) -> list[str]:
    """The names of all errors in an answer, once each."""
    return [error_name(code) for code in dict.fromkeys(_error_codes(value)) if code]


def error_name(code: int) -> str:
    """Kafka's name of an error, or its number if it is of a later Kafka."""
    return ErrorCode(code).name if code in KNOWN else str(code)


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, field in value.items():
            if name == "error_code":
                yield field
            else:
                yield from _error_codes(field)
    elif isinstance(value, list):
        for each in value:
            yield from _error_codes(each)


def _field(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple | Rows):
        return [_field(name, each) for each in value[:ITEMS_MAX]]
    if isinstance(value, Struct):
        return as_json(value)
    if isinstance(value, bytes | bytearray | memoryview):
        if name.endswith("_id") and len(value) == UUID_BYTES:
            return uuids.to_text(bytes(value))
        if name == "records":
            return {"bytes": len(value)}
        return bytes(value[:TEXT_BYTES_MAX]).decode(errors="replace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return {"bytes": len(value)}  # records that are read from a file while they are sent
