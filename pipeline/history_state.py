"""What the history of commits has of each log: which offsets are complete, which are missing and why. All pure.

A partition's complete offsets are a set of ranges. What could not be read, and what an open transaction holds back, is
no part of it: such holes are asked for again by every run, until they are filled or gone from the log.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from barnabas.pipeline.ranges import Ranges, common, united, without
from barnabas.runtime.counted import counted

OPEN = "open transaction"
DELETE_RETENTION_MS = 86_400_000  # Kafka's default of `delete.retention.ms`
_SHOWN_MAX = 3  # places, or groups, in a sentence


class LogEnds(NamedTuple):
    """What there is of a log now."""

    first_offset: int
    end_offset: int  # the high watermark
    reached_offset: int  # where its files end; below the high watermark if they were copied too early, or cut

    def is_cut(self, known: int) -> bool:
        """Whether it cannot be the log any more that was read up to there. A checkpointed high watermark is older."""
        return known > max(self.end_offset, self.reached_offset)


class Hole(NamedTuple):
    """Offsets of a log that are not in the history, although they should be."""

    partition: int
    low: int
    high: int
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether an open transaction holds it back. What it has is no offset yet, so nothing is missing."""
        return self.reason.startswith(OPEN)


@dataclass(frozen=True)
class LogHistory:
    """What the history has of one log."""

    complete: Ranges = ()
    holes: tuple[Hole, ...] = ()
    read_at_ms: int = 0  # when all its tombstones were known that there were: those of later are perhaps gone by now

    @property
    def complete_offset(self) -> int:
        """Up to where something of it is here."""
        return max((high for _, high in self.complete), default=0)

    @property
    def end_offset(self) -> int:
        """Up to where it was read."""
        return max([high for _, high in self.complete] + [one.high for one in self.holes], default=0)


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    ranges: Mapping[int, Ranges]  # what is read of each log
    again: Mapping[int, Ranges]  # of these, where rows may be in the history already
    short: tuple[Hole, ...]  # logs that end below their high watermark
    removed: Mapping[int, Ranges]  # what no run has read, and nobody can read any more
    late: tuple[int, ...]  # logs whose tombstones may be gone: what is in the history must be compared with the log


@dataclass(frozen=True)
class HistoryState:
    """All of it, and what was said last. None: it has to be computed again."""

    logs: Mapping[int, LogHistory] = field(default_factory=dict)
    count: int | None = None  # of rows
    said: tuple[tuple[Any, ...], ...] | None = None  # the table of what is committed now
    days: tuple[str, ...] = ()  # the folders that were there then

    @property
    def holes(self) -> list[Hole]:
        return [hole for _, log in sorted(self.logs.items()) for hole in log.holes]

    def plan(
        self,
        ends: Mapping[int, LogEnds],
        now_ms: int,
        *,
        was_killed: bool = False,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> Plan:
        """What is to be read. `was_killed`: the run before this one may have written a part of what it had planned."""
        ranges, again, removed = {}, {}, {}
        short, late = [], []
        for partition, end in sorted(ends.items()):
            known = self.logs.get(partition, LogHistory())
            wanted = without([(end.first_offset, end.end_offset)], known.complete)
            if wanted:
                ranges[partition] = wanted
            holes = [(one.low, one.high) for one in known.holes]
            some = wanted if was_killed else common(wanted, holes)
            if some:
                again[partition] = some
            if end.reached_offset < end.end_offset:
                text = f"the log ends at {end.reached_offset}, below its high watermark of {end.end_offset}"
                short.append(Hole(partition, end.reached_offset, end.end_offset, text))
            lost = without([(0, end.first_offset)], known.complete) if partition in self.logs else ()
            if lost:
                removed[partition] = lost
            has_new = end.end_offset > known.end_offset or any(not one.is_open for one in known.holes)
            if partition in self.logs and has_new and now_ms - known.read_at_ms >= delete_retention_ms:
                late.append(partition)
        return Plan(ranges, again, tuple(short), removed, tuple(late))

    def after(self, plan: Plan, found: Iterable[Hole], ends: Mapping[int, LogEnds], now_ms: int) -> "HistoryState":
        """When what was planned is done, and these places could not be read."""
        logs = dict(self.logs)
        holes = [*found, *plan.short]
        for partition, end in ends.items():
            known = logs.get(partition, LogHistory())
            mine = _joined(one for one in holes if one.partition == partition and one.high > end.first_offset)
            missing = [(one.low, one.high) for one in mine]
            done = without([(0, end.first_offset), *plan.ranges.get(partition, ())], missing)
            complete = united(without(known.complete, missing), done)
            assert not common(complete, missing), f"{_place(partition, *missing[0], '')} is complete, and missing"
            is_whole = all(one.is_open for one in mine)
            logs[partition] = LogHistory(complete, mine, now_ms if is_whole else known.read_at_ms)
        return replace(self, logs=logs)

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)


