"""The coordination tree in memory: a server that outlives its sessions, with the failures of a real one.

`SimTree` is the tree. Each process holds a `SimCoordination`, which has one session after the other. A `trouble`
decides the fate of each operation: it is done, or the connection is lost before or after it takes effect. Watches fire
late and in order. A session expires when a test says so, or `session_timeout_ms` after its process has died.
"""

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from barnabas.cluster.tree.operations import check_version, do_all, make_above, parent_of, split
from barnabas.cluster.tree.port import (
    ANY_VERSION,
    ConnectionLossError,
    Create,
    EventType,
    NoChildrenForEphemeralsError,
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
from barnabas.runtime.ports import Clock

if TYPE_CHECKING:
    from simulator.host import Life

T = TypeVar("T")


class Fate(Enum):
    """The fate of one operation."""

    DONE = "done"
    LOST_BEFORE = "lost before"  # the operation took no effect
    LOST_AFTER = "lost after"  # it took effect, but the answer was lost


Trouble = Callable[[str], Fate]  # called for each operation, with its name
Node = tuple[str, bytes | None, int]  # path, data (None: there is no such node any more), version


class _Node(NamedTuple):
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    creations: int
    num_children: int
    owner: int

    def stat(self) -> Stat:
        # every creation and every deletion of a child counts
        cversion = 2 * self.creations - self.num_children
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            cversion,
            self.owner,
            self.num_children,
        )


class TreeCopy(NamedTuple):
    """All nodes of a tree but those of sessions, as a backup has them."""

    zxid: int
    nodes: dict[str, _Node]


EMPTY_TREE = TreeCopy(0, {"/": _Node(b"", 0, 0, 0, 0, 0, 0, 0, 0)})


class Session:
    """A session, as the server has it."""

    __slots__ = ("alive", "child_watches", "client", "data_watches")

    def __init__(self, client: "SimCoordination") -> None:
        self.client = client
        self.alive = True  # whether its process lives; the session may outlive it
        self.data_watches: dict[str, list[Watch]] = {}
        self.child_watches: dict[str, list[Watch]] = {}


