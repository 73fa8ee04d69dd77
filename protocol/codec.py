"""Decode and encode any message by its class and version.

    request, position = codec.decode(FetchRequest, 12, frame, position)
    data = codec.encode(FetchResponse(...), 12)

`ProtocolError`: the bytes cannot be read. `UnsupportedVersionError`: the version does not exist, or it lacks a field
that is set and that must not be dropped.

In a compiled build the functions are those of `native/`, in the pure build compile.py writes them (those in pieces in
both). A caller sees no difference.
"""

from typing import TypeVar

from barnabas.protocol.compile import DecoderWriter, EncoderWriter
from barnabas.protocol.message import Buffer, Decoder, DecoderInPieces, Encoder, EncoderInPieces, Message

try:
    from barnabas.protocol import native_codec as native_codec
except ImportError:
    native_codec = None  # type: ignore[assignment]  # the pure build
else:
    from barnabas.protocol.plan import constructor_plans, plan  # a pure build needs none

M = TypeVar("M", bound=Message)


def decoder(cls: type[Message], version: int) -> Decoder:
    """The function `(memoryview, position) -> (message, position)`, made at first use."""
    function = cls.DECODERS.get(version)
    if function is None:
        if native_codec is None:
            function = DecoderWriter(cls, version).build()
        else:
            function = native_codec.Decoder(cls.SCHEMA.name, version, plan(cls, version))
        cls.DECODERS[version] = function
    return function


def decoder_in_pieces(cls: type[Message], version: int) -> DecoderInPieces:
    """The same function as a generator, which pauses within long arrays."""
    function = cls.DECODERS_IN_PIECES.get(version)
    if function is None:
        function = cls.DECODERS_IN_PIECES[version] = DecoderWriter(cls, version, in_pieces=True).build()
    return function


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function `(message, out, parts) -> out` (see compile.py), made at first use."""
    function = cls.ENCODERS.get(version)
    if function is None:
        if native_codec is None:
            function = EncoderWriter(cls, version).build()
        else:
            if not cls.ENCODERS:  # what is sent was made here
                for made, fields in constructor_plans(cls):
                    native_codec.construct_natively(made, fields)
            function = native_codec.Encoder(cls.SCHEMA.name, version, plan(cls, version))
        cls.ENCODERS[version] = function
    return function


def encoder_in_pieces(cls: type[Message], version: int) -> EncoderInPieces:
    """The same function as a generator, which pauses within long arrays."""
    function = cls.ENCODERS_IN_PIECES.get(version)
    if function is None:
        function = cls.ENCODERS_IN_PIECES[version] = EncoderWriter(cls, version, in_pieces=True).build()
    return function


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> tuple[M, int]:
    """A message and the position behind it. Its `records` are slices of `buffer`, everything else is copied."""
    return decoder(cls, version)(buffer if type(buffer) is memoryview else memoryview(buffer), position)


def encode(message: Message, version: int) -> bytes:
    """The message without size and header."""
    parts: list[Buffer] = []
    parts.append(encoder(type(message), version)(message, bytearray(), parts))
    return b"".join(parts)
