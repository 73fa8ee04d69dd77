"""The assignors give what Kafka's give: answers of Apache Kafka 4.3.1's classes to a thousand random questions."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer.assignors import ASSIGNORS, Assignable, AssignableMember
from barnabas.runtime.turns import at_once

GOLDEN = Path(__file__).parents[2] / "golden" / "assignor-answers.jsonl.gz"
CASES = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


def topic_id(number: int) -> bytes:
    """The ids of the recording: spread, so that the order of Kafka's hash tables is not that of the numbers."""
    high = 0x9E3779B97F4A7C15 * number % 2**64
    return (high ^ (high >> 29)).to_bytes(8, "big") + (number * 0xD1B54A32D192ED03 % 2**64).to_bytes(8, "big")


def assigned(case: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
    numbers = {topic_id(number): str(number) for number, _ in case["topics"]}
    members = [
        AssignableMember(
            member_id,
            instance_id,
            tuple(map(topic_id, topics)),
            {topic_id(number): frozenset(partitions) for number, partitions in owned},
        )
        for member_id, instance_id, topics, owned in case["members"]
    ]
    group = Assignable(members, {topic_id(number): count for number, count in case["topics"]}, case["homogeneous"])
    targets = at_once(ASSIGNORS[case["assignor"]](group))
    return {
        member_id: {numbers[topic]: sorted(partitions) for topic, partitions in target.items()}
        for member_id, target in targets.items()
    }


@pytest.mark.parametrize("part", range(10))
def test_the_answers_are_kafkas(part: int) -> None:
    assert len(CASES) == 1000
    for case in CASES[part::10]:
        assert assigned(case) == case["targets"]


def test_all_partitions_go_to_those_who_read_them_and_none_twice() -> None:
    for case in CASES:
        targets = assigned(case)
        reads = {member_id: set(map(str, topics)) for member_id, _, topics, _ in case["members"]}
        seen = [
            (topic, partition)
            for member_id, target in targets.items()
            for topic, partitions in target.items()
            for partition in partitions
            if topic in reads[member_id]
        ]
        wanted = {
            (str(number), partition)
            for number, count in case["topics"]
            for partition in range(count)
            if any(str(number) in topics for topics in reads.values())
        }
        assert len(seen) == len(set(seen))
        assert set(seen) == wanted


def test_a_large_group_is_assigned_evenly_and_keeps_what_it_had() -> None:
    topics = [topic_id(1), topic_id(2)]
    counts = {topics[0]: 1_500, topics[1]: 507}
    before: dict[str, Any] = {}
    for size in (1_000, 1_001, 999):
        members = [
            AssignableMember(f"m{number}", None, tuple(topics), before.get(f"m{number}", {})) for number in range(size)
        ]
        targets = at_once(ASSIGNORS["uniform"](Assignable(members, counts, True)))
        sizes = {sum(map(len, target.values())) for target in targets.values()}
        assert max(sizes) - min(sizes) <= 1
        if before:
            moved = sum(
                len(target.get(topic, frozenset()) - before.get(member_id, {}).get(topic, frozenset()))
                for member_id, target in targets.items()
                for topic in topics
            )
            assert moved <= 10
        before = dict(targets)
