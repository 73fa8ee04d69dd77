"""The files of a tree that are removed, replaced, older, shorter or strange: while it is in use, and at a start."""

import logging
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree import checkpoints, embedded, paths, tree_backup
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import ConnectionLossError, SessionExpiredError
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import counters_on_disk
from barnabas.cluster.tree.tree_place import STRANGE_MAX, UNREADABLE_LOOKS_MAX

TIMEOUT_MS = embedded.SESSION_TIMEOUT_MS
Tree = Any

embedded_only = pytest.mark.parametrize("tree", ["embedded"], indirect=True)  # in virtual time, with a real file


async def started(tree: Tree) -> EmbeddedCoordination:
    session = await tree.session()
    assert isinstance(session, EmbeddedCoordination)
    return session


@embedded_only
async def test_a_tree_that_is_removed_while_it_is_in_use_is_said_once(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    session = await started(tree)
    path = Path(session._path)
    aside = path.with_name("aside")
    path.rename(aside)
    await tree.clock.sleep(2 * TIMEOUT_MS)
    assert caplog.text.count("was removed or renamed while in use") == 1
    assert session.trouble == f"{path} was removed or renamed while in use"
    aside.rename(path)
    await tree.clock.sleep(2 * TIMEOUT_MS)
    assert not session.trouble
    assert caplog.text.count("was removed or renamed while in use") == 1
    assert session.session_id != 0


def put_in_the_place_of(tree: Tree, session: EmbeddedCoordination) -> tuple[Path, Path]:
    """Put a copy in the place of a tree that is in use; returns where both are."""
    path = Path(session._path)
    aside, copy = path.with_name("aside"), path.with_name("copy")
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    path.rename(aside)
    copy.rename(path)
    return path, aside


@embedded_only
async def test_who_has_a_tree_open_that_was_replaced_has_no_session_until_it_is_back(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    session, other = await started(tree), await started(tree)
    await session.create("/e", ephemeral=True)
    path, aside = put_in_the_place_of(tree, session)
    await tree.clock.sleep(embedded.POLL_ALONE_MS)  # the first one may not know the other yet
    for one in (session, other):
        assert not one.confirm_at_once()
        with pytest.raises(SessionExpiredError, match="was replaced by another file while it is in use"):
            await one.create("/a")
        with pytest.raises(SessionExpiredError, match="was replaced"):
            await one.confirm()
    await tree.clock.sleep(2 * TIMEOUT_MS)
    assert not session.confirm_at_once(), "no new session is begun"
    assert caplog.text.count("Stop all brokers of this tree") == 2, "once each"
    aside.rename(path)
    await tree.clock.sleep(TIMEOUT_MS)
    assert await other.exists("/e") is None, "the session was over meanwhile"
    await session.create("/e", ephemeral=True)
    assert await other.exists("/e") is not None


@embedded_only
async def test_no_session_begins_while_processes_use_a_file_that_was_in_its_place(tree: Tree) -> None:
    session = await started(tree)
    await session.create("/e", ephemeral=True)
    path, aside = put_in_the_place_of(tree, session)
    for _ in range(2):
        with pytest.raises(ConnectionLossError, match=r"was (replaced|removed) while in use by"):
            await tree.unstarted().look()
        path.unlink(missing_ok=True)
    assert not path.exists()
    aside.rename(path)
    later = tree.unstarted()
    await later.look()
    assert await later.exists("/e") is not None


@embedded_only
async def test_a_tree_over_which_an_older_copy_is_written_is_not_changed(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    session, other = await started(tree), await started(tree)
    for index in range(5):
        await session.create(f"/{index}")
    await tree.settle()
    assert session._reader is not None
    with session._reader.transaction():  # as a copy says it
        session._reader._rows("UPDATE counter SET zxid = 3")
    with pytest.raises(SessionExpiredError, match="is older than it was"):
        await session.create("/a")
    assert session._reader.find("/a") is None
    await tree.clock.sleep(2 * TIMEOUT_MS)
    for one in (session, other):
        assert not one.confirm_at_once()
        with pytest.raises(SessionExpiredError, match="is older than it was"):
            await one.create("/a")
    assert caplog.text.count("older than it was: another file was copied over it") == 2


@embedded_only
async def test_a_smaller_file_that_is_copied_over_a_tree_is_noticed(tree: Tree) -> None:
    session = await started(tree)
    for index in range(200):
        await session.create(f"/{index}", bytes(100))
    await tree.settle()
    path = Path(session._path)
    copy = path.read_bytes()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint")
    await tree.settle()
    assert session.confirm_at_once()
    assert path.stat().st_size > len(copy)
    path.write_bytes(copy)  # as cp does it: the file stays the same one
    await tree.settle()
    assert not session.confirm_at_once()
    with pytest.raises(SessionExpiredError, match="is older than it was"):
        await session.confirm()


# The -wal and the -shm


def copy_of(tree: Tree, *ends: str) -> dict[str, bytes]:
    """What is in the files of the tree with these ends of their names."""
    return {end: Path(f"{tree.path}{end}").read_bytes() for end in ends}


def put(tree: Tree, files: dict[str, bytes]) -> None:
    """Make these the only files of the tree."""
    for path in Path(tree.path).parent.iterdir():
        path.unlink()
    for end, content in files.items():
        Path(f"{tree.path}{end}").write_bytes(content)


async def write_many(session: EmbeddedCoordination, name: str, count: int = 30) -> None:
    for index in range(count):
        await session.create(f"/{name}{index}", bytes(300))


async def stop_all(tree: Tree) -> None:
    while tree.sessions:
        await tree.sessions.pop().close()


@embedded_only
@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")])
async def test_nobody_starts_beside_processes_whose_wal_was_removed(
    tree: Tree, caplog: pytest.LogCaptureFixture, ends: tuple[str, ...]
) -> None:
    await write_many(await started(tree), "old")
    await stop_all(tree)
    session, other = await started(tree), await started(tree)
    await session.create("/e", ephemeral=True)
    for end in ends:
        Path(f"{tree.path}{end}").unlink()
    names = {path.name for path in Path(tree.path).parent.iterdir()}
    with pytest.raises(ConnectionLossError, match=f"{ends[0]} was removed.* in use by .* Then start all brokers"):
        await tree.unstarted().look()
    assert {path.name for path in Path(tree.path).parent.iterdir()} == names, "nothing is made"
    await tree.settle()
    assert caplog.text.count("those brokers that run go on, and no broker can start") == 2, "once each"
    assert ("were removed or renamed" in caplog.text) == (len(ends) == 2)
    await other.create("/later")
    assert await session.exists("/later") is not None, "those that run are still one cluster"

    await tree.settle()
    held = copy_of(tree, "", ".newest")
    await stop_all(tree)
    for files in (copy_of(tree, ""), held):  # stopped; or all of them killed
        put(tree, files)
        caplog.clear()
        again = await started(tree)
        assert await again.exists("/later") is not None
        assert await again.exists("/old29") is not None
        assert await again.exists(paths.RESTORED) is None
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        await stop_all(tree)


@embedded_only
async def test_who_has_a_wal_open_that_was_replaced_has_no_session_until_it_is_back(tree: Tree) -> None:
    session = await started(tree)
    log = Path(f"{tree.path}-wal")
    aside = log.rename(log.with_name("aside"))
    log.write_bytes(aside.read_bytes())
    await tree.settle()
    with pytest.raises(SessionExpiredError, match="-wal was replaced by another file while it is in use"):
        await session.create("/a")
    with pytest.raises(ConnectionLossError, match="-wal was replaced while in use by"):
        await tree.unstarted().look()
    log.unlink()
    await tree.settle()
    assert not session.confirm_at_once(), "whoever had the other one may have changed the tree"
    aside.rename(log)
    await tree.clock.sleep(TIMEOUT_MS)
    await session.create("/a")


@embedded_only
async def test_a_tree_does_not_start_while_sessions_live_that_it_does_not_know(tree: Tree) -> None:
    session = await started(tree)
    stranger = session._files.begin(99, 10**9, session._place.files)
    with pytest.raises(ConnectionLossError, match=r"does not know the sessions \[99\] of processes that run"):
        await tree.unstarted().look()
    with pytest.raises(ConnectionLossError, match=r"does not know the sessions \[99\]"):
        await tree.session()
    stranger.release()
    await started(tree)


@embedded_only
async def test_a_wal_of_an_older_backup_beside_a_newer_tree_is_refused(tree: Tree) -> None:
    session = await started(tree)
    await write_many(session, "a")
    older = copy_of(tree, "-wal")
    await write_many(session, "b")
    await stop_all(tree)
    put(tree, copy_of(tree, "") | older)
    await check_refused(tree, "does not belong to .*: it ends with change")


@embedded_only
async def test_a_newer_wal_beside_an_older_tree_is_refused(tree: Tree) -> None:
    await write_many(await started(tree), "a")
    await stop_all(tree)
    older = copy_of(tree, "")
    session = await started(tree)
    await write_many(session, "b")
    await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)  # then the -wal begins anew
    await write_many(session, "c")
    newer = copy_of(tree, "-wal")
    await stop_all(tree)
    put(tree, older | newer)
    await check_refused(tree, "does not belong to .*: it begins with change")


@embedded_only
async def test_a_wal_that_was_left_beside_a_backup_is_refused(tree: Tree) -> None:
    session = await started(tree)
    await write_many(session, "a")
    backup = {"": (await tree_backup.take(tree.env, tree.path)).content}
    await write_many(session, "b")
    left = copy_of(tree, "-wal")
    await stop_all(tree)
    put(tree, backup | left)
    await check_refused(tree, "does not belong to .*: the file was put there whole, as a backup is")


async def check_refused(tree: Tree, why: str) -> None:
    held = {path.name: path.read_bytes() for path in Path(tree.path).parent.iterdir()}
    with pytest.raises(ConnectionLossError, match=why):
        await tree.unstarted().look()
    assert {path.name: path.read_bytes() for path in Path(tree.path).parent.iterdir()} == held
    Path(f"{tree.path}-wal").unlink()
    await started(tree)


@embedded_only
@pytest.mark.parametrize("pause_ms", [0, 3_000])
async def test_what_killed_processes_left_is_one_tree(
    tree: Tree, caplog: pytest.LogCaptureFixture, pause_ms: int
) -> None:
    for life in range(4):
        session = await started(tree)
        await write_many(session, f"a{life}-")
        await tree.clock.sleep(pause_ms)
        await write_many(session, f"b{life}-")
        left = copy_of(tree, "", "-wal", "-shm", ".newest")
        await stop_all(tree)
        put(tree, left)
    session = await started(tree)
    for life in range(4):
        assert await session.exists(f"/a{life}-29") is not None
        assert await session.exists(f"/b{life}-29") is not None
    assert await session.exists(paths.RESTORED) is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# A tree that is older, shorter, or none


@embedded_only
async def test_a_tree_that_lost_its_wal_says_that_it_is_older(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    session = await started(tree)
    await write_many(session, "a")
    await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)
    await write_many(session, "b")
    last = await session.exists("/b29")
    left = copy_of(tree, "", ".newest")
    await stop_all(tree)
    put(tree, left)
    assert await tree_of(tree, "/a29"), "what is a second old is in the file itself"
    assert not await tree_of(tree, "/b29")
    session = await started(tree)
    assert caplog.text.count("is older than it was: it ends with change") == 1
    assert (await session.get(paths.RESTORED))[1].czxid <= last.czxid
    await session.create("/new")
    assert (await session.exists("/new")).czxid > last.czxid, "no change gets a number that another one had"
    left = copy_of(tree, "", "-wal", ".newest")
    await stop_all(tree)
    put(tree, left)
    session = await started(tree)
    assert await session.exists("/new") is not None
    assert caplog.text.count("is older than it was") == 1


@embedded_only
@pytest.mark.parametrize("noted", ["9" * 20, str(2**63 - 1), "no number", "-5"])
async def test_a_damaged_number_of_the_last_change_is_said_and_ignored(
    tree: Tree, caplog: pytest.LogCaptureFixture, noted: str
) -> None:
    session = await started(tree)
    await session.create("/a")
    await stop_all(tree)
    Path(f"{tree.path}.newest").write_text(noted)
    session = await started(tree)
    assert await session.exists("/a") is not None
    assert await session.exists(paths.RESTORED) is None
    assert f"{tree.path}.newest is damaged, it says {noted!r}" in caplog.text
    await session.create("/b")
    await stop_all(tree)
    caplog.clear()
    await started(tree)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it was written anew"


async def tree_of(tree: Tree, path: str) -> bool:
    """Whether the node is there for one that only looks."""
    looker = tree.unstarted()
    await looker.look()
    found = await looker.exists(path) is not None
    await looker.close()
    return found


@embedded_only
async def test_vacuum_makes_a_tree_shorter_and_not_older(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    session, other = await started(tree), await started(tree)
    await session.create("/e", ephemeral=True)
    await write_many(session, "a", 200)
    for index in range(200):
        await session.delete(f"/a{index}")
    await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)
    path = Path(tree.path)
    before = path.stat().st_size
    for _ in range(2):
        with sqlite3.connect(path, isolation_level=None) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)
        assert path.stat().st_size < before
        await other.create("/a", b"1")
        await session.delete("/a")
        assert await other.exists("/e") is not None
    assert session.confirm_at_once()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await tree.session()


@embedded_only
async def test_a_file_that_is_emptied_while_it_is_in_use_is_noticed(tree: Tree) -> None:
    session = await started(tree)
    await write_many(session, "a")
    await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)
    Path(tree.path).write_bytes(b"")
    await tree.clock.sleep((UNREADABLE_LOOKS_MAX + 2 * STRANGE_MAX) * embedded.POLL_ALONE_MS)
    with pytest.raises(SessionExpiredError, match="is older than it was"):
        await session.confirm()
    await stop_all(tree)


