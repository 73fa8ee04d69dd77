"""The port to the coordination tree: ZooKeeper's data model without ZooKeeper.

A tree of nodes with bytes and versions; ephemeral nodes that go with the session that made them; sequential names;
one-shot watches; multi-operations that happen wholly or not at all. Paths are absolute (`/a/b`), `/` always exists.

What every implementation promises (tests/unit/tree holds them to it):

* A watch fires once, at the first change after the read that left it. Watches are called by the event loop, in the
  order of the changes, and never inside an operation. `get` and `exists` leave a data watch (CREATED, DATA, DELETED).
  `children` leaves a child watch (CHILDREN, or DELETED when the node itself goes). A read that raises leaves no watch.
* When a session has expired, its watches and its ephemeral nodes are gone, and a new session exists already:
  `session_id` is the new one when the callbacks of `on_session_expired` run.
* A session lives on, whatever happens to its process, for `session_timeout_ms` after `last_confirmed_ms`. Who relies on
  this compares `session_id` too, because a new session has its own `last_confirmed_ms`.
* Operations before `start` and after `close` raise SessionExpiredError. But `look` opens the tree without a session:
  after it the tree can be read, without watches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Protocol

from barnabas.protocol.named_tuple import NamedTuple

ANY_VERSION = -1


class CoordinationError(Exception):
    """An operation that was not done. `path` is the node it was about, where there is one."""

    def __init__(self, path: str = "", message: str = "") -> None:
        super().__init__(message or path)
        self.path = path


class UnreadableNodeError(CoordinationError):
    """Somebody has written the node by hand. str() names it, and says what to do."""


@contextmanager
def must_be_readable(path: str) -> Iterator[None]:
    """UnreadableNodeError, if the data of a node are not what is read here (ValueError)."""
    try:
        yield
    except ValueError as error:
        text = f"the node {path} of the tree cannot be read: {error}. Restore the tree from a backup."
        raise UnreadableNodeError(path, text) from error


class NoNodeError(CoordinationError):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExistsError(CoordinationError):
    """A node of that name exists."""


class BadVersionError(CoordinationError):
    """The node's data version is not the one expected, because another session wrote it."""


class NotEmptyError(CoordinationError):
    """A node that has children cannot be deleted."""


class NoChildrenForEphemeralsError(CoordinationError):
    """An ephemeral node cannot have children."""


class ConnectionLossError(CoordinationError):
    """Nobody answered. The operation may or may not have been done: read and compare before repeating it."""


class SessionExpiredError(CoordinationError):
    """The session of this operation is over, or never began. Nothing was done."""


class MultiError(CoordinationError):
    """A multi-operation failed and changed nothing: operation number `index` met the error `cause`."""

    def __init__(self, index: int, cause: CoordinationError) -> None:
        super().__init__(cause.path, f"operation {index}: {type(cause).__name__} {cause}")
        self.index = index
        self.cause = cause


class Stat(NamedTuple):
    """What is known about a node beside its data. A zxid numbers the changes of the whole tree, always growing."""

    czxid: int  # of the change that made the node: a broker's epoch
    mzxid: int  # of the last change of its data
    ctime_ms: int
    mtime_ms: int
    version: int  # of its data: 0 when made, one more with each set
    cversion: int  # of its list of children
    ephemeral_owner: int  # session that made it, 0 for a persistent node
    num_children: int


class EventType(Enum):
    """What happened to a watched node."""

    CREATED = 1
    DELETED = 2
    DATA = 3
    CHILDREN = 4


class WatchEvent(NamedTuple):
    """What a watch is told: only that something happened. The watcher reads what is there now."""

    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]


class Create(NamedTuple):
    """Make a node. Its result in a multi is its path (with the ten digits of a sequential one)."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Replace a node's data if its version is `version` (-1: whatever it is). Its result is the new Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Remove a childless node if its data version is `version`. Its result is None."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Let the multi fail unless the node exists with that data version: the fence. Its result is None."""

    path: str
    version: int = ANY_VERSION


# Small values as tuples, which load fastest. A Delete equals a Check of the same fields: ask for the type.
Operation = Create | Set | Delete | Check
OperationResult = str | Stat | None


