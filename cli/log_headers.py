"""Looks at the headers of batches in partitions' logs, by Fetch and ListOffsets: what any broker answers."""

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sized
from typing import Any, TypeVar
from uuid import UUID

from barnabas.cli.shared.client import (
    LATEST,
    ONE_ANSWERS_WITHIN_MS,
    RETRY_MS,
    Key,
    answered,
    leaders_of,
    list_offsets_request,
    reason,
)
from barnabas.cli.shared.kafka_python import send_all
from barnabas.cli.shared.target import Target
from barnabas.offsets.backup import Batch, batches_in
from barnabas.offsets.backup_records import AskBatches
from barnabas.offsets.backup_search import Ask, AskTime
from barnabas.protocol import uuids
from barnabas.protocol.errors import LEADER_MOVES, ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import RealClock
from barnabas.runtime.grouped import grouped

T = TypeVar("T")
W = TypeVar("W", bound=Sized)
Asking = Ask | AskBatches | AskTime
Seeking = Generator[Asking, Any, T]

EARLIEST = -2
NO_RECORD = -1
REQUEST_BYTES = 16 * 2**20
PARTITIONS_PER_REQUEST = 500
IN_FLIGHT = 4  # of one broker; the client takes five
ATTEMPTS = 3  # to read a log whose start moves

GONE = "the topic or partition is gone"
NO_LEADER = "its leader does not answer"
MOVED = "its log has changed while it was read"
OLD_FORMAT = "its batches have an old format"


class Log(NamedTuple):
    """Where a log begins and ends, for consumers."""

    start: int
    end: int


class LogHeaders:
    """The logs of one cluster."""

    def __init__(self, client: Any, target: Target) -> None:
        self._client = client
        self._target = target
        self.topic_ids: dict[str, str | None] = {}  # of the topics that exist
        self.partition_counts: dict[str, int] = {}
        self._leaders: dict[Key, int] = {}
        self.logs: dict[Key, Log] = {}

    def look(self, names: Iterable[str]) -> None:
        """Ask which of these topics exist, and where their logs begin and end. A topic may not exist."""
        wanted = sorted(set(names))
        if not wanted:
            return
        for topic in answered(self._client, lambda: self._client.describe_topics(wanted)):
            if not topic["error_code"]:
                topic_id = UUID(str(topic.get("topic_id") or UUID(int=0))).bytes
                self.topic_ids[topic["name"]] = uuids.to_text(topic_id) if any(topic_id) else None
                self.partition_counts[topic["name"]] = len(topic["partitions"])
                self._leaders |= leaders_of([topic])
        self._measure([key for key in self._leaders if key not in self.logs])

    def _measure(self, keys: Iterable[Key]) -> None:
        starts = self._answers(dict.fromkeys(keys, AskTime(EARLIEST)))
        ends = self._answers(dict.fromkeys(keys, AskTime(LATEST)))
        for key in keys:
            start, end = starts[key], ends[key]
            if isinstance(start, int) and isinstance(end, int):
                self.logs[key] = Log(start, max(start, end))

    def each(
        self, work: Mapping[Key, W], begin: Callable[[W, int, int], Seeking[T]], advance: Callable[[int], None]
    ) -> dict[Key, T | str]:
        """What a search finds in each of these logs, or why the log cannot be read. Advances by what was wanted.

        `begin` makes the search of one log (backup_search.py, backup_records.py): it gets what is wanted there, and
        the start and the end of the log.
        """
        counts = {key: len(some) for key, some in work.items()}
        results: dict[Key, T | str] = {}
        left = list(work)
        for _ in range(ATTEMPTS):
            seekers = {key: begin(work[key], *self.logs[key]) for key in left}
            results |= self._run(seekers, lambda key: advance(counts[key]))
            left = [key for key in left if results[key] == MOVED]
            if not left:
                break
            self._measure(left)
        return results

    def _run(self, seekers: Mapping[Key, Seeking[T]], done: Callable[[Key], None]) -> dict[Key, T | str]:
        """Run them all together, so that many partitions share a request."""
        results: dict[Key, T | str] = {}
        asks: dict[Key, Asking] = {}

        def go_on(key: Key, answer: Any) -> None:
            if isinstance(answer, str):
                results[key] = answer
            else:
                try:
                    asks[key] = seekers[key].send(answer)
                    return
                except StopIteration as end:
                    results[key] = end.value
            asks.pop(key, None)
            done(key)

        for key in seekers:
            go_on(key, None)
        while asks:
            for key, answer in self._answers(asks).items():
                go_on(key, answer)
        return results

    def _answers(self, asks: Mapping[Key, Asking]) -> dict[Key, Any]:
        """Batches or an offset by partition, or in words why there are none. While leaders move, they are awaited."""
        found: dict[Key, Any] = {}
        clock = RealClock()
        last_ms = clock.monotonic_ms() + ONE_ANSWERS_WITHIN_MS
        left = dict(asks)
        while True:
            for response in send_all(self._client, self._requests(left), IN_FLIGHT):
                found |= _read(response, left)
            self._target.renew()
            left = {key: ask for key, ask in left.items() if key not in found}
            if not left:
                return found
            if clock.monotonic_ms() > last_ms:
                return found | dict.fromkeys(left, NO_LEADER)
            asyncio.run(clock.sleep(RETRY_MS))
            names = sorted({name for name, _ in left})
            topics = answered(self._client, lambda names=names: self._client.describe_topics(names))  # type: ignore[misc]
            for topic in topics:
                if topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    found |= {key: GONE for key in left if key[0] == topic["name"]}
            for key in left:
                self._leaders.pop(key, None)
            self._leaders |= leaders_of(topics)
            left = {key: ask for key, ask in left.items() if key not in found}

    def _requests(self, asks: Mapping[Key, Asking]) -> list[tuple[int, Any]]:
        """Requests with the brokers that get them. In a Fetch, each partition gets the bytes that it asks for."""
        requests: list[tuple[int, Any]] = []
        fetches: dict[int, list[tuple[Key, Ask | AskBatches]]] = {}
        times: dict[int, dict[Key, int]] = {}
        for key, ask in sorted(asks.items()):
            if (leader := self._leaders.get(key)) is None:
                continue
            if isinstance(ask, AskTime):
                times.setdefault(leader, {})[key] = ask.timestamp
                continue
            share = fetches.setdefault(leader, [])
            taken = sum(one.bytes_max for _, one in share)
            if share and (len(share) == PARTITIONS_PER_REQUEST or taken + ask.bytes_max > REQUEST_BYTES):
                requests.append((leader, _fetch(share)))
                share.clear()
            share.append((key, ask))
        requests += [(leader, _fetch(share)) for leader, share in fetches.items()]
        return requests + [(leader, list_offsets_request(some)) for leader, some in times.items()]


