"""Reading headers of many partitions while leaders move, brokers are silent and topics go."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.cli import log_headers
from barnabas.cli.log_headers import GONE, NO_LEADER, LogHeaders
from barnabas.offsets import backup_search
from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import Record
from kafka.errors import KafkaConnectionError

UNKNOWN, NOT_LEADER, OUT_OF_RANGE = 3, 6, 1


class Cluster:
    """Brokers 1 and 2 that answer as kafka-python shows it; each partition has batches of one record."""

    def __init__(self, leaders: dict[tuple[str, int], int]) -> None:
        self.leaders = leaders
        self.starts = dict.fromkeys(leaders, 0)
        self.silent: set[int] = set()
        self.asked = 0
        self.before: Callable[[], None] = lambda: None
        self._manager = SimpleNamespace(run=self._run, send=self._send)

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        topics = []
        for name in names:
            rows = [(key[1], leader) for key, leader in self.leaders.items() if key[0] == name]
            partitions = [{"partition_index": index, "leader_id": leader} for index, leader in rows]
            error = 0 if partitions else UNKNOWN
            topics.append({"name": name, "error_code": error, "topic_id": None, "partitions": partitions})
        return topics

    def _run(self, work: Any, *arguments: Any) -> Any:
        try:
            work(*arguments).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")

    def _send(self, request: Any, node_id: int) -> Any:
        self.asked += 1
        self.before()

        class Answer:
            def __await__(answer: Any) -> Any:
                if node_id in self.silent:
                    raise KafkaConnectionError("gone")
                return self._answer(request, node_id)
                yield

        return Answer()

    def _answer(self, request: Any, node_id: int) -> Any:
        is_fetch = hasattr(request, "max_bytes")
        topics = []
        for topic in request.topics:
            name = topic.topic if is_fetch else topic.name
            rows = []
            for one in topic.partitions:
                key = (name, one.partition if is_fetch else one.partition_index)
                row = SimpleNamespace(partition_index=key[1], error_code=0, offset=-1, records=b"")
                if self.leaders.get(key) != node_id:
                    row.error_code = NOT_LEADER if key in self.leaders else UNKNOWN
                elif not is_fetch:
                    row.offset = {-2: self.starts[key], -1: 10}.get(one.timestamp, one.timestamp)
                elif one.fetch_offset < self.starts[key]:
                    row.error_code = OUT_OF_RANGE
                else:
                    row.records = b"".join(map(batch, range(one.fetch_offset, 10)))
                rows.append(row)
            topics.append(SimpleNamespace(topic=name, name=name, partitions=rows))
        return SimpleNamespace(responses=topics) if is_fetch else SimpleNamespace(topics=topics)


def batch(offset: int) -> bytes:
    return bytes(record_batch.build([Record(timestamp=offset, value=b"%d" % offset)], base_offset=offset))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(log_headers, "RETRY_MS", 0)
    return Cluster({("a", 0): 1, ("a", 1): 2, ("b", 0): 1})


@pytest.fixture
def logs(cluster: Cluster) -> LogHeaders:
    found = LogHeaders(cluster, SimpleNamespace(renew=lambda: None))  # type: ignore[arg-type]
    found.look(["a", "b", "nothing"])
    return found


def around(logs: LogHeaders, offset: int = 5) -> dict[tuple[str, int], Any]:
    """The offsets of the batches there, by partition."""
    result = logs.each({key: [offset] for key in logs.logs}, backup_search.around, lambda _count: None)
    return {
        key: value
        if isinstance(value, str)
        else tuple(one and one.base_offset for one in (value[offset].before, value[offset].batch))
        for key, value in result.items()
    }


def test_all_partitions_of_a_broker_share_a_request(cluster: Cluster, logs: LogHeaders) -> None:
    assert sorted(logs.logs) == [("a", 0), ("a", 1), ("b", 0)]
    cluster.asked = 0
    assert around(logs) == dict.fromkeys(logs.logs, (4, 5))
    assert cluster.asked == 2


def test_a_leader_that_moves_is_followed(cluster: Cluster, logs: LogHeaders) -> None:
    cluster.leaders[("a", 0)] = 2
    assert around(logs) == dict.fromkeys(logs.logs, (4, 5))
    cluster.silent.add(2)
    cluster.leaders |= {("a", 0): 1, ("a", 1): 1}
    assert around(logs) == dict.fromkeys(logs.logs, (4, 5))


def test_a_silent_leader_costs_its_partitions_only(
    cluster: Cluster, logs: LogHeaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_headers, "ONE_ANSWERS_WITHIN_MS", 50)
    cluster.silent.add(2)
    assert around(logs) == {("a", 0): (4, 5), ("a", 1): NO_LEADER, ("b", 0): (4, 5)}


def test_a_topic_that_is_deleted_meanwhile(cluster: Cluster, logs: LogHeaders) -> None:
    del cluster.leaders[("b", 0)]
    assert around(logs) == {("a", 0): (4, 5), ("a", 1): (4, 5), ("b", 0): GONE}
    other = LogHeaders(cluster, SimpleNamespace(renew=lambda: None))  # type: ignore[arg-type]
    other.look(["a", "b"])
    assert sorted(other.logs) == [("a", 0), ("a", 1)]


def test_a_log_start_that_moves_meanwhile(cluster: Cluster, logs: LogHeaders) -> None:
    cluster.starts[("a", 0)] = 8
    assert around(logs) == {("a", 0): (None, 8), ("a", 1): (4, 5), ("b", 0): (4, 5)}
    assert logs.logs["a", 0] == (8, 10)
