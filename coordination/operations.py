"""What holds in every tree: which operation asks for what, which texts are paths, which version is the right one.

The trees themselves (`tree_file.py`, and its twin in the simulator) say how a node is kept.
"""

from collections.abc import Sequence
from typing import Protocol

from barnabas.coordination.port import (
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
    """A tree in the middle of one change, which has the number `zxid`."""

    def has(self, path: str) -> bool:
        """Whether a node is there."""

    def create(self, operation: Create, zxid: int, session_id: int) -> str:
        """Make a node, an ephemeral one for that session; returns its path."""

    def set(self, path: str, data: bytes, version: int, zxid: int) -> Stat:
        """Replace a node's data."""

    def delete(self, path: str, version: int, zxid: int) -> None:
        """Remove a node."""

    def check(self, path: str, version: int) -> None:
        """NoNodeError or BadVersionError unless the node is there in that version."""


def do(nodes: Nodes, operation: Operation, zxid: int, session_id: int) -> OperationResult:
    """One operation."""
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
    """All operations of a multi, in their order. MultiError at the first that cannot be done."""
    results: list[OperationResult] = []
    for index, operation in enumerate(operations):
        try:
            results.append(do(nodes, operation, zxid, session_id))
        except CoordinationError as error:
            raise MultiError(index, error) from error
    return results


def make_above(nodes: Nodes, path: str, zxid: int) -> None:
    """Make the nodes above a path that are missing, as persistent ones."""
    parent, _ = split(path)
    if parent != "/" and not nodes.has(parent):
        make_above(nodes, parent, zxid)
        nodes.create(Create(parent), zxid, 0)


def check_version(path: str, found: int, expected: int) -> None:
    """BadVersionError unless the version found is the one expected, or any will do."""
    if expected not in (ANY_VERSION, found):
        raise BadVersionError(path, f"{path} has version {found}, not {expected}")


def split(path: str, *, sequential: bool = False) -> tuple[str, str]:
    """Parent and name; the root is ("/", ""). A sequential node may be asked for without a name.

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
    """The node above a node."""
    return path.rpartition("/")[0] or "/"
