"""A log's producers in a file, in Kafka's format."""

from collections.abc import Iterable
from struct import Struct

from barnabas.protocol.checksum import crc32c
from barnabas.runtime.ports import Disk, read_file
from barnabas.storage import checkpoints
from barnabas.storage.producer_entry import BATCHES_REMEMBERED, NO_BATCH, ProducerBatch, ProducerEntry

_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NONE = -1


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The contents of the file.

    It has a row for each batch: the producer may send any of them again. Kafka writes the last one only, and takes the
    last row of a producer. So the transaction is in that one, and all have the time that expiry asks for.
    """
    body = bytearray(4)
    for entry in entries:
        *older, last = entry.batches or (NO_BATCH,)
        for batch in older:
            body += _snapshot_row(entry, batch, _NONE)
        body += _snapshot_row(entry, last, entry.current_transaction_first_offset)
    body[:4] = ((len(body) - 4) // _SNAPSHOT_ENTRY.size).to_bytes(4, "big")
    return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


def read_snapshot(disk: Disk, path: str) -> list[ProducerEntry]:
    """The producers of a snapshot file. CheckpointError when it cannot be right."""
    data = read_file(disk, path)
    if len(data) < _SNAPSHOT_HEADER.size:
        raise checkpoints.CheckpointError(f"{path}: {len(data)} bytes are too few")
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise checkpoints.CheckpointError(f"{path}: version {version} is not known")
    if crc32c(memoryview(data)[6:]) != crc:
        raise checkpoints.CheckpointError(f"{path}: checksum does not match")
    if count < 0 or len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise checkpoints.CheckpointError(f"{path}: {count} entries do not fit its size")
    entries: dict[int, ProducerEntry] = {}
    for row in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = row
        entry = entries.get(producer_id)
        if entry is None or entry.producer_epoch != epoch:
            entry = entries[producer_id] = ProducerEntry(producer_id, epoch)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.current_transaction_first_offset = first_offset
        if last_offset >= 0:
            del entry.batches[: 1 - BATCHES_REMEMBERED]
            entry.batches.append(ProducerBatch(last_sequence, last_offset, delta, timestamp))
    return list(entries.values())


def _snapshot_row(entry: ProducerEntry, batch: ProducerBatch, transaction_first_offset: int) -> bytes:
    return _SNAPSHOT_ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        transaction_first_offset,
    )
