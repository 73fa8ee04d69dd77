"""Why did a group rebalance? A story of its last rebalances, made of its events (events.py), and advice. Pure.

A rebalance begins with its cause and ends when the group is stable or empty. Events between two rebalances belong to
the one that they have led to. A consumer group (KIP-848) has assignments instead, in which members go on: each ends
when it begins. Advice is given where the cause is a known one; each rule is a function below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from barnabas.coordinators.groups.consumer.settings import SESSION_TIMEOUT
from barnabas.coordinators.groups.events import OTHER_PROTOCOL, Event, Identity, Kind, Moved
from barnabas.coordinators.groups.records import read_assignment
from barnabas.runtime.counted import counted

STORM_COUNT, STORM_WITHIN_MS = 5, 600_000
ROLLING_WITHIN_MS = 900_000
SLOW_PHASE_MS = 5_000.0

Owners = dict[tuple[str, int], Identity]


class Rebalance:
    """One rebalance, as far as its events are known. Times of phases in milliseconds, None: not over, or not known."""

    def __init__(self, event: Event, leading: list[Event]) -> None:
        self.at_ms = event.at_ms
        self.cause: str = event.details.get("cause", event.kind.value)
        self.from_generation: int = event.details["generation"]
        self.events = [*leading, event]
        self.generation: int | None = None
        self.members: int | None = None
        self.protocol: str | None = None
        self.leader: Identity | None = None
        self.join_ms: float | None = None
        self.last_to_join: Identity | None = None
        self.last_after_ms: float | None = None  # when that one joined, from the beginning on
        self.sync_ms: float | None = None
        self.outcome = "running"  # later stable, empty, began again, live reset; assigned
        self.moved: list[Moved] | None = None


def rebalances(events: Sequence[Event]) -> list[Rebalance]:
    """The rebalances of a group, the oldest first."""
    found: list[Rebalance] = []
    current: Rebalance | None = None
    leading: list[Event] = []
    owners: Owners | None = None
    for event in events:
        if event.kind in (Kind.REBALANCE, Kind.LIVE_RESET):
            if current is not None:
                current.outcome = "began again"
                while current.events[-1].member is not None and current.events[-1].monotonic_ms == event.monotonic_ms:
                    leading.insert(0, current.events.pop())  # what has begun it again
            current = Rebalance(event, leading)
            found.append(current)
            leading = []
            if event.kind is Kind.LIVE_RESET:
                current.outcome = "live reset"
                current.members = event.details["members"]
                current, owners = None, {}
        elif event.kind is Kind.ASSIGNED:
            if current is not None:  # of the classic group that it was
                current.outcome = "began again"
                while current.events[-1].kind is Kind.JOINED:
                    leading.insert(0, current.events.pop())
                current = None
            found.append(_assignment(event, leading))
            leading, owners = [], None
        elif current is None:
            leading.append(event)
        else:
            current.events.append(event)
            if _ends(current, event):
                if event.kind is Kind.STABLE:
                    after = _owners(event)
                    current.moved = None if owners is None or after is None else _moved(owners, after)
                    owners = after
                else:
                    owners = {}
                current = None
    return found


def _assignment(event: Event, leading: list[Event]) -> Rebalance:
    back = {Kind.REFUSED, Kind.AWAY}  # these change nothing, nor does a static member that is back
    kinds = {one.kind for one in leading if one.kind not in back and "replaces" not in one.details}
    assignment = Rebalance(event, leading)
    assignment.outcome = event.kind.value
    assignment.generation, assignment.members = event.details["epoch"], event.details["members"]
    assignment.protocol, assignment.moved = event.details["assignor"], event.details["moved"]
    if kinds - {Kind.SUBSCRIBED}:
        assignment.cause = "its members have changed"
    else:
        assignment.cause = "a member reads other topics" if kinds else "the topics that it reads have changed"
    return assignment


def _ends(rebalance: Rebalance, event: Event) -> bool:
    """Take down what an event says of the rebalance. True if it is over."""
    details = event.details
    if event.kind is Kind.GENERATION:
        rebalance.generation, rebalance.members = details["generation"], details["members"]
        rebalance.protocol, rebalance.leader = details["protocol"], details["leader"]
        rebalance.join_ms, rebalance.last_to_join = details["took_ms"], details["last"]
        rebalance.last_after_ms = details["last_after_ms"]
    elif event.kind is Kind.STABLE:
        rebalance.sync_ms = details["took_ms"]
        rebalance.outcome = "stable"
        return True
    elif event.kind is Kind.EMPTY:
        rebalance.generation, rebalance.members = details["generation"], 0
        rebalance.outcome = "empty"
        return True
    return False


def _owners(event: Event) -> Owners | None:
    """Who has which partition; None: it was not kept, or cannot be read."""
    assignments = event.details["assignments"]
    if assignments is None or event.details["protocol_type"] != "consumer":
        return None
    owners: Owners = {}
    for who, data in assignments:
        if not data:
            continue
        found = read_assignment(data)
        if found is None:
            return None
        for topic in found.assigned_partitions:
            owners |= {(topic.topic, index): who for index in topic.partitions}
    return owners


def _moved(before: Owners, after: Owners) -> list[Moved]:
    keys = sorted({*before, *after})
    pairs = ((key, before.get(key), after.get(key)) for key in keys)
    return [(*key, old, new) for key, old, new in pairs if _person(old) != _person(new)]


def _person(who: Identity | None) -> object:
    """The same for a static member under another member id."""
    return None if who is None else who.instance_id or who.member_id


# ---- as text ----


def named(who: Identity | None) -> str:
    """A member, for people."""
    if who is None:
        return "nobody"
    return f"{who.instance_id or who.client_id or who.member_id} at {who.host}"


def sentence(event: Event) -> str | None:
    """An event of a timeline; None for those that the phases tell."""
    details = event.details
    who = named(event.member)
    if event.kind in (Kind.JOINED, Kind.REJOINED, Kind.SUBSCRIBED):
        why = f" ({details['reason']!r})" if details["reason"] else ""
        if "replaces" in details:
            return f"{who} came back as a static member{why}"
        return f"{who} {event.kind.value}{why}"
    if event.kind is Kind.LEFT:
        return f"{who} left" + (f" ({details['reason']!r})" if details["reason"] else "")
    if event.kind is Kind.AWAY:
        return f"{who} {event.kind.value}: a static member, whose partitions wait for it"
    if event.kind is Kind.SILENT:
        return f"{who} was thrown out: no heartbeat for {_session_timeout(event)}"
    if event.kind is Kind.NOT_BACK:
        return f"{who} was thrown out: it {event.kind.value} within {_session_timeout(event)}"
    if event.kind in (Kind.DID_NOT_JOIN, Kind.DID_NOT_SYNC, Kind.DID_NOT_REVOKE):
        timeout = f"max.poll.interval.ms={details['rebalance_timeout_ms']}"
        return f"{who} was thrown out: it {event.kind.value} within {timeout}"
    if event.kind is Kind.NEVER_JOINED:
        return f"nobody joined with the member id {details['member_id']}, for which the group waited"
    if event.kind is Kind.LIVE_RESET:
        partitions, members = counted(details["partitions"], "partition"), counted(details["members"], "member")
        return f"live reset of {partitions}: {members} had to join again"
    if event.kind is Kind.REFUSED:
        times = f" {details['count']} times" if details["count"] > 1 else ""
        return f"a {details['what']} of {who} was refused{times}: {details['error']}"
    return None


# ---- advice ----


def advice(events: Sequence[Event]) -> list[tuple[str, str]]:
    """What to do, as (known cause, sentence). The most specific first."""
    story = [one for one in rebalances(events) if one.outcome != Kind.ASSIGNED.value]  # nobody waits for these
    return [(name, text) for name, rule in RULES for text in rule(events, story)]


def _poll_interval(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    slow = [
        event
        for event in events
        if event.kind in (Kind.DID_NOT_JOIN, Kind.DID_NOT_REVOKE)
        or (event.kind is Kind.LEFT and "poll" in event.details["reason"].lower())
    ]
    if slow:
        last = slow[-1]
        limit = last.details.get("rebalance_timeout_ms")
        what = "max.poll.interval.ms" + ("" if limit is None else f"={limit}")
        yield (
            f"{named(last.member)} works longer on its records than {what} between two polls ({_times(slow)}). Raise "
            "max.poll.interval.ms, or lower max.poll.records, so that a poll's records are done in time."
        )


def _rolling_restart(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    gone: dict[tuple[str, str], float] = {}
    back: dict[tuple[str, str], None] = {}
    for event in events:
        who = event.member
        if who is None or who.instance_id is not None:
            continue
        person = (who.client_id, who.host)
        if event.kind in (Kind.LEFT, Kind.SILENT):
            if "poll" not in event.details.get("reason", "").lower():
                gone[person] = event.monotonic_ms
        elif event.kind is Kind.JOINED:
            left_ms = gone.pop(person, None)
            if left_ms is not None and event.monotonic_ms - left_ms < ROLLING_WITHIN_MS:
                back[person] = None
    if len(back) >= 2:
        cost, timeout = "rebalances", "and a session.timeout.ms"
        if _is_assigned_to(events):
            cost, timeout = "assignments", f"and the group a {SESSION_TIMEOUT}"
        yield (
            f"{counted(len(back), 'member')} left and came back under another id, as in a rolling restart; each cost "
            f"two {cost}. Give every member a group.instance.id of its own, {timeout} that is longer than a restart "
            "takes: then a restart moves nothing."
        )


def _mixed_assignors(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    refused = [
        event
        for event in events
        if event.details.get("error") == "INCONSISTENT_GROUP_PROTOCOL" and event.details["what"] != OTHER_PROTOCOL
    ]
    if refused:
        yield (
            f"{named(refused[-1].member)} has no assignor in common with the members, and cannot join. Give all of "
            "them one partition.assignment.strategy in common; change it in two rolling restarts, the first with both."
        )
    offers = _latest(events, "protocols")
    distinct = {tuple(offer) for offer in offers.values() if offer}  # members of the consumer protocol offer none
    if len(distinct) > 1:
        listed = "; ".join(sorted(", ".join(offer) for offer in distinct))
        chosen = next((one.protocol for one in reversed(story) if one.protocol is not None), None)
        yield (
            f"Members offer different assignors ({listed}), so the group uses what all have: {chosen}. Give all "
            "members the same partition.assignment.strategy."
        )


def _other_protocol(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    refused = [event for event in events if event.details.get("what") == OTHER_PROTOCOL]
    if refused:
        yield (
            f"{named(refused[-1].member)} speaks another protocol than the members, and cannot join. Give all of them "
            "one group.protocol, or let groups go from one to the other (group.consumer.migration.policy)."
        )


def _different_topics(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    topics = {who: tuple(found) for who, found in _latest(events, "topics").items() if found is not None}
    distinct = sorted(set(topics.values()))
    if len(distinct) > 1:
        listed = "; ".join(", ".join(found[:5]) or "nothing" for found in distinct[:4])
        effect = "" if _is_assigned_to(events) else ": each rebalance of one stops the other, too"
        yield (
            f"Members subscribe to different topics ({listed}). If that is not meant, two programs share one group.id"
            f"{effect}. Give each program a group of its own."
        )


def _silence(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    silent = [event for event in events if event.kind is Kind.SILENT and not event.details["is_new"]]
    if silent:
        last = silent[-1]
        of_group = " of the group" if last.details["setting"] == SESSION_TIMEOUT else ""
        yield (
            f"{named(last.member)} sent no heartbeat for {_session_timeout(last)} ({_times(silent)}): its process died "
            "without leaving, stood still (garbage collection, a suspended machine), or the network failed. If it was "
            f"alive, raise {last.details['setting']}{of_group}."
        )


def _long_restart(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    late = [event for event in events if event.kind is Kind.NOT_BACK]
    if late:
        last = late[-1]
        yield (
            f"{named(last.member)} left for a while and did not come back within {_session_timeout(last)} "
            f"({_times(late)}), so its partitions moved. If its restart takes longer, raise "
            f"{last.details['setting']} of the group."
        )


def _unused_ids(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    unused = [event for event in events if event.kind is Kind.NEVER_JOINED]
    if unused:
        yield (
            f"The group waited for clients that asked for a member id and did not use it ({_times(unused)}): they "
            "ended while they joined. Look for consumers that are started again and again."
        )


def _slow_phases(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    joins = [one for one in story if one.last_after_ms is not None and one.last_after_ms > SLOW_PHASE_MS]
    if joins:
        worst = max(joins, key=lambda one: one.last_after_ms or 0)
        yield (
            f"A rebalance waited {_seconds(worst.last_after_ms)} until {named(worst.last_to_join)} joined, the "
            "last one. A consumer joins when it polls next: let it poll more often (max.poll.records)."
        )
    syncs = [one for one in story if one.sync_ms is not None and one.sync_ms > SLOW_PHASE_MS]
    if syncs:
        worst = max(syncs, key=lambda one: one.sync_ms or 0)
        yield f"The leader, {named(worst.leader)}, took {_seconds(worst.sync_ms)} to assign the partitions."


def _storm(events: Sequence[Event], story: list[Rebalance]) -> Iterator[str]:
    times = [one.at_ms for one in story if one.outcome != "live reset"]
    for first, last in zip(times, times[STORM_COUNT - 1 :]):
        if last - first <= STORM_WITHIN_MS:
            yield (
                f"{STORM_COUNT} rebalances or more within {STORM_WITHIN_MS // 60_000} minutes: the group hardly works. "
                "The causes above, the latest first, are where to begin."
            )
            return


Rule = Callable[[Sequence[Event], list[Rebalance]], Iterator[str]]
RULES: tuple[tuple[str, Rule], ...] = (
    ("poll interval too short", _poll_interval),
    ("rolling restart without static ids", _rolling_restart),
    ("mixed assignors", _mixed_assignors),
    ("another protocol", _other_protocol),
    ("different subscriptions", _different_topics),
    ("silent members", _silence),
    ("slow restart", _long_restart),
    ("member ids that nobody uses", _unused_ids),
    ("slow phase", _slow_phases),
    ("rebalance storm", _storm),
)


def _latest(events: Sequence[Event], name: str) -> dict[str, Any]:
    """What each member that is still there has said last in a JoinGroup."""
    found: dict[str, Any] = {}
    for event in events:
        if event.kind is Kind.LIVE_RESET:
            found.clear()
        if event.member is None:
            continue
        if event.kind in (Kind.JOINED, Kind.REJOINED, Kind.SUBSCRIBED):
            found.pop(event.details.get("replaces", ""), None)
            found[event.member.member_id] = event.details[name]
        elif event.kind is not Kind.REFUSED:
            found.pop(event.member.member_id, None)
    return found


def _is_assigned_to(events: Sequence[Event]) -> bool:
    """Whether the broker assigns to the group now: then it is a consumer group (KIP-848)."""
    kinds = (event.kind for event in reversed(events))
    return next((kind for kind in kinds if kind in (Kind.ASSIGNED, Kind.REBALANCE)), None) is Kind.ASSIGNED


def _session_timeout(event: Event) -> str:
    return f"{event.details['setting']}={event.details['session_timeout_ms']}"


def _times(events: Sequence[Event]) -> str:
    return "once" if len(events) == 1 else f"{len(events)} times"


def _seconds(milliseconds: float | None) -> str:
    return f"{(milliseconds or 0) / 1000:.1f} s"