def read_state(text: str) -> HistoryState:
    """What `text()` has made. ValueError: it is not that."""
    try:
        given = json.loads(text)
        logs = {
            int(partition): LogHistory(
                tuple((int(low), int(high)) for low, high in log["complete"]),
                tuple(Hole(*one) for one in log["holes"]),
                log["read_at_ms"],
            )
            for partition, log in given["logs"].items()
        }
        said = None if given["said"] is None else tuple(tuple(row) for row in given["said"])
        return HistoryState(logs, given["count"], said, tuple(given["days"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no state of a history: {error!r}") from None


def _joined(holes: Iterable[Hole]) -> tuple[Hole, ...]:
    """In their order; those that follow one another for the same reason as one."""
    found: list[Hole] = []
    for one in sorted(set(holes)):
        if found and found[-1].reason == one.reason and one.low <= found[-1].high:
            found[-1] = found[-1]._replace(high=max(found[-1].high, one.high))
        else:
            found.append(one)
    return tuple(found)


def sentences(holes: Iterable[Hole], plan: Plan) -> str:
    """What is missing, for people; empty: nothing is."""
    said = []
    held, unread = [one for one in holes if one.is_open], [one for one in holes if not one.is_open]
    if held:
        count = sum(one.high - one.low for one in held)
        of = {one.reason.removeprefix(OPEN).strip().removeprefix("of group ") for one in held}
        said.append(held_back(count, of))
    if unread:
        some = "; ".join(_place(one.partition, one.low, one.high, one.reason) for one in unread[:_SHOWN_MAX])
        more = f"; and {counted(len(unread) - _SHOWN_MAX, 'more place')}" if len(unread) > _SHOWN_MAX else ""
        said.append(f"Not read, and asked for again by the next run: {some}{more}")
    removed = [(partition, low, high) for partition, some in plan.removed.items() for low, high in some]
    if removed:
        some = "; ".join(_place(*one, "") for one in removed[:_SHOWN_MAX])
        said.append(f"Gone from the log before a run has read it: {some}")
    return ". ".join(said)


def held_back(count: int, groups: Iterable[str]) -> str:
    """What open transactions hold back, for people: how many commits, and of which groups. Empty: nothing."""
    of = [f"of group {group}" for group in sorted(set(groups))]
    names = ", ".join(of[:_SHOWN_MAX]) + (f" and {len(of) - _SHOWN_MAX} more" if len(of) > _SHOWN_MAX else "")
    if not count:
        return ""
    if count == 1:
        return f"1 commit is in an open transaction ({names}) and does not count yet"
    return f"{count:,} commits are in open transactions ({names}) and do not count yet"


def _place(partition: int, low: int, high: int, reason: str) -> str:
    where = f"__consumer_offsets-{partition} from {low} to before {high}"
    return f"{where} ({reason})" if reason else where
