import asyncio
import errno
import os
import subprocess
import sys
import time

import pytest
from barnabas.runtime.clock import roundest
from barnabas.runtime.env import real
from barnabas.runtime.pending import Pending


def test_file_reads_what_was_written_and_knows_its_size(tmp_path):
    disk = real().disk
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write(0, b"hello")
    file.write(file.size(), memoryview(b" world"))
    assert file.read(0, 100) == b"hello world"
    assert file.read(4, 3) == b"o w"
    file.truncate(5)
    file.sync()
    assert (file.size(), disk.file_size(f"{tmp_path}/a")) == (5, 5)
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.read(0, 1)


def test_the_clock_that_counts_sleep_goes_on_as_the_monotonic_one():
    clock = real().clock
    ahead_ms = clock.elapsed_ms() - clock.monotonic_ms()
    time.sleep(0.05)
    assert clock.elapsed_ms() - clock.monotonic_ms() == pytest.approx(ahead_ms, abs=40)


def test_missing_file_is_an_error_without_create(tmp_path):
    with pytest.raises(FileNotFoundError):
        real().disk.open(f"{tmp_path}/none")


def test_tree_operations(tmp_path):
    disk = real().disk
    folder = f"{tmp_path}/x/y"
    disk.make_directory(folder)
    disk.make_directory(folder)
    disk.open(f"{folder}/b", create=True).close()
    disk.open(f"{folder}/a", create=True).close()
    assert disk.list_directory(folder) == ["a", "b"]
    disk.rename(f"{folder}/a", f"{folder}/b")
    disk.sync_directory(folder)
    assert disk.list_directory(folder) == ["b"]
    disk.set_modified_ms(f"{folder}/b", 1_234_567)
    assert disk.modified_ms(f"{folder}/b") == 1_234_567
    disk.remove_tree(f"{tmp_path}/x")
    disk.remove_tree(f"{tmp_path}/x")
    assert not disk.exists(folder)


@pytest.mark.parametrize("kind", ["there", "mounted", "missing"])
def test_a_folder_that_is_a_link_is_removed_with_what_is_in_it(tmp_path, monkeypatch, kind):
    """Until 2026-11-30 a deleted log that an operator had put on another disk took room there for ever."""
    disk, place, link = real().disk, tmp_path / "disk" / "t-0", tmp_path / "t-0"
    link.symlink_to(place)
    if kind != "missing":
        disk.make_directory(str(place))
        disk.open(f"{link}/a", create=True).close()
    if kind == "mounted":
        really = os.rmdir

        def rmdir(path, **options):
            if os.path.samefile(path, place):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            really(path, **options)

        monkeypatch.setattr(os, "rmdir", rmdir)
    disk.remove_tree(str(link))
    assert os.listdir(tmp_path) == ([] if kind == "missing" else ["disk"])
    assert kind == "missing" or list((tmp_path / "disk").rglob("*")) == ([place] if kind == "mounted" else [])


def test_lock_excludes_this_process_and_others(tmp_path):
    disk = real().disk
    path = f"{tmp_path}/.lock"
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    attempt = "import sys\nfrom barnabas.runtime.env import real\nreal().disk.lock(sys.argv[1])"
    other = subprocess.run([sys.executable, "-c", attempt, path], capture_output=True, text=True, timeout=200)
    assert "BlockingIOError" in other.stderr
    lock.release()
    lock.release()
    disk.lock(path).release()


ASK = """
import sys
from barnabas.runtime.env import real
disk = real().disk
print("ready", flush=True)
sys.stdin.readline()
print(sum(disk.is_locked(sys.argv[1]) for _ in range(20_000)))
"""


