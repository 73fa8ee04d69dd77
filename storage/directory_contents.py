"""What is in a data directory, read without changing anything. A start looks at all directories before it decides.

A folder is a log only if its content says so. What neither Kafka nor Barnabas makes is foreign: the log names it, and
it is never renamed or deleted.
"""

import errno
import logging
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import names_in_a_line
from barnabas.runtime.ports import NO_ROOM, READ_ONLY, RESTORE_PLAN, RESTORED_PLAN, TOO_MANY_OPEN, Disk
from barnabas.storage import checkpoints

logger = logging.getLogger("barnabas.storage")

OFFSET_CHECKPOINTS = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS)
TREE_FILE = "coordination.sqlite"

_LOG_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\Z")
_LOG_FILE = re.compile(
    r"\d{20}\.(log|index|timeindex|txnindex|snapshot|unsynced)(\.(cleaned|swap|deleted|tmp|\d+-cut))?\Z"
    r"|(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?\Z"
)
_DELETED_FOLDER = re.compile(r".+\.[0-9a-f]{32}-delete\Z")
_SET_ASIDE_FOLDER = re.compile(r".+\.[0-9a-f]{32}-(stray|future)\Z")
BESIDE_THE_TREE = re.compile(r"(-wal|-shm|-journal|\.newest|\.session-\d+(\.ended|\.new)?)?\Z")
_KAFKA_NAMES = frozenset(("__cluster_metadata-0", "bootstrap.checkpoint", "remote-log-index-cache"))
_DIRECTORY_KEY = "barnabas.directory."  # in meta.properties, before the id of another directory of the same broker
TREE_KEY = "barnabas.coordination"  # in meta.properties: the file of the coordination tree, if it is elsewhere
CHECKPOINT_NAMES = (*OFFSET_CHECKPOINTS, checkpoints.CLEANER_OFFSETS)


class DataDirectoryError(Exception):
    """The data directory cannot be used; the text says what to do."""


def advice_for(error: OSError) -> str:
    """What the operator can do about an error of a data directory."""
    if error.errno in NO_ROOM:
        return "Free some space on its disk, then start again."
    if error.errno in TOO_MANY_OPEN:
        return "Allow it more open files (ulimit -n)."
    if error.errno in READ_ONLY:
        return "Let this user write to it: it may be mounted read-only, or belong to another user."
    return "Check that it is a folder on a healthy disk that this user may write to."


