"""A partition's state that somebody deletes by hand is written again as it was: only the controller knows it."""

import json

import pytest

STATE = "/brokers/topics/t/partitions/0/state"
LOOK_MS = 300_000  # leader.imbalance.check.interval.seconds


def lines(caplog):
    return [record.getMessage() for record in caplog.records if STATE in record.getMessage()]


async def shrunk(cluster):
    """A topic whose state is of version 2; returns its node."""
    await cluster.create("t", {0: [2, 3, 1]})
    for version, isr in enumerate([[2, 3], [2, 3, 1]]):
        assert await cluster.alter(2, {("t", 0): (0, version, isr)}) == [(2, 0, version + 1, sorted(isr))]
    data, stat = await cluster.tree.get(STATE)
    assert stat.version == 2
    return data


def test_it_is_noticed_without_a_change(env, cluster, caplog):
    async def story():
        data = await shrunk(cluster)
        await cluster.tree.delete(STATE)
        await env.clock.sleep(LOOK_MS + 1_000)
        again, stat = await cluster.tree.get(STATE)
        assert (json.loads(again), stat.version) == (json.loads(data), 2), "its leader takes no smaller version"
        await env.clock.sleep(LOOK_MS + 1_000)
        assert len(lines(caplog)) == 1
        assert await cluster.alter(2, {("t", 0): (0, 2, [2])}) == [(2, 0, 3, [2])]

    env.run(story())


def test_it_is_noticed_when_its_leader_dies(env, cluster, caplog):
    async def story():
        await shrunk(cluster)
        await cluster.tree.delete(STATE)
        await cluster.die(2)
        leader, leader_epoch, isr, version = await cluster.state("t", 0)
        assert (leader, leader_epoch, isr) == (3, 1, [1, 3])
        assert version > 2
        assert len(lines(caplog)) == 1

    env.run(story())


def test_it_is_noticed_when_the_isr_changes(env, cluster, caplog):
    async def story():
        await shrunk(cluster)
        await cluster.tree.delete(STATE)
        assert await cluster.alter(2, {("t", 0): (0, 2, [2, 3])}) == [(2, 0, 3, [2, 3])]
        assert len(lines(caplog)) == 1

    env.run(story())


@pytest.mark.parametrize("what", ["/brokers/topics/t", "/brokers/topics/t/partitions"])
def test_what_is_deleted_with_more_stays_deleted(env, cluster, caplog, what):
    async def story():
        await shrunk(cluster)
        await cluster.tree.delete_recursive(what)
        await env.clock.sleep(LOOK_MS + 1_000)
        await cluster.die(2)
        assert await cluster.tree.exists(STATE) is None
        assert lines(caplog) == []
        assert cluster.controller.active
        assert "Traceback" not in caplog.text

    env.run(story())


def test_a_topic_that_a_client_deletes_stays_deleted(env, cluster, caplog):
    async def story():
        await shrunk(cluster)
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        await env.clock.sleep(LOOK_MS + 1_000)
        assert await cluster.tree.exists("/brokers/topics/t") is None
        assert lines(caplog) == []

    env.run(story())
