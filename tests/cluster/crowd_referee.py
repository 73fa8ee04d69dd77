"""What the members of a crowd have seen, and whether that may be (consumer_crowd.py)."""

import threading
from bisect import insort
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple


class Owned(NamedTuple):
    """Who owned a partition from when to when, and how it ended: revoked, lost, left, killed; open: not yet."""

    name: str
    began: float
    ended: float
    how: str


class Referee:
    """All events of all members. They come from several processes, so they are judged at the end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.events: list[list[Any]] = []
        self.read: dict[str, set[int]] = {}
        self.gone: set[str] = set()  # members that have left
        self.seen: dict[str, int] = {}  # what the coordinator said was committed last
        self.faults: list[str] = []

    def hear(self, event: list[Any]) -> None:
        """One event."""
        with self.lock:
            self.events.append(event)
            if event[2] == "read":
                self.read.setdefault(event[3], set()).add(event[4])
            elif event[2] == "left":
                self.gone.add(event[1])

    def see(self, partition: str, offset: int) -> None:
        """What the coordinator says is committed."""
        before = self.seen.get(partition, -1)
        if offset < before:
            self.faults.append(f"the committed offset of {partition} was {before} and is {offset}")
        self.seen[partition] = max(offset, before)

    def judge(self) -> Counter[str]:
        """Add what was wrong to `faults`; returns how often there was what."""
        self.events.sort(key=lambda event: event[0])
        told = Counter(event[2] for event in self.events)
        for partition, spans in self._spans().items():
            for one, other in pairwise(spans):
                if one.ended > other.began and one.name != other.name:
                    if one.how in ("lost", "killed"):
                        told[f"owned by another one before it was {one.how}"] += 1
                    else:
                        was = f"{partition} was {one.name}'s until {one.ended:.3f} ({one.how})"
                        self.faults.append(f"{was}, and {other.name}'s from {other.began:.3f}")
        self._judge_commits()
        told["read again"] = told["read"] - sum(map(len, self.read.values()))
        return told

    def _spans(self) -> dict[str, list[Owned]]:
        spans: dict[str, list[Owned]] = {}
        begun: dict[tuple[str, str], float] = {}

        def end(name: str, partition: str, at: float, how: str) -> None:
            began = begun.pop((name, partition), None)
            if began is not None:
                spans.setdefault(partition, []).append(Owned(name, began, at, how))

        for at, name, what, *more in self.events:
            if what == "assigned":
                begun.update(((name, partition), at) for partition in more[0])
            elif what in ("revoked", "lost"):
                for partition in more[0]:
                    end(name, partition, at, what)
            elif what in ("left", "killed"):
                for each, partition in [pair for pair in begun if pair[0] == name]:
                    end(each, partition, at, what)
        for name, partition in list(begun):
            end(name, partition, float("inf"), "open")
        return {partition: sorted(each, key=lambda span: span.began) for partition, each in spans.items()}

    def _judge_commits(self) -> None:
        """No commit and no reader goes back behind what had been acknowledged before it began."""
        acknowledged: dict[str, list[tuple[float, int]]] = {}  # the highest until then
        for at, _, what, *more in self.events:
            if what == "committed":
                for partition, offset in more[1]:
                    insort(acknowledged.setdefault(partition, []), (at, offset))
        began: dict[tuple[str, str], float] = {}
        for at, name, what, *more in self.events:
            if what == "assigned":
                began.update(((name, partition), at) for partition in more[0])
            elif what == "committed":
                for partition, offset in more[1]:
                    before = _highest(acknowledged[partition], more[0])
                    if offset < before:
                        self.faults.append(f"{name} committed {offset} of {partition}, after {before} was committed")
            elif what == "read" and (name, more[0]) in began:
                before = _highest(acknowledged.get(more[0], []), began.pop((name, more[0])))
                if more[1] < before:
                    self.faults.append(f"{name} began to read {more[0]} at {more[1]}, though {before} was committed")


def _highest(acknowledged: list[tuple[float, int]], until: float) -> int:
    return max((offset for at, offset in acknowledged if at < until), default=-1)
