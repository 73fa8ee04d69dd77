"""What `barnabas groups lag` prints: pure functions over the answers of brokers."""

from typing import Any

import pytest
from barnabas.cli.lag import GroupLag, cells, duration, headline, joined, note, rate_line, records, screen, size
from barnabas.cli.plot import column_values, plot
from barnabas.offsets.lag import READ_UNCOMMITTED, IsolationLag, PartitionLag, Status, with_answers
from barnabas.offsets.lag_history import Point, Rates

NOW_MS = 1_700_000_000_000
NO_ID = bytes(16)


def row(partition: int = 0, status: Status = Status.OK, lag: IsolationLag | None = None, **fields: Any) -> PartitionLag:
    return PartitionLag("orders", partition, 100, 3, NO_ID, status, read_uncommitted=lag, **fields)


def group(*rows: PartitionLag, history: list[Point] | None = None, **fields: Any) -> GroupLag:
    document = {
        "group": "billing",
        "state": "Stable",
        "members": 2,
        "time_ms": NOW_MS,
        "consumed_per_second": 5.0,
        "produced_per_second": 2.5,
        "catch_up_seconds": 62.0,
    }
    return GroupLag(document | fields, list(rows), history or [])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0 s"),
        (0.44, "0.4 s"),
        (59.6, "1 min"),
        (3_725, "1 h 2 min"),
        (90_061, "1 d 1 h"),
        (86_405, "1 d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_bound_is_shown_as_one() -> None:
    assert records(1_234, 1_234) == "1,234"
    assert records(1_234, 5) == "≤ 1,234"
    assert [size(count) for count in (0, 1_023, 2_048, 5 << 30)] == ["0 B", "1023 B", "2.0 KiB", "5.0 GiB"]


def test_the_headline_says_what_is_not_known() -> None:
    found = group(row(0, lag=IsolationLag(10, 10, 500, 4.0)), row(1, Status.NO_LEADER))
    text = "billing  Stable, 2 members: 10 records, 500 B, 4 s behind; of 1 partition it is not known"
    assert headline(found, READ_UNCOMMITTED) == text
    assert headline(group(), READ_UNCOMMITTED) == "billing  Stable, 2 members, nothing is committed"
    assert "records, 0 B" in headline(group(row(lag=IsolationLag(0, 0, 0, 0.0))), READ_UNCOMMITTED)


def test_rates() -> None:
    assert rate_line(Rates(None, None, None)) == ""
    assert rate_line(Rates(5.0, 2.5, 62.0)) == "reads 5.0 records/s, 2.5 are written: caught up in 1 min 2 s"
    assert rate_line(Rates(1.0, 2.5, None)).endswith("it does not catch up")
    assert rate_line(Rates(2.5, 2.5, 0.0)) == "reads 2.5 records/s, 2.5 are written"


def test_every_status_has_words() -> None:
    for status in Status:
        text = note(
            row(status=status, lost_records_max=7, error="BROKEN", leader=3, cut_at=1, log_end_offset=2), NOW_MS
        )
        assert bool(text) is (status is not Status.OK)


def test_a_row_says_when_retention_takes_the_next_record() -> None:
    lag = IsolationLag(10, 10, 500, None)
    assert note(row(lag=lag, goes_ms=NOW_MS + 3_600_000), NOW_MS) == "retention takes the next record in 1 h"
    assert note(row(lag=lag, goes_ms=NOW_MS - 5), NOW_MS) == "retention takes the next record now"
    assert note(row(lag=lag, goes_ms=NOW_MS + 90_000_000), NOW_MS) == ""
    waiting = row(lag=lag, goes_ms=NOW_MS - 5, held_until_ms=NOW_MS + 7_200_000)
    assert note(waiting, NOW_MS) == "retention waits, 2 h more at most"
    assert "retention.bytes" in note(row(lag=lag, goes_after_bytes=0), NOW_MS)
    assert cells(row(lag=lag), READ_UNCOMMITTED, NOW_MS)[4:7] == ("10", "500 B", "?")
    assert cells(row(status=Status.PAST_LOG_END), READ_UNCOMMITTED, NOW_MS)[4:7] == ("?", "?", "?")


def test_answers_of_leaders_replace_only_what_was_asked_elsewhere() -> None:
    rows = [row(0, lag=IsolationLag(1, 1, 1, 1.0)), row(1, Status.OTHER_LEADER), row(2, Status.OTHER_LEADER)]
    answers = [row(0, Status.UNKNOWN), row(1, lag=IsolationLag(2, 2, 2, 2.0))]
    assert [each.status for each in with_answers(rows, answers)] == [Status.OK, Status.OK, Status.OTHER_LEADER]


def test_the_watch_shows_the_history_of_the_broker_and_then_its_own() -> None:
    history = [Point(NOW_MS - 60_000, 5, 1, 1), Point(NOW_MS - 1_000, 9, 2, 1)]
    own = [Point(NOW_MS - 3_000, 7, 1, 1), Point(NOW_MS, 8, 3, 1)]
    assert [point.records for point in joined(history, own)] == [5, 7, 8]


def test_the_screen_fits_the_terminal() -> None:
    rows = [row(number, lag=IsolationLag(number, number, 10, 1.0)) for number in range(100)]
    points = [Point(NOW_MS - 1_000 * age, 100 - age, 0, 1) for age in range(90, -1, -1)]
    lines = screen(group(*rows), points, READ_UNCOMMITTED, 1.0, 60, 30)
    assert len(lines) <= 29
    assert lines[-1].startswith("… and ")
    assert any(line.startswith("orders         99") for line in lines), "those most behind come first"
    plotted = lines[3:9]
    assert max(map(len, plotted)) == 60
    assert "0 to 100 records" in lines[9]
    assert lines[9].endswith("now")


def test_a_plot_holds_each_value_until_the_next_one() -> None:
    assert column_values([(0, 1), (50, 3)], begin=0, end=100, width=4) == [1, 1, 3, 3]
    assert column_values([(0, 1), (90, 0)], begin=50, end=100, width=5) == [1, 1, 1, 1, 0]
    assert column_values([(60, 2)], begin=0, end=100, width=5) == [None, None, None, 2, 2]
    assert column_values([], begin=0, end=100, width=2) == [None, None]
    assert column_values([(0, 1)], begin=5, end=5, width=2) == [None, None]


def test_a_plot_is_made_of_blocks() -> None:
    points = [(0.0, 0.0), (25.0, 8.0), (50.0, 16.0), (75.0, 4.0)]
    assert plot(points, begin=0, end=100, width=4, height=2) == ["  █ ", "▁██▄"]
    assert plot([(0.0, 0.0)], begin=0, end=9, width=3, height=2) == ["   ", "▁▁▁"]
