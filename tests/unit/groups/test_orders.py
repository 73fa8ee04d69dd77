"""In which order members and topics are assigned where Kafka's hash tables decide: as Kafka 4.3.1's classes have it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer import target
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import Subscription
from barnabas.coordinators.groups.consumer.records import Kind, Record, ResolvedRegex
from barnabas.protocol.java_hash import in_java_order, in_java_order_by_pieces, java_hash_code
from barnabas.runtime.turns import at_once

TWO = ("c-8e35f901-0b26-efff-3690-43d59f55eff4", "c-bedacbe9-6113-3069-a903-a2561bb3f5bd")
FIVE = (
    "c-aa890978-37ef-5031-9f94-fe5026458243",
    "c-7bdbd341-1b51-c401-cf6d-216131fd740e",
    "c-c234cc3f-f56d-6d25-4cba-cdea0325125d",
    "c-fd6879c5-0a04-3310-1185-043df6902356",
    "c-a4714df7-9437-c0f9-edc4-37ddd54e8050",
)


def group_of(member_ids: Sequence[str], subscription: Subscription) -> ConsumerGroup:
    group = ConsumerGroup("g")
    group.apply(Record(Kind.MEMBER, member_id, subscription) for member_id in member_ids)
    return group


@pytest.mark.parametrize(("member_ids", "order"), [(TWO, (1, 0)), (FIVE, (1, 4, 3, 2, 0))])
def test_the_members_of_a_group_that_was_a_classic_one(member_ids: Sequence[str], order: Sequence[int]) -> None:
    group = group_of(member_ids, Subscription())
    group.begin_upgraded()
    assert [member.member_id for member in group.in_order()] == [member_ids[number] for number in order]
    group.apply([Record(Kind.MEMBER, "newcomer", Subscription())])
    known = [member.member_id for member in group.in_order("newcomer") if member.member_id != "newcomer"]
    assert known == [member_ids[number] for number in order]


def with_equal_hashes() -> list[tuple[str, str]]:
    """Pairs of names in one bucket of a set of them, in the order of the alphabet."""
    names = [f"topic-{number}" for number in range(100)]
    buckets: dict[int, list[str]] = {}
    for name in names:
        code = java_hash_code(name) & 0xFFFFFFFF
        buckets.setdefault((code ^ code >> 16) & 15, []).append(name)
    return [(min(each[:2]), max(each[:2])) for each in buckets.values() if len(each) > 1]


def topics_of(names: Sequence[str]) -> Any:
    """Topics of one partition, whose ids have equal hashes."""
    ids = {name: bytes(15) + bytes([1 + 16 * number]) for number, name in enumerate(names)}
    return SimpleNamespace(topic_id=ids.__getitem__, partition_count=lambda topic: 1)


@pytest.mark.parametrize("is_expression", [False, True])
def test_topics_with_equal_hashes_are_given_in_the_order_of_their_names(is_expression: bool) -> None:
    pairs = with_equal_hashes()
    assert len(pairs) > 10  # so many that no order comes about by chance
    for pair in pairs:
        subscription = Subscription(topic_regex="topic.*") if is_expression else Subscription(topic_names=pair)
        group = group_of(["one", "two"], subscription)
        group.apply([Record(Kind.REGEX, "topic.*", ResolvedRegex(frozenset(pair), 1, 0))])
        topics = topics_of(pair)
        targets = at_once(target.answer(target.ask(group, "uniform", None, None), topics))
        first = group.in_order()[0].member_id
        assert targets[first] == {topics.topic_id(pair[0]): frozenset([0])}


def test_a_set_that_is_made_of_twelve_is_larger_than_one_to_which_they_were_added() -> None:
    names = sorted(f"topic-{number * 7}" for number in range(12))
    added = in_java_order(names, java_hash_code)
    copied = at_once(in_java_order_by_pieces(names, java_hash_code, is_copy=True))
    assert added == at_once(in_java_order_by_pieces(names, java_hash_code))
    assert [names.index(name) for name in copied] == [9, 10, 0, 8, 5, 2, 11, 7, 4, 1, 6, 3]
    assert [names.index(name) for name in added] == [4, 1, 9, 6, 3, 10, 0, 8, 5, 2, 11, 7]
