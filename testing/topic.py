"""A topic of a test: what was produced to it, and what is in it now."""

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from barnabas.protocol import batch_records
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.murmur2 import partition_of_key
from barnabas.runtime.counted import counted
from barnabas.testing.control import Brokers, CommandError, WaitTimeoutError, quoted, wait_for, whole
from barnabas.testing.wire import Reader

Text = str | bytes | None
POLL_MS = 200


class Record(NamedTuple):
    """A record as a consumer gets it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def text(self) -> str | None:
        """The value as text."""
        return None if self.value is None else self.value.decode()


class Topic:
    """A topic. `name` is what clients use."""

    def __init__(self, kafka: Brokers, name: str) -> None:
        self.name = name
        self._kafka = kafka

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @property
    def partitions(self) -> int:
        """How many it has now. UnknownTopicOrPartitionError: it is not there."""
        return self._kafka.wire.partitions_of(self.name)

    def produce(
        self,
        values: Iterable[Text],
        *,
        key: Text = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, Text]] = (),
    ) -> None:
        """Write records, and return when all are acknowledged (acks=all)."""
        if partition is not None:
            whole(partition, "a partition")
        if isinstance(values, str | bytes):
            raise TypeError(f"values are a list, also for one record: [{values[:100]!r}]")
        now_ms = round(time.time() * 1000) if timestamp_ms is None else whole(timestamp_ms, "timestamp_ms")
        if isinstance(headers, Mapping):
            raise TypeError(f"headers are a list of pairs: {[*headers.items()]!r}")
        pairs = [(name, _bytes(text)) for name, text in headers]
        by_partition: dict[int, list[batch_records.Record]] = {}
        count = self.partitions if partition is None else 0
        for value in values:
            record = batch_records.Record(-1, now_ms, _bytes(key), _bytes(value), pairs)
            chosen = _partition_of(record.key, count) if partition is None else partition
            by_partition.setdefault(chosen, []).append(record)
        for chosen, records in by_partition.items():
            self._kafka.wire.produce(self.name, chosen, records)

    def records(self) -> list[Record]:
        """All records up to the ends that the partitions have now, by partition and offset."""
        return self._read(None, 30.0)

    def values(self) -> list[str | None]:
        """The values of all records, as texts, by partition and offset."""
        return [record.text for record in self.records()]

    def wait_records(self, count: int, timeout: float = 10.0) -> list[Record]:
        """Wait until so many records are there, at least; returns them. WaitTimeoutError: they did not come in time."""
        return self._read(whole(count, "count"), timeout)

    def wait(
        self,
        *,
        exists: bool | None = None,
        in_sync: int | None = None,
        records: int | None = None,
        records_at_most: int | None = None,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Wait until all that is given is so; returns what was seen. WaitTimeoutError says what was seen last.

        `in_sync`: each partition has a leader and so many replicas in sync. `records`: there are so many at least, and
        `records_at_most`: not more, counted by offsets.
        """
        query: dict[str, Any] = {"in_sync": in_sync, "records": records, "records_at_most": records_at_most}
        query["exists"] = None if exists is None else str(exists).lower()
        return wait_for(self._kafka, f"/v1/control/topics/{quoted(self.name)}/wait", query, timeout)

    def _read(self, count: int | None, timeout: float) -> list[Record]:
        deadline = time.monotonic() + timeout
        found: list[Record] = []
        reader = Reader(self._kafka.wire, self.name, until_now=count is None)
        while not (reader.is_done if count is None else len(found) >= count):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                wanted = "all records" if count is None else counted(count, "record")
                message = f"waited for {wanted}: {len(found)} came within {timeout} s"
                message += "." if reader.is_there else ", and there is no such topic."
                raise WaitTimeoutError("WAIT_TIMED_OUT", f"topic {self.name}: {message}")
            wait_ms = min(POLL_MS, math.ceil(left_s * 1000))
            for partition, one in reader.poll(wait_ms, left_s):
                found.append(Record(partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers)))
        return sorted(found)


def newest_partitions(kafka: Brokers, topic: str) -> dict[int, dict[str, Any]]:
    """What is newest of each partition, since some brokers hear of it later. OSError: none answers.

    Over HTTP, where no fault changes the answer.
    """
    newest: dict[int, dict[str, Any]] = {}
    has_answer = False
    for node_id in kafka.running:
        with suppress(OSError):
            try:
                found = kafka.ask("GET", f"/v1/topics/{quoted(topic)}", node_id=node_id)["partitions"]
            except CommandError as error:
                if error.name != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
                    raise ConnectionError(str(error)) from None
                found = []
            has_answer = True
            for row in found:
                before = newest.setdefault(row["partition"], row)
                if row["leader_epoch"] > before["leader_epoch"]:
                    newest[row["partition"]] = row
    if not has_answer:
        raise ConnectionError("no broker answers")
    return newest


def _partition_of(key: bytes | None, count: int) -> int:
    """As clients choose it: by the key, or any."""
    return random.randrange(count) if key is None else partition_of_key(key, count)


def _bytes(text: Text) -> bytes | None:
    if not isinstance(text, str | bytes | None):
        raise TypeError(f"a key, a value and that of a header is str, bytes or None, not {type(text).__name__}")
    return text.encode() if isinstance(text, str) else text
