"""What a start does with log folders that the tree does not know. It looks, decides, and only then acts.

If the tree is new, their topics are adopted: a data directory of Apache Kafka, or one whose coordination.sqlite was
lost, is served at once, with the names and ids of its topics, its groups and its committed offsets. The settings of
topics are not in the folders. So adopted topics keep all their records until somebody sets their retention; the offsets
topic gets the settings that this broker gives it.

If the tree has been in use, a few such folders are strays: their topic was deleted or made again while this broker was
down. They are renamed to `….-stray`, as Kafka 4 does, and never removed. If most topics are unknown, the tree is
probably an older copy, or another one. This also holds if the offsets topic is unknown, because nobody deletes it. Then
the start is refused until the operator decides (`--adopt`, `--set-aside`).

If this broker's disks show that the tree is an older copy, none of them with records is a stray: its topic, or its
partition, was made since. Then one is enough to ask.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from barnabas.broker.auto_topics import internal_settings
from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.cluster.registration import BrokerIdInUseError
from barnabas.cluster.topic_names import (
    INTERNAL_TOPICS,
    JOURNAL_TOPIC,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    topic_name_problem,
)
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import (
    ControllerNode,
    RestoredTree,
    TopicAssignment,
    TreeMark,
    decode_cluster_id,
    encode_config,
    encode_config_change,
    encode_feature,
)
from barnabas.cluster.tree.port import (
    Coordination,
    Create,
    MultiError,
    NodeExistsError,
    Operation,
    Stat,
    children_if_there,
    make_if_missing,
    must_be_readable,
)
from barnabas.config.broker import BrokerConfig
from barnabas.controller.tree import PARTITIONS_PER_WRITE
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import NAMES_IN_A_LINE_MAX, counted, names_in_a_line
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks
from barnabas.storage.directory_contents import (
    TREE_FILE,
    DataDirectoryError,
    DirectoryContents,
    LogFolder,
)
from barnabas.storage.directory_plan import StartChoice, Stray, check_cluster, check_formatted, two_homes
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

COORDINATED = frozenset({OFFSETS_TOPIC, JOURNAL_TOPIC, TRANSACTIONS_TOPIC})  # settings are the coordinator's
KEEP_EVERYTHING = {"retention.ms": "-1", "retention.bytes": "-1"}
METADATA_FOLDER = "__cluster_metadata-0"  # of a KRaft cluster
STRAY_TOPICS_MAX = 1  # topics that are set aside without asking, however few topics the tree knows
EMPTY_PARTITIONS_MAX = 1_000  # of an adopted topic, or ten times as many as have a folder

Node = TypeVar("Node")
Partition = tuple[str, int]
EndOf = Callable[[str, LogFolder], tuple[int, int] | None]  # leader epoch and offset; None: no records


# ------------------------------------------------------------------ look


class TreeView(NamedTuple):
    """What the tree says of this broker. It is read before this broker has a session."""

    cluster_id: str | None  # None: the tree is new, or its adoption was interrupted
    is_node_alive: bool  # whether a broker of this node id is registered
    assignments: dict[str, TopicAssignment | None]  # of the topics that have logs here
    hosted_count: int  # partitions that this broker has in the tree; counted only if all its directories are unused
    others: str = ""  # who uses the tree, if they are not of Barnabas
    features: tuple[bytes, Stat] | None = None  # the node of the finalised levels
    mark: TreeMark = TreeMark()  # of this broker
    copied_ms: int = -1  # when the copy was made that the tree is; -1: it does not say that it is one


async def look_at_tree(coordination: Coordination, found: Sequence[DirectoryContents], node_id: int) -> TreeView:
    """Read what `decide` needs. UnreadableNodeError."""
    topics = sorted({topic for contents in found for topic, _ in contents.folders})
    of_broker = paths.broker(node_id), paths.tree_mark(node_id)
    cluster, controller, features, restored, broker, mark = await coordination.get_many(
        [paths.CLUSTER_ID, paths.CONTROLLER, paths.FEATURE, paths.RESTORED, *of_broker]
    )
    hosted_count = 0
    if all(contents.is_unused for contents in found) and cluster is not None:
        all_topics = await children_if_there(coordination, paths.TOPICS)
        assignments = (await _assignments(coordination, all_topics)).values()
        replicas = [them for assigned in assignments if assigned for them in assigned.partitions.values()]
        hosted_count = sum(node_id in them for them in replicas)
    with must_be_readable(paths.CLUSTER_ID):
        cluster_id = None if cluster is None else decode_cluster_id(cluster[0])
    return TreeView(
        cluster_id,
        broker is not None,
        await _assignments(coordination, topics),
        hosted_count,
        await _others(coordination, _read(controller, ControllerNode.decode, ControllerNode(-1, -1))),
        features,
        _read(mark, TreeMark.decode, TreeMark()),
        _read(restored, RestoredTree.decode, RestoredTree(-1)).copied_ms,
    )


def _read(node: tuple[bytes, Stat] | None, decode: Callable[[bytes], Node], none: Node) -> Node:
    """What a node of the tree says. One that somebody wrote by hand counts as none."""
    try:
        return none if node is None else decode(node[0])
    except ValueError:
        return none


async def _others(coordination: Coordination, controller: ControllerNode) -> str:
    """Who uses the tree, if they are not of Barnabas: its brokers leave a node that Kafka's do not know."""
    if controller.kraft_controller_epoch >= 0:
        return f"the KRaft controller {controller.broker_id}"
    registered = await children_if_there(coordination, paths.BROKER_IDS)
    # Asked after the children: a broker of Barnabas that registers meanwhile has made the node before.
    if not registered or await coordination.exists(paths.BROKER_EPOCHS) is not None:
        return ""
    return f"the brokers {', '.join(registered)} of Apache Kafka"


