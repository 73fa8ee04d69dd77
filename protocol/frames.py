"""Frames: the units that travel on a connection. A frame is a size (int32) and as many bytes.

A request frame is a header and a body: api key and version (int16 each), correlation id (int32), client id (int16
length, also in flexible versions; absent in ControlledShutdown 0) and, when the version is flexible, tagged fields. A
response frame is the correlation id, tagged fields when its version is flexible, and a body.

The answer to ApiVersions never has tagged fields in its header, because the client does not know yet which versions the
broker has. When it answers a version that is too new, its body is in version 0 (KIP-511).
"""

import struct
from collections.abc import Generator
from typing import Any, Final

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.codec import decoder, encoder, encoder_in_pieces, native_codec
from barnabas.protocol.compiled_calls import decode_tags
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import Buffer, Message, Part
from barnabas.protocol.messages import request_class, response_class
from barnabas.protocol.schema import NEWEST

_START: Final = struct.Struct(">hhih")
_WITHOUT_CLIENT_ID: Final = int(ApiKey.CONTROLLED_SHUTDOWN)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_REQUEST_START: Final = struct.Struct(">ihhi")
_RESPONSE_START: Final = struct.Struct(">ii")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_native_header: Final = None if native_codec is None else native_codec.request_header  # None: the pure build


class RequestHeader:
    """The header of a request, which comes before its body."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )


def check_frame_size(size: int, limit: int) -> None:
    """Raise ProtocolError unless a frame may have this size. Called before memory is taken for the frame."""
    if size < 0 or size > limit:
        raise ProtocolError(f"a frame of {size} bytes, where {limit} are allowed")


_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_HANDSHAKE: Final = b"\x16\x03"


def foreign_protocol(start: bytes) -> str | None:
    """Which other protocol begins with these four bytes; None: none that is known.

    Read as a size they are hundreds of megabytes, so the question is asked only where a size is refused.
    """
    if start.startswith(_TLS_HANDSHAKE):
        return "TLS"
    return "HTTP" if start in _HTTP_METHODS else None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header and the position of the body. ProtocolError also for an unknown API, whose header's form is unknown.

    A version that is too new is not an error here, because ApiVersions answers it. Its header is read in the newest
    form.
    """
    api_key: int
    api_version: int
    length: int
    client_id: str | None
    if _native_header is not None:
        found = _native_header(frame, _FLEXIBLE_SINCE)
        if found is not None:
            api_key, api_version, correlation_id, client_id, position = found
            return RequestHeader(api_key, api_version, correlation_id, client_id), position
    try:
        api_key, api_version, correlation_id, length = _START.unpack_from(frame)  # no request is shorter than this
        if (flexible_since := _FLEXIBLE_SINCE.get(api_key)) is None:
            flexible_since = _flexible_since(api_key)
        position = 10
        client_id = None
        if api_key == _WITHOUT_CLIENT_ID and api_version == 0:
            position = 8
        elif length >= 0:
            position += length
            if position > len(frame):
                raise ProtocolError("client_id is longer than the bytes that are left")
            client_id = str(frame[10:position], "utf-8", "barnabas.replace")
        if api_version >= flexible_since:
            if frame[position] == 0:
                position += 1
            else:
                _, position = decode_tags(frame, position)
    except (struct.error, IndexError):
        raise ProtocolError("a request header ends too early") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """The header and the body of a request frame (without its size). Bytes behind the body are ignored, as in Kafka.

    ProtocolError: the bytes cannot be read. UnsupportedVersionError: the version does not exist.
    """
    view = frame if type(frame) is memoryview else memoryview(frame)
    header, position = decode_request_header(view)
    try:
        cls = request_class(header.api_key)
    except KeyError:
        raise UnsupportedVersionError(f"API {header.api_key} is not known here in any version") from None
    message, _ = decoder(cls, header.api_version)(view, position)
    return header, message


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A whole request frame, size included."""
    out = _request_start(api_key, api_version, correlation_id, client_id, message)
    return b"".join(_sized(message, api_version, out))


def encode_request_in_pieces(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Message
) -> Generator[None, None, "EncodedFrame"]:
    """Encode the same frame in a generator, which pauses after every structure in an array."""
    out = _request_start(api_key, api_version, correlation_id, client_id, message)
    return (yield from _in_pieces(message, api_version, out))


def _request_start(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytearray:
    out = bytearray(_REQUEST_START.pack(0, api_key, api_version, correlation_id))
    if api_key != ApiKey.CONTROLLED_SHUTDOWN or api_version > 0:
        encoded = (client_id or "").encode()
        out += _INT16.pack(-1 if client_id is None else len(encoded))
        out += encoded
    if api_version >= type(message).SCHEMA.flexible_since:
        out.append(0)
    return out


def encode_response(api_key: int, api_version: int, correlation_id: int, message: Message) -> list[Part]:
    """A whole response frame, size included, in parts. Large `records` are parts of their own, and not copied.

    `api_version` is that of the request; 0 if it was an ApiVersions that is too new.
    """
    if _native_header is not None:
        encode: Any = type(message).ENCODERS.get(api_version) or encoder(type(message), api_version)
        parts: list[Part] = encode.frame(message, correlation_id, api_key != _API_VERSIONS)
        return parts
    out = _response_start(api_key, api_version, correlation_id, message)
    return _sized(message, api_version, out)


def _response_start(api_key: int, api_version: int, correlation_id: int, message: Message) -> bytearray:
    out = bytearray(_RESPONSE_START.pack(0, correlation_id))
    if api_version >= type(message).SCHEMA.flexible_since and api_key != _API_VERSIONS:
        out.append(0)
    return out


class EncodedFrame:
    """A whole frame, ready to be sent; or the part of one behind which the connection is closed (`is_last`)."""

    __slots__ = ("is_last", "parts")

    def __init__(self, parts: list[Part], *, is_last: bool = False) -> None:
        self.parts = parts
        self.is_last = is_last


def encode_response_in_pieces(
    api_key: int, api_version: int, correlation_id: int, message: Message
) -> Generator[None, None, EncodedFrame]:
    """Encode the same frame in a generator, which pauses after every structure in an array."""
    out = _response_start(api_key, api_version, correlation_id, message)
    return (yield from _in_pieces(message, api_version, out))


class EncodedResponse:
    """A response that is encoded once, for all requests of one version that get the same answer."""

    __slots__ = ("_frame",)

    def __init__(self, api_key: int, api_version: int, message: Message) -> None:
        self._frame = b"".join(encode_response(api_key, api_version, 0, message))  # type: ignore[arg-type]  # no Reference

    def frame(self, correlation_id: int) -> bytearray:
        """The whole frame, size included, with the correlation id of one request."""
        frame = bytearray(self._frame)
        _INT32.pack_into(frame, 4, correlation_id)
        return frame


def decode_response(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Message]:
    """The correlation id and the body of a response frame (without its size). Errors as in `decode_request`."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    cls = response_class(api_key)
    try:
        (correlation_id,) = _INT32.unpack_from(view)
        position = 4
        if api_version >= cls.SCHEMA.flexible_since and api_key != _API_VERSIONS:
            _, position = decode_tags(view, position)
    except struct.error:
        raise ProtocolError("a response header ends too early") from None
    message, _ = decoder(cls, api_version)(view, position)
    return correlation_id, message


