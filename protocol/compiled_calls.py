"""What the functions that compile.py writes call: lengths, tagged fields, and errors."""

import codecs
import struct
from typing import Any

from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import Buffer
from barnabas.protocol.varint import decode_unsigned, encode_unsigned

STRING_BYTES_MAX = 32767
MESSAGE_CHARACTERS_MAX = STRING_BYTES_MAX // 4
"""An error message is cut there: it may quote a name that is as long as a name can be."""
UNKNOWN_TAGS_MAX = 1000
"""Fields of one structure that this broker does not know. No client will ever have so many."""


def decode_tags(buffer: memoryview, position: int) -> tuple[dict[int, bytes], int]:
    """Read the tagged fields of a structure that defines none. `position` is that of their count."""
    count, position = decode_unsigned(buffer, position)
    if count > UNKNOWN_TAGS_MAX:
        _many(count)
    fields: dict[int, bytes] = {}
    last = -1
    for _ in range(count):
        tag, position = decode_unsigned(buffer, position)
        size, position = decode_unsigned(buffer, position)
        if tag <= last:
            _order(tag)
        if size > len(buffer) - position:
            _short("a tagged field")
        fields[tag] = bytes(buffer[position : position + size])
        position += size
        last = tag
    return fields, position


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Python's "replace", but ProtocolError for a text that could become too long for a string when it is sent back."""
    assert isinstance(error, UnicodeDecodeError)
    if len(error.object) > STRING_BYTES_MAX // 3:
        raise ProtocolError(f"a string of {len(error.object)} bytes that is not UTF-8")
    return "\ufffd", error.end


codecs.register_error("barnabas.replace", _replace)


def _string_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """The length of a string in a flexible version. It has the same limit as the int16 of older versions."""
    length, position = decode_unsigned(buffer, position)
    if length > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {length - 1} bytes")
    return length, position


def _string_length_bytes(length: int) -> bytes:
    if length > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {length - 1} bytes, where {STRING_BYTES_MAX} are allowed")
    return encode_unsigned(length)


def write_tags(out: bytearray, fields: dict[int, Buffer]) -> None:
    out += encode_unsigned(len(fields))
    for tag in sorted(fields):
        value = fields[tag]
        out += encode_unsigned(tag)
        out += encode_unsigned(len(value))
        out += value


def _early(message: str) -> None:
    raise ProtocolError(f"{message} ends too early") from None


def _short(name: str) -> None:
    raise ProtocolError(f"{name} is longer than the bytes that are left")


def _null(name: str) -> None:
    raise ProtocolError(f"{name} must not be null")


def _order(tag: int) -> None:
    raise ProtocolError(f"tagged field {tag} is repeated or out of order")


def _size(name: str) -> None:
    raise ProtocolError(f"the size given for {name} is wrong")


def _many(count: int) -> None:
    raise ProtocolError(f"{count} tagged fields in one structure")


def _lacks(message: str, version: int, name: str) -> None:
    raise UnsupportedVersionError(f"{message} has no {name} in version {version}")


GLOBALS: dict[str, Any] = {
    "new": object.__new__,
    "struct_error": struct.error,
    "uvarint": decode_unsigned,
    "uvarint_bytes": encode_unsigned,
    "string_length": _string_length,
    "string_length_bytes": _string_length_bytes,
    "unknown_tags": decode_tags,
    "write_tags": write_tags,
    "early": _early,
    "short": _short,
    "null": _null,
    "order": _order,
    "size": _size,
    "many": _many,
    "lacks": _lacks,
}
