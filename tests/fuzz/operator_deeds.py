"""The operator of a machine with real disks: what is done to data directories and settings between two lives.

The twin of `simulator.operator`, with the tree in SQLite. Each case takes the directories that a broker left behind,
stopped or killed, does one to three deeds of a table, and starts a broker after each. What it then holds:

- a start that is refused has changed no byte, no name and no time, and says what to do;
- a start that is accepted serves every acknowledged record and commit that is in its directories, and acknowledges
  nothing for a partition whose records are elsewhere;
- what is not the broker's stays as it is;
- when a deed is undone, everything is served.
"""

import asyncio
import shutil
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.storage.checkpoints import META_PROPERTIES
from barnabas.storage.directory_contents import TREE_FILE
from broker_process import Client
from bugs import heard
from machine import LATE_TOPIC, TOPICS, Machine, Partition, Trouble, WrongError, expect
from mutations import case, spoil
from simulator.operator import BROKER_SETTINGS, FOREIGN, TOPIC_SETTINGS

CASES_PER_IMAGE = 10


# ------------------------------------------------------------------ deeds that every start must take as they are


def reorder(machine: Machine) -> None:
    machine.random.shuffle(machine.directories)


def move(machine: Machine) -> None:
    """And log.dirs says so."""
    if machine.formatted:
        source, target = machine.random.choice(machine.formatted), machine.new_path("moved")
        _rename(machine, source, target)
        machine.directories[machine.directories.index(source)] = target


def put_foreign_files(machine: Machine) -> None:
    for directory in machine.formatted[:1]:
        for name, content in FOREIGN.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)
        machine.foreign[directory] = FOREIGN


def add_a_directory(machine: Machine) -> None:
    machine.directories.insert(machine.random.randint(0, len(machine.directories)), machine.new_path("new"))


def move_a_partition(machine: Machine) -> None:
    """From one directory into another."""
    places = machine.formatted
    folders = [path.parent for place in places for path in sorted(place.glob("*-?/partition.metadata"))]
    if len(places) > 1 and folders:
        folder = machine.random.choice(folders)
        if folder.parent not in machine.foreign:
            target = machine.random.choice([place for place in places if place != folder.parent])
            if not (target / folder.name).exists():
                folder.rename(target / folder.name)


def move_the_tree(machine: Machine) -> None:
    """Into another of the directories."""
    if machine.has_own_tree_at_hand:
        _move_tree(machine.tree.parent, machine.random.choice(machine.formatted))


def move_the_tree_out(machine: Machine) -> None:
    if machine.has_own_tree_at_hand:
        target = machine.new_path("tree")
        _move_tree(machine.tree.parent, target)
        machine.settings["coordination.path"] = str(target / TREE_FILE)


def change_the_broker(machine: Machine) -> None:
    name, values = machine.random.choice(list(BROKER_SETTINGS.items()))
    machine.settings[name] = machine.random.choice(values)


def change_a_topic(machine: Machine) -> None:
    """In the next life, for the one after it."""
    name, values = machine.random.choice(list(TOPIC_SETTINGS["events"].items()))
    configs = {name: machine.random.choice(values)}
    machine.work.append(lambda client: expect(client.set_config("events", **configs), 0, f"setting {configs}"))


def make_a_topic(machine: Machine) -> None:
    """In the next life; so may be all that is done to topics."""
    machine.names += 1
    topics = {f"topic-{machine.names}": machine.random.randint(1, 3)}
    machine.work.append(lambda client: machine.make_topics(client, topics))


def delete_a_topic(machine: Machine) -> None:
    def work(client: Client) -> None:
        delete = messages.DeleteTopicsRequest(topic_names=["letters"], timeout_ms=10_000)
        answer = client.ask(ApiKey.DELETE_TOPICS, 5, delete).responses[0]
        if ("letters", 0) in machine.records:
            expect(answer.error_code, 0, "deleting letters")
        machine.records = {key: values for key, values in machine.records.items() if key[0] != "letters"}

    machine.work.append(work)


def add_partitions(machine: Machine) -> None:
    def work(client: Client) -> None:
        count = sum(topic == "events" for topic, _ in machine.records)
        create = messages.CreatePartitionsRequest
        rows = [create.CreatePartitionsTopic(name="events", count=count + 1, assignments=None)]
        answer = client.ask(ApiKey.CREATE_PARTITIONS, 2, create(topics=rows, timeout_ms=10_000))
        expect(answer.results[0].error_code, 0, "adding a partition")
        machine.records["events", count] = []

    machine.work.append(work)


# ------------------------------------------------------------------ deeds that a start may refuse


def wrong_node_id(machine: Machine) -> Trouble:
    before = dict(machine.settings)
    machine.settings["node.id"] = str(machine.random.randint(1, 9))
    return Trouble(lambda: _settings_again(machine, before), must_refuse=True)


