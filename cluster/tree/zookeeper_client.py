"""One kazoo client, as the loop sees it.

kazoo speaks ZooKeeper's protocol in a thread of its own. All that it has to say (answers, watches, states of the
connection) comes to the loop through one queue, in the order in which it arrived: an answer is never seen before a
watch that fired earlier. kazoo's worker threads are not started.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from ssl import SSLContext
from typing import Any

from barnabas.cluster.tree.zookeeper_login import NoLogin, ZooKeeperLogin
from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.hand_over import HandOver
from barnabas.runtime.ports import Clock
from barnabas.runtime.tls import words_for
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

logger = logging.getLogger("barnabas.coordination")
kazoo_logger = logging.getLogger("barnabas.cluster.tree.kazoo")
kazoo_logger.setLevel(logging.ERROR)  # a lost connection is said by zookeeper.py, in one line

RECONNECT_SECONDS, RECONNECT_SECONDS_MAX = 0.05, 1.0
# A server that is about to start may take a connection and never answer. kazoo would wait for a whole session.
ATTEMPTS_PER_SESSION = 4
BOTH_WAYS = 2  # of a socket that is shut down: SHUT_RDWR of POSIX


class State(Enum):
    """State of the connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # kazoo tries to connect again, in the same session
    EXPIRED = "expired"  # the server has ended the session; kazoo begins a new one
    CLOSED = "closed"  # kazoo does nothing more


class Session(NamedTuple):
    """What the server granted when it accepted a connection."""

    session_id: int
    timeout_ms: float
    sent_ms: float  # when the connection was asked for, by the monotonic clock


