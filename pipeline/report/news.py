"""The first parts of the page: who is behind now, what was skipped, what happened, and who is not well."""

from collections.abc import Iterator
from datetime import UTC, datetime

from barnabas.pipeline.report.figures import HOUR_MS, MINUTE_MS, Behind, LeaderChange, Move, Top, Unwell
from barnabas.pipeline.report.markup import Html, element, join, named
from barnabas.pipeline.report.pieces import (
    YEAR_10000_MS,
    command,
    duration,
    left_out,
    moment,
    status_mark,
    table,
    time_text,
)
from barnabas.pipeline.report.statuses import STATUSES
from barnabas.runtime.counted import counted

NOT_KNOWN = "–"


def furthest_behind(behind: Top[Behind]) -> Html:
    """Who is furthest behind in the last window, and whether it grows."""
    if not behind.rows:
        return element("p", "No group is behind.")
    worst = behind.rows[0]
    rows = [
        (
            named(one.group),
            named(one.topic),
            _behind(one.seconds),
            f"{one.records:,}",
            _trend(one),
            command("groups", "lag", "--watch", of=one.group) or NOT_KNOWN,
        )
        for one in behind.rows
    ]
    return join(
        element(
            "p",
            *(element("b", named(worst.group)), " is ", element("b", _behind(worst.seconds)), " behind on "),
            *(named(worst.topic), f", {counted(worst.records, 'record')}. Against an hour earlier: {_trend(worst)}."),
            class_="first",
        ),
        element("p", f"At {time_text(worst.at_ms)}, the end of what was read; the oldest unread record first."),
        table(("Group", "Topic", "#Behind", "#Records", "Against an hour earlier", "Next"), rows, "Who is behind now"),
        left_out(behind, "groups and topics that are less behind"),
    )


def _behind(seconds: float | None) -> str:
    return "not known how long" if seconds is None else duration(seconds * 1000)


def _trend(one: Behind) -> str:
    """Whether it grows: in time, and where that says nothing, in records."""
    if one.records_before is None:
        return "it had no committed offset then"
    records = one.records - one.records_before
    of_records = f"{'+' * (records >= 0)}{counted(records, 'record')}"
    if one.seconds is None or one.seconds_before is None:
        return of_records
    change_ms = (one.seconds - one.seconds_before) * 1000
    if abs(change_ms) < MINUTE_MS:
        return f"as far behind, {of_records}"
    return f"{'grows' if change_ms > 0 else 'shrinks'} by {duration(abs(change_ms))}, {of_records}"


def skipped(jumps: Top[Move] | None) -> Html | None:
    """The alarm: records that a group passed over without having read them."""
    rows = [one for one in jumps.rows if one.finding == "skipped" and one.records] if jumps else []
    if not rows:
        return None
    cells = [
        (
            named(one.group),
            place(one),
            f"{one.records:,}",
            time_text(one.at_ms),
            join(*who(one)),
            join(*_way_back(one)),
        )
        for one in rows
    ]
    columns = ("Group", "Topic", "#Never read", "At", "By", "Next")
    count = sum(one.records for one in rows)
    return element(
        "div",
        element("h2", f"Unread records were skipped: {count:,}"),
        element("p", "An offset was set forward over them, so their group has not read them, and will not."),
        table(columns, cells, "Unread records that were skipped"),
        class_="alarm",
        role="note",
    )


def place(one: Move) -> Html:
    """The partition, or the topic and how many of its partitions."""
    return join(named(one.topic), f"-{one.partition}" if one.partitions == 1 else f", {one.partitions:,} partitions")


def _way_back(one: Move) -> Iterator[Html]:
    """How to look at it, and to where it was a second earlier; only the journal knows that."""
    if not HOUR_MS <= one.at_ms < YEAR_10000_MS:
        return
    before = f"{datetime.fromtimestamp(one.at_ms // 1000 - 1, UTC):%Y-%m-%dT%H:%M:%S}Z"
    ways = [command("offsets", "log", "--since", before, of=one.group)]
    if one.cause is not None:
        ways.append(command("offsets", "restore", "--at", before, of=one.group))
    yield from (element("div", way) for way in ways if way is not None)


def who(one: Move) -> Iterator[object]:
    """Who it was, as far as the journal knows."""
    if one.cause is None or one.cause == "recovered":
        yield "not known"
    elif one.client is None and one.principal is None:
        yield "the broker"
    for name, text in (("", one.client), ("at ", one.host), ("as ", one.principal), ("member ", one.member)):
        if text and one.cause != "recovered":
            yield element("div", name, named(text))


def events(jumps: Top[Move] | None, changes: Top[LeaderChange] | None) -> Html | None:
    """What happened, in its order: offsets that were moved, and brokers that led no more."""
    if jumps is None and changes is None:
        return None
    rows = [(one.at_ms, _jump(one)) for one in (jumps.rows if jumps else ())]
    rows += [(one.from_ms, _change(one)) for one in (changes.rows if changes else ())]
    if not rows:
        return element("p", "No offset jumped, and no partition got another leader.")
    cells = [(moment(at_ms), *words) for at_ms, words in sorted(rows, key=lambda row: row[0])]
    return join(
        table(("At", "What", "By", "Next"), cells, "What happened"),
        left_out(jumps, "jumps of offsets over fewer records") if jumps else None,
        left_out(changes, "changes of the leaders of fewer partitions") if changes else None,
    )


def _jump(one: Move) -> tuple[object, ...]:
    is_skip = one.finding == "skipped"
    what = join(
        *(named(one.group), " skipped " if is_skip else " went back ", f"{one.records:,} ", "unread " * is_skip),
        *("records of ", place(one)),
    )
    by = join(one.cause or "", element("div", *who(one)))
    ways = join(*_way_back(one)) if is_skip else command("offsets", "log", of=one.group)
    return element("b", what) if is_skip else what, by, ways or NOT_KNOWN


def _change(one: LeaderChange) -> tuple[object, ...]:
    what: list[object] = [f"{counted(one.partitions, 'partition')} got another leader"]
    if one.until_ms - one.from_ms >= MINUTE_MS:
        what += [", the last one at ", moment(one.until_ms)]
    by = "a broker that died or was stopped, or leaders were moved" if one.partitions > 1 else NOT_KNOWN
    return join(*what), by, element("code", "barnabas cluster")


def unwell(rows: Top[Unwell]) -> Html:
    """Who is not well at the end, with the lag and the next command."""
    if not rows.rows:
        return element("p", "Every group is well at the end.")
    cells = [
        (
            named(one.group),
            "all topics" if one.topic is None else named(one.topic),
            status_mark(one.status),
            f"{one.partitions:,}" if one.partitions else NOT_KNOWN,
            moment(one.since_ms),
            NOT_KNOWN if one.lag_records is None else f"{one.lag_records:,}",
            NOT_KNOWN if one.lag_seconds is None else duration(one.lag_seconds * 1000),
            command(*STATUSES[one.status].command, of=one.group) or NOT_KNOWN,
        )
        for one in rows.rows
    ]
    columns = ("Group", "Topic", "Status", "#Partitions", "Since", "#Lag", "#Behind", "Next")
    return join(table(columns, cells, "Groups that are not well at the end"), left_out(rows, "rows"))
