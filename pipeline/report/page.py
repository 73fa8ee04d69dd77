"""The report as one page: everything is in it, no script runs in it, and it asks no network for anything.

It is read in light and dark, on a phone and on paper. Each chart has a text that says what it shows, and below it the
same numbers as a table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from barnabas.pipeline.jobs.health import BEHIND_S
from barnabas.pipeline.report import news
from barnabas.pipeline.report.charts import (
    Chart,
    amount,
    growth_chart,
    lag_chart,
    mover_chart,
    timeline_chart,
    topic_chart,
)
from barnabas.pipeline.report.figures import (
    Behind,
    Damage,
    Finding,
    GroupLag,
    Growth,
    LeaderChange,
    Move,
    Mover,
    Reset,
    Span,
    Stretch,
    Timeline,
    Top,
    Topic,
    Unwell,
)
from barnabas.pipeline.report.markup import Html, element, join, named, shown, visible
from barnabas.pipeline.report.news import place, who
from barnabas.pipeline.report.pieces import (
    details,
    duration,
    left_out,
    moment,
    picture,
    status_mark,
    table,
    time_text,
)
from barnabas.pipeline.report.statuses import STATUSES
from barnabas.pipeline.report.style import css
from barnabas.runtime.counted import counted

STRETCHES_MAX = 12  # of a group, in words
REASON_MAX = 500  # characters of why something is missing


@dataclass
class Report:
    """What is known. A part that is None is missing, and `missing` says why."""

    source: str
    made_at: datetime
    version: str
    read_at: str | None = None  # if the source was read before, by other runs
    span: Span | None = None
    groups_not_ok: tuple[int, int] | None = None  # at the end, and of how many
    behind: Top[Behind] | None = None
    jumps: Top[Move] | None = None
    leader_changes: Top[LeaderChange] | None = None
    unwell: Top[Unwell] | None = None
    lag: Top[GroupLag] | None = None
    timelines: Top[Timeline] | None = None
    movers: Top[Mover] | None = None
    findings: Top[Finding] | None = None
    moves: Top[Move] | None = None
    damage: Top[Damage] | None = None
    topics: Top[Topic] | None = None
    growth: list[Growth] = field(default_factory=list)
    full: str | None = None
    missing: dict[str, str] = field(default_factory=dict)  # by job: why
    notes: dict[str, str] = field(default_factory=dict)  # by job: what must be known of it


def charts_of(report: Report) -> Iterator[Chart]:
    """Every chart that there is something to draw in."""
    if report.span is not None:
        if report.lag is not None and report.lag.rows:
            yield lag_chart(report.lag.rows, report.span)
        if report.timelines is not None and report.timelines.rows:
            changes = report.leader_changes.rows if report.leader_changes else ()
            yield timeline_chart(report.timelines.rows, report.span, changes)
    if report.movers is not None and report.movers.rows:
        yield mover_chart(report.movers.rows)
    if report.topics is not None and report.topics.rows:
        yield topic_chart(report.topics.rows)
    if len({day for topic in report.growth for day in topic.bytes_on}) > 1:
        yield growth_chart(report.growth)


def page(report: Report) -> str:
    charts = {chart.name: chart for chart in charts_of(report)}
    sections = [
        _section(
            "unwell", "Not well at the end", "health", report, news.unwell(report.unwell) if report.unwell else None
        ),
        _section("events", "Events", "audit", report, news.events(report.jumps, report.leader_changes)),
        _section("lag", "Lag over time", "lag", report, _lag(report, charts)),
        _section("timelines", "What happened to each group", "health", report, _timelines(report, charts)),
        _section("movers", "Top movers", "lag", report, _movers(report, charts)),
        _section("audit", "Audit of commits", "audit", report, _findings(report)),
        _section("verify", "Are the logs whole?", "verify", report, _damage(report)),
        _section("capacity", "Capacity", "capacity", report, _capacity(report, charts)),
    ]
    title = f"Consumer groups: {visible(report.source)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        # Whatever a name may hold: nothing runs, and nothing is fetched.
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'",
        ),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Html(css())),
    )
    body = element("body", element("main", _top(report), *sections, _foot()))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


# ------------------------------------------------------------ the parts


def _top(report: Report) -> Html:
    behind = None if report.behind is None else news.furthest_behind(report.behind)
    tiles = []
    if report.groups_not_ok is not None:
        tiles.append(_tile("{:,} of {:,}".format(*report.groups_not_ok), "groups not well at the end"))
    if report.lag is not None and report.lag.rows:
        worst = report.lag.rows[0]
        tiles.append(_tile(f"{worst.records_max:,}", join("records: the largest lag, of ", named(worst.group))))
    if report.findings is not None:
        number, _, noun = counted(_count(report.findings), "finding").partition(" ")
        tiles.append(_tile(number, f"{noun} in commits, by group and kind"))
    if report.damage is not None:
        number, _, noun = counted(_count(report.damage), "kind").partition(" ")
        tiles.append(_tile(number, f"{noun} of damage to logs"))
    if report.topics is not None:
        total = sum(topic.size_bytes for topic in report.topics.rows)
        tiles.append(_tile(f"{amount(total)}B", "in the topics below, of one replica"))
    span = "nothing was there to read"
    if report.span is not None:
        span = f"{time_text(report.span.first_ms)} to {time_text(report.span.last_ms)}"
    facts = [
        ("Source", element("bdi", visible(report.source, 300))),
        ("Time span", span),
        ("Time zone", "all times are UTC"),
        ("Made", f"{report.made_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} by Barnabas {report.version}"),
    ]
    if report.read_at:
        facts.insert(1, ("Read", report.read_at))
    return element(
        "header",
        element("h1", "Consumer groups, topics and logs"),
        _section("behind", "Furthest behind now", "lag", report, behind),
        news.skipped(report.jumps),
        element("div", *tiles, class_="tiles") if tiles else None,
        element("dl", *(join(element("dt", name), element("dd", what)) for name, what in facts)),
        _missing(report),
    )


def _missing(report: Report) -> Html | None:
    if not report.missing:
        return None
    rows = [element("li", element("b", name), f": {visible(why, REASON_MAX)}") for name, why in report.missing.items()]
    return element("div", element("h2", "What is missing"), element("ul", *rows), class_="missing", role="note")


def _tile(number: str, what: object) -> Html:
    return element("p", element("b", number), " ", element("span", what))


def _section(name: str, title: str, job: str, report: Report, content: Html | None) -> Html:
    """A part of the page, which shows what `job` has found."""
    note = report.notes.get(job)
    if content is None:
        why = report.missing.get(job, "nothing was there to read")
        content = element("p", f"Missing: {visible(why, REASON_MAX)}.", class_="soft")
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        element("p", note, class_="note") if note else None,
        content,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def _lag(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.lag is None:
        return None
    if "lag" not in charts:
        return element("p", "No group was behind.")
    assert report.span is not None
    rows = [
        (
            named(one.group),
            f"{one.records_max:,}",
            moment(max(at for at, records in one.records_at.items() if records == one.records_max)),
            "–" if one.records_end is None else f"{one.records_end:,}",
            "–" if one.seconds_max is None else duration(one.seconds_max * 1000),
        )
        for one in report.lag.rows
    ]
    columns = ("Group", "#Largest lag", "In the time from", "#Lag at the end", "#Most behind")
    most = f"the largest number in each {duration(report.span.bucket_ms)}"
    return join(
        element("p", f"Unread records of all partitions of a group: {most}. Each group has its own scale."),
        picture(charts["lag"], f"Lag over time of {counted(len(rows), 'group')}; the table below has their numbers."),
        left_out(report.lag, "groups with a smaller lag, or none"),
        details("The numbers", table(columns, rows, "Lag of groups")),
    )


def _timelines(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.timelines is None:
        return None
    if "timelines" not in charts:
        return element("p", "There are no groups.")
    statuses = {stretch.status for one in report.timelines.rows for stretch in one.stretches}
    keys = [
        element("li", status_mark(name), f" {status.meaning}") for name, status in STATUSES.items() if name in statuses
    ]
    keys.append(element("li", element("b", "◀ ▶"), " offsets were set back, or forward over unread records"))
    keys.append(element("li", element("b", "❘"), " rebalances, longer where there are more"))
    changes = report.leader_changes.rows if report.leader_changes else []
    if changes:
        keys.append(element("li", element("b", "┊"), " partitions got other leaders: ", *_changes(changes)))
    rows = [
        (
            named(one.group),
            _first(map(_stretch, one.stretches)) if one.stretches else _well(one),
            f"{sum(one.rebalances_at.values()):,}" if "generations" not in report.missing else "–",
            _first(map(_reset, one.resets)) if one.resets else "–",
        )
        for one in report.timelines.rows
    ]
    columns = ("Group", "Not well", "#Rebalances", "Offsets were set")
    return join(
        element("p", "A bar is higher the worse it is. No bar: all was well."),
        element("ul", *keys, class_="keys"),
        picture(
            charts["timelines"], f"Timelines of {counted(len(rows), 'group')}; the table below says the same in words."
        ),
        left_out(report.timelines, "groups to which less happened"),
        details("The same in words", table(columns, rows, "What happened to each group")),
    )


def _well(one: Timeline) -> str:
    """A table of `health` that an earlier version has written, or another one than that of `lag`, knows no BEHIND."""
    if one.seconds_max is None or one.seconds_max <= BEHIND_S:
        return "always OK"
    return f"it read steadily, up to {duration(one.seconds_max * 1000)} behind"


def _first(rows: Iterable[Html]) -> Html:
    """The first ones, and how many more there are."""
    found = list(rows)
    left = len(found) - STRETCHES_MAX
    more = element("div", f"and {left:,} more", class_="soft") if left > 0 else None
    return join(*found[:STRETCHES_MAX], more)


def _stretch(one: Stretch) -> Html:
    return element("div", status_mark(one.status), f" {time_text(one.from_ms)} to {time_text(one.until_ms)}")


def _changes(changes: Sequence[LeaderChange]) -> Iterator[object]:
    for number, one in enumerate(sorted(changes, key=lambda one: one.from_ms)[:STRETCHES_MAX]):
        yield from (", " if number else "", f"{one.partitions:,} at ", moment(one.from_ms))


def _reset(one: Reset) -> Html:
    way = "back" if one.finding == "jumped back" else "forward"
    return element("div", f"{way} by {one.records:,} at {time_text(one.at_ms)}")


def _movers(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.movers is None:
        return None
    if "movers" not in charts:
        return element("p", "No lag has changed from one hour to the next.")
    rows = [
        (
            named(one.group),
            named(one.topic),
            f"{one.after - one.before:+,}",
            f"{one.before:,}",
            f"{one.after:,}",
            moment(one.at_ms),
        )
        for one in report.movers.rows
    ]
    columns = ("Group", "Topic", "#Change", "#Lag before", "#Lag after", "Until")
    return join(
        element("p", "The largest change of the lag of each group and topic from one hour to the next, in records."),
        picture(
            charts["movers"], f"Changes of the lag of {counted(len(rows), 'group')}; the table below has their numbers."
        ),
        left_out(report.movers, "groups and topics that moved less"),
        details("The numbers", table(columns, rows, "Largest changes of lags")),
    )


def _findings(report: Report) -> Html | None:
    if report.findings is None:
        return None
    if not report.findings.rows:
        return element("p", "Nothing was found: no offset jumped, and no commit was one that should not be.")
    rows = [
        (named(one.group), one.finding, f"{one.times:,}", f"{one.records:,}", moment(one.last_ms))
        for one in report.findings.rows
    ]
    columns = ("Group", "Finding", "#Times", "#Records", "Last")
    return join(
        table(columns, rows, "What the audit has found"), left_out(report.findings, "rows"), *_moves(report.moves)
    )


def _moves(moves: Top[Move] | None) -> Iterator[Html | None]:
    """Who moved what from where: what the offset journal says."""
    if moves is None or not moves.rows:
        return
    rows = [
        (
            named(one.group),
            place(one),
            join(*_way(one)),
            one.cause or "–",
            join(*who(one)),
            moment(one.at_ms),
        )
        for one in moves.rows
    ]
    yield element("h3", "Who moved offsets")
    yield table(("Group", "Topic", "From and to", "Cause", "By", "At"), rows, "Who moved offsets")
    yield left_out(moves, "earlier ones")


def _way(one: Move) -> Iterator[object]:
    """From where to where; of several partitions the first, and how many records in all."""
    before, after = ("none" if offset is None else f"{offset:,}" for offset in (one.from_offset, one.to_offset))
    yield f"{before} → {after}"
    if one.partitions > 1:
        yield f" in partition {one.partition}"
    if one.records:
        yield f"; {counted(one.records, 'record')}"


def _damage(report: Report) -> Html | None:
    if report.damage is None:
        return None
    if not report.damage.rows:
        return element("p", "Yes: nothing is wrong with batches, offsets, indexes and replicas.")
    rows = [
        (
            one.finding,
            join(named(one.topic), f"-{one.partition}"),
            f"{one.places:,}",
            "–" if one.first_offset is None else f"{one.first_offset:,}",
            "–" if one.directory is None else shown(one.directory, 120),
            shown(one.detail or "–", 200),
        )
        for one in report.damage.rows
    ]
    columns = ("Finding", "Log", "#Places", "#First offset", "Directory", "The first one")
    return join(element("p", "No."), table(columns, rows, "Damage to logs"), left_out(report.damage, "rows"))


def _capacity(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.topics is None:
        return None
    if "topics" not in charts:
        return element("p", "There are no records.")
    rows = [
        [
            named(one.topic),
            f"{one.partitions:,}",
            f"{one.records:,}",
            f"{amount(one.size_bytes)}B",
            "–" if one.bytes_per_day is None else f"{amount(one.bytes_per_day)}B",
            f"{one.largest_share:.2f} ×",
            "–" if one.retention_takes_bytes is None else f"{amount(one.retention_takes_bytes)}B",
        ]
        for one in report.topics.rows
    ]
    columns = ["Topic", "#Partitions", "#Records", "#Size", "#A day", "#Largest partition", "#Retention takes"]
    if all(one.retention_takes_bytes is None for one in report.topics.rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    parts = [
        element("p", "Sizes are of one replica. Largest partition: its share, as a multiple of an even one."),
        element("p", report.full) if report.full else None,
        picture(charts["topics"], f"Sizes of {counted(len(rows), 'topic')}; the table below has their numbers."),
    ]
    if "growth" in charts:
        text = f"Bytes written by day to {counted(len(report.growth), 'topic')}."
        parts += [element("h3", "Written by day"), picture(charts["growth"], text), _growth_numbers(report.growth)]
    others = left_out(report.topics, "smaller topics")
    return join(*parts, others, details("The numbers", table(columns, rows, "Sizes of topics")))


def _growth_numbers(topics: Sequence[Growth]) -> Html:
    days = sorted({day for topic in topics for day in topic.bytes_on})
    names = ["others" if topic.topic is None else visible(topic.topic, 28) for topic in topics]
    rows = [
        (
            time_text(day)[:10],
            *(f"{amount(topic.bytes_on[day])}B" if day in topic.bytes_on else "–" for topic in topics),
        )
        for day in days
    ]
    return details("Day by day", table(("Day", *(f"#{name}" for name in names)), rows, "Bytes by day"))


def _foot() -> Html:
    return element(
        "footer",
        element("p", "Lags come from commits and from the times of records; a broker may know later ones. "),
        element("p", "What each number means: ", element("code", "pipeline/jobs/"), " in Barnabas."),
    )


def _count(top: Top[Any]) -> int:
    return len(top.rows) + top.left_out
