"""What every implementation of the Coordination port must do."""

import math
from typing import Any

import pytest
from barnabas.cluster.tree.port import (
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    EventType,
    MultiError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    Set,
    Stat,
    WatchEvent,
)

Tree = Any


class Events(list[WatchEvent]):
    """A watch that remembers what it was told."""

    def __call__(self, event: WatchEvent) -> None:
        self.append(event)


# Nodes


async def test_a_created_node_is_read_back(tree: Tree) -> None:
    session = await tree.session()
    before = tree.clock.now_ms()
    path, stat = await session.create("/a", b"data")
    assert path == "/a"
    assert await session.get("/a") == (b"data", stat)
    assert stat.czxid == stat.mzxid > 0
    assert stat.ctime_ms == stat.mtime_ms
    assert stat.ctime_ms >= before
    assert (stat.version, stat.cversion, stat.ephemeral_owner, stat.num_children) == (0, 0, 0, 0)


async def test_create_needs_a_parent_and_a_free_name(tree: Tree) -> None:
    session = await tree.session()
    with pytest.raises(NoNodeError) as missing:
        await session.create("/a/b")
    assert missing.value.path == "/a"
    await session.create("/a")
    with pytest.raises(NodeExistsError):
        await session.create("/a", b"again")
    assert (await session.get("/a"))[0] == b""


