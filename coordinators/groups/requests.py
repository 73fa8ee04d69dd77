"""What the parts of the coordinator share: the way to a group, who asks, and how a refusal and an origin are noted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.coordinators.groups.events import EventBook
from barnabas.offsets.journal import Cause, encode_origin
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import Clock

if TYPE_CHECKING:
    from barnabas.coordinators.groups.shard import Shard

GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11  # read, delete, describe, and the two on configs
ROWS_PER_PIECE = 500  # of a long request: less than a millisecond
# Errors that say something of the group. Others say that the coordinator moves, or that its log has trouble.
NOTED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    )
)


class Gate(Protocol):
    """The way to a group."""

    is_active: bool

    def shard_of(self, group_id: str, /) -> Shard | ErrorCode:
        """The shard that answers for a group, or the error for its client."""


class Asker(Protocol):
    """Who sends a request."""

    @property
    def client_id(self) -> str | None:
        """The client id, or the name of the program."""

    @property
    def client_host(self) -> str:
        """Its address, with a slash before it."""

    @property
    def principal(self) -> str:
        """Who it is, as security says it."""


class Context(Asker, Protocol):
    """The part of a request's context that the coordinator needs."""

    api_version: int
    is_long: bool


class LogRefusal(Protocol):
    """Logs a refused request."""

    def __call__(self, context: Any, error: ErrorCode, what: str, *values: object) -> None:
        """`what % values` describes the request."""


class Refusals:
    """Where refused requests are noted: in the log, and among the events of their group."""

    def __init__(self, log: LogRefusal, events: EventBook, clock: Clock) -> None:
        self.log = log
        self._events = events
        self._clock = clock

    def refuse_commit(
        self, context: Context, error: ErrorCode, group_id: str, member_id: str, what: str, *values: object
    ) -> None:
        """Log that a commit was refused, and note it among the events of the group if it says something of it."""
        self.log(context, error, what, *values)
        if error in NOTED:
            self.note(context, error, group_id, "commit", member_id)

    def note(self, context: Context, error: ErrorCode, group_id: str, what: str, member_id: str) -> None:
        """Note among the events of the group that a join or a commit was refused."""
        client = (context.client_id or "", context.client_host)
        times = (self._clock.now_ms(), self._clock.monotonic_ms())
        self._events.refused(group_id, what, error.name, member_id, client, times)


class Origins:
    """Who changes offsets, and why, for the journal. `wanted`: there is a journal."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def of(self, cause: Cause, asker: Asker, generation: int = -1, member_id: str = "") -> bytes:
        """The origin as the journal has it; empty without one."""
        if not self.wanted:
            return b""
        return encode_origin(cause, generation, asker.client_id, asker.client_host, asker.principal, member_id)