async def _assignments(coordination: Coordination, topics: Sequence[str]) -> dict[str, TopicAssignment | None]:
    nodes = await coordination.get_many([paths.topic(name) for name in topics])
    assignments: dict[str, TopicAssignment | None] = {}
    for name, node in zip(topics, nodes):
        with must_be_readable(paths.topic(name)):
            assignments[name] = None if node is None else TopicAssignment.decode(node[0])
    return assignments


def lost_directories(log_manager: LogManager) -> dict[str, str]:
    """The directories that are offline, by path, and why."""
    return {directory.path: str(directory.failed) for directory in log_manager.failed_directories}


# ------------------------------------------------------------------ decide


class Plan(NamedTuple):
    """What the start will do with the logs that the tree does not know."""

    adopted: list[str]  # topics
    strays: list[Stray]


def tree_outside(found: Sequence[DirectoryContents], tree_path: str | None) -> str | None:
    """The file of the tree, if it has an absolute path and is not in one of these directories."""
    if tree_path is None or not tree_path.startswith("/"):
        return None
    return None if tree_path.rpartition("/")[0] in [contents.path for contents in found] else tree_path


def check_place_of_tree(
    found: Sequence[DirectoryContents],
    tree_path: str,
    exists: Callable[[str], bool],
    identity: Callable[[str], object] = str,
) -> None:
    """Raise DataDirectoryError if these directories were used with another tree, which still `exists`.

    The same file may have several names (links): `identity` tells. And a directory may have been copied together with
    the tree beside it, as those of a cluster are.
    """
    trees = [f"{contents.path}/{TREE_FILE}" for contents in found if contents.has_tree]
    if len(trees) > 1:
        raise DataDirectoryError(
            f"There are two coordination trees for this broker, {trees[0]} and {trees[1]}. Move away the one that it "
            "does not use, with its -wal and -shm."
        )
    if trees and tree_path != trees[0]:
        raise DataDirectoryError(
            f"The coordination tree of this broker is {trees[0]}, but coordination.path names {tree_path}. Start "
            f"without coordination.path. To use the other tree, move {trees[0]} away first, with its -wal and -shm."
        )
    for contents in found:
        known = contents.meta.tree_path
        if known is None or known == tree_path or not exists(known):
            continue
        folder, _, name = tree_path.rpartition("/")
        is_beside = (folder, name) == (contents.path.rpartition("/")[0], known.rpartition("/")[2])
        if not exists(tree_path) or (not is_beside and identity(known) != identity(tree_path)):
            raise DataDirectoryError(
                f"The coordination tree of {contents.path} is {known}, and this start would use {tree_path}. Start "
                f"with --set coordination.path={known}. To use the other tree, move {known} away first, with its "
                "-wal and -shm."
            )


