"""The coordination tree in Apache ZooKeeper (3.5 or newer): sessions, operations and watches. Kafka's paths and bytes.

Sessions. kazoo (`zookeeper_client.py`) connects again by itself after a loss. Nobody can say for how long the server
will keep a session that it does not hear of, so a session from which nothing was heard for its time-out counts as lost
here. If the server turns out to have kept it, it is ended, and a new one begins.

Lost connections. Operations wait until there is a connection, at most until the session counts as lost. A read that was
under way is done again. A write that was under way raises ConnectionLossError, because it may have been done. A server
forgets the watches of a lost connection: they are told once when there is a connection again, because their nodes may
have changed meanwhile.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from barnabas.cluster.tree.operations import split
from barnabas.cluster.tree.port import (
    ANY_VERSION,
    ConnectionLossError,
    CoordinationError,
    Create,
    EventType,
    MultiError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    Stat,
    Watch,
    WatchEvent,
    always_reachable,
    held_by_nobody,
)
from barnabas.cluster.tree.zookeeper_client import Client, Session, State, complete, pass_on
from barnabas.cluster.tree.zookeeper_requests import (
    ANSWERED_BY_ANY_SERVER,
    EVENT_TYPES,
    LOST,
    NOTHING,
    Requests,
    check_size,
    error_of,
    many_at_a_time,
    stat_of,
)
from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings, split_connect
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.now_and_then import NowAndThen
from barnabas.runtime.ports import Env, Timer
from barnabas.runtime.upkeep import Task
from barnabas.runtime.watchdog import Watchdog
from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as requests
from kazoo.protocol.states import EventType as KazooEventType

logger = logging.getLogger("barnabas.coordination")

T = TypeVar("T")

CONFIRMATIONS_PER_SESSION = 4  # the session is confirmed so often within its time-out, if nothing else does it
CLOSE_WITHIN_MS = 2_000.0  # how long `close` waits until the server has ended the session
SAID_AGAIN_MS = 10_000.0  # how often it is said that there is no session
OPEN_AGAIN_MS = 1_000.0  # after kazoo has given up by itself
IN_FLIGHT_MAX = 100  # kazoo is woken through a pipe: more unsent requests would fill it and block the loop


class _Left(NamedTuple):
    """A watch that was left, and what it is told when its connection is lost."""

    number: int
    watch: Watch
    event: WatchEvent


class ZooKeeperCoordination:
    """One session after the other with ZooKeeper. Implements the Coordination port."""

    session_ends_with_process = False
    trouble = ""  # the broker looks whether it is the right one when it registers again

    def __init__(self, env: Env, settings: ZooKeeperSettings) -> None:
        self.session_id = 0
        self.is_unreachable = always_reachable
        self.held_by = held_by_nobody
        self.session_timeout_ms = settings.session_timeout_ms
        self._env = env
        self._settings = settings
        self._hosts, self._chroot = split_connect(settings.connect)
        self._requests = Requests(self._chroot, settings.set_acl)
        self._client: Client | None = None
        self._is_connected = False
        self._is_started = False
        self._is_lost = False  # nothing was heard from the session for its time-out
        self._is_missing = False  # before `start`: the chroot does not exist
        self._kazoo_session_id = 0  # of the session that kazoo has; it is ours from `start` on
        self._heard_ms = -math.inf
        self._says_refusal = NowAndThen(env.clock, SAID_AGAIN_MS)
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._slots = asyncio.Semaphore(min(settings.max_in_flight_requests, IN_FLIGHT_MAX))
        self._waiting: list[asyncio.Future[None]] = []  # for a connection
        self._watches_left = 0
        self._dropped: list[_Left] = []  # watches of a lost connection
        self._deadline: Timer | None = None
        self._upkeep: Task[ZooKeeperCoordination] | None = None
        self._watchdog: Watchdog | None = None
        self._on_expired: list[Callable[[], None]] = []
        self._on_silent: list[Callable[[], None]] = []

    # Session

    @property
    def last_confirmed_ms(self) -> float:
        """When the newest request that ZooKeeper's leader has answered was sent. A read is answered by any server."""
        return self._heard_ms if self._is_started else -math.inf

    async def look(self) -> None:
        """Connect. `start` goes on with this connection and its session, `close` ends it."""
        if self._client is None:
            await self._connect()
            self._is_missing = bool(self._chroot) and await self.exists("/") is None

    async def start(self) -> None:
        """Begin the session, and make the chroot if it is missing."""
        if self._is_started:
            return
        if self._client is None:
            await self._connect()
        try:
            await self._make_chroot()
            await self._usable()
        except BaseException:
            await self.close()
            raise
        self._is_missing = False
        self._is_started = True
        self.session_id = self._kazoo_session_id
        logger.info("ZooKeeper session 0x%x at %s", self.session_id, self._settings.connect)
        self._watchdog = Watchdog(lambda: self.session_timeout_ms, self.end_session)
        self._upkeep = self._env.upkeep.every(
            "coordination",
            lambda: self.session_timeout_ms / CONFIRMATIONS_PER_SESSION,
            lambda: [self],
            ZooKeeperCoordination._keep_up,
        )

    async def _connect(self) -> None:
        timeout_ms = self._settings.connection_timeout_ms or self._settings.session_timeout_ms
        self._is_lost = False
        self._heard_ms = self._env.clock.monotonic_ms()
        logger.info("connecting to ZooKeeper at %s", self._hosts)
        self._open()
        self._set_deadline(timeout_ms)
        try:
            await self._usable()
        except SessionExpiredError:
            refusal = self._client.refusal if self._client is not None else ""
            await self.close()
            if refusal:
                raise CoordinationError("", refusal) from None
            what = f"ZooKeeper at {self._hosts} does not answer within {timeout_ms:.0f} ms. Start it, say in "
            what += "zookeeper.connect where it is, or leave that out: the tree is then in a file."
            raise ConnectionLossError("", what) from None
        except BaseException:
            await self.close()
            raise

    def _open(self) -> None:
        """Let a new kazoo client connect. It begins a new session."""
        self._client = Client(
            self._env.clock, self._hosts, self._settings, self._state_changed, lambda: self.is_unreachable()
        )
        self._client.start()

    async def _make_chroot(self) -> None:
        missing = [end for end, character in enumerate(f"{self._chroot}/") if character == "/"][1:]
        for path in (self._chroot[:end] for end in missing):
            request = requests.Create(path, None, self._requests.acl(path), 0)
            try:
                await self._ask(request, path)
            except (NodeExistsError, ConnectionLossError):
                if await self._ask(requests.Exists(path, None), path, is_read=True) is None:
                    raise

    async def close(self, *, keeps_tree: bool = True) -> None:
        client, self._client = self._client, None
        self._is_started = self._is_missing = False
        if self._upkeep is not None:
            self._upkeep.stop()
            self._upkeep = None
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None
        if client is None:
            return
        was_connected, self._is_connected = self._is_connected, False
        self._lose(SessionExpiredError("", "the session is closed"))
        self._dropped.clear()
        ended = client.stop()
        if was_connected:
            timer = self._env.clock.call_later(CLOSE_WITHIN_MS, lambda: complete(ended))
            await ended
            timer.cancel()

    def end_session(self) -> None:
        """End the session now: the watchdog's thread calls this when the loop stands still. Blocks.

        kazoo's thread would keep the session alive, and no other broker would lead in place of this one. When the
        loop goes on, a new session begins, as after an expiry.
        """
        client = self._client
        if client is not None:
            logger.warning("the event loop was blocked for a session time-out: ending the ZooKeeper session")
            client.stop_and_wait()

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        self._on_expired.append(callback)

    def on_session_silent(self, callback: Callable[[], None]) -> None:
        self._on_silent.append(callback)

    async def confirm(self) -> None:
        """Ask ZooKeeper's leader for nothing."""
        self._check_started()
        await self._ask(requests.Sync(self._requests.full("/")), "/", is_read=True)

    def confirm_at_once(self) -> bool:
        """ZooKeeper is another process, so it takes a message to know."""
        return False

    def _keep_up(self) -> None:
        """Show that the loop goes round. Ask for nothing if nothing was heard for a while: kazoo does not tell it."""
        if self._watchdog is not None:
            self._watchdog.tick()
        if self.is_unreachable():
            if self._client is not None and self._is_connected:
                self._client.cut()  # or kazoo's own heartbeats would keep the session
            return
        now_ms = self._env.clock.monotonic_ms()
        is_quiet = now_ms - self._heard_ms >= self.session_timeout_ms / CONFIRMATIONS_PER_SESSION
        if self._client is not None and self._is_connected and is_quiet:
            answer = self._client.send(requests.Sync(self._requests.full("/")))
            answer.rawlink(lambda answer: self._heard(now_ms) if answer.exception is None else None)

    def _heard(self, sent_ms: float) -> None:
        self._heard_ms = max(self._heard_ms, sent_ms)

    # The connection

    def _state_changed(self, client: Client, state: State, session: Session | None) -> None:
        if client is not self._client:
            return  # it was replaced or closed
        logger.debug("ZooKeeper: %s", state.value)
        if session is not None:
            self._connected(session)
        elif state is State.DISCONNECTED:
            self._disconnected()
        else:
            self._is_connected = False
            self._session_is_over("was ended")
            if client.refusal:
                self._say_refusal(client)
            if state is State.CLOSED:
                delay_ms = 0.0 if client.is_ended else OPEN_AGAIN_MS
                self._env.clock.call_later(delay_ms, partial(self._open_again, client))

    def _say_refusal(self, client: Client) -> None:
        """The login is tried once a second, and said from time to time. `start` raises it."""
        if self._is_started and self._says_refusal.is_due():
            logger.error("%s", client.refusal)

    def _connected(self, session: Session) -> None:
        now_ms = self._env.clock.monotonic_ms()
        is_same = session.session_id == self._kazoo_session_id
        if is_same and (self._is_lost or now_ms > self._heard_ms + self.session_timeout_ms):
            self._session_is_over("was silent for its time-out")
            self._replace()
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.session_timeout_ms = session.timeout_ms
        self._kazoo_session_id = session.session_id
        self._is_connected, self._is_lost = True, False
        dropped, self._dropped = self._dropped, []
        if is_same:
            logger.info("reconnected to ZooKeeper in session 0x%x", session.session_id)
            self._heard(session.sent_ms)
            for left in sorted(dropped):
                self._env.clock.call_soon(partial(left.watch, left.event))
        else:
            self._heard_ms = session.sent_ms
            if self._is_started:
                self.session_id = session.session_id
                logger.info("new ZooKeeper session 0x%x", session.session_id)
                for callback in self._on_expired:
                    self._env.clock.call_soon(callback)
        self._wake(None)

    def _disconnected(self) -> None:
        if self._is_connected:
            logger.warning("the connection to ZooKeeper is lost")
            self._is_connected = False
            self._set_deadline(self._heard_ms + self.session_timeout_ms - self._env.clock.monotonic_ms())

    def _set_deadline(self, delay_ms: float) -> None:
        over = partial(self._session_is_over, "was silent for its time-out")
        self._deadline = self._env.clock.call_later(max(delay_ms, 0.0), over)

    def _session_is_over(self, why: str) -> None:
        """Operations are refused from now on, until there is a new session."""
        if not self._is_lost:
            self._is_lost = True
            if self._is_started:
                logger.warning(
                    "ZooKeeper session 0x%x %s: until another one begins, this broker is in no cluster, and serves "
                    "nothing of what it leads",
                    self._kazoo_session_id,
                    why,
                )
                for callback in self._on_silent:
                    callback()
                self._env.clock.call_later(self.session_timeout_ms, partial(self._forget_past, self._client))
        self._dropped.clear()
        self._lose(SessionExpiredError("", f"the ZooKeeper session {why}"))

    def _forget_past(self, client: Client | None) -> None:
        """A client refuses servers that know less than it has seen: one that came back empty is never reached.

        So if the session is not back after its time-out once more, another client asks for a new one.
        """
        if self._is_lost and self._is_started and client is not None and client is self._client:
            logger.warning("ZooKeeper at %s does not answer: asking for a new session", self._hosts)
            self._replace()
            self._env.clock.call_later(self.session_timeout_ms, self._ask_again)

    def _ask_again(self) -> None:
        """Say it from time to time, as long as there is no session."""
        if self._is_lost and self._is_started:
            logger.warning("ZooKeeper at %s does not answer: still no session", self._hosts)
            self._env.clock.call_later(max(self.session_timeout_ms, SAID_AGAIN_MS), self._ask_again)

    def _lose(self, error: CoordinationError) -> None:
        """Nobody waits for answers or for a connection any more."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for future in self._in_flight:
            if not future.done():
                future.set_exception(kazoo_errors.ConnectionLoss())
        self._wake(error)

    def _wake(self, error: CoordinationError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if error is None:
                complete(future)
            elif not future.done():
                future.set_exception(error)

    def _replace(self) -> None:
        """End a session that counts as lost, which the server has kept all the same, and begin another."""
        client, self._client = self._client, None
        if client is not None:
            client.stop().add_done_callback(lambda _: self._open_again(None))

    def _open_again(self, client: Client | None) -> None:
        """Begin a session in place of the last one, unless the tree was closed meanwhile."""
        if self._is_started and self._client is client:
            if client is not None and not client.is_ended:
                client.stop()  # it has given up, and has files open
            self._open()

    async def _usable(self) -> Client:
        """A client that is connected. Wait for it until the session counts as lost: SessionExpiredError."""
        while self._client is None or not self._is_connected:
            if self._is_lost or (self._client is None and not self._is_started):
                raise SessionExpiredError("", "there is no ZooKeeper session now")
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        return self._client

    # Requests

    async def _ask(self, request: Any, path: str, *, is_read: bool = False) -> Any:
        """Send a request and wait for its answer. `path` is named in errors. A read is sent again when it was lost."""
        session_id = self._kazoo_session_id
        if self.is_unreachable():
            raise ConnectionLossError(path, f"{path}: a test has cut this broker off from ZooKeeper")
        while True:
            client = await self._usable()
            async with self._slots:
                if not self._is_connected or client is not self._client:
                    continue
                if session_id != self._kazoo_session_id:
                    raise SessionExpiredError(path, "the session expired under the operation")
                sent_ms = self._env.clock.monotonic_ms()
                try:
                    result = await self._answer(client, request)
                except LOST as error:
                    if not is_read:
                        raise ConnectionLossError(path, f"{path}: ZooKeeper did not answer") from error
                    if isinstance(error, kazoo_errors.SessionMovedError | kazoo_errors.ThrottledOpError):
                        await self._env.clock.sleep(OPEN_AGAIN_MS)
                except kazoo_errors.ZookeeperError as error:
                    if not isinstance(error, kazoo_errors.SessionExpiredError):
                        self._heard_answer(request, sent_ms)
                    raise error_of(error, path) from None
                else:
                    self._heard_answer(request, sent_ms)
                    return result

    def _heard_answer(self, request: Any, sent_ms: float) -> None:
        if request.type not in ANSWERED_BY_ANY_SERVER:
            self._heard(sent_ms)

    async def _answer(self, client: Client, request: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._in_flight.add(future)
        try:
            answer = client.send(request)
            answer.rawlink(partial(pass_on, future))
            return await future
        finally:
            self._in_flight.discard(future)

    def _all(self, works: Iterable[Callable[[], Awaitable[T]]]) -> Awaitable[list[T]]:
        return many_at_a_time(works, self._settings.max_in_flight_requests)

    def _check_started(self) -> None:
        if not self._is_started:
            raise SessionExpiredError("", "the session is closed")

    def _check_open(self) -> None:
        if self._client is None and not self._is_started:
            raise SessionExpiredError("", "the session is closed")

    # Reading

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        self._check_open()
        if self._is_missing:
            raise NoNodeError(path)
        request = requests.GetData(self._requests.full(path), self._leave(path, watch, EventType.DATA))
        data, stat = await self._ask(request, path, is_read=True)
        return data or b"", stat_of(stat)

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of many nodes, many requests at a time."""

        async def get(path: str) -> tuple[bytes, Stat] | None:
            try:
                return await self.get(path, watch)
            except NoNodeError:
                return None

        return await self._all(partial(get, path) for path in paths)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        self._check_open()
        if self._is_missing and path == "/":
            return NOTHING
        request = requests.Exists(self._requests.full(path), self._leave(path, watch, EventType.DATA))
        stat = await self._ask(request, path, is_read=True)
        return None if stat is None else stat_of(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of a node's children, sorted. The answer may be of any length."""
        self._check_open()
        if self._is_missing and path == "/":
            return []
        request = requests.GetChildren(self._requests.full(path), self._leave(path, watch, EventType.CHILDREN))
        return sorted(await self._ask(request, path, is_read=True))

    def _leave(self, path: str, watch: Watch | None, lost: EventType) -> Callable[[Any], None] | None:
        """What kazoo calls in place of a watch."""
        if watch is None or not self._is_started:
            return None
        client, session_id = self._client, self._kazoo_session_id
        self._watches_left += 1

        def tell(event: WatchEvent) -> None:
            if self._is_started and self._kazoo_session_id == session_id:
                watch(event)

        left = _Left(self._watches_left, tell, WatchEvent(lost, path))

        def fire(event: Any) -> None:
            if client is not self._client:
                return
            if event.type == KazooEventType.NONE:
                self._dropped.append(left)
            else:
                tell(WatchEvent(EVENT_TYPES[event.type], path))

        return fire

    # Writing

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        self._check_started()
        check_size(path, data)
        request = self._requests.create(requests.Create2, Create(path, data, ephemeral, sequential))
        parent, _ = split(path, sequential=sequential)
        while True:
            try:
                made, stat = await self._ask(request, path)
                return made[len(self._chroot) :], stat_of(stat)
            except NoNodeError:
                if not make_parents:
                    raise NoNodeError(parent) from None
            await self._make_missing(parent)

    async def _make_missing(self, path: str) -> None:
        """Make a node and the nodes above it, where they are missing, as one change.

        NoNodeError if the chroot is missing, too: somebody has deleted the whole tree, and it is not for us to begin
        another one.
        """
        lineage = [path[:end] for end in range(1, len(path) + 1) if path[end : end + 1] in ("/", "")]
        found = await self._all(partial(self.exists, node) for node in lineage)
        missing = [node for node, stat in zip(lineage, found, strict=True) if stat is None]
        try:
            await self.multi([Create(node) for node in missing])
        except MultiError as error:
            is_gone = isinstance(error.cause, NoNodeError) and missing == lineage and not await self.exists("/")
            if is_gone or not isinstance(error.cause, NodeExistsError | NoNodeError):
                raise error.cause from None

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        self._check_started()
        check_size(path, data)
        return stat_of(await self._ask(requests.SetData(self._requests.full(path), data or None, version), path))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._check_started()
        await self._ask(requests.Delete(self._requests.full(path), version), path)

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it, level by level, many requests at a time. A lost request is sent again."""
        self._check_started()
        levels = [[path]]
        while levels[-1]:
            names = await self._all(partial(self._children_if_any, node) for node in levels[-1])
            levels.append(
                [f"{node.rstrip('/')}/{name}" for node, below in zip(levels[-1], names, strict=True) for name in below]
            )
        if len(levels) == 2 and await self.exists(path) is None:
            raise NoNodeError(path)
        for level in reversed(levels):
            await self._all(partial(self._delete_if_any, node) for node in level)

    async def _children_if_any(self, path: str) -> list[str]:
        try:
            return await self.children(path)
        except NoNodeError:
            return []

    async def _delete_if_any(self, path: str) -> None:
        while True:
            try:
                await self.delete(path)
            except NoNodeError:
                return
            except ConnectionLossError:
                continue
            except NotEmptyError:  # somebody made a node below it meanwhile
                for name in await self._children_if_any(path):
                    await self._delete_if_any(f"{path.rstrip('/')}/{name}")
            else:
                return

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all as one change, or none. ValueError if they are more than ZooKeeper takes at once."""
        self._check_started()
        asked = list(operations)
        if not asked:
            return []
        return self._requests.results(asked, await self._ask(self._requests.all_of(asked), asked[0].path))