def always_reachable() -> bool:
    """No test says that the tree does not answer."""
    return False


def held_by_nobody() -> str:
    """No process can keep another from changing the tree."""
    return ""


class Coordination(Protocol):
    """One session with the tree. Every operation may raise ConnectionLossError and SessionExpiredError."""

    @property
    def session_id(self) -> int:
        """Owner of the ephemerals made now; 0 before `start`."""

    @property
    def session_timeout_ms(self) -> float:
        """How long the session lives on when nothing more is heard from it."""

    @property
    def session_ends_with_process(self) -> bool:
        """Whether the session of a killed process ends at once; else it lasts for its time-out, as ZooKeeper's do."""

    @property
    def trouble(self) -> str:
        """What is wrong with the tree itself until a person mends it, as far as it is known; empty: nothing."""

    @property
    def last_confirmed_ms(self) -> float:
        """By the monotonic clock: when the newest round trip that was answered in this session was *sent*.

        -inf when there was none. An operation may count as such a round trip; `confirm` always does.
        """

    held_by: Callable[[], str]
    """Who keeps this process from changing the tree by being inside a change for long; empty: nobody."""

    is_unreachable: Callable[[], bool]
    """Whether this process is to be as if the tree did not answer, because a test says so."""

    async def confirm(self) -> None:
        """Make one cheap round trip, which raises `last_confirmed_ms`. ConnectionLossError, SessionExpiredError."""

    def confirm_at_once(self) -> bool:
        """`confirm` without waiting. True: the session lives, and `last_confirmed_ms` is now.

        False when it does not, and where it takes a message to another machine to know.
        """

    async def look(self) -> None:
        """Make the tree readable before `start`. This opens no session, and changes no file. No effect after `start`.

        A tree that does not exist yet has only the node `/`. Ephemeral nodes of dead processes are not shown.
        ConnectionLossError when the tree cannot be reached or read.
        """

    async def start(self) -> None:
        """Open the session. ConnectionLossError when the tree cannot be reached."""

    async def close(self, *, keeps_tree: bool = True) -> None:
        """End the session: its ephemerals go at once, its watches never fire again. Harmless when closed.

        Without `keeps_tree` another one takes the place of this: it may be left as by SIGKILL.
        """

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Make a node; returns its path (sequential: with ten digits appended) and Stat.

        `make_parents`: also the persistent nodes above it that are missing.
        NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError.
        """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat. NoNodeError."""

    async def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[tuple[bytes, Stat] | None]:
        """`get` of each path, None (and no watch) where there is no such node. The event says which node it was."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data. NoNodeError, BadVersionError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove a node. NoNodeError, BadVersionError, NotEmptyError."""

    async def delete_recursive(self, path: str) -> None:
        """Remove a node and all below it, children first. Not promised to be one change. NoNodeError."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat, or None (then a watch waits for the creation)."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names of the children, sorted. NoNodeError."""

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Do all, in order, as one change; or raise MultiError and do none."""

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, from the loop, each time a session was lost and replaced."""

    def on_session_silent(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when a session counts as lost before there is another one. It never comes back.

        Only a tree on other machines can be silent for so long.
        """


async def get_if_there(coordination: Coordination, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
    """Data and Stat of a node. None (and no watch): there is no such node."""
    try:
        return await coordination.get(path, watch)
    except NoNodeError:
        return None


async def children_if_there(coordination: Coordination, path: str) -> list[str]:
    """Names of a node's children, sorted; none if there is no such node."""
    try:
        return await coordination.children(path)
    except NoNodeError:
        return []


def writing(path: str, data: bytes, found: tuple[bytes, Stat] | None) -> Create | Set:
    """What writes a node that was found so, unless somebody else has written, made or removed it meanwhile."""
    return Create(path, data) if found is None else Set(path, data, found[1].version)


async def make_if_missing(coordination: Coordination, path: str, data: bytes = b"") -> None:
    """Make a node, with those above it. That another process may have made it meanwhile is no error."""
    with suppress(NodeExistsError):
        await coordination.create(path, data, make_parents=True)
