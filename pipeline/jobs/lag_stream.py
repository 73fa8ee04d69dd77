"""`lag` as a streaming query: the rows that `lag.py` makes of the same history, soon after their windows have passed.

See `looks.py` for what is kept until when. A partition also remembers its whole log as spans of records with the times
of their ends, at first one for each batch. When there are more than `SPANS_MAX` of them, neighbours among the older
half become one, so the memory is bounded. `lag_seconds` takes times within a span as even.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.jobs.lag import EVERY_S, RESULT
from barnabas.pipeline.jobs.looks import DELAY_S, Event, Looks, Place, events_of, looked_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPANS_MAX = 1024
NAMES = [column.split()[0] for column in RESULT.split(", ")]

Span = tuple[int, int, int, int]  # last and first offset, first and last time
_END = itemgetter(0)


def lag_stream(
    commits: "DataFrame", batches: "DataFrame", every_s: int = EVERY_S, delay_s: int = DELAY_S
) -> "DataFrame":
    """The lag at the end of every window; see `lag.py` for the columns."""
    return looked_at(events_of(commits, batches), Lag(every_s * 1000, NAMES), RESULT, delay_s)


class Lag(Looks):
    """What partitions have to say about those who read them."""

    def new_place(self, *, is_group: bool) -> Place:
        """A partition."""
        return Partition(every_ms=self._every_ms)


@dataclass
class Partition(Place):
    """A partition and the groups that read it."""

    every_ms: int = 0
    place: Any = (None, None)
    log_end: int | None = None
    committed: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # by group: log offset, offset
    before: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # at the last look: offset, log end
    arrived: list[Span] = field(default_factory=list)  # by offset; of no look yet
    spans: list[Span] = field(default_factory=list)  # by offset

    def expect(self, events: Iterable[Event]) -> None:
        """Keep the batches also in the order of the log."""
        events = list(events)
        super().expect(events)
        for event in events:
            if event.log_end is not None:
                base_offset = event.log_end - 1 if event.base_offset is None else event.base_offset
                base_ms = event.at_ms if event.base_ms is None else event.base_ms
                insort(self.arrived, (event.log_end - 1, base_offset, base_ms, event.at_ms))

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
        count = bisect_left(self.arrived, log_end, key=_END)
        self.spans += self.arrived[:count]
        del self.arrived[:count]
        while len(self.spans) > SPANS_MAX:
            half = SPANS_MAX // 2
            self.spans[:half] = [
                (newer[0], older[1], older[2], newer[3])
                for older, newer in zip(self.spans[:half:2], self.spans[1:half:2])
            ]

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
        last, base, base_ms, last_ms = self.spans[bisect_left(self.spans, offset, key=_END)]
        into = max(0, offset - base)
        produced_ms = base_ms + (last_ms - base_ms) * into / max(1, last - base)
        return max(0.0, (at_ms - produced_ms) / 1000)
