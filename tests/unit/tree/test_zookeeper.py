"""The tree in a real ZooKeeper: lost connections, silent sessions, access lists, large reads."""

import asyncio
import itertools
import logging
import time
from typing import Any

import pytest
from barnabas.cluster.tree.port import (
    Check,
    ConnectionLossError,
    CoordinationError,
    Create,
    EventType,
    MultiError,
    NoNodeError,
    SessionExpiredError,
    Set,
    WatchEvent,
)

pytest.importorskip("kazoo", reason="kazoo is not installed")

from barnabas.cluster.tree.zookeeper import ZooKeeperCoordination
from barnabas.cluster.tree.zookeeper_settings import ZooKeeperSettings, split_connect
from kazoo.client import KazooClient
from ports import free_port

NUMBERS = itertools.count()


@pytest.fixture
def tree(zookeeper: Any) -> Any:
    """An empty tree in ZooKeeper."""
    from zookeeper_tree import ZooKeeperTree

    return ZooKeeperTree(zookeeper, f"/alone/{next(NUMBERS)}")


async def until(condition: Any) -> None:
    """Wait until it holds; the time-out of the test ends a wait that is in vain."""
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_lost_request_was_not_done(tree: Any) -> None:
    session = await tree.session()
    tree.proxy_of(session).lose_requests = 1
    with pytest.raises(ConnectionLossError):
        await session.create("/a")
    assert await session.exists("/a") is None


async def test_a_lost_answer_is_of_a_write_that_was_done(tree: Any) -> None:
    session = await tree.session()
    _, made = await session.create("/a", b"0")
    proxy = tree.proxy_of(session)
    proxy.lose_answers = 1
    with pytest.raises(ConnectionLossError):
        await session.set("/a", b"1", 0)
    data, stat = await session.get("/a")
    assert (data, stat.version) == (b"1", made.version + 1)
    proxy.lose_answers = 1
    with pytest.raises(ConnectionLossError):
        await session.multi([Check("/a", 1), Create("/b"), Set("/a", b"2", 1)])
    assert [node and node[0] for node in await session.get_many(["/a", "/b"])] == [b"2", b""]


async def test_lost_reads_are_done_again(tree: Any) -> None:
    session = await tree.session()
    await session.create("/a", b"x")
    proxy = tree.proxy_of(session)
    for lost in range(3):
        proxy.lose_requests, proxy.lose_answers = lost % 2, lost // 2
        assert (await session.get("/a"))[0] == b"x"
        proxy.lose_requests, proxy.lose_answers = lost // 2, lost % 2
        assert await session.children("/") == ["a"]
    proxy.lose_answers = 2
    assert [node and node[0] for node in await session.get_many(["/a"] * 50)] == [b"x"] * 50


async def test_a_disconnection_tells_every_watch_once(tree: Any) -> None:
    session, other = await tree.session(), await tree.session()
    await session.create("/a/b", b"0", make_parents=True)
    told: list[WatchEvent] = []
    await session.get("/a/b", told.append)
    await session.exists("/a/new", told.append)
    await session.children("/a", told.append)
    await session.get_many(["/a"], told.append)
    session_id = session.session_id
    tree.proxy_of(session).cut()
    await until(lambda: told)
    await tree.settle()
    lost = [
        WatchEvent(EventType.DATA, "/a/b"),
        WatchEvent(EventType.DATA, "/a/new"),
        WatchEvent(EventType.CHILDREN, "/a"),
        WatchEvent(EventType.DATA, "/a"),
    ]
    assert told == lost
    assert session.session_id == session_id
    await other.set("/a/b", b"1")
    await other.create("/a/new")
    await tree.settle()
    assert told == lost, "each watch is told once"
    assert (await session.get("/a/b", told.append))[0] == b"1"
    await other.set("/a/b", b"2")
    await tree.settle()
    assert told[4:] == [WatchEvent(EventType.DATA, "/a/b")]


async def test_operations_wait_for_the_connection(tree: Any) -> None:
    session = await tree.session()
    proxy = tree.proxy_of(session)
    proxy.accepts = False
    proxy.cut()
    await until(lambda: not session._is_connected)
    write = asyncio.ensure_future(session.create("/a", b"late"))
    read = asyncio.ensure_future(session.exists("/b"))
    await asyncio.sleep(0.05)
    assert not write.done()
    proxy.accepts = True
    assert (await write)[0] == "/a"
    assert await read is None


