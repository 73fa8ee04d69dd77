"""What a partition remembers of its whole log: how old its records are, in bounded memory.

A log is kept as spans of records with the times of their ends, at first one for each batch. When there are more than
`SPANS_MAX` of them, neighbours among the older half become one. Times within a span are taken as even.

A log that was made again, or put back from a backup, begins below what has come of it: a stream goes on in no other log
at a lower offset. From the first time that it has, what was before it counts no more.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import NONE, Event, Events
from barnabas.pipeline.jobs.looks import Place

SPANS_MAX = 1024

Spans = Array  # a row for each: last and first offset, first and last time


def _no_spans() -> Spans:
    return np.empty((0, 4), np.int64)


@dataclass
class LogPlace(Place):
    """A partition whose log is known."""

    log_end: int | None = None
    arrived: Spans = field(default_factory=_no_spans)  # by offset; of no look yet
    spans: Spans = field(default_factory=_no_spans)  # by offset
    came_to: int = 0  # the end of all that has come, also of what waits for its look
    anew_ms: int | None = None  # when another log of this name begins, if no look has come to that yet
    anew: Spans = field(default_factory=_no_spans)  # what has arrived of that one

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A query that an earlier version has begun may know nothing of the spans: its older records have no age."""
        self.__dict__.update({name: _no_spans() for name in ("arrived", "spans", "anew")} | state)

    def expect(self, events: Events) -> None:
        """Keep the batches also in the order of the log."""
        grown = events.only(events.of("log_end") != NONE)
        last, at_ms = grown.of("log_end") - 1, grown.of("at_ms")
        base = np.where(grown.of("base_offset") == NONE, last, grown.of("base_offset"))
        base_ms = np.where(grown.of("base_ms") == NONE, at_ms, grown.of("base_ms"))
        came = np.stack((last, base, base_ms, at_ms), axis=1)
        is_below = last + 1 < self.came_to
        if is_below.any():
            self.anew_ms, self.anew, self.came_to = int(at_ms[is_below].min()), _no_spans(), 0
            self.arrived = _in_order(self.arrived, came[at_ms < self.anew_ms])
            came = came[at_ms >= self.anew_ms]
        self.came_to = max([self.came_to, *(came[:, 0] + 1).tolist()])
        if self.anew_ms is None:
            self.arrived = _in_order(self.arrived, came)
        else:
            self.anew = _in_order(self.anew, came)

    def grow(self, event: Event) -> None:
        """Take over that the log has grown."""
        assert event.log_end is not None
        if self.anew_ms is not None and event.at_ms >= self.anew_ms:
            self.anew_ms, self.log_end = None, None
            self.arrived, self.anew, self.spans = self.anew, _no_spans(), _no_spans()
        self.log_end = max(event.log_end, self.log_end or 0)

    def settle(self) -> None:
        """What is before the end of the log is there, even if it has a later time."""
        count = int(np.searchsorted(self.arrived[:, 0], self.log_end or 0))
        if count:
            self.spans = fewer(np.concatenate((self.spans, self.arrived[:count])))
            self.arrived = self.arrived[count:]

    def seconds_behind(self, offset: int, at_ms: int) -> float | None:
        """The age of the first record that is not consumed; None: it is not known."""
        if self.log_end is None:
            return None
        if self.log_end <= offset:
            return 0.0
        index = np.searchsorted(self.spans[:, 0], offset)
        if index == len(self.spans):
            return None
        last, base, base_ms, last_ms = self.spans[index].tolist()
        into = max(0, offset - base)
        produced_ms = base_ms + (last_ms - base_ms) * into / max(1, last - base)
        return max(0.0, (at_ms - produced_ms) / 1000)


def _in_order(some: Spans, more: Spans) -> Spans:
    both = np.concatenate((some, more))
    return both[np.lexsort(both.T[::-1])]


def fewer(spans: Spans) -> Spans:
    """At most `SPANS_MAX` of them."""
    half = SPANS_MAX // 2
    while len(spans) > SPANS_MAX:
        older, newer = spans[:half:2], spans[1:half:2]
        merged = np.stack((newer[:, 0], older[:, 1], older[:, 2], newer[:, 3]), axis=1)
        spans = np.concatenate((merged, spans[half:]))
    return spans
