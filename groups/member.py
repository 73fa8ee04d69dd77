"""`Member`: one member of a classic group. `Membership`: all members. `Effects`: the results of a transition."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from barnabas.groups.events import Event, Kind, identity
from barnabas.groups.records import GroupRecord, subscribed_topics, topics_end
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.protocol.messages import JoinGroupResponse, SyncGroupResponse

NEVER = float("inf")
CONSUMER_PROTOCOL_TYPE = "consumer"


class Effects:
    """What the caller must do after a transition: first the `stores`, then the `replies`."""

    __slots__ = ("events", "monotonic_ms", "now_ms", "replies", "stores")

    def __init__(self, now_ms: int, monotonic_ms: float) -> None:
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms
        self.events: list[Event] = []
        self.replies: list[tuple[Pending[Any], Message]] = []
        self.stores: list[tuple[GroupRecord, Callable[[ErrorCode, Effects], None] | None]] = []

    def reply_join(self, waiter: Pending[JoinGroupResponse], response: JoinGroupResponse) -> None:
        """Answer a parked JoinGroup."""
        self.replies.append((waiter, response))

    def reply_sync(self, waiter: Pending[SyncGroupResponse], response: SyncGroupResponse) -> None:
        """Answer a parked SyncGroup."""
        self.replies.append((waiter, response))

    def note(self, kind: Kind, member: Member | None = None, **details: Any) -> None:
        """Note an event of the group (events.py)."""
        who = None if member is None else identity(member)
        self.events.append(Event(kind, self.now_ms, self.monotonic_ms, who, details))

    def store(self, record: GroupRecord, then: Callable[[ErrorCode, Effects], None] | None = None) -> None:
        """Append a record. `then(error, effects)` is called when the record is committed or has failed."""
        self.stores.append((record, then))


class Drain(IntEnum):
    """How far a stale member is on its way to give up what it read before a live reset (live_reset.py)."""

    NOT_BEGUN = 0
    UNASSIGNED = 1  # an empty assignment was sent to it
    HEARD = 2  # it has sent a heartbeat since
    JOINED = 3  # it has joined again without partitions, and is not stale in the next generation


class Member:
    """One member, with its parked requests. Each of its requests moves `session_deadline_ms`."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "drain",
        "group_instance_id",
        "has_claims",
        "is_new",
        "is_stale",
        "join_version",
        "joined_ms",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: list[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Pending[JoinGroupResponse] | None = None
        self.join_version = 0
        self.awaiting_sync: Pending[SyncGroupResponse] | None = None
        self.is_new = False
        self.joined_ms = 0.0  # when its last JoinGroup came
        self.is_stale = False  # it may read on where it was before a live reset (live_reset.py)
        self.has_claims = False  # a stale member: its last JoinGroup named partitions that it keeps
        self.drain = Drain.NOT_BEGUN
        self.session_deadline_ms = NEVER

    def metadata(self, protocol_name: str | None) -> bytes:
        """The metadata that the member sent for one of its protocols; empty when it does not support that protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""


class Membership:
    """The members of a group, and which of them wait for an answer. `protocol_type` None: no member ever joined."""

    __slots__ = (
        "_awaiting_join_count",
        "_support",
        "leader",
        "members",
        "pending_members",
        "pending_sync",
        "protocol_name",
        "protocol_type",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self) -> None:
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, float] = {}  # ids given out with MEMBER_ID_REQUIRED -> deadline
        self.pending_sync: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        self._awaiting_join_count = 0
        self._support: dict[str, int] = {}  # protocol name -> how many members support it

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def subscribes(self, topic: str) -> bool:
        """Whether a consumer group reads this topic. True for all topics if its subscriptions cannot be decoded."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count_protocols(member, 1)

    def _remove(self, member_id: str, effects: Effects) -> None:
        self.pending_members.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.get(member_id)
        if member is None:
            return
        waiter = self._unpark_join(member)
        if waiter is not None:
            effects.reply_join(waiter, join_error(member.join_version, "", ErrorCode.UNKNOWN_MEMBER_ID))
        if member.awaiting_sync is not None:
            effects.reply_sync(member.awaiting_sync, messages.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None
        del self.members[member_id]
        self._count_protocols(member, -1)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _rename(self, old_id: str, new_id: str, instance_id: str, effects: Effects) -> Member:
        member = self.members.pop(old_id)
        waiter = self._unpark_join(member)
        if waiter is not None:
            effects.reply_join(waiter, join_error(member.join_version, old_id, ErrorCode.FENCED_INSTANCE_ID))
        if member.awaiting_sync is not None:
            effects.reply_sync(
                member.awaiting_sync, messages.SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
            )
            member.awaiting_sync = None
        member.member_id = new_id
        self.members[new_id] = member
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def _update(
        self, member: Member, protocols: list[tuple[str, bytes]], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _count_protocols(self, member: Member, change: int) -> None:
        for name in {name for name, _ in member.protocols}:
            left = self._support.get(name, 0) + change
            if left:
                self._support[name] = left
            else:
                del self._support[name]

    def _all_joined(self) -> bool:
        return len(self.members) <= self._awaiting_join_count and not self.pending_members

    def _park_join(self, member: Member, version: int, effects: Effects) -> Pending[JoinGroupResponse]:
        if member.awaiting_join is not None:  # sent again over another connection: the first request gets an answer too
            superseded = join_error(member.join_version, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            effects.reply_join(member.awaiting_join, superseded)
        else:
            self._awaiting_join_count += 1
        waiter: Pending[JoinGroupResponse] = Pending()
        member.awaiting_join = waiter
        member.join_version = version
        member.joined_ms = effects.monotonic_ms
        return waiter

    def _unpark_join(self, member: Member) -> Pending[JoinGroupResponse] | None:
        waiter = member.awaiting_join
        if waiter is not None:
            member.awaiting_join = None
            self._awaiting_join_count -= 1
        return waiter

    def _elect_joined_leader(self) -> bool:
        leader = None if self.leader is None else self.members.get(self.leader)
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def _select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the protocol with most votes wins."""
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if self._support.get(name, 0) == everyone:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=lambda name: votes[name])

    def _compute_subscribed_topics(self) -> None:
        """Set the topics that the members read in this generation. None: unknown, or not a consumer group."""
        if not self.members:
            self.subscribed_topics = frozenset()
            return
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return
        union: set[str] = set()
        last: bytes | None = None  # the topics of the last subscription, as bytes: the next one has mostly the same
        for member in self.members.values():
            metadata = member.metadata(self.protocol_name)
            if last is not None and metadata.startswith(last, 2):
                continue
            topics = subscribed_topics(metadata)
            if topics is None:
                return
            union.update(topics)
            last = metadata[2 : topics_end(metadata)]
        self.subscribed_topics = frozenset(union)


def join_error(version: int, member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A JoinGroup answer with an error, and without generation, protocol and leader."""
    return messages.JoinGroupResponse(
        error_code=error,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= 7 else "",
        leader="",
        member_id=member_id,
        members=[],
    )