async def test_a_server_that_takes_a_connection_and_never_answers_is_asked_again_within_the_session(tree: Any) -> None:
    session = await tree.session()
    session_id = session.session_id
    proxy = tree.proxy_of(session)
    proxy.silent = 2
    proxy.cut()
    await until(lambda: not session._is_connected)
    await session.create("/a")
    assert proxy.silent == 0
    assert session.session_id == session_id


async def test_a_silent_session_counts_as_lost_even_if_the_server_keeps_it(tree: Any) -> None:
    session, other = await tree.session(), await tree.session()
    await session.create("/e", ephemeral=True)
    told: list[WatchEvent] = []
    await session.get("/e", told.append)
    old, expired = session.session_id, []
    session.on_session_expired(lambda: expired.append(session.session_id))
    session.session_timeout_ms = 100.0  # the server grants more
    proxy = tree.proxy_of(session)
    proxy.accepts = False
    proxy.cut()
    await until(lambda: session._is_lost)
    for operation in (session.exists("/e"), session.set("/e", b""), session.confirm()):
        with pytest.raises(SessionExpiredError):
            await operation
    assert tree.server.has_session(old)
    assert expired == []
    proxy.accepts = True
    await until(lambda: expired)
    assert expired == [session.session_id]
    assert session.session_id != old
    await until(lambda: not tree.server.has_session(old))
    assert await other.exists("/e") is None
    assert told == []
    assert session.session_timeout_ms > 1_000
    await session.create("/e", ephemeral=True)


async def test_who_waits_when_the_session_is_lost_is_told(tree: Any) -> None:
    session = await tree.session()
    session.session_timeout_ms = 100.0
    proxy = tree.proxy_of(session)
    proxy.held = asyncio.Event()
    under_way = asyncio.ensure_future(session.create("/a"))
    await asyncio.sleep(0.05)
    proxy.accepts = False
    proxy.cut()
    with pytest.raises(ConnectionLossError):
        await under_way
    await until(lambda: not session._is_connected)
    read = asyncio.ensure_future(session.exists("/a"))
    with pytest.raises(SessionExpiredError):
        await read
    proxy.held = None
    proxy.accepts = True
    await until(lambda: session._is_connected)


async def test_an_expiry_behind_a_cut_connection_is_told(tree: Any) -> None:
    session, other = await tree.session(), await tree.session()
    await session.create("/e", ephemeral=True)
    old, expired = session.session_id, []
    session.on_session_expired(lambda: expired.append(session.session_id))
    proxy = tree.proxy_of(session)
    proxy.accepts = False
    proxy.cut()
    await until(lambda: not tree.server.has_session(old))
    assert await other.exists("/e") is None
    proxy.accepts = True
    await until(lambda: expired)
    assert expired == [session.session_id]
    assert session.last_confirmed_ms > 0
    await session.create("/e", ephemeral=True)


async def test_the_session_of_a_loop_that_stands_still_ends(tree: Any) -> None:
    session = ZooKeeperCoordination(tree.env, tree.settings(tree.server.address, session_timeout_ms=1_000.0))
    await session.start()
    other = await tree.session()
    await session.create("/e", ephemeral=True)
    old, expired = session.session_id, []
    session.on_session_expired(lambda: expired.append(session.session_id))
    while tree.server.has_session(old):
        time.sleep(0.02)  # the loop stands still, and kazoo's thread goes on
    assert expired == []
    await until(lambda: expired)
    assert session.session_id not in (0, old)
    assert await other.exists("/e") is None
    await session.create("/e", ephemeral=True)
    await session.close()


async def test_a_confirmation_counts_from_when_it_was_sent(tree: Any) -> None:
    session = await tree.session()
    proxy = tree.proxy_of(session)
    proxy.held = asyncio.Event()
    confirmation = asyncio.ensure_future(session.confirm())
    await asyncio.sleep(0.02)
    sent_before_ms = tree.clock.monotonic_ms()
    proxy.held.set()
    await confirmation
    assert session.last_confirmed_ms <= sent_before_ms


