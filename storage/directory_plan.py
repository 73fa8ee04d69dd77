"""Which data directories a start uses. It is decided from what was found in them, before anything is changed.

Each directory remembers the ids of the broker's other directories. So a start notices if one is left out of log.dirs,
or if its disk is not mounted. Its partitions are offline until it is back, or until the operator gives it up for good.
"""

from collections.abc import Sequence

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted, names_in_a_line
from barnabas.storage.directory_contents import DataDirectoryError, DirectoryContents, LogFolder


class StartChoice(NamedTuple):
    """What the operator has decided about data at which a start would stop and ask."""

    adopt: bool = False  # serve the logs that the tree does not know, use directories that are not formatted
    set_aside: bool = False  # rename those logs to …-stray
    given_up: Sequence[str] = ()  # directories that are lost for good, by id or by path
    cluster_id: str | None = None  # of a new cluster; None: one that nobody has


NO_CHOICE = StartChoice()


class Stray(NamedTuple):
    """The log of a partition that is not to be served from this data directory."""

    path: str
    topic: str
    partition: int


class DirectoryPlan(NamedTuple):
    """What a start does with the directories."""

    offline: dict[str, str]  # why a directory of log.dirs must not be used now, by path
    missing: dict[str, str]  # where a directory was that log.dirs does not name, by id
    remembered: dict[str, str]  # where each directory is or was that is not given up, by id
    given_up: dict[str, str]  # where a directory was that is given up, by id
    not_missed: list[str]  # what the operator gives up though no such directory is missing


def plan_directories(
    found: Sequence[DirectoryContents], node_id: int | None, choice: StartChoice = NO_CHOICE
) -> DirectoryPlan:
    """Decide. DataDirectoryError, with what to do, when this broker must not use them. `node_id` None: not said."""
    readable = [contents for contents in found if contents.error is None]
    _check_owners(readable, node_id)
    _check_copies(readable)
    return _plan(found, choice.given_up)


def check_cluster(found: Sequence[DirectoryContents], cluster_id: str) -> None:
    """That all directories belong to this cluster, or to none yet. DataDirectoryError."""
    for contents in found:
        if contents.meta.cluster_id not in (None, cluster_id):
            raise DataDirectoryError(
                f"The data directory {contents.path} belongs to cluster {contents.meta.cluster_id}, this broker to "
                f"cluster {cluster_id} ({contents.path}/meta.properties). Use that cluster's coordination, or another "
                "directory."
            )


def check_formatted(contents: DirectoryContents, choice: StartChoice) -> None:
    """That a directory says whose it is, or is unused. DataDirectoryError. What stands in it may be anybody's."""
    if contents.error is not None or contents.is_formatted or contents.is_unused or choice.adopt:
        return
    if contents.folders:
        if choice.set_aside:
            return
        topics = sorted({topic for topic, _ in contents.folders})
        raise DataDirectoryError(
            f"The data directory {contents.path} has no meta.properties, but logs of {counted(len(topics), 'topic')} "
            f"({names_in_a_line(topics)}): nothing says whose they are. Start once with --adopt if they are this "
            "broker's, or with --set-aside to rename them to …-stray; or give this broker a directory of its own."
        )
    raise DataDirectoryError(
        f"The data directory {contents.path} has no meta.properties and is not empty "
        f"({names_in_a_line(contents.used_names)}). Give this broker a directory of its own. To use this one all the "
        "same, start once with --adopt: the broker leaves what it did not make alone."
    )


def _check_owners(found: Sequence[DirectoryContents], node_id: int | None) -> None:
    said: dict[str, tuple[object, DirectoryContents]] = {}
    for contents in found:
        for what, value in (("node", contents.meta.node_id), ("cluster", contents.meta.cluster_id)):
            if value is None:
                continue
            first, other = said.setdefault(what, (value, contents))
            if first != value:
                raise DataDirectoryError(
                    f"The data directory {other.path} belongs to {what} {first}, {contents.path} to {what} {value}. "
                    "Name only the directories of one broker in log.dirs."
                )
    if node_id is not None:
        check_node(found, node_id)


