"""Looks at the headers of batches in partitions' logs, by Fetch and ListOffsets: what any broker answers."""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from barnabas.broker.cli.client import LATEST, answered
from barnabas.broker.cli.target import Target
from barnabas.offsets.backup import batches_in
from barnabas.offsets.backup_search import Around, Ask, AskTime, Searched, Wanted, around, search
from barnabas.protocol import uuids

Key = tuple[str, int]
T = TypeVar("T")
Seeking = Generator[Ask | AskTime, Any, T]

EARLIEST = -2
REQUEST_BYTES = 16 * 2**20
PARTITIONS_PER_REQUEST = 500
IN_FLIGHT = 4  # of one broker; the client takes five
NO_RECORD = -1
MOVED = "its log has changed while it was read"
OLD_FORMAT = "its batches have an old format"
ATTEMPTS = 3
NOT_LEADER = {3, 5, 6, 9, 56, 72, 74, 75, 76, 78}  # also topics that are being deleted, and followers
OUT_OF_RANGE = 1


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
        self.read_bytes = 0

    def look(self, names: Iterable[str]) -> None:
        """Ask which of these topics exist, and where their logs begin and end. A topic may not exist."""
        wanted = sorted(set(names))
        if not wanted:
            return
        for topic in answered(self._client, lambda: self._client.describe_topics(wanted)):
            if topic["error_code"]:
                continue
            topic_id = UUID(str(topic.get("topic_id") or UUID(int=0))).bytes
            self.topic_ids[topic["name"]] = uuids.to_text(topic_id) if any(topic_id) else None
            self.partition_counts[topic["name"]] = len(topic["partitions"])
            for partition in topic["partitions"]:
                if partition["leader_id"] >= 0:
                    self._leaders[topic["name"], partition["partition_index"]] = partition["leader_id"]
        self._measure([key for key in self._leaders if key not in self.logs])

    def _measure(self, keys: list[Key]) -> None:
        starts = self._offsets(dict.fromkeys(keys, EARLIEST))
        ends = self._offsets(dict.fromkeys(keys, LATEST))
        for key in keys:
            self.logs[key] = Log(starts[key], max(starts[key], ends[key]))

    def _offsets(self, times: Mapping[Key, int]) -> dict[Key, int]:
        """What ListOffsets says of a time, or of an end of the log; NO_RECORD if no record is so new."""
        from kafka.structs import TopicPartition

        if not times:
            return {}
        asked = {TopicPartition(*key): time for key, time in times.items()}
        found = answered(self._client, lambda: self._client.list_partition_offsets(asked))
        self._target.renew()
        return {(key.topic, key.partition): one.offset for key, one in found.items()}

    def around(
        self, offsets: Mapping[Key, Iterable[int]], advance: Callable[[int], None]
    ) -> dict[Key, dict[int, Around] | str]:
        """What is at these offsets, by partition; or why it cannot be read. Advances by the offsets."""
        return self._each(offsets, lambda log, some: around(some, log.start, log.end), advance)

    def search(
        self, wanted: Mapping[Key, Iterable[Wanted]], bytes_each: int, advance: Callable[[int], None]
    ) -> dict[Key, Searched | str]:
        """Look for batches, by partition; or why it cannot be read. Advances by what was wanted."""
        return self._each(wanted, lambda log, some: search(some, log.start, log.end, bytes_each), advance)

    def _each(
        self,
        work: Mapping[Key, Iterable[Any]],
        begin: Callable[[Log, list[Any]], Seeking[T]],
        advance: Callable[[int], None],
    ) -> dict[Key, T | str]:
        counts = {key: len(list(some)) for key, some in work.items()}
        results: dict[Key, T | str] = {}
        left = list(work)
        for _ in range(ATTEMPTS):
            seekers = {key: begin(self.logs[key], list(work[key])) for key in left}
            results |= self._run(seekers, lambda key: advance(counts[key]))
            left = [key for key in left if results[key] == MOVED]
            if not left:
                break
            self._measure(left)
        return results

    def _run(self, seekers: Mapping[Key, Seeking[T]], done: Callable[[Key], None]) -> dict[Key, T | str]:
        """Run them all together, so that many partitions share a request."""
        results: dict[Key, T | str] = {}
        asks: dict[Key, Ask | AskTime] = {}

        def go_on(key: Key, answer: Any) -> None:
            if isinstance(answer, str):
                results[key] = answer
                del asks[key]
                done(key)
                return
            try:
                asks[key] = seekers[key].send(answer)
            except StopIteration as end:
                results[key] = end.value
                asks.pop(key, None)
                done(key)

        for key in seekers:
            go_on(key, None)
        while asks:
            times = {key: ask.timestamp for key, ask in asks.items() if isinstance(ask, AskTime)}
            for key, offset in self._offsets(times).items():
                go_on(key, None if offset == NO_RECORD else offset)
            fetches = {key: ask for key, ask in asks.items() if isinstance(ask, Ask)}
            for key, answer in answered(self._client, partial(self._fetch, fetches)).items():
                go_on(key, answer)
            self._target.renew()
        return results

    def _fetch(self, asks: dict[Key, Ask]) -> dict[Key, Any]:
        """Batches by partition, or why there are none. NotLeaderForPartitionError: ask again."""
        from kafka.errors import NotLeaderForPartitionError

        found: dict[Key, Any] = {}
        for responses in self._client._manager.run(self._send, self._requests(asks)):
            for topic in responses.responses:
                for one in topic.partitions:
                    key = (topic.topic, one.partition_index)
                    if one.error_code == OUT_OF_RANGE:
                        found[key] = MOVED
                    elif one.error_code in NOT_LEADER:
                        self._leaders.pop(key, None)
                    elif one.error_code:
                        found[key] = f"its leader answers error {one.error_code}"
                    else:
                        records = one.records or b""
                        self.read_bytes += len(records)
                        batches = batches_in(records)
                        found[key] = OLD_FORMAT if batches is None else batches
        if len(found) < len(asks):
            self._find_leaders([key for key in asks if key not in found])
            raise NotLeaderForPartitionError
        return found

    def _find_leaders(self, keys: list[Key]) -> None:
        for topic in self._client.describe_topics(sorted({name for name, _ in keys})):
            for partition in topic["partitions"]:
                if partition["leader_id"] >= 0:
                    self._leaders[topic["name"], partition["partition_index"]] = partition["leader_id"]

    def _requests(self, asks: dict[Key, Ask]) -> list[tuple[int, Any]]:
        """Fetch requests with the brokers that get them. Each partition gets the bytes that it asks for."""
        requests: list[tuple[int, Any]] = []
        shares: dict[int, list[tuple[Key, Ask]]] = {}
        for key, ask in sorted(asks.items()):
            if (leader := self._leaders.get(key)) is None:
                continue
            share = shares.setdefault(leader, [])
            taken = sum(one.bytes_max for _, one in share)
            if share and (len(share) == PARTITIONS_PER_REQUEST or taken + ask.bytes_max > REQUEST_BYTES):
                requests.append((leader, _request(share)))
                share.clear()
            share.append((key, ask))
        return [*requests, *((leader, _request(share)) for leader, share in shares.items())]

    async def _send(self, requests: list[tuple[int, Any]]) -> list[Any]:
        responses = []
        waiting: dict[int, list[Any]] = {}
        for node_id, request in requests:
            mine = waiting.setdefault(node_id, [])
            if len(mine) == IN_FLIGHT:
                responses.append(await mine.pop(0))
            mine.append(self._client._manager.send(request, node_id))
        for mine in waiting.values():
            responses += [await future for future in mine]
        return responses


def _request(share: list[tuple[Key, Ask]]) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topics: dict[str, list[Any]] = {}
    for (name, index), ask in share:
        one = FetchRequest.FetchTopic.FetchPartition(
            partition=index, fetch_offset=ask.offset, partition_max_bytes=ask.bytes_max
        )
        topics.setdefault(name, []).append(one)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max(REQUEST_BYTES, share[0][1].bytes_max),
        isolation_level=0,
        topics=[FetchRequest.FetchTopic(topic=name, partitions=some) for name, some in topics.items()],
        min_version=4,  # since then the answer has batches as they are
        max_version=12,  # which names topics by their names
    )