def _sized(message: Message, version: int, out: bytearray) -> list[Any]:
    """Append the message to the header in `out`, and write the size of the frame into the first four bytes."""
    parts: list[Any] = []
    encode = type(message).ENCODERS.get(version) or encoder(type(message), version)
    parts.append(encode(message, out, parts))
    return _with_size(out, parts)


def _in_pieces(message: Message, version: int, out: bytearray) -> Generator[None, None, EncodedFrame]:
    """The same for a generator."""
    parts: list[Any] = []
    parts.append((yield from encoder_in_pieces(type(message), version)(message, out, parts)))
    return EncodedFrame(_with_size(out, parts))


def _with_size(out: bytearray, parts: list[Any]) -> list[Any]:
    assert parts[0] is out, "a frame does not begin with its header"
    size = len(out) if len(parts) == 1 else sum(map(len, parts))
    _INT32.pack_into(out, 0, size - 4)
    return parts


_FLEXIBLE_SINCE: dict[int, int] = {}


def _flexible_since(api_key: int) -> int:
    try:
        since = request_class(api_key).SCHEMA.flexible_since
    except KeyError:
        if api_key not in ApiKey._value2member_map_:
            raise ProtocolError(f"no API has the key {api_key}") from None
        since = NEWEST + 1  # what is behind the client id is not read, because the request is refused
    _FLEXIBLE_SINCE[api_key] = since
    return since
