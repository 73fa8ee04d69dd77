"""ZooKeeper's requests and answers as values: paths below the chroot, access lists, operations, errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.operations import split
from barnabas.cluster.tree.port import (
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    OperationResult,
    SessionExpiredError,
    Set,
    Stat,
)
from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as requests
from kazoo.protocol.states import EventType as KazooEventType
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

T = TypeVar("T")

REQUEST_BYTES_MAX = 1_000_000  # jute.maxbuffer is 1,048,575: the server closes the connection at a longer request
OPERATION_BYTES = 64  # of an operation in a multi, at most, beside its path and data

# Nodes that not everybody may read (zookeeper.set.acl), and those of old consumers, which everybody may write.
SENSITIVE = (f"{paths.CONFIG}/users", f"{paths.CONFIG}/brokers", paths.DELEGATION_TOKENS)

_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: NoChildrenForEphemeralsError,
    kazoo_errors.SessionExpiredError: SessionExpiredError,
    kazoo_errors.ConnectionClosedError: SessionExpiredError,
}
# Nobody knows what became of the operation.
LOST = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.ThrottledOpError,
)
# What a multi answers for operations beside the one that failed.
_UNDONE = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)

EPHEMERAL, SEQUENTIAL = 1, 2  # flags of a create
NOTHING = Stat(0, 0, 0, 0, 0, 0, 0, 0)  # the root of a tree that does not exist yet

# A server that has lost its leader answers these too, for a while. They do not confirm a session.
ANSWERED_BY_ANY_SERVER = (requests.GetData.type, requests.Exists.type, requests.GetChildren.type)

EVENT_TYPES = {
    KazooEventType.CREATED: EventType.CREATED,
    KazooEventType.DELETED: EventType.DELETED,
    KazooEventType.CHANGED: EventType.DATA,
    KazooEventType.CHILD: EventType.CHILDREN,
}


class Requests:
    """Makes the requests for a tree below `chroot`, and reads their answers."""

    def __init__(self, chroot: str, set_acl: bool) -> None:
        self._chroot = chroot
        self._set_acl = set_acl

    def full(self, path: str, *, sequential: bool = False) -> str:
        """The path in ZooKeeper."""
        split(path, sequential=sequential)
        return self._chroot or "/" if path == "/" else f"{self._chroot}{path}"

    def acl(self, path: str) -> Any:
        """Who may do what with a node that is made, as Kafka has it."""
        if not self._set_acl or path == paths.CONSUMERS or path.startswith(f"{paths.CONSUMERS}/"):
            return OPEN_ACL_UNSAFE
        is_sensitive = any(path == above or path.startswith(f"{above}/") for above in SENSITIVE)
        return CREATOR_ALL_ACL if is_sensitive else CREATOR_ALL_ACL + READ_ACL_UNSAFE

    def create(self, request: Any, operation: Create) -> Any:
        """A request of that kind which makes a node."""
        path, data, ephemeral, sequential = operation
        flags = ephemeral * EPHEMERAL | sequential * SEQUENTIAL
        return request(self.full(path, sequential=sequential), data or None, self.acl(path), flags)

    def all_of(self, asked: Sequence[Operation]) -> Any:
        """One request that does all, or none. ValueError if they are more than ZooKeeper takes at once."""
        size = sum(OPERATION_BYTES + len(one.path) + len(getattr(one, "data", b"")) for one in asked)
        for one in asked:
            check_size(one.path, getattr(one, "data", b""))
        if size > REQUEST_BYTES_MAX:
            raise ValueError(f"{len(asked)} operations of {size} bytes are too many for one request to ZooKeeper")
        return requests.Transaction([self._request(one) for one in asked])

    def results(self, asked: Sequence[Operation], answers: Sequence[Any]) -> list[OperationResult]:
        """What each operation of such a request has done. MultiError: the first one that failed."""
        for index, (one, answer) in enumerate(zip(asked, answers, strict=True)):
            if isinstance(answer, Exception) and not isinstance(answer, _UNDONE):
                about = one.path
                if isinstance(one, Create) and isinstance(answer, kazoo_errors.NoNodeError):
                    about, _ = split(one.path, sequential=one.sequential)
                raise MultiError(index, error_of(answer, about))
        if any(isinstance(answer, Exception) for answer in answers):
            raise CoordinationError(asked[0].path, "ZooKeeper did none of the operations, and did not say why")
        return [self._result(one, answer) for one, answer in zip(asked, answers, strict=True)]

    def _request(self, operation: Operation) -> Any:
        match operation:
            case Create():
                return self.create(requests.Create, operation)
            case Set(path, data, version):
                return requests.SetData(self.full(path), data or None, version)
            case Delete(path, version):
                return requests.Delete(self.full(path), version)
            case Check(path, version):
                return requests.CheckVersion(self.full(path), version)

    def _result(self, operation: Operation, answer: Any) -> OperationResult:
        if isinstance(operation, Create):
            return str(answer)[len(self._chroot) :]
        return stat_of(answer) if isinstance(operation, Set) else None


def error_of(error: Exception, path: str) -> CoordinationError:
    """What the tree raises for an error of kazoo that an operation on `path` met."""
    kind = _ERRORS.get(type(error))
    if kind is not None:
        return kind(path)
    if isinstance(error, kazoo_errors.NoAuthError):
        return CoordinationError(
            path,
            f"ZooKeeper's access list of {path} does not allow this: start with the zookeeper.digest.credentials "
            "(user:password) or the zookeeper.sasl.jaas.config of those who made it",
        )
    return CoordinationError(path, f"{path}: ZooKeeper refused it: {error!r}")


def check_size(path: str, data: bytes) -> None:
    """CoordinationError before ZooKeeper closes the connection, at which the session may end."""
    if OPERATION_BYTES + len(path) + len(data) > REQUEST_BYTES_MAX:
        raise CoordinationError(
            path, f"{path} would have {len(data)} bytes, and ZooKeeper takes about a megabyte (jute.maxbuffer)"
        )


def stat_of(stat: Any) -> Stat:
    """The Stat of a node, from what kazoo says of it."""
    return Stat(
        stat.czxid,
        stat.mzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.numChildren,
    )


async def many_at_a_time(works: Iterable[Callable[[], Awaitable[T]]], most: int) -> list[T]:
    """Do all tasks, `most` at a time; their results in order. The first error, when no work is under way."""
    remaining = enumerate(works)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    async def work() -> None:
        for index, one in remaining:
            try:
                results[index] = await one()
            except Exception as error:
                errors.append(error)
            if errors:
                return

    await asyncio.gather(*(work() for _ in range(most)))
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(results))]
