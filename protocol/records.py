"""The classes of stored keys and values, and of opaque bytes in requests, made on first use (types: records.pyi).

`OffsetCommitKey` and `OffsetCommitValue` come from `schemas/records/offset_commit.txt`. A class that is neither key nor
value (`ConsumerProtocolSubscription`, `EndTxnMarker`) has a name of its own. The bytes of all begin with an int16: the
version of a value, or in a key the number of the kind of record.
"""

import struct
from typing import Any, TypeVar

from barnabas.protocol import schema
from barnabas.protocol.codec import decoder, encoder
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import Buffer, Message, make_class

M = TypeVar("M", bound=Message)
_INT16 = struct.Struct(">h")


def __getattr__(name: str) -> Any:
    for base in (name, name.removesuffix("Key"), name.removesuffix("Value")):
        try:
            loaded = schema.load("records/" + _file_name(base))
        except FileNotFoundError:
            continue
        for class_name, message in loaded.items():
            globals()[class_name] = make_class(message, __name__)
        if name in loaded:
            return globals()[name]
    raise AttributeError(f"no stored record is called {name}")


def encode_versioned(value: Message, version: int | None = None) -> bytes:
    """The version and the fields as bytes. `version` may be left out if there is only one, as for every key.

    UnsupportedVersionError: the version does not exist or cannot express the value.
    """
    first, last = type(value).SCHEMA.versions
    if version is None:
        if first != last:
            raise UnsupportedVersionError(f"{type(value).SCHEMA.name} has several versions: say which")
        version = first
    return bytes(encoder(type(value), version)(value, bytearray(_INT16.pack(version)), []))


def decode_versioned(cls: type[M], buffer: Buffer, *, newer_as_latest: bool = False) -> tuple[int, M]:
    """The version and the value. Bytes behind the fields are ignored, because newer versions may append fields.

    ProtocolError: the bytes cannot be read. UnsupportedVersionError: the version is unknown. `newer_as_latest`: a
    version above the highest known one is read as that one (the rule of the consumer protocol).
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    version = version_of(view)
    known = min(version, cls.SCHEMA.versions[1]) if newer_as_latest else version
    value, _ = decoder(cls, known)(view, 2)
    return version, value


def version_of(buffer: Buffer) -> int:
    """The int16 at the start; in a key it is the kind of record. ProtocolError if the bytes are too short."""
    if len(buffer) < 2:
        raise ProtocolError("a stored record ends before its version")
    version: int = _INT16.unpack_from(buffer)[0]
    return version


def _file_name(name: str) -> str:
    """`OffsetCommit` -> `offset_commit`."""
    name = name.replace("KRaft", "Kraft")
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