class SimTree:
    """The server. Its state survives the crash of any broker."""

    def __init__(self, clock: Clock, session_timeout_ms: float = 500.0) -> None:
        self.clock = clock
        self.session_timeout_ms = session_timeout_ms
        self.latency_ms = 0.0
        self.watch_delay_ms: Callable[[], float] = lambda: 0.0
        self.trouble: Trouble = lambda name: Fate.DONE
        self.on_change: Callable[[Node], object] | None = None  # called for each node that a change has changed
        self.sessions: dict[int, Session] = {}
        self.zxid = 0
        self._last_session_id = 0
        self._nodes: dict[str, _Node] = dict(EMPTY_TREE.nodes)
        self._draft: dict[str, _Node] = self._nodes  # the nodes with the change that is being made
        self._changes: list[WatchEvent] = []
        self._now_ms = 0

    # -- sessions

    def connect(self, clock: Clock, life: "Life") -> "SimCoordination":
        """The client of a process."""
        return SimCoordination(clock, self)

    def open(self, client: "SimCoordination") -> int:
        """Begin a session. Sessions of dead processes end now, because the new process may be their successor."""
        for session_id, session in list(self.sessions.items()):
            if not session.alive:
                self.end(session_id)
        return self.begin(client)

    def begin(self, client: "SimCoordination") -> int:
        """Begin a session, and nothing else; returns its id."""
        self._last_session_id += 1
        self.sessions[self._last_session_id] = Session(client)
        return self._last_session_id

    def kill(self, session_id: int) -> None:
        """The process of that session is dead. The session ends after the timeout."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.alive = False
            session.client.cut_off()
            self.clock.call_later(self.session_timeout_ms, lambda: self.end(session_id))

    def end(self, session_id: int) -> None:
        """End the session: its ephemeral nodes go."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            owned = [(node.czxid, path) for path, node in self._nodes.items() if node.owner == session_id]

            def delete(zxid: int) -> None:
                for _, path in sorted(owned):
                    self.delete(path, ANY_VERSION, zxid)

            self.change(delete)

    def seems_alive(self, session: Session) -> bool:
        """Whether who has no session yet takes the process of that session for alive."""
        return session.alive

    def expire(self, session_id: int) -> None:
        """End a session whose process lives; its client gets a new one and is told."""
        session = self.sessions.get(session_id)
        if session is not None and session.alive:
            self.end(session_id)
            session.client.expired()

    def ephemerals(self) -> dict[str, int]:
        """Path and owner of every ephemeral node."""
        return {path: node.owner for path, node in self._nodes.items() if node.owner}

    # -- backups

    def copy(self) -> TreeCopy:
        """A backup."""
        nodes = dict(self._nodes)
        for path, node in self._nodes.items():
            if node.owner:
                del nodes[path]
                above = nodes[parent_of(path)]
                nodes[parent_of(path)] = above._replace(num_children=above.num_children - 1)
        return TreeCopy(self.zxid, nodes)

    def put_back(self, copy: TreeCopy) -> None:
        """Be what that backup was, as if nothing had happened since. All sessions are over, and nobody is told."""
        self._nodes = self._draft = dict(copy.nodes)
        self.zxid = copy.zxid
        self.sessions.clear()

    # -- reading

    def find(self, path: str) -> _Node | None:
        """A node, or None. ValueError for an invalid path."""
        split(path)
        return self._draft.get(path)

    def require(self, path: str) -> _Node:
        """A node. NoNodeError."""
        node = self.find(path)
        if node is None:
            raise NoNodeError(path)
        return node

    def children(self, path: str) -> list[str]:
        """Names below a node, sorted."""
        self.require(path)
        below = f"{path.rstrip('/')}/"
        start = len(below)
        return sorted(name[start:] for name in self._draft if name.startswith(below) and "/" not in name[start:])[
            1 if path == "/" else 0 :
        ]

    def nodes(self) -> list[Node]:
        """Every node, in the order of their paths."""
        return sorted((path, node.data, node.version) for path, node in self._nodes.items())

    def below(self, prefix: str) -> list[tuple[str, bytes]]:
        """Path and data of every node whose path begins with `prefix`, in order."""
        return sorted((path, node.data) for path, node in self._nodes.items() if path.startswith(prefix))

    # -- changing

    def change(self, work: Callable[[int], T]) -> T:
        """Do `work(zxid)` as one change. All of it is done and its watches fire, or nothing is done."""
        assert not self._changes, "a change inside a change"
        self._draft = dict(self._nodes)
        self._now_ms = self.clock.now_ms()
        try:
            result = work(self.zxid + 1)
        except BaseException:
            self._draft = self._nodes
            self._changes.clear()
            raise
        self._nodes = self._draft
        self.zxid += 1
        changes, self._changes = self._changes, []
        if self.on_change is not None:
            for event in changes:
                if event.type is not EventType.CHILDREN:
                    node = self._nodes.get(event.path)
                    self.on_change((event.path, None, -1) if node is None else (event.path, node.data, node.version))
        for event in changes:
            for session in list(self.sessions.values()):
                session.client.tell(session.data_watches, session.child_watches, event)
        return result

    def has(self, path: str) -> bool:
        """Whether a node exists."""
        return self.find(path) is not None

    def check(self, path: str, version: int) -> None:
        """Raise NoNodeError or BadVersionError unless the node exists in that version."""
        check_version(path, self.require(path).version, version)

    def delete_recursive(self, path: str, zxid: int) -> None:
        """Delete a node and all nodes below it."""
        self.require(path)
        below = f"{path.rstrip('/')}/"
        for deeper in sorted((name for name in self._draft if name.startswith(below)), reverse=True):
            self.delete(deeper, ANY_VERSION, zxid)
        self.delete(path, ANY_VERSION, zxid)

    def create(self, operation: Create, zxid: int, session_id: int) -> str:
        """Make a node; if it is ephemeral, for that session. Returns its path."""
        parent, _ = split(operation.path, sequential=operation.sequential)
        above = self.require(parent)
        if above.owner:
            raise NoChildrenForEphemeralsError(operation.path)
        path = f"{operation.path}{above.creations:010}" if operation.sequential else operation.path
        if path in self._draft:
            raise NodeExistsError(path)
        owner = session_id if operation.ephemeral else 0
        self._draft[path] = _Node(operation.data, zxid, zxid, self._now_ms, self._now_ms, 0, 0, 0, owner)
        self._draft[parent] = above._replace(creations=above.creations + 1, num_children=above.num_children + 1)
        self._changes += [WatchEvent(EventType.CREATED, path), WatchEvent(EventType.CHILDREN, parent)]
        return path

    def set(self, path: str, data: bytes, version: int, zxid: int) -> Stat:
        """Replace a node's data."""
        node = self.require(path)
        check_version(path, node.version, version)
        new = node._replace(data=data, mzxid=zxid, mtime_ms=self._now_ms, version=node.version + 1)
        self._draft[path] = new
        self._changes.append(WatchEvent(EventType.DATA, path))
        return new.stat()

    def delete(self, path: str, version: int, zxid: int) -> None:
        """Remove a node."""
        node = self.require(path)
        check_version(path, node.version, version)
        if node.num_children:
            raise NotEmptyError(path)
        if path == "/":
            raise ValueError("the root cannot be deleted")
        parent = parent_of(path)
        del self._draft[path]
        above = self._draft[parent]
        self._draft[parent] = above._replace(num_children=above.num_children - 1)
        self._changes += [WatchEvent(EventType.DELETED, path), WatchEvent(EventType.CHILDREN, parent)]