@embedded_only
async def test_a_full_disk_on_which_a_part_of_the_wal_was_written_into_the_file_is_no_other_file(
    tree: Tree, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = await started(tree), await started(tree)
    await write_many(session, "a", 100)
    bring_in = TreeFile.bring_log_in

    def refuse(file: TreeFile) -> bool:
        raise ConnectionLossError("", "database or disk is full")

    monkeypatch.setattr(TreeFile, "bring_log_in", refuse)
    with open(f"{tree.path}-wal", "rb") as log, open(tree.path, "r+b") as file:
        file.write(last_first_page(log.read()))
    assert counters_on_disk(tree.path) is None
    await tree.clock.sleep(2 * TIMEOUT_MS)
    await session.create("/b")
    assert await other.exists("/a99") is not None
    monkeypatch.setattr(TreeFile, "bring_log_in", bring_in)
    await tree.clock.sleep(2 * checkpoints.AFTER_CHANGE_MS)
    assert counters_on_disk(tree.path) is not None
    assert session.confirm_at_once()
    assert other.confirm_at_once()
    assert "is older than it was" not in caplog.text


def last_first_page(log: bytes) -> bytes:
    """The newest version of the file's first page that a -wal has; it says how many pages the file has."""
    size = int.from_bytes(log[8:12], "big")
    frames = [log[at : at + 24 + size] for at in range(32, len(log), 24 + size)]
    return [frame[24:] for frame in frames if frame[:4] == b"\0\0\0\1" and frame[8:16] == log[16:24]][-1]


def test_a_look_into_a_file_in_use_leaves_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE counter (zxid, session)")
        connection.execute("INSERT INTO counter VALUES (7, 3)")
        connection.execute("PRAGMA wal_checkpoint")
        for _ in range(3):
            assert counters_on_disk(str(path)) == (7, 3)
        words = [sys.executable, "-c", CLOSES, str(path)]
        assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "True\n"


# Whether the -wal stays when this process closes the file: who is the last one removes it.
CLOSES = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT * FROM counter").fetchall()
connection.close()
print(os.path.exists(sys.argv[1] + "-wal"))
"""


@embedded_only
async def test_a_file_that_holds_no_tree_is_not_taken_for_a_new_one(tree: Tree) -> None:
    path = Path(tree.path)
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:  # as `cp` made it of a young tree
        connection.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size == 4096
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    content = path.read_bytes()
    with pytest.raises(ConnectionLossError, match="it holds no tree"):
        await tree.unstarted().look()
    assert path.read_bytes() == content


@embedded_only
async def test_a_copy_of_a_running_tree_with_all_its_files_is_a_tree(tree: Tree, tmp_path: Path) -> None:
    session = await started(tree)
    await write_many(session, "a")
    folder = tmp_path / "copy"
    shutil.copytree(Path(tree.path).parent, folder)
    copied = EmbeddedCoordination(tree.env, str(folder / Path(tree.path).name))
    await copied.start()
    tree.sessions.append(copied)
    assert await copied.exists("/a29") is not None
    assert session.confirm_at_once()
