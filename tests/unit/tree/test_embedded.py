"""What only the tree in an SQLite file does: real processes, real locks, the file itself."""

import asyncio
import errno
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest
from barnabas.cluster.tree.changes import Change
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import ConnectionLossError, Create, EventType, NodeExistsError
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import BusyError, lost
from barnabas.cluster.tree.tree_place import read_by_others
from barnabas.cluster.tree.watches import Watches
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.env import real
from barnabas.runtime.ports import File
from simulator.env import sim_env

# A broker process that registers itself, says what was acknowledged, and waits to be killed.
REGISTERED = """
import asyncio, sys
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.runtime.env import real

async def main():
    session = EmbeddedCoordination(real(), sys.argv[1])
    await session.start()
    await session.create("/ids/1", b"here", ephemeral=True, make_parents=True)
    await session.create("/kept", b"0")
    for number in range(1, 51):
        await session.set("/kept", str(number).encode())
    print("registered", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


# Adds 1 to a node a hundred times, taking turns with others by the node's version.
COUNTING = """
import asyncio, sys
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import BadVersionError
from barnabas.runtime.env import real

async def main():
    session = EmbeddedCoordination(real(), sys.argv[1])
    await session.start()
    added = 0
    while added < 100:
        data, stat = await session.get("/count")
        try:
            await session.set("/count", str(int(data) + 1).encode(), stat.version)
        except BadVersionError:
            continue
        added += 1
    await session.close()