def test_who_asks_for_a_lock_does_not_hold_it(tmp_path):
    """Two brokers that start together ask for the same dead session, and must not take each other for it."""
    disk = real().disk
    path = f"{tmp_path}/.lock"
    with pytest.raises(FileNotFoundError):
        disk.is_locked(path)
    lock = disk.lock(path)
    assert disk.is_locked(path)
    assert disk.is_locked(path), "to ask does not take away this process's own lock"
    command = [sys.executable, "-c", ASK, path]
    two = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for released in (False, True):
            if released:
                lock.release()
            assert disk.is_locked(path) is not released
        for one in two:
            assert one.stdout.readline() == "ready\n"
        for one in two:
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=200)[0] for one in two] == ["0\n", "0\n"]
    finally:
        for one in two:
            one.kill()
            one.wait()


def test_background_sync_reports_on_the_loop_even_when_the_file_is_closed_meanwhile(tmp_path):
    async def main():
        disk = real().disk
        file = disk.open(f"{tmp_path}/a", create=True)
        file.write(0, b"x")
        result = asyncio.get_running_loop().create_future()
        disk.sync_in_background([file], result.set_result)
        file.close()
        assert await asyncio.wait_for(result, 5) is None
        result = asyncio.get_running_loop().create_future()
        disk.sync_in_background([file], result.set_result)
        assert isinstance(await asyncio.wait_for(result, 5), OSError)

    asyncio.run(main())


def test_listen_on_a_free_port_and_connect():
    async def main():
        network = real().network
        received = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def data_received(self, data):
                received.set_result(data)

        listener = await network.listen("127.0.0.1", 0, Server, 16)
        await listener.accept()
        assert listener.port > 0
        transport, _ = await network.connect("127.0.0.1", listener.port, asyncio.Protocol)
        transport.write(b"hi")
        assert await asyncio.wait_for(received, 5) == b"hi"
        transport.close()
        listener.close()

    asyncio.run(main())


def test_clock_calls_on_the_running_loop():
    async def main():
        clock = real().clock
        calls = []
        clock.call_soon(lambda: calls.append("soon"))
        clock.call_later(1, lambda: calls.append("later"))
        clock.call_later(1, lambda: calls.append("never")).cancel()
        start = clock.monotonic_ms()
        await clock.sleep(20)
        assert calls == ["soon", "later"]
        assert clock.monotonic_ms() > start

    asyncio.run(main())


def test_pending_completes_once_and_calls_its_observer():
    pending = Pending()
    seen = []
    pending.then(seen.append)
    pending.complete(7)
    assert seen == [7]
    with pytest.raises(AssertionError):
        pending.complete(8)


def test_pending_that_was_completed_with_none_still_calls_a_late_observer():
    pending = Pending()
    pending.complete(None)
    seen = []
    pending.then(seen.append)
    assert seen == [None]


def test_cancelled_pending_tells_its_owner_and_ignores_completion():
    pending = Pending()
    dropped = []
    pending.on_cancel = lambda: dropped.append(1)
    pending.cancel()
    pending.cancel()
    pending.complete(1)
    assert dropped == [1]


@pytest.mark.parametrize(("due_ms", "slack_ms", "called_ms"), [(1_000, 250, 1_024), (1_024, 250, 1_024), (3, 1, 4)])
def test_what_may_be_called_later_is_called_at_a_round_time(due_ms: int, slack_ms: int, called_ms: int) -> None:
    assert roundest(due_ms, slack_ms) == called_ms


def test_what_is_repeated_is_called_together_after_a_while() -> None:
    """So an idle broker wakes up eight times a second, and not for each of its tasks."""
    times = {start_ms: start_ms for start_ms in range(90_001, 90_128, 7)}
    for _ in range(40):
        times = {start_ms: roundest(time_ms + 1_000, 250) for start_ms, time_ms in times.items()}
        assert all(time_ms % 128 == 0 for time_ms in times.values())
    for due_ms in range(1, 2_000, 7):
        for slack_ms in (1, 28, 100, 250):
            assert due_ms <= roundest(due_ms, slack_ms) <= due_ms + slack_ms
