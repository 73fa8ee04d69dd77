"""The hash of what a consumer group reads: the same whether it is computed anew, or from the one before."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer.topics import changed_hash, metadata_hash

HASHES = {"a": 2**63 - 1, "b": -(2**63), "c": 2**63 - 5, "d": -7, "none": 0}


@pytest.mark.parametrize("before", ["", "a", "ab", "acd", "abcd"])
@pytest.mark.parametrize("after", ["", "b", "bd", "ac", "abcd"])
def test_only_what_came_or_went_is_hashed(before: str, after: str) -> None:
    asked: list[str] = []

    def topic_hash(topic: str) -> int:
        asked.append(topic)
        return HASHES[topic]

    topics: Any = SimpleNamespace(topic_hash=topic_hash)
    old, new = frozenset(before), frozenset(after)
    known = metadata_hash(topics, old)
    asked.clear()
    found = changed_hash(topics, known, new - old, old - new)
    assert sorted(asked) == sorted(new ^ old)
    assert found == metadata_hash(topics, new)
    assert -(2**63) <= found < 2**63
