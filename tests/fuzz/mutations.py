"""Damages bytes, and finds the smallest input that still fails."""

import struct
from collections.abc import Callable
from random import Random

INTEGERS = (
    *(0, 1, 2, -1, -2, -3, -4, -5, 3, 7, 100, 127, -128, 255, 1000, 32767, -32768),
    *(2**31 - 1, -(2**31), 2**31 - 2, 2**63 - 1, -(2**63), 2**63 - 2, 2**32, 2**40),
)
LONG_VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff" * 12, b"\x80" * 5 + b"\0", b"\xff\x7f")


def case(seed: int, target: str, number: int) -> Random:
    """The randomness of one case: the same for the same seed and number, whatever came before."""
    return Random(f"{seed} {target} {number}")


def spoil(random: Random, data: bytes, begin: int = 0) -> bytes:
    """Bits, lengths, cuts, a piece twice; mostly one change, sometimes several. Nothing before `begin` changes."""
    spoilt = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        if begin >= len(spoilt):
            break
        _CHANGES[random.randrange(len(_CHANGES))](random, spoilt, random.randrange(begin, len(spoilt)))
    return bytes(spoilt)


def _flip(random: Random, data: bytearray, at: int) -> None:
    data[at] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray, at: int) -> None:
    data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))


def _cut(random: Random, data: bytearray, at: int) -> None:
    del data[at:]


def _int32(random: Random, data: bytearray, at: int) -> None:
    data[at : at + 4] = struct.pack(">i", random.choice((2**31 - 1, -1, -2, -(2**31), 2**24, 0)))


def _int16(random: Random, data: bytearray, at: int) -> None:
    data[at : at + 2] = struct.pack(">h", random.choice((2**15 - 1, -1, -2, -(2**15), 0)))


def _varint(random: Random, data: bytearray, at: int) -> None:
    data[at : at + 1] = random.choice(LONG_VARINTS)


def _insert(random: Random, data: bytearray, at: int) -> None:
    data[at:at] = random.randbytes(random.choice((1, 4, 100)))


def _remove(random: Random, data: bytearray, at: int) -> None:
    del data[at : at + random.choice((1, 2, 4, 16))]


def _repeat(random: Random, data: bytearray, at: int) -> None:
    data[at:at] = data[at : at + random.choice((1, 8, 64))]


def _zero(random: Random, data: bytearray, at: int) -> None:
    size = len(data[at : at + random.choice((4, 64, 4096))])
    data[at : at + size] = bytes(size)


_CHANGES = (_flip, _flip, _set, _cut, _int32, _int16, _varint, _insert, _remove, _repeat, _zero)


def smallest(data: bytes, fails: Callable[[bytes], bool], tries: int = 200) -> bytes:
    """What is left of `data` when pieces are taken out as long as it still fails; at most so many tries."""
    piece = len(data) // 2
    while piece and tries:
        at = 0
        while at < len(data) and tries:
            tries -= 1
            shorter = data[:at] + data[at + piece :]
            if fails(shorter):
                data = shorter
            else:
                at += piece
        piece //= 2
    return data
