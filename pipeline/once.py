"""Writing once: the sink knows from the topic what an earlier attempt of the same task has written.

With the option `once` every record gets a header, `barnabas.once`, whose value names the query, the epoch (the
micro-batch of a stream), the task, and a digest of the row: `QUERY/EPOCH/TASK/DIGEST`. Before a task writes the first
record of an epoch, it commits where the topic's partitions end, as the offsets of the group `barnabas-sink-QUERY-TASK`,
with the epoch as metadata. An attempt that finds such offsets of its own epoch is not the first one. It reads the topic
from there to the end, and leaves out the rows whose digests it finds. So nothing is read back as long as nothing fails.

What it needs:

- The query gives the same rows to the same task when Spark runs an epoch again, in any order. Rows that an earlier
  attempt has written and this one does not have are an error (WrittenDifferentlyError).
- No two attempts of a task run at the same time: `spark.speculation` is off, and no executor that Spark has lost goes
  on.
- The query is started again within `offsets.retention.minutes` of the brokers (7 days).
"""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from barnabas.pipeline.broker_origin import Fetching
from barnabas.pipeline.errors import WrittenDifferentlyError
from barnabas.pipeline.options import ReadOptions
from barnabas.pipeline.origin import LogKey, OffsetRange
from barnabas.pipeline.record_rows import record_rows
from barnabas.pipeline.records import Records, take_apart
from barnabas.pipeline.wire import DEBUGGING_CONSUMER, LATEST, Cluster
from barnabas.runtime.counted import counted

HEADER = "barnabas.once"
GROUP_PREFIX = "barnabas-sink-"
_SIZE = struct.Struct(">i")
_TIME_AND_PARTITION = struct.Struct(">qi")
_NO_TIME = -(2**63)


@dataclass(frozen=True)
class Attempt:
    """One of perhaps several attempts of a task to write its rows of an epoch. They have the same name."""

    query: str
    epoch: int
    task: int

    @property
    def name(self) -> str:
        """As in the header."""
        return f"{self.query}/{self.epoch}/{self.task}"

    @property
    def group(self) -> str:
        """Its offsets say where the task's last epoch began."""
        return f"{GROUP_PREFIX}{self.query}-{self.task}"


def written_before(cluster: Cluster, topic: str, attempt: Attempt) -> "Counter[bytes]":
    """The digests of the rows that earlier attempts have written."""
    epoch = str(attempt.epoch)
    begins = {index: at for index, (at, of) in cluster.committed(attempt.group, topic).items() if of == epoch}
    partitions = [one for one in cluster.partitions if one[0] == topic]
    ends = cluster.offsets(partitions, LATEST, replica_id=DEBUGGING_CONSUMER)  # also of what not all replicas have
    new = {index: end for (_, index), end in ends.items() if index not in begins}
    if new:
        cluster.commit(attempt.group, topic, new, epoch)
    found: Counter[bytes] = Counter()
    for (_, index), end in ends.items():
        if begins.get(index, end) < end:
            found.update(_digests(cluster, OffsetRange(LogKey(topic, index), begins[index], end), attempt))
    return found


def _digests(cluster: Cluster, wanted: OffsetRange, attempt: Attempt) -> Iterator[bytes]:
    """The digests in a partition, of the records of this task and epoch."""
    options = ReadOptions(fail_on_data_loss=False)  # what retention has taken was written
    prefix = f"{attempt.name}/".encode()
    for _, batches, low, high, _ in Fetching(cluster, wanted, options).batches():
        parts, _ = take_apart(batches)
        for part in parts:
            for value in _last_headers(part.only((part.offset >= low) & (part.offset < high))):
                if value is not None and value.startswith(prefix):
                    yield value[len(prefix) :]


def _last_headers(records: Records) -> list[bytes | None]:
    """The value of each record's last header, if it is ours."""
    if not len(records):
        return []
    headers = record_rows(records, None).columns["headers"]()  # type: ignore[arg-type]
    borders = headers.offsets.to_numpy()
    last = headers.values.take(borders[1:][borders[1:] > borders[:-1]] - 1)
    ours = np.array([name == HEADER for name in last.field("key").to_pylist()], bool)
    return last.field("value").filter(ours).to_pylist()


def digest(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp_ms: int | None,
    partition: int | None,
) -> bytes:
    """Of a row, as the query gives it."""
    found = blake2b(digest_size=8)
    for content in (key, value, *(part for name, data in headers for part in (name.encode(), data))):
        found.update(_SIZE.pack(-1 if content is None else len(content)))
        found.update(content or b"")
    time = _NO_TIME if timestamp_ms is None else timestamp_ms
    found.update(_TIME_AND_PARTITION.pack(time, -1 if partition is None else partition))
    return found.hexdigest().encode()


def header(attempt: Attempt, of: bytes) -> tuple[str, bytes]:
    """The header of a record with this digest."""
    return HEADER, f"{attempt.name}/".encode() + of


def check_nothing_left(written: Mapping[bytes, int], topic: str, attempt: Attempt) -> None:
    """WrittenDifferentlyError if these digests are left when all rows of the task have come."""
    left = sum(written.values())
    if left:
        raise WrittenDifferentlyError(
            f"{topic} holds {counted(left, 'record')} of an earlier attempt of task {attempt.task} of epoch "
            f"{attempt.epoch} that this attempt has not made, so the query gives other rows when it is run again. "
            "Make it deterministic (no rand(), no other number of partitions), or start it with once=false: then the "
            "epoch may be there twice"
        )
