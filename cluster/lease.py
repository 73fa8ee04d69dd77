"""The lease: until when this broker may serve what only a leader may.

Once the session of a broker with the tree is over, another broker may lead its partitions. So a leader answers nothing
as committed, neither writes nor reads, unless it knows its session to be alive: a round trip to the tree that was
*sent* at some time, and answered, carries it from that time on for the session time-out, less a margin. The lease is
compared where an answer is decided, because a process may stand still between any two lines.

A lapse without loss (the tree answers late) ends with the next answered round trip. When the session was lost, those
in `on_lost` are told first: the replica manager suspends what it leads until the controller has spoken to the new
registration.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from barnabas.cluster.tree.port import Coordination, CoordinationError
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.cluster")

MARGIN = 0.1  # of the session time-out: for clocks that do not run alike, and for an answer on its way
ROUND_TRIPS = 6  # how many are sent in one session time-out


class LeaseView(Protocol):
    """Until when this broker may serve what only a leader may."""

    @property
    def holds(self) -> bool:
        """Whether it may now."""


class Lease:
    """The lease of one broker over one session after the other."""

    def __init__(self, env: Env, coordination: Coordination) -> None:
        self.on_lapsed: list[Callable[[], None]] = []  # called once in each lapse, soon after its beginning
        self.on_regained: list[Callable[[], None]] = []  # called when a lapse has ended
        self.on_lost: list[Callable[[], None]] = []  # called when the session was lost, before the lease holds again
        self._clock = env.clock
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._session_id = 0
        self._lasts_ms = 0.0
        self._is_lapsed = False
        self._renewing: Task[Lease] | None = None
        self._looking: Task[Lease] | None = None

    @property
    def holds(self) -> bool:
        """Whether the session is known to be alive, and the replicas know of it."""
        coordination = self._coordination
        if coordination.session_id != self._session_id:
            return False
        if self._clock.monotonic_ms() < coordination.last_confirmed_ms + self._lasts_ms:
            return True
        # A process that stood still asks before it refuses a client, if the tree is in a file of its own machine.
        return coordination.confirm_at_once() and coordination.session_id == self._session_id

    def start(self) -> None:
        """Begin with the session that is open now."""
        self._coordination.on_session_expired(self._session_lost)
        self._coordination.on_session_silent(self._suspend)
        self._begin_session()
        self._renewing = self._upkeep.every("lease", self._interval_ms, lambda: [self], Lease._renew)
        self._looking = self._upkeep.every("lapse of the lease", self._interval_ms, lambda: [self], Lease._look)

    def stop(self) -> None:
        """Renew no more: the session is about to be closed."""
        if self._renewing is not None and self._looking is not None:
            self._renewing.stop()
            self._looking.stop()
            self._renewing = self._looking = None

    def _interval_ms(self) -> float:
        return self._coordination.session_timeout_ms / ROUND_TRIPS

    def _begin_session(self) -> None:
        self._session_id = self._coordination.session_id
        self._lasts_ms = self._coordination.session_timeout_ms * (1 - MARGIN)

    def _suspend(self) -> None:
        for suspend in self.on_lost:
            suspend()

    def _session_lost(self) -> None:
        self._suspend()
        self._begin_session()

    async def _renew(self) -> None:
        try:
            await self._coordination.confirm()
        except CoordinationError:
            return  # the lapse is told, and not every failed round trip
        if self._is_lapsed:
            self._look()

    def _look(self) -> None:
        """Say the beginning and the end of a lapse, once each."""
        is_lapsed = not self.holds
        if is_lapsed == self._is_lapsed:
            return
        self._is_lapsed = is_lapsed
        if is_lapsed:
            logger.warning(
                "the coordination tree has not confirmed the session within %.0f ms: until it does, this broker "
                "answers nothing as committed",
                self._lasts_ms,
            )
        else:
            logger.info("the coordination tree answers again, and confirms the session")
        for act in self.on_lapsed if is_lapsed else self.on_regained:
            act()
