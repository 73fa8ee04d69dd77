"""Others write into the tree between an admin request's look at it and the request's own write."""

import pytest
from barnabas.cluster.tree.operations import do_all
from barnabas.cluster.tree.port import Create, Delete, Set
from barnabas.protocol.errors import ErrorCode
from replication_world import Host
from simulator.coordination import Fate, SimCoordination, SimTree

SETTINGS = b'{"version":1,"config":{"retention.ms":"1"}}'


@pytest.fixture
def host(env):
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)))
    env.run(host.start_alone())
    yield host
    env.run(host.stop())


def just_before_the_next(name, tree, *operations):
    """Do these operations, as another process, just before the next operation of that name reaches the tree."""
    waiting = list(operations)

    def trouble(asked):
        if asked == name and waiting:
            todo, waiting[:] = list(waiting), []
            tree.change(lambda zxid: do_all(tree, todo, zxid, 0))
        return Fate.DONE

    tree.trouble = trouble


@pytest.mark.parametrize("left_over", [False, True])
def test_settings_without_a_topic_come_or_go_while_it_is_made(env, host, left_over):
    tree = host.coordination.tree

    async def story():
        if left_over:
            await host.coordination.create("/config/topics/t", SETTINGS)
        other = Delete("/config/topics/t") if left_over else Create("/config/topics/t", SETTINGS)
        just_before_the_next("multi", tree, other)
        assert await host.admin.create_topic("t", configs={"segment.ms": "7"}) == (ErrorCode.NONE, None)
        assert await host.admin.overrides("topics/t") == {"segment.ms": "7"}

    env.run(story())


def test_of_two_creations_at_the_same_time_one_is_told_so(env, host):
    tree = host.coordination.tree

    async def story():
        topic = b'{"partitions":{"0":[1]},"version":1}'
        just_before_the_next("multi", tree, Create("/config/topics/t", SETTINGS), Create("/brokers/topics/t", topic))
        assert (await host.admin.create_topic("t"))[0] is ErrorCode.TOPIC_ALREADY_EXISTS
        assert await host.admin.overrides("topics/t") == {"retention.ms": "1"}, "the other's settings stay"

    env.run(story())


def test_a_name_that_collides_with_one_made_at_the_same_time_is_refused(env, host):
    tree = host.coordination.tree

    async def story():
        topic = b'{"partitions":{"0":[1]},"version":1}'
        # As another broker would: the topic, and the node above the topics.
        just_before_the_next("multi", tree, Create("/brokers/topics/c_x", topic), Set("/brokers/topics", b""))
        error, message = await host.admin.create_topic("c.x")
        assert (error, message) == (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic 'c.x' collides with existing topic: c_x",
        )
        assert await host.coordination.exists("/brokers/topics/c.x") is None
        assert await host.coordination.exists("/config/topics/c.x") is None

    env.run(story())


def test_a_name_with_many_spellings_is_compared_with_all_names(env, host):
    async def story():
        assert await host.admin.create_topic("a.b.c.d_e.f") == (ErrorCode.NONE, None)
        error, message = await host.admin.create_topic("a_b.c.d.e.f")
        assert error is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert message == "Topic 'a_b.c.d.e.f' collides with existing topic: a.b.c.d_e.f"
        assert await host.admin.create_topic("a.b.c.d.e.g") == (ErrorCode.NONE, None)

    env.run(story())


def test_another_topic_made_at_the_same_time_is_no_collision(env, host):
    tree = host.coordination.tree

    async def story():
        topic = b'{"partitions":{"0":[1]},"version":1}'
        just_before_the_next("multi", tree, Create("/brokers/topics/d_x", topic), Set("/brokers/topics", b""))
        assert await host.admin.create_topic("c.x") == (ErrorCode.NONE, None)

    env.run(story())


@pytest.mark.parametrize("settings", [{}, {"segment.ms": "7"}])
def test_settings_of_a_topic_that_went_are_not_written(env, host, settings):
    tree = host.coordination.tree

    async def story():
        await host.admin.create_topic("t", configs=settings)
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        await host.admin.delete_topic("t")
        await host.wait(lambda: not host.metadata_cache.contains("t"))
        while await host.coordination.exists("/brokers/topics/t") is not None:
            await env.clock.sleep(1)
        written = await host.admin.change_overrides(
            "topics/t", lambda current: {"retention.ms": "1"}, of="/brokers/topics/t"
        )
        assert not written
        assert tree.children("/config/topics") == []

    env.run(story())


def test_a_topic_is_deleted_by_the_id_that_it_has_now(env, host):
    async def story():
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        former = host.metadata_cache.topic_id("t")
        await host.admin.delete_topic("t", former)
        await host.wait(lambda: not host.metadata_cache.contains("t"))
        await env.clock.sleep(1_000)
        assert (await host.admin.create_topic("t"))[0] is ErrorCode.NONE
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        assert (await host.admin.delete_topic("t", former))[0] is ErrorCode.UNKNOWN_TOPIC_ID
        await env.clock.sleep(1_000)
        assert host.manager.partition("t", 0).is_leader

    env.run(story())


def test_the_topic_is_made_again_between_the_look_at_it_and_the_wish_to_delete_it(env, host):
    """The wish says which topic it means, so the new one stays."""

    async def story():
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        data, _ = await host.coordination.get("/brokers/topics/t")
        later = data.replace(b'"topic_id":"', b'"topic_id":"A', 1)
        later = later[: later.index(b'"topic_id":"') + 34] + later[later.index(b'"topic_id":"') + 35 :]
        await host.controller.stop()
        just_before_the_next("create", host.coordination.tree, Set("/brokers/topics/t", later))
        assert await host.admin.delete_topic("t") == (ErrorCode.NONE, None)
        await host.coordination.delete("/controller")
        await host.controller.start()
        await env.clock.sleep(1_000)
        tree = host.coordination.tree
        assert tree.children("/admin/delete_topics") == []
        assert tree.children("/brokers/topics") == ["t"]

    env.run(story())
