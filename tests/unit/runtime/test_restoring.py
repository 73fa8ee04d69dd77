"""Data directories are put back: whole, or not at all, whenever a disk is full or the process is killed."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from barnabas.runtime import directory_copies, restoring
from barnabas.runtime import lives as lives_module
from barnabas.runtime.clock import MovableClock
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.lives import Lives
from barnabas.runtime.ports import RESTORE_PLAN, RESTORED_PLAN
from barnabas.runtime.restoring import Same

NAMES = (".lock", "meta.properties", "orders-0/0.log", "orders-0/5.log", "orders-0/0.index")


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def inodes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    """What a killed process does not outlive."""


class Place:
    """Two data directories and a snapshot of them; since then each has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = [folder / "data", folder / "more" / "data"]
        self.snapshot = folder / "snapshot"
        for number, directory in enumerate(self.data):
            (directory / "orders-0").mkdir(parents=True)
            for name in NAMES:
                (directory / name).write_text(name)
            directory_copies.copy(directory, self.snapshot / str(number))
        self.folders = self.data
        self.first = self.data[0]  # has the plan
        self.wanted = self.trees()

    def trees(self) -> list[dict[str, str]]:
        return [tree(directory) for directory in self.folders]

    def change(self) -> None:
        for directory in self.data:
            (directory / "orders-0" / "5.log").write_text("more than before")
            (directory / "orders-0" / "0.index").unlink()
            (directory / "new-0").mkdir()
            (directory / "new-0" / "0.log").write_text("new")
            (directory / "some-checkpoint").write_text("1")

    def restore(self, same: Same | None = None, cluster: restoring.Cluster | None = None) -> None:
        files = [list(directory_copies.files_in(self.snapshot / number)) for number in "01"]
        data = [str(directory) for directory in self.data]
        restoring.replace(data, self.snapshot, files, same or Same(), RealDisk(), cluster)

    def data_now(self) -> list[dict[str, str]]:
        """What a broker finds, without what a restore has put aside."""
        return [
            {name: text for name, text in files.items() if not name.startswith((".re", RESTORE_PLAN))}
            for files in self.trees()
        ]

    def begin(self) -> None:
        """A broker begins with what was put back, and writes."""
        for directory in self.data:
            for name in ("orders-0/9.log", "later-0/0.log", "tree.sqlite-wal", "other-checkpoint"):
                (directory / name).parent.mkdir(exist_ok=True)
                (directory / name).write_text("of who could not start")
            (directory / "orders-0" / "5.log").write_text("written on")

    def forget(self) -> None:
        restoring.keep(str(self.first))
        restoring.forget(str(self.first))

    def start(self) -> None:
        for directory in self.folders:
            if (directory / RESTORE_PLAN).exists():
                restoring.finish(str(directory), RealDisk())
            if (directory / RESTORED_PLAN).exists():
                restoring.forget(str(directory))

    def left(self) -> list[str]:
        names = re.compile(r"\.re.+|.+\.(restored|tmp)|restored?-plan.+")
        return [str(path) for path in self.folder.rglob("*") if names.fullmatch(path.name)]