def decide(
    view: TreeView,
    found: Sequence[DirectoryContents],
    lost: Mapping[str, str],
    choice: StartChoice,
    node_id: int,
    zookeeper: str | None = None,
    end_of: EndOf = lambda _path, _folder: None,
) -> Plan:
    """The plan of a start; pure. DataDirectoryError or BrokerIdInUseError refuse the start and say what to do.

    `lost`: directories that are offline, by path, and why. `zookeeper`: where the tree is, if not in a file. `end_of`:
    where a log ends, which is looked up only to be said.
    """
    if view.others:
        raise DataDirectoryError(
            f"The tree{f' at {zookeeper}' if zookeeper else ''} is that of {view.others}, which runs: Barnabas has no "
            "place in such a cluster. Name another chroot in zookeeper.connect; or stop all of that cluster first, and "
            "its topics and settings are served here."
        )
    for contents in found:
        check_formatted(contents, choice)
    if view.is_node_alive:
        raise BrokerIdInUseError(node_id)
    if view.cluster_id is not None:
        check_cluster(found, view.cluster_id)
    else:
        _check_that_all_are_there(lost)
        if not choice.adopt and not choice.set_aside:
            _check_that_no_shared_tree_is_lost(found, zookeeper, end_of)
    if view.hosted_count and not choice.given_up:
        raise DataDirectoryError(
            f"The tree says that node {node_id} has {counted(view.hosted_count, 'partition')}, and its data "
            f"directories are new ({', '.join(contents.path for contents in found)}): is their disk mounted? If the "
            f"records are lost for good, start once with --give-up {found[0].path}: the partitions begin empty then."
        )
    unknown = [
        Stray(contents.path, *key)
        for contents in found
        for key, folder in contents.folders.items()
        if is_stray(*key, folder.topic_id, view.assignments[key[0]], node_id)
    ]
    well_named = {stray.topic for stray in unknown if topic_name_problem(stray.topic) is None}
    if view.cluster_id is None:
        adopted = set() if choice.set_aside else well_named
    else:
        _ask(found, _not_known(found, unknown), unknown, view, node_id, choice, zookeeper, end_of)
        # If the tree knows a topic of that name, it is another topic, or it has no replica here: it cannot be adopted.
        adopted = {topic for topic in well_named if view.assignments[topic] is None} if choice.adopt else set()
    _check_folders(found, adopted)
    strays = sorted(stray for stray in unknown if stray.topic not in adopted)
    _check_homes(found, strays)
    return Plan(sorted(adopted), strays)


def _not_known(found: Sequence[DirectoryContents], unknown: Sequence[Stray]) -> set[str]:
    """The topics of logs that the tree does not know, and that are nowhere else as it knows them.

    A topic that was made again while one of its directories was away has a log of its first life there.
    """
    strays = set(unknown)
    homes = {key for contents in found for key in contents.folders if Stray(contents.path, *key) not in strays}
    return {stray.topic for stray in unknown if (stray.topic, stray.partition) not in homes}


def _check_homes(found: Sequence[DirectoryContents], strays: Sequence[Stray]) -> None:
    """That no partition is served from two directories."""
    left_out = set(strays)
    homes: dict[Partition, str] = {}
    for contents in found:
        for key, folder in contents.folders.items():
            if Stray(contents.path, *key) not in left_out:
                path = f"{contents.path}/{folder.name}"
                if homes.setdefault(key, path) != path:
                    raise two_homes(key, homes[key], path)


def _check_folders(found: Sequence[DirectoryContents], adopted: set[str]) -> None:
    """That the folders of each adopted topic can be those of one topic, and of no other topic.

    `orders-0` copied to `orders-20231122` would make a topic of 20 million partitions; copied to `orders-0-2`, another
    topic of the same id. No later start could tell them apart.
    """
    topics: dict[str, dict[int, tuple[str, bytes | None]]] = {}
    for contents in found:
        for (topic, partition), folder in contents.folders.items():
            topics.setdefault(topic, {})[partition] = f"{contents.path}/{folder.name}", folder.topic_id
    for topic in sorted(adopted):
        _check_one_topic(topic, topics[topic])
    owners: dict[bytes, tuple[str, str]] = {}
    for topic in sorted(topics):
        for path, topic_id in topics[topic].values():
            other, other_path = (topic, path) if topic_id is None else owners.setdefault(topic_id, (topic, path))
            if other != topic and adopted & {topic, other}:
                raise DataDirectoryError(
                    f"The folders {other_path} and {path} say the same topic id: one was copied or renamed by hand. "
                    "Move the copy away, or give it back its name."
                )


