"""`Effects`: what a transition of a group asks of its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.coordinators.groups.events import Event, Kind, identity
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.coordinators.groups.members import Member
    from barnabas.protocol.messages import JoinGroupResponse, SyncGroupResponse


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
        self.replies.append((waiter, response))

    def reply_sync(self, member: Member, response: SyncGroupResponse) -> None:
        """Answer the parked SyncGroup of a member."""
        assert member.awaiting_sync is not None
        self.replies.append((member.awaiting_sync, response))
        member.awaiting_sync = None

    def send_replies(self) -> None:
        for waiter, reply in self.replies:
            waiter.complete(reply)

    def note(self, kind: Kind, member: Member | None = None, **details: Any) -> None:
        """Note an event of the group (events.py)."""
        who = None if member is None else identity(member)
        self.events.append(Event(kind, self.now_ms, self.monotonic_ms, who, details))

    def store(self, record: GroupRecord, then: Callable[[ErrorCode, Effects], None] | None = None) -> None:
        """Append a record. `then(error, effects)` is called when the record is committed or has failed."""
        self.stores.append((record, then))
