"""What the log says of members and assignments is of bounded length, whatever clients have sent."""

import pytest
from barnabas.coordinators.groups.log_lines import ASSIGNMENT_BYTES_MAX, LINE_CHARACTERS_MAX, assignments
from barnabas.coordinators.groups.members import Member
from barnabas.protocol import records


def member(assignment: bytes, member_id: str = "m", client_id: str = "c", instance_id: str | None = None) -> Member:
    return Member(member_id, instance_id, client_id, "/192.0.2.7", 1, 1, [], assignment)


def assigned(**topics: list[int]) -> bytes:
    kind = records.ConsumerProtocolAssignment
    rows = [kind.TopicPartition(topic=topic, partitions=partitions) for topic, partitions in topics.items()]
    return records.encode_versioned(kind(assigned_partitions=rows), 1)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (assigned(orders=[7, 2, 1, 0, 4, 5], payments=[1]), "orders: 0-2, 4-5, 7; payments: 1"),
        (b"", "nothing"),
        (assigned(), "nothing"),
        (b"no assignment", "13 bytes"),
        (b"\xff\xff is no version", "16 bytes"),
        (assigned(orders=list(range(2_000))), "8,022 bytes"),
    ],
)
def test_who_got_what(content: bytes, text: str) -> None:
    assert assignments([member(content)], 1, "consumer") == f"m (client 'c' at 192.0.2.7) has {text}"


def test_of_another_protocol_only_the_size_is_known() -> None:
    assert assignments([member(assigned(orders=[1]))], 1, "connect").endswith("has 26 bytes")


def test_a_static_member_is_told_by_its_instance_too() -> None:
    assert assignments([member(b"", instance_id="one")], 1, "consumer").startswith("m (instance 'one', client 'c' at")


def test_many_members_with_long_names() -> None:
    many = [member(assigned(orders=[number]), "m" * 40_000, "c" * 40_000) for number in range(500)]
    line = assignments(many, len(many), "consumer")
    assert len(line) < 2 * LINE_CHARACTERS_MAX
    assert line.endswith("; and 495 more")


def test_one_member_with_very_many_topics() -> None:
    rows = {f"topic-{number}": [0] for number in range(ASSIGNMENT_BYTES_MAX // 20)}
    line = assignments([member(assigned(**rows))], 1, "consumer")
    assert len(line) < 2 * LINE_CHARACTERS_MAX
    assert " more" in line
