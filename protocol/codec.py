"""Decode and encode any message by its class and version.

    request, position = codec.decode(FetchRequest, 12, frame, position)
    data = codec.encode(FetchResponse(...), 12)

`ProtocolError`: the bytes cannot be read. `UnsupportedVersionError`: the version does not exist, or it lacks a field
that is set and that must not be dropped.
"""

from typing import TypeVar

from barnabas.protocol.compile import (
    compile_decoder,
    compile_decoder_in_pieces,
    compile_encoder,
    compile_encoder_in_pieces,
)
from barnabas.protocol.message import (
    Buffer,
    Decoder,
    DecoderInPieces,
    Encoder,
    EncoderInPieces,
    Message,
    Struct,
)

__all__ = [
    "Buffer",
    "Decoder",
    "Encoder",
    "Message",
    "Struct",
    "decode",
    "decoder",
    "decoder_in_pieces",
    "encode",
    "encode_parts",
    "encoder",
    "encoder_in_pieces",
]

M = TypeVar("M", bound=Message)


def decoder(cls: type[Message], version: int) -> Decoder:
    """The function `(memoryview, position) -> (message, position)`, compiled at first use."""
    function = cls.DECODERS.get(version)
    if function is None:
        function = cls.DECODERS[version] = compile_decoder(cls, version)
    return function


def decoder_in_pieces(cls: type[Message], version: int) -> DecoderInPieces:
    """The same function as a generator, which pauses within long arrays."""
    function = cls.DECODERS_IN_PIECES.get(version)
    if function is None:
        function = cls.DECODERS_IN_PIECES[version] = compile_decoder_in_pieces(cls, version)
    return function


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function `(message, out, parts) -> out` (see compile.py), compiled at first use."""
    function = cls.ENCODERS.get(version)
    if function is None:
        function = cls.ENCODERS[version] = compile_encoder(cls, version)
    return function


def encoder_in_pieces(cls: type[Message], version: int) -> EncoderInPieces:
    """The same function as a generator, which pauses within long arrays."""
    function = cls.ENCODERS_IN_PIECES.get(version)
    if function is None:
        function = cls.ENCODERS_IN_PIECES[version] = compile_encoder_in_pieces(cls, version)
    return function


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> tuple[M, int]:
    """A message and the position behind it. Its `records` are slices of `buffer`, everything else is copied."""
    return decoder(cls, version)(buffer if type(buffer) is memoryview else memoryview(buffer), position)


def encode(message: Message, version: int) -> bytes:
    """The message without size and header."""
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """The same bytes in parts; large `records` are parts of their own, and not copied."""
    parts: list[Buffer] = []
    parts.append(encoder(type(message), version)(message, bytearray(), parts))
    return parts
