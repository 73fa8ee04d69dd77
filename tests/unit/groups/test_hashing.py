"""Java's String.hashCode over known vectors, and the partition that follows."""

import sys

import pytest
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol.java_hash import java_hash_code

VECTORS = [
    ("", 0, 0),
    ("test", 3556498, 48),
    ("test-group", 627841412, 12),
    ("my-group", -1906497762, 12),
    ("général", -592135200, 0),
    ("组", 32452, 2),
    ("\U0001f600", 1772899, 49),
    ("polygenelubricants", -(2**31), 0),
]


@pytest.mark.parametrize(("text", "code", "partition"), VECTORS)
def test_vectors(text: str, code: int, partition: int) -> None:
    assert java_hash_code(text) == code
    assert partition_for(text, 50) == partition


def test_smallest_hash_is_partition_zero_for_any_count() -> None:
    assert {partition_for("polygenelubricants", count) for count in (1, 3, 7, 50)} == {0}


def test_a_lone_surrogate_is_hashed_and_not_refused() -> None:
    assert java_hash_code("\ud83d") == 0xD83D


def test_a_long_id_of_a_client_is_not_kept() -> None:
    text = "g" + "x" * 32_000
    before = sys.getrefcount(text)
    partition_for(text, 50)
    assert sys.getrefcount(text) == before
