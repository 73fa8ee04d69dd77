"""`Member`: one member of a classic group. `Members`: the table of all members of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.records import subscribed_topics, topics_end
from barnabas.offsets.expiry import CONSUMER_PROTOCOL_TYPE as CONSUMER_PROTOCOL_TYPE
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.protocol.messages import JoinGroupResponse, SyncGroupResponse

NEVER: Final = float("inf")
NONE: Final = ErrorCode.NONE
Supported: TypeAlias = Mapping[str, Sequence[tuple[str, bytes]]]  # by member id: name and metadata of each protocol


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


class Members:
    """The members of a group, their leader and their protocols, and which of them wait for an answer.

    It knows no state, no generation and no timer. `by_id` and the other collections are changed by its methods only,
    but for `pending` and `pending_sync`, which the phases of a rebalance fill and empty.
    """

    __slots__ = (
        "_support",
        "by_id",
        "by_instance",
        "joined_count",
        "leader",
        "pending",
        "pending_sync",
    )

    def __init__(self) -> None:
        self.leader: str | None = None
        self.by_id: dict[str, Member] = {}
        self.by_instance: dict[str, str] = {}  # group.instance.id -> member id
        self.pending: dict[str, float] = {}  # ids given out with MEMBER_ID_REQUIRED -> deadline
        self.pending_sync: set[str] = set()  # who has not synced since the last join phase
        self.joined_count = 0  # how many wait for the end of the join phase
        self._support: dict[str, int] = {}  # protocol name -> how many members support it

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if there is such a member under this instance id, if any; else why not."""
        if instance_id is not None:
            known = self.by_instance.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return NONE if member_id in self.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Take in a new member. The first one leads."""
        self.by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self.by_instance[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count_protocols(member, 1)

    def remove(self, member_id: str, effects: Effects) -> None:
        """Let a member go, if it is there: its parked requests are answered UNKNOWN_MEMBER_ID."""
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.by_id.get(member_id)
        if member is None:
            return
        self.answer_parked(member, "", ErrorCode.UNKNOWN_MEMBER_ID, effects)
        del self.by_id[member_id]
        self._count_protocols(member, -1)
        if member.group_instance_id is not None:
            self.by_instance.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)

    def rename(self, old_id: str, new_id: str, instance_id: str, effects: Effects) -> Member:
        """Give a static member another id: parked requests under the old one are answered FENCED_INSTANCE_ID."""
        member = self.by_id.pop(old_id)
        self.answer_parked(member, old_id, ErrorCode.FENCED_INSTANCE_ID, effects)
        member.member_id = new_id
        self.by_id[new_id] = member
        self.by_instance[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_id)
        return member

    def update(
        self, member: Member, protocols: list[tuple[str, bytes]], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Take what the last JoinGroup of a member says."""
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

    def all_joined(self) -> bool:
        """Whether nobody is missing in the join phase."""
        return len(self.by_id) <= self.joined_count and not self.pending

    def park_join(self, member: Member, version: int, effects: Effects) -> Pending[JoinGroupResponse]:
        """Let a JoinGroup wait for the end of the join phase."""
        if member.awaiting_join is not None:  # sent again over another connection: the first request gets an answer too
            superseded = join_error(member.join_version, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            effects.reply_join(member.awaiting_join, superseded)
        else:
            self.joined_count += 1
        waiter: Pending[JoinGroupResponse] = Pending()
        member.awaiting_join = waiter
        member.join_version = version
        member.joined_ms = effects.monotonic_ms
        return waiter

    def unpark_join(self, member: Member) -> Pending[JoinGroupResponse] | None:
        """The JoinGroup of a member that waits, which is answered by the caller now."""
        waiter = member.awaiting_join
        if waiter is not None:
            member.awaiting_join = None
            self.joined_count -= 1
        return waiter

    def answer_parked(self, member: Member, told_id: str, error: ErrorCode, effects: Effects) -> None:
        """Answer what a member waits for with an error. `told_id`: the member id in the answer of a JoinGroup."""
        waiter = self.unpark_join(member)
        if waiter is not None:
            effects.reply_join(waiter, join_error(member.join_version, told_id, error))
        if member.awaiting_sync is not None:
            effects.reply_sync(member, messages.SyncGroupResponse(error_code=error))

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first who has. False: nobody has joined."""
        leader = None if self.leader is None else self.by_id.get(self.leader)
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.by_id.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the protocol with most votes wins."""
        everyone = len(self.by_id)
        lists = ([name for name, _ in member.protocols] for member in self.by_id.values())
        chosen = most_voted(lists, lambda name: self._support.get(name, 0) == everyone)
        assert chosen is not None
        return chosen

    def supports(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether all members support one of these protocols."""
        everyone = len(self.by_id)
        return any(self._support.get(name, 0) == everyone for name, _ in protocols)

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """The topics of all members of a consumer group. None: a subscription cannot be decoded."""
        union: set[str] = set()
        last: bytes | None = None  # the topics of the last subscription, as bytes: the next one has mostly the same
        for member in self.by_id.values():
            metadata = member.metadata(protocol_name)
            if last is not None and metadata.startswith(last, 2):
                continue
            topics = subscribed_topics(metadata)
            if topics is None:
                return None
            union.update(topics)
            last = metadata[2 : topics_end(metadata)]
        return frozenset(union)


def most_voted(lists: Iterable[Iterable[str]], is_common: Callable[[str], bool]) -> str | None:
    """The protocol with most votes, if each member votes for the first one of its list that is common to all."""
    votes: dict[str, int] = {}
    for names in lists:
        for name in names:
            if is_common(name):
                votes[name] = votes.get(name, 0) + 1
                break
    return max(votes, key=lambda name: votes[name], default=None)


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
