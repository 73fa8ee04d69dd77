"""`lag` as a streaming query: the rows that `lag.py` makes of the same history, soon after their windows have passed.

See `looks.py` for what is kept until when, and `log_spans.py` for what is remembered of a log: `lag_seconds` takes
times within a span as even.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import Event, Events, events_of, newest
from barnabas.pipeline.jobs.lag import COLUMNS, EVERY_S
from barnabas.pipeline.jobs.log_spans import LogPlace
from barnabas.pipeline.jobs.looks import DELAY_S, Looks, Place, looked_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def lag_stream(
    commits: "DataFrame", batches: "DataFrame", every_s: int = EVERY_S, delay_s: int = DELAY_S
) -> "DataFrame":
    """The lag at the end of every window; see `lag.py` for the columns."""
    return looked_at(events_of(commits, batches), Lag(every_s * 1000), delay_s)


class Lag(Looks):
    """What partitions have to say about those who read them."""

    result = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in COLUMNS)

    def new_place(self, *, is_group: bool) -> Place:
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


@dataclass
class Partition(LogPlace):
    """A partition and the groups that read it."""

    every_ms: int = 0
    place: Any = (None, None)
    committed: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # by group: log offset, offset
    before: dict[str | None, tuple[int, int | None]] = field(default_factory=dict)  # at the last look: offset, log end

    def take_over(self, events: list[Event]) -> None:
        """The newest commit of each group, and how long the log is."""
        for event in events:
            if event.log_end is not None:
                self.grow(event)
            else:
                self.place = event.topic, event.partition
                assert event.log_offset is not None
                if event.log_offset > self.committed.get(event.group_id, (-1, None))[0]:
                    self.committed[event.group_id] = event.log_offset, event.offset
        self.settle()

    def say(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """One row for each group that has a committed offset."""
        before, self.before = self.before, {}
        for group, (_, offset) in self.committed.items():
            if offset is None:
                continue
            self.before[group] = offset, self.log_end
            offset_before, end_before = before.get(group, (None, None))
            if self.log_end is not None and end_before is not None and self.log_end < end_before:
                end_before = None  # of another log of this name
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
