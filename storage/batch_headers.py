"""The headers of the batches in a segment's file, read a window of the file at a time."""

from collections.abc import Iterator
from typing import NamedTuple

from barnabas.protocol.batch_layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    PREFIX,
    PREFIX_BYTES,
)
from barnabas.protocol.errors import CorruptBatchError
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