class SimCoordination:
    """One process's sessions with a `SimTree`, one at a time. Implements the Coordination port."""

    session_ends_with_process = False
    trouble = ""

    def __init__(self, clock: Clock, tree: SimTree) -> None:
        self.session_id = 0
        self.is_unreachable = always_reachable
        self.held_by = held_by_nobody
        self.last_confirmed_ms = -math.inf
        self.tree = tree
        self._clock = clock
        self._open = False
        self._looks = False  # the tree may be read, although there is no session yet
        self._next_event_ms = 0.0
        self._on_expired: list[Callable[[], None]] = []

    @property
    def session_timeout_ms(self) -> float:
        """The same for all sessions with the tree."""
        return self.tree.session_timeout_ms

    async def confirm(self) -> None:
        """Ask the server for nothing."""
        self._check_open()
        await self._read("confirm", lambda: None)

    def confirm_at_once(self) -> bool:
        """The server is on another machine."""
        return False

    async def look(self) -> None:
        """Read before there is a session."""
        self._looks = not self._open

    async def start(self) -> None:
        """Begin a session."""
        self._looks = False
        if not self._open:
            sent_ms = self._clock.monotonic_ms()
            await self._travel("start")
            self.session_id = self.tree.open(self)
            self.last_confirmed_ms = sent_ms
            self._open = True

    async def close(self, *, keeps_tree: bool = True) -> None:
        """End it."""
        self._looks = False
        if self._open:
            self._open = False
            self.last_confirmed_ms = -math.inf
            self.tree.end(self.session_id)

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a new session has replaced an expired one."""
        self._on_expired.append(callback)

    def on_session_silent(self, callback: Callable[[], None]) -> None:
        """A session that is lost here is replaced at once."""

    def cut_off(self) -> None:
        """The process is dead: nothing that it does reaches the server any more."""
        self._open = False

    def expired(self) -> None:
        """The server has ended the session: begin a new one, and call the callbacks."""
        self.session_id = self.tree.open(self)
        self.last_confirmed_ms = self._clock.monotonic_ms()
        for callback in self._on_expired:
            self._clock.call_soon(callback)

    # -- operations

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Make a node."""
        operation = Create(path, data, ephemeral, sequential)

        def work(zxid: int) -> tuple[str, Stat]:
            if make_parents:
                make_above(self.tree, path, zxid)
            made = self.tree.create(operation, zxid, self.session_id)
            return made, self.tree.require(made).stat()

        return await self._write("create", work)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace a node's data."""
        return await self._write("set", lambda zxid: self.tree.set(path, data, version, zxid))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node."""
        await self._write("delete", lambda zxid: self.tree.delete(path, version, zxid))

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it."""
        await self._write("delete_recursive", lambda zxid: self.tree.delete_recursive(path, zxid))

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all operations as one change, or none."""
        asked = list(operations)
        return await self._write("multi", lambda zxid: do_all(self.tree, asked, zxid, self.session_id))

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat of a node."""

        def work() -> tuple[bytes, Stat]:
            node = self._find(path)
            if node is None:
                raise NoNodeError(path)
            self._leave(path, watch)
            return node.data, node.stat()

        return await self._read("get", work)

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, Stat] | None]:
        """Data and Stat of many nodes."""
        asked = list(paths)

        def work() -> list[tuple[bytes, Stat] | None]:
            nodes = [self._find(path) for path in asked]
            for path, node in zip(asked, nodes):
                if node is not None:
                    self._leave(path, watch)
            return [None if node is None else (node.data, node.stat()) for node in nodes]

        return await self._read("get_many", work)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat of a node, or None if there is no such node."""

        def work() -> Stat | None:
            node = self._find(path)
            self._leave(path, watch)
            return None if node is None else node.stat()

        return await self._read("exists", work)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of a node's children."""

        def work() -> list[str]:
            names = self.tree.children(path)
            if watch is not None:
                self._session().child_watches.setdefault(path, []).append(watch)
            return names

        return await self._read("children", work)

    async def _write(self, name: str, work: Callable[[int], T]) -> T:
        self._check_open()
        return await self._read(name, lambda: self.tree.change(work))

    async def _read(self, name: str, work: Callable[[], T]) -> T:
        if not self._looks:
            self._check_open()
        session_id, sent_ms = self.session_id, self._clock.monotonic_ms()
        fate = await self._travel(name)
        if not self._looks:
            self._check_open()
        if session_id != self.session_id:
            raise SessionExpiredError("", "the session expired under the operation")
        if fate is Fate.LOST_BEFORE:
            raise ConnectionLossError("", f"simulated, before {name}")
        result = work()
        if fate is Fate.LOST_AFTER:
            raise ConnectionLossError("", f"simulated, after {name}")
        if self._open:
            self.last_confirmed_ms = max(self.last_confirmed_ms, sent_ms)
        return result

    async def _travel(self, name: str) -> Fate:
        if self.tree.latency_ms:
            await self._clock.sleep(self.tree.latency_ms)
        return self.tree.trouble(name)

    def _check_open(self) -> None:
        if not self._open:
            raise SessionExpiredError("", "the session is closed")

    def _find(self, path: str) -> _Node | None:
        node = self.tree.find(path)
        if node is not None and node.owner and self._looks:
            session = self.tree.sessions.get(node.owner)
            return node if session is not None and self.tree.seems_alive(session) else None
        return node

    def _session(self) -> Session:
        return self.tree.sessions[self.session_id]

    # -- watches

    def _leave(self, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._session().data_watches.setdefault(path, []).append(watch)

    def tell(
        self, data_watches: dict[str, list[Watch]], child_watches: dict[str, list[Watch]], event: WatchEvent
    ) -> None:
        """A node has changed: fire this session's watches for it, late but in order."""
        fired: list[Watch] = []
        if event.type is not EventType.CHILDREN:
            fired += data_watches.pop(event.path, ())
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            fired += child_watches.pop(event.path, ())
        for watch in fired:
            self._deliver(watch, event)

    def _deliver(self, watch: Watch, event: WatchEvent) -> None:
        session_id = self.session_id

        def deliver() -> None:
            if self._open and self.session_id == session_id:
                watch(event)

        now_ms = self._clock.monotonic_ms()
        self._next_event_ms = max(self._next_event_ms, now_ms + self.tree.watch_delay_ms())
        if self._next_event_ms > now_ms:
            self._clock.call_later(self._next_event_ms - now_ms, deliver)
        else:
            self._clock.call_soon(deliver)