class Answer:
    """A result of kazoo (its IAsyncResult). Callbacks are called by the loop."""

    __slots__ = ("_callbacks", "_hand_over", "_is_ready", "exception", "value")

    def __init__(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._callbacks: list[Callable[[Answer], object]] = []
        self._is_ready = False
        self.value: Any = None
        self.exception: Exception | None = None

    def set(self, value: object = None) -> None:
        """Take the value."""
        self.value = value
        self._hand_over.put(self._tell)

    def set_exception(self, exception: Exception) -> None:
        """Take the error."""
        self.exception = exception
        self._hand_over.put(self._tell)

    def get(self) -> Any:
        """The value, or raise the error. Only callbacks call this, so it is there."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: "Callable[[Answer], object]") -> None:
        """Have the loop call `callback(self)`. To be called on the loop."""
        if self._is_ready:
            self._hand_over.put(partial(callback, self))
        else:
            self._callbacks.append(callback)

    def _tell(self) -> None:
        self._is_ready = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler of threads, with the loop in place of the two worker threads."""

    def __init__(
        self,
        hand_over: HandOver,
        attempt_seconds: float,
        is_cut_off: Callable[[], bool],
        tls: Callable[[], SSLContext] | None,
    ) -> None:
        super().__init__()
        self.connection: Any = None  # the newest socket
        self._hand_over = hand_over
        self._attempt_seconds = attempt_seconds
        self._is_cut_off = is_cut_off
        self._tls = tls
        self._told = ""  # what was said last of a handshake that has failed

    def create_connection(self, *words: Any, **options: Any) -> Any:
        """Connect, in the time of one attempt. OSError, also if a test says so."""
        if self._is_cut_off():
            raise OSError(errno.EHOSTUNREACH, "a test has cut this broker off from ZooKeeper")
        self.connection = self._connected(*words, **options)
        return self.connection

    def _connected(self, *words: Any, **options: Any) -> Any:
        plain = super().create_connection(*words, **{**options, "timeout": self._attempt_seconds})
        if self._tls is None:
            return plain
        try:
            plain.settimeout(self._attempt_seconds)
            return self._tls().wrap_socket(plain, server_hostname=options.get("hostname"))
        except OSError as error:
            plain.close()
            if str(error) != self._told:
                self._told = str(error)
                logger.error("there is no TLS with ZooKeeper at %s: %s", options.get("hostname"), words_for(error))
            raise

    def start(self) -> None:
        """There are no workers."""

    def stop(self) -> None:
        """There are no workers."""

    def async_result(self) -> Answer:
        """A new result."""
        return Answer(self._hand_over)

    def dispatch_callback(self, callback: Any) -> None:
        """Have the loop call a watch."""
        self._hand_over.put(partial(callback.func, *callback.args))


class Client:
    """One kazoo client. `on_state` is called by the loop; the session comes with CONNECTED.

    `is_cut_off`, which is asked in kazoo's thread, says whether it is to reach no server.
    """

    def __init__(
        self,
        clock: Clock,
        hosts: str,
        settings: ZooKeeperSettings,
        on_state: "Callable[[Client, State, Session | None], None]",
        is_cut_off: Callable[[], bool],
    ) -> None:
        self._hand_over = HandOver()
        known = settings.login
        login = NoLogin(hosts, settings.digest) if known is None else ZooKeeperLogin(hosts, known, settings.digest)
        session_seconds = settings.session_timeout_ms / 1000
        attempts = max(ATTEMPTS_PER_SESSION, 2 * len(hosts.split(",")))
        self._attempt_seconds = session_seconds / attempts
        handler = self._handler = _Handler(self._hand_over, self._attempt_seconds, is_cut_off, settings.tls)
        retry = KazooRetry(
            max_tries=-1, delay=RECONNECT_SECONDS, max_delay=RECONNECT_SECONDS_MAX, sleep_func=handler.sleep_func
        )
        self.kazoo = KazooClient(
            hosts,
            timeout=session_seconds,
            handler=handler,
            sasl_options={},  # who logs in is not told to kazoo: `login` does it
            connection_retry=retry,
            logger=kazoo_logger,
        )
        self.is_ended = False
        self.refusal = ""  # why ZooKeeper refuses the login, and what to do
        self._clock = clock
        self._on_state = on_state
        self._granted_ms = self._sent_ms = 0.0
        # kazoo does not tell which session time-out the server has granted, so it is read from the server's answer.
        self._invoke = self.kazoo._connection._invoke
        self.kazoo._connection._invoke = self._invoke_and_note
        self._login = login
        login.take_over(self.kazoo._connection, self._attempt_seconds, partial(self._tell, State.CONNECTED))
        self.kazoo.add_listener(self._tell_state)

    def start(self) -> None:
        """Begin to connect."""
        self.kazoo.start_async()

    def cut(self) -> None:
        """End the connection, and not the session: the server hears nothing of it any more."""
        if self._handler.connection is not None:
            with suppress(OSError):  # it has ended already
                self._handler.connection.shutdown(BOTH_WAYS)

    def send(self, request: Any) -> Answer:
        """Send a request as it is. kazoo's own methods would bring every path into a normal form first."""
        answer = Answer(self._hand_over)
        self.kazoo._call(request, answer)
        return answer

    def _invoke_and_note(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """In kazoo's thread: note when a session was asked for, and which time-out it got."""
        if not isinstance(request, Connect):
            return self._invoke(timeout, request, xid)
        self._sent_ms = self._clock.monotonic_ms()
        result = self._invoke(self._attempt_seconds, request, xid)
        self._granted_ms = float(result[0].time_out)
        return result

    def _tell_state(self, _simplified: object) -> None:
        """In kazoo's thread: the state of the connection has changed."""
        state = _STATES[self.kazoo.client_state]
        if self.kazoo.client_state == KeeperState.AUTH_FAILED:
            self.refusal = self._login.refusal
        if state is not State.CONNECTED:  # which is told when the login has succeeded
            self._tell(state)

    def _tell(self, state: State) -> None:
        session = None
        if state is State.CONNECTED:
            session = Session(self.kazoo.client_id[0], self._granted_ms, self._sent_ms)
        self._hand_over.put(lambda: self._on_state(self, state, session))

    def stop_and_wait(self) -> None:
        """End the session. Blocks until the server has answered or time is over; to be called in any other thread."""
        self.is_ended = True
        try:
            self.kazoo.stop()
            self.kazoo.close()
        except (KazooException, OSError) as error:
            logger.info("could not end a ZooKeeper session: %r", error)

    def stop(self) -> "asyncio.Future[None]":
        """End the session; the future is completed when that is done."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stop() -> None:
            self.stop_and_wait()
            self._hand_over.put(lambda: complete(ended))

        self.kazoo.handler.spawn(stop)
        return ended


def complete(future: "asyncio.Future[None]") -> None:
    """Complete a future that somebody else may have completed."""
    if not future.done():
        future.set_result(None)


_STATES = {
    KeeperState.CONNECTED: State.CONNECTED,
    KeeperState.CONNECTING: State.DISCONNECTED,
    KeeperState.EXPIRED_SESSION: State.EXPIRED,
    KeeperState.AUTH_FAILED: State.CLOSED,
    KeeperState.CLOSED: State.CLOSED,
}


def pass_on(future: "asyncio.Future[Any]", answer: Answer) -> None:
    """Complete a future with what an answer brought, unless nobody waits for it any more."""
    if future.done():
        return
    if answer.exception is None:
        future.set_result(answer.value)
    else:
        future.set_exception(answer.exception)