async def test_a_session_confirms_itself(tree: Any) -> None:
    session = await tree.session(session_timeout_ms=1_000.0)
    first_ms = session.last_confirmed_ms
    await until(lambda: session.last_confirmed_ms > first_ms)


async def test_reads_do_not_confirm_a_session(tree: Any) -> None:
    session = await tree.session()
    before_ms = session.last_confirmed_ms
    await session.exists("/")
    await session.children("/")
    assert session.last_confirmed_ms == before_ms
    await session.create("/a")
    assert session.last_confirmed_ms > before_ms


async def test_a_session_lasts_as_long_as_the_server_grants(tree: Any) -> None:
    session = await tree.session(session_timeout_ms=3_600_000.0)
    assert session.session_timeout_ms == 60_000


async def test_a_multi_names_the_operation_that_failed_and_why(tree: Any) -> None:
    session = await tree.session()
    with pytest.raises(MultiError) as error:
        await session.multi([Create("/a"), Create("/none/b"), Create("/c")])
    assert error.value.index == 1
    assert isinstance(error.value.cause, NoNodeError)
    assert error.value.cause.path == "/none"
    results = await session.multi([Create("/s"), Create("/s/", sequential=True), Create("/s/x_", sequential=True)])
    assert results == ["/s", "/s/0000000000", "/s/x_0000000001"]


async def test_a_broker_epoch_is_in_the_second_result_of_its_registration(tree: Any) -> None:
    session = await tree.session()
    results = await session.multi([Create("/id", b"x", ephemeral=True), Set("/id", b"x", 0)])
    assert results[1] == (await session.get("/id"))[1]
    assert results[1].ephemeral_owner == session.session_id
    assert results[1].version == 1


async def test_a_multi_beyond_what_the_server_takes_is_refused(tree: Any) -> None:
    session = await tree.session()
    with pytest.raises(ValueError):
        await session.multi([Create("/a", bytes(600_000)), Create("/b", bytes(600_000))])
    assert await session.children("/") == []


async def test_large_reads(tree: Any) -> None:
    session = await tree.session(session_timeout_ms=60_000.0)  # a busy machine takes seconds for 3,000 nodes
    names = [f"{number:06}-{'n' * 100}" for number in range(12_000)]
    for start in range(0, len(names), 3_000):
        await session.multi([Create(f"/{name}") for name in names[start : start + 3_000]])
    children = await session.children("/")
    assert children == names
    assert sum(map(len, children)) > 1 << 20
    found = await session.get_many([f"/{name}" for name in names[:2_000]] + ["/none"])
    assert [node is not None for node in found] == [True] * 2_000 + [False]
    await session.delete_recursive("/" + names[0])
    assert len(await session.children("/")) == len(names) - 1


async def test_an_empty_node_has_no_data_as_kafkas_have(tree: Any) -> None:
    session = await tree.session()
    await session.create("/a")
    await session.multi([Create("/b")])
    plain = KazooClient(f"{tree.server.address}{tree.chroot}")
    await asyncio.to_thread(plain.start)
    try:
        assert [(await asyncio.to_thread(plain.get, path))[0] for path in ("/a", "/b")] == [None, None]
    finally:
        await asyncio.to_thread(plain.stop)


