"""`barnabas cluster backup`: the coordination tree as one file, also while brokers use it."""

import asyncio
import os
from typing import Annotated, Any

import typer
from barnabas.cli import backup_file
from barnabas.cli.shared.client import admin, answered, broker_setting, is_barnabas
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.target import Target, no_time_limit
from barnabas.cli.shared.terminal import AsJson, print_json
from barnabas.cluster.tree import tree_backup
from barnabas.cluster.tree.port import CoordinationError
from barnabas.cluster.tree.tree_backup import TreeBackup
from barnabas.runtime.disk import PRIVATE
from barnabas.runtime.env import real
from barnabas.storage.directory_contents import place_of_tree

IN_MEMORY = ":memory:"
A_TREE = backup_file.Kind("a tree", lambda path: tree_backup.is_backup(real(), path))


def backup(
    target: Target,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - for standard output.")],
    tree: Annotated[
        str | None, typer.Option(metavar="PATH", help="The tree's own file, if no broker runs that can be asked.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a backup of the coordination tree: topics, settings, leaders. Records and offsets are in the logs.

    Brokers may run meanwhile. It runs on their machine; the file is whole or not there.
    It may hold passwords, so only you can read it.
    An older backup of this cluster is replaced; no other file is, and none in a data directory.
    To put it back: stop all brokers, remove the tree's -wal and -shm, give FILE the tree's name, start all brokers.
    A tree in ZooKeeper is backed up by ZooKeeper's own tools.

    \b
    barnabas cluster backup tree.backup
    barnabas cluster backup tree.backup --tree data/coordination.sqlite
    barnabas cluster backup - | gzip > tree.backup.gz
    """
    backup_file.check_writable(file, A_TREE)
    if tree is None:
        with admin(target) as client:
            path, cluster_id = _place(client), answered(client, client.describe_cluster)["cluster_id"]
    else:
        path, cluster_id = os.path.abspath(tree), None
    with no_time_limit():
        taken = _take(path)
    if cluster_id not in (None, taken.cluster_id):
        fail(
            f"the tree {path} of this machine is that of cluster {taken.cluster_id}, and {target.bootstrap} belongs to "
            f"{cluster_id}: run the command on the machine of that broker."
        )
    if backup_file.are_one(file, path):
        fail(f"{file} is the tree itself. Name a file elsewhere.", ExitCode.NOT_VALID)
    _check_cluster(file, taken)
    backup_file.write(file, [taken.content], PRIVATE)
    _tell(file, path, taken, as_json)


def _place(client: Any) -> str:
    """The file of the tree that the brokers use."""
    node_id = answered(client, client.describe_cluster)["brokers"][0]["broker_id"]
    zookeeper = answered(client, lambda: broker_setting(client, node_id, "zookeeper.connect"))
    if zookeeper:
        fail(
            f"the tree of this cluster is in ZooKeeper ({zookeeper}), which keeps its own backups: copy the newest "
            "snapshot file and the log files of one server (version-2 in dataDir and dataLogDir), or use the command "
            "`snapshot` of its AdminServer (3.9). Nothing was written.",
            ExitCode.NOT_VALID,
        )
    path = answered(client, lambda: broker_setting(client, node_id, "coordination.path"))
    if path is None and not answered(client, lambda: is_barnabas(client, node_id)):
        fail(
            f"broker {node_id} is no Barnabas (an Apache Kafka, perhaps), so it has no such tree. Nothing was written."
        )
    if path == IN_MEMORY:
        fail("the tree of this broker is in its memory only: there is nothing to restore it into.", ExitCode.NOT_VALID)
    if not path:
        (described,) = answered(client, lambda: client.describe_log_dirs(brokers=[node_id]))
        path = place_of_tree(real().disk, [directory["log_dir"] for directory in described["log_dirs"]])
    if not real().disk.exists(path):
        fail(f"there is no {path} on this machine: run the command on the machine of broker {node_id}, as its user.")
    return path


def _take(path: str) -> TreeBackup:
    if not real().disk.exists(path):
        fail(f"there is no tree at {path}.")
    try:
        return asyncio.run(tree_backup.take(real(), path))
    except CoordinationError as error:
        fail(f"{error}")


def _check_cluster(file: str, taken: TreeBackup) -> None:
    """End the command rather than let two clusters share a name, and have the backup of the last one only."""
    path = backup_file.older(file)
    former = None if path is None else tree_backup.cluster_of(real(), path)
    if former not in (None, taken.cluster_id):
        fail(
            f"{file} is there, and is the backup of another cluster, {former}; this one is {taken.cluster_id}. Name "
            "another file, or remove it.",
            ExitCode.NOT_VALID,
        )


def _tell(file: str, path: str, taken: TreeBackup, as_json: bool) -> None:
    if file == backup_file.STANDARD:
        return
    if as_json:
        print_json(
            {
                "file": file,
                "tree": path,
                "cluster_id": taken.cluster_id,
                "topics": taken.topics,
                "bytes": len(taken.content),
                "time_ms": taken.taken_ms,
            }
        )
    else:
        print(f"{file}: the tree {path} of cluster {taken.cluster_id}, topics: {taken.topics}.")
