"""Variable-length integers: seven bits a byte, the lowest first; the top bit of a byte says that another follows.

`unsigned` integers (32 bits, at most 5 bytes) are lengths, counts and tags of flexible messages. `signed` integers are
first made unsigned by zigzag, (n << 1) ^ (n >> 63), so that small negative numbers stay short. They have 32 bits in at
most 5 bytes (varint) or 64 bits in at most 10 (varlong), and occur in records only.

The compiled codecs and the loops over records repeat these lines, because a call costs more than the work.
"""

from typing import Final

from barnabas.protocol.errors import ProtocolError


def encode_unsigned(value: int) -> bytes:
    """The shortest encoding of a value, which must not be negative."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_signed(value: int) -> bytes:
    """Zigzag and shortest encoding of a value of up to 64 bits."""
    return encode_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def decode_unsigned(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The value of 32 bits and the position behind it.

    ProtocolError if the buffer ends first, or the value has more bytes. Bits beyond the width are dropped, as in Kafka.
    """
    value = shift = 0
    try:
        for at in range(position, position + 5):
            byte = buffer[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF, at + 1
            shift += 7
    except IndexError:
        raise ProtocolError("a variable-length integer runs past the end") from None
    raise ProtocolError("a variable-length integer is too long")


_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]
