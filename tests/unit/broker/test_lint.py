"""What clients could do better, by what they have asked."""

from collections.abc import Iterable
from typing import Any

import pytest
from barnabas.broker.control.facts import facts_of
from barnabas.broker.control.lint import findings
from barnabas.broker.control.recorder import Exchange
from barnabas.broker.requests import RequestContext
from barnabas.protocol import messages, record_batch
from barnabas.protocol.batch_records import Record


def commit(offset: int, group: str = "billing") -> Any:
    row = messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[row])]
    return messages.OffsetCommitRequest(group_id=group, topics=topics)


def fetch(max_wait_ms: int = 500, min_bytes: int = 1) -> Any:
    return messages.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes)


def join(member_id: str = "", instance_id: str | None = None) -> Any:
    return messages.JoinGroupRequest(group_id="billing", member_id=member_id, group_instance_id=instance_id)


def beat(epoch: int, instance_id: str | None = None) -> Any:
    return messages.ConsumerGroupHeartbeatRequest(
        group_id="billing", member_id="m", member_epoch=epoch, instance_id=instance_id
    )


def produce(acks: int = -1, producer_id: int = 7) -> Any:
    batch = record_batch.build([Record(0, 1, None, b"v", [])], producer_id=producer_id)
    row = messages.ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = [messages.ProduceRequest.TopicProduceData(name="orders", partition_data=[row])]
    return messages.ProduceRequest(acks=acks, topic_data=data)


METADATA = messages.MetadataRequest()
LEAVE = messages.LeaveGroupRequest(group_id="billing")


def found(requests: Iterable[Any], *, version: int = 13, apart_ms: int = 1_000) -> list[str]:
    seen = []
    for number, request in enumerate(requests, 1):
        served = min(version, request.SCHEMA.versions[1])  # each request has its own versions
        context = RequestContext(request.API_KEY, served, number, "c")
        facts = facts_of(request, served, "c", lambda topic_id: None)
        seen.append(Exchange(number, number * apart_ms, context, facts, request))
    return [f"{each.rule} {each.times}" for each in findings(seen)]


@pytest.mark.parametrize(
    ("requests", "rules"),
    [
        ([commit(offset) for offset in range(20)], ["commit of each record 19"]),
        ([commit(offset * 100) for offset in range(20)], []),
        ([commit(offset) for offset in range(5)], []),
        ([commit(7), commit(3), commit(9), commit(8)], ["commit that goes back 2"]),
        ([commit(7, "one"), commit(3, "two")], []),
        ([fetch(0)] * 20, ["fetch that never waits 20"]),
        ([fetch(500, 0)] * 20, ["fetch that never waits 20"]),
        ([fetch()] * 50, []),
        ([fetch(0)] * 19, []),
        ([METADATA] * 50, []),
        ([produce()], []),  # its InitProducerId may have gone to another broker
        ([produce(1), produce(1)], ["produce without all replicas 2"]),
        ([produce(producer_id=-1), produce(1, -1)], ["no idempotence 2", "produce without all replicas 1"]),
        ([join(), join("c-1"), join(), join()], ["member that comes anew 3"]),
        ([join(), LEAVE, join(), LEAVE, join()], []),
        ([beat(0), beat(2), beat(0), beat(0)], ["member that comes anew 3"]),
        ([beat(0), beat(2), beat(-1)] * 4, []),
        ([beat(0, "till-1"), beat(-2, "till-1")] * 4, []),
        ([join("", "static")] * 5, []),
    ],
)
def test_it_is_found(requests: list[Any], rules: list[str]) -> None:
    assert found(requests) == rules


def test_many_requests_for_metadata_within_a_second_are_found() -> None:
    assert found([METADATA] * 50, apart_ms=50) == ["metadata storm 20"]


def test_a_producer_whose_records_are_forgotten_may_have_an_id() -> None:
    request = produce(producer_id=-1)
    exchange = Exchange(1, 1, RequestContext(0, 9, 1, "c"), facts_of(request, 9, "c", lambda topic_id: None), request)
    assert [each.rule for each in findings([exchange])] == ["no idempotence"]
    exchange.forget_frame()
    assert findings([exchange]) == []


@pytest.mark.parametrize(("request_", "version"), [(fetch(), 8), (commit(1), 5), (join("m"), 4)])
def test_old_versions_are_found(request_: Any, version: int) -> None:
    assert found([request_], version=version) == ["old version 1"]
    assert found([request_], version=version + 1) == []
