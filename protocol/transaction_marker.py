"""The control batch that ends a transaction on a partition."""

from struct import Struct
from typing import Final

from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, CODEC_MASK, RECORD_COUNT_AT
from barnabas.protocol.compression import Buffer
from barnabas.protocol.named_tuple import NamedTuple

CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1
_KEY: Final = Struct(">hh")  # version, kind
_VALUE: Final = Struct(">hi")  # version, epoch of the coordinator

# A batch of one marker: the number of records; length, attributes, timestamp and offset delta, length of the key, its
# version; the kind; the length of the value; its version, which does not matter; the epoch; the number of headers.
_PLAIN_MARKER = Struct(">i8sBB2xiB")
_PLAIN_MARKER_FIXED = (1, b"\x20\0\0\0\x08\0\0\0", 0x0C, 0)
_PLAIN_MARKER_BYTES = RECORD_COUNT_AT + _PLAIN_MARKER.size


def build_marker(
    control_type: int,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
) -> bytearray:
    """The batch that ends a transaction on a partition: CONTROL_COMMIT or CONTROL_ABORT."""
    key, value = _KEY.pack(0, control_type), _VALUE.pack(0, coordinator_epoch)
    marker = record_batch.Record(timestamp=timestamp, key=key, value=value)
    return record_batch.build(
        [marker],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


class EndTransactionMarker(NamedTuple):
    """What a control batch that ends a transaction says."""

    commit: bool
    coordinator_epoch: int


def marker_of(batch: Buffer) -> EndTransactionMarker | None:
    """What a control batch says about a transaction; None for control batches of other kinds."""
    if len(batch) == _PLAIN_MARKER_BYTES and not batch[ATTRIBUTES_AT + 1] & CODEC_MASK:  # as coordinators write it
        count, start, kind, value_bytes, epoch, headers = _PLAIN_MARKER.unpack_from(batch, RECORD_COUNT_AT)
        if (count, start, value_bytes, headers) == _PLAIN_MARKER_FIXED and kind in (0, 1):
            return EndTransactionMarker(kind == 1, epoch)
    return _marker_in(batch)


def _marker_in(batch: Buffer) -> EndTransactionMarker | None:
    for record in record_batch.records(batch):
        key, value = record.key, record.value
        if key is None or len(key) < 4:
            return None
        kind = int.from_bytes(key[2:4], "big", signed=True)
        if kind not in (0, 1) or value is None or len(value) < 6:
            return None
        return EndTransactionMarker(kind == 1, int.from_bytes(value[2:6], "big", signed=True))
    return None