def _read(response: Any, asks: Mapping[Key, Asking]) -> dict[Key, Any]:
    """What an answer says of its partitions, without those that are asked again."""
    found: dict[Key, Any] = {}
    is_fetch = hasattr(response, "responses")
    for topic in response.responses if is_fetch else response.topics:
        for one in topic.partitions:
            key = (topic.topic if is_fetch else topic.name, one.partition_index)
            if one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                found[key] = MOVED
            elif one.error_code in LEADER_MOVES:
                continue
            elif one.error_code:
                found[key] = f"its leader answers: {reason(one.error_code)}"
            elif is_fetch:
                records = bytes(one.records or b"")
                batches = batches_in(records)
                if batches is None:
                    found[key] = OLD_FORMAT
                elif isinstance(asks[key], AskBatches):
                    found[key] = _with_bytes(batches, records)
                else:
                    found[key] = batches
            else:
                found[key] = None if one.offset == NO_RECORD else one.offset
    return found


def _with_bytes(batches: list[Batch], records: bytes) -> list[tuple[Batch, bytes]]:
    """The batches that are whole, with their bytes."""
    found = []
    at = 0
    for batch in batches:
        if at + batch.size_bytes <= len(records):
            found.append((batch, records[at : at + batch.size_bytes]))
        at += batch.size_bytes
    return found


def _fetch(share: list[tuple[Key, Ask | AskBatches]]) -> Any:
    from kafka.protocol.consumer import FetchRequest

    make = FetchRequest.FetchTopic
    topics = grouped(
        (
            key[0],
            make.FetchPartition(partition=key[1], fetch_offset=ask.offset, partition_max_bytes=ask.bytes_max),
        )
        for key, ask in share
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max(REQUEST_BYTES, share[0][1].bytes_max),
        isolation_level=0,
        topics=[make(topic=name, partitions=some) for name, some in topics.items()],
        min_version=4,  # since then the answer has batches as they are
        max_version=12,  # which names topics by their names
    )
