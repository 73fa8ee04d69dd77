"""Whichever operation of a step the connection is lost in, the controller finishes what it began."""

import pytest
from barnabas.protocol.errors import ErrorCode
from replication_world import Host
from simulator.coordination import Fate, SimCoordination, SimTree


@pytest.fixture
def unsteady(env):
    """A cluster of one whose tree can lose its connection."""
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)))
    env.run(host.start_alone())
    yield host
    env.run(host.stop())


async def with_each_operation_lost(host, fate, count, begin, is_done):
    """Do the step `count` times; in each the next operation after `begin` is the one whose connection goes."""
    tree = host.coordination.tree
    for lost in range(count):
        await begin(lost)
        left = lost

        def trouble(name):
            nonlocal left
            left -= 1
            return fate if left == -1 else Fate.DONE

        tree.trouble = trouble
        await host.env.clock.sleep(2_000)
        tree.trouble = lambda name: Fate.DONE
        assert is_done(lost), f"operation {lost} was lost"
    assert left >= 0, "in the last round nothing was left to lose: the step is shorter"


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_a_new_topic_gets_its_leaders(env, unsteady, fate):
    async def begin(lost):
        error, message = await unsteady.admin.create_topic(f"t{lost}", partition_count=2, replication_factor=1)
        assert error is ErrorCode.NONE, message

    def is_done(lost):
        return unsteady.metadata_cache.has_leaders(f"t{lost}", 2) and unsteady.controller.active

    env.run(with_each_operation_lost(unsteady, fate, 50, begin, is_done))


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_added_partitions_get_their_leaders(env, unsteady, fate):
    async def begin(lost):
        if lost == 0:
            await unsteady.admin.create_topic("t", partition_count=1, replication_factor=1)
            await unsteady.wait(lambda: unsteady.metadata_cache.has_leaders("t", 1))
        outcome = await unsteady.admin.create_partitions("t", lost + 2)
        assert outcome == (ErrorCode.NONE, None)

    env.run(
        with_each_operation_lost(
            unsteady, fate, 50, begin, lambda lost: unsteady.metadata_cache.has_leaders("t", lost + 2)
        )
    )


@pytest.mark.parametrize("fate", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_a_deleted_topic_goes(env, unsteady, fate):
    async def begin(lost):
        await unsteady.admin.create_topic(f"t{lost}", partition_count=2, replication_factor=1)
        await unsteady.wait(lambda: unsteady.metadata_cache.has_leaders(f"t{lost}", 2))
        assert await unsteady.admin.delete_topic(f"t{lost}") == (ErrorCode.NONE, None)

    def is_done(lost):
        tree = unsteady.coordination.tree
        return f"t{lost}" not in tree.children("/brokers/topics") and tree.children("/admin/delete_topics") == []

    env.run(with_each_operation_lost(unsteady, fate, 50, begin, is_done))


def test_watches_do_not_pile_up(env, unsteady):
    """After many losses a topic costs as many looks at the tree as after none."""
    tree = unsteady.coordination.tree
    looks = 0
    lose_next = False

    def trouble(name):
        nonlocal looks, lose_next
        looks += 1
        lost, lose_next = lose_next, False
        return Fate.LOST_BEFORE if lost else Fate.DONE

    async def cost_of_a_topic(name):
        nonlocal looks
        looks = 0
        await unsteady.admin.create_topic(name, partition_count=1, replication_factor=1)
        await unsteady.wait(lambda: unsteady.metadata_cache.has_leaders(name, 1))
        await env.clock.sleep(2_000)
        return looks

    async def story():
        nonlocal lose_next
        tree.trouble = trouble
        before = await cost_of_a_topic("first")
        for _ in range(5):
            unsteady.controller.retry_offline_partitions()
            unsteady.controller._enqueue(unsteady.controller.term._topics_changed)
            lose_next = True
            await env.clock.sleep(2_000)
        assert await cost_of_a_topic("last") == before

    env.run(story())
