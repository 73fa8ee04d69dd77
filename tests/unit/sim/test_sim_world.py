import asyncio

import pytest
from simulator.disk import PowerLoss
from simulator.env import sim_env


def test_advance_runs_calls_in_order_of_time_and_then_of_asking():
    clock = sim_env().clock
    calls = []
    clock.call_later(10, lambda: calls.append("b"))
    clock.call_later(5, lambda: calls.append("a"))
    clock.call_later(10, lambda: (calls.append("c"), clock.call_soon(lambda: calls.append("soon"))))
    clock.call_later(10, lambda: calls.append("d"))
    clock.call_later(11, lambda: calls.append("too late"))
    clock.call_later(7, lambda: calls.append("never")).cancel()
    start = clock.now_ms()
    clock.advance(10)
    assert calls == ["a", "b", "c", "d", "soon"]
    assert clock.now_ms() == start + 10


def test_many_timers_of_one_instant_keep_their_order():
    clock = sim_env().clock
    calls = []
    for number in range(100):
        clock.call_later(3, lambda number=number: calls.append(number))
    clock.advance(3)
    assert calls == list(range(100))


def test_wall_and_monotonic_clock_are_far_apart_and_only_one_can_be_set():
    clock = sim_env().clock
    assert clock.now_ms() - clock.monotonic_ms() > 10**12
    monotonic = clock.monotonic_ms()
    wall = clock.now_ms()
    clock.step_wall_clock(-5000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (wall - 5000, monotonic)


def test_coroutines_sleep_hours_in_no_time_and_a_deadlock_is_an_error():
    env = sim_env()

    async def main():
        await asyncio.gather(env.clock.sleep(3_600_000), env.clock.sleep(10))
        return await asyncio.wait_for(asyncio.sleep(1, "slept"), 2)

    start = env.clock.monotonic_ms()
    assert env.run(main()) == "slept"
    assert env.clock.monotonic_ms() - start == 3_601_000
    with pytest.raises(RuntimeError, match="deadlock"):
        env.run(asyncio.Event().wait())


def test_crash_forgets_content_that_was_not_synced():
    disk = sim_env().disk
    disk.make_directory("/d")
    disk.sync_directory("/")
    file = disk.open("/d/a", create=True)
    file.write(0, b"stable")
    file.sync()
    disk.sync_directory("/d")
    file.write(6, b" lost")
    file.write(0, b"S")
    assert file.read(0, 99) == b"Stable lost"
    disk.crash()
    with pytest.raises(OSError):
        file.read(0, 1)
    assert disk.open("/d/a").read(0, 99) == b"stable"


def test_crash_forgets_names_that_were_not_synced():
    disk = sim_env().disk
    disk.make_directory("/d")
    disk.sync_directory("/")
    for name in "ab":
        disk.open(f"/d/{name}", create=True).sync()
    disk.sync_directory("/d")
    disk.open("/d/new", create=True).sync()
    disk.rename("/d/a", "/d/renamed")
    disk.remove("/d/b")
    disk.crash()
    assert disk.list_directory("/d") == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_torn_crash_keeps_a_prefix_of_the_changes(seed):
    disk = sim_env(seed).disk
    file = disk.open("/a", create=True)
    disk.sync_directory("/")
    for index in range(10):
        file.write(index * 3, b"%03d" % index)
    disk.crash("torn")
    left = disk.open("/a").read(0, 99)
    assert b"".join(b"%03d" % index for index in range(10)).startswith(left)


def test_kept_crash_keeps_everything():
    disk = sim_env().disk
    disk.open("/a", create=True).write(0, b"x")
    disk.crash("kept")
    assert disk.open("/a").read(0, 9) == b"x"


@pytest.mark.parametrize("seed", range(20))
def test_torn_crash_leaves_a_renamed_file_under_one_of_its_names(seed):
    disk = sim_env(seed).disk
    disk.open("/source", create=True).sync()
    disk.sync_directory("/")
    disk.rename("/source", "/target")
    disk.crash("torn")
    assert disk.list_directory("/") in (["source"], ["target"])


def test_power_is_lost_at_a_chosen_change():
    disk = sim_env().disk
    file = disk.open("/a", create=True)
    disk.lose_power_at(disk.operations + 1)
    file.write(0, b"x")
    with pytest.raises(PowerLoss):
        file.write(1, b"y")
    with pytest.raises(PowerLoss):
        disk.sync_directory("/")
    disk.crash("kept")
    assert disk.open("/a").read(0, 9) == b"x"


def test_an_operation_fails_as_often_as_asked():
    disk = sim_env().disk
    file = disk.open("/a", create=True)
    disk.fail("sync", "/a")
    with pytest.raises(OSError):
        file.sync()
    file.sync()


def test_background_sync_covers_what_was_written_before_it_was_asked():
    env = sim_env()
    disk = env.disk
    file = disk.open("/a", create=True)
    disk.sync_directory("/")
    file.write(0, b"one")
    results = []
    disk.sync_in_background([file], results.append)
    file.write(3, b"two")
    assert results == []
    env.clock.advance(1)
    assert results == [None]
    disk.crash()
    assert disk.open("/a").read(0, 9) == b"one"


def test_locks_exclude_until_released_or_the_machine_stops():
    disk = sim_env().disk
    disk.lock("/l").release()
    disk.lock("/l")
    with pytest.raises(BlockingIOError):
        disk.lock("/l")
    disk.crash()
    disk.lock("/l")


class Recorder(asyncio.Protocol):
    def __init__(self):
        self.events = []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.events.append(data)

    def connection_lost(self, exc):
        self.events.append(exc)

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")


def connected(env, server_factory=Recorder):
    servers = []

    def accept():
        servers.append(server_factory())
        return servers[-1]

    async def connect():
        listener = await env.network.listen("127.0.0.1", 0, accept, 8)
        await listener.accept()
        return await env.network.connect("127.0.0.1", listener.port, Recorder)

    _, client = env.run(connect())
    return client, servers[0]


def test_bytes_arrive_in_order_later_and_then_the_end():
    env = sim_env()
    client, server = connected(env)
    client.transport.write(b"one")
    client.transport.write(b"two")
    assert server.events == []
    client.transport.close()
    env.clock.advance(1)
    assert server.events == [b"one", b"two", None]
    assert client.events == [None]


def test_a_paused_reader_pauses_the_writer():
    env = sim_env()
    client, server = connected(env)
    server.transport.pause_reading()
    client.transport.set_write_buffer_limits(high=10)
    client.transport.write(b"x" * 11)
    env.clock.advance(1)
    assert client.events == ["pause"]
    assert client.transport.get_write_buffer_size() == 11
    server.transport.resume_reading()
    env.clock.advance(1)
    assert client.events == ["pause", "resume"]
    assert server.events == [b"x" * 11]


def test_buffered_protocol_is_fed_through_its_own_buffer():
    env = sim_env()

    class Buffered(asyncio.BufferedProtocol):
        def __init__(self):
            self.buffer = bytearray(3)
            self.events = []

        def get_buffer(self, sizehint):
            return self.buffer

        def buffer_updated(self, nbytes):
            self.events.append(bytes(self.buffer[:nbytes]))

    client, server = connected(env, Buffered)
    client.transport.write(b"abcdefgh")
    env.clock.advance(1)
    assert server.events == [b"abc", b"def", b"gh"]


def test_connecting_to_nobody_is_refused_and_an_address_is_taken_once():
    env = sim_env()
    with pytest.raises(ConnectionRefusedError):
        env.run(env.network.connect("127.0.0.1", 9092, Recorder))
    env.run(env.network.listen("127.0.0.1", 9092, Recorder, 8))
    with pytest.raises(OSError, match="in use"):
        env.run(env.network.listen("0.0.0.0", 9092, Recorder, 8))


def test_the_same_seed_gives_the_same_world():
    assert sim_env(3).random_uuid() == sim_env(3).random_uuid()
    assert sim_env(3).random_uuid() != sim_env(4).random_uuid()
