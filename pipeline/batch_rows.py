"""The table `barnabas.batches`: a row for each batch, and for each place of a log that is no good batch."""

import numpy as np
import pyarrow as pa
from barnabas.pipeline.batches import WRONG_CHECKSUM, Array, Batches, Corrupt
from barnabas.pipeline.columns import Columns, Rows, nulls_where, numbers, one_of, same, times
from barnabas.pipeline.place import Place
from barnabas.pipeline.record_rows import TIMESTAMP_TYPES
from barnabas.pipeline.shared_columns import partition_columns
from barnabas.pipeline.transactions import STATES, control_types
from barnabas.protocol.batch_layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from barnabas.protocol.compression import Compression

CODECS = tuple(codec.name.lower() for codec in Compression)
CONTROL_TYPES = ("abort", "commit")


def batch_rows(batches: Batches, place: Place) -> Rows:
    """A row for each good batch."""
    count = len(batches)
    columns = _columns(batches, place, np.zeros(count, bool))
    columns["crc_holds"] = lambda: pa.array(np.ones(count, bool))
    columns["error"] = lambda: pa.nulls(count, pa.string())
    return Rows(batches, columns)


def corrupt_rows(batches: Batches, corrupt: list[Corrupt], place: Place) -> Rows:
    """A row for each corrupt place. Of a header that could be read, its fields are in the row."""
    corrupt = [one for one in corrupt if not one.is_record]
    headers = np.zeros(len(corrupt), batches.headers.dtype)
    for index, one in enumerate(corrupt):
        if one.header is not None:
            headers[index] = one.header
    unread = np.array([one.header is None for one in corrupt], bool)
    found = Batches(batches.data, np.array([one.position for one in corrupt], np.int64), headers)
    columns = _columns(found, place, unread)
    sizes = np.array([one.size_bytes for one in corrupt], np.int64)
    reasons = [one.reason for one in corrupt]
    is_wrong = np.array([one == WRONG_CHECKSUM for one in reasons], bool)
    columns["size_bytes"] = lambda: pa.array(sizes, pa.int64())
    columns["transaction"] = lambda: pa.nulls(len(corrupt), pa.string())
    columns["crc_holds"] = lambda: nulls_where(pa.array(~is_wrong), unread)
    columns["error"] = lambda: pa.array(reasons, pa.string())
    return Rows(found, columns)


def _columns(batches: Batches, place: Place, unread: Array) -> Columns:
    count, attributes = len(batches), batches.of("attributes")
    horizon = (attributes & DELETE_HORIZON) != 0
    codec = attributes & CODEC_MASK
    base_timestamp = batches.of("base_timestamp")
    has_append_time = (attributes & LOG_APPEND_TIME) != 0  # then the producer's times in the batch say nothing
    first_timestamp = np.where(has_append_time, batches.of("max_timestamp"), np.where(horizon, -1, base_timestamp))

    def number(values: Array, type_: pa.DataType, none: int | None = None) -> pa.Array:
        return nulls_where(numbers(values, type_, none), unread)

    def flag(bit: int) -> pa.Array:
        return nulls_where(pa.array((attributes & bit) != 0), unread)

    return {
        "base_offset": lambda: number(batches.of("base_offset"), pa.int64()),
        "last_offset": lambda: number(batches.last_offsets, pa.int64()),
        "leader_epoch": lambda: number(batches.of("leader_epoch"), pa.int32(), -1),
        "magic": lambda: number(batches.of("magic"), pa.int32()),
        "size_bytes": lambda: numbers(batches.sizes, pa.int64()),
        "codec": lambda: one_of(np.where(unread | (codec >= len(CODECS)), -1, codec), CODECS),
        "is_control": lambda: flag(CONTROL),
        "control_type": lambda: one_of(np.where(unread, -1, control_types(batches)), CONTROL_TYPES),
        "is_transactional": lambda: flag(TRANSACTIONAL),
        "timestamp_type": lambda: one_of(np.where(unread, -1, has_append_time), TIMESTAMP_TYPES),
        "base_timestamp": lambda: nulls_where(times(first_timestamp), unread),
        "max_timestamp": lambda: nulls_where(times(batches.of("max_timestamp")), unread),
        "delete_horizon": lambda: nulls_where(times(np.where(horizon, base_timestamp, -1)), unread),
        "producer_id": lambda: number(batches.of("producer_id"), pa.int64(), -1),
        "producer_epoch": lambda: number(batches.of("producer_epoch"), pa.int32(), -1),
        "transaction": lambda: one_of(place.transactions.states(batches), STATES),
        "base_sequence": lambda: number(batches.of("base_sequence"), pa.int32(), -1),
        "record_count": lambda: number(batches.of("record_count"), pa.int32()),
        "crc": lambda: number(batches.of("crc").astype(np.int64), pa.int64()),
        "segment": lambda: same(place.segment, count),
        "position": lambda: nulls_where(
            pa.array(batches.starts + place.position), np.full(count, place.segment is None)
        ),
        **partition_columns(batches, place),
    }
