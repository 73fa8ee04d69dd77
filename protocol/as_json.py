"""Requests and answers as values of JSON, for people and tests: names of fields as in the schemas."""

from typing import Any

from barnabas.protocol import uuids
from barnabas.protocol.message import Struct
from barnabas.protocol.rows import Rows

TEXT_BYTES_MAX = 200  # of bytes that are shown as text
ITEMS_MAX = 1_000  # of a list that is shown
UUID_BYTES = 16


def as_json(value: Any) -> Any:
    """A structure of the protocol as values of JSON. Records are a length, other bytes a text if they are one."""
    if isinstance(value, Struct):
        return {name: _field(name, getattr(value, name)) for name in value._FIELDS}
    return _field("", value)


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
