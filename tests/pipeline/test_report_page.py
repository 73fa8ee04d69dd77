"""The page and its pictures: whole, readable, and not to be broken by names."""

import json
import re
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.report.charts import MIDDLE, NARROW, WIDE, amount
from barnabas.pipeline.report.colours import COLOURS, DARK, LIGHT
from barnabas.pipeline.report.figures import (
    BUCKETS_MAX,
    DAY_MS,
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
from barnabas.pipeline.report.markup import element, named, visible
from barnabas.pipeline.report.page import Report, charts_of, page
from barnabas.pipeline.report.statuses import RANKS
from barnabas.pipeline.report.style import css

START_MS = 1_763_769_600_000
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></svg></title><!-- ]]>",
    "$\\frac{1}{0",  # matplotlib would read it as mathematics
    "a\x00b\x1b[31m\r\nc",
    "\u202eevil\u2066\u200b",  # turns the direction of what follows
    "\udc80 half",
    "x" * 32_000,
    "",
    "группа 消費者 مجموعة 🐘",
    "javascript:alert(1)",
    "&amp;&#60;",
]


def jump(group: str, finding: str, cause: str | None = "reset", records: int = 9_029) -> Move:
    """A group's offset that was set, at noon."""
    who = ("offset-tool", "/127.0.0.1", "User:ann", None) if cause else (None,) * 4
    return Move(group, "clicks", 1, 0, START_MS + DAY_MS // 2, 3_151, 12_180, records, cause, *who, finding=finding)


def report(names: list[str], left_out: int = 0) -> Report:
    """Everything that a report can have, with these names."""
    span = Span(START_MS, START_MS + DAY_MS)
    buckets = span.buckets()
    numbers = range(len(names))
    statuses = RANKS[1:]
    return Report(
        source=names[0],
        made_at=datetime(2025, 11, 23, tzinfo=UTC),
        version="1",
        span=span,
        groups_not_ok=(1, len(names)),
        behind=Top([Behind(name, name, 100, 36_000.0, span.last_ms, 90, 34_000.0) for name in names], left_out),
        jumps=Top([jump(name, ("skipped", "jumped back")[index % 2]) for index, name in enumerate(names)], left_out),
        leader_changes=Top([LeaderChange(START_MS + DAY_MS // 2, START_MS + DAY_MS * 3 // 4, 37)], left_out),
        unwell=Top(
            [
                Unwell(name, name, "reading", statuses[number % 8], 3, START_MS, 70, 36_000.0)
                for number, name in enumerate(names)
            ],
            left_out,
        ),
        lag=Top([GroupLag(name, {at: at % 97 for at in buckets}, 60.0) for name in names], left_out),
        timelines=Top(
            [
                Timeline(
                    name,
                    [Stretch(statuses[index % 8], at, at + span.bucket_ms) for index, at in enumerate(buckets)],
                    [Reset(("jumped back", "skipped")[index % 2], at, 5) for index, at in enumerate(buckets)],
                    dict.fromkeys(buckets, 2),
                )
                for name in names
            ],
            left_out,
        ),
        movers=Top([Mover(name, name, START_MS, 10, 5 * number) for number, name in enumerate(names)], left_out),
        findings=Top([Finding(name, "skipped", 1, 2, START_MS) for name in names], left_out),
        moves=Top(
            [
                *(Move(name, name, 1, 0, START_MS, 7, None, 0, "deletion", name, name, name, name) for name in names),
                Move(names[0], names[0], 3, 1, START_MS, 1_000, 5, 2_985, "expiry", None, None, None, None),
            ],
            left_out,
        ),
        damage=Top([Damage("corrupt batch", name, 0, name, 1, None, name) for name in names], left_out),
        topics=Top(
            [Topic(name, 3, 100, 10 * number, 5.0, 1.5, None) for number, name in zip(numbers, names)], left_out
        ),
        growth=[Growth(name, {START_MS + day * DAY_MS: 1000 for day in range(BUCKETS_MAX)}) for name in names[:5]],
        missing={"audit": names[0]},
        notes={"verify": names[0]},
    )


class Reader(HTMLParser):
    """The elements, their attributes and the text of a page; every element is closed where it should be."""

    VOID = {"meta", "img", "source", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(report(HOSTILE, left_out=9_988))


def test_names_stay_text(hostile: str) -> None:
    reader = Reader(hostile)
    kinds = {tag for tag, _ in reader.elements}
    assert not kinds & {"script", "iframe", "object", "embed", "link", "base", "form"}
    for tag, attributes in reader.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
    assert "<script>alert(1)</script>" in reader.text
    assert "U+202Eevil" in reader.text
    assert "aU+0000bU+001B[31m" in reader.text
    assert "&amp;&#60;" in reader.text
    assert "группа 消費者 مجموعة 🐘" in reader.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", hostile)


def test_it_needs_nothing_from_elsewhere_and_lets_nothing_run(hostile: str) -> None:
    policy = next(words["content"] for _, words in Reader(hostile).elements if "http-equiv" in words)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert not re.search(r"url\(|@import|https?://", hostile)


def test_many_groups_make_no_large_page(hostile: str) -> None:
    assert "9,988" in Reader(hostile).text
    assert len(hostile) < 4_500_000, "twelve groups whose status changes every few minutes"
    names = [f"{number:03}{'<script>' * 37}\n" for number in range(6)]  # of 300 characters
    fewer = page(report(names, left_out=476))
    assert len(hostile) < 2.2 * len(fewer), "so with --top 100, the most, it has some MB"
    reader = Reader(fewer)
    assert not {tag for tag, _ in reader.elements} & {"script"}
    for name in names:
        assert reader.text.count(visible(name)) >= 4
    assert "Left out: 476 groups" in reader.text


def test_every_picture_has_words_and_is_xml(hostile: str) -> None:
    pictures = [words for tag, words in Reader(hostile).elements if tag == "img"]
    assert len(pictures) == 5
    assert all(words["alt"] for words in pictures)
    narrow = [words["srcset"] for tag, words in Reader(hostile).elements if tag == "source"]
    assert len(narrow) == 2 * 5
    for data in (*narrow, *(words["src"] for words in pictures)):
        text = b64decode(data.removeprefix("data:image/svg+xml;base64,")).decode()
        root = ElementTree.fromstring(text)
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        drawn = set(re.findall(r"#[0-9a-f]{6}\b", text))
        assert drawn <= {colour for both in COLOURS.values() for colour in both}, "each colour has its dark twin"
    assert all(chart.png().startswith(b"\x89PNG") for chart in charts_of(report(HOSTILE)))


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("side", [LIGHT, DARK])
def test_text_and_signs_can_be_told_from_the_page(side: int) -> None:
    for name, both in COLOURS.items():
        lights = sorted((luminance(both[side]), luminance(COLOURS["page"][side])))
        contrast = (lights[1] + 0.05) / (lights[0] + 0.05)
        if name not in ("page", "line", "fill"):
            assert contrast >= 4.5, f"{name}: {contrast:.1f}"


def test_each_light_colour_is_another_one() -> None:
    assert len({light for light, _ in COLOURS.values()}) == len(COLOURS), "they are replaced by their names"


def test_it_says_what_is_missing_and_why() -> None:
    empty = Report("/data", datetime(2025, 11, 23, tzinfo=UTC), "1", missing={"verify": "verify reads directories"})
    text = Reader(page(empty)).text
    assert "What is missing" in text
    assert text.count("verify reads directories") == 2
    assert "nothing was there to read" in text
    assert "all times are UTC" in text
    assert "2025-11-23 00:00:00" in text
    assert list(charts_of(empty)) == []


def test_the_same_numbers_make_the_same_page() -> None:
    assert page(report(["a", "b"])) == page(report(["a", "b"]))


def test_text_is_escaped_once() -> None:
    assert element("p", "<b>", class_='"x"') == '<p class="&quot;x&quot;">&lt;b&gt;</p>'
    assert element("p", element("b", "&")) == "<p><b>&amp;</b></p>"
    assert len(visible("x" * 1000)) == 60
    assert json.loads(json.dumps(visible("\ud800"))) == "U+D800"
    assert 'title="' in named("y" * 61)
    assert "title" not in named("y" * 60)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 "), (7, "7 "), (999, "999 "), (999_990, "1 M"), (1234, "1.23 k"), (-5_000_000, "-5 M"), (2e15, "2 P")],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def test_topics_whose_names_begin_with_an_underscore_are_in_the_legend() -> None:
    """Matplotlib takes such a label for one of its own."""
    names = ["__consumer_offsets", "_schemas", "orders"]
    growth = [Growth(name, {START_MS + day * DAY_MS: 1000 for day in range(3)}) for name in names]
    (chart,) = charts_of(Report("/data", datetime(2025, 11, 23, tzinfo=UTC), "1", growth=growth))
    assert all(f">{name}<" in chart.svg(WIDE) for name in names)


def test_what_is_missing_can_be_seen() -> None:
    """The reason may name a topic, or a folder."""
    text = page(Report("/data", datetime(2025, 11, 23, tzinfo=UTC), "1", missing={"verify": "\x1b[31m\u202e <b>"}))
    assert text.count("U+001B[31mU+202E &lt;b&gt;") == 2


# ------------------------------------------------------------ what is first


def text_of(**parts: Any) -> str:
    """The words of a page that has no other parts, without those that say why."""
    empty = Report("/data", datetime(2025, 11, 23, tzinfo=UTC), "1", span=Span(START_MS, START_MS + DAY_MS))
    return Reader(page(replace(empty, **parts))).text


def test_who_is_furthest_behind_is_first() -> None:
    worst = Behind("billing", "orders", 1_204, 36_000.0, START_MS + DAY_MS, 1_000, 32_400.0)
    rows = [
        worst,
        replace(worst, group="a", seconds_before=39_600.0, records_before=2_000),
        replace(worst, group="b", seconds_before=36_001.0),
        replace(worst, group="c", seconds_before=None, records_before=None),
        replace(worst, group="d", seconds=None),
    ]
    text = text_of(behind=Top(rows, 3))
    assert text.index("billing is 10 h behind on orders, 1,204 records.") < text.index("Source"), "before all else"
    assert "Against an hour earlier: grows by 1 h, +204 records." in text
    for words in ("shrinks by 1 h, -796 records", "as far behind, +204 records", "it had no committed offset then"):
        assert words in text
    assert "barnabas groups lag --watch billing" in text
    assert "Left out: 3 groups and topics" in text
    assert "No group is behind." in text_of(behind=Top([]))


def test_words_do_not_break_in_the_middle() -> None:
    """Only names that are longer than a word may break anywhere."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css())
    assert {name.strip() for name, rule in rules if re.search("anywhere|break-all|hyphens", rule)} == {
        "bdi.long",
        "code",
    }
    assert 'class="long"' not in named("billing of shoes")
    assert 'class="long"' in named("x" * 60)


def test_skipped_records_are_an_alarm_at_the_top() -> None:
    """With who did it, and the way to where the group was; without the journal nobody knows either."""
    rows = [jump("archive", "skipped"), jump("other", "skipped", None, 71), jump("billing", "jumped back")]
    text = text_of(jumps=Top(rows), unwell=Top([]), groups_not_ok=(0, 3))
    alarm = text[text.index("Unread records were skipped: 9,100") : text.index("0 of 3")]
    for words in (
        *("archive", "clicks-0", "9,029", "2025-11-22 12:00", "offset-tool", "/127.0.0.1", "not known"),
        "barnabas offsets log --since 2025-11-22T11:59:59Z archive",
        "barnabas offsets restore --at 2025-11-22T11:59:59Z archive",
    ):
        assert words in alarm
    assert "restore --at 2025-11-22T11:59:59Z other" not in text
    assert "billing" not in alarm
    assert "were skipped" not in text_of(jumps=Top(rows[2:]))


def test_a_broker_that_died_is_an_event_and_a_line_of_the_timelines() -> None:
    change = LeaderChange(START_MS + DAY_MS // 2, START_MS + DAY_MS // 2 + 180_000, 37)
    parts = {"jumps": Top([jump("archive", "jumped back")]), "leader_changes": Top([change])}
    text = text_of(timelines=Top([Timeline("billing")]), **parts)
    events = text[text.index("Events") : text.index("Lag over time")]
    assert "37 partitions got another leader, the last one at 2025-11-22 12:03" in events
    assert "archive went back 9,029 records of clicks-0" in events
    assert "37 at 2025-11-22 12:00" in text[text.index("What happened to each group") :]
    empty = Report("/data", datetime(2025, 11, 23, tzinfo=UTC), "1", span=Span(START_MS, START_MS + DAY_MS))
    (chart,) = charts_of(replace(empty, timelines=Top([Timeline("billing")]), **parts))
    assert "37 partitions: other leaders" in chart.svg(WIDE)
    assert "other leaders" not in next(charts_of(replace(empty, timelines=Top([Timeline("billing")])))).svg(WIDE)


def test_who_is_not_well_has_a_lag_and_a_next_command() -> None:
    rows = [
        Unwell("billing", "orders", "reading", "STALL", 2, START_MS, 70, 36_000.0),
        Unwell("the team's", None, "rebalances", "STORM", 0, START_MS),
        Unwell("-x", None, "commits", "NEVER", 0, START_MS),
        Unwell("a\x07", "orders", "reading", "STOP", 1, START_MS),
    ]
    text = text_of(unwell=Top(rows))
    for words in ("7010 hbarnabas groups lag --watch billing", "groups describe -- -x"):
        assert words in text
    assert "barnabas groups explain 'the team'\"'\"'s'" in text
    assert "describe a" not in text, "nobody can type it"


def test_a_group_that_was_ever_hours_behind_was_not_always_ok() -> None:
    """The table of health may be of an earlier version, which knows no BEHIND."""
    rows = [Timeline("billing", seconds_max=36_000.0), Timeline("orders", seconds_max=3.0)]
    text = text_of(timelines=Top(rows))
    assert text.count("always OK") == 1
    assert "billingit read steadily, up to 10 h behind" in text


@pytest.mark.parametrize("width", [NARROW, MIDDLE, WIDE])
def test_there_is_a_picture_for_each_width(hostile: str, width: int) -> None:
    widths = [words["width"] for tag, words in Reader(hostile).elements if tag in ("source", "img")]
    assert widths.count(str(width)) == 5
