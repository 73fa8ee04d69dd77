"""What the parts of the page are made of: tables, pictures, times, and the command that somebody would type next."""

import base64
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from barnabas.pipeline.report.charts import MIDDLE, NARROW, WIDE, Chart
from barnabas.pipeline.report.figures import DAY_MS, Top
from barnabas.pipeline.report.markup import NAME_MAX, Html, element, join, shown, visible
from barnabas.pipeline.report.statuses import STATUSES

YEAR_10000_MS = 253_402_300_800_000
"""Times of clients can be beyond the years that datetime knows."""


def picture(chart: Chart, text: str) -> Html:
    """A chart, drawn for the width of the window. The browser stretches it to what is left."""

    def drawn(name: str, source: str, width: int, **more: str) -> Html:
        data = f"data:image/svg+xml;base64,{base64.b64encode(chart.svg(width).encode()).decode()}"
        return element(name, **more, **{source: data}, width=width, height=chart.height(width))

    return element(
        "picture",
        drawn("source", "srcset", NARROW, media="(max-width: 440px)"),
        drawn("source", "srcset", MIDDLE, media="(max-width: 700px)"),
        drawn("img", "src", WIDE, alt=text),
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> Html:
    """A table; on a phone each row is a card. The roles keep it a table for a reader that speaks it."""
    names = [(column.removeprefix("#"), "number" if column.startswith("#") else None) for column in columns]
    # Some columns have the name of a topic.
    heads = (element("th", shown(name, NAME_MAX), scope="col", class_=kind) for name, kind in names)
    head = element("tr", *heads, role="row")
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


def details(title: str, content: Html) -> Html:
    """What is shown when somebody asks for it."""
    return element("details", element("summary", title), content)


def left_out(top: Top[Any], what: str) -> Html | None:
    """How much is not shown."""
    return element("p", f"Left out: {top.left_out:,} {what}.", class_="soft") if top.left_out else None


def status_mark(status: str) -> Html:
    """A status with its colour."""
    return element("span", status, class_=f"status {status.lower()}", title=STATUSES[status].meaning)


def time_text(at_ms: int) -> str:
    """A time to the minute."""
    if not 0 <= at_ms < YEAR_10000_MS:
        return f"{at_ms} ms since 1970"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M")


def moment(at_ms: int) -> Html:
    """The same, for a table: its line may end before the hour, and nowhere else."""
    day, _, rest = time_text(at_ms).partition(" ")
    return element("time", element("span", day), " ", element("span", rest))


def duration(of_ms: float) -> str:
    """How long something is, as people say it."""
    minutes = round(of_ms / 60_000)
    if minutes < 1:
        return f"{of_ms / 1000:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if of_ms < DAY_MS:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    days = f"{of_ms / DAY_MS:.1f}".removesuffix(".0")
    return f"{days} day" if days == "1" else f"{days} days"


def command(*words: str, of: str) -> Html | None:
    """The command that somebody would type next; None: the name `of` a group has characters that nobody can type."""
    if not of or visible(of) != of:
        return None
    name = ("--", of) if of.startswith("-") else (of,)
    typed = [element("span", shlex.quote(word)) for word in ("barnabas", *words, *name)]
    return element("code", *(join(" " if index else "", word) for index, word in enumerate(typed)))
