"""The node of the finalised features: which controller makes it, with which levels, and how it changes."""

import json

import pytest
from barnabas.cluster import features
from barnabas.cluster.features import Update
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import BrokerEndpoint, BrokerRegistration, encode_feature
from barnabas.cluster.tree.port import ConnectionLossError, Create, Set
from barnabas.controller.controller import Controller
from barnabas.protocol.errors import ErrorCode
from controller_world import Cluster

TV = features.TRANSACTION_VERSION
RANGES = {
    name: {"min_version": levels.first, "max_version": levels.last} for name, levels in features.SUPPORTED.items()
}


async def held(cluster):
    data, stat = await cluster.tree.get(paths.FEATURE)
    node = json.loads(data)
    assert (node["version"], node["status"]) == (2, 1)
    return {name: level["max_version_level"] for name, level in node["features"].items()}, stat.version


async def support(cluster, broker_id, ranges=RANGES):
    """Let a broker say in its registration what it supports."""
    endpoints = (BrokerEndpoint("PLAINTEXT", f"host-{broker_id}", 9092),)
    data = BrokerRegistration(endpoints, 1, None, {}, ranges).encode()
    await cluster.tree.set(paths.broker(broker_id), data)
    await cluster.settle()


async def update(cluster, *updates, validate_only=False):
    asked = cluster.controller.update_features([Update(*each) for each in updates], validate_only=validate_only)
    return await cluster.ask(asked)


def test_a_new_cluster_gets_the_newest_levels(env, cluster):
    assert env.run(held(cluster)) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 2}, 0)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (None, {}),  # it has topics: an earlier Barnabas, or Kafka before 2.7, or a directory that was adopted
        (b'{"features":{},"version":2,"status":1}', {}),  # as Kafka 3.9 leaves it
        (encode_feature({TV: 1}), {TV: 1}),
    ],
)
def test_a_cluster_that_was_in_use_keeps_its_levels(env, node, expected):
    cluster = Cluster(env)

    async def story():
        await cluster.tree.start()
        await cluster.tree.create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1]}}', make_parents=True)
        if node is not None:
            await cluster.tree.create(paths.FEATURE, node)
        await cluster.start()
        assert await held(cluster) == (expected, 0)
        await cluster.controller.stop()

    env.run(story())


def test_a_controller_that_knows_that_there_are_levels_does_not_look(env, cluster):
    async def story():
        await cluster.controller.stop()
        await cluster.tree.delete(paths.CONTROLLER)
        asked = []
        exists = cluster.tree.exists

        async def noted(path, watch=None):
            asked.append(path)
            return await exists(path, watch)

        cluster.tree.exists = noted
        for is_known in (True, False):
            asked.clear()
            other = Controller(
                env, cluster.host.config, 1, cluster.tree, cluster.channels, lambda is_known=is_known: is_known
            )
            await other.start()
            await other.stop()
            await cluster.tree.delete(paths.CONTROLLER)
            assert (paths.FEATURE in asked) is not is_known
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 2}, 0)

    env.run(story())


def test_levels_change_all_or_none(env, cluster):
    async def story():
        for broker_id in (1, 2, 3):
            await support(cluster, broker_id)
        assert await update(cluster, (TV, 1, 2)) == (0, None)
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 1}, 1)
        assert await update(cluster, (TV, 2, 1), validate_only=True) == (0, None)
        code, message = await update(cluster, (TV, 2, 1), ("nope", 1, 1))
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert message.endswith(
            "Invalid update version 1 for feature nope. Local controller 1 does not support this feature."
        )
        assert await update(cluster, (TV, 1, 1)) == (0, None)
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 1}, 1), (
            "none of these wrote"
        )
        assert await update(cluster, (TV, 0, 3)) == (0, None)
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30}, 2), "a level of 0 is not named"
        assert await update(cluster) == (0, None)

    env.run(story())


def test_a_registered_broker_that_does_not_support_a_level_keeps_it_from_being_finalised(env, cluster):
    async def story():
        for broker_id, ranges in ((1, RANGES), (2, {TV: {"min_version": 0, "max_version": 1}})):
            await support(cluster, broker_id, ranges)
        await update(cluster, (TV, 0, 2))
        _, message = await update(cluster, (TV, 2, 1))
        assert message.endswith("Broker 2 only supports versions 0-1")
        _, message = await update(cluster, (TV, 1, 1))
        assert message.endswith("Broker 3 does not support this feature.")
        await cluster.die(3)
        assert await update(cluster, (TV, 1, 1)) == (0, None)
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 1}, 2)

    env.run(story())


def test_another_writer_is_not_overwritten(env, cluster):
    async def story():
        for broker_id in (1, 2, 3):
            await support(cluster, broker_id)
        get = cluster.tree.get
        raced = []

        async def late(wanted, watch=None):
            found = await get(wanted, watch)
            if wanted == paths.FEATURE and not raced:
                raced.append(True)
                await cluster.tree.set(paths.FEATURE, encode_feature({TV: 1}))
            return found

        cluster.tree.get = late
        assert await update(cluster, (TV, 0, 2)) == (0, None)
        assert raced
        assert await held(cluster) == ({}, 2), "decided again from what the other one wrote"

    env.run(story())


def test_a_controller_that_was_replaced_writes_nothing(env, cluster):
    async def story():
        for broker_id in (1, 2, 3):
            await support(cluster, broker_id)
        await cluster.tree.set(paths.CONTROLLER_EPOCH, b"2")
        assert (await update(cluster, (TV, 1, 2)))[0] == ErrorCode.NOT_CONTROLLER
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 2}, 0)

    env.run(story())


def test_who_is_not_controller_says_so(env, cluster):
    other = Controller(env, cluster.host.config, 2, cluster.tree, cluster.channels)
    assert other.update_features([Update(TV, 1, 2)], validate_only=False).take() == (ErrorCode.NOT_CONTROLLER, None)


def test_an_answer_that_was_lost_is_no_second_change(env, cluster):
    async def story():
        for broker_id in (1, 2, 3):
            await support(cluster, broker_id)
        multi = cluster.tree.multi
        lost = []

        async def losing(operations):
            done = await multi(operations)
            if any(isinstance(each, Set | Create) and each.path == paths.FEATURE for each in operations) and not lost:
                lost.append(True)
                raise ConnectionLossError("", "the answer is lost")
            return done

        cluster.tree.multi = losing
        assert await update(cluster, (TV, 1, 2)) == (0, None)
        assert lost
        assert await held(cluster) == ({"group.version": 1, "metadata.version": 30, "transaction.version": 1}, 1)

    env.run(story())


def test_levels_that_cannot_be_read_are_not_overwritten(env, cluster):
    async def story():
        await cluster.tree.set(paths.FEATURE, b"by hand")
        error, message = await update(cluster, (TV, 1, features.SAFE_DOWNGRADE))
        return error, message, (await cluster.tree.get(paths.FEATURE))[0]

    error, message, node = env.run(story())
    assert (error, node) == (ErrorCode.FEATURE_UPDATE_FAILED, b"by hand")
    assert "Restore the tree" in message
