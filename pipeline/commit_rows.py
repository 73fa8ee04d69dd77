"""The table `barnabas.commits`: the offset records of `__consumer_offsets`, decoded for all records at once.

The format is described in `offsets/records.py`, whose decoder is the measure: tests compare the two.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from barnabas.offsets.records import decode_value
from barnabas.pipeline.batches import PADDING_BYTES, Array, Corrupt
from barnabas.pipeline.columns import Columns, Rows, binaries, is_text, nulls_where, number_at, numbers, texts, times
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import Records
from barnabas.pipeline.shared_columns import log_position_columns, producer_columns
from barnabas.protocol import uuids

OFFSET_KEY_VERSION_MAX = 1
_ID_BYTES = 16


def commit_rows(records: Records, place: Place) -> Rows:
    """The commits and tombstones among the records. Other records of the topic are left out."""
    data = records.data
    has_version = records.key_bytes >= 2
    version = np.where(has_version, number_at(data, records.key_at, ">i2"), -1)
    corrupt = unreadable(records, ~has_version, "a key of __consumer_offsets without its version")
    records = records.only(has_version & (version >= 0) & (version <= OFFSET_KEY_VERSION_MAX))
    commits = _Commits(records)
    while commits.bad.any():  # texts are checked when all positions are right
        corrupt += unreadable(records, commits.bad, "an offset record that cannot be read")
        records = records.only(~commits.bad)
        commits = _Commits(records)
    columns = commits.columns() | producer_columns(records, place) | log_position_columns(records, place)
    return Rows(records, columns, corrupt)


def unreadable(records: Records, which: Array, reason: str) -> list[Corrupt]:
    """The places of records that cannot be read."""
    return [
        replace(records.batches.broken(records.batch[index], reason), offset=int(records.offset[index]), is_record=True)
        for index in np.flatnonzero(which).tolist()
    ]


class _Commits:
    """Where the fields of offset records are. `bad` marks the records that cannot be read."""

    def __init__(self, records: Records) -> None:
        data = self.data = records.data
        self.bad = np.zeros(len(records), bool)
        self._last = len(data) - PADDING_BYTES
        at, end = records.key_at, records.key_at + records.key_bytes
        self.group_bytes = number_at(data, self._inside(at + 2, 2, end), ">u2").astype(np.int64)
        self.group_at = at + 4
        topic_length_at = self.group_at + self.group_bytes
        self.topic_bytes = number_at(data, self._inside(topic_length_at, 2, end), ">u2").astype(np.int64)
        self.topic_at = self._inside(topic_length_at + 2, 0, end)
        partition_at = self._inside(self.topic_at + self.topic_bytes, 4, end)
        self.partition = number_at(data, partition_at, ">i4")
        self.is_tombstone = records.value_bytes < 0
        self._read_values(records)
        if not self.bad.any():
            self.group_id = self._text(self.group_at, self.group_bytes)
            self.topic = self._text(self.topic_at, self.topic_bytes)

    def _text(self, at: Array, size: Array) -> pa.Array:
        """The texts there; the records for which they are not UTF-8 are bad."""
        found = binaries(self.data, at, size)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            self.bad |= ~np.array([is_text(one) for one in found.to_pylist()], bool)
            return found

    def _inside(self, at: Array, size: int, end: Array, unless: Array | None = None) -> Array:
        """The positions, if `size` bytes are there before `end`; the records for which they are not are bad."""
        beyond = at + size > end
        if not beyond.any():
            return at
        self.bad |= beyond if unless is None else beyond & ~unless
        return np.minimum(at, self._last)

    def _read_values(self, records: Records) -> None:
        data, gone = self.data, self.is_tombstone
        at, end = _where(gone, 0, records.value_at), records.value_at + np.maximum(records.value_bytes, 0)
        self.version = _where(gone, -1, number_at(data, self._inside(at, 10, end, gone), ">i2"))
        self.bad |= ~gone & ((self.version < 0) | (self.version > 4))
        self.offset = number_at(data, np.minimum(at + 2, self._last), ">i8")
        has_epoch, is_flexible = self.version >= 3, self.version == 4
        epoch_at = self._inside(at + 10, 4, end, ~has_epoch)
        self.leader_epoch = _where(has_epoch, number_at(data, epoch_at, ">i4"), -1)
        length_at = _where(has_epoch, at + 14, at + 10)
        length_at = self._inside(length_at, 1, end, gone)
        length = number_at(data, length_at, ">i2").astype(np.int64)
        metadata_at = length_at + 2
        if is_flexible.any():
            first = data[length_at].astype(np.int64)
            short = is_flexible & (first < 128)
            length = _where(short, first - 1, length)
            metadata_at = _where(short, length_at + 1, metadata_at)
            for index in np.flatnonzero(is_flexible & ~short).tolist():  # metadata of more than 126 bytes
                length[index], metadata_at[index] = _long_length(data, int(length_at[index]), int(end[index]))
        self.bad |= ~gone & (length < 0)
        self.metadata_at = self._inside(metadata_at, 0, end, gone)
        self.metadata_bytes = _where(gone, -1, np.maximum(length, 0))
        time_at = self._inside(self.metadata_at + np.maximum(length, 0), 8, end, gone)
        self.commit_timestamp = _where(gone, -1, number_at(data, time_at, ">i8"))
        expires = self.version == 1
        self.expire_timestamp = np.full(len(gone), -1, np.int64)
        if expires.any():
            expire_at = self._inside(time_at + 8, 8, end, ~expires)
            self.expire_timestamp = np.where(expires, number_at(data, expire_at, ">i8"), -1)
        self._read_topic_ids(self._inside(time_at + 8, 1, end, ~is_flexible), at, end, is_flexible)

    def _read_topic_ids(self, at: Array, value_at: Array, end: Array, is_flexible: Array) -> None:
        """An id is in a tagged field; nearly always in the only one."""
        data = self.data
        self.id_at = np.full(len(at), -1, np.int64)
        tagged = is_flexible & (data[at] != 0) & ~self.bad
        if not tagged.any():
            return
        usual = tagged & (number_at(data, at, ">i4") >> 8 == 0x010010) & (at + 3 + _ID_BYTES <= end)
        self.id_at[usual] = at[usual] + 3
        for index in np.flatnonzero(tagged & ~usual).tolist():
            value = data[int(value_at[index]) : int(end[index])].tobytes()
            try:
                found = decode_value(value).topic_id
            except ValueError:
                self.bad[index] = True
                continue
            if any(found):
                self.id_at[index] = value_at[index] + value.index(found)

    def columns(self) -> Columns:
        data, gone = self.data, self.is_tombstone
        return {
            "group_id": lambda: self.group_id,
            "topic": lambda: self.topic,
            "topic_id": lambda: _topic_ids(data, self.id_at),
            "partition": lambda: numbers(self.partition, pa.int32()),
            "offset": lambda: nulls_where(numbers(self.offset, pa.int64()), gone),
            "leader_epoch": lambda: numbers(self.leader_epoch, pa.int32(), -1),
            "metadata": lambda: texts(data, self.metadata_at, self.metadata_bytes),
            "commit_timestamp": lambda: times(self.commit_timestamp),
            "expire_timestamp": lambda: times(self.expire_timestamp),
            "is_tombstone": lambda: pa.array(gone),
        }


def _where(chosen: Array, one: Array | int, other: Array | int) -> Array:
    """As `np.where`. Nearly always all records are alike."""
    if isinstance(one, np.ndarray) and chosen.all():
        return one
    if isinstance(other, np.ndarray) and not chosen.any():
        return other
    return np.where(chosen, one, other)


def _topic_ids(data: Array, at: Array) -> pa.Array:
    """The texts of the ids at these positions; null at −1 and for the id of zeros."""
    absent = at < 0
    if absent.all():
        return pa.nulls(len(at), pa.string())
    pairs = np.empty((len(at), 2), ">i8")
    for half in (0, 1):
        pairs[:, half] = number_at(data, np.maximum(at, 0) + 8 * half, ">i8")
    ids = pa.Array.from_buffers(pa.binary(_ID_BYTES), len(at), [None, pa.py_buffer(pairs.tobytes())])
    encoded = ids.dictionary_encode()
    names = [uuids.to_text(one) if any(one) else None for one in encoded.dictionary.to_pylist()]
    found = pa.array(names, pa.string()).take(encoded.indices)
    return nulls_where(found, absent)


def _long_length(data: Array, at: int, end: int) -> tuple[int, int]:
    """The length of a compact string of more than 126 bytes, and where it begins. −1: it cannot be read."""
    value = shift = 0
    for position in range(at, min(at + 5, end)):
        byte = int(data[position])
        value |= (byte & 127) << shift
        if byte < 128:
            return value - 1, position + 1
        shift += 7
    return -1, at
