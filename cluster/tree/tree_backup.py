"""A backup of the embedded tree, which can be taken while brokers use it.

It is one file that needs nothing beside it. It holds the tree at one time, without the sessions of that time and what
they owned: who is registered, who is controller. Who starts on it finds the node `paths.RESTORED`, which says that logs
may know more than this tree. Changes begin with numbers that none of those made meanwhile had, so no broker gets an
epoch that it had before.
"""

from contextlib import closing

from barnabas.cluster.tree import paths, tree_copy
from barnabas.cluster.tree.payloads import decode_cluster_id
from barnabas.cluster.tree.port import ConnectionLossError, CoordinationError
from barnabas.cluster.tree.session_files import SessionFiles
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import BusyError
from barnabas.cluster.tree.tree_place import TreePlace
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Env
from barnabas.storage.directory_contents import BESIDE_THE_TREE

TRIES = 50  # while other processes write
TRY_AGAIN_MS = 100.0


class TreeBackup(NamedTuple):
    """A backup that was taken."""

    content: bytes  # of the file
    cluster_id: str | None
    topics: int
    taken_ms: int


async def take(env: Env, path: str) -> TreeBackup:
    """A backup of the tree at `path`. ConnectionLossError if there is none, or it cannot be read, or it is damaged."""
    if not env.disk.exists(path):
        raise ConnectionLossError("", f"there is no tree at {path}")
    with closing(await _when_nobody_writes(env, path)) as copy:
        return _marked(copy, env.clock.now_ms())


async def _when_nobody_writes(env: Env, path: str) -> TreeFile:
    files = SessionFiles(env.disk, path)
    place = TreePlace(env.disk, path, files)
    tries = TRIES
    while True:
        try:
            place.check_that_nobody_uses_another()
            return tree_copy.copy_as_it_is(env, path, files)
        except BusyError:
            tries -= 1
            if not tries:
                raise
        await env.clock.sleep(TRY_AGAIN_MS)


def is_backup(env: Env, path: str) -> bool:
    """Whether a file is a backup, and no tree: one that brokers have used has files beside it."""
    folder, _, name = path.rpartition("/")
    for other in env.disk.list_directory(folder or "/"):
        if other != name and other.startswith(name) and BESIDE_THE_TREE.match(other, len(name)):
            return False
    try:
        with closing(TreeFile(path, env.clock.now_ms, as_it_is=True)) as copy:
            return copy.has(paths.RESTORED)
    except CoordinationError:
        return False


def cluster_of(env: Env, path: str) -> str | None:
    """The cluster whose tree is in a backup; None: it does not say."""
    with closing(TreeFile(path, env.clock.now_ms, as_it_is=True)) as copy:
        return _cluster_id(copy)


def _marked(copy: TreeFile, now_ms: int) -> TreeBackup:
    """Make a copy in memory a backup."""
    with copy.transaction():
        copy.end_sessions(copy.session_ids())
        copy.mark_restored(now_ms)
    copy.changes.clear()
    topics = copy.children(paths.TOPICS) if copy.has(paths.TOPICS) else []
    return TreeBackup(copy.serialized(), _cluster_id(copy), len(topics), now_ms)


def _cluster_id(copy: TreeFile) -> str | None:
    cluster = copy.find(paths.CLUSTER_ID)
    return None if cluster is None else decode_cluster_id(cluster.data)