async def test_create_makes_parents_when_asked(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a/b/c", b"x", make_parents=True)
    await session.create("/a/b/d", b"y", make_parents=True)
    assert await session.children("/a/b") == ["c", "d"]
    assert (await session.get("/a/b"))[0] == b""


async def test_failing_create_with_parents_leaves_nothing(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        await session.create("/e/a/b", make_parents=True)
    assert await session.children("/") == ["e"]


async def test_root_exists_and_lists_its_children(tree: Tree) -> None:
    session = await tree.session()
    assert await session.children("/") == []
    await session.create("/b")
    await session.create("/a")
    assert await session.children("/") == ["a", "b"]
    stat = await session.exists("/")
    assert stat is not None
    assert stat.num_children == 2


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/.", "/a/..", "/a\0b"])
async def test_what_is_no_path_is_refused(tree: Tree, path: str) -> None:
    session = await tree.session()
    with pytest.raises(ValueError):
        await session.create(path)


async def test_set_counts_versions(tree: Tree) -> None:
    session = await tree.session()
    _, made = await session.create("/a", b"0")
    first = await session.set("/a", b"1", 0)
    second = await session.set("/a", b"2")
    assert (first.version, second.version) == (1, 2)
    assert made.czxid == second.czxid < first.mzxid < second.mzxid
    assert await session.get("/a") == (b"2", second)


async def test_set_and_delete_check_the_version(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a", b"0")
    await session.set("/a", b"1")
    for version in (0, 2):
        with pytest.raises(BadVersionError):
            await session.set("/a", b"no", version)
        with pytest.raises(BadVersionError):
            await session.delete("/a", version)
    assert (await session.get("/a"))[0] == b"1"
    await session.delete("/a", 1)
    assert await session.exists("/a") is None


async def test_missing_nodes_are_named(tree: Tree) -> None:
    session = await tree.session()
    for operation in (
        session.get("/a"),
        session.set("/a", b""),
        session.delete("/a"),
        session.delete_recursive("/a"),
        session.children("/a"),
    ):
        with pytest.raises(NoNodeError) as missing:
            await operation
        assert missing.value.path == "/a"
    assert await session.exists("/a") is None


async def test_node_with_children_stays(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a/b", make_parents=True)
    with pytest.raises(NotEmptyError):
        await session.delete("/a")
    await session.delete("/a/b")
    await session.delete("/a")


async def test_delete_recursive_takes_what_is_below_and_nothing_beside(tree: Tree) -> None:
    session = await tree.session()
    for path in ("/t/a/1/x", "/t/a/2", "/t/a-b", "/t/ab/1", "/t/A/1"):
        await session.create(path, make_parents=True)
    await session.delete_recursive("/t/a")
    assert await session.children("/t") == ["A", "a-b", "ab"]
    assert await session.children("/t/ab") == ["1"]
    assert await session.children("/t/A") == ["1"]


async def test_get_many_keeps_the_order_and_marks_the_missing(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a", b"1")
    await session.create("/b", b"2")
    found = await session.get_many(["/b", "/c", "/a"])
    assert [None if one is None else one[0] for one in found] == [b"2", None, b"1"]
    assert await session.get_many([]) == []


async def test_children_are_counted(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    for name in "xyz":
        await session.create(f"/a/{name}")
    await session.delete("/a/y")
    stat = await session.exists("/a")
    assert stat is not None
    assert (stat.num_children, stat.cversion, stat.version) == (2, 4, 0)


# Sequences


async def test_sequential_names_grow_and_are_never_used_again(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/s")
    first, _ = await session.create("/s/n_", sequential=True)
    await session.create("/s/other")
    second, _ = await session.create("/s/n_", b"x", sequential=True)
    await session.delete(second)
    third, _ = await session.create("/s/", sequential=True)
    assert first == "/s/n_0000000000"
    assert second == "/s/n_0000000002"
    assert third == "/s/0000000003"


# Ephemerals


async def test_ephemerals_belong_to_their_session_and_have_no_children(tree: Tree) -> None:
    session = await tree.session()
    _, stat = await session.create("/e", ephemeral=True)
    assert stat.ephemeral_owner == session.session_id > 0
    with pytest.raises(NoChildrenForEphemeralsError):
        await session.create("/e/child")


async def test_close_takes_the_ephemerals_and_leaves_the_rest(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    assert one.session_id != two.session_id
    await one.create("/ids")
    await one.create("/ids/1", ephemeral=True)
    await two.create("/ids/2", ephemeral=True)
    events = Events()
    await two.children("/ids", events)
    await one.close()
    await tree.settle()
    assert await two.children("/ids") == ["2"]
    assert events == [WatchEvent(EventType.CHILDREN, "/ids")]


async def test_a_killed_process_loses_its_ephemerals(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/e", ephemeral=True)
    events = Events()
    await two.exists("/e", events)
    await tree.kill(one)
    await tree.settle()
    assert events == [WatchEvent(EventType.DELETED, "/e")]
    assert await two.exists("/e") is None


async def test_a_living_session_keeps_its_ephemerals(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/e", ephemeral=True)
    for _ in range(5):
        await tree.settle()
    assert await two.exists("/e") is not None


async def test_sessions_of_the_dead_end_at_the_next_start(tree: Tree) -> None:
    one = await tree.session()
    await one.create("/e", ephemeral=True)
    await tree.kill(one)
    two = await tree.session()
    await two.create("/e", b"mine", ephemeral=True)
    assert two.session_id != one.session_id


async def test_operations_after_close_are_refused(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    await session.close()
    await session.close()
    with pytest.raises(SessionExpiredError):
        await session.get("/a")
    with pytest.raises(SessionExpiredError):
        await session.create("/b")


async def test_persistent_nodes_outlive_every_session(tree: Tree) -> None:
    one = await tree.session()
    _, made = await one.create("/a", b"x")
    await one.close()
    two = await tree.session()
    assert await two.get("/a") == (b"x", made)
    _, later = await two.create("/b")
    assert later.czxid > made.czxid  # also over restarts: it is a broker's epoch


async def test_an_expired_session_is_told_and_replaced(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/e", ephemeral=True)
    await one.create("/a")
    lost, events = one.session_id, Events()
    await one.get("/a", events)
    expired: list[int] = []
    one.on_session_expired(lambda: expired.append(one.session_id))
    await tree.expire(one, two)
    assert expired == [one.session_id]
    assert one.session_id not in (lost, two.session_id)
    assert await one.exists("/e") is None
    await two.set("/a", b"1")
    await tree.settle()
    assert events == []  # watches went with the session
    await one.create("/e", ephemeral=True)


async def test_a_session_is_confirmed_at_the_time_when_the_round_trip_was_sent(tree: Tree) -> None:
    session = tree.unstarted()
    assert session.last_confirmed_ms == -math.inf
    with pytest.raises(SessionExpiredError):
        await session.confirm()
    before_ms = tree.clock.monotonic_ms()
    await session.start()
    assert session.session_timeout_ms > 0
    assert before_ms <= session.last_confirmed_ms <= tree.clock.monotonic_ms()
    await tree.clock.sleep(100)
    before_ms = tree.clock.monotonic_ms()
    await session.confirm()
    assert before_ms <= session.last_confirmed_ms <= before_ms + tree.late_ms
    await session.close()
    assert session.last_confirmed_ms == -math.inf
    with pytest.raises(SessionExpiredError):
        await session.confirm()


async def test_a_new_session_is_confirmed_by_its_own_round_trips(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    before_ms = tree.clock.monotonic_ms()
    await tree.expire(one, two)
    assert before_ms <= one.last_confirmed_ms <= tree.clock.monotonic_ms()
    before_ms = tree.clock.monotonic_ms()
    await one.confirm()
    assert before_ms <= one.last_confirmed_ms <= before_ms + tree.late_ms


# Watches


async def test_a_data_watch_fires_once_and_not_inside_the_operation(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    events = Events()
    await session.get("/a", events)
    await session.set("/a", b"1")
    assert events == [] or tree.tells_before_it_answers
    await session.set("/a", b"2")
    await tree.settle()
    assert events == [WatchEvent(EventType.DATA, "/a")]


async def test_a_data_watch_tells_of_the_deletion_and_not_of_children(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    events = Events()
    await session.get("/a", events)
    await session.create("/a/b")
    await session.delete("/a/b")
    await tree.settle()
    assert events == []
    await session.delete("/a")
    await tree.settle()
    assert events == [WatchEvent(EventType.DELETED, "/a")]


async def test_exists_waits_for_the_creation(tree: Tree) -> None:
    session = await tree.session()
    events = Events()
    assert await session.exists("/a", events) is None
    await session.create("/a")
    await tree.settle()
    assert events == [WatchEvent(EventType.CREATED, "/a")]
    await session.exists("/a", events)
    await session.set("/a", b"1")
    await tree.settle()
    assert events[1:] == [WatchEvent(EventType.DATA, "/a")]


async def test_a_child_watch_tells_of_children_and_not_of_data_or_grandchildren(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a/b", make_parents=True)
    events = Events()
    await session.children("/a", events)
    await session.set("/a", b"1")
    await session.create("/a/b/c")
    await tree.settle()
    assert events == []
    await session.create("/a/d")
    await tree.settle()
    assert events == [WatchEvent(EventType.CHILDREN, "/a")]
    await session.children("/a", events)
    await session.delete("/a/d")
    await tree.settle()
    assert events[1:] == [WatchEvent(EventType.CHILDREN, "/a")]


async def test_a_child_watch_tells_of_the_nodes_own_deletion(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    events = Events()
    await session.children("/a", events)
    await session.delete("/a")
    await tree.settle()
    assert events == [WatchEvent(EventType.DELETED, "/a")]


async def test_get_many_leaves_one_watch_a_node(tree: Tree) -> None:
    session, other = await tree.session(), await tree.session()
    for path in ("/a", "/b", "/c"):
        await session.create(path)
    events = Events()
    await session.get_many(["/a", "/missing", "/b", "/c"], events)
    await other.set("/b", b"1")
    await other.create("/missing")
    await other.delete("/c")
    await tree.settle()
    assert events == [WatchEvent(EventType.DATA, "/b"), WatchEvent(EventType.DELETED, "/c")]
    await other.set("/b", b"2")
    await other.set("/a", b"1")
    await tree.settle()
    assert events[2:] == [WatchEvent(EventType.DATA, "/a")], "each fires once"


async def test_a_failed_read_leaves_no_watch(tree: Tree) -> None:
    session = await tree.session()
    events = Events()
    for read in (session.get, session.children):
        with pytest.raises(NoNodeError):
            await read("/a", events)
    await session.create("/a")
    await tree.settle()
    assert events == []


async def test_events_come_in_the_order_of_the_changes(tree: Tree) -> None:
    session = await tree.session()
    events = Events()
    for name in "abc":
        await session.exists(f"/{name}", events)
    await session.children("/", events)
    await session.multi([Create("/c"), Create("/a"), Create("/b")])
    await tree.settle()
    assert [(event.type, event.path) for event in events] == [
        (EventType.CREATED, "/c"),
        (EventType.CHILDREN, "/"),
        (EventType.CREATED, "/a"),
        (EventType.CREATED, "/b"),
    ]


async def test_a_watch_may_be_left_again_by_its_callback(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    seen: list[WatchEvent] = []

    async def look() -> None:
        await session.get("/a", again)

    def again(event: WatchEvent) -> None:
        seen.append(event)
        tree.clock.loop.create_task(look())

    await look()
    for number in range(3):
        await session.set("/a", str(number).encode())
        await tree.settle()
    assert seen == [WatchEvent(EventType.DATA, "/a")] * 3


# Several sessions


async def test_changes_of_one_session_reach_the_watches_of_another(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/a/gone", b"0", make_parents=True)
    data, made, children, gone, quiet = Events(), Events(), Events(), Events(), Events()
    await two.get("/a", data)
    await two.exists("/a/new", made)
    await two.children("/a", children)
    await two.get("/a/gone", gone)
    await two.exists("/a/never", quiet)
    await one.set("/a", b"1")
    await one.create("/a/new")
    await one.delete("/a/gone")
    await tree.settle()
    assert data == [WatchEvent(EventType.DATA, "/a")]
    assert made == [WatchEvent(EventType.CREATED, "/a/new")]
    assert children == [WatchEvent(EventType.CHILDREN, "/a")]
    assert gone == [WatchEvent(EventType.DELETED, "/a/gone")]
    assert quiet == []
    await one.set("/a", b"2")
    await tree.settle()
    assert len(data) == 1


async def test_the_deletion_of_a_whole_branch_reaches_the_watches_deep_in_it(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/a/b/c/d", make_parents=True)
    events, quiet = Events(), Events()
    await two.get("/a/b/c/d", events)
    await two.children("/a/b/c/d", events)
    await two.exists("/a/b/c/x", quiet)
    await one.delete_recursive("/a")
    await tree.settle()
    assert events == [WatchEvent(EventType.DELETED, "/a/b/c/d")] * 2
    assert quiet == []


async def test_one_change_among_many_watched_nodes_is_found(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.multi([Create("/t"), *(Create(f"/t/{number}") for number in range(200))])
    events = Events()
    for number in range(200):
        await two.get(f"/t/{number}", events)
    await one.set("/t/77", b"1")
    await tree.settle()
    await one.set("/t/99", b"1")
    await tree.settle()
    assert [event.path for event in events] == ["/t/77", "/t/99"]


async def test_a_watch_does_not_tell_what_was_there_when_it_was_left(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/a", b"0")
    await one.set("/a", b"1")
    events = Events()
    assert (await two.get("/a", events))[0] == b"1"
    await tree.settle()
    assert events == []


async def test_only_one_of_two_conditional_writes_wins(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/a", b"0")
    _, seen = await two.get("/a")
    await one.set("/a", b"one", 0)
    with pytest.raises(BadVersionError):
        await two.set("/a", b"two", seen.version)
    assert (await two.get("/a"))[0] == b"one"


async def test_only_one_of_two_elections_wins(tree: Tree) -> None:
    one, two = await tree.session(), await tree.session()
    await one.create("/epoch", b"0")
    election = [Create("/controller", b"me", ephemeral=True), Set("/epoch", b"1", 0)]
    await one.multi(election)
    with pytest.raises(MultiError) as lost:
        await two.multi(election)
    assert lost.value.index == 0
    assert isinstance(lost.value.cause, NodeExistsError)
    owner = await two.exists("/controller")
    assert owner is not None
    assert owner.ephemeral_owner == one.session_id


# Multi


async def test_multi_returns_one_result_each_and_is_one_change(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a")
    await session.create("/old")
    results = await session.multi(
        [Check("/a", 0), Create("/a/s_", b"x", sequential=True), Set("/a", b"1", 0), Set("/a", b"2", 1), Delete("/old")]
    )
    assert results[0] is None
    assert results[1] == "/a/s_0000000000"
    assert isinstance(results[2], Stat)
    assert isinstance(results[3], Stat)
    assert (results[2].version, results[3].version) == (1, 2)
    assert results[4] is None
    _, made = await session.get("/a/s_0000000000")
    assert made.czxid == results[3].mzxid
    assert await session.exists("/old") is None


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        (Check("/fence", 7), BadVersionError),
        (Check("/missing"), NoNodeError),
        (Set("/fence", b"", 3), BadVersionError),
        (Delete("/missing"), NoNodeError),
        (Delete("/full"), NotEmptyError),
        (Create("/fence"), NodeExistsError),
        (Create("/missing/child"), NoNodeError),
    ],
)
async def test_a_failing_multi_does_nothing(tree: Tree, last: Any, cause: type[CoordinationError]) -> None:
    session = await tree.session()
    await session.create("/fence")
    await session.create("/full/child", make_parents=True)
    events = Events()
    await session.get("/fence", events)
    await session.exists("/new", events)
    with pytest.raises(MultiError) as error:
        await session.multi([Create("/new"), Set("/fence", b"x"), Delete("/full/child"), Create("/full/child"), last])
    assert error.value.index == 4
    assert type(error.value.cause) is cause
    await tree.settle()
    assert events == []
    assert await session.exists("/new") is None
    assert (await session.get("/fence"))[1].version == 0


async def test_a_multi_sees_its_own_changes(tree: Tree) -> None:
    session = await tree.session()
    await session.multi([Create("/a"), Create("/a/b"), Set("/a/b", b"1", 0), Check("/a/b", 1), Create("/c", b"x")])
    assert (await session.get("/a/b"))[0] == b"1"
    await session.multi([Delete("/a/b", 1), Delete("/a", 0)])
    assert await session.children("/") == ["c"]


async def test_an_empty_multi_is_nothing(tree: Tree) -> None:
    session = await tree.session()
    assert await session.multi([]) == []


# Looking, before there is a session


async def test_a_look_reads_the_tree_without_a_session(tree: Tree) -> None:
    session = await tree.session()
    await session.create("/a", b"data")
    await session.create("/a/b")
    looker = tree.unstarted()
    await looker.look()
    assert looker.session_id == 0
    assert await looker.get("/a") == await session.get("/a")
    assert await looker.children("/a") == ["b"]
    assert [node and node[0] for node in await looker.get_many(["/a", "/none"])] == [b"data", None]
    assert await looker.exists("/none") is None
    with pytest.raises(NoNodeError):
        await looker.get("/none")
    with pytest.raises(SessionExpiredError):
        await looker.create("/c")
    await looker.close()
    with pytest.raises(SessionExpiredError):
        await looker.get("/a")


async def test_a_look_sees_the_ephemeral_nodes_of_the_living(tree: Tree) -> None:
    living, dead = await tree.session(), await tree.session()
    await living.create("/living", ephemeral=True)
    await dead.create("/dead", ephemeral=True)
    await tree.kill(dead)
    looker = tree.unstarted()
    await looker.look()
    assert [node is not None for node in await looker.get_many(["/living", "/dead"])] == [True, False]
    await looker.close()


async def test_a_tree_that_does_not_exist_yet_looks_empty_and_can_be_started_then(tree: Tree) -> None:
    looker = tree.unstarted()
    await looker.look()
    assert await looker.exists("/a") is None
    assert await looker.children("/") == []
    await looker.start()
    await looker.create("/a")
    await looker.look()  # harmless
    assert await looker.children("/") == ["a"]
    await looker.close()
