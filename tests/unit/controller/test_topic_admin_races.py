"""Others write into the tree between an admin request's look at it and the request's own write."""

import pytest
from barnabas.coordination.operations import do_all
from barnabas.coordination.port import Create, Delete, Set
from barnabas.protocol.errors import ErrorCode
from barnabas.sim.coordination import Fate, SimCoordination, SimTree
from replication_world import Host

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
