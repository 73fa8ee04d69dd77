"""How fast connections may come (KIP-612): max.connection.creation.rate, of a listener, too, and of one address.

Kafka stops accepting for a while when connections come too fast, so those that come next wait in the system. Here they
are accepted, and wait in the order of their arrival before anything of them is read. A connection that comes too fast
from its address is closed after its time, unread. If brokers have a listener of their own, the rate of the whole broker
does not concern it, as in Kafka.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from barnabas.cluster.quota_rates import Rate, UsedBy, Windows
from barnabas.config import sasl
from barnabas.config.broker import BrokerConfig
from barnabas.runtime.ports import Clock, Timer

NO_LIMIT = 2**31 - 1
RATE = "max.connection.creation.rate"


class Arriving(Protocol):
    """A connection that has been accepted."""

    client_host: str
    listener_name: str

    def close(self) -> None:
        """End it."""


class Arrivals:
    """Counts the connections that come, and keeps back those that come too fast."""

    def __init__(self, clock: Clock, config: BrokerConfig, rate_of: Callable[[str], float | None]) -> None:
        """`rate_of`: how many connections may come from an address in a second."""
        self.waiting: dict[Arriving, Timer | None] = {}  # what is not read yet; None: it waits behind others
        self.throttled = 0  # so far
        self._clock = clock
        self._config = config
        self._rate_of = rate_of
        self._of_broker = Rate()
        self._of_listener: dict[str, Rate] = {}
        self._of_address: UsedBy[str, Rate] = UsedBy()
        self._queues: dict[str, deque[tuple[Arriving, Callable[[], None]]]] = {}  # by listener; the first has a timer

    @property
    def _windows(self) -> Windows:
        return Windows(self._config.quota_window_num, self._config.quota_window_size_seconds)

    def is_protected(self, listener: str) -> bool:
        """Whether a listener is for brokers only, so that no limit of the whole broker concerns it, as in Kafka."""
        return len(self._config.endpoints) > 1 and listener == self._config.inter_broker_listener

    def is_full(self, listener: str) -> bool:
        """Whether as many connections of the listener wait as may."""
        return len(self._queues.get(listener, ())) >= self._config.socket_listen_backlog_size

    def come(self, connection: Arriving, go_on: Callable[[], None]) -> bool:
        """Count a connection. True: it may be read. Else `go_on` is called later, or it is closed by and by."""
        throttle_ms = self._throttle_address_ms(connection.client_host.removeprefix("/"))
        if throttle_ms:
            self.throttled += 1
            self._wait(connection, throttle_ms, lambda: self._end(connection, connection.close))
            return False
        queue = self._queues.get(connection.listener_name)
        if queue:
            queue.append((connection, go_on))
            self.waiting[connection] = None
            return False
        throttle_ms = self._throttle_listener_ms(connection.listener_name)
        if not throttle_ms:
            return True
        self.throttled += 1
        queue = self._queues.setdefault(connection.listener_name, deque())
        queue.append((connection, go_on))
        self._wait(connection, throttle_ms, lambda: self._next(queue))
        return False

    def forget(self, connection: Arriving) -> None:
        """A connection is gone, say because of its certificate. What it waited for does not concern it any more."""
        self.waiting.pop(connection, None)

    def close(self) -> None:
        waiting, self.waiting = self.waiting, {}
        self._queues.clear()
        for connection, timer in waiting.items():
            if timer is not None:
                timer.cancel()
            connection.close()

    def _wait(self, connection: Arriving, throttle_ms: int, then: Callable[[], None]) -> None:
        self.waiting[connection] = self._clock.call_later(throttle_ms, then)

    def _end(self, connection: Arriving, then: Callable[[], None]) -> None:
        """It has waited long enough, if it is still there."""
        if connection in self.waiting:
            del self.waiting[connection]
            then()

    def _next(self, queue: deque[tuple[Arriving, Callable[[], None]]]) -> None:
        """The first has waited long enough: let it go on, and those behind it, until one has to wait."""
        self._end(*queue.popleft())
        while queue:
            connection, go_on = queue[0]
            if connection not in self.waiting:
                queue.popleft()
                continue
            throttle_ms = self._throttle_listener_ms(connection.listener_name)
            if throttle_ms:
                self.throttled += 1
                self._wait(connection, throttle_ms, lambda: self._next(queue))
                return
            queue.popleft()
            self._end(connection, go_on)

    def _throttle_listener_ms(self, listener: str) -> int:
        """Count a connection of the listener, and of the broker. How long it has to wait."""
        throttle_ms = 0
        if self._config.text(f"listener.name.{listener.lower()}.{RATE}") is not None:  # it has a rate of its own
            own = sasl.of_listener(self._config, listener, RATE)
            if own is not None:
                throttle_ms = self._use(self._of_listener.setdefault(listener, Rate()), float(own))
        bound = self._config.max_connection_creation_rate
        if bound == NO_LIMIT or self.is_protected(listener):
            return throttle_ms
        return max(throttle_ms, self._use(self._of_broker, bound))

    def _throttle_address_ms(self, address: str) -> int:
        """The same for one address. What has to wait is refused, so it does not count."""
        bound = self._rate_of(address)
        if bound is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._of_address.of(address, Rate, self._windows, now_ms)
        throttle_ms = self._use(rate, bound)
        if throttle_ms:
            rate.add(self._windows, -1, now_ms)
        return throttle_ms

    def _use(self, rate: Rate, bound: float) -> int:
        now_ms = self._clock.monotonic_ms()
        windows = self._windows
        rate.add(windows, 1, now_ms)
        return min(rate.throttle_ms(windows, bound, now_ms), windows.size_ms)
