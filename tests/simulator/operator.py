"""The operator of the broker's machine, who changes directories, the tree and settings between two lives of a broker.

Each deed is one row of a table. After some deeds the start must be refused: then no byte and no name may change, in the
directories and in the tree. After the others the start must succeed, and everything that was acknowledged must still be
there; the clients and the last look check this.
"""

import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.cluster.tree import paths, payloads
from barnabas.storage.directory_contents import DataDirectoryError

from simulator.coordination import EMPTY_TREE, TreeCopy
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

Deed = Callable[[], Coroutine[Any, Any, None]]

FOREIGN = {  # files that look like the broker's, but are not
    "notes.txt": b"do not delete",
    "photos-2023/letter.tmp": b"dear",
    "events-0/readme.txt": b"in a log of ours",
    "invoices-3/00000000000000000007.deleted": b"paid",
    "old-0.3f2504e04f8911d39a0c0305e82c3301-delete/readme": b"mine",
}
SOMEBODY_ELSE = "/home"
COPY = "/copy"
OLDER_TREE = "an older tree put back"
BROKER_SETTINGS = {
    "log.index.interval.bytes": ("100", "400", "4096"),
    "log.cleaner.min.cleanable.ratio": ("0.01", "0.1", "0.9"),
    "log.segment.delete.delay.ms": ("0", "1000", "60000"),
    "log.cleaner.delete.retention.ms": ("20000", "86400000"),
    "num.recovery.threads.per.data.dir": ("1", "4"),
    "compression.type": ("producer", "lz4"),
}
TOPIC_SETTINGS = {
    "events": {  # no zstd, because clients that are too old for it read this topic
        "internal.segment.bytes": ("6000", "14000", "40000"),
        "compression.type": ("producer", "uncompressed", "gzip", "lz4", "snappy"),
        "index.interval.bytes": ("100", "4096"),
    },
    "rolling": {"retention.bytes": ("20000", "30000", "-1"), "internal.segment.bytes": ("3000", "8000")},
    "changelog": {
        "cleanup.policy": ("delete", "delete", "compact", "compact,delete"),
        "internal.segment.bytes": ("2000", "6000"),
        "min.cleanable.dirty.ratio": ("0.01", "0.5"),
    },
}
ALWAYS = {"changelog": {"retention.ms": "-1", "retention.bytes": "-1"}}  # only compaction may remove its records


