"""A long message in parts: nothing is lost, the order stays, and the answers fit together again."""

import pytest
from barnabas.protocol.messages import ProduceRequest, ProduceResponse
from barnabas.protocol.parts import count_rows, in_parts, join

Topic = ProduceRequest.TopicProduceData
Row = ProduceRequest.PartitionProduceData
SIZES = [0, 7, 1, 0, 10, 3]


def request() -> ProduceRequest:
    topics = [
        Topic(name=f"t{number}", partition_data=[Row(index=i) for i in range(size)])
        for number, size in enumerate(SIZES)
    ]
    return ProduceRequest(acks=-1, timeout_ms=5, topic_data=topics)


@pytest.mark.parametrize("rows_max", [1, 2, 5, 7, 22, 23, 100])
def test_parts_and_the_answers_to_them(rows_max: int) -> None:
    whole = request()
    assert count_rows(whole, "topic_data", "partition_data") == 23
    parts = list(in_parts(whole, "topic_data", "partition_data", rows_max))
    assert all(part.acks == -1 for part in parts)
    assert all(0 < count_rows(part, "topic_data", "partition_data") <= rows_max for part in parts)
    assert sum(count_rows(part, "topic_data", "partition_data") for part in parts) == 23
    assert whole == request()
    joined = ProduceResponse(responses=[])
    answer = ProduceResponse.TopicProduceResponse
    for part in parts:
        rows = [
            (topic.name, [ProduceResponse.PartitionProduceResponse(index=row.index) for row in topic.partition_data])
            for topic in part.topic_data
        ]
        topics = [answer(name=name, partition_responses=row) for name, row in rows]
        join(joined, ProduceResponse(responses=topics), "responses", "partition_responses")
    assert [(topic.name, len(topic.partition_responses)) for topic in joined.responses] == [
        (f"t{number}", size) for number, size in enumerate(SIZES)
    ]
    assert [row.index for row in joined.responses[4].partition_responses] == list(range(10))


def test_a_message_without_topics_is_one_part() -> None:
    assert list(in_parts(ProduceRequest(acks=1), "topic_data", "partition_data", 5)) == [ProduceRequest(acks=1)]