def _check_one_topic(topic: str, folders: Mapping[int, tuple[str, bytes | None]]) -> None:
    last = max(folders)
    if last + 1 - len(folders) > max(EMPTY_PARTITIONS_MAX, 10 * len(folders)):
        raise DataDirectoryError(
            f"The folder {folders[last][0]} would give topic {topic} {last + 1} partitions, of which {len(folders)} "
            "have a folder: it was probably copied or renamed by hand. Move it away."
        )
    places = {topic_id: path for path, topic_id in folders.values() if topic_id is not None}
    if len(places) > 1:
        first, second = list(places.values())[:2]
        raise DataDirectoryError(
            f"The folders {first} and {second} say different topic ids, so they are not of one topic {topic}. Move "
            "away those of the older topic."
        )


def _check_that_all_are_there(lost: Mapping[str, str]) -> None:
    for path, why in lost.items():
        raise DataDirectoryError(
            f"The coordination is new, and the data directory {path} cannot be read ({why}): what is in it would be "
            "forgotten, and the tree itself may be there. Mend it; or, if it is lost for good, take it out of log.dirs "
            f"and start once with --give-up {path}."
        )


def _check_that_no_shared_tree_is_lost(
    found: Sequence[DirectoryContents], zookeeper: str | None, end_of: EndOf
) -> None:
    """Other brokers may have used the tree too: then who adopts first would have the topics alone.

    It may have fewer records than they have.
    """
    for contents in found:
        place = contents.meta.tree_path
        if zookeeper is not None and contents.meta.cluster_id is not None:
            place = f"at {zookeeper}"
        if contents.folders and place is not None:
            raise DataDirectoryError(
                f"{contents.path} has logs of {counted(len({topic for topic, _ in contents.folders}), 'topic')}, and "
                f"its coordination tree {place} is new or lost. Restore it from a backup (or name the right place). "
                "If it is lost for good, start once with --adopt: this broker then has its topics alone. "
                + _which_adopts([contents], {topic for topic, _ in contents.folders}, end_of)
            )


def _ask(
    found: Sequence[DirectoryContents],
    unknown: set[str],
    logs: Sequence[Stray],
    view: TreeView,
    node_id: int,
    choice: StartChoice,
    zookeeper: str | None,
    end_of: EndOf,
) -> None:
    known = view.assignments.keys() - unknown
    are_few = len(unknown) <= max(len(known - INTERNAL_TOPICS), STRAY_TOPICS_MAX)
    if choice.adopt or choice.set_aside:
        return
    if are_few and unknown.isdisjoint(INTERNAL_TOPICS):
        if any(view.mark.is_behind(contents.tree_knowledge.mark, view.copied_ms) for contents in found):
            _ask_for_newer(found, [log for log in logs if log.topic in unknown], view, end_of)
        return
    places = ", ".join(contents.path for contents in found if contents.folders)
    assigned = {topic: them for topic in sorted(unknown) if (them := view.assignments[topic]) is not None}
    place = TREE_FILE if zookeeper is None else f"data of ZooKeeper at {zookeeper}"
    elsewhere = f" ({names_in_a_line(list(assigned))}: not as they are here, or on other brokers)" if assigned else ""
    owners = {owner for them in assigned.values() for replicas in them.partitions.values() for owner in replicas}
    first = "It may be an older copy, or another tree"
    if owners and node_id not in owners:  # only meta.properties can say another number, and no error before
        nodes = " and ".join(map(str, sorted(owners)))
        first = (
            f"By the tree, those are on node {nodes}, and this is node {node_id}: if somebody has changed node.id in "
            "meta.properties, change it back. Else it may be an older copy, or another tree"
        )
    adopt = which = ""
    if can_be_adopted := unknown.difference(assigned):
        topics = "the topics that it does not know at all" if assigned else "these topics"
        adopt = f"with --adopt to serve {topics}, or "
        which = f" {_which_adopts(found, can_be_adopted, end_of)}"
    raise DataDirectoryError(
        f"The tree knows {len(known)} of the {len(view.assignments)} topics that have logs in {places}, and not "
        f"{names_in_a_line(sorted(unknown))}{elsewhere}. {first}: look for the right {place} first. Or start once "
        f"{adopt}with --set-aside to rename their folders to …-stray.{which}"
    )


