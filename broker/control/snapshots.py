"""A snapshot of a broker, or a restore, as its process makes it between two lives (`runtime/lives.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from barnabas.runtime.lives import Lives, SharedTree, SnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barnabas.broker.control.gate import ControlledGate
    from barnabas.broker.services import Services
    from barnabas.runtime.pending import Pending

ROLLED_BYTES = 1 << 20  # a longer segment is ended by a snapshot, so that it is linked and not copied


def take(services: Services, folder: str | None, node_ids: list[int] | None = None) -> Pending[Path | SnapshotError]:
    """Note all that the broker has, in a new folder. It serves again when the value is there.

    `node_ids`: of a cluster whose tree is a file, who is told the same; None: all that are registered. SnapshotError:
    that cannot be, and this life goes on.
    """

    def note(lives: Lives, directories: list[str], shared: SharedTree | None) -> Pending[Path | SnapshotError]:
        noted = lives.snapshot(directories, folder, shared)
        if shared is None:
            for log in services.log_manager.all():
                if log.segments.active.size > ROLLED_BYTES:
                    log.roll()
        return noted

    return _changed(services, "snapshot", folder, node_ids, note)


def put_back(services: Services, folder: str, node_ids: list[int] | None = None) -> Pending[Path | SnapshotError]:
    """Put back what a snapshot has. It is like `take`."""

    def restore(lives: Lives, directories: list[str], shared: SharedTree | None) -> Pending[Path | SnapshotError]:
        return lives.restore(directories, folder, shared)

    return _changed(services, "restore", folder, node_ids, restore)


def _changed(
    services: Services,
    what: str,
    folder: str | None,
    node_ids: list[int] | None,
    change: Callable[[Lives, list[str], SharedTree | None], Pending[Path | SnapshotError]],
) -> Pending[Path | SnapshotError]:
    lives, directories, shared = _parts(services, node_ids)
    try:
        if services.log_manager.failed_directories:
            raise SnapshotError("a data directory has failed: mend it, and start this broker again")
        return change(lives, directories, shared)
    except SnapshotError as error:
        lives.refuse(what, folder, shared, str(error))
        raise


def _parts(services: Services, node_ids: list[int] | None) -> tuple[Lives, list[str], SharedTree | None]:
    """Whose lives, of which directories, and the tree that this broker shares with others (None: it has its own)."""
    lives = cast("ControlledGate", services.request_gate).lives
    if lives is None:
        raise SnapshotError("only a broker that `barnabas start` has started can do this")
    directories = [each.path for each in services.log_manager.open_directories]
    tree, node_id = services.tree_path, services.node_id
    registered = services.metadata_cache.brokers.keys()
    if tree is None:
        raise SnapshotError("the tree of this broker is in ZooKeeper, which nobody puts back")
    if tree.rpartition("/")[0] in directories:
        if registered != {node_id}:
            raise SnapshotError("other brokers use the tree that is in the data of this one")
        return lives, directories, None
    return lives, directories, SharedTree(tree, node_id, tuple(sorted(registered if node_ids is None else node_ids)))
