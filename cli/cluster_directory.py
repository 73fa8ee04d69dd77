"""What the data directory of a cluster (`barnabas start --brokers N`) must hold. Decided before any broker starts.

It has a folder for each broker, named by its number, the coordination tree, and the file `cluster.properties`, which
says how many brokers there are.
"""

from contextlib import suppress

from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.start_settings import CLUSTER_FILE
from barnabas.config import properties
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env, read_file
from barnabas.storage.checkpoints import META_PROPERTIES, CheckpointError
from barnabas.storage.directory_contents import TREE_FILE, Meta, read_meta

BROKERS_MAX = 100


def number_of_brokers(env: Env, data: str, said: int | None) -> int:
    """How many brokers there are in this directory, or shall be. `said`: by --brokers."""
    there = _brokers_there(env, data)
    if there is not None and said not in (None, there):
        fail(
            f"{data} holds a cluster of {counted(there, 'broker')}, and --brokers says {said}. Start it without "
            "--brokers, or name another directory with --data.",
            ExitCode.NOT_VALID,
        )
    count = there if there is not None else said
    if count is None or not 1 <= count <= BROKERS_MAX:
        fail(f"--brokers wants a number from 1 to {BROKERS_MAX}.", ExitCode.NOT_VALID)
    if env.disk.exists(f"{data}/{count}/{META_PROPERTIES}"):
        says = "--brokers" if there is None else f"{data}/{CLUSTER_FILE}"
        fail(
            f"{data}/{count} is the directory of a broker too, and {says} says {count}. Say how many brokers this "
            "cluster has.",
            ExitCode.NOT_VALID,
        )
    if there is None and env.disk.exists(f"{data}/{META_PROPERTIES}"):
        fail(
            f"{data} is the data directory of a single broker. Start it without --brokers, or name a new directory for "
            "the cluster with --data.",
            ExitCode.NOT_VALID,
        )
    return count


def _brokers_there(env: Env, data: str) -> int | None:
    """How many brokers the cluster in this directory has; None: there is no cluster in it."""
    path = f"{data}/{CLUSTER_FILE}"
    try:
        content = read_file(env.disk, path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        fail(f"{data} is not a directory. Name another one with --data.")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}. Let this user read it.")
    try:
        count = properties.read(content.decode()).values.get("brokers", "")
    except (UnicodeDecodeError, properties.PropertiesError):
        count = ""
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= BROKERS_MAX:
        fail(f"{path} does not say how many brokers there are: it wants a line such as brokers=3.")
    return int(count)


def check_folders(env: Env, data: str, brokers: int, *, has_own_tree: bool) -> None:
    """End the command if the folders are not those of brokers 0, 1, ... of one cluster, or if their tree is lost.

    `has_own_tree`: the tree is in this directory.
    """
    metas: dict[int, Meta] = {}
    for number in range(brokers):
        with suppress(OSError, CheckpointError):  # its broker says what is wrong
            metas[number] = read_meta(env.disk, f"{data}/{number}")
    for number, meta in metas.items():
        if meta.node_id not in (None, number):
            fail(
                f"{data}/{number} is the directory of broker {meta.node_id}, copied or renamed (its {META_PROPERTIES} "
                f"says so). Give every folder its name back. If that of broker {number} is lost for good, move this "
                f"one away, and start once with --give-up {data}/{number}."
            )
    known = {number: meta.cluster_id for number, meta in metas.items() if meta.cluster_id is not None}
    for number, cluster_id in known.items():
        first = min(known)
        if cluster_id != known[first]:
            fail(
                f"{data}/{first} is of cluster {known[first]}, and {data}/{number} of cluster {cluster_id}. Put the "
                "right folders there. If one is lost for good, move the wrong one away, and start once with --give-up "
                "and its path."
            )
    tree = f"{data}/{TREE_FILE}"
    if has_own_tree and not env.disk.exists(tree) and any(_has_logs(env, f"{data}/{number}") for number in known):
        fail(
            f"{tree} is not there: it says which topics there are, and which broker has them. Restore it from a "
            "backup. If it is lost for good, its topics can be adopted. "
            + one_by_one(data, f"coordination.path={tree}")
        )


def _has_logs(env: Env, folder: str) -> bool:
    return any(env.disk.is_directory(f"{folder}/{name}") for name in env.disk.list_directory(folder))


def one_by_one(data: str, tree: str) -> str:
    """How the brokers of a cluster adopt topics that its tree does not know. `tree`: the setting that says where."""
    return (
        "Start the brokers alone, with their numbers for N: barnabas start "
        f"--data {data}/N --set node.id=N --set {tree}. Each says where its logs end. Then start them so with --adopt, "
        "one after the other, and stop each when it serves. The one whose logs end last comes first, because a topic "
        "belongs to the first that has logs of it (docs/coordination-tree.md says what to do if that differs between "
        "topics). Then start the cluster."
    )
