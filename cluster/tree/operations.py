"""The rules that hold in every tree: how operations are done, which texts are paths, and how versions are checked.

The trees (`tree_file.py`, and the one of the simulator) only store the nodes.
"""

from collections.abc import Sequence
from typing import Protocol

from barnabas.cluster.tree.port import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    Operation,
    OperationResult,
    Set,
    Stat,
)


class Nodes(Protocol):
    """A tree during one change. `zxid` is the number of the change."""

    def has(self, path: str) -> bool:
        """Whether the node exists."""

    def create(self, operation: Create, zxid: int, session_id: int) -> str:
        """Make a node; returns its path. `session_id` owns an ephemeral node."""

    def set(self, path: str, data: bytes, version: int, zxid: int) -> Stat:
        """Replace a node's data."""

    def delete(self, path: str, version: int, zxid: int) -> None:
        """Remove a node."""

    def check(self, path: str, version: int) -> None:
        """Raise NoNodeError or BadVersionError unless the node exists in that version."""


def do(nodes: Nodes, operation: Operation, zxid: int, session_id: int) -> OperationResult:
    match operation:
        case Create():
            return nodes.create(operation, zxid, session_id)
        case Set(path, data, version):
            return nodes.set(path, data, version, zxid)
        case Delete(path, version):
            nodes.delete(path, version, zxid)
        case Check(path, version):
            nodes.check(path, version)
    return None


def do_all(nodes: Nodes, operations: Sequence[Operation], zxid: int, session_id: int) -> list[OperationResult]:
    """Do all operations of a multi, in order. MultiError at the first that fails; the caller then undoes the change."""
    results: list[OperationResult] = []
    for index, operation in enumerate(operations):
        try:
            results.append(do(nodes, operation, zxid, session_id))
        except CoordinationError as error:
            raise MultiError(index, error) from error
    return results


def make_above(nodes: Nodes, path: str, zxid: int) -> None:
    """Make the missing nodes above a path, as persistent nodes."""
    parent, _ = split(path)
    if parent != "/" and not nodes.has(parent):
        make_above(nodes, parent, zxid)
        nodes.create(Create(parent), zxid, 0)


def check_version(path: str, found: int, expected: int) -> None:
    """Raise BadVersionError unless `found` is the expected version, or any version is allowed."""
    if expected not in (ANY_VERSION, found):
        raise BadVersionError(path, f"{path} has version {found}, not {expected}")


def split(path: str, *, sequential: bool = False) -> tuple[str, str]:
    """Parent and name; the root is ("/", ""). The path of a sequential node may end with a slash.

    ValueError if it is not a path.
    """
    if path == "/" and not sequential:
        return "/", ""
    parent, slash, name = path.rpartition("/")
    bad = not slash or (not name and not sequential) or name in (".", "..") or "//" in path or not path.startswith("/")
    if bad or "\0" in path:
        raise ValueError(f"not a path: {path!r}")
    return parent or "/", name


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