def check_node(found: Sequence[DirectoryContents], node_id: int) -> None:
    """That all directories belong to this node, or to none yet. DataDirectoryError."""
    for contents in found:
        theirs = contents.meta.node_id
        if theirs not in (None, node_id):
            raise DataDirectoryError(
                f"The data directory {contents.path} belongs to node {theirs}, this is node {node_id} "
                f"({contents.path}/meta.properties). Start with node id {theirs}, or with another directory."
            )


def _check_copies(found: Sequence[DirectoryContents]) -> None:
    ids: dict[str, DirectoryContents] = {}
    for contents in found:
        directory_id = contents.meta.directory_id
        if directory_id is not None:
            other = ids.setdefault(directory_id, contents)
            if other is not contents:
                raise DataDirectoryError(
                    f"The data directories {other.path} and {contents.path} have the same directory.id "
                    f"{directory_id}: one is a copy of the other. Name only one of them in log.dirs."
                )
    # Folders of two topics that had this name one after the other are told apart by the tree, later.
    homes: dict[tuple[str, int], list[tuple[DirectoryContents, LogFolder]]] = {}
    for contents in found:
        for key, folder in contents.folders.items():
            for other, other_folder in homes.setdefault(key, []):
                if folder.topic_id == other_folder.topic_id or None in (folder.topic_id, other_folder.topic_id):
                    raise two_homes(key, f"{other.path}/{other_folder.name}", f"{contents.path}/{folder.name}")
            homes[key].append((contents, folder))


def old_copies(found: Sequence[DirectoryContents], registered: int) -> list[str]:
    """The paths of directories that are not as their broker left them, which registered last in this epoch.

    Either the broker stopped cleanly in an earlier epoch. Or not at all, and another directory says that it did: a copy
    that was made while it ran, or the disk had failed before the stop.
    """
    has_stopped = any(contents.clean_epoch >= max(registered, 0) for contents in found)
    return [
        contents.path
        for contents in found
        if 0 <= contents.clean_epoch < registered or (has_stopped and not contents.was_clean and bool(contents.folders))
    ]


def two_homes(partition: tuple[str, int], first: str, second: str) -> DataDirectoryError:
    """The error of a start that finds a partition in two data directories."""
    return DataDirectoryError(
        f"The partition {partition[0]}-{partition[1]} is in two data directories, {first} and {second}. "
        "Keep the folder with its latest records, and move the other away."
    )


def _plan(found: Sequence[DirectoryContents], given_up: Sequence[str]) -> DirectoryPlan:
    by_path = {contents.path: contents for contents in found}
    present = {contents.meta.directory_id for contents in found}
    for name in given_up:
        here = by_path.get(name.rstrip("/"))
        if name in present or (here is not None and here.error is not None):
            raise DataDirectoryError(f"{name} is to be given up, but log.dirs names it. Take it out of log.dirs too.")
    gone = {name.rstrip("/") for name in given_up}
    remembered: dict[str, str] = {}
    for contents in found:
        remembered |= contents.meta.others
    given_up_ids = {key: path for key, path in remembered.items() if gone & {key, path} and key not in present}
    remembered = {key: path for key, path in remembered.items() if key not in given_up_ids}
    remembered |= {contents.meta.directory_id: contents.path for contents in found if contents.meta.directory_id}
    offline: dict[str, str] = {}
    missing: dict[str, str] = {}
    for directory_id, path in remembered.items():
        if directory_id in present:
            continue
        here = by_path.get(path)
        if here is not None and here.is_unused:
            offline[path] = (
                f"it is empty, and was directory {directory_id} of this broker. Mount its disk; if that is lost for "
                f"good, start once with --give-up {path}: its partitions begin empty then"
            )
        elif here is None or here.error is None:
            missing[directory_id] = path
    known = {*given_up_ids, *given_up_ids.values()}
    is_new = not any(contents.is_formatted for contents in found)  # then no directory remembers the others
    not_missed = [name for name in given_up if not is_new and name.rstrip("/") not in known]
    return DirectoryPlan(offline, missing, remembered, given_up_ids, not_missed)
