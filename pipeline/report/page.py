"""The report as one page: everything is in it, no script runs in it, and it asks no network for anything.

It is read in light and dark, on a phone and on paper. Each chart has a text that says what it shows, and below it the
same numbers as a table.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from barnabas.pipeline.report.charts import (
    COLOURS,
    DARK,
    LIGHT,
    NARROW,
    WIDE,
    Chart,
    amount,
    growth_chart,
    lag_chart,
    mover_chart,
    timeline_chart,
    topic_chart,
)
from barnabas.pipeline.report.figures import (
    DAY_MS,
    Damage,
    Finding,
    GroupLag,
    Growth,
    Move,
    Mover,
    Span,
    Timeline,
    Top,
    Topic,
    Unwell,
)
from barnabas.pipeline.report.markup import Html, element, join, named, visible

STRETCHES_MAX = 12  # of a group, in words
REASON_MAX = 500  # characters of why something is missing

MEANINGS = {
    "OK": "read well",
    "EXPIRES_SOON": "the broker will remove the offset soon",
    "WARN": "is read, but falls further behind",
    "REWIND": "an offset went back",
    "STORM": "rebalances all the time",
    "NEVER": "has members, and never committed",
    "REMOVED": "has no committed offset any more",
    "STALL": "commits, but always the same offset",
    "STOP": "does not commit any more",
}

Cell = object
Rows = Sequence[Sequence[Cell]]


@dataclass
class Report:
    """What is known. A part that is None is missing, and `missing` says why."""

    source: str
    made_at: datetime
    version: str
    read_at: str | None = None  # if the source was read before, by other runs
    span: Span | None = None
    groups_not_ok: int | None = None
    groups: int | None = None
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
            yield timeline_chart(report.timelines.rows, report.span)
    if report.movers is not None and report.movers.rows:
        yield mover_chart(report.movers.rows)
    if report.topics is not None and report.topics.rows:
        yield topic_chart(report.topics.rows)
    if len({day for topic in report.growth for day in topic.bytes_on}) > 1:
        yield growth_chart(report.growth)


def page(report: Report) -> str:
    """The whole page."""
    charts = {chart.name: chart for chart in charts_of(report)}
    sections = [
        _section("unwell", "Not well at the end", "health", report, _unwell(report)),
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
        element("style", Html(_css())),
    )
    body = element("body", element("main", _top(report), *sections, _foot(report)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


# ------------------------------------------------------------ the parts


def _top(report: Report) -> Html:
    tiles = []
    if report.groups is not None and report.groups_not_ok is not None:
        tiles.append(_tile(f"{report.groups_not_ok:,} of {report.groups:,}", "groups are not well at the end"))
    if report.lag is not None and report.lag.rows:
        worst = report.lag.rows[0]
        tiles.append(_tile(f"{worst.records_max:,}", join("records: the largest lag, of ", named(worst.group))))
    if report.findings is not None:
        tiles.append(_tile(_count(report.findings), "findings in commits, by group and kind"))
    if report.damage is not None:
        tiles.append(_tile(_count(report.damage), "kinds of damage to logs"))
    if report.topics is not None:
        total = sum(topic.size_bytes for topic in report.topics.rows)
        tiles.append(_tile(f"{amount(total)}B", "in the topics below, of one replica"))
    span = "nothing was there to read"
    if report.span is not None:
        span = f"{_time(report.span.first_ms)} to {_time(report.span.last_ms)}"
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
        element("dl", *(join(element("dt", name), element("dd", what)) for name, what in facts)),
        _missing(report),
        element("div", *tiles, class_="tiles") if tiles else None,
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


def _unwell(report: Report) -> Html | None:
    if report.unwell is None:
        return None
    if not report.unwell.rows:
        return element("p", "Every group is well at the end.")
    rows = [
        (
            named(one.group),
            "all topics" if one.topic is None else named(one.topic),
            _status(one.status),
            f"{one.partitions:,}" if one.partitions else "–",
            _time(one.since_ms),
        )
        for one in report.unwell.rows
    ]
    columns = ("Group", "Topic", "Status", "#Partitions", "Since")
    return join(_table(columns, rows, "Groups that are not well at the end"), _left_out(report.unwell, "rows"))


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
            _time(max(at for at, records in one.records_at.items() if records == one.records_max)),
            f"{one.records_last:,}",
            "–" if one.seconds_max is None else _duration(one.seconds_max * 1000),
        )
        for one in report.lag.rows
    ]
    columns = ("Group", "#Largest lag", "In the time from", "#Lag at the end", "#Most behind")
    size = _duration(report.span.bucket_ms)
    return join(
        element(
            "p",
            "Unread records of all partitions of a group: the largest number in each ",
            size,
            ". Each group has its own scale.",
        ),
        _picture(charts["lag"], f"Lag over time of {len(rows)} groups; the table below has their numbers."),
        _left_out(report.lag, "groups with a smaller lag, or none"),
        _details("The numbers", _table(columns, rows, "Lag of groups")),
    )


def _timelines(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.timelines is None:
        return None
    if "timelines" not in charts:
        return element("p", "There are no groups.")
    shown = {stretch.status for one in report.timelines.rows for stretch in one.stretches}
    keys = [element("li", _status(status), f" {meaning}") for status, meaning in MEANINGS.items() if status in shown]
    keys.append(element("li", element("b", "◀ ▶"), " offsets were set back, or forward over unread records"))
    keys.append(element("li", element("b", "❘"), " rebalances, longer where there are more"))
    rows = [
        (
            named(one.group),
            join(*_stretches(one)) if one.stretches else "always OK",
            f"{sum(one.rebalances_at.values()):,}" if "generations" not in report.missing else "–",
            join(*_resets(one)) if one.resets else "–",
        )
        for one in report.timelines.rows
    ]
    columns = ("Group", "Not well", "#Rebalances", "Offsets were set")
    return join(
        element("p", "A bar is higher the worse it is. No bar: all was well."),
        element("ul", *keys, class_="keys"),
        _picture(charts["timelines"], f"Timelines of {len(rows)} groups; the table below says the same in words."),
        _left_out(report.timelines, "groups to which less happened"),
        _details("The same in words", _table(columns, rows, "What happened to each group")),
    )


def _stretches(one: Timeline) -> Iterator[Html]:
    for stretch in one.stretches[:STRETCHES_MAX]:
        yield element("div", _status(stretch.status), f" {_time(stretch.from_ms)} to {_time(stretch.until_ms)}")
    if len(one.stretches) > STRETCHES_MAX:
        yield element("div", f"and {len(one.stretches) - STRETCHES_MAX:,} more", class_="soft")


def _resets(one: Timeline) -> Iterator[Html]:
    for reset in one.resets[:STRETCHES_MAX]:
        way = "back" if reset.finding == "jumped back" else "forward"
        yield element("div", f"{way} by {reset.records:,} at {_time(reset.at_ms)}")
    if len(one.resets) > STRETCHES_MAX:
        yield element("div", f"and {len(one.resets) - STRETCHES_MAX:,} more", class_="soft")


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
            _time(one.at_ms),
        )
        for one in report.movers.rows
    ]
    columns = ("Group", "Topic", "#Change", "#Lag before", "#Lag after", "Until")
    return join(
        element("p", "The largest change of the lag of each group and topic from one hour to the next, in records."),
        _picture(charts["movers"], f"Changes of the lag of {len(rows)} groups; the table below has their numbers."),
        _left_out(report.movers, "groups and topics that moved less"),
        _details("The numbers", _table(columns, rows, "Largest changes of lags")),
    )


def _findings(report: Report) -> Html | None:
    if report.findings is None:
        return None
    if not report.findings.rows:
        return element("p", "Nothing was found: no offset jumped, and no commit was one that should not be.")
    rows = [
        (named(one.group), one.finding, f"{one.times:,}", f"{one.records:,}", _time(one.last_ms))
        for one in report.findings.rows
    ]
    columns = ("Group", "Finding", "#Times", "#Records", "Last")
    return join(
        _table(columns, rows, "What the audit has found"), _left_out(report.findings, "rows"), *_moves(report.moves)
    )


def _moves(moves: Top[Move] | None) -> Iterator[Html | None]:
    """Who moved what from where: what the offset journal says."""
    if moves is None or not moves.rows:
        return
    rows = [
        (
            named(one.group),
            join(named(one.topic), f"-{one.partition}" if one.partitions == 1 else f", {one.partitions:,} partitions"),
            join(*_way(one)),
            one.cause,
            join(*_who(one)),
            _time(one.at_ms),
        )
        for one in moves.rows
    ]
    yield element("h3", "Who moved offsets")
    yield _table(("Group", "Topic", "From and to", "Cause", "By", "At"), rows, "Who moved offsets")
    yield _left_out(moves, "earlier ones")


def _way(one: Move) -> Iterator[object]:
    """From where to where; of several partitions the first, and how many records in all."""
    before, after = ("none" if offset is None else f"{offset:,}" for offset in (one.from_offset, one.to_offset))
    yield f"{before} → {after}"
    if one.partitions > 1:
        yield f" in partition {one.partition}"
    if one.records:
        yield f"; {one.records:,} records"


def _who(one: Move) -> Iterator[object]:
    if one.cause == "recovered":
        yield "not known"
    elif one.client is None and one.principal is None:
        yield "the broker"
    for name, text in (("", one.client), ("at ", one.host), ("as ", one.principal), ("member ", one.member)):
        if text and one.cause != "recovered":
            yield element("div", name, named(text))


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
            "–" if one.directory is None else element("bdi", visible(one.directory, 120)),
            visible(one.detail or "–", 200),
        )
        for one in report.damage.rows
    ]
    columns = ("Finding", "Log", "#Places", "#First offset", "Directory", "The first one")
    return join(element("p", "No."), _table(columns, rows, "Damage to logs"), _left_out(report.damage, "rows"))


def _capacity(report: Report, charts: dict[str, Chart]) -> Html | None:
    if report.topics is None:
        return None
    if "topics" not in charts:
        return element("p", "There are no records.")
    rows: list[tuple[Cell, ...]] = [
        (
            named(one.topic),
            f"{one.partitions:,}",
            f"{one.records:,}",
            f"{amount(one.size_bytes)}B",
            "–" if one.bytes_per_day is None else f"{amount(one.bytes_per_day)}B",
            f"{one.largest_share:.2f} ×",
            "–" if one.retention_takes_bytes is None else f"{amount(one.retention_takes_bytes)}B",
        )
        for one in report.topics.rows
    ]
    columns: tuple[str, ...] = (
        "Topic",
        "#Partitions",
        "#Records",
        "#Size",
        "#A day",
        "#Largest partition",
        "#Retention takes",
    )
    if all(one.retention_takes_bytes is None for one in report.topics.rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    parts = [
        element("p", "Sizes are of one replica. Largest partition: its share, as a multiple of an even one."),
        element("p", report.full) if report.full else None,
        _picture(charts["topics"], f"Sizes of {len(rows)} topics; the table below has their numbers."),
    ]
    if "growth" in charts:
        text = f"Bytes written by day to {len(report.growth)} topics."
        parts += [element("h3", "Written by day"), _picture(charts["growth"], text), _growth_numbers(report.growth)]
    left_out = _left_out(report.topics, "smaller topics")
    return join(*parts, left_out, _details("The numbers", _table(columns, rows, "Sizes of topics")))


def _growth_numbers(topics: Sequence[Growth]) -> Html:
    days = sorted({day for topic in topics for day in topic.bytes_on})
    names = ["others" if topic.topic is None else visible(topic.topic, 28) for topic in topics]
    rows = [
        (_time(day)[:10], *(f"{amount(topic.bytes_on[day])}B" if day in topic.bytes_on else "–" for topic in topics))
        for day in days
    ]
    return _details("Day by day", _table(("Day", *(f"#{name}" for name in names)), rows, "Bytes by day"))


def _foot(report: Report) -> Html:
    return element(
        "footer",
        element("p", "Lags come from commits and from the times of records; a broker may know later ones. "),
        element("p", "What each number means: ", element("code", "pipeline/jobs/"), " in Barnabas."),
    )


# ------------------------------------------------------------ pieces


def _picture(chart: Chart, text: str) -> Html:
    narrow, wide = (_data("image/svg+xml", chart.svg(width).encode()) for width in (NARROW, WIDE))
    heights = chart.height(NARROW), chart.height(WIDE)
    return element(
        "picture",
        element("source", media="(max-width: 700px)", srcset=narrow, width=NARROW, height=heights[0]),
        element("img", src=wide, alt=text, width=WIDE, height=heights[1]),
    )


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _table(columns: Sequence[str], rows: Rows, caption: str) -> Html:
    """A table; on a phone each row is a card. The roles keep it a table for a reader that speaks it."""
    names = [(column.removeprefix("#"), "number" if column.startswith("#") else None) for column in columns]
    head = element("tr", *(element("th", name, scope="col", class_=kind) for name, kind in names), role="row")
    body = [
        element(
            "tr",
            *(
                element("td", element("div", cell), class_=kind, data_label=name, role="cell")
                for (name, kind), cell in zip(names, row)
            ),
            role="row",
        )
        for row in rows
    ]
    return element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
    )


def _details(title: str, content: Html) -> Html:
    return element("details", element("summary", title), content)


def _left_out(top: Top[Any], what: str) -> Html | None:
    return element("p", f"Left out: {top.left_out:,} {what}.", class_="soft") if top.left_out else None


def _status(status: str) -> Html:
    return element("span", status, class_=f"status {status.lower()}", title=MEANINGS.get(status))


def _count(top: Top[Any]) -> str:
    return f"{len(top.rows) + top.left_out:,}"


def _time(at_ms: int) -> str:
    # Times of clients can be beyond the years that datetime knows.
    if not 0 <= at_ms < 253_402_300_800_000:
        return f"{at_ms} ms since 1970"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _duration(of_ms: float) -> str:
    minutes = round(of_ms / 60_000)
    if minutes < 1:
        return f"{of_ms / 1000:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if of_ms < DAY_MS:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{of_ms / DAY_MS:.1f} days".replace(".0 ", " ")


def _css() -> str:
    colours = [";".join(f"--{name}:{both[side]}" for name, both in COLOURS.items()) for side in (LIGHT, DARK)]
    looks = {
        "expires_soon": "soon",
        "warn": "warn",
        "rewind": "back",
        "storm": "storm",
        "never": "never",
        "removed": "gone",
        "stall": "stall",
        "stop": "stop",
    }
    statuses = "".join(f".{status}{{--own:var(--{colour})}}" for status, colour in looks.items())
    dark = f"@media(prefers-color-scheme:dark){{:root{{{colours[DARK]}}}}}"
    return f":root{{{colours[LIGHT]}}}{dark}{statuses}{CSS}"


CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
main{max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 1rem}
h2{font-size:1.2rem;margin:0 0 .5rem}
h3{font-size:1rem;margin:1rem 0 .5rem}
section{border-top:1px solid var(--line);padding:1.25rem 0;margin-top:1rem}
p{margin:.4rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}
dt,.soft,.note,footer{color:var(--soft)}
dd{margin:0}
.missing{border:1px solid var(--warn);border-left-width:.4rem;border-radius:.4rem;padding:.6rem 1rem;margin-top:1rem}
.missing h2{font-size:1rem}
.missing ul{margin:0;padding-left:1.2rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin-top:1.25rem}
.tiles p{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem;margin:0}
.tiles b{display:block;font-size:1.35rem;line-height:1.3}
.tiles span{color:var(--soft);font-size:.9rem}
.keys{list-style:none;padding:0;margin:.5rem 0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.9rem}
.status{font-weight:600;font-size:.85em;white-space:nowrap;color:var(--own,var(--text))}
.status::before{content:"";display:inline-block;width:.7em;height:.7em;margin-right:.35em;background:currentColor}
.number{text-align:right;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{text-align:left;color:var(--soft);font-weight:600;vertical-align:bottom}
th.number{text-align:right}
th,td{padding:.35rem 1rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:last-child,th:last-child{padding-right:0}
td{overflow-wrap:anywhere;min-width:4.5rem}
picture,img{display:block;max-width:100%;height:auto}
picture{margin:.75rem 0}
details{margin-top:.75rem}
summary{cursor:pointer;color:var(--blue)}
summary:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
code{font-size:.9em}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media(max-width:700px){
main{padding:.75rem 10px}
dl{grid-template-columns:1fr}
dd{margin-bottom:.4rem}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody{display:block}
tr{display:block;border-bottom:1px solid var(--line);padding:.5rem 0}
td,td.number{display:flex;justify-content:space-between;gap:1rem;text-align:right;border:0;padding:.1rem 0}
td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none;max-width:45%}
td:first-child{font-weight:600}
}
@media print{details>*{display:block}}
"""