asyncio.run(main())
"""


def registered(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", REGISTERED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "registered\n"
    return process


async def test_a_killed_broker_goes_and_what_it_was_told_stays(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    process = registered(path)
    session = EmbeddedCoordination(real(), str(path))
    try:
        await session.start()
        gone = asyncio.Event()
        assert await session.exists("/ids/1", lambda event: gone.set()) is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        await asyncio.wait_for(gone.wait(), 20)
        assert await session.children("/ids") == []
        assert await session.get("/kept") == (b"50", await session.exists("/kept"))
    finally:
        process.kill()
        await session.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tree", "tree.newest"]


async def test_a_broker_that_comes_back_finds_its_name_free(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    process = registered(path)
    process.kill()
    process.wait()
    session = EmbeddedCoordination(real(), str(path))
    await session.start()
    assert await session.exists("/ids/1") is None
    await session.close()


async def test_processes_writing_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    session = EmbeddedCoordination(real(), str(path))
    await session.start()
    await session.create("/count", b"0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTING, str(path)]) for _ in range(2)]
    try:
        assert [process.wait(60) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    data, stat = await session.get("/count")
    assert (data, stat.version) == (b"200", 200)
    await session.close()


def test_every_change_is_synced_before_it_is_answered(tmp_path: Path) -> None:
    session = EmbeddedCoordination(real(), str(tmp_path / "tree"))

    async def pragmas() -> tuple[object, object]:
        await session.start()
        assert session._changes.writer is not None
        connection = session._changes.writer._connection
        found = (
            connection.execute("PRAGMA journal_mode").fetchone()[0],
            connection.execute("PRAGMA synchronous").fetchone()[0],
        )
        await session.close()
        return found

    assert asyncio.run(pragmas()) == ("wal", 2)  # 2: FULL, the log is synced at each commit


async def test_a_file_that_cannot_be_read_any_more_is_a_lost_connection(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    session = EmbeddedCoordination(real(), str(path))
    await session.start()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE node")
    connection.commit()
    connection.close()
    for read in (session.get("/a"), session.get_many(["/a"]), session.exists("/a"), session.children("/")):
        with pytest.raises(ConnectionLossError, match="no such table"):
            await read
    await session.close()


async def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    session = EmbeddedCoordination(real(), str(path))
    with pytest.raises(ConnectionLossError, match="format 9"):
        await session.start()
    path.write_bytes(b"this is no database, only some text" * 100)
    with pytest.raises(ConnectionLossError, match=r"tree is damaged: .* Restore it from a backup, or move it"):
        await session.start()


@pytest.mark.parametrize("change", ["DELETE FROM counter", "UPDATE counter SET session = 'x', zxid = 'x'"])
async def test_a_counter_without_a_number_is_a_lost_connection(tmp_path: Path, change: str) -> None:
    path = tmp_path / "tree"
    session = EmbeddedCoordination(real(), str(path))
    await session.start()
    await session.close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE counter")
    connection.execute("CREATE TABLE counter (zxid TEXT, session TEXT)")
    connection.execute("INSERT INTO counter VALUES (1, 1)")
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(ConnectionLossError, match="damaged: the counter"):
        await EmbeddedCoordination(real(), str(path)).start()


def test_who_could_not_make_the_tree_keeps_no_lock(tmp_path: Path) -> None:
    """Three brokers that are started together on a new tree: the last step of its making finds another one reading."""
    tree = tmp_path / "tree"
    with closing(sqlite3.connect(tree, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM sqlite_master").fetchall()
        with pytest.raises(BusyError) as kept:  # with all that its frames refer to
            TreeFile(str(tree), lambda: 0)
        other.execute("COMMIT")
        TreeFile(str(tree), lambda: 0).close()
    assert "is locked" in str(kept.value)


def test_a_tree_in_memory_needs_no_disk() -> None:
    env = sim_env()
    session = EmbeddedCoordination(env, ":memory:")

    async def scenario() -> None:
        await session.start()
        await session.multi([Create("/a"), Create("/a/b", ephemeral=True)])
        assert await session.children("/a") == ["b"]
        await session.close()

    env.run(scenario())
    assert env.disk.list_directory("/") == []


@pytest.mark.parametrize("left", ["closed", "killed", "none"])
def test_a_look_touches_no_file(tmp_path: Path, left: str) -> None:
    path = tmp_path / "tree.sqlite"
    if left != "none":
        process = registered(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if left == "closed":

        async def start_and_close() -> None:
            session = EmbeddedCoordination(real(), str(path))
            await session.start()
            await session.close()

        asyncio.run(start_and_close())
    before = {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in tmp_path.iterdir()}
    assert ("tree.sqlite-wal" in before) == (left == "killed")

    async def look() -> list[bytes | None]:
        looker = EmbeddedCoordination(real(), str(path))
        await looker.look()
        found = await looker.get_many(["/kept", "/ids/1"])
        await looker.close()
        return [None if node is None else node[0] for node in found]

    assert asyncio.run(look()) == [None if left == "none" else b"50", None], "what is only in the log, too"
    assert {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize("damage", ["cut", "format", "page"])
def test_a_look_finds_damage_and_touches_no_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tree.sqlite"

    async def look(*, start: bool) -> None:
        session = EmbeddedCoordination(real(), str(path))
        await (session.start() if start else session.look())
        if start:
            for number in range(200):
                await session.create(f"/node{number}", b"x" * 200)
        await session.close()

    asyncio.run(look(start=True))
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            content = content[:368]
        case "format":
            content[18:20] = b"\x09\x09"
        case "page":
            content[-4096:] = bytes(4096)
    path.write_bytes(content)
    with pytest.raises(ConnectionLossError, match=f"{path} is damaged: .* Restore it from a backup"):
        asyncio.run(look(start=False))
    assert path.read_bytes() == content
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tree.sqlite", "tree.sqlite.newest"]


@pytest.mark.parametrize("protected", ["tree", "tree-wal"])
async def test_a_tree_that_may_not_be_written_is_refused_before_anything_is_made_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protected: str
) -> None:
    env = real()
    session = EmbeddedCoordination(env, f"{tmp_path}/tree")
    await session.start()
    await session.close()
    (tmp_path / "tree-wal").touch()
    names = sorted(tmp_path.iterdir())
    really_open = RealDisk.open

    def open_file(disk: RealDisk, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if path == f"{tmp_path}/{protected}" and not read_only:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really_open(disk, path, create=create, read_only=read_only)

    monkeypatch.setattr(RealDisk, "open", open_file)
    with pytest.raises(
        ConnectionLossError, match=f"cannot read and write {tmp_path}/{protected}: Permission denied. Let"
    ):
        await EmbeddedCoordination(env, f"{tmp_path}/tree").look()
    assert sorted(tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (sqlite3.SQLITE_FULL, "Make room there"),
        (sqlite3.SQLITE_IOERR | 19 << 8, "Look after its disk"),  # SQLITE_IOERR_SHMSIZE
        (sqlite3.SQLITE_READONLY, "Let this user write"),
        (sqlite3.SQLITE_CANTOPEN, "Let this user write"),
    ],
)
def test_a_tree_that_cannot_be_used_says_what_to_do(code: int, advice: str) -> None:
    error = sqlite3.OperationalError("it")
    error.sqlite_errorcode = code
    assert f"cannot use /tree: it. {advice}" in str(lost("/tree", error))


def modes(folder: Path) -> dict[str, int]:
    """The rights of the files of a tree, but for those of its sessions."""
    files = [path for path in folder.iterdir() if path.name.endswith((".sqlite", "-wal", "-shm"))]
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}


@pytest.mark.parametrize(
    ("there", "then"), [(None, 0o600), (0o644, 0o600), (0o600, 0o600), (0o664, 0o660), (0o660, 0o660), (0o666, 0o660)]
)
def test_nobody_else_reads_the_tree(tmp_path: Path, there: int | None, then: int) -> None:
    """It may hold passwords. A group that may write it was given it."""
    path = tmp_path / "tree.sqlite"
    before = os.umask(0)
    try:
        for _ in range(1 if there is None else 2):
            if path.exists():
                assert there is not None
                path.chmod(there)

            async def run() -> dict[str, int]:
                session = EmbeddedCoordination(real(), str(path))
                await session.start()
                try:
                    await session.create("/secret", b"planted")
                except NodeExistsError:
                    await session.set("/secret", b"planted")
                found = modes(tmp_path)
                assert read_by_others(RealDisk(), str(path)) == []
                await session.close()
                return found

            found = asyncio.run(run())
    finally:
        os.umask(before)
    assert found == dict.fromkeys(("tree.sqlite", "tree.sqlite-wal", "tree.sqlite-shm"), then)


def test_files_beside_a_tree_that_were_left_readable(tmp_path: Path) -> None:
    """An older release has made them, and was killed."""
    path = tmp_path / "tree.sqlite"
    with closing(TreeFile(str(path), lambda: 0)) as file, file.transaction():
        file.mark_restored(0)
        for part in ("", "-wal", "-shm"):
            os.chmod(f"{path}{part}", 0o644)
        assert len(read_by_others(RealDisk(), str(path))) == 3
    for part in ("", "-wal", "-shm"):
        assert RealDisk().make_private(f"{path}{part}")
    assert read_by_others(RealDisk(), str(path)) == []


async def test_a_poll_beside_a_change_of_this_process_compares_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 topics that took 40 ms, in many polls while topics were made. The change itself tells its watches."""
    session = EmbeddedCoordination(real(), str(tmp_path / "tree"))
    await session.start()
    await session.create("/a", b"")
    other = EmbeddedCoordination(real(), str(tmp_path / "tree"))
    await other.start()
    compared: list[int] = []
    compare, tell = Watches.compare, session._changes._made

    def counted(watches: Watches, file: TreeFile, since: int) -> None:
        if watches is session._watches:  # the other session polls, too
            compared.append(since)
        compare(watches, file, since)

    def polled(made: Change) -> None:  # the poll comes between the change and the news of it
        assert session._reader is not None
        session._poll(session._reader)
        tell(made)

    monkeypatch.setattr(Watches, "compare", counted)
    monkeypatch.setattr(session._changes, "_made", polled)
    fired: list[str] = []
    await session.get("/a", lambda event: fired.append(event.path))
    await session.children("/", lambda event: fired.append(event.path))
    assert session._reader is not None
    session._poll(session._reader)
    compared.clear()
    await session.set("/a", b"1")
    await asyncio.sleep(0.01)
    assert (fired, compared) == (["/a"], [])
    await other.create("/b", b"")  # what others did before is found with the next change, at the latest
    await session.set("/a", b"2")
    await asyncio.sleep(0.01)
    assert fired == ["/a", "/"]
    assert compared
    await other.close()
    await session.close()


