"""The coordination tree as a service on a machine of its own: round trips travel, and sessions live by what is heard.

A process's session lives as long as the server hears from the process in time: its operations and its pings. So it ends
when the process is dead or paused, or when its machine is cut off, for longer than the session time-out; and it lingers
until then. Where `lingers` is False, the death of a process is noticed at once, as by an operating system's lock.

A client that got no answer for most of its session time-out has lost its connection. With the next one, all its watches
are gone, and each is told so once, as if its node had changed.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from barnabas.cluster.tree.port import (
    ConnectionLossError,
    CoordinationError,
    EventType,
    SessionExpiredError,
    Watch,
    WatchEvent,
)
from barnabas.runtime.ports import Clock

from simulator.clock import SimClock
from simulator.coordination import Fate, Session, SimCoordination, SimTree
from simulator.network import SimNetwork

if TYPE_CHECKING:
    from simulator.host import Life

T = TypeVar("T")

TREE = "tree"  # the name of its machine
DEATH_NOTICED_MS = 200.0
REOPEN_BACKOFF_MS = 100.0
NO_SESSION = 0


class TreeService(SimTree):
    """The server. `fate` decides what happens to an operation of a machine; `note` gets a line when a session ends."""

    def __init__(self, clock: SimClock, network: SimNetwork, session_timeout_ms: float, *, lingers: bool) -> None:
        super().__init__(clock, session_timeout_ms)
        self.network = network
        self.lingers = lingers
        self.travel_ms: Callable[[], float] = lambda: 0.5  # of each message, one way
        self.fate: Callable[[str, str], Fate] = lambda machine, name: Fate.DONE
        self.note: Callable[[str], None] = lambda line: None
        self._heard_ms: dict[int, float] = {}  # when each session was last heard of

    def connect(self, clock: Clock, life: "Life") -> SimCoordination:
        """The client of a process."""
        return DistantCoordination(clock, self, life)

    def open(self, client: SimCoordination) -> int:
        """Begin a session. Earlier sessions of the same machine stay for their time."""
        session_id = self.begin(client)
        self.hear(session_id)
        self._expire_in_time(session_id)
        return session_id

    def hear(self, session_id: int) -> None:
        """The session's process lives."""
        self._heard_ms[session_id] = self.clock.monotonic_ms()

    def kill(self, session_id: int) -> None:
        """The process of that session is dead."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.alive = False
            session.client.cut_off()
            if not self.lingers:
                self.clock.call_later(DEATH_NOTICED_MS, lambda: self.end(session_id))

    def seems_alive(self, session: Session) -> bool:
        """A session that lingers looks like any other."""
        return self.lingers or session.alive

    def _expire_in_time(self, session_id: int) -> None:
        due_ms = self._heard_ms[session_id] + self.session_timeout_ms

        def check() -> None:
            if session_id not in self.sessions:
                return
            if self.clock.monotonic_ms() >= self._heard_ms[session_id] + self.session_timeout_ms:
                self.note(f"the tree: session {session_id} expires")
                self.end(session_id)
            else:
                self._expire_in_time(session_id)

        self.clock.call_later(max(due_ms - self.clock.monotonic_ms(), 0.001), check)


class DistantCoordination(SimCoordination):
    """A process's client of a `TreeService`: one session after the other. Implements the Coordination port."""

    def __init__(self, clock: Clock, tree: TreeService, life: "Life") -> None:
        super().__init__(clock, tree)
        self._service = tree
        self._life = life
        self._machine = life.host.name
        self._contact_ms = 0.0  # when the server last sent an answer that arrives
        self._untold: list[tuple[Watch, WatchEvent]] = []  # what the server could not tell
        self._opens_again = False
        self._next_arrival_ms = {True: 0.0, False: 0.0}  # by direction: messages arrive in order

    @property
    def _patience_ms(self) -> float:
        """How long a client waits for an answer before it gives its connection up."""
        return self.session_timeout_ms * 2 / 3

    # -- sessions

    async def start(self) -> None:
        """Begin a session."""
        self._looks = False
        if not self._open:
            sent_ms = self._clock.monotonic_ms()
            self._take(await self._ask("start", lambda: self.tree.open(self), NO_SESSION), sent_ms)

    async def close(self, *, keeps_tree: bool = True) -> None:
        """End it; if the server cannot be reached, it ends by time."""
        self._looks = False
        if self._open:
            self._open = False
            self.last_confirmed_ms = -float("inf")
            session_id = self.session_id
            try:
                await self._ask("close", lambda: self.tree.end(session_id), session_id)
            except CoordinationError as error:
                self._service.note(f"session {session_id} is not closed: {error}")

    def _take(self, session_id: int, sent_ms: float) -> None:
        self.session_id = session_id
        self.last_confirmed_ms = sent_ms
        self._open = True
        self._untold.clear()
        self._ping(session_id)

    def _ping(self, session_id: int) -> None:
        if not self._open or session_id != self.session_id:
            return

        def arrive() -> None:
            if self._answers():
                if session_id in self.tree.sessions:
                    self._service.hear(session_id)
                    self._touch()
                else:
                    self._travel_back(lambda: self._learn_expiry(session_id))
            elif session_id in self.tree.sessions:
                self._service.hear(session_id)

        if not self._service.network.is_blocked(self._machine, TREE):
            self._travel_there(arrive)
        self._clock.call_later(self.session_timeout_ms / 3, lambda: self._ping(session_id))

    def _learn_expiry(self, session_id: int) -> None:
        if self._open and session_id == self.session_id and not self._opens_again:
            self._opens_again = True
            self.last_confirmed_ms = -float("inf")
            self._life.spawn(self._open_again())

    async def _open_again(self) -> None:
        while self._open:
            sent_ms = self._clock.monotonic_ms()
            try:
                session_id = await self._ask("start", lambda: self.tree.open(self), NO_SESSION)
            except ConnectionLossError:
                await self._clock.sleep(REOPEN_BACKOFF_MS)
                continue
            self._opens_again = False
            if self._open:
                self._take(session_id, sent_ms)
                for callback in self._on_expired:
                    self._clock.call_soon(callback)
            return

    # -- round trips

    async def _read(self, name: str, work: Callable[[], T]) -> T:
        if self._looks:
            return await self._ask(name, work, NO_SESSION)
        self._check_open()
        session_id, sent_ms = self.session_id, self._clock.monotonic_ms()
        value = await self._ask(name, work, session_id)
        if self._open and session_id == self.session_id and not self._opens_again:
            self.last_confirmed_ms = max(self.last_confirmed_ms, sent_ms)
        return value

    async def _ask(self, name: str, work: Callable[[], T], session_id: int) -> T:
        """Let the server do it for a session. The process may be paused, or the machine cut off, at any point."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def fail(error: CoordinationError) -> None:
            if not answer.done():
                answer.set_exception(error)

        def succeed(value: T) -> None:
            if not answer.done():
                answer.set_result(value)

        def lose() -> None:
            self._clock.call_later(self._patience_ms, lambda: fail(ConnectionLossError("", f"no answer to {name}")))

        def arrive() -> None:
            service = self._service
            if session_id and session_id not in service.sessions:
                if not self._answers():
                    return lose()
                self._travel_back(lambda: self._learn_expiry(session_id))
                return self._travel_back(lambda: fail(SessionExpiredError("", f"session {session_id} has expired")))
            if session_id:
                service.hear(session_id)
            fate = service.fate(self._machine, name)
            if fate is Fate.LOST_BEFORE:
                return self._travel_back(lambda: fail(ConnectionLossError("", f"simulated, before {name}")))
            failure: CoordinationError | None = None
            try:
                value = work()
            except CoordinationError as error:
                failure = error
            if not self._answers():
                return lose()
            if fate is Fate.LOST_AFTER:
                failure = ConnectionLossError("", f"simulated, after {name}")
            else:
                self._touch()
            if failure is not None:
                refused = failure
                return self._travel_back(lambda: fail(refused))
            return self._travel_back(lambda: succeed(value))

        if self._service.network.is_blocked(self._machine, TREE):
            lose()
        else:
            self._travel_there(arrive)
        return await answer

    def _answers(self) -> bool:
        """Whether what the server sends reaches the machine."""
        return not self._service.network.is_blocked(TREE, self._machine)

    def _travel_there(self, arrive: Callable[[], None]) -> None:
        self._service.clock.call_later(self._arrives_in_ms(there=True), arrive)

    def _travel_back(self, arrive: Callable[[], None]) -> None:
        self._service.clock.call_later(self._arrives_in_ms(there=False), lambda: self._life.hand_over(arrive))

    def _arrives_in_ms(self, *, there: bool) -> float:
        now_ms = self._service.clock.monotonic_ms()
        due_ms = max(now_ms + self._service.travel_ms(), self._next_arrival_ms[there])
        self._next_arrival_ms[there] = due_ms
        return due_ms - now_ms

    # -- watches

    def _touch(self) -> None:
        """An answer goes out: tell what could not be told; all watches, if the connection was lost meanwhile."""
        now_ms = self._service.clock.monotonic_ms()
        was_away = self._contact_ms and now_ms - self._contact_ms > self._patience_ms
        self._contact_ms = now_ms
        untold, self._untold = self._untold, []
        for watch, event in untold:
            self._deliver(watch, event)
        session = self._service.sessions.get(self.session_id)
        if was_away and session is not None:
            kinds = ((session.data_watches, EventType.DATA), (session.child_watches, EventType.CHILDREN))
            for watches, kind in kinds:
                dropped = [(path, watch) for path, left in watches.items() for watch in left]
                watches.clear()
                for path, watch in dropped:
                    self._deliver(watch, WatchEvent(kind, path))

    def _deliver(self, watch: Watch, event: WatchEvent) -> None:
        if self._untold or not self._answers():
            self._untold.append((watch, event))
            return
        session_id = self.session_id

        def deliver() -> None:
            if self._open and self.session_id == session_id:
                watch(event)

        now_ms = self._service.clock.monotonic_ms()
        self._next_event_ms = max(self._next_event_ms, now_ms + self._service.travel_ms() + self.tree.watch_delay_ms())
        self._service.clock.call_later(self._next_event_ms - now_ms, lambda: self._life.hand_over(deliver))