def name_a_copy_too(machine: Machine) -> Trouble:
    source, copy = machine.random.choice(machine.directories), machine.new_path("copy")
    shutil.copytree(source, copy)
    if machine.random.random() < 0.5:
        for path in copy.glob(f"{TREE_FILE}*"):
            path.unlink()
    named = list(machine.directories)
    machine.directories.insert(machine.random.randint(0, len(named)), copy)
    return Trouble(lambda: _directories_again(machine, named), must_refuse=True)


def leave_out(machine: Machine) -> Trouble | None:
    if len(machine.directories) == 1:
        return None
    left_out = machine.random.sample(machine.directories, machine.random.randint(1, len(machine.directories) - 1))
    machine.directories = [place for place in machine.directories if place not in left_out]
    return Trouble(lambda: machine.directories.extend(left_out), is_partial=True)


def disk_not_mounted(machine: Machine) -> Trouble | None:
    """The path is gone, or empty."""
    if not machine.formatted:
        return None
    directory, elsewhere = machine.random.choice(machine.formatted), machine.new_path("unmounted")
    is_only = machine.formatted == [directory]
    _rename(machine, directory, elsewhere)
    if machine.random.random() < 0.5:
        directory.mkdir()

    def undo() -> None:
        if directory.exists():
            directory.rename(machine.new_path("made-meanwhile"))
        _rename(machine, elsewhere, directory)

    return Trouble(undo, is_partial=not is_only)


def another_brokers_directory(machine: Machine) -> Trouble:
    directory, elsewhere = machine.random.choice(machine.directories), machine.new_path("replaced")
    _rename(machine, directory, elsewhere)
    assert machine.other is not None
    shutil.copytree(machine.other, directory)

    def undo() -> None:
        directory.rename(machine.new_path("theirs"))
        _rename(machine, elsewhere, directory)

    is_whole = len(machine.directories) == 1 and "coordination.path" not in machine.settings
    return Trouble(undo, must_refuse=not is_whole)


def name_something_foreign(machine: Machine) -> Trouble:
    named, photos = list(machine.directories), machine.new_path("photos")
    (photos / "photos-2023").mkdir(parents=True)
    machine.foreign[photos] = {"photos-2023/letter.tmp": b"dear"}
    (photos / "photos-2023" / "letter.tmp").write_bytes(b"dear")
    machine.directories.insert(machine.random.randint(0, len(named)), photos)
    return Trouble(lambda: _directories_again(machine, named), must_refuse=True)


def copy_a_partition(machine: Machine) -> Trouble | None:
    folders = [path for place in machine.directories for path in place.glob("*-?/partition.metadata")]
    others = [place for place in machine.directories if folders and place != folders[0].parents[1]]
    if not others:
        return None
    copy = machine.random.choice(others) / folders[0].parent.name
    shutil.copytree(folders[0].parent, copy)
    return Trouble(lambda: shutil.rmtree(copy), must_refuse=True)


def remove_the_tree(machine: Machine) -> Trouble:
    """The topics are adopted. If the tree was not in a directory, this is a reason to ask."""
    return _replace_tree(machine, None)


def older_tree(machine: Machine) -> Trouble:
    """It does not know what came later, which is set aside; or not even the offsets topic: a reason to ask."""
    return _replace_tree(
        machine,
        machine.older_tree,
        must_refuse=not machine.older_tree_knows_offsets,
        may_set_aside=frozenset(key for key in machine.records if key[1] >= TOPICS.get(key[0], 0)),
    )


def another_brokers_tree(machine: Machine) -> Trouble:
    return _replace_tree(machine, machine.other, must_refuse=True)


def tree_named_elsewhere(machine: Machine) -> Trouble | None:
    if "coordination.path" in machine.settings:
        return None
    before, path = dict(machine.settings), machine.new_path("elsewhere") / TREE_FILE
    if machine.random.random() < 0.5:
        shutil.copytree(machine.older_tree, path.parent)
    machine.settings["coordination.path"] = str(path)
    return Trouble(lambda: _settings_again(machine, before), must_refuse=True)


