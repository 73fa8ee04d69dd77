"""Where a group was at a time, as its journal says, and what was done to it."""

import random

import pytest
from barnabas.offsets.journal import NO_OFFSET, NOT_KNOWN, Cause, Changes, Gap, Row
from barnabas.offsets.journal_history import (
    NOWHERE,
    UNKNOWN,
    Position,
    Positions,
    before,
    clock_set_back,
    lacking,
    last_operation,
    positions_at,
)
from barnabas.offsets.records import NO_TOPIC_ID
from simulator.journal_inspection import fold

KEY = ("t", 0)


def change(
    time_ms: int, old: int, new: int, cause: Cause = Cause.COMMIT, partition: int = 0, client: str = "app"
) -> Changes:
    row = Row("t", NO_TOPIC_ID, partition, old, -1, "", new, -1, "")
    return Changes("g", time_ms, time_ms, cause, -1, client, "/h", "P", "", [row])


def gap(first_ms: int, last_ms: int) -> Gap:
    return Gap(first_ms, last_ms, first_ms, last_ms, 3, "why")


def at(records: list[Changes | Gap], time_ms: int, now: int) -> int:
    return positions_at(records, time_ms, {} if now == NO_OFFSET else {KEY: Position(now)})[KEY].offset


def test_between_two_changes() -> None:
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), change(20, 1, 2), change(30, 2, NO_OFFSET)]
    assert [at(records, time_ms, NO_OFFSET) for time_ms in (5, 10, 15, 20, 29, 30, 40)] == [-1, 1, 1, 2, 2, -1, -1]


def test_the_records_since_then_are_enough() -> None:
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), change(20, 1, 2), change(30, 2, 3)]
    for time_ms in (5, 10, 20, 25, 30, 40):
        assert at(records, time_ms, 3) == at([r for r in records if r.end_position > time_ms], time_ms, 3)


def test_without_later_changes_it_is_where_it_is_now() -> None:
    assert positions_at([], 10, {KEY: Position(7)}) == {KEY: Position(7)}


def test_an_old_offset_that_is_not_known_is_that_of_the_change_before() -> None:
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), change(30, NOT_KNOWN, 3)]
    assert at(records, 20, 3) == 1
    assert at(records[1:], 20, 3) == NOT_KNOWN


@pytest.mark.parametrize(("time_ms", "offset"), [(12, 1), (22, NOT_KNOWN), (27, NOT_KNOWN), (35, 5), (41, 6)])
def test_a_gap_hides_what_cannot_be_known(time_ms: int, offset: int) -> None:
    """It lasts from 20 to 30: before it the change at 10 says it, after it the change at 40."""
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), gap(20, 30), change(40, 5, 6)]
    assert at(records, time_ms, 6) == offset


def test_a_gap_without_later_changes() -> None:
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), gap(20, 30)]
    assert at(records, 15, 9) == 1
    assert at(records, 25, 9) == NOT_KNOWN
    assert at(records, 35, 9) == 9


@pytest.mark.parametrize(("time_ms", "offset"), [(5, -1), (12, 1), (22, NOT_KNOWN), (35, 5)])
def test_a_gap_of_which_nobody_knows_when_it_began(time_ms: int, offset: int) -> None:
    """Until 2026-11-30 it hid everything that was written ahead of it."""
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 1), change(15, NOT_KNOWN, 2), gap(0, 30), change(40, 5, 6)]
    assert at(records, time_ms, 6) == offset


@pytest.mark.parametrize("seed", range(20))
def test_every_time_of_a_random_history(seed: int) -> None:
    """With any part of the records that reaches back far enough, each moment is found or said to be unknown."""
    chance = random.Random(seed)
    now: Positions = {}
    truth: list[Positions] = [{}]
    records: list[Changes | Gap] = []
    lost: list[int] = []
    for time_ms in range(1, 60):
        partition = chance.randrange(3)
        key = ("t", partition)
        old = now.get(key, NOWHERE).offset
        new = chance.choice([NO_OFFSET, time_ms])
        if new == NO_OFFSET:
            now.pop(key, None)
        else:
            now[key] = Position(new)
        truth.append(dict(now))
        if chance.randrange(8) == 0:
            lost.append(time_ms)
            continue
        if lost:
            first_ms = chance.choice([0, lost[0]])
            records.append(Gap(lost[0], lost[-1] + 1, first_ms, lost[-1], len(lost), "lost"))
            lost.clear()
        is_recovered = chance.randrange(6) == 0
        cause = Cause.RECOVERED if is_recovered else Cause.COMMIT
        records.append(change(time_ms, NOT_KNOWN if is_recovered else old, new, cause, partition))
    if lost:
        records.append(Gap(lost[0], lost[-1] + 1, lost[0], lost[-1], len(lost), "lost"))
    known = 0
    for time_ms, expected in enumerate(truth):
        since = [r for r in records if (r.last_ms if isinstance(r, Gap) else r.time_ms) > time_ms]
        for part in (records, since):
            for key, position in positions_at(part, time_ms, now).items():
                if position != UNKNOWN:
                    known += 1
                    assert position == expected.get(key, NOWHERE), (time_ms, key)
    assert known > 100
    if not any(isinstance(record, Gap) for record in records):
        assert fold(records).get("g", {}) == now