def _ask_for_newer(found: Sequence[DirectoryContents], logs: Sequence[Stray], view: TreeView, end_of: EndOf) -> None:
    """Refuse to set aside records of what was made after the copy that the tree is."""
    folders = {contents.path: contents.folders for contents in found}
    held = [log for log in logs if end_of(log.path, folders[log.path][log.topic, log.partition]) is not None]
    if held:
        unheard_of = {log.topic for log in held if view.assignments[log.topic] is None}
        raise DataDirectoryError(
            f"The tree is an older copy, and does not know {counted(len(held), 'log')} with records in "
            f"{', '.join(sorted({log.path for log in held}))}: "
            f"{names_in_a_line([f'{log.topic}-{log.partition}' for log in held])}. Put back a newer copy if there is "
            "one. Or start once with --adopt to serve the topics that it does not know at all, or with --set-aside; "
            "what is not adopted is renamed to …-stray, and docs/coordination-tree.md says how it comes back."
            + (f" {_which_adopts(found, unheard_of, end_of)}" if unheard_of else "")
        )


def _which_adopts(found: Sequence[DirectoryContents], topics: Collection[str], end_of: EndOf) -> str:
    return (
        "Several brokers start with --adopt one after the other: each topic is adopted by the first that has logs of "
        "it, and what later ones have of it is renamed to …-stray. So start first where the logs end last, by epoch "
        f"and then offset ({_ends(found, topics, end_of)}); if that differs between topics or partitions, "
        "docs/coordination-tree.md says how to go about it."
    )


def _ends(found: Sequence[DirectoryContents], topics: Collection[str], end_of: EndOf) -> str:
    """Where the logs of these topics end. Those of users come first."""
    rows = [(key, contents.path, folder) for contents in found for key, folder in contents.folders.items()]
    rows = sorted((row for row in rows if row[0][0] in topics), key=lambda row: (row[0][0] in INTERNAL_TOPICS, row[0]))
    ends: list[str] = []
    for (topic, partition), path, folder in rows:
        if len(ends) > NAMES_IN_A_LINE_MAX:
            break  # more are not said
        end = end_of(path, folder)
        if end is not None:
            ends.append(f"{topic}-{partition} in epoch {end[0]} at {end[1]}")
    return f"here {names_in_a_line(ends)}" if ends else "here they are empty"


def is_stray(
    topic: str, partition: int, topic_id: bytes | None, assignment: TopicAssignment | None, node_id: int
) -> bool:
    """Whether the tree has no place for this log on this broker."""
    if assignment is None or node_id not in assignment.partitions.get(partition, ()):
        return True
    return None not in (topic_id, assignment.topic_id) and topic_id != assignment.topic_id


# ------------------------------------------------------------------ act


def say_strays(strays: Sequence[Stray]) -> None:
    """Log that these folders are set aside."""
    if strays:
        logger.warning(
            "%s in %s of topics that the tree does not have here (%s): kept, renamed to …-stray. If they have records "
            "that another broker lacks, which has adopted the topic: docs/coordination-tree.md says how they come back",
            counted(len(strays), "log folder"),
            ", ".join(sorted({stray.path for stray in strays})),
            names_in_a_line([f"{stray.topic}-{stray.partition}" for stray in strays]),
        )