class Operator:
    """Acts between two lives. `deeds` are the rows, by name."""

    def __init__(self, world: "World", rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.deeds: dict[str, Deed] = {
            "a wrong node.id": self._start_with_a_wrong_id,
            "a copy of a directory": self._start_with_a_copy,
            "a directory of somebody else": self._start_with_a_foreign_directory,
            "directories reordered": self._reorder,
            "a directory moved": self._move,
            "a directory left out": self._leave_out,
            "foreign files put in": self._put_foreign_files,
            "settings of a topic changed": self._change_a_topic,
            "settings of the broker changed": self._change_the_broker,
            OLDER_TREE: self._put_an_older_tree_back,
        }
        if world.transactions is not None:
            del self.deeds["a directory left out"]  # no transaction could be ended for hours
            del self.deeds["foreign files put in"]  # nobody writes to the logs in whose folders they would be
        self._backup = EMPTY_TREE  # of the tree
        self.done: dict[str, int] = dict.fromkeys(self.deeds, 0)
        self._left_out: tuple[int, str] | None = None  # the place in log.dirs, and the directory
        self._foreign: dict[str, dict[str, bytes]] = {}  # by directory

    @property
    def is_partial(self) -> bool:
        """Whether one of the broker's directories is left out at present."""
        return self._left_out is not None

    async def act(self) -> None:
        """Do a deed, or nothing, while no broker runs. A directory left out for one life is named again."""
        self._name_again()
        self.look()
        if self._rng.random() < 0.3:
            return
        possible = [name for name in self.deeds if name != OLDER_TREE or self._can_put_back()]
        name = self._rng.choice(possible)
        self._world.note(f"operator: {name}")
        self.done[name] += 1
        await self.deeds[name]()
        self.look()
        if self._backup is EMPTY_TREE or self._rng.random() < 0.3:
            self._backup = self._world.tree.copy()

    async def settle(self) -> None:
        """Undo what blocks writes to the broker: from now on it has all its directories."""
        if self.is_partial:
            await self._world.host.stop()
            self._name_again()

    def look(self) -> None:
        """Check that the foreign files are unchanged."""
        disk = self._world.disk
        for directory, files in self._foreign.items():
            found = disk.content(directory) if disk.is_directory(directory) else {}
            for name, content in files.items():
                if found.get(f"{directory}/{name}") != content:
                    raise Violation("foreign files stay", f"{directory}/{name}: {found.get(f'{directory}/{name}')!r}")

    # -- starts that must be refused

    async def _start_with_a_wrong_id(self) -> None:
        wrong = self._world.host.settings | {"node.id": str(self._rng.randint(1, 9))}
        await self._refused("a wrong node.id", wrong, self._directories)

    async def _start_with_a_copy(self) -> None:
        disk = self._world.disk
        disk.copy_tree(self._rng.choice(self._directories), COPY)
        await self._refused("a copy of a directory", self._world.host.settings, self._directories_and(COPY))
        disk.remove_tree(COPY)

    async def _start_with_a_foreign_directory(self) -> None:
        self._write(SOMEBODY_ELSE, FOREIGN)
        directories = self._directories_and(SOMEBODY_ELSE)
        await self._refused("a directory of somebody else", self._world.host.settings, directories)

    async def _refused(self, what: str, settings: dict[str, str], directories: Sequence[str]) -> None:
        tree = self._world.tree
        earlier = {node.owner for path, _ in tree.below("/") if (node := tree.find(path)) is not None and node.owner}
        before = self._everything(earlier)
        try:
            await self._world.host.start(settings, directories)
        except DataDirectoryError as error:
            self._world.note(f"refused: {error}")
        else:
            raise Violation("such a start is refused", what)
        after = self._everything(earlier)
        if after != before:
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            raise Violation("a refused start changes nothing", f"{what}: {', '.join(changed)}")

    def _everything(self, ending: Collection[int]) -> dict[str, bytes | None]:
        """Every file and folder, and every node of the tree but those of sessions that are ending."""
        tree = self._world.tree
        nodes = {
            f"node {path}": data
            for path, data in tree.below("/")
            if (node := tree.find(path)) is not None and node.owner not in ending
        }
        return self._world.disk.content("/") | nodes

    # -- directories

    @property
    def _directories(self) -> list[str]:
        return self._world.host.data_directories

    def _directories_and(self, another: str) -> list[str]:
        named = list(self._directories)
        named.insert(self._rng.randint(0, len(named)), another)
        return named

    async def _reorder(self) -> None:
        self._rng.shuffle(self._directories)

    async def _move(self) -> None:
        place = self._rng.randrange(len(self._directories))
        source = self._directories[place]
        target = f"/moved{self._world.host.lives}"
        self._world.disk.rename(source, target)
        self._world.disk.sync_directory("/")
        self._directories[place] = target
        if source in self._foreign:
            self._foreign[target] = self._foreign.pop(source)

    async def _leave_out(self) -> None:
        if len(self._directories) > 1:
            place = self._rng.randrange(len(self._directories))
            self._left_out = place, self._directories.pop(place)

    def _name_again(self) -> None:
        if self._left_out is not None:
            self._directories.insert(*self._left_out)
            self._left_out = None

    async def _put_foreign_files(self) -> None:
        directory = self._rng.choice(self._directories)
        self._write(directory, FOREIGN)
        self._foreign[directory] = FOREIGN

    def _write(self, directory: str, files: dict[str, bytes]) -> None:
        """Write files and sync them."""
        disk = self._world.disk
        for name, content in files.items():
            path = f"{directory}/{name}"
            disk.make_directory(path.rpartition("/")[0])
            file = disk.open(path, create=True)
            file.truncate(0)
            file.write(0, content)
            file.sync()
            file.close()
            disk.sync_directory(path.rpartition("/")[0])
        disk.sync_directory(directory)
        disk.sync_directory("/")

    # -- the tree

    def _can_put_back(self) -> bool:
        """Not if it lacks a topic, deletion or feature of now: these would be gone. So would offsets in the tree."""
        return not self._world.offsets_in_tree and self._names(self._backup) == self._names(self._world.tree.copy())

    async def _put_an_older_tree_back(self) -> None:
        tree = self._world.tree
        self._world.note(f"operator: the tree is as it was {tree.zxid - self._backup.zxid} changes ago")
        tree.put_back(self._backup)

    def _names(self, copy: TreeCopy) -> dict[str, bytes]:
        """Which topics and features it knows, and which topics are being deleted."""
        folders = f"{paths.TOPICS}/", f"{paths.DELETE_TOPICS}/"
        return {
            path: node.data
            for path, node in copy.nodes.items()
            if path == paths.FEATURE or (path.startswith(folders) and path.count("/") == 3)
        }

    # -- settings

    async def _change_a_topic(self) -> None:
        topic = self._rng.choice(list(TOPIC_SETTINGS))
        name, values = self._rng.choice(list(TOPIC_SETTINGS[topic].items()))
        tree, path = self._world.tree, paths.topic_config(topic)
        settings = payloads.decode_config(tree.require(path).data)
        settings |= {name: self._rng.choice(values), **ALWAYS.get(topic, {})}
        self._world.note(f"operator: {topic} has {settings}")
        tree.change(lambda zxid: tree.set(path, payloads.encode_config(settings), -1, zxid))

    async def _change_the_broker(self) -> None:
        name, values = self._rng.choice(list(BROKER_SETTINGS.items()))
        self._world.host.settings[name] = self._rng.choice(values)
        self._world.note(f"operator: {name}={self._world.host.settings[name]}")