async def test_access_lists_are_kafkas(tree: Any) -> None:
    session = await tree.session(set_acl=True, digest="barnabas:secret")
    for path in ("/config/users/u", "/config/topics/t", "/consumers/g", "/brokers/ids"):
        await session.create(path, b"x", make_parents=True)
    await session.multi([Create("/config/brokers"), Create("/brokers/ids/1", b"x", ephemeral=True)])
    plain = KazooClient(f"{tree.server.address}{tree.chroot}")
    await asyncio.to_thread(plain.start)

    async def rights(path: str) -> dict[str, int]:
        lists, _ = await asyncio.to_thread(plain.get_acls, path)
        return {f"{one.id.scheme}:{one.id.id.partition(':')[0]}": one.perms for one in lists}

    try:
        everything, read = 31, 1
        assert await rights("/consumers/g") == {"world:anyone": everything}
        for path in ("/config/topics/t", "/config", "/brokers/ids", "/brokers/ids/1"):
            assert await rights(path) == {"digest:barnabas": everything, "world:anyone": read}, path
        whole = KazooClient(f"{tree.server.address}{tree.chroot}", auth_data=[("digest", "barnabas:secret")])
        await asyncio.to_thread(whole.start)
        try:
            for path in ("/config/users", "/config/users/u", "/config/brokers"):
                lists, _ = await asyncio.to_thread(whole.get_acls, path)
                assert [one.id.scheme for one in lists] == ["digest"], path
        finally:
            await asyncio.to_thread(whole.stop)
    finally:
        await asyncio.to_thread(plain.stop)
    stranger = await tree.session()
    assert (await stranger.get("/config/topics/t"))[0] == b"x"
    with pytest.raises(CoordinationError, match="does not allow"):
        await stranger.set("/config/topics/t", b"y")
    with pytest.raises(CoordinationError, match="does not allow"):
        await stranger.get("/config/users/u")
    tree.proxy_of(session).cut()  # the credentials are told again with each connection
    await until(lambda: not session._is_connected)
    await session.set("/config/users/u", b"y")


async def test_nothing_is_made_where_the_chroot_was_deleted(tree: Any) -> None:
    """It tried for ever before, and a broker could not be stopped."""
    session = await tree.session()
    await session.create("/a")
    plain = KazooClient(tree.server.address)
    await asyncio.to_thread(plain.start)
    try:
        await asyncio.to_thread(plain.delete, tree.chroot, recursive=True)
        with pytest.raises(NoNodeError):
            await asyncio.wait_for(session.create("/b/c/d", make_parents=True), 20)
        assert await asyncio.to_thread(plain.exists, tree.chroot) is None
    finally:
        await asyncio.to_thread(plain.stop)


async def test_a_look_leaves_nothing_behind(tree: Any) -> None:
    looker = tree.unstarted()
    await looker.look()
    session_id = looker._kazoo_session_id
    assert tree.server.has_session(session_id)
    await looker.close()
    assert not tree.server.has_session(session_id)
    plain = KazooClient(tree.server.address)
    await asyncio.to_thread(plain.start)
    try:
        assert await asyncio.to_thread(plain.exists, tree.chroot) is None
    finally:
        await asyncio.to_thread(plain.stop)


async def test_who_cannot_reach_zookeeper_is_told_where_it_was_sought(tree: Any) -> None:
    address = f"127.0.0.1:{free_port()}"
    for reach in ("look", "start"):
        session = ZooKeeperCoordination(tree.env, ZooKeeperSettings(address, connection_timeout_ms=100.0))
        with pytest.raises(ConnectionLossError, match=address):
            await getattr(session, reach)()
        with pytest.raises(SessionExpiredError):
            await session.exists("/")


async def test_the_next_of_several_addresses_is_tried(tree: Any) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    session = ZooKeeperCoordination(tree.env, tree.settings(f"{nobody},{tree.server.address}"))
    await session.start()
    await session.create("/a")
    await session.close()


async def test_close_says_nothing_of_a_lost_connection(tree: Any, caplog: Any) -> None:
    session = await tree.session()
    with caplog.at_level(logging.WARNING):
        await session.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("a:1", ("a:1", "")),
        ("a:1,b:2/", ("a:1,b:2", "")),
        (" a:1,b:2/kafka/one/ ", ("a:1,b:2", "/kafka/one")),
    ],
)
def test_a_chroot_follows_the_addresses(connect: str, expected: tuple[str, str]) -> None:
    assert split_connect(connect) == expected


def test_a_chroot_is_a_path() -> None:
    with pytest.raises(ValueError):
        split_connect("a:1/b//c")


async def test_what_is_larger_than_zookeeper_takes_is_not_sent(tree: Any) -> None:
    """The server would close the connection, again and again, until the session is over."""
    session = await tree.session()
    await session.create("/a", b"0")
    large = bytes(1_100_000)
    for write in (
        session.create("/b", large),
        session.set("/a", large),
        session.multi([Set("/a", b"1"), Create("/b", large)]),
    ):
        with pytest.raises(CoordinationError, match=r"jute\.maxbuffer"):
            await write
    assert (await session.get("/a"))[0] == b"0"
    await session.set("/a", bytes(999_000))