def damage_meta_properties(machine: Machine) -> Trouble:
    path = machine.random.choice(machine.directories) / META_PROPERTIES
    content = path.read_bytes()
    luck = machine.random.random()
    if luck < 0.2:
        path.unlink()
    elif luck < 0.4:
        lines = content.splitlines(keepends=True)
        del lines[machine.random.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
    else:
        path.write_bytes(b"" if luck < 0.5 else spoil(machine.random, content))
    return Trouble(lambda: _write_again(path, content))


def _rename(machine: Machine, source: Path, target: Path) -> None:
    source.rename(target)
    if source in machine.foreign:
        machine.foreign[target] = machine.foreign.pop(source)


def _move_tree(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in sorted(source.glob(f"{TREE_FILE}*")):
        path.rename(target / path.name)


def _replace_tree(
    machine: Machine,
    by: Path | None,
    *,
    must_refuse: bool = False,
    may_set_aside: frozenset[Partition] = frozenset(),
) -> Trouble:
    place, elsewhere = machine.tree.parent, machine.new_path("right-tree")
    _move_tree(place, elsewhere)
    for path in sorted(by.glob(f"{TREE_FILE}*")) if by is not None else ():
        shutil.copy2(path, place)

    def undo() -> None:
        _move_tree(machine.tree.parent, machine.new_path("wrong-tree"))
        _move_tree(elsewhere, place)
        for directory in machine.directories:
            for path in directory.glob("*-stray"):
                path.rename(directory / path.name.rpartition(".")[0])

    return Trouble(undo, must_refuse, may_set_aside)


def _settings_again(machine: Machine, before: dict[str, str]) -> None:
    machine.settings = before


def _directories_again(machine: Machine, named: list[Path]) -> None:
    machine.directories = named


def _write_again(path: Path, content: bytes) -> None:
    path.write_bytes(content)


Deed = Callable[[Machine], Trouble | None]
CALM_DEEDS: tuple[Deed, ...] = (
    *(reorder, move, put_foreign_files, add_a_directory, move_a_partition, move_the_tree, move_the_tree_out),
    *(change_the_broker, change_a_topic, make_a_topic, delete_a_topic, add_partitions),
)
TROUBLES: tuple[Deed, ...] = (
    *(wrong_node_id, name_a_copy_too, leave_out, disk_not_mounted, another_brokers_directory, name_something_foreign),
    *(copy_a_partition, remove_the_tree, older_tree, another_brokers_tree, tree_named_elsewhere),
    damage_meta_properties,
)


# ------------------------------------------------------------------ one case

_FOLDER = tempfile.TemporaryDirectory()


def _home() -> Path:
    """Where every machine is: directories remember their paths."""
    return Path(_FOLDER.name) / "machine"


@cache
def _another_broker() -> Path:
    """The directory that another broker left."""
    home, kept = _home(), Path(_FOLDER.name) / "another"
    machine = Machine(Random(0), home, None)
    home.mkdir()
    machine.directories = [home / "theirs"]
    asyncio.run(machine.live(lambda client: expect(client.create_topic("theirs", 2), 0, "making a topic")))
    (home / "theirs").rename(kept)
    shutil.rmtree(home)
    return kept


class Image(NamedTuple):
    """A machine with two lives behind it, as the broker left it."""

    folder: Path
    machine: Machine


@cache
def _image(seed: int, number: int) -> Image:
    """The one of so many cases in a row."""
    other = _another_broker()
    random = case(seed, "operator image", number)
    home, kept = _home(), Path(_FOLDER.name) / f"image {seed} {number}"
    machine = Machine(random, home, other)
    home.mkdir()
    machine.directories = [home / name for name in "abc"[: random.choice((1, 2, 2, 3))]]
    if random.random() < 0.5:
        machine.settings["node.id"] = "0"
    asyncio.run(machine.live(lambda client: _first_life(machine, client)))
    asyncio.run(machine.live(lambda client: machine.fill(client, {LATE_TOPIC: 1})))
    home.rename(kept)
    return Image(kept, machine)


def _first_life(machine: Machine, client: Client) -> None:
    older = machine.older_tree
    older.mkdir()

    def copy_tree() -> None:
        for path in sorted(machine.tree.parent.glob(f"{TREE_FILE}*")):
            shutil.copy2(path, older)

    machine.older_tree_knows_offsets = machine.random.random() < 0.5
    if not machine.older_tree_knows_offsets:
        machine.make_topics(client, TOPICS)
        copy_tree()
        machine.fill(client, {})
    else:
        machine.fill(client, TOPICS)
        copy_tree()


def check(seed: int, number: int) -> str | None:
    """One case; what is wrong, if anything."""
    random = case(seed, "operator", number)
    done: list[str] = []
    with heard() as bugs:
        try:
            image = _image(seed, number // CASES_PER_IMAGE)
            _one_case(random, image, done)
            found = next(iter(bugs.found), None)
        except WrongError as wrong:
            found = str(wrong)
        except Exception:
            found = traceback.format_exc(limit=-8)
        finally:
            for path in (_home(), _home().with_name("killed")):
                shutil.rmtree(path, ignore_errors=True)
    return found and f"{found}\ndone: {', '.join(done)}\nsaid: {bugs.warnings[-5:]}"


def _one_case(random: Random, image: Image, done: list[str]) -> None:
    shutil.copytree(image.folder, _home())
    machine = Machine(random, _home(), image.machine.other)
    machine.directories = list(image.machine.directories)
    machine.settings = dict(image.machine.settings)
    machine.records = {key: list(values) for key, values in image.machine.records.items()}
    machine.commits = dict(image.machine.commits)
    machine.older_tree_knows_offsets = image.machine.older_tree_knows_offsets
    trouble: Trouble | None = None

    def end_trouble() -> None:
        nonlocal trouble
        if trouble is not None:
            trouble.undo()
            trouble = None
            done.append("undone")
            machine.start(None)

    for _ in range(random.randint(1, 3)):
        deed = random.choice(CALM_DEEDS + TROUBLES)
        if deed in TROUBLES or (trouble is not None and not trouble.is_partial):
            end_trouble()
        done.append(deed.__name__)
        trouble = deed(machine) or trouble
        for _ in range(random.choice((1, 1, 2))):
            machine.start(trouble)
    end_trouble()
    machine.start(None)