class Meta:
    """Whose directory this is, as meta.properties says. None for what the file does not say."""

    __slots__ = ("cluster_id", "directory_id", "node_id", "others", "properties", "tree_path")

    def __init__(
        self,
        node_id: int | None = None,
        cluster_id: str | None = None,
        directory_id: str | None = None,
        others: dict[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        tree_path: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.directory_id = directory_id
        self.others = others or {}  # the broker's other directories: id, and where it was last
        self.properties = properties  # all that the file says; None if there is no file
        self.tree_path = tree_path  # the file of the coordination tree, if it is not in a data directory

    def text_of(self, others: Mapping[str, str]) -> dict[str, str]:
        """What the file should say. It keeps what Kafka has written, so that Kafka can read it again."""
        properties = dict(self.properties or {"version": "1"})
        node_key = "node.id" if properties["version"] == "1" else "broker.id"
        properties |= {node_key: str(self.node_id), "cluster.id": self.cluster_id or ""}
        properties["directory.id"] = self.directory_id or ""
        kept = {
            key: value for key, value in properties.items() if not key.startswith(_DIRECTORY_KEY) and key != TREE_KEY
        }
        tree = {} if self.tree_path is None else {TREE_KEY: quote(self.tree_path)}
        return kept | tree | {f"{_DIRECTORY_KEY}{key}": quote(path) for key, path in sorted(others.items())}


def read_meta(disk: Disk, data_directory: str) -> Meta:
    """What meta.properties says. Kafka with ZooKeeper writes version 0; KRaft and Barnabas write 1. CheckpointError."""
    path = f"{data_directory}/{checkpoints.META_PROPERTIES}"
    properties = checkpoints.read_properties(disk, path)
    if properties is None:
        return Meta()
    version = properties.get("version")
    if version not in ("0", "1"):
        raise checkpoints.CheckpointError(f"{path}: version {version!r} is not known")
    said_id = properties.get("node.id" if version == "1" else "broker.id")
    node_id = None if said_id is None else checkpoints.integer_of(said_id)
    if node_id is None and said_id is not None:
        raise checkpoints.CheckpointError(f"{path}: {said_id!r} is not a node id")
    others = {
        key[len(_DIRECTORY_KEY) :]: unquote(text)
        for key, text in properties.items()
        if key.startswith(_DIRECTORY_KEY) and len(key) > len(_DIRECTORY_KEY)
    }
    return Meta(
        node_id,
        properties.get("cluster.id"),
        properties.get("directory.id"),
        others,
        properties,
        unquote(properties[TREE_KEY]) if TREE_KEY in properties else None,
    )


def strays_in(disk: Disk, data_directory: str) -> list[str]:
    """The folders of logs that were set aside because the tree did not know their topics."""
    return sorted(name for name in disk.list_directory(data_directory) if name.endswith("-stray"))


class LogFolder(NamedTuple):
    """The folder of one log."""

    name: str
    files: list[str]
    topic_id: bytes | None  # None if the file is missing or damaged
    leader_epochs: list[tuple[int, int]]


class DirectoryContents:
    """What was found at a path of log.dirs."""

    __slots__ = (
        "boot_id",
        "clean_epoch",
        "clock_doubt_ms",
        "error",
        "exists",
        "folders",
        "foreign",
        "meta",
        "names",
        "offsets",
        "path",
        "tree_knowledge",
        "tree_name",
        "used_ms",
        "was_clean",
    )

    def __init__(
        self,
        path: str,
        *,
        exists: bool = True,
        names: list[str] | None = None,
        meta: Meta | None = None,
        folders: dict[tuple[str, int], LogFolder] | None = None,
        error: OSError | None = None,
        tree_name: str = TREE_FILE,
    ) -> None:
        self.path = path
        self.exists = exists
        self.names = names or []
        self.was_clean = checkpoints.CLEAN_SHUTDOWN in self.names  # the last stop; asked once, as names may be many
        self.meta = meta or Meta()
        self.folders = folders or {}
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}  # by checkpoint file
        self.foreign: list[str] = []
        self.error = error  # why it could not be read; then nothing else is known
        self.tree_name = tree_name
        self.clean_epoch = -1  # in which epoch its broker stopped cleanly; -1: not known
        self.used_ms = -1  # when its broker wrote a checkpoint last, by the wall clock of then; -1: it never did
        self.clock_doubt_ms = 0  # for how long its broker was not sure of the wall clock when it ran last
        self.boot_id = ""  # of the machine when a broker last used it
        self.tree_knowledge = checkpoints.NO_TREE_KNOWLEDGE  # of its broker

    @property
    def is_formatted(self) -> bool:
        """Whether the directory says whose it is."""
        return self.meta.properties is not None

    @property
    def is_unused(self) -> bool:
        """Whether nobody has used it. A start that was cut off may have left a lock and a tree in it."""
        return self.error is None and not self.is_formatted and not self.used_names

    @property
    def used_names(self) -> list[str]:
        """Names that a new directory does not have. Hidden ones (.gitkeep, .DS_Store) say nothing about its use."""
        begun = f"{checkpoints.META_PROPERTIES}.tmp"
        return [
            name
            for name in self.names
            if not name.startswith(".") and name not in ("lost+found", begun) and not self.is_of_tree(name)
        ]

    def is_of_tree(self, name: str) -> bool:
        """Whether this is the coordination tree, or a file that it has beside it."""
        return any(
            name.startswith(tree) and BESIDE_THE_TREE.match(name, len(tree)) for tree in (TREE_FILE, self.tree_name)
        )

    @property
    def has_tree(self) -> bool:
        return TREE_FILE in self.names


def read_contents(disk: Disk, path: str, tree_name: str = TREE_FILE) -> DirectoryContents:
    """Look into a directory. OSError when it cannot be read, CheckpointError when a file is damaged."""
    if not disk.exists(path):
        return DirectoryContents(path, exists=False)
    found = DirectoryContents(path, names=disk.list_directory(path), tree_name=tree_name)
    if found.was_clean and disk.is_directory(f"{path}/{checkpoints.CLEAN_SHUTDOWN}"):
        raise IsADirectoryError(errno.EISDIR, "is a folder", f"{path}/{checkpoints.CLEAN_SHUTDOWN}")
    if found.was_clean:
        found.clean_epoch = checkpoints.read_clean_epoch(disk, f"{path}/{checkpoints.CLEAN_SHUTDOWN}")
    if checkpoints.HIGH_WATERMARKS in found.names:
        found.used_ms = disk.modified_ms(f"{path}/{checkpoints.HIGH_WATERMARKS}")
    if checkpoints.CLOCK_DOUBT in found.names:
        found.clock_doubt_ms = checkpoints.read_clock_doubt(disk, f"{path}/{checkpoints.CLOCK_DOUBT}")
    found.boot_id = checkpoints.read_boot_id(disk, f"{path}/{checkpoints.BOOT_ID}")
    found.tree_knowledge = checkpoints.read_tree_knowledge(disk, f"{path}/{checkpoints.TREE_MARK}")
    found.meta = read_meta(disk, path)
    found.offsets = {name: checkpoints.read_offsets(disk, f"{path}/{name}") for name in OFFSET_CHECKPOINTS}
    remembered = set().union(*found.offsets.values())
    for name in found.names:
        if name in _KAFKA_NAMES or name.startswith(".") or _SET_ASIDE_FOLDER.match(name):
            continue
        match = _LOG_FOLDER.match(name)
        if match and disk.is_directory(f"{path}/{name}"):
            key = match["topic"], int(match["partition"])
            folder = _read_folder(disk, path, name, was_clean=found.was_clean)
            if name == f"{key[0]}-{key[1]}" and (is_log(folder.files) or (key in remembered and not folder.files)):
                found.folders[key] = folder
                continue
        if not found.is_of_tree(name) and not _is_ours(disk, path, name):
            found.foreign.append(name)
    return found


def is_log(files: Sequence[str]) -> bool:
    """Whether a folder with these files is a log's."""
    return any(_LOG_FILE.match(name) for name in files)


def is_log_file(name: str) -> bool:
    """Whether Kafka or Barnabas gives a file in a log's folder such a name."""
    return _LOG_FILE.match(name) is not None


def deleted_folders(disk: Disk, contents: DirectoryContents) -> list[str]:
    """Names of the folders of deleted logs."""
    return [name for name in contents.names if _is_deleted_folder(disk, contents.path, name)]


def remove_deleted_folder(disk: Disk, path: str) -> None:
    """Remove the folder of a deleted log.

    If it holds anything else, or cannot be removed, it stays, and a line says so.
    """
    try:
        foreign = [name for name in disk.list_directory(path) if not is_log_file(name)]
        if foreign:
            names = names_in_a_line(foreign)
            logger.warning("did not remove %s, because no broker made what is in it: %s", path, names)
        else:
            disk.remove_tree(path)
    except OSError as error:
        logger.warning("could not remove %s: %s", path, error)


def _read_folder(disk: Disk, directory: str, name: str, *, was_clean: bool) -> LogFolder:
    path = f"{directory}/{name}"
    files = disk.list_directory(path)
    topic_id = None
    if checkpoints.PARTITION_METADATA in files:
        try:
            topic_id = checkpoints.read_partition_metadata(disk, f"{path}/{checkpoints.PARTITION_METADATA}")
        except checkpoints.CheckpointError:
            if was_clean:
                raise
            # A crash may have torn it. `recovery.open_log` says so, and the tree knows the id.
    has_epochs = checkpoints.LEADER_EPOCHS in files
    epochs = checkpoints.read_epochs(disk, f"{path}/{checkpoints.LEADER_EPOCHS}") if has_epochs else []
    return LogFolder(name, files, topic_id, epochs)


def _is_ours(disk: Disk, directory: str, name: str) -> bool:
    stem = name.removesuffix(".tmp")
    if stem in (checkpoints.META_PROPERTIES, *CHECKPOINT_NAMES, RESTORE_PLAN, RESTORED_PLAN) or name == "lost+found":
        return True
    return _is_deleted_folder(disk, directory, name)


def _is_deleted_folder(disk: Disk, directory: str, name: str) -> bool:
    return _DELETED_FOLDER.match(name) is not None and disk.is_directory(f"{directory}/{name}")


def paths_of(data_directories: str | Sequence[str]) -> Sequence[str]:
    """One path, or several, without a slash at the end."""
    paths = (data_directories,) if isinstance(data_directories, str) else data_directories
    return [path.rstrip("/") or "/" for path in paths]


def number_of_directories(disk: Disk, data_directories: str | Sequence[str]) -> int | None:
    """The node id that the first directory with one says. `LogManager.open` says what cannot be read."""
    for path in paths_of(data_directories):
        try:
            node_id = read_meta(disk, path).node_id
        except (OSError, checkpoints.CheckpointError):
            continue
        if node_id is not None:
            return node_id
    return None


def place_of_tree(disk: Disk, data_directories: str | Sequence[str]) -> str:
    """The file of the coordination tree, in the directory that has it. A new tree is made in the first directory."""
    places = [f"{path}/{TREE_FILE}" for path in paths_of(data_directories)]
    return next((place for place in places if disk.exists(place)), places[0])
