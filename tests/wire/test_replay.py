"""A selection of Kafka's recorded stories against a broker process; the whole is `python tests/replay/replay.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "replay"))

import comparison
import replay
from barnabas.protocol import record_batch
from barnabas.protocol.messages import (
    FetchRequest,
    FetchResponse,
    JoinGroupResponse,
    ListGroupsResponse,
    MetadataResponse,
)

# Connections of a section build on one another (offsets, listings), so whole sections are sent; what takes the time is
# the waiting in fetches, of which the newest version stands for all.
SELECTION = {
    "4.3.1": "*",
    "4.1.0": "*,!fetch-[4-9],!fetch-1[0-7]",
    "3.9.1": "*,!fetch-[0-9]*,!produce-[0-9]*,!groups-[2-9]*,!groups-10*",
}


@pytest.mark.parametrize("release", sorted(SELECTION))
def test_answers_as_kafka_did(release: str) -> None:
    report = replay.replay(release, connection=SELECTION[release])
    assert not report.different, "\n\n".join(replay.describe(result) for result in report.different[:10])
    assert report.broker_errors == []
    assert len(report.results) > 100


def test_connections_are_selected_by_patterns() -> None:
    assert replay.selected("fetch-18", ["*", "!fetch-[4-9]", "!fetch-1[0-7]"])
    assert not replay.selected("fetch-17", ["*", "!fetch-[4-9]", "!fetch-1[0-7]"])
    assert not replay.selected("groups-0-a", ["fetch-*"])


def test_every_rule_has_a_reason() -> None:
    rules = replay.Rules()
    for rule in [*rules.skips, *rules.accepted]:
        assert len(rule["reason"]) > 10


def answer(**fields: object) -> JoinGroupResponse:
    return JoinGroupResponse(**fields)  # type: ignore[arg-type]


def test_a_chosen_value_is_learnt_once() -> None:
    chosen = comparison.Chosen()
    first = "golden-263447ed-e22e-40c4-959e-e2f00caf6923"
    ours = "golden-99999999-e22e-40c4-959e-e2f00caf6923"
    assert comparison.compare("JoinGroup", answer(member_id=first), answer(member_id=ours), chosen) == []
    assert comparison.compare("JoinGroup", answer(member_id=first), answer(member_id=ours), chosen) == []
    other = "golden-88888888-e22e-40c4-959e-e2f00caf6923"
    (difference,) = comparison.compare("JoinGroup", answer(member_id=first), answer(member_id=other), chosen)
    assert difference == ("member_id", first, other)
    (difference,) = comparison.compare("JoinGroup", answer(member_id=other), answer(member_id=ours), chosen)
    assert difference.path == "member_id"


def test_a_chosen_value_must_have_the_same_form() -> None:
    chosen = comparison.Chosen()
    kafka = answer(member_id="golden-263447ed-e22e-40c4-959e-e2f00caf6923")
    assert comparison.compare("JoinGroup", kafka, answer(member_id="263447ed-e22e-40c4-959e-e2f00caf6923"), chosen)
    assert comparison.compare("JoinGroup", kafka, answer(member_id=""), chosen)


def test_requests_are_sent_with_our_values() -> None:
    chosen = comparison.Chosen()
    kafka, ours = FetchResponse(session_id=7), FetchResponse(session_id=9)
    assert comparison.compare("Fetch", kafka, ours, chosen) == []
    request = FetchRequest(session_id=7)
    assert chosen.translate(request, 12)
    assert request.session_id == 9
    assert not chosen.translate(FetchRequest(session_id=12345), 12)


def test_a_producer_id_inside_a_batch_is_ours_and_the_checksum_holds() -> None:
    chosen = comparison.Chosen()
    assert chosen.agree("producer id", 4, 1004)
    batch = record_batch.build(
        [record_batch.Record(0, 5, b"k", b"v", [])], producer_id=4, producer_epoch=0, base_sequence=0
    )
    changed = chosen._translate_records(bytes(batch))
    assert changed is not None
    assert record_batch.read_header(memoryview(changed)).producer_id == 1004
    assert record_batch.crc_is_valid(memoryview(changed))
    batch[17] ^= 1
    assert chosen._translate_records(bytes(batch)) is None, "a broken checksum is meant to be broken"


def test_order_of_a_hash_table_does_not_count_and_other_order_does() -> None:
    chosen = comparison.Chosen()
    groups = [ListGroupsResponse.ListedGroup(group_id="a"), ListGroupsResponse.ListedGroup(group_id="b")]
    kafka, ours = ListGroupsResponse(groups=groups), ListGroupsResponse(groups=groups[::-1])
    assert comparison.compare("ListGroups", kafka, ours, chosen) == []
    assert comparison.compare("ListGroups", kafka, ListGroupsResponse(groups=groups[:1]), chosen)[0].path == "groups/b"
    partition = MetadataResponse.MetadataResponsePartition
    topic = MetadataResponse.MetadataResponseTopic
    kafka_topics = MetadataResponse(topics=[topic(name="t", partitions=[partition(isr_nodes=[1, 2])])])
    our_topics = MetadataResponse(topics=[topic(name="t", partitions=[partition(isr_nodes=[2, 1])])])
    paths = [difference.path for difference in comparison.compare("Metadata", kafka_topics, our_topics, chosen)]
    assert paths == ["topics/t/partitions/0/isr_nodes/0", "topics/t/partitions/0/isr_nodes/1"]


def test_messages_are_compared_as_there_or_not() -> None:
    chosen = comparison.Chosen()
    from barnabas.protocol.messages import DescribeClusterResponse as Response

    assert comparison.compare("DescribeCluster", Response(error_message="x"), Response(error_message="y"), chosen) == []
    assert comparison.compare("DescribeCluster", Response(error_message="x"), Response(error_message=""), chosen)
    assert comparison.compare("DescribeCluster", Response(error_message=""), Response(error_message=None), chosen)
