"""Sessions of several processes with one embedded tree: in virtual time, and real processes that are stopped."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree import embedded
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import ConnectionLossError, Create, SessionExpiredError
from barnabas.cluster.tree.session_files import NEVER, SessionFiles
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.env import real
from barnabas.runtime.ports import DirectoryLock
from barnabas.runtime.processes import identify

TIMEOUT_MS = embedded.SESSION_TIMEOUT_MS
OPENED = [[1, 2], [1, 3], []]


embedded_only = pytest.mark.parametrize("tree", ["embedded"], indirect=True)  # in virtual time, with a real file
Tree = Any


async def started(tree: Tree) -> EmbeddedCoordination:
    session = await tree.session()
    assert isinstance(session, EmbeddedCoordination)
    return session


def stop(session: EmbeddedCoordination) -> None:
    """As SIGSTOP does: nothing of the process runs, and the operating system keeps its lock."""
    assert session._polling is not None
    session._polling.stop()


def go_on(session: EmbeddedCoordination) -> None:
    assert session._reader is not None
    session._poll(session._reader)


@embedded_only
async def test_a_stopped_process_is_dead_after_its_session_and_not_before(tree: Tree) -> None:
    stopped, other = await started(tree), await started(tree)
    await stopped.create("/e", ephemeral=True)
    await tree.settle()
    stop(stopped)
    until_ms = stopped.last_confirmed_ms + TIMEOUT_MS
    gone: list[float] = []
    await other.exists("/e", lambda event: gone.append(tree.clock.monotonic_ms()))
    await tree.clock.sleep(2 * TIMEOUT_MS)
    assert len(gone) == 1
    assert until_ms <= gone[0] <= until_ms + embedded.LIVENESS_MS + embedded.POLL_MS + 10
    assert await other.exists("/e") is None


@pytest.mark.parametrize("tree", ["embedded", "unsynced"], indirect=True)
async def test_who_does_not_keep_the_tree_leaves_it_as_a_killed_process_does(tree: Tree) -> None:
    gone = await started(tree)
    await gone.create("/p", b"kept")
    await gone.create("/e", ephemeral=True)
    await gone.close(keeps_tree=False)
    path = Path(tree.path)
    assert not list(path.parent.glob("*.session-*")), "nobody takes it for a process that lives"
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT id FROM session").fetchall() == [(gone.session_id,)]
    later = tree.unstarted()
    await later.look()
    assert await later.exists("/e") is None
    await later.start()
    assert await later.exists("/e") is None
    assert (await later.get("/p"))[0] == b"kept"
    assert later.session_id > gone.session_id
    await later.close()


@embedded_only
async def test_a_stopped_process_that_goes_on_within_its_session_keeps_it(tree: Tree) -> None:
    stopped, other = await started(tree), await started(tree)
    await stopped.create("/e", ephemeral=True)
    stop(stopped)
    await tree.clock.sleep(TIMEOUT_MS - 1000)
    go_on(stopped)
    await tree.clock.sleep(TIMEOUT_MS - 1000)
    assert await other.exists("/e") is not None
    await stopped.confirm()
    await stopped.set("/e", b"1")


@embedded_only
@pytest.mark.parametrize("deed", ["confirm", "confirm at once", "change", "poll"])
async def test_who_slept_past_its_session_notices_before_anything_else(tree: Tree, deed: str) -> None:
    stopped, other = await started(tree), await started(tree)
    await other.create("/a", b"0")
    stop(stopped)
    old = stopped.session_id
    expired: list[int] = []
    stopped.on_session_expired(lambda: expired.append(stopped.session_id))
    await tree.clock.sleep(TIMEOUT_MS + 1000)
    if deed == "confirm":
        with pytest.raises(SessionExpiredError):
            await stopped.confirm()
    elif deed == "confirm at once":
        assert not stopped.confirm_at_once()
    elif deed == "change":
        with pytest.raises(SessionExpiredError):
            await stopped.set("/a", b"1")
    go_on(stopped)
    assert stopped.last_confirmed_ms == -float("inf") or stopped.session_id != old
    await tree.settle()
    assert expired == [stopped.session_id]
    assert stopped.session_id not in (0, old)
    assert (await other.get("/a"))[0] == b"0"
    await stopped.confirm()


@embedded_only
async def test_after_all_stood_still_together_nobody_is_ended(tree: Tree) -> None:
    sessions = [await started(tree) for _ in range(3)]
    for number, session in enumerate(sessions):
        await session.create(f"/{number}", ephemeral=True)
    ids = [session.session_id for session in sessions]
    polls = [session._poll for session in sessions]
    await tree.settle()
    tree.clock.loop.now += 10 * TIMEOUT_MS / 1000  # the machine slept
    polls[0](sessions[0]._opened())
    await tree.settle()
    assert [session.session_id for session in sessions] == ids
    assert await sessions[0].children("/") == ["0", "1", "2"]


def test_the_last_word_of_a_session_counts_though_another_ends_it(tmp_path: Path) -> None:
    files = SessionFiles(RealDisk(), f"{tmp_path}/tree")
    lock = files.begin(7, 1000, OPENED)
    assert files.lives_until_ms(7) == 1000
    assert files.prolong(7, 2000)  # after the other has read 1000, and before it fences
    assert files.fence(7) == 2000
    assert not files.prolong(7, 3000)
    assert files.fence(7) == files.lives_until_ms(7) == 2000
    lock.release()
    assert files.lives_until_ms(7) == NEVER
    assert files.remove(7) == []
    assert list(tmp_path.iterdir()) == []
    assert files.lives_until_ms(7) == NEVER
    assert list(tmp_path.iterdir()) == [], "to ask makes no file"


def test_nobody_sees_the_file_of_a_session_before_it_is_locked(tmp_path: Path) -> None:
    """Who looks for sessions that live would take one for dead whose file is not locked yet."""
    seen: list[str] = []

    class Watched(RealDisk):
        def lock(self, path: str) -> DirectoryLock:
            seen.extend(name for name in os.listdir(tmp_path) if name.removeprefix("tree.session-").isdigit())
            return super().lock(path)

    files = SessionFiles(Watched(), f"{tmp_path}/tree")
    lock = files.begin(7, 1000, OPENED)
    assert seen == []
    assert os.listdir(tmp_path) == ["tree.session-7"]
    assert files.lives_until_ms(7) == 1000
    owner = files.owner(7)
    assert owner is not None
    assert (owner.files, owner.process) == (OPENED, identify(os.getpid()))
    lock.release()


@embedded_only
async def test_a_session_that_another_process_only_fenced_is_ended_by_its_own(tree: Tree) -> None:
    session = await started(tree)
    await session.create("/e", ephemeral=True)
    old = session.session_id
    session._files.fence(old)  # and then that other process was killed
    await tree.settle()
    assert session.session_id != old
    assert await session.exists("/e") is None
    names = [path.name for path in Path(tree.path).parent.iterdir() if "session" in path.name]
    assert names == [f"coordination.sqlite.session-{session.session_id}"]


# Another process is inside a change


@embedded_only
async def test_the_loop_goes_on_while_another_process_is_inside_a_change(tree: Tree) -> None:
    session = await started(tree)
    await session.create("/a", b"0")
    other = sqlite3.connect(tree.path, isolation_level=None, timeout=0)
    other.execute("BEGIN IMMEDIATE")
    first = asyncio.ensure_future(session.set("/a", b"1"))
    second = asyncio.ensure_future(session.set("/a", b"2"))
    read = asyncio.ensure_future(session.get("/a"))
    created = asyncio.ensure_future(session.multi([Create("/b", ephemeral=True)]))
    before_ms = tree.clock.monotonic_ms()
    await tree.clock.sleep(1000)
    assert tree.clock.monotonic_ms() == before_ms + 1000
    assert not any(each.done() for each in (first, second, read, created))
    await session.confirm()
    other.execute("COMMIT")
    other.close()
    assert ((await first).version, (await second).version) == (1, 2)
    assert (await read)[0] == b"2", "it sees the changes that were asked for before it"
    assert await created == ["/b"]


@embedded_only
async def test_who_stays_inside_a_change_for_too_long_is_a_lost_connection(tree: Tree) -> None:
    session = await started(tree)
    other = sqlite3.connect(tree.path, isolation_level=None, timeout=0)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConnectionLossError, match="locked"):
        await session.create("/a")
    other.execute("ROLLBACK")
    other.close()
    await session.create("/a")


@embedded_only
async def test_a_change_whose_caller_is_cancelled_still_fires_watches(tree: Tree) -> None:
    session = await started(tree)
    await session.create("/a", b"0")
    fired: list[object] = []
    await session.get("/a", fired.append)
    change = asyncio.ensure_future(session.set("/a", b"1"))
    await tree.clock.sleep(1)
    change.cancel()
    await tree.settle()
    assert change.cancelled()
    assert len(fired) == 1
    assert (await session.get("/a"))[0] == b"1"


# Real processes

LONG_SESSION_MS = 20_000  # of who must not lose its session on a busy machine

# A broker process that registers itself. "inside": it stops itself inside a change.
PROCESS = """
import asyncio, os, signal, sys, time
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.runtime.env import real
from barnabas.runtime.ports import DirectoryLock
from barnabas.runtime.processes import identify

