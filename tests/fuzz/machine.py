"""A machine with real disks, on which one broker lives after another, and what its clients were told.

What holds after each start, whatever an operator has done before it, is in `Machine.start`.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from barnabas.broker.broker import Broker
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.env import real
from barnabas.storage.checkpoints import META_PROPERTIES
from barnabas.storage.directory_contents import TREE_FILE, DataDirectoryError
from broker_process import Client, batch
from directory_state import changes, state
from files import ADVICE

PATIENCE_SECONDS = 100.0
STEPS_OF_A_START = 30
TOPICS = {"events": 3, "letters": 2}
LATE_TOPIC = "late"  # an older copy of the tree does not know it
GROUPS = ("readers", "writers", "others")
OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 2
RETRIED = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "auto.create.topics.enable": "false",
}

Partition = tuple[str, int]


class WrongError(Exception):
    """What does not hold."""


class Trouble(NamedTuple):
    """A state of the machine that a start may refuse, and how it is ended."""

    undo: Callable[[], None]
    must_refuse: bool = False
    may_set_aside: frozenset[Partition] = frozenset()  # the tree does not know them
    is_partial: bool = False  # a directory is missing, and all else goes on meanwhile


class Machine:
    """Directories, settings, and what was acknowledged."""

    def __init__(self, random: Random, home: Path, other: Path | None) -> None:
        self.random = random
        self.home = home
        self.other = other  # the directory of another broker
        self.directories: list[Path] = []
        self.settings = dict(SETTINGS)
        self.records: dict[Partition, list[bytes]] = {}
        self.commits: dict[str, int] = {}
        self.foreign: dict[Path, dict[str, bytes]] = {}
        self.older_tree_knows_offsets = True
        self.work: list[Callable[[Client], None]] = []  # for the next life
        self.names = 0

    @property
    def older_tree(self) -> Path:
        """A copy from an earlier time."""
        return self.home / "older"

    def new_path(self, what: str) -> Path:
        """A path on the machine that nobody has."""
        self.names += 1
        return self.home / f"{what}-{self.names}"

    def held(self) -> set[Partition]:
        """The partitions whose folders are in the directories that the next start is told of."""
        every = [*self.records, *((OFFSETS_TOPIC, index) for index in range(OFFSETS_PARTITIONS))]
        return {
            key for key in every if any(any((place / f"{key[0]}-{key[1]}").glob("*.log")) for place in self.directories)
        }

    @property
    def tree(self) -> Path:
        """The file of the coordination tree."""
        named = self.settings.get("coordination.path")
        places = [Path(named)] if named else [place / TREE_FILE for place in self.directories]
        return next(path for path in places if path.exists())

    @property
    def formatted(self) -> list[Path]:
        """The directories that a broker uses, of those that it is told of."""
        return [place for place in self.directories if (place / META_PROPERTIES).exists()]

    @property
    def has_own_tree_at_hand(self) -> bool:
        """Whether the tree is in a directory that can be seen."""
        return "coordination.path" not in self.settings and any((p / TREE_FILE).exists() for p in self.directories)

    # -- lives

    async def live(self, what: Callable[[Client], None]) -> None:
        """Start a broker, do something as its client, stop it or kill it. What a start raises is for the caller."""
        broker = Broker(real(), BrokerConfig.of(self.settings), tuple(map(str, self.directories)))
        await broker.start()
        try:
            client = Client(int(broker.addresses.bootstrap.rpartition(":")[2]))
            try:
                await asyncio.to_thread(what, client)
            finally:
                client.close()
            if self.random.random() < 0.5:
                self._copy_as_killed()
        finally:
            await broker.stop()
        self._go_on_as_killed()

    def _copy_as_killed(self) -> None:
        """What a kill would leave now. The thread of the tree may just be giving the file of a session its name."""
        shutil.copytree(self.home, self._killed, ignore=shutil.ignore_patterns("*.session-*.new"))

    def _go_on_as_killed(self) -> None:
        if self._killed.exists():
            shutil.rmtree(self.home)
            self._killed.rename(self.home)

    async def die_while_starting(self) -> None:
        """Start a broker that is killed on the way."""
        broker = Broker(real(), BrokerConfig.of(self.settings), tuple(map(str, self.directories)))
        start = asyncio.ensure_future(broker.start())
        for _ in range(self.random.randrange(STEPS_OF_A_START)):
            await asyncio.sleep(self.random.choice((0, 0, 0.001)))
        if not start.done():
            self._copy_as_killed()
            start.cancel()
        await asyncio.wait([start])
        if not start.cancelled() and start.exception() is None:
            await broker.stop()
        self._go_on_as_killed()

    @property
    def _killed(self) -> Path:
        return self.home.with_name("killed")

    def start(self, trouble: Trouble | None) -> None:
        """A life after a deed; WrongError when something does not hold."""
        held = self.held()
        before = state(self.home)
        if self.random.random() < 0.25:
            asyncio.run(self.die_while_starting())
            if trouble is not None and trouble.must_refuse and (changed := changes(before, state(self.home))):
                raise WrongError(f"a start that is to be refused has changed {changed} on the way")
            before = state(self.home)
        try:
            asyncio.run(asyncio.wait_for(self.live(lambda client: self._look(client, held, trouble)), PATIENCE_SECONDS))
        except (DataDirectoryError, CoordinationError, OSError) as error:
            if trouble is None:
                raise WrongError(f"refused: {error}") from error
            if changed := changes(before, state(self.home)):
                raise WrongError(f"refused ({error}), and changed {changed}") from error
            sentence = str(error)
            if not any(word in sentence.lower() for word in ADVICE) or str(self.home) not in sentence:
                raise WrongError(f"refused without advice: {error!r}") from error
        else:
            if trouble is not None and trouble.must_refuse:
                raise WrongError("such a start is to be refused")
        self._look_at_foreign()

    # -- what a client does and finds

    def fill(self, client: Client, topics: dict[str, int]) -> None:
        """Make topics, and write."""
        self.make_topics(client, topics)
        for _ in range(2):
            for key in self.records:
                self._produce(client, key)
        for group in GROUPS:
            self._commit(client, group)

    def make_topics(self, client: Client, topics: dict[str, int]) -> None:
        """With so many partitions."""
        for topic, count in topics.items():
            expect(client.create_topic(topic, count), 0, f"making {topic}")
            self.records |= {(topic, index): [] for index in range(count)}

    def _look(self, client: Client, held: set[Partition], trouble: Trouble | None) -> None:
        if trouble is None or trouble.is_partial:
            before = set(self.records)
            for work in self.work:
                work(client)
            self.work.clear()
            held = held | self.records.keys() - before
        set_aside = trouble.may_set_aside if trouble else frozenset()
        for key, values in self.records.items():
            if key in held and key not in set_aside:
                found = client.values(*key)
                expect(found, values, f"{key[0]}-{key[1]}")
                self._produce(client, key)
            elif values:
                answer = client.produce(*key, batch([b"nobody may keep this"]))
                if answer.error_code == 0 and not (key in set_aside and answer.base_offset == len(values)):
                    raise WrongError(f"{key}: its {len(values)} records are elsewhere, one has {answer.base_offset}")
                if answer.error_code == 0:
                    values.append(b"nobody may keep this")
        for group, offset in self.commits.items():
            place = OFFSETS_TOPIC, partition_for(group, OFFSETS_PARTITIONS)
            if place in held:
                error, found_offset = self._committed(client, group)
                expect((error, found_offset), (0, offset), f"the commit of {group}")
                self._commit(client, group)
            else:
                error, found_offset = client.committed(group, "events", 0)
                if error == 0 and (OFFSETS_TOPIC, place[1]) not in held:
                    expect(found_offset, offset, f"the commit of {group}, which is elsewhere")

    def _produce(self, client: Client, key: Partition) -> None:
        values = self.records[key]
        value = f"{key[0]} {key[1]} {len(values)}".encode().ljust(self.random.choice((1, 200, 5_000)), b".")
        answer = client.produce(*key, batch([value]))
        expect((answer.error_code, answer.base_offset), (0, len(values)), f"a record for {key}")
        values.append(value)

    def _commit(self, client: Client, group: str) -> None:
        commit = messages.OffsetCommitRequest
        offset = self.commits.get(group, 0) + 1
        rows = [commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        topics = [commit.OffsetCommitRequestTopic(name="events", partitions=rows)]
        request = commit(group_id=group, generation_id_or_member_epoch=-1, topics=topics)

        def once() -> tuple[int, int]:
            find = messages.FindCoordinatorRequest(key=group, key_type=0)
            client.ask(ApiKey.FIND_COORDINATOR, 2, find)
            answer = client.ask(ApiKey.OFFSET_COMMIT, 7, request)
            return answer.topics[0].partitions[0].error_code, 0

        expect(_settled(once)[0], 0, f"a commit of {group}")
        self.commits[group] = offset

    def _committed(self, client: Client, group: str) -> tuple[int, int]:
        return _settled(lambda: client.committed(group, "events", 0))

    def _look_at_foreign(self) -> None:
        for place, files in self.foreign.items():
            for name, content in files.items():
                path = place / name
                if not path.is_file() or path.read_bytes() != content:
                    raise WrongError(f"{path} is not ours, and was changed")


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise WrongError(f"{what}: {str(found)[:300]}, not {str(wanted)[:300]}")


def _settled(ask: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """The answer, once the group is loaded."""
    deadline = time.monotonic() + PATIENCE_SECONDS / 3
    while (answer := ask())[0] in RETRIED and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer
