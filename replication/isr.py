"""The in-sync replicas of a partition as its leader judges them: pure decisions (KIP-16)."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

NEVER = float("-inf")
# A follower that the controller does not let into the ISR is proposed again after a while, which grows.
PROPOSED_AGAIN_MS = 250.0
PROPOSED_AGAIN_MAX_MS = 4_000.0


class Session(Protocol):
    """A follower's fetch session, in which its idle partitions are not named."""

    @property
    def last_fetch_ms(self) -> float:
        """When the follower has fetched last in it, whatever it asked for."""


class RemoteReplica:
    """The leader's knowledge of one follower. Times are monotonic milliseconds."""

    __slots__ = (
        "broker_epoch",
        "idle_in",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "proposed_again_ms",
        "refused_for_ms",
        "replica_id",
    )

    def __init__(
        self, replica_id: int, *, broker_epoch: int = -1, log_end_offset: int = -1, last_caught_up_ms: float = 0.0
    ) -> None:
        self.replica_id = replica_id
        self.proposed_again_ms = NEVER  # not before this time
        self.refused_for_ms = 0.0
        self.broker_epoch = broker_epoch  # of the life in which it fetched last
        self.idle_in: Session | None = None  # it has everything, and each fetch of that session proves this anew
        self.log_end_offset = log_end_offset  # unknown until its first fetch
        self.log_start_offset = -1
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_leader_end_offset = -1
        self.last_fetch_ms = 0.0

    def begin_epoch(self, now_ms: float, *, in_isr: bool, leader_end_offset: int) -> None:
        """Another epoch of the same leader, who keeps what it knew."""
        self.idle_in = None
        self.end_refusal()
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = self.last_caught_up_ms = now_ms if in_isr else NEVER

    def fetched(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: float) -> bool:
        """Note a fetch: `fetch_offset` acknowledges all records below it. True if the replica's log end has moved.

        A follower that asks for the leader's end is caught up now. One that asks for what the end was at its previous
        fetch was caught up then; so a steady stream of appends does not make a follower look slow.
        """
        self.end_idleness()
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        moved = fetch_offset != self.log_end_offset
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        return moved

    def refuse(self, now_ms: float) -> None:
        """The controller does not let it into the ISR now."""
        self.refused_for_ms = min(max(2 * self.refused_for_ms, PROPOSED_AGAIN_MS), PROPOSED_AGAIN_MAX_MS)
        self.proposed_again_ms = now_ms + self.refused_for_ms

    def end_refusal(self) -> None:
        """Perhaps it may enter the ISR now."""
        self.proposed_again_ms = NEVER
        self.refused_for_ms = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the controller did not let it into the ISR when it was proposed last: its disk is full, say."""
        return self.refused_for_ms > 0

    @property
    def caught_up_ms(self) -> float:
        """When it was last known to have all records."""
        session = self.idle_in
        return self.last_caught_up_ms if session is None else max(self.last_caught_up_ms, session.last_fetch_ms)

    def end_idleness(self) -> None:
        """The leader's log moves on, or the session ends: the last fetch is the last that proved anything."""
        session, self.idle_in = self.idle_in, None
        if session is not None:
            self.last_caught_up_ms = max(self.last_caught_up_ms, session.last_fetch_ms)
            self.last_fetch_ms = max(self.last_fetch_ms, session.last_fetch_ms)


def is_caught_up(replica: RemoteReplica, leader_end_offset: int, now_ms: float, lag_time_max_ms: int) -> bool:
    """Whether a replica has all records, or had them all less than replica.lag.time.max.ms ago."""
    return replica.log_end_offset == leader_end_offset or now_ms - replica.caught_up_ms <= lag_time_max_ms


def out_of_sync(
    isr: Iterable[int],
    leader_id: int,
    remote: dict[int, RemoteReplica],
    leader_end_offset: int,
    now_ms: float,
    lag_time_max_ms: int,
) -> list[int]:
    """Members of the ISR that have not been caught up for replica.lag.time.max.ms."""
    return [
        member
        for member in isr
        if member != leader_id
        and (
            member not in remote  # no replica at all
            or not is_caught_up(remote[member], leader_end_offset, now_ms, lag_time_max_ms)
        )
    ]


def may_join(replica: RemoteReplica, isr: Collection[int], high_watermark: int, leader_epoch_start_offset: int) -> bool:
    """Whether a follower has all committed records, and all records that this leader began with (KIP-279)."""
    return (
        replica.replica_id not in isr
        and replica.log_end_offset >= high_watermark
        and replica.log_end_offset >= leader_epoch_start_offset
    )


def high_watermark_candidate(
    leader_end_offset: int,
    maximal_isr: Collection[int],
    remote: Iterable[RemoteReplica],
    now_ms: float,
    lag_time_max_ms: int,
    is_alive: Callable[[int], bool],
) -> int:
    """The lowest log end of the replicas in the ISR and of those about to enter it: caught up, alive, not refused.

    Kafka leaves out those that it knows to be fenced or shutting down (KAFKA-15021), because such a replica would hold
    all producers up for replica.lag.time.max.ms. The controller of Barnabas refuses replicas for one reason more, a
    full disk. They are left out, too.
    """
    candidate = leader_end_offset
    for replica in remote:
        if replica.log_end_offset < candidate and (
            replica.replica_id in maximal_isr
            or (
                not replica.is_refused
                and is_caught_up(replica, leader_end_offset, now_ms, lag_time_max_ms)
                and is_alive(replica.replica_id)
            )
        ):
            candidate = replica.log_end_offset
    return candidate
