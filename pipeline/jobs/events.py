"""What happens to partitions and groups, in columns: a streaming job keeps so many events that none of them may cost a
step of its own until somebody looks.

A bucket is a fixed share of all partitions and groups, and Spark's key.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.members import OF_GROUPS, OF_MEMBERS, member_id, own_members
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 32  # a query's state is kept by them, so this number is for good
NONE = -(2**63)
_CODEC = pa.Codec("zstd", 1)


class Event(NamedTuple):
    """A commit, a record of a group or of one of its members (`members`), or the growth of a log (`log_end`)."""

    at_ms: int
    group_id: str | None
    topic: str | None
    partition: int | None
    log_offset: int | None
    offset: int | None
    is_tombstone: int | None
    since_ms: int | None  # of a commit its time, of a generation the time of the group's state
    expire_ms: int | None
    members: int | None  # of a member's record: whether it is one
    log_end: int | None
    base_offset: int | None
    base_ms: int | None
    generation: int | None = None
    member_id: str | None = None  # of a record of a member


_COLUMNS = (*Event._fields, "is_of_group")
_INDEX = {name: index for index, name in enumerate(_COLUMNS)}
_TEXTS = ("group_id", "topic", "member_id")

PlaceKey = tuple[str | None, int | None, str | None]
"""Topic, partition, group: a partition has no group, and a group nothing else."""


@dataclass
class Events:
    """Events of partitions and, as `is_of_group`, of groups."""

    texts: list[str]
    numbers: Array  # int64, one row for each of _COLUMNS; a text is an index into `texts`, or −1; NONE: null

    @classmethod
    def of_batches(cls, batches: Sequence[pa.RecordBatch]) -> "Events":
        """From the columns of `events_of`."""
        table = pa.Table.from_batches(batches)
        texts: list[str] = []
        numbers = np.full((len(_COLUMNS), table.num_rows), NONE, np.int64)
        numbers[_INDEX["is_of_group"]] = 0
        for name, row in zip(Event._fields, numbers):
            column = table.column(name).combine_chunks()
            if name in _TEXTS:
                encoded = column.dictionary_encode()
                codes = encoded.indices.cast(pa.int64()).fill_null(-1 - len(texts)).to_numpy(zero_copy_only=False)
                row[:] = codes + len(texts)
                texts += encoded.dictionary.to_pylist()
            else:
                row[:] = column.cast(pa.int64()).fill_null(NONE).to_numpy(zero_copy_only=False)
        return cls(texts, numbers)

    @classmethod
    def of_bytes(cls, packed: bytes) -> "Events":
        """What `to_bytes` has made."""
        texts, count, content = pickle.loads(packed)
        size = len(_COLUMNS) * count * 8
        numbers = np.frombuffer(_CODEC.decompress(content, size, asbytes=True), np.int64)
        return cls(texts, numbers.reshape(len(_COLUMNS), count))

    @classmethod
    def joined(cls, parts: Iterable["Events"]) -> "Events":
        """All of them, one behind the other."""
        index: dict[str, int] = {}
        rows = [np.empty((len(_COLUMNS), 0), np.int64)]
        for part in parts:
            codes = np.array([*(index.setdefault(text, len(index)) for text in part.texts), -1], np.int64)
            numbers = part.numbers.copy()
            for name in _TEXTS:
                numbers[_INDEX[name]] = codes[numbers[_INDEX[name]]]
            rows.append(numbers)
        return cls(list(index), np.concatenate(rows, axis=1))

    def to_bytes(self) -> bytes:
        used, codes = np.unique(self.numbers[[_INDEX[name] for name in _TEXTS]], return_inverse=True)
        numbers = self.numbers.copy()
        texts = [self.texts[code] for code in used.tolist() if code >= 0]
        for name, row in zip(_TEXTS, codes.reshape(len(_TEXTS), -1)):
            numbers[_INDEX[name]] = row - (len(used) - len(texts))
        return pickle.dumps((texts, len(self), _CODEC.compress(numbers.tobytes(), asbytes=True)))

    def __len__(self) -> int:
        return self.numbers.shape[1]

    def of(self, name: str) -> Array:
        return self.numbers[_INDEX[name]]

    def only(self, chosen: Array) -> "Events":
        """Some of them: a mask, or indexes."""
        return Events(self.texts, self.numbers[:, chosen])

    def of_groups(self) -> "Events":
        numbers = self.numbers.copy()
        numbers[_INDEX["is_of_group"]] = 1
        return Events(self.texts, numbers)

    @property
    def is_commit(self) -> Array:
        """Neither a generation nor the growth of a log."""
        return (self.of("members") == NONE) & (self.of("log_end") == NONE)

    def by_bucket(self) -> "Iterator[tuple[int, Events]]":
        """Each bucket with its events."""
        hashes = np.array([*(crc32(text.encode()) for text in self.texts), 0], np.int64)
        of_group, of_topic = hashes[self.of("group_id")], hashes[self.of("topic")]
        buckets = np.where(self.of("is_of_group") == 1, of_group, of_topic + self.of("partition")) % BUCKETS
        order, firsts = _sorted(buckets, np.arange(len(self)))
        for indexes in np.split(order, firsts[1:]):
            yield int(buckets[indexes[0]]), self.only(indexes)

    def by_place(self) -> Iterator[tuple[PlaceKey, Array]]:
        """Each place with the indexes of its events, by time."""
        is_of_group = self.of("is_of_group") == 1
        group = np.where(is_of_group, self.of("group_id"), -1)
        topic, partition = np.where(is_of_group, -1, self.numbers[[_INDEX["topic"], _INDEX["partition"]]])
        order, firsts = _sorted(group, topic, partition, self.of("at_ms"))
        for indexes in np.split(order, firsts[1:]) if len(order) else ():
            first = indexes[0]
            if is_of_group[first]:
                yield (None, None, self.texts[group[first]]), indexes
            else:
                yield (self.texts[topic[first]], int(partition[first]), None), indexes

    def rows(self) -> list[Event]:
        columns: list[list[Any]] = []
        texts = [*self.texts, None]
        for name, row in zip(Event._fields, self.numbers):
            values = row.tolist()
            if name in _TEXTS:
                values = [texts[value] for value in values]
            elif (row == NONE).any():
                values = [None if value == NONE else value for value in values]
            columns.append(values)
        return list(map(Event._make, zip(*columns)))


def newest(order: Array, count: int, *keys: Array) -> Array:
    """A mask: of the rows with the same keys so many, those with the largest `order`."""
    indexes, firsts = _sorted(*keys, order)
    sizes = np.diff(firsts, append=len(indexes))
    from_end = np.repeat(firsts + sizes, sizes) - np.arange(len(indexes))
    mask = np.zeros(len(indexes), bool)
    mask[indexes[from_end <= count]] = True
    return mask


def _sorted(*columns: Array) -> tuple[Array, Array]:
    """The order by these columns; and where in it rows begin whose columns but the last are other ones than before."""
    order = np.lexsort(columns[::-1])
    changes = np.zeros(max(0, len(order) - 1), bool)
    for column in columns[:-1]:
        inorder = column[order]
        changes |= inorder[1:] != inorder[:-1]
    return order, np.flatnonzero(np.concatenate(([True], changes))) if len(order) else np.zeros(0, np.int64)


def events_of(commits: "DataFrame", batches: "DataFrame", groups: "DataFrame | None" = None) -> "DataFrame":
    """Everything that happens, in the columns of an event."""
    happened = commits.select(
        *("log_timestamp", "group_id", "topic", "partition", "log_offset", "offset", "is_tombstone"),
        F.unix_millis("commit_timestamp").alias("since_ms"),
        F.unix_millis("expire_timestamp").alias("expire_ms"),
    )
    grown = batches.where("error is null").select(
        *("topic", "partition", F.col("max_timestamp").alias("log_timestamp")),
        (F.col("last_offset") + 1).alias("log_end"),
        "base_offset",
        F.unix_millis("base_timestamp").alias("base_ms"),
    )
    happened = happened.unionByName(grown, allowMissingColumns=True)
    if groups is None:
        nothing = {"members": "int", "generation": "int", "member_id": "string"}
        happened = happened.withColumns({name: F.lit(None).cast(kind) for name, kind in nothing.items()})
    else:
        begun = groups.where(F.col("record_type").isin(*OF_GROUPS, *OF_MEMBERS)).select(
            *("log_timestamp", "group_id", "log_offset", "is_tombstone", "generation"),
            F.unix_millis("state_timestamp").alias("since_ms"),
            own_members().alias("members"),
            member_id().alias("member_id"),
        )
        happened = happened.unionByName(begun, allowMissingColumns=True)
    happened = happened.withColumn("at_ms", F.unix_millis("log_timestamp"))
    return happened.select(*Event._fields)