async def test_one_change_by_another_process_looks_at_few_of_many_watched_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each topic is watched, and a new one changes the node above all: with 10,000, that took each broker 40 ms."""
    session, other = (EmbeddedCoordination(real(), str(tmp_path / "tree")) for _ in range(2))
    await session.start()
    await other.start()
    fired: list[tuple[str, EventType]] = []
    paths = [f"/topics/{number}/state" for number in range(200)]
    for path in paths:
        await other.create(path, b"", make_parents=True)
    for path in paths:
        await session.get(path, lambda event: fired.append((event.path, event.type)))
    await session.exists("/topics/none/state", lambda event: fired.append((event.path, event.type)))
    asked: list[str] = []
    last_changes = TreeFile.last_changes

    def counted(file: TreeFile, path: str) -> object:
        asked.append(path)
        return last_changes(file, path)

    async def look() -> list[tuple[str, EventType]]:
        fired.clear()
        asked.clear()
        assert session._reader is not None
        session._poll(session._reader)
        await asyncio.sleep(0.01)
        return sorted(fired)

    async def poll_after(change: Awaitable[object]) -> list[tuple[str, EventType]]:
        session._polling.stop()  # type: ignore[union-attr]
        await change
        return await look()

    await look()
    monkeypatch.setattr(TreeFile, "last_changes", counted)
    assert await poll_after(other.create("/topics/new", b"")) == []
    assert asked == ["/topics/none/state"]
    assert await poll_after(other.delete("/topics/7/state")) == [("/topics/7/state", EventType.DELETED)]
    assert await poll_after(other.set("/topics/8/state", b"1")) == [("/topics/8/state", EventType.DATA)]
    await other.delete("/topics/9/state")
    assert await poll_after(other.delete("/topics/9")) == [("/topics/9/state", EventType.DELETED)]
    assert await poll_after(other.create("/topics/none/state", b"", make_parents=True)) == [
        ("/topics/none/state", EventType.CREATED)
    ]
    assert len(asked) < 20
    await other.close()
    await session.close()