class ClusterPlace(Place):
    """The data directories of two brokers, and a folder with their tree, in which there are other things, too."""

    def __init__(self, folder: Path) -> None:
        self.shared = folder / "shared"
        (self.shared / "somebody-1").mkdir(parents=True)
        for name in ("tree", "tree.newest", "tree.old", "notes.sqlite", ".lock", "somebody-1/0.log"):
            (self.shared / name).write_text(name)
        super().__init__(folder)
        self.tree_files = directory_copies.files_of_tree(str(self.shared / "tree"))
        for name in self.tree_files:
            shutil.copyfile(self.shared / name, self.snapshot / name)
        self.folders = [self.shared, *self.data]
        self.first = self.shared
        self.wanted = self.trees()

    def change(self) -> None:
        super().change()
        (self.shared / "tree").write_text("of a later time")
        (self.shared / "tree-wal").write_text("the end of it")
        (self.shared / "tree.newest").unlink()

    def begin(self) -> None:
        super().begin()
        (self.shared / "tree").write_text("of who could not start")
        (self.shared / "tree-shm").write_text("of who could not start")

    def restore(self, same: Same | None = None, cluster: restoring.Cluster | None = None) -> None:
        super().restore(same, cluster or restoring.Cluster(str(self.shared / "tree"), self.tree_files))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=[Place, ClusterPlace], ids=["one", "cluster"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    made: Place = request.param(tmp_path)
    return made


def test_all_is_as_in_the_snapshot_but_for_locks_and_what_no_broker_has_made(place: Place) -> None:
    place.change()
    first = place.data[0]
    (first / "notes.txt").write_text("mine")
    (first / "my folder").mkdir()
    (first / "my folder" / "letter").write_text("dear")
    place.restore()
    place.forget()
    place.wanted[0] |= {"notes.txt": "mine", "my folder/letter": "dear"}
    assert place.trees() == place.wanted
    assert not (first / "new-0").exists()
    assert not place.left()


def test_what_nobody_has_changed_is_left_as_it_is(place: Place) -> None:
    same = Same()
    for number, directory in enumerate(place.data):
        (directory / "tree.sqlite").write_text("rewritten in place")
        (place.snapshot / str(number) / "tree.sqlite").write_text("rewritten in place")
        same.note_all(directory, place.snapshot / str(number), time.time_ns() + 2 * restoring.TICK_NS)
    texts, before = place.trees(), [inodes(directory) for directory in place.data]
    place.change()
    place.restore(same)
    place.forget()
    assert place.trees() == texts
    for directory, earlier in zip(place.data, before):
        changed = {name for name, inode in inodes(directory).items() if inode != earlier[name]}
        assert changed <= {"orders-0/5.log", "orders-0/0.index", "tree.sqlite"}
    (place.data[0] / "orders-0" / "0.index").write_text("x" * len("orders-0/0.index"))  # as long, at another time
    place.restore(same)
    place.forget()
    assert place.trees() == texts


def test_another_snapshot_at_the_path_of_the_first_is_noticed(place: Place) -> None:
    same = Same()
    for number, directory in enumerate(place.data):
        same.note_all(directory, place.snapshot / str(number), time.time_ns() + 2 * restoring.TICK_NS)
    shutil.rmtree(place.snapshot)
    for number, directory in enumerate(place.data):
        shutil.copytree(directory, place.snapshot / str(number))
        (place.snapshot / str(number) / "orders-0" / "5.log").write_text("orders-1/5.log")  # as long
    place.restore(same)
    place.forget()
    assert [trees["orders-0/5.log"] for trees in place.trees()] == ["orders-1/5.log"] * 2


def test_a_file_that_was_changed_just_now_is_not_taken_for_the_same(place: Place) -> None:
    same, data, source = Same(), place.data[0], place.snapshot / "0"
    changed_ns = (data / "meta.properties").stat().st_mtime_ns
    same.note_all(data, source, changed_ns + restoring.TICK_NS)
    assert not same.holds(str(data / "meta.properties"), str(source / "meta.properties"))


def test_a_snapshot_whose_files_all_have_second_names_keeps_its_last_segments(place: Place) -> None:
    """`cp -al` gives each file one. Until 2026-11 such a last segment was linked, and grew in the snapshot."""
    shutil.copytree(place.snapshot, place.folder / "second", copy_function=os.link)
    place.change()
    place.restore()
    for directory, number in zip(place.data, "01"):
        for name in ("0.log", "5.log"):
            is_linked = (directory / "orders-0" / name).samefile(place.snapshot / number / "orders-0" / name)
            assert is_linked == (name == "0.log")


def count_and_fail(
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
    failure: Callable[[], BaseException],
    names: list[tuple[object, str]],
) -> list[object]:
    """One of the calls of these functions fails, and all later ones."""
    calls: list[object] = []
    for module, name in names:
        really = getattr(module, name)

        def call(*args: object, really: Callable[..., object] = really, **options: object) -> object:
            calls.append(args)
            if len(calls) >= fails_at:
                raise failure()
            return really(*args, **options)

        monkeypatch.setattr(module, name, call)
    return calls


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_what_was_there_is_there_if_there_is_no_room(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    place.change()
    before = place.trees()
    with monkeypatch.context() as patch:
        no_room = lambda: OSError(28, "No space left on device")  # noqa: E731
        calls = count_and_fail(patch, fails_at, no_room, [(shutil, "copyfile"), (os, "replace")])
        with pytest.raises(OSError, match="No space left"):
            place.restore()
        assert len(calls) == fails_at
    assert place.trees() == before
    assert sorted(os.listdir(place.data[0])) == [
        *(".lock", "meta.properties", "new-0", "orders-0", "some-checkpoint"),
    ]


@pytest.mark.parametrize("fails_at", range(1, 19))
def test_what_was_there_is_there_if_a_file_cannot_take_its_place(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    place.change()
    (place.data[0] / ".replaced" / "new-0").mkdir(parents=True)  # of an earlier one, which could not be removed
    (place.data[0] / ".replaced" / "new-0" / "0.log").write_text("older")
    before = place.trees()
    del before[0][".replaced/new-0/0.log"]
    calls: list[object] = []
    really = os.rename

    def refuse_once(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == fails_at:
            raise OSError(1, "Operation not permitted", str(source))
        really(source, target)

    monkeypatch.setattr(os, "rename", refuse_once)
    with pytest.raises(OSError, match="not permitted"):
        place.restore()
    assert place.trees() == before
    assert not place.left()
    place.restore()
    place.forget()
    assert place.trees() == place.wanted


@pytest.mark.parametrize("act", ["replace", "go back"])
def test_a_disk_that_is_full_from_any_moment_on_leaves_all_of_the_old(either: Place, act: str) -> None:
    """Until 2026-11-30 a broker went on with half of either, because there was no room for what to do next."""
    either.change()
    before = either.trees()
    full_at = 1
    while True:
        if act == "go back":
            either.restore()
            either.begin()
        with pytest.MonkeyPatch.context() as patch:
            no_room = lambda: OSError(28, "No space left on device")  # noqa: E731
            takes_room: list[tuple[object, str]] = [(os, "mkdir"), (os, "link"), (shutil, "copyfile")]
            calls = count_and_fail(patch, full_at, no_room, [*takes_room, (restoring, "_write")])
            if act == "go back":
                restoring.go_back(str(either.first), RealDisk())
                assert not calls
                break
            if not fails_for_want_of_room(either):
                break
        assert either.trees() == before, f"full at {full_at}"
        assert not either.left()
        full_at += 1
    assert either.trees() == before if act == "go back" else full_at > 10


def fails_for_want_of_room(place: Place) -> bool:
    try:
        place.restore()
    except OSError:
        return True
    return False


def test_two_that_start_on_an_interrupted_restore_do_it_once(either: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-11-30 the second removed what the first had brought back."""
    either.change()
    before = either.trees()
    either.restore()
    either.begin()
    with pytest.MonkeyPatch.context() as patch:
        count_and_fail(patch, 2, Killed, [(os, "unlink")])
        with pytest.raises(Killed):
            restoring.go_back(str(either.first), RealDisk())
    held = restoring.held

    def held_after_the_first(*arguments: Any) -> ExitStack:
        monkeypatch.setattr(restoring, "held", held)
        either.start()
        return held(*arguments)

    monkeypatch.setattr(restoring, "held", held_after_the_first)
    with pytest.raises(FileNotFoundError):
        restoring.finish(str(either.first), RealDisk())
    assert either.trees() == before


def test_data_directories_that_are_links(tmp_path: Path) -> None:
    """Until 2026-11-30 the second was not put back, and nothing said so."""
    place = Place(tmp_path)
    place.change()
    before = place.trees()
    (tmp_path / "links").mkdir()
    links = [tmp_path / "links" / "first", tmp_path / "links" / "second"]
    for link, directory in zip(links, place.data):
        link.symlink_to(directory)
    place.data, place.first = links, links[0]
    place.restore()
    assert place.data_now() == place.wanted
    restoring.go_back(str(place.first), RealDisk())
    assert place.trees() == before
    place.restore()
    place.forget()
    assert place.trees() == place.wanted
    assert not place.left()


def test_a_kill_at_any_moment_leaves_all_of_the_old_or_all_of_the_new(either: Place) -> None:
    """Until 2026-11 a kill while files were renamed left some topics as before and some as in the snapshot."""
    either.change()
    before = either.trees()
    changing = [
        *((os, name) for name in ("rename", "replace", "unlink", "link", "rmdir")),
        *((shutil, name) for name in ("copyfile", "rmtree")),
    ]
    outcomes, killed_at = [], 1
    while True:
        for directory, files in zip(either.folders, before):
            shutil.rmtree(directory, ignore_errors=True)
            for name, text in files.items():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            calls = count_and_fail(patch, killed_at, Killed, changing)
            with contextlib.suppress(Killed):
                either.restore()
                either.forget()
        if len(calls) < killed_at:
            break
        with pytest.MonkeyPatch.context() as patch:  # the next start is killed, too
            count_and_fail(patch, 1 + killed_at % 3, Killed, changing)
            with contextlib.suppress(Killed):
                either.start()
        either.start()
        (either.first / f"{RESTORE_PLAN}.tmp").unlink(missing_ok=True)  # nobody reads it
        assert either.trees() in (before, either.wanted), f"killed at {killed_at}"
        assert not either.left(), f"killed at {killed_at}"
        outcomes.append(either.trees() == either.wanted)
        killed_at += 1
    assert outcomes == sorted(outcomes), "first all of the old, then all of the new"
    assert outcomes.count(True) > 10 < outcomes.count(False)


def test_what_a_broker_has_written_since_it_serves_stays_whenever_it_is_killed(place: Place) -> None:
    place.change()
    killed_at = 1
    while True:
        place.restore()
        restoring.keep(str(place.data[0]))
        (place.data[1] / "later-0").mkdir(exist_ok=True)
        (place.data[1] / "later-0" / "0.log").write_text("acknowledged")
        with pytest.MonkeyPatch.context() as patch:
            calls = count_and_fail(patch, killed_at, Killed, [(os, "unlink"), (os, "rename"), (shutil, "rmtree")])
            with contextlib.suppress(Killed):
                restoring.forget(str(place.data[0]))
        place.start()
        assert place.trees()[1] == {**place.wanted[1], "later-0/0.log": "acknowledged"}
        assert not place.left()
        if len(calls) < killed_at:
            break
        killed_at += 1
    assert killed_at > 3


def test_directories_that_were_moved_together_are_finished_and_one_alone_is_refused(place: Place) -> None:
    place.change()
    with pytest.MonkeyPatch.context() as patch:
        count_and_fail(patch, 3, Killed, [(os, "rename")])
        with pytest.raises(Killed):
            place.restore()
    moved = place.folder / "moved"
    moved.mkdir()
    os.rename(place.data[0], moved / "data")
    with pytest.raises(OSError, match=r"was interrupted, and .*more/data is missing"):
        restoring.finish(str(moved / "data"), RealDisk())
    os.rename(place.folder / "more", moved / "more")
    place.folders = place.data = [moved / "data", moved / "more" / "data"]
    place.start()
    assert place.trees() == place.wanted


@pytest.mark.parametrize("kind", ["full", "killed"])
def test_what_was_there_comes_back_if_no_broker_starts_on_it(either: Place, kind: str) -> None:
    """Until 2026-11-30 the end of its tree (-wal) stayed, so that the tree from before could not be read."""
    either.change()
    before = either.trees()
    changing = [(os, name) for name in ("rename", "replace", "unlink")] + [(shutil, "rmtree")]
    killed_at = 1
    while True:
        either.restore()
        assert either.data_now() == either.wanted
        either.begin()
        begun = either.data_now()
        if kind == "full":
            restoring.go_back(str(either.first), RealDisk())
            break
        with pytest.MonkeyPatch.context() as patch:
            calls = count_and_fail(patch, killed_at, Killed, changing)
            with contextlib.suppress(Killed):
                restoring.go_back(str(either.first), RealDisk())
        if len(calls) < killed_at:
            break
        either.start()
        (either.first / f"{RESTORE_PLAN}.tmp").unlink(missing_ok=True)
        if killed_at == 1:  # what nobody has begun to undo is done to its end
            assert either.trees() == begun
            for directory, files in zip(either.folders, before):
                shutil.rmtree(directory)
                for name, text in files.items():
                    (directory / name).parent.mkdir(parents=True, exist_ok=True)
                    (directory / name).write_text(text)
        assert either.trees() == before, f"killed at {killed_at}"
        assert not either.left()
        killed_at += 1
    assert either.trees() == before
    assert not either.left()
    assert kind == "full" or killed_at > 10


def test_what_a_broker_has_written_before_it_served_stays_if_it_is_killed_then(either: Place) -> None:
    """Until 2026-11-30 the end of its tree went, also if half of it was in the tree already."""
    either.change()
    either.restore()
    either.begin()
    begun = either.data_now()
    either.start()
    assert either.trees() == begun
    assert not either.left()


def test_a_tree_that_a_broker_uses_is_noticed(tmp_path: Path) -> None:
    place = ClusterPlace(tmp_path)
    assert place.tree_files == ["tree", "tree.newest"]
    (place.shared / "tree.session-3").touch()  # of a process that was killed
    assert directory_copies.files_of_tree(str(place.shared / "tree")) == place.tree_files
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", code, str(place.shared / "tree.session-3")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(OSError, match="a broker uses it that does not take part"):
            directory_copies.files_of_tree(str(place.shared / "tree"))
        other.communicate(b"\n")


def test_who_begins_beside_one_that_completes_a_restore_waits_for_its_own_directory(tmp_path: Path) -> None:
    """Until 2026-11-26 it found the lock held, and its process ended."""
    place = ClusterPlace(tmp_path)
    place.change()
    own = str(place.data[1])
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", code, f"{own}/.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()

        async def begin() -> None:
            beginning = asyncio.ensure_future(restoring.finish_if_begun(str(place.shared), [own], RealDisk()))
            await asyncio.sleep(0.1)
            assert not beginning.done()
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
            await beginning

        asyncio.run(begin())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"changed": 1, "wanted": 2, "is_staged": true}'])
def test_a_plan_that_nobody_can_read_is_refused_and_changes_nothing(place: Place, text: str) -> None:
    before = place.trees()
    (place.data[0] / RESTORE_PLAN).write_text(text)
    with pytest.raises(OSError, match="the plan of an interrupted restore is damaged"):
        place.start()
    (place.data[0] / RESTORE_PLAN).unlink()
    assert place.trees() == before


def test_a_directory_that_a_broker_uses_is_left_alone(place: Place) -> None:
    place.change()
    before = place.trees()
    lock = RealDisk().lock(str(place.data[1] / ".lock"))
    try:
        with pytest.raises(OSError, match="another broker uses it"):
            place.restore()
    finally:
        lock.release()
    assert place.trees() == before
    assert json.dumps(place.left()) == "[]"


@pytest.mark.parametrize("goes_back", [False, True])
def test_no_broker_goes_on_with_half_of_a_restore(
    either: Place, monkeypatch: pytest.MonkeyPatch, goes_back: bool
) -> None:
    """Until 2026-11-30 one did, and the next start took away what it had written since."""
    either.change()
    before = either.trees()
    if goes_back:
        either.restore()
        either.begin()

    def act(_: object) -> Any:
        if goes_back:
            restoring.go_back(str(either.first), RealDisk())
        else:
            either.restore()

    lives = Lives(MovableClock(0), RealDisk(), str(either.folder / "own"))
    lives._command = lives_module._Command([str(either.first)], act, plan_in=str(either.first), goes_back=goes_back)
    with monkeypatch.context() as patch:
        count_and_fail(patch, 4, lambda: OSError(5, "Input/output error"), [(os, "rename")])
        with pytest.raises(OSError, match=r"Input/output error.* A restore is half done; the next start ends it"):
            asyncio.run(lives.between())
    either.start()
    assert either.trees() == (before if goes_back else either.wanted)


def test_who_is_left_takes_back_what_cannot_start(either: Place) -> None:
    """Until 2026-11-30 the others began with half of it, if the one that took it back was killed."""
    either.change()
    before = either.trees()
    either.restore()
    either.begin()
    finishing = restoring.finish_if_begun(str(either.first), [str(either.first)], RealDisk(), goes_back=True)
    asyncio.run(finishing)
    assert either.trees() == before
    assert not either.left()


def test_a_snapshot_has_nothing_of_a_restore_that_could_not_be_forgotten(place: Place) -> None:
    """Until 2026-11-30 it had all that was put aside, and to put it back put back that, too."""
    place.change()
    place.restore()
    restoring.keep(str(place.first))
    lives = Lives(MovableClock(0), RealDisk(), str(place.folder / "own"))
    lives.snapshot([str(each) for each in place.data], str(place.folder / "second"))
    asyncio.run(lives.between())
    found = [tree(place.folder / "second" / number) for number in "01"]
    assert found == [{name: text for name, text in files.items() if name != ".lock"} for files in place.wanted]


def test_where_a_log_is_a_link_snapshots_are_refused_with_the_right_advice(place: Place) -> None:
    """Until 2026-11-30 the advice was to make room, after the connections of all clients were cut."""
    log = place.data[1] / "orders-0"
    log.rename(place.folder / "elsewhere")
    log.symlink_to(place.folder / "elsewhere")
    lives, data = Lives(MovableClock(0), RealDisk(), str(place.folder / "own")), [str(each) for each in place.data]
    for command in (lives.snapshot, lives.restore):
        with pytest.raises(
            lives_module.SnapshotError, match=r"orders-0 is a link to a folder, .*\. Put the folder itself there"
        ):
            command(data, str(place.snapshot))
    assert not lives.is_ending


def test_a_broker_goes_on_whatever_keeps_it_from_removing_what_was_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is removed in a thread, for which the next restore waits."""

    def fails(directory: str) -> None:
        raise RecursionError("folders in folders")

    monkeypatch.setattr(restoring, "forget", fails)
    lives_module._forget("/data")
    assert "could not remove the data from before the restore: folders in folders" in caplog.text
