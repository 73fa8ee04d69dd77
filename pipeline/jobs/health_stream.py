"""`health` as a streaming query: the rows that `health.py` makes of the same history, soon after they become true.

See `looks.py` for what is kept until when.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from barnabas.pipeline.batches import Array
from barnabas.pipeline.jobs.events import Event, Events, events_of, newest
from barnabas.pipeline.jobs.health import BEHIND_S, COMMITS, MINUTES, RESULT, RETENTION_S, SOON_S
from barnabas.pipeline.jobs.lag import EVERY_S
from barnabas.pipeline.jobs.log_spans import LogPlace
from barnabas.pipeline.jobs.looks import DELAY_S, Looks, Place, looked_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TEN_MINUTES_MS = MINUTES * 60_000


def health_stream(
    commits: "DataFrame",
    groups: "DataFrame",
    batches: "DataFrame",
    every_s: int = EVERY_S,
    retention_s: int = RETENTION_S,
    soon_s: int = SOON_S,
    behind_s: int = BEHIND_S,
    delay_s: int = DELAY_S,
) -> "DataFrame":
    """Every change of every status; see `health.py` for the columns."""
    health = Health(every_s * 1000, retention_s * 1000, soon_s * 1000, behind_s)
    return looked_at(events_of(commits, batches, groups), health, delay_s)


class Health(Looks):
    """What partitions and groups have to say about their health."""

    has_groups = True
    result = RESULT

    def __init__(self, every_ms: int, retention_ms: int, soon_ms: int, behind_s: int) -> None:
        super().__init__(every_ms)
        self._retention_ms = retention_ms
        self._soon_ms = soon_ms
        self._behind_s = behind_s

    def new_place(self, *, is_group: bool) -> Place:
        if is_group:
            return Group(retention_ms=self._retention_ms, soon_ms=self._soon_ms)
        return Partition(behind_s=self._behind_s)

    def decisive(self, events: Events) -> Array:
        """Of the commits in a window: the last ones of each group and partition, and a group's newest ones and first.

        A tombstone takes no other commit's place, because what was before it counts no more, and what follows does.
        """
        mask = ~events.is_commit
        commits = events.only(~mask)
        window, group = commits.of("at_ms") // self.every_ms, commits.of("group_id")
        reader = window, commits.of("partition"), commits.of("topic"), group
        of_group = commits.of("is_of_group") == 1
        log_offset = commits.of("log_offset")
        last = newest(log_offset, COMMITS, commits.of("is_tombstone"), *reader, of_group)
        mask[~mask] = np.where(
            of_group,
            newest(log_offset, 1, *reader, of_group) | newest(-commits.of("at_ms"), 1, window, group, of_group),
            last,
        )
        return mask


def _log_offset(event: Event) -> int:
    assert event.log_offset is not None
    return event.log_offset


@dataclass
class Judged(Place):
    """A place whose checks have a status. It says what has changed."""

    statuses: dict[Any, str] = field(default_factory=dict)  # the last ones

    def say(self, at_ms: int) -> Iterator[Sequence[Any]]:
        """One row for each change."""
        for group, topic, partition, check, status, *numbers in self.judge(at_ms):
            before = self.statuses.get((group, topic, partition, check))
            if status != before:
                self.statuses[group, topic, partition, check] = status
                yield at_ms, group, topic, partition, check, status, before, *(numbers or (None, None, None))

    def judge(self, at_ms: int) -> Iterator[Any]:
        """The status of each check, with its group, topic and partition before and its numbers behind it."""
        raise NotImplementedError


@dataclass
class Partition(Judged, LogPlace):
    """A partition and those who read it: the check `reading`."""

    behind_s: int = BEHIND_S
    place: Any = (None, None)
    windows: dict[str | None, list[Any]] = field(default_factory=dict)  # by group: the last commits; none: removed
    removals: dict[str | None, int] = field(default_factory=dict)  # by group: the log offset of the last tombstone

    def take_over(self, events: list[Event]) -> None:
        """Commits get the lag that they had at their time. They count in the order of the log."""
        changed: dict[str | None, list[Any]] = {}
        for event in sorted(events, key=lambda event: (event.at_ms, event.log_end is None)):
            if event.log_end is not None:
                self.grow(event)
                continue
            self.place = event.topic, event.partition
            group, log_offset = event.group_id, _log_offset(event)
            more = changed.setdefault(group, [])
            if event.offset is None:
                self.removals[group] = max(log_offset, self.removals.get(group, -1))
            else:
                lag = 0 if self.log_end is None else max(0, self.log_end - event.offset)
                more.append((log_offset, event.offset, lag, event.at_ms))
        for group, more in changed.items():
            removed = self.removals.get(group, -1)
            window = (*self.windows.get(group, ()), *more)
            self.windows[group] = sorted(one for one in window if one[0] > removed)[-COMMITS:]
        self.settle()

    def judge(self, at_ms: int) -> Iterator[Any]:
        """`reading` of each group."""
        for group, window in self.windows.items():
            offset = window[-1][1] if window else None
            lag = None if offset is None or self.log_end is None else max(0, self.log_end - offset)
            seconds = None if offset is None else self.seconds_behind(offset, at_ms)
            status = reading(window, lag, at_ms, is_behind=seconds is not None and seconds > self.behind_s)
            yield group, *self.place, "reading", status, offset, self.log_end, lag


def reading(window: list[Any], lag: int | None, at_ms: int, *, is_behind: bool) -> str:
    """The status of a partition with these last commits (log offset, offset, lag, time)."""
    if not window:
        return "REMOVED"
    _, offsets, lags, times = zip(*window)
    span_ms = times[-1] - times[0] if len(window) > 1 else TEN_MINUTES_MS
    if not lag:
        return "OK"
    if at_ms - times[-1] > span_ms:
        return "STOP"
    if any(after < before for before, after in pairwise(offsets)):
        return "REWIND"
    always_behind = 0 not in lags and len(window) > 1
    if always_behind and len(set(offsets)) == 1:
        return "STALL"
    if always_behind and not any(after < before for before, after in pairwise(lags)):
        return "WARN"
    return "BEHIND" if is_behind else "OK"


@dataclass
class Group(Judged):
    """A group: the checks `expiry`, `rebalances` and `commits`."""

    retention_ms: int = 0
    soon_ms: int = 0
    commits: dict[Any, Event] = field(default_factory=dict)  # by topic and partition: the newest
    generation: Event | None = None  # the newest record of the group
    joined: dict[str, Event] = field(default_factory=dict)  # the members that have records of their own
    generations: list[tuple[int, int, bool]] = field(default_factory=list)  # of ten minutes: time, members, is new
    first_members_ms: int | None = None
    first_commit_ms: int | None = None
    group_id: str | None = None

    def take_over(self, events: list[Event]) -> None:
        """In the order of the log."""
        for event in sorted(events, key=_log_offset):
            self.group_id = event.group_id
            if event.members is None:
                key = event.topic, event.partition
                self.commits[key] = max(event, self.commits.get(key, event), key=_log_offset)
                self.first_commit_ms = min(event.at_ms, self.first_commit_ms or event.at_ms)
            elif event.member_id is not None:
                newest = max(event, self.joined.get(event.member_id, event), key=_log_offset)
                self.joined[event.member_id] = newest
            else:
                before = None if self.generation is None else self.generation.generation
                self.generation = max(event, self.generation or event, key=_log_offset)
                if not event.is_tombstone:
                    is_new = (event.generation or 0) > 0 and event.generation != before
                    self.generations.append((event.at_ms, self.members(event), is_new))
            if event.members is not None and self.members(event):
                self.first_members_ms = min(event.at_ms, self.first_members_ms or event.at_ms)
        self.joined = {name: event for name, event in self.joined.items() if event.members}

    def judge(self, at_ms: int) -> Iterator[Any]:
        """The three checks."""
        for (topic, partition), commit in self.commits.items():
            is_soon = not commit.is_tombstone and self.expires_ms(commit) <= at_ms + self.soon_ms
            yield self.group_id, topic, partition, "expiry", "EXPIRES_SOON" if is_soon else "OK"
        if self.generation is not None:
            self.generations = [one for one in self.generations if at_ms - TEN_MINUTES_MS <= one[0]]
            begun = sum(is_new for _, _, is_new in self.generations)
            is_storm = begun > 2 * max([1, *(members for _, members, _ in self.generations)])
            yield self.group_id, None, None, "rebalances", "STORM" if is_storm else "OK"
        joined, committed = self.first_members_ms, self.first_commit_ms
        if joined is not None and joined + TEN_MINUTES_MS < at_ms:
            if committed is None:
                yield self.group_id, None, None, "commits", "NEVER"
            elif committed > joined + TEN_MINUTES_MS:
                yield self.group_id, None, None, "commits", "OK"

    def members(self, own: Event | None) -> int:
        """How many members the group has, if this is its own record; see `members.py`."""
        listed = 0 if own is None or own.member_id is not None else own.members or 0
        return listed + sum(event.members or 0 for event in self.joined.values())

    def expires_ms(self, commit: Event) -> float:
        """When the broker removes an offset; never while the group has members."""
        if self.members(self.generation):
            return float("inf")
        if commit.expire_ms is not None:
            return commit.expire_ms
        since_ms = commit.since_ms
        if self.generation is not None and not self.generation.is_tombstone and self.generation.since_ms is not None:
            since_ms = self.generation.since_ms
        return float("inf") if since_ms is None else since_ms + self.retention_ms
