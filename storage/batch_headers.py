"""The batches in a segment's file by their headers, read a window of the file at a time."""

import zlib
from collections.abc import Callable, Iterator

from barnabas.protocol.batch_layout import (
    HEADER,
    HEADER_BYTES,
    INT32,
    LAST_OFFSET_DELTA_AT,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    PREFIX_BYTES,
)
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import File
from barnabas.storage.open_files import OpenFiles

WINDOW_BYTES = 65536


class StoredBatch(NamedTuple):
    """Where a batch lies, and what its header says; `max_timestamp` is -1 when compaction took all its records."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    partition_leader_epoch: int
    attributes: int
    base_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Located(NamedTuple):
    """Where whole batches lie. No record in them has an offset ≥ `next_offset`.

    `chunk` are bytes that were read already, from `chunk_position` on.
    """

    position: int
    size: int
    first_offset: int
    next_offset: int
    chunk: bytes
    chunk_position: int


def stored_batches(files: OpenFiles, path: str, position: int, end: int) -> Iterator[StoredBatch]:
    """Headers of the whole batches in [position, end). CorruptBatchError where there is no batch."""
    unpack = HEADER.unpack_from
    window = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(window):
            window = files.get(path).read(position, min(WINDOW_BYTES, end - position))
            start, at = position, 0
            if len(window) < HEADER_BYTES:
                raise CorruptBatchError(f"{path}: {len(window)} bytes at {position} are no batch")
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            _crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = unpack(window, at)
        size = length + PREFIX_BYTES
        if magic != MAGIC or size < HEADER_BYTES or position + size > end or last_offset_delta < 0:
            raise CorruptBatchError(f"{path}: no batch of format 2 at {position}")
        yield StoredBatch(
            position,
            size,
            base_offset,
            base_offset + last_offset_delta,
            max_timestamp if record_count else -1,
            leader_epoch,
            attributes,
            base_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        position += size


def begins_a_batch(data: bytes, offset: int, at: int = 0) -> bool:
    """Whether a batch begins there, whose base offset is not behind `offset`."""
    return len(data) > at + MAGIC_AT and data[at + MAGIC_AT] == MAGIC and PREFIX.unpack_from(data, at)[0] <= offset


class HeaderReader:
    """Passes the batches of a file by their headers, of which some may have been read already (`window`)."""

    __slots__ = ("_end", "_file", "_path", "_window_bytes")

    def __init__(self, file: File, path: str, window_bytes: int, end: int) -> None:
        """`end`: the batches of the file end there. `window_bytes`: how much is read at a time."""
        self._file = file
        self._path = path
        self._window_bytes = window_bytes
        self._end = end

    def first_batch(self, window: bytes, start: int, offset: int) -> tuple[int, int, int, int, bytes, int] | None:
        """The first batch from `start` on that holds `offset` or a later one, and the window that its header is in.

        (position, size, base offset, last offset, window, start of the window). `window` is what is read already.
        """
        position = start
        while True:
            at = position - start
            if at + HEADER_BYTES > len(window):
                if position >= self._end:
                    return None
                window = self._window(position)
                start, at = position, 0
            base_offset, length = PREFIX.unpack_from(window, at)
            last_offset = base_offset + INT32.unpack_from(window, at + LAST_OFFSET_DELTA_AT)[0]
            size = length + PREFIX_BYTES
            if size < HEADER_BYTES:
                raise CorruptBatchError(f"{self._path}: no batch at {position}")
            if last_offset >= offset:
                return position, size, base_offset, last_offset, window, start
            position += size

    def pass_batches(
        self, window: bytes, start: int, position: int, next_offset: int, limit: int, upper_bound: int
    ) -> tuple[int, int]:
        """Pass whole batches in front of the position `limit` and the offset `upper_bound`: what lies behind them.

        (position, offset). `window` is what is read already, from `start` on.
        """
        while position + HEADER_BYTES <= limit:
            at = position - start
            if at + HEADER_BYTES > len(window):
                window = self._window(position)
                start, at = position, 0
            base_offset, length = PREFIX.unpack_from(window, at)
            if base_offset >= upper_bound or position + length + PREFIX_BYTES > limit:
                break
            if length + PREFIX_BYTES < HEADER_BYTES:
                raise CorruptBatchError(f"{self._path}: no batch at {position}")
            next_offset = base_offset + INT32.unpack_from(window, at + LAST_OFFSET_DELTA_AT)[0] + 1
            position += length + PREFIX_BYTES
        return position, next_offset

    def _window(self, position: int) -> bytes:
        window = self._file.read(position, min(self._window_bytes, self._end - position))
        if len(window) < HEADER_BYTES:
            raise CorruptBatchError(f"{self._path}: {len(window)} bytes at {position} are no batch")
        return window


def is_old_format(read: Callable[[int, int], bytes], position: int, end: int) -> bool:
    """Whether a whole message of format 0 or 1 lies there, of a file whose batches end at `end`."""
    start = read(position, HEADER_BYTES)
    if len(start) < 26 or start[MAGIC_AT] > 1:
        return False
    size = PREFIX.unpack_from(start)[1]
    if size < 14 or position + 12 + size > end:
        return False
    message = read(position + 12, size)
    return zlib.crc32(memoryview(message)[4:]) == int.from_bytes(message[:4], "big")