async def main():
    session = EmbeddedCoordination(real(), sys.argv[1], int(sys.argv[3]))
    session.on_session_expired(lambda: print("expired", flush=True))
    await session.start()
    await session.create("/ids/1", b"here", ephemeral=True, make_parents=True)
    print("registered", flush=True)
    if sys.argv[2] == "inside":
        await session._change(lambda file: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(3600)))
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Registered:
    """A process with a session, and a session of this process that watches it."""

    def __init__(self, path: Path, session_ms: int) -> None:
        words = [sys.executable, "-c", PROCESS, str(path), "outside", str(session_ms)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.heard() == "registered"
        self.session = EmbeddedCoordination(real(), str(path), session_ms)

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    async def gone(self) -> None:
        """Wait until its node is gone."""
        gone = asyncio.Event()
        if await self.session.exists("/ids/1", lambda event: gone.set()) is not None:
            await asyncio.wait_for(gone.wait(), 30)

    async def end(self) -> None:
        await self.session.close()
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_killed_and_a_stopped_process_are_dead(tmp_path: Path, sent: signal.Signals) -> None:
    other = Registered(tmp_path / "tree", 1000)
    try:
        await other.session.start()
        other.process.send_signal(sent)
        await other.gone()
        if sent == signal.SIGSTOP:
            other.process.send_signal(signal.SIGCONT)
            assert other.heard() == "expired"
    finally:
        await other.end()


async def test_a_process_that_is_stopped_for_a_moment_stays(tmp_path: Path) -> None:
    other = Registered(tmp_path / "tree", LONG_SESSION_MS)
    try:
        await other.session.start()
        stat = await other.session.exists("/ids/1")
        for _ in range(5):
            other.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.05)
            other.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        assert await other.session.exists("/ids/1") == stat
    finally:
        await other.end()


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux tells who holds a lock")
async def test_a_process_that_is_stopped_inside_a_change_is_ended_with_its_session(
    tmp_path: Path,
) -> None:
    other = Registered(tmp_path / "tree", LONG_SESSION_MS)
    await other.session.start()
    stopped = subprocess.Popen(
        [sys.executable, "-c", PROCESS.replace("/ids/1", "/ids/2"), str(tmp_path / "tree"), "inside", "1000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "registered\n"
        while stopped.poll() is None:
            await asyncio.sleep(0.01)
        assert stopped.returncode == -signal.SIGKILL
        while await other.session.exists("/ids/2") is not None:
            await asyncio.sleep(0.01)
        await other.session.create("/a")
        assert await other.session.exists("/ids/1") is not None
        assert other.process.poll() is None
    finally:
        stopped.kill()
        stopped.wait()
        await other.end()


@embedded_only
async def test_a_tree_that_can_be_used_now_and_then_is_said_now_and_then(
    tree: Tree, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await started(tree)
    look, looks = session._look, iter(range(10**6))

    def every_second(file: Any, now_ms: float) -> None:
        if next(looks) % 2:
            raise OSError(24, "Too many open files")
        look(file, now_ms)

    monkeypatch.setattr(session, "_look", every_second)
    await tree.clock.sleep(2.5 * embedded.UNREADABLE_SAID_MS)
    assert caplog.text.count("cannot be used now, trying again: [Errno 24] Too many open files") == 3