async def adopt(
    env: Env,
    config: BrokerConfig,
    coordination: Coordination,
    log_manager: LogManager,
    node_id: int,
    topics: Sequence[str],
) -> None:
    """Write these topics into the tree.

    This comes before the cluster's id is written, so a tree without an id is new, or its adoption was interrupted.
    """
    is_new = await coordination.exists(paths.CLUSTER_ID) is None
    if is_new:  # a directory may have failed since `decide`
        _check_that_all_are_there(lost_directories(log_manager))
    if not topics:
        return
    if is_new:
        await _adopt_levels(env, coordination, log_manager.contents)
    by_topic: dict[str, dict[int, Log]] = {name: {} for name in topics}
    for log in log_manager.all():
        if log.topic in by_topic:
            by_topic[log.topic][log.partition] = log
    adopted = [log for logs in by_topic.values() for log in logs.values()]
    logger.warning(
        "The tree does not know %s in %s: adopting them. Their settings are not known; "
        "all their records are kept until you set retention.ms and retention.bytes, or cleanup.policy.",
        counted(len(topics), "topic that has logs", "topics that have logs"),
        ", ".join(sorted({log.directory.rpartition("/")[0] for log in adopted})),
    )
    if any(log.producers.has_open_transactions for log in adopted):
        from barnabas.broker.open_transactions import end_open_transactions  # late: few starts need it

        end_open_transactions(adopted, log_manager.all(), env.clock.now_ms())
    for name, logs in by_topic.items():
        if not logs:  # its directory has gone offline since
            continue
        topic_id = next((log.topic_id for log in logs.values() if log.topic_id is not None), None)
        count = max(logs) + 1
        settings = internal_settings(name, config) if name in COORDINATED else KEEP_EVERYTHING
        await _write_topic(coordination, name, topic_id or env.random_uuid(), count, logs, settings, node_id)
        records = sum(log.log_end_offset - log.log_start_offset for log in logs.values())
        logger.info("adopted the topic %s: %s, %s", name, counted(count, "partition"), counted(records, "offset"))
        if len(logs) < count:
            logger.warning(
                "topic %s: %s no folder here, and empty now",
                name,
                counted(count - len(logs), "of its partitions has", "of its partitions have"),
            )


async def _adopt_levels(env: Env, coordination: Coordination, found: Sequence[DirectoryContents]) -> None:
    """Let the features of a KRaft cluster have the levels that they had there. Else the controller makes the node."""
    if not any(METADATA_FOLDER in contents.names for contents in found):
        return
    from barnabas.broker.kafka_levels import read_levels  # late: few starts need it

    levels = read_levels(env.disk, found)
    if levels and await coordination.exists(paths.FEATURE) is None:
        await make_if_missing(coordination, paths.FEATURE, encode_feature(levels))
        logger.info("features have the levels that they had in Kafka: %s", dict(levels))


async def _write_topic(
    coordination: Coordination,
    name: str,
    topic_id: bytes,
    count: int,
    logs: Mapping[int, Log],
    settings: Mapping[str, str],
    node_id: int,
) -> None:
    """Make the nodes of a topic that this broker alone has. The epoch that it leads in is later than any in its logs.

    It does not lead yet. Another broker may be controller already, and would do nothing about a leader that is not
    there, while this one, if it stopped uncleanly, does not register before that.
    """
    assignment = TopicAssignment(dict.fromkeys(range(count), (node_id,)), topic_id)
    nodes = {
        paths.topic_config(name): encode_config(settings),
        paths.topic(name): assignment.encode(),
        paths.partitions(name): b"",
    }
    for index in range(count):
        log = logs.get(index)
        epoch = 0 if log is None else max(log.leader_epochs.latest, 0)
        nodes[paths.partition(name, index)] = b""
        nodes[paths.partition_state(name, index)] = LeaderAndIsr(NO_LEADER, epoch, (node_id,)).encode()
    found = await coordination.get_many(list(nodes))
    there = found[list(nodes).index(paths.topic(name))]
    if there is not None and {*TopicAssignment.decode(there[0]).partitions.values()} != {(node_id,)}:
        raise _adopted_elsewhere(name)
    missing: list[Operation] = [Create(path, nodes[path]) for path, node in zip(nodes, found) if node is None]
    notice = Create(paths.CONFIG_CHANGE_PREFIX, encode_config_change(f"topics/{name}"), sequential=True)
    try:
        for chunk in chunks([notice, *missing], PARTITIONS_PER_WRITE):
            await coordination.multi(chunk)
    except MultiError as error:
        if not isinstance(error.cause, NodeExistsError):
            raise
        raise _adopted_elsewhere(name) from None


def _adopted_elsewhere(topic: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"Another broker has adopted topic {topic} while this one started. Start this one again with --adopt: "
        "it adopts what no other has adopted."
    )
