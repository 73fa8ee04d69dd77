"""What is kept of clients' requests: the newest, within bounds, and as they were sent."""

from typing import Any

import pytest
from barnabas.broker.control import recorder
from barnabas.broker.control.facts import NOTHING, facts_of
from barnabas.broker.control.recorder import Exchange, Recorder
from barnabas.broker.requests import RequestContext
from barnabas.protocol import frames, messages
from barnabas.testing.replay import differences


def came(kept: Recorder, request: Any, version: int = 5) -> Exchange:
    context = RequestContext(request.API_KEY, version, 7, "c")
    return kept.begin(0, context, facts_of(request, version, "c", lambda topic_id: None), request)


def test_a_request_is_kept_as_it_was_sent() -> None:
    kept = Recorder()
    exchange = came(kept, messages.JoinGroupRequest(group_id="billing", member_id="m"))
    assert exchange.frame is not None
    header, request = frames.decode_request(exchange.frame[4:])
    assert (header.api_version, header.correlation_id, header.client_id) == (5, 7, "c")
    assert isinstance(request, messages.JoinGroupRequest)
    assert (request.group_id, request.member_id) == ("billing", "m")


def test_what_a_request_does_not_name_takes_no_memory() -> None:
    """Until 2026-12 each of 5,000 requests had empty sets of its own, which were 3 MB."""
    facts = came(Recorder(), messages.HeartbeatRequest(group_id="g"), 4).facts
    assert facts.groups == {"g"}
    assert facts.topics is facts.partitions is facts.transactional_ids is NOTHING.topics


def test_an_answer_knows_what_came_after_it() -> None:
    kept = Recorder()
    first, second = (came(kept, messages.HeartbeatRequest(), 4) for _ in range(2))
    kept.end(second, "answered", 0, messages.HeartbeatResponse())
    third = came(kept, messages.HeartbeatRequest(), 4)
    kept.end(first, "answered", 0, messages.HeartbeatResponse())
    assert (second.answered_before, third.number, first.answered_before) == (third.number, 3, 4)


def test_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    request = messages.HeartbeatRequest(group_id="g" * 100)
    size = len(came(Recorder(), request, 4).frame or b"")
    monkeypatch.setattr(recorder, "FRAME_BYTES_MAX", 3 * size)
    kept = Recorder()
    for _ in range(5):
        came(kept, request, 4)
    assert [each.frame is not None for each in kept.since(0)] == [False, False, True, True, True]
    monkeypatch.setattr(recorder, "EXCHANGES_MAX", 2)
    came(kept, request, 4)
    assert [each.number for each in kept.since(0)] == [5, 6]
    came(kept, request, 4)
    came(kept, request, 4)
    assert all(each.frame is not None for each in kept.since(0))


def test_a_request_without_its_frame_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Recorder()
    exchange = came(kept, messages.JoinGroupRequest(group_id="billing", member_id="m"))
    told = exchange.request
    monkeypatch.setattr(recorder, "FRAME_BYTES_MAX", len(exchange.frame or b""))
    came(kept, messages.JoinGroupRequest(group_id="billing", member_id="m"))
    assert (exchange.frame, exchange.request) == (None, told)
    assert told["group_id"] == "billing"


@pytest.mark.parametrize("size", [10, 100_000])
def test_of_records_only_their_size_is_kept(size: int) -> None:
    kept = Recorder()
    exchange = came(kept, messages.FetchRequest(topics=[]), 12)
    make = messages.FetchResponse
    records = memoryview(bytearray(b"x" * size))
    rows = [make.PartitionData(partition_index=each, high_watermark=7, records=records) for each in range(2)]
    kept.end(exchange, "answered", 0, make(responses=[make.FetchableTopicResponse(topic="t", partitions=rows)]))
    found = exchange.answer["responses"][0]["partitions"]
    assert [row["records"] for row in found] == [{"bytes": size}] * 2
    assert [row["high_watermark"] for row in found] == [7, 7]
    assert exchange.size_bytes < 1_000


def test_a_very_long_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "ENCODED_ITEMS_MAX", 10)
    kept = Recorder()
    exchange = came(kept, messages.ListGroupsRequest(), 4)
    groups = [messages.ListGroupsResponse.ListedGroup(group_id=f"g{number}") for number in range(2_000)]
    kept.end(exchange, "answered", 0, messages.ListGroupsResponse(groups=groups))
    assert [each["group_id"] for each in exchange.answer["groups"]] == [f"g{number}" for number in range(1_000)]


def test_a_request_of_very_many_values_is_not_encoded_once_more() -> None:
    topic = messages.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(1_000)))
    assert came(Recorder(), messages.OffsetFetchRequest(group_id="g", topics=[topic] * 20), 7).frame is None


@pytest.mark.parametrize(
    ("recorded", "now", "found"),
    [
        ({"error_code": 0, "a": 1}, {"error_code": 0, "a": 2}, []),
        (
            {"rows": [{"topic": "", "topic_id": "A", "offset": 1}, {"topic": "", "topic_id": "B", "offset": 2}]},
            {"rows": [{"topic": "", "topic_id": "B", "offset": 2}, {"topic": "", "topic_id": "A", "offset": 3}]},
            [("rows[A].offset", 1, 3)],
        ),
        (  # made again: another id
            {"rows": [{"topic": "", "topic_id": "A", "offset": 1}]},
            {"rows": [{"topic": "", "topic_id": "C", "offset": 1}]},
            [],
        ),
        ({"error_code": 0, "base_offset": 1}, {"error_code": 3, "base_offset": 2}, [("error_code", 0, 3)]),
        (
            {"topics": [{"name": "t", "offset": 1}]},
            {"topics": [{"name": "t", "offset": 2}]},
            [("topics[t].offset", 1, 2)],
        ),
        (
            {"topics": [{"name": "a", "offset": 1}, {"name": "b", "offset": 2}]},
            {"topics": [{"name": "b", "offset": 2}]},
            [("topics[a]", "there", "missing")],
        ),
        (
            {"rows": [{"error_code": 1}, {"error_code": 2}]},
            {"rows": [{"error_code": 1}, {"error_code": 0}]},
            [("rows[1].error_code", 2, 0)],
        ),
    ],
)
def test_what_counts_as_a_difference(recorded: Any, now: Any, found: list[Any]) -> None:
    assert list(differences(recorded, now)) == found


def test_a_commit_whose_rows_are_columns_is_told_as_any_other() -> None:
    make = messages.OffsetCommitRequest
    rows = [make.OffsetCommitRequestPartition(partition_index=index, committed_offset=9) for index in range(3)]
    topics = [make.OffsetCommitRequestTopic(name="orders", partitions=rows)]
    request = make(group_id="billing", topics=topics)
    _, decoded = frames.decode_request(frames.encode_request(request.API_KEY, 9, 1, "c", request)[4:])
    exchange = came(Recorder(), decoded, 9)
    assert exchange.facts.partitions == {("orders", index) for index in range(3)}
    (topic,) = exchange.request["topics"]
    assert [(row["partition_index"], row["committed_offset"]) for row in topic["partitions"]] == [
        (index, 9) for index in range(3)
    ]


def test_each_request_about_a_group_is_known_to_be() -> None:
    for request in (
        messages.ConsumerGroupDescribeRequest(group_ids=["billing"]),
        messages.ConsumerGroupHeartbeatRequest(group_id="billing"),
        messages.DescribeGroupsRequest(groups=["billing"]),
        messages.DeleteGroupsRequest(groups_names=["billing"]),
    ):
        assert facts_of(request, 1, "c", lambda topic_id: None).groups == {"billing"}
