"""KIP-211 row by row, each limit at -1, 0, +1."""

import pytest
from barnabas.offsets.expiry import (
    SIMPLE,
    GroupSituation,
    Kept,
    expired_offsets,
    forecast,
    may_have_expired,
    warning_ms,
)
from barnabas.offsets.records import CommittedOffset

RETENTION = 1000
KEY = ("t", 0)


def is_expired(
    situation: GroupSituation, now: int, *, committed: int = 0, expires: int = -1, pending: bool = False
) -> bool:
    offsets = {KEY[0]: {KEY[1]: CommittedOffset(1, commit_timestamp=committed, expire_timestamp=expires)}}
    found = expired_offsets(situation, offsets, {KEY} if pending else (), now, RETENTION)
    assert found in ([], [KEY])
    return bool(found)


@pytest.mark.parametrize(("now", "expected"), [(999, False), (1000, True), (1001, True)])
def test_simple_group_counts_from_the_commit(now: int, expected: bool) -> None:
    assert is_expired(SIMPLE, now) is expected


@pytest.mark.parametrize(("now", "expected"), [(5999, False), (6000, True), (6001, True)])
def test_empty_group_counts_from_when_it_became_empty(now: int, expected: bool) -> None:
    situation = GroupSituation("consumer", True, False, 5000, frozenset())
    assert is_expired(situation, now) is expected


@pytest.mark.parametrize(("now", "expected"), [(999, False), (1000, True), (1001, True)])
def test_empty_group_of_unknown_time_counts_from_the_commit(now: int, expected: bool) -> None:
    assert is_expired(GroupSituation("connect", True, False, None, frozenset()), now) is expected


@pytest.mark.parametrize(("topics", "expected"), [(frozenset({"t"}), False), (frozenset({"u"}), True), (None, False)])
def test_stable_consumer_group_loses_what_it_does_not_read(topics: frozenset[str] | None, expected: bool) -> None:
    situation = GroupSituation("consumer", False, True, 0, topics)
    assert is_expired(situation, 1000) is expected
    assert not is_expired(situation, 999)


@pytest.mark.parametrize(
    "situation",
    [
        GroupSituation("consumer", False, False, 0, frozenset()),  # rebalancing
        GroupSituation("connect", False, True, 0, frozenset()),  # another protocol, with members
    ],
)
def test_others_never_expire(situation: GroupSituation) -> None:
    assert not is_expired(situation, 10**9)
    assert not is_expired(situation, 10**9, expires=5)


@pytest.mark.parametrize(("now", "expected"), [(4, False), (5, True), (6, True)])
def test_explicit_expiry_counts_instead(now: int, expected: bool) -> None:
    assert is_expired(SIMPLE, now, expires=5) is expected
    assert not is_expired(SIMPLE, 10**6, expires=10**6 + 1)


def test_pending_transactional_offsets_do_not_expire() -> None:
    assert not is_expired(SIMPLE, 10**9, pending=True)


@pytest.mark.parametrize(
    ("situation", "oldest", "now", "expected"),
    [
        (SIMPLE, 0, 999, False),
        (SIMPLE, 0, 1000, True),
        (GroupSituation("consumer", True, False, 5000, frozenset()), 0, 5999, False),
        (GroupSituation("consumer", True, False, 5000, frozenset()), 5500, 6000, True),
        (GroupSituation("consumer", False, False, 0, frozenset()), 0, 10**9, False),
        (GroupSituation("consumer", False, True, 0, frozenset({"t"})), 0, 1000, True),
    ],
)
def test_whether_any_may_have_expired(situation: GroupSituation, oldest: int, now: int, expected: bool) -> None:
    assert may_have_expired(situation, oldest, now, RETENTION) is expected
    assert expected or not is_expired(situation, now, committed=oldest)


def test_a_forecast_says_when_or_why_not() -> None:
    plain, explicit = (
        CommittedOffset(1, commit_timestamp=50),
        CommittedOffset(1, commit_timestamp=50, expire_timestamp=70),
    )
    empty = GroupSituation("consumer", True, False, 5000, frozenset())
    reads_t = GroupSituation("consumer", False, True, 0, frozenset({"t"}))
    assert forecast(SIMPLE, "t", plain, False, RETENTION) == 1050
    assert forecast(SIMPLE, "t", explicit, False, RETENTION) == 70
    assert forecast(empty, "t", plain, False, RETENTION) == 6000
    assert forecast(reads_t, "u", plain, False, RETENTION) == 1050
    assert forecast(reads_t, "t", plain, False, RETENTION) is Kept.MEMBERS
    assert forecast(None, "t", plain, False, RETENTION) is Kept.MEMBERS
    assert forecast(SIMPLE, "t", plain, True, RETENTION) is Kept.TRANSACTION


def test_a_warning_comes_a_day_before_or_a_seventh_of_the_retention_and_two_checks_at_least() -> None:
    hour = 3_600_000
    assert warning_ms(7 * 24 * hour, hour // 6) == 24 * hour
    assert warning_ms(70 * 24 * hour, hour // 6) == 24 * hour
    assert warning_ms(7 * hour, hour // 6) == hour
    assert warning_ms(hour, hour // 6) == 2 * (hour // 6)
    assert warning_ms(hour, hour) == hour