@pytest.mark.parametrize("wrong_ms", [-5_000, 5_000_000])
def test_a_clock_that_was_wrong_for_a_while_misleads_nobody(wrong_ms: int) -> None:
    """The order of the records is right, and most of their times are."""
    times = [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    for wrong in range(1, 5):
        told = [wrong_ms if number == wrong else time_ms for number, time_ms in enumerate(times)]
        records = [change(time_ms, number or NO_OFFSET, number + 1) for number, time_ms in enumerate(told)]
        now = {KEY: Position(len(times))}
        for number, time_ms in enumerate(times):
            if number not in (wrong - 1, wrong):  # between them only the wrong clock knows
                assert positions_at(records, time_ms + 1, now)[KEY].offset == number + 1, (wrong, number)
        assert clock_set_back(records) is not None
    assert clock_set_back([change(10_000, 1, 2), change(9_900, 2, 3), change(10_000, 3, 4)]) is None


@pytest.mark.parametrize(
    ("records", "now", "is_lacking", "is_lacking_of_members"),
    [
        ([change(10, NO_OFFSET, 1), change(20, 1, 2)], 2, False, False),
        ([change(10, NO_OFFSET, 1), change(20, 1, 2)], 1, True, False),  # a member has committed since
        ([change(10, NO_OFFSET, 1), change(20, 1, 2)], 3, True, True),
        ([change(10, 0, 1), change(20, 1, 2)], 0, True, False),
        ([change(10, 0, 1), change(20, 1, 2)], NO_OFFSET, True, True),
        ([change(10, 1, NO_OFFSET)], NO_OFFSET, False, False),
        ([change(10, NO_OFFSET, 1), gap(10, 20)], 3, False, False),  # the gap says it
        ([], 3, False, False),
    ],
)
def test_a_journal_that_lacks_the_last_change(
    records: list[Changes | Gap], now: int, is_lacking: bool, is_lacking_of_members: bool
) -> None:
    where = {} if now == NO_OFFSET else {KEY: Position(now)}
    assert lacking(records, where, may_move=False) == [KEY] * is_lacking
    assert lacking(records, where, may_move=True) == [KEY] * is_lacking_of_members


def test_the_last_operation_is_no_commit_of_a_consumer() -> None:
    reset = change(20, 1, 0, Cause.RESET)
    records = [change(10, NO_OFFSET, 1), reset, change(30, 0, 2), change(31, NOT_KNOWN, 3, Cause.RECOVERED)]
    last = last_operation(records)
    assert last is not None
    assert last.records == [reset]
    assert before(last, records) == {KEY: Position(1)}
    assert last_operation([records[0]]) is None


def test_records_of_one_command_belong_together() -> None:
    records = [
        change(10, 5, 6, Cause.RESET),
        change(3_000, 6, 0, Cause.RESET),
        change(3_010, 7, NO_OFFSET, Cause.DELETION, 1),
        change(3_020, 9, 8, Cause.RESET, 2),
    ]
    last = last_operation(records)
    assert last is not None
    assert before(last, records) == {("t", 0): Position(6), ("t", 1): Position(7), ("t", 2): Position(9)}
    by_two = [*records, change(3_030, 8, 1, Cause.RESET, 2, client="another")]
    again = last_operation(by_two)
    assert again is not None
    assert len(again.records) == 1


def test_an_operation_whose_old_offset_is_not_known() -> None:
    records: list[Changes | Gap] = [change(10, NO_OFFSET, 4), change(20, NOT_KNOWN, 0, Cause.LIVE_RESET)]
    last = last_operation(records)
    assert last is not None
    assert before(last, records) == {KEY: Position(4)}
    assert before(last, [records[0], gap(12, 13), records[1]]) == {KEY: UNKNOWN}
    assert before(last, records[1:]) == {KEY: UNKNOWN}
