"""What happens in a day, as pure values: records, commits, rebalances, and the truth about all of it.

`plan_day(seed)` walks through the day minute by minute. It has no clock and reaches no broker, so a seed gives the same
day everywhere; `fill.py` writes it to brokers. Each thing that goes wrong is one line in `GROUPS`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from math import pi, sin
from random import Random
from typing import Any

MINUTE_MS = 60_000
HOUR = 60  # in minutes
DAY = 24 * HOUR
EXPIRES_AFTER = 12 * HOUR  # of the group that sets an expiry time with its commits
BROKER_DIES_AT = 12 * HOUR
POISONED_AT, REPAIRED_AT = 10 * HOUR, 13 * HOUR
POISON = b'{"payment": 17, "amount": '  # ends in the middle
STORM_GENERATIONS = 30

# Partitions, and the share of the day's records.
TOPICS = {"orders": (6, 0.3), "payments": (3, 0.2), "clicks": (4, 0.5)}


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic."""

    at_ms: int
    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset; `offset` None removes it. `expire_ms` -1: the broker's retention decides.

    `cause`: why, as the offset journal says it. `member`: who committed, if a member did.
    """

    at_ms: int
    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str = ""
    expire_ms: int = -1
    cause: str = "commit"
    member: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class Generation:
    """A group begins a generation. `assignment`: the partitions of `topic` that each member got."""

    at_ms: int
    group: str
    generation: int
    topic: str
    assignment: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BrokerDies:
    """One of the brokers is killed, and comes back."""

    at_ms: int


Event = Record | Commit | Generation | BrokerDies


@dataclass(frozen=True, slots=True)
class Group:
    """How a group behaves. Times are minutes of the day."""

    name: str
    topic: str
    members: int = 2
    commits_every: int = 1
    capacity: float = 10.0  # the most that it reads, as a multiple of what its topic gets on average
    starts_at: int = 0
    stops_at: int = DAY  # its process hangs: no commit from then on, and its members stay
    leaves_at: int = DAY  # its members leave in order
    rewinds_at: int | None = None  # somebody sets its offsets back by two hours of reading
    jumps_at: int | None = None  # somebody sets its offsets to the end, over what it has not read
    storm_at: int | None = None  # its members come and go for 20 minutes
    has_expiry: bool = False  # its commits say when they expire
    never_commits: bool = False
    stumbles: bool = False  # over the poisoned record


GROUPS = (
    Group("billing", "orders"),
    Group("shipping", "orders", members=3, commits_every=2),
    Group("analytics", "clicks", capacity=1.2),  # too slow for the busy hours
    Group("fraud", "payments", members=3, stumbles=True),
    Group("search", "orders", stops_at=15 * HOUR),
    Group("reporting", "payments", rewinds_at=16 * HOUR),
    Group("archive", "clicks", members=1, commits_every=5, capacity=0.6, jumps_at=20 * HOUR),
    Group("newsletter", "payments", members=1, leaves_at=6 * HOUR, has_expiry=True),
    Group("push", "orders", members=4, storm_at=18 * HOUR),
    Group("lurker", "orders", members=1, never_commits=True),
)


@dataclass(frozen=True, slots=True)
class Day:
    """The events in the order of time, and the truth."""

    events: tuple[Event, ...]
    truth: dict[str, Any]


@dataclass(slots=True)
class _Reading:
    """Where a group is."""

    group: Group
    generation: int = 0
    members: int = 0
    positions: dict[int, int] = field(default_factory=dict)  # by partition: the next offset to read
    committed: dict[int, int] = field(default_factory=dict)
    history: list[dict[int, int]] = field(default_factory=list)  # `committed` after each minute


def plan_day(seed: int, start_ms: int, records: int = 50_000, commits_every: int = 1) -> Day:
    """The day that begins at `start_ms` (midnight) and has about so many records.

    Most groups commit every so many minutes.
    """
    return _Planner(seed, start_ms, records, commits_every).plan()


class _Planner:
    def __init__(self, seed: int, start_ms: int, records: int, commits_every: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.start_ms = start_ms
        self.commits_every = commits_every
        self.records_per_minute = {topic: records * share / DAY for topic, (_, share) in TOPICS.items()}
        self.ends = {topic: [0] * partitions for topic, (partitions, _) in TOPICS.items()}
        self.poison: tuple[int, int] | None = None  # partition and offset in payments
        self.numbers = count(1)
        self.incidents: list[dict[str, Any]] = []
        self.events: list[Event] = []

    def plan(self) -> Day:
        readings = [_Reading(group) for group in GROUPS]
        for minute in range(DAY):
            if minute == BROKER_DIES_AT:
                self.events.append(BrokerDies(self.start_ms + minute * MINUTE_MS))
            for topic in TOPICS:
                self.events += self._produce(topic, minute)
            for reading in readings:
                if minute >= reading.group.starts_at:
                    self.events += self._live(reading, minute)
                    reading.history.append(dict(reading.committed))
        self.events.sort(key=lambda event: event.at_ms)  # stable: equal times keep their order
        return Day(tuple(self.events), self._truth(readings))

    # ------------------------------------------------------------ records

    def _produce(self, topic: str, minute: int) -> Iterator[Record]:
        """The records of a minute: few at night, many in the afternoon; partition 0 of clicks gets half of them."""
        busy = 1 + 0.9 * sin(2 * pi * (minute / DAY - 0.35))
        expected = self.records_per_minute[topic] * busy
        number = int(expected) + (self.random.random() < expected % 1)
        partitions = len(self.ends[topic])
        times = sorted(self.random.randrange(MINUTE_MS) for _ in range(number))
        for time_ms in times:
            is_hot = topic == "clicks" and self.random.random() < 0.4
            partition = 0 if is_hot else self.random.randrange(partitions)
            value = json.dumps({topic[:-1]: next(self.numbers), "amount": self.random.randrange(1, 10_000)}).encode()
            if topic == "payments" and partition == 2 and minute >= POISONED_AT and self.poison is None:
                self.poison = (partition, self.ends[topic][partition])
                value = POISON
                self._note("poisoned record", minute, topic=topic, partition=partition, offset=self.poison[1])
            key = b"hot" if is_hot else b"customer-%d" % self.random.randrange(500)
            headers = (("trace", b"%016x" % self.random.getrandbits(64)),) if self.random.random() < 0.1 else ()
            self.ends[topic][partition] += 1
            yield Record(self.start_ms + minute * MINUTE_MS + time_ms, topic, partition, key, value, headers)

    # ------------------------------------------------------------ groups

    def _live(self, reading: _Reading, minute: int) -> Iterator[Event]:
        """What a group does in a minute. Its events are at the end of the minute, behind the records."""
        group, at_ms = reading.group, self.start_ms + (minute + 1) * MINUTE_MS - 1
        if minute == group.starts_at:
            yield self._rebalance(reading, at_ms, group.members)
        if minute == group.leaves_at:
            yield self._rebalance(reading, at_ms, 0)
            self._note("left", minute, group=group.name)
        if minute == group.stops_at:
            self._note("stopped", minute, group=group.name, offsets=dict(reading.committed))
        if group.storm_at is not None and 0 <= minute - group.storm_at < 20:
            yield from self._storm(reading, minute, at_ms)
        if minute >= group.leaves_at:
            yield from self._expire(reading, minute, at_ms)
            return
        if minute >= group.stops_at or group.never_commits:
            return
        if minute == group.rewinds_at:
            yield from self._reset(reading, minute, at_ms, "rewind", reading.history[-2 * HOUR])
            return
        if minute == group.jumps_at:
            yield from self._reset(reading, minute, at_ms, "jump", dict(enumerate(self.ends[group.topic])))
            return
        self._read(reading, minute)
        if (minute - group.starts_at) % (group.commits_every * self.commits_every) == 0:
            for partition in range(len(self.ends[group.topic])):
                yield self._commit(reading, at_ms, partition, reading.positions[partition])

    def _read(self, reading: _Reading, minute: int) -> None:
        """Advance the positions by what the group is able to read in a minute."""
        group, ends = reading.group, self.ends[reading.group.topic]
        able = max(1, round(group.capacity * self.records_per_minute[group.topic] / len(ends)))
        for partition, end in enumerate(ends):
            position = min(end, reading.positions.get(partition, 0) + able)
            if group.stumbles and self.poison and partition == self.poison[0] and minute < REPAIRED_AT:
                position = min(position, self.poison[1])
            reading.positions[partition] = position
        if group.stumbles and self.poison and minute in (POISONED_AT, REPAIRED_AT):
            kind = "stalled" if minute == POISONED_AT else "repaired"
            self._note(kind, minute, group=group.name, topic=group.topic, partition=self.poison[0])

    def _reset(self, reading: _Reading, minute: int, at_ms: int, kind: str, offsets: dict[int, int]) -> Iterator[Event]:
        """The members leave, an operator sets the offsets, and the members are back."""
        group = reading.group
        yield self._rebalance(reading, at_ms - 3, 0)
        for partition, offset in offsets.items():
            before = reading.committed[partition]
            if offset != before:
                place = {"topic": group.topic, "partition": partition}
                self._note(kind, minute, group=group.name, **place, from_offset=before, to_offset=offset)
            reading.positions[partition] = offset
            yield self._commit(reading, at_ms - 2, partition, offset, "reset")
        yield self._rebalance(reading, at_ms - 1, group.members)

    def _storm(self, reading: _Reading, minute: int, at_ms: int) -> Iterator[Event]:
        """One or two generations in each of twenty minutes: a member is away, and is back."""
        assert reading.group.storm_at is not None
        if minute == reading.group.storm_at:
            self._note("rebalance storm", minute, group=reading.group.name, generations=STORM_GENERATIONS)
        for number in range(1 + (minute - reading.group.storm_at) % 2):
            away = reading.generation % 2
            yield self._rebalance(reading, at_ms - 40_000 + number * 20_000, reading.group.members - away)

    def _expire(self, reading: _Reading, minute: int, at_ms: int) -> Iterator[Event]:
        """The broker removes the offsets that have expired."""
        if not reading.group.has_expiry or minute != reading.group.leaves_at + EXPIRES_AFTER:
            return
        self._note("expired", minute, group=reading.group.name, offsets=dict(reading.committed))
        for partition in list(reading.committed):
            del reading.committed[partition]
            yield Commit(at_ms, reading.group.name, reading.group.topic, partition, None, cause="expiry")

    def _commit(self, reading: _Reading, at_ms: int, partition: int, offset: int, cause: str = "commit") -> Commit:
        reading.committed[partition] = offset
        group = reading.group
        expire_ms = at_ms + EXPIRES_AFTER * MINUTE_MS if group.has_expiry else -1
        by: dict[str, Any] = {"cause": cause}
        if cause == "commit":
            by |= {"member": f"{group.name}-{partition % reading.members}", "generation": reading.generation}
        return Commit(at_ms, group.name, group.topic, partition, offset, expire_ms=expire_ms, **by)

    def _rebalance(self, reading: _Reading, at_ms: int, members: int) -> Generation:
        """The next generation, with the partitions dealt out in turn."""
        reading.generation += 1
        reading.members = members
        group = reading.group
        partitions = range(len(self.ends[group.topic]))
        assignment = {f"{group.name}-{number}": tuple(partitions[number::members]) for number in range(members)}
        return Generation(at_ms, group.name, reading.generation, group.topic, assignment)

    # ------------------------------------------------------------ truth

    def _note(self, kind: str, minute: int, **what: Any) -> None:
        self.incidents.append({"kind": kind, "at_ms": self.start_ms + minute * MINUTE_MS, **what})

    def _truth(self, readings: list[_Reading]) -> dict[str, Any]:
        """What a reader of the brokers must find."""
        commits = [event for event in self.events if isinstance(event, Commit)]
        return {
            "seed": self.seed,
            "start_ms": self.start_ms,
            "end_ms": self.start_ms + DAY * MINUTE_MS,
            "log_ends": self.ends,
            "groups": {reading.group.name: asdict(reading.group) for reading in readings},
            "committed": {
                reading.group.name: {reading.group.topic: reading.committed}
                for reading in readings
                if reading.committed
            },
            "generations": {reading.group.name: reading.generation for reading in readings},
            "commits": Counter(event.group for event in commits if event.offset is not None),
            "removals": Counter(event.group for event in commits if event.offset is None),
            "incidents": self.incidents,
        }
