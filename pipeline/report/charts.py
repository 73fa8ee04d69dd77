"""The report's pictures: each chart is drawn by matplotlib once for each width, as SVG for the page, and as PNG.

An SVG takes its colours from variables, of which it has two sets, for light and dark. So the colours that are drawn
with are names: they are replaced in what matplotlib has written. Colour is never the only sign: statuses have hatches
and heights of their own, and everything that is drawn stands in a table of the page, too.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import matplotlib
from barnabas.pipeline.report.colours import COLOURS, HATCHES, LIGHT, SHARES, colour_variables
from barnabas.pipeline.report.figures import (
    DAY_MS,
    HOUR_MS,
    GroupLag,
    Growth,
    LeaderChange,
    Mover,
    Span,
    Timeline,
    Topic,
)
from barnabas.pipeline.report.markup import visible
from barnabas.pipeline.report.statuses import RANKS, STATUSES
from barnabas.runtime.counted import counted
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MatplotlibPath
from matplotlib.ticker import FuncFormatter, MaxNLocator

NARROW, MIDDLE, WIDE = 340, 470, 880  # pixels of CSS
DOTS_PER_INCH = 100  # 100 pixels are an inch: fonts of 8.6 points are then 12 pixels high
NAME_MAX = 28

STYLE = {
    "font.family": "sans-serif",
    "font.size": 8.6,
    "axes.edgecolor": COLOURS["line"][0],
    "axes.labelcolor": COLOURS["soft"][0],
    "axes.titlecolor": COLOURS["text"][0],
    "axes.titlesize": 8.8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": COLOURS["line"][0],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["soft"][0],
    "ytick.color": COLOURS["soft"][0],
    "xtick.labelsize": 8.2,
    "ytick.labelsize": 8.2,
    "text.color": COLOURS["text"][0],
    "text.parse_math": False,  # a `$` in a name is a `$`
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",  # the browser has letters of every script
    "svg.hashsalt": "barnabas",  # the same page for the same numbers
}

Draw = Callable[[Figure, int], None]


@dataclass(frozen=True)
class Chart:
    """What can be drawn. `draw` gets a figure and its width in pixels; `height` says how high that must be."""

    name: str
    title: str
    draw: Draw
    height: Callable[[int], int]

    def svg(self, width: int) -> str:
        """The picture for the page: light or dark as its reader wants it."""
        content = self._drawn(width, "svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = content.decode()
        text = re.sub(r"(?<=\d\.\d\d)\d+", "", text[text.index("<svg") :])  # a hundredth of a pixel is exact enough
        for name, (light, _) in COLOURS.items():
            text = text.replace(light, f"var(--{name})")
        return text.replace("<defs>", f"<defs><style>{colour_variables()}</style>", 1)

    def png(self) -> bytes:
        """The picture as a file, light, with two dots for each pixel."""
        return self._drawn(WIDE, "png", dpi=2 * DOTS_PER_INCH, facecolor=COLOURS["page"][LIGHT])

    def _drawn(self, width: int, form: str, **options: Any) -> bytes:
        file = BytesIO()
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a letter that no font has is drawn as a box
            size = (width / DOTS_PER_INCH, self.height(width) / DOTS_PER_INCH)
            figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
            if form == "png":  # the page has headings of its own
                figure.suptitle(self.title, x=0.01, ha="left", fontsize=9.6)
            self.draw(figure, width)
            figure.savefig(file, format=form, **options)
        return file.getvalue()


# ------------------------------------------------------------ the charts


def lag_chart(groups: Sequence[GroupLag], span: Span) -> Chart:
    """One small picture for each group, each with its own scale."""

    def columns(width: int) -> int:
        return 1 if width < WIDE or len(groups) == 1 else 2

    def rows(width: int) -> int:
        return -(-len(groups) // columns(width))

    def draw(figure: Figure, width: int) -> None:
        panels = figure.subplots(rows(width), columns(width), squeeze=False).flat
        buckets = span.buckets()
        times = [_time(at) for at in buckets]
        for panel, group in zip(panels, groups):
            values = [group.records_at.get(at, float("nan")) for at in buckets]
            panel.set_title(_short(group.group))
            panel.plot(times, values, color=_colour("blue"), linewidth=1.3)
            panel.fill_between(times, values, color=_colour("fill"), linewidth=0)
            _time_axis(panel, span, width // columns(width))
            _number_axis(panel.yaxis, 3)
            panel.set_ylim(0, max(1, group.records_max) * 1.08)
        for panel in figure.axes[len(groups) :]:
            panel.set_visible(False)

    return Chart("lag", "Lag in records (UTC)", draw, lambda width: 20 + 116 * rows(width))


def timeline_chart(groups: Sequence[Timeline], span: Span, changes: Sequence[LeaderChange] = ()) -> Chart:
    """One line for each group: bars where it is not well, triangles where offsets were set, ticks for rebalances.

    Where leaders changed, a line goes through all of them; the one of the most partitions says how many.
    """
    drawn = [one for one in changes if span.first_ms <= one.from_ms <= span.last_ms]
    above = 0.4 if drawn else 0.0

    def draw(figure: Figure, width: int) -> None:
        panel = figure.subplots()
        for number, group in enumerate(groups):
            base = -number
            statuses = sorted({stretch.status for stretch in group.stretches}, key=RANKS.index, reverse=True)
            shown = statuses if width >= WIDE or len(statuses) < 4 else [*statuses[:2], "…"]  # the table has them all
            _label(panel, base + 0.52, f"{_short(group.group)}   {', '.join(shown)}", fontsize=8.6)
            panel.axhline(base, color=_colour("line"), linewidth=0.8, zorder=1)
            for name, status in STATUSES.items():
                places = [(one.from_ms, one.until_ms) for one in group.stretches if one.status == name]
                colours = {"facecolor": _colour(status.colour), "edgecolor": _colour("page")}
                if places:
                    bars = _bars(places, base, base + status.height * 0.6)
                    panel.add_artist(PathPatch(bars, hatch=status.hatch, linewidth=0, zorder=2, **colours))
            most = max(group.rebalances_at.values(), default=1)
            ticks = [
                (at / DAY_MS, end)
                for at, count in group.rebalances_at.items()
                for end in (base, base - 0.06 - 0.12 * count / most, float("nan"))
            ]
            panel.plot(*zip(*ticks or [(0, float("nan"))]), color=_colour("text"), linewidth=0.9, zorder=3)
            for finding, mark in (("jumped back", "<"), ("skipped", ">")):
                times = [reset.at_ms / DAY_MS for reset in group.resets if reset.finding == finding]
                looks = {"color": _colour("text"), "markeredgecolor": _colour("page"), "markeredgewidth": 0.7}
                panel.plot(times, [base + 0.26] * len(times), mark, markersize=8, zorder=4, **looks)
        for one in drawn:
            panel.axvline(one.from_ms / DAY_MS, color=_colour("text"), linestyle=(0, (2, 2)), linewidth=1.0, zorder=1)
        for one in drawn[:1]:
            is_right = one.from_ms > (span.first_ms + span.last_ms) / 2
            what = f" {counted(one.partitions, 'partition')}: other leaders "
            panel.text(one.from_ms / DAY_MS, 1.0, what, va="bottom", ha="right" if is_right else "left", fontsize=8.2)
        _no_heights(panel, -len(groups) + 0.75, 0.95 + above)
        _time_axis(panel, span, width)

    return Chart(
        "timelines", "What happened to each group (UTC)", draw, lambda width: 50 + round(44 * (len(groups) + above))
    )


def mover_chart(movers: Sequence[Mover]) -> Chart:
    """Bars to the right where a lag rose, to the left where it fell."""

    def draw(figure: Figure, width: int) -> None:
        panel = figure.subplots()
        for number, mover in enumerate(movers):
            change = mover.after - mover.before
            looks = ("rise", "") if change > 0 else ("fall", "//")
            bar = {"facecolor": _colour(looks[0]), "edgecolor": _colour("page"), "hatch": looks[1], "linewidth": 0}
            panel.barh(-number, change, height=0.42, **bar)
            _label(panel, -number + 0.26, f"{_short(mover.group)} · {_short(mover.topic)}  {change:+,}")
        panel.axvline(0, color=_colour("soft"), linewidth=0.8)
        most = max(abs(mover.after - mover.before) for mover in movers)
        low = min(min(mover.after - mover.before for mover in movers), -0.06 * most)
        high = max(max(mover.after - mover.before for mover in movers), 0.06 * most)
        panel.set_xlim(low * 1.02, high * 1.02)
        _bar_axes(panel, len(movers), width)

    return Chart(
        "movers",
        "Largest changes of the lag from one hour to the next, in records",
        draw,
        lambda width: 40 + 36 * len(movers),
    )


def topic_chart(topics: Sequence[Topic]) -> Chart:
    """A bar for each topic: the bytes of one replica."""

    def draw(figure: Figure, width: int) -> None:
        panel = figure.subplots()
        for number, topic in enumerate(topics):
            panel.barh(-number, topic.size_bytes, height=0.42, color=_colour("blue"))
            _label(panel, -number + 0.26, f"{_short(topic.topic)}  {amount(topic.size_bytes)}B")
        panel.set_xlim(0, max(1, *(topic.size_bytes for topic in topics)))
        _bar_axes(panel, len(topics), width, "B")

    return Chart("topics", "Sizes of topics, of one replica", draw, lambda width: 40 + 36 * len(topics))


def growth_chart(topics: Sequence[Growth]) -> Chart:
    """A bar for each day, of what each topic got."""

    def draw(figure: Figure, width: int) -> None:
        panel = figure.subplots()
        days = [day // DAY_MS for topic in topics for day in topic.bytes_on]
        every_day = range(min(days), max(days) + 1)
        below = [0] * len(every_day)
        for number, topic in enumerate(topics):
            above = [low + topic.bytes_on.get(day * DAY_MS, 0) for day, low in zip(every_day, below)]
            looks = {"facecolor": _colour(SHARES[number % len(SHARES)]), "hatch": HATCHES[number % len(HATCHES)]}
            looks |= {"edgecolor": _colour("page"), "label": f"{number}"}  # matplotlib leaves names like `_x` out
            panel.stairs(above, [*every_day, every_day[-1] + 1], baseline=below, fill=True, linewidth=0, **looks)
            below = above
        panel.xaxis_date(UTC)
        _dates(panel, width)
        _number_axis(panel.yaxis, 4, "B")
        figure.legend(loc="outside upper left", ncols=2 if width < WIDE else 6, frameon=False, labelcolor="linecolor")
        for topic, text in zip(topics, figure.legends[0].get_texts()):
            text.set_text("others" if topic.topic is None else _short(topic.topic))
            text.set_color(_colour("text"))

    return Chart("growth", "Written by day (UTC)", draw, lambda width: 240)


# ------------------------------------------------------------ words of theirs


def amount(value: float) -> str:
    """A number as people read it: 12.3 k."""
    for power, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * power:  # else 999,990 would be 1e+03 k
            return f"{value / power:.3g} {unit}"
    return f"{value:.3g} "


def _bars(places: Sequence[tuple[int, int]], low: float, high: float) -> MatplotlibPath:
    """Bars from time to time, as one path: a page is smaller with fewer elements."""
    corners = [
        corner
        for start, end in places
        for corner in ((start, low), (start, high), (end, high), (end, low), (start, low))
    ]
    codes = [MatplotlibPath.MOVETO, *[MatplotlibPath.LINETO] * 3, MatplotlibPath.CLOSEPOLY] * len(places)
    return MatplotlibPath([(at_ms / DAY_MS, height) for at_ms, height in corners], codes)  # days: matplotlib's unit


def _colour(name: str) -> str:
    return COLOURS[name][LIGHT]


def _short(name: str) -> str:
    return visible(name, NAME_MAX)


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _label(panel: Any, height: float, text: str, fontsize: float = 8.4) -> None:
    """A text at the left edge, above what is drawn below it."""
    panel.text(0, height, text, transform=panel.get_yaxis_transform(), va="bottom", fontsize=fontsize)


def _no_heights(panel: Any, low: float, high: float) -> None:
    """Heights mean nothing here: no axis shows them."""
    panel.set_ylim(low, high)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)


def _bar_axes(panel: Any, bars: int, width: int, unit: str = "") -> None:
    _no_heights(panel, -bars + 0.6, 0.85)
    _number_axis(panel.xaxis, 4 if width < WIDE else 7, unit)


def _time_axis(panel: Any, span: Span, width: int) -> None:
    last_ms = max(span.last_ms, span.first_ms + HOUR_MS // 60)
    panel.set_xlim(_time(span.first_ms), _time(last_ms))
    _dates(panel, width)


def _dates(panel: Any, width: int) -> None:
    locator = dates.AutoDateLocator(tz=UTC, minticks=2, maxticks=max(4, width // 60))
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC, show_offset=False))
    panel.grid(axis="x")
    panel.set_axisbelow(True)


def _number_axis(axis: Any, ticks: int, unit: str = "") -> None:
    axis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{amount(value)}{unit}"))
    axis.axes.grid(axis=axis.axis_name)
