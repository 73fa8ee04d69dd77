"""When members of a consumer group are due: silence, and partitions that are not given up. Plain deadlines in memory.

Times are monotonic milliseconds. A heartbeat moves a deadline but not `wake_ms`, so the group's timer often goes off
too early; then it only looks for the next deadline.
"""

from __future__ import annotations

from barnabas.runtime.ports import Timer

NEVER = float("inf")


class Deadline:
    """A time, and the epoch of the member for which it was set. No named tuple: each heartbeat makes one."""

    __slots__ = ("at_ms", "epoch", "timeout_ms")

    def __init__(self, at_ms: float, epoch: int, timeout_ms: int) -> None:
        self.at_ms = at_ms
        self.epoch = epoch
        self.timeout_ms = timeout_ms


class Timers:
    """The deadlines of one group. `wake_ms`: when the earliest of them may be over."""

    __slots__ = ("armed_ms", "joins", "revocations", "sessions", "syncs", "timer", "wake_ms")

    def __init__(self) -> None:
        self.sessions: dict[str, Deadline] = {}  # member id -> when it has been silent for too long
        self.revocations: dict[str, Deadline] = {}  # member id -> when it must have given up its partitions
        self.joins: dict[str, Deadline] = {}  # a classic member that must join again
        self.syncs: dict[str, Deadline] = {}  # a classic member that must sync
        self.wake_ms = NEVER
        self.timer: Timer | None = None  # the shard's timer for this group, and when it goes off
        self.armed_ms = NEVER

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
        self.armed_ms = NEVER

    def set(self, which: dict[str, Deadline], member_id: str, now_ms: float, timeout_ms: int, epoch: int = 0) -> None:
        at_ms = now_ms + timeout_ms
        which[member_id] = Deadline(at_ms, epoch, timeout_ms)
        if at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        for which in (self.sessions, self.revocations, self.joins, self.syncs):
            which.pop(member_id, None)

    def due(self, which: dict[str, Deadline], now_ms: float) -> list[tuple[str, Deadline]]:
        """Whose time is over."""
        return [(member_id, deadline) for member_id, deadline in which.items() if deadline.at_ms <= now_ms]

    def next_wake(self) -> float:
        """Look for the earliest deadline again."""
        every = (self.sessions, self.revocations, self.joins, self.syncs)
        self.wake_ms = min((each.at_ms for which in every for each in which.values()), default=NEVER)
        return self.wake_ms
