"""`lag` as a streaming query: the rows that `lag.py` makes of the same history, soon after their windows have passed.

See `looks.py` for what is kept until when. A partition also remembers its whole log as spans of records with the times
of their ends, at first one for each batch. When there are more than `SPANS_MAX` of them, neighbours among the older
half become one, so the memory is bounded. `lag_seconds` takes times within a span as even.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import NONE, Event, Events, events_of, newest
from barnabas.pipeline.jobs.lag import EVERY_S, RESULT
from barnabas.pipeline.jobs.looks import DELAY_S, Looks, Place, looked_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPANS_MAX = 1024
NAMES = [column.split()[0] for column in RESULT.split(", ")]

Spans = Array  # a row for each: last and first offset, first and last time


def lag_stream(
    commits: "DataFrame", batches: "DataFrame", every_s: int = EVERY_S, delay_s: int = DELAY_S
) -> "DataFrame":
    """The lag at the end of every window; see `lag.py` for the columns."""
    return looked_at(events_of(commits, batches), Lag(every_s * 1000, NAMES), RESULT, delay_s)


class Lag(Looks):
    """What partitions have to say about those who read them."""

    def new_place(self, *, is_group: bool) -> Place:
        """A partition."""
        return Partition(every_ms=self.every_ms)

    def decisive(self, events: Events) -> Array:
        """The newest commit of each group and partition in a window, and the growth of logs."""
        mask = ~events.is_commit
        commits = events.only(~mask)
        mask[~mask] = newest(
            commits.of("log_offset"),
            1,
            *(commits.of("at_ms") // self.every_ms, *(commits.of(name) for name in ("partition", "topic", "group_id"))),
        )
        return mask


def _no_spans() -> Spans:
    return np.empty((0, 4), np.int64)


@dataclass
class Partition(Place):
    """A partition and the groups that read it."""

    every_ms: int = 0
    place: Any = (None, None)
    log_end: int | None = None
    committed: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # by group: log offset, offset
    before: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # at the last look: offset, log end
    arrived: Spans = field(default_factory=_no_spans)  # by offset; of no look yet
    spans: Spans = field(default_factory=_no_spans)  # by offset

    def expect(self, events: Events) -> None:
        """Keep the batches also in the order of the log."""
        grown = events.only(events.of("log_end") != NONE)
        last, at_ms = grown.of("log_end") - 1, grown.of("at_ms")
        base = np.where(grown.of("base_offset") == NONE, last, grown.of("base_offset"))
        base_ms = np.where(grown.of("base_ms") == NONE, at_ms, grown.of("base_ms"))
        self.arrived = np.concatenate((self.arrived, np.stack((last, base, base_ms, at_ms), axis=1)))
        self.arrived = self.arrived[np.lexsort(self.arrived.T[::-1])]

    def take_over(self, events: list[Event]) -> None:
        """The newest commit of each group, and how long the log is."""
        log_end = self.log_end or 0
        for event in events:
            if event.log_end is not None:
                self.log_end = log_end = max(event.log_end, log_end)
            else:
                self.place = event.topic, event.partition
                assert event.log_offset is not None
                if event.log_offset > self.committed.get(event.group_id, (-1, None))[0]:
                    self.committed[event.group_id] = event.log_offset, event.offset
        # What is before it in the log is there, too, even if it has a later time.
        count = int(np.searchsorted(self.arrived[:, 0], log_end))
        if count:
            self.spans = fewer(np.concatenate((self.spans, self.arrived[:count])))
            self.arrived = self.arrived[count:]

    def say(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """One row for each group that has a committed offset."""
        before, self.before = self.before, {}
        for group, (_, offset) in self.committed.items():
            if offset is None:
                continue
            self.before[group] = offset, self.log_end
            offset_before, end_before = before.get(group, (None, None))
            yield (
                *(at_ms, group, *self.place, offset, self.log_end),
                None if self.log_end is None else max(0, self.log_end - offset),
                self.seconds_behind(offset, at_ms),
                self.rate(offset, offset_before),
                self.rate(self.log_end, end_before),
            )

    def rate(self, now: int | None, before: int | None) -> float | None:
        """By how much a number grew in the window, a second."""
        return None if now is None or before is None else (now - before) / (self.every_ms // 1000)

    def seconds_behind(self, offset: int, at_ms: int) -> float | None:
        """The age of the first record that is not consumed."""
        if self.log_end is None:
            return None
        if self.log_end <= offset:
            return 0.0
        last, base, base_ms, last_ms = self.spans[np.searchsorted(self.spans[:, 0], offset)].tolist()
        into = max(0, offset - base)
        produced_ms = base_ms + (last_ms - base_ms) * into / max(1, last - base)
        return max(0.0, (at_ms - produced_ms) / 1000)


def fewer(spans: Spans) -> Spans:
    """At most `SPANS_MAX` of them."""
    half = SPANS_MAX // 2
    while len(spans) > SPANS_MAX:
        older, newer = spans[:half:2], spans[1:half:2]
        merged = np.stack((newer[:, 0], older[:, 1], older[:, 2], newer[:, 3]), axis=1)
        spans = np.concatenate((merged, spans[half:]))
    return spans
