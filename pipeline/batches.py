"""Finds the batches in bytes of a log and checks them; all headers as columns. What is no batch is a corrupt place.

Batches form a chain (each says its length), so their positions come from a loop with one step a batch. Everything else
is done for all batches at once.

Where the chain breaks, the next batch is looked for: a place at which a header is possible and its checksum right. The
bytes between are one corrupt place. A batch with a wrong checksum is one, too. So every byte of a log is in a good
batch or in a corrupt place, and both can be counted.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from barnabas.protocol.batch_layout import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    INT32,
    MAGIC,
    MAGIC_AT,
    PREFIX_BYTES,
    UINT32,
)
from barnabas.protocol.checksum import crc32c
from barnabas.runtime.counted import counted

PADDING_BYTES = 16
"""Zeros behind the bytes of a buffer, so that a number can be read at each of its positions."""

LENGTH_AT = 8
OFFSETS_END = 2**63 - 1
_OLD_MESSAGE_BYTES_MIN = 14
WRONG_CHECKSUM = "the checksum is wrong"
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES

Array: TypeAlias = np.ndarray


@dataclass
class Corrupt:
    """Bytes of a log that are not a good batch, or a good batch with a record (`is_record`) that cannot be read."""

    position: int  # in the buffer that was walked
    size_bytes: int
    reason: str
    offset: int = -1  # of the record, or the first one of the batch, if it says one
    header: Array | None = None  # of the batch, where one could be read
    is_record: bool = False


@dataclass
class Batches:
    """The batches of a buffer: columns with one entry a batch."""

    data: Array  # the walked bytes, with padding
    starts: Array  # int64: where each batch begins
    headers: Array  # the fields of its header
    corrupt: list[Corrupt] = field(default_factory=list)
    consumed: int = 0  # the bytes that were walked: the next buffer begins here
    ended: bool = False  # whether the end of what was asked for is reached

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, name: str) -> Array:
        """A field of all headers, as numbers of the machine."""
        column = self.headers[name]
        return column.astype(column.dtype.newbyteorder("="))

    @property
    def sizes(self) -> Array:
        """The whole size of each batch."""
        return self.headers["batch_length"].astype(np.int64) + PREFIX_BYTES

    @property
    def last_offsets(self) -> Array:
        return self.of("base_offset") + self.headers["last_offset_delta"]

    def only(self, chosen: Array) -> "Batches":
        """Those for which `chosen` is true. The corrupt places stay."""
        if chosen.all():
            return self
        return Batches(self.data, self.starts[chosen], self.headers[chosen], self.corrupt, self.consumed, self.ended)

    def broken(self, index: int, reason: str) -> Corrupt:
        """The place of a batch that cannot be used."""
        header = self.headers[index]
        size = int(header["batch_length"]) + PREFIX_BYTES
        return Corrupt(int(self.starts[index]), size, reason, int(header["base_offset"]), header)


def walk(
    content: bytes | bytearray | memoryview,
    *,
    following_bytes: int = 0,
    offsets_from: int = 0,
    offsets_below: int = OFFSETS_END,
    offsets_to: int = OFFSETS_END,
    is_tail: bool = False,
) -> Batches:
    """The batches in `content`, in their order.

    `following_bytes`: how many bytes of the same range come behind it; a batch that reaches into them is left to
    the next buffer. Possible offsets are those from `offsets_from` to below `offsets_below`. `offsets_to` is the end of
    what is asked for: the walk stops at a batch that begins there. `is_tail`: zeros at the end are no data (a
    preallocated file).
    """
    size = len(content)
    view = b"".join((content, bytes(PADDING_BYTES)))
    data = np.frombuffer(view, np.uint8)
    starts: list[int] = []
    corrupt: list[Corrupt] = []
    position = 0
    ended = False
    while True:
        chain, position = _chain(view, position, size)
        starts += chain
        if position == size or _is_continued(view, position, size, following_bytes):
            break
        if starts and _reaches(view, starts[-1], offsets_to, offsets_below):
            ended = True
            break
        if is_tail and not following_bytes and not data[position:size].any():
            position = size
            break
        while starts and not _crc_holds(view, starts[-1]):  # a wrong length, so the chain went astray there
            position = starts.pop()
        reason = _frame_error(view, position, size)
        found, is_whole = _next_batch(data, view, position + 1, size, following_bytes, offsets_from, offsets_below)
        corrupt.append(Corrupt(position, found - position, reason))
        position = found
        if not is_whole:  # the next buffer begins with it
            break
    batches = Batches(data, np.array(starts, np.int64), _headers(data, starts), corrupt, position, ended)
    batches = _before(batches, offsets_to, offsets_below, following_bytes)
    return _checked(batches, view, offsets_from, offsets_below)


def _chain(view: bytes, position: int, size: int) -> tuple[list[int], int]:
    """The positions of batches from `position` on, and where the chain ends: at the end, or where none can be."""
    unpack = INT32.unpack_from
    positions: list[int] = []
    append = positions.append
    last = size - HEADER_BYTES
    while position <= last:
        if view[position + MAGIC_AT] != MAGIC:
            break
        (length,) = unpack(view, position + LENGTH_AT)
        following = position + PREFIX_BYTES + length
        if length < HEADER_BYTES - PREFIX_BYTES or following > size:
            break
        append(position)
        position = following
    return positions, position


def _is_continued(view: bytes, position: int, size: int, following_bytes: int) -> bool:
    """Whether a batch at `position` may end in the bytes that follow the buffer."""
    if not following_bytes:
        return False
    if size - position < HEADER_BYTES:
        return True
    (length,) = INT32.unpack_from(view, position + LENGTH_AT)
    is_batch = view[position + MAGIC_AT] == MAGIC and length >= HEADER_BYTES - PREFIX_BYTES
    return is_batch and size < position + PREFIX_BYTES + length <= size + following_bytes


def batch_bytes(data: Array, position: int) -> int:
    """How long the batch at `position` says it is; 0 if the buffer ends before that."""
    if len(data) - PADDING_BYTES - position < PREFIX_BYTES:
        return 0
    return int(INT32.unpack_from(memoryview(data), position + LENGTH_AT)[0]) + PREFIX_BYTES


def _reaches(view: bytes, start: int, offsets_to: int, offsets_below: int) -> bool:
    """Whether a good batch reaches to what is not asked for."""
    header = np.frombuffer(view[start : start + HEADER_BYTES], _HEADER)[0]
    base_offset = int(header["base_offset"])
    reaches = base_offset + int(header["last_offset_delta"]) + 1 >= offsets_to
    return reaches and base_offset < offsets_below and _crc_holds(view, start)


def _crc_holds(view: bytes, start: int) -> bool:
    end = start + PREFIX_BYTES + INT32.unpack_from(view, start + LENGTH_AT)[0]
    return crc32c(view[start + ATTRIBUTES_AT : end]) == UINT32.unpack_from(view, start + CRC_AT)[0]


_SEARCHED_BYTES = 1 << 20


def _next_batch(
    data: Array, view: bytes, position: int, size: int, following_bytes: int, low: int, high: int
) -> tuple[int, bool]:
    """The first position from `position` on at which a batch with a right checksum begins, and True.

    If there is none: where a batch may begin that reaches into the bytes that follow, and False; without such a place
    the end.
    """
    undecided = size
    while position <= size - HEADER_BYTES:
        end = min(position + _SEARCHED_BYTES, size - HEADER_BYTES + 1)
        places = np.flatnonzero(data[position + MAGIC_AT : end + MAGIC_AT] == MAGIC) + position
        headers = _headers(data, places)
        ends = places + PREFIX_BYTES + headers["batch_length"]
        possible = (ends >= places + HEADER_BYTES) & (ends <= size + following_bytes)
        possible &= (headers["base_offset"] >= low) & (headers["base_offset"] < high) & _counts_fit(headers)
        for place, place_end in zip(places[possible].tolist(), ends[possible].tolist()):
            if place_end > size:
                undecided = min(undecided, place)
            elif _crc_holds(view, place):
                return place, True
        position = end
    return (min(undecided, max(position, size - HEADER_BYTES + 1)), False) if following_bytes else (size, True)


def _frame_error(view: bytes, position: int, size: int) -> str:
    if size - position < HEADER_BYTES:
        return "a batch ends within its header"
    (length,) = INT32.unpack_from(view, position + LENGTH_AT)
    if view[position + MAGIC_AT] in (0, 1) and _OLD_MESSAGE_BYTES_MIN <= length <= size - position:
        return f"messages of format {view[position + MAGIC_AT]} are not read"
    if view[position + MAGIC_AT] != MAGIC:
        return "no batch begins here"
    if position + PREFIX_BYTES + length > size:
        return f"a batch of {length + PREFIX_BYTES} bytes is cut off at {size - position}"
    return "no batch begins here" if length >= HEADER_BYTES - PREFIX_BYTES else f"a batch of length {length}"


def _headers(data: Array, starts: Array | list[int]) -> Array:
    """The headers that begin at these positions."""
    everywhere = np.ndarray((max(0, len(data) - HEADER_BYTES + 1),), _HEADER, data, strides=(1,))
    return everywhere[np.asarray(starts, np.int64)]


def _counts_fit(headers: Array) -> Array:
    deltas = headers["last_offset_delta"].astype(np.int64)
    counts = headers["record_count"].astype(np.int64)
    return (counts >= 0) & (deltas >= 0) & (counts <= deltas + 1)


def _before(batches: Batches, offsets_to: int, offsets_below: int, following_bytes: int) -> Batches:
    """Without the batches from the first on that begins at the end or behind it."""
    base = batches.of("base_offset")
    # An offset may be damaged, so the next one has to agree.
    behind = np.flatnonzero((base >= offsets_to) & (np.append(base[1:], offsets_to) >= offsets_to))
    if not len(behind):
        return batches
    end = int(behind[0])
    is_last = end == len(batches) - 1 and batches.consumed == batches.starts[end] + batches.sizes[end]
    if is_last and not following_bytes and base[end] >= offsets_below:
        return batches
    at = int(batches.starts[end])
    corrupt = [one for one in batches.corrupt if one.position < at]
    ended = not (is_last and following_bytes)  # else the next buffer says whether the one behind it agrees
    return Batches(batches.data, batches.starts[:end], batches.headers[:end], corrupt, at, ended)


def _checked(batches: Batches, view: bytes, low: int, below: int) -> Batches:
    """Take out what is corrupt although the frames around it are right."""
    base, last = batches.of("base_offset"), batches.last_offsets
    reasons: dict[int, str] = {}
    ends = (batches.starts + batches.sizes).tolist()
    crcs = batches.of("crc").tolist()
    for index, (start, end, crc) in enumerate(zip(batches.starts.tolist(), ends, crcs)):
        if crc32c(view[start + ATTRIBUTES_AT : end]) != crc:
            reasons[index] = WRONG_CHECKSUM
    for index in np.flatnonzero(~_counts_fit(batches.headers)).tolist():
        header = batches.headers[index]
        what = counted(int(header["record_count"]), "record does", "records do")
        text = f"{what} not fit a last offset delta of {header['last_offset_delta']}"
        reasons.setdefault(index, text)
    for index in np.flatnonzero((base < low) | (base >= below)).tolist():
        reasons.setdefault(index, f"offset {base[index]} cannot be here: offsets begin at {low} and end below {below}")
    if (base[1:] <= last[:-1]).any():
        reasons.update(_offsets_that_fall(base, last, reasons))
    batches.corrupt += [batches.broken(index, text) for index, text in reasons.items()]
    batches.corrupt.sort(key=lambda one: one.position)
    good = np.ones(len(batches), bool)
    good[list(reasons)] = False
    return batches.only(good)


def _offsets_that_fall(base: Array, last: Array, known: dict[int, str]) -> list[tuple[int, str]]:
    """Batches whose offset is wrong, which is possible because the checksum does not cover it.

    Of two that contradict each other, it is the one that the batch behind them contradicts, too.
    """
    found = []
    offsets = [index for index in range(len(base)) if index not in known]
    before = -1
    for at, index in enumerate(offsets):
        start = int(base[index])
        following = int(base[offsets[at + 1]]) if at + 1 < len(offsets) else None
        if start <= before:
            found.append((index, f"offset {start} comes behind {before}"))
        elif following is not None and following <= int(last[index]) and following > before:
            found.append((index, f"offset {start} comes before {following}"))
        else:
            before = int(last[index])
    return found
