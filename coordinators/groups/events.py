"""What has happened to groups lately: typed events, in a bounded ring for each group, in memory only.

Joins, rebalances and removals note an event (`Effects.note`). Heartbeats and commits note none: only refused commits
and joins do, and repeated ones are counted in one event. The rings of all groups together are bounded by `EVENTS_MAX`:
beyond that, the group whose last event is oldest loses its events first. `explanation.py` makes a story of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from barnabas.coordinators.groups.consumer.member import ConsumerMember
    from barnabas.coordinators.groups.members import Member

EVENTS_OF_GROUP_MAX = 200
EVENTS_MAX = 40_000
MOVED_MAX = 200  # partitions of one rebalance that are listed
TEXT_CHARACTERS_MAX = 255  # of a text that a client chose
ASSIGNMENT_BYTES_MAX = 64 * 1024  # larger assignments of a generation are not kept
ASSIGNMENTS_MAX = 500  # nor those of more members
OTHER_PROTOCOL = "join by another protocol"  # than that of the members
COUNTED_WITHIN_MS = 60_000.0  # so far apart, refused requests of a kind are one event


class Kind(Enum):
    """The kinds of events. Their details are named beside them."""

    JOINED = "joined"  # reason, protocols, topics; took the place of: replaces
    REJOINED = "rejoined"  # reason, protocols, topics, is_leader, changed
    SUBSCRIBED = "reads other topics now"  # reason, protocols, topics; in a consumer group (KIP-848)
    LEFT = "left"  # reason
    AWAY = "left for a while"  # a static member, whose partitions wait for it; in a consumer group (KIP-848)
    SILENT = "silent"  # session_timeout_ms, setting (that it comes from), is_new
    NOT_BACK = "did not come back"  # as SILENT; a static member that had left for a while
    DID_NOT_JOIN = "did not join again"  # rebalance_timeout_ms
    DID_NOT_SYNC = "did not sync"  # rebalance_timeout_ms
    DID_NOT_REVOKE = "did not give up its partitions"  # rebalance_timeout_ms; in a consumer group (KIP-848)
    NEVER_JOINED = "never joined"  # a member id was given out, nobody used it: member_id
    REBALANCE = "rebalance"  # generation (the one that ends), cause, members
    GENERATION = "generation"  # generation, members, protocol, leader, took_ms, last (to join), last_after_ms
    STABLE = "stable"  # generation, took_ms, protocol_type, assignments
    ASSIGNED = (
        "assigned"  # generation (the epoch before), epoch, members, assignor, moved; in a consumer group (KIP-848)
    )
    EMPTY = "empty"  # generation
    LIVE_RESET = "live reset"  # generation, partitions, members
    REFUSED = "refused"  # what (commit, join, OTHER_PROTOCOL), error, count, last_ms


class Identity(NamedTuple):
    """Who a member is, as events name it."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str


Moved = tuple[str, int, Identity | None, Identity | None]  # topic, partition, from whom, to whom


class Event:
    """One event. `details` has what its kind names."""

    __slots__ = ("at_ms", "details", "kind", "member", "monotonic_ms")

    def __init__(
        self, kind: Kind, at_ms: int, monotonic_ms: float, member: Identity | None, details: dict[str, Any]
    ) -> None:
        self.kind = kind
        self.at_ms = at_ms
        self.monotonic_ms = monotonic_ms
        self.member = member
        self.details = details

    def __repr__(self) -> str:
        return f"Event({self.kind.value!r}, {self.at_ms}, {self.member!r}, {self.details!r})"


def identity(member: Member | ConsumerMember) -> Identity:
    """Who a member is. Long texts are cut."""
    return Identity(
        cut(member.member_id),
        None if member.group_instance_id is None else cut(member.group_instance_id),
        cut(member.client_id),
        member.client_host.removeprefix("/"),
    )


def cut(text: str) -> str:
    """A text that a client chose, of bounded length."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX]


class EventBook:
    """The events of all groups of one broker."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._rings: OrderedDict[str, deque[Event]] = OrderedDict()  # the group with the newest event is last
        self._events_max = events_max
        self.count = 0

    def of_group(self, group_id: str) -> list[Event]:
        """The events of a group, the oldest first."""
        return list(self._rings.get(group_id, ()))

    def note(self, group_id: str, events: Iterable[Event]) -> None:
        ring = self._rings.get(group_id)
        if ring is None:
            ring = self._rings[group_id] = deque()
        else:
            self._rings.move_to_end(group_id)
        for event in events:
            ring.append(event)
            self.count += 1
        while len(ring) > EVENTS_OF_GROUP_MAX:
            ring.popleft()
            self.count -= 1
        while self.count > self._events_max:
            oldest_id, oldest = next(iter(self._rings.items()))
            oldest.popleft()
            self.count -= 1
            if not oldest:
                del self._rings[oldest_id]

    def refused(
        self, group_id: str, what: str, error: str, member_id: str, client: tuple[str, str], times: tuple[int, float]
    ) -> None:
        """A commit or a join was refused. `client`: client id and host. `times`: the wall and the monotonic clock."""
        now_ms, monotonic_ms = times
        ring = self._rings.get(group_id)
        for event in reversed(ring or ()):
            if monotonic_ms - event.monotonic_ms > COUNTED_WITHIN_MS or event.kind is Kind.REBALANCE:
                break
            details = event.details
            if event.kind is Kind.REFUSED and details["error"] == error and details["what"] == what:
                assert event.member is not None
                if event.member.client_id == cut(client[0]) and event.member.host == client[1].removeprefix("/"):
                    details["count"] += 1
                    details["last_ms"] = now_ms
                    return
        who = Identity(cut(member_id), None, cut(client[0]), client[1].removeprefix("/"))
        details = {"what": what, "error": error, "count": 1, "last_ms": now_ms}
        self.note(group_id, [Event(Kind.REFUSED, now_ms, monotonic_ms, who, details)])

    def forget(self, group_id: str) -> None:
        """The group is gone from this broker."""
        ring = self._rings.pop(group_id, None)
        if ring is not None:
            self.count -= len(ring)
