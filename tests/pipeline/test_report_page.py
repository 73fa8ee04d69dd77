"""The page and its pictures: whole, readable, and not to be broken by names."""

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.report.charts import COLOURS, DARK, LIGHT, WIDE, amount
from barnabas.pipeline.report.figures import (
    BUCKETS_MAX,
    DAY_MS,
    STATUSES,
    Damage,
    Finding,
    GroupLag,
    Growth,
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
from barnabas.pipeline.report.page import MEANINGS, Report, charts_of, page

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


def report(names: list[str], left_out: int = 0) -> Report:
    """Everything that a report can have, with these names."""
    span = Span(START_MS, START_MS + DAY_MS)
    buckets = span.buckets()
    numbers = range(len(names))
    statuses = STATUSES[1:]
    return Report(
        source=names[0],
        made_at=datetime(2025, 11, 23, tzinfo=UTC),
        version="1",
        span=span,
        groups_not_ok=1,
        groups=len(names),
        unwell=Top(
            [Unwell(name, name, "reading", statuses[number % 8], 3, START_MS) for number, name in enumerate(names)],
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
    assert len(hostile) < 4_000_000, "twelve groups whose status changes every few minutes"
    names = [f"{number:03}{'<script>' * 37}\n" for number in range(24)]  # of 300 characters
    more = page(report(names, left_out=476))
    assert len(more) < 2.2 * len(hostile), "so with --top 100, the most, it has some MB"
    reader = Reader(more)
    assert not {tag for tag, _ in reader.elements} & {"script"}
    for name in names:
        assert reader.text.count(visible(name)) >= 4
    assert "Left out: 476 groups" in reader.text


def test_every_picture_has_words_and_is_xml(hostile: str) -> None:
    pictures = [words for tag, words in Reader(hostile).elements if tag == "img"]
    assert len(pictures) == 5
    assert all(words["alt"] for words in pictures)
    narrow = [words["srcset"] for tag, words in Reader(hostile).elements if tag == "source"]
    assert len(narrow) == 5
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


def test_every_status_is_explained() -> None:
    assert set(MEANINGS) == set(STATUSES)


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
