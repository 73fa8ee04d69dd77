"""A topic of a test: what was produced to it, and what is in it now."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from barnabas.runtime.counted import counted
from barnabas.testing.control import Brokers, WaitTimeoutError, quoted

Text = str | bytes | None
POLL_MS = 50


class Record(NamedTuple):
    """A record as a consumer gets it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def text(self) -> str | None:
        """The value as text."""
        return None if self.value is None else self.value.decode()


class Topic:
    """A topic that exists. `name` is what clients use."""

    def __init__(self, kafka: Brokers, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self._kafka = kafka

    def __str__(self) -> str:
        return self.name

    def produce(
        self,
        values: Iterable[Text],
        *,
        key: Text = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Write records, and return when all are acknowledged (acks=all)."""
        producer = self._kafka.producer()
        sent = [
            producer.send(
                self.name, _bytes(value), _bytes(key), list(headers), partition=partition, timestamp_ms=timestamp_ms
            )
            for value in values
        ]
        producer.flush()
        for each in sent:
            each.get(timeout=30)

    def records(self) -> list[Record]:
        """All records up to the ends that the partitions have now, by partition and offset."""
        return self._read(None, 30.0)

    def values(self) -> list[str | None]:
        """The values of all records, as texts, by partition and offset."""
        return [record.text for record in self.records()]

    def wait_records(self, count: int, timeout: float = 10.0) -> list[Record]:
        """Wait until so many records are there, at least; returns them. WaitTimeoutError: they did not come in time."""
        return self._read(count, timeout)

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
        query |= {"exists": None if exists is None else str(exists).lower(), "timeout_ms": round(timeout * 1000)}
        seen: dict[str, Any] = self._kafka.ask("GET", f"/v1/control/topics/{quoted(self.name)}/wait", query)
        return seen

    def _read(self, count: int | None, timeout: float) -> list[Record]:
        from kafka import TopicPartition

        deadline = time.monotonic() + timeout
        found: list[Record] = []
        consumer = self._kafka.consumer(auto_offset_reset="earliest")
        try:
            places = [TopicPartition(self.name, index) for index in range(self.partitions)]
            consumer.assign(places)
            ends = consumer.end_offsets(places) if count is None else {}

            def is_done() -> bool:
                if count is not None:
                    return len(found) >= count
                return all(consumer.position(place) >= ends[place] for place in places)

            while not is_done():
                if time.monotonic() >= deadline:
                    wanted = "all records" if count is None else counted(count, "record")
                    message = f"waited for {wanted}: {len(found)} came within {timeout} s."
                    raise WaitTimeoutError("WAIT_TIMED_OUT", f"topic {self.name}: {message}")
                for records in consumer.poll(POLL_MS).values():
                    found += [_record(each) for each in records]
        finally:
            consumer.close()
        return sorted(found)


def _record(record: Any) -> Record:
    return Record(record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
