"""AlterPartition: the decision as a table, and what the controller writes, answers and tells."""

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree.port import Delete, Set
from barnabas.controller.alter_partition import REPEATED, Proposal, judge
from barnabas.protocol.errors import ErrorCode
from controller_world import Cluster, answers
from simulator.coordination import Fate, SimCoordination, SimTree

KNOWN = LeaderAndIsr(1, 5, (1, 2), partition_epoch=7, controller_epoch=3)
RECOVERING = KNOWN._replace(isr=(1,), recovering=True)
LIVE = {1: 100, 2: 200, 3: 300}


def proposal(isr, leader_epoch=5, partition_epoch=7, leader=1, recovering=False):
    return Proposal(leader, leader_epoch, partition_epoch, isr, recovering)


@pytest.mark.parametrize(
    ("asked", "known", "verdict"),
    [
        (proposal({1: 100}), KNOWN, KNOWN._replace(isr=(1,))),
        (proposal({1: 100, 2: 200, 3: 300}), KNOWN, KNOWN._replace(isr=(1, 2, 3))),
        (proposal({1: 100, 2: 200, 3: -1}), KNOWN, KNOWN._replace(isr=(1, 2, 3))),
        (proposal({1: 100}, leader_epoch=6), KNOWN, ErrorCode.NOT_CONTROLLER),
        (proposal({1: 100}, partition_epoch=8), KNOWN, ErrorCode.NOT_CONTROLLER),
        (proposal({1: 100}, leader_epoch=4), KNOWN, ErrorCode.FENCED_LEADER_EPOCH),
        (proposal({1: 100}, leader_epoch=4, partition_epoch=8), KNOWN, ErrorCode.NOT_CONTROLLER),
        (proposal({1: 100}, partition_epoch=6), KNOWN, ErrorCode.INVALID_UPDATE_VERSION),
        (proposal({2: 200, 1: 100}, partition_epoch=6), KNOWN, REPEATED),
        (proposal({2: 200, 1: 100}), KNOWN, REPEATED),
        (proposal({2: 200}, leader=2), KNOWN, ErrorCode.INVALID_REQUEST),
        (proposal({2: 200}), KNOWN, ErrorCode.INVALID_REQUEST),
        (proposal({1: 100, 9: 1}), KNOWN, ErrorCode.INVALID_REQUEST),
        (proposal({1: 100, 3: 299}), KNOWN, ErrorCode.INELIGIBLE_REPLICA),
        (proposal({1: 100, 3: 301}), KNOWN, ErrorCode.INELIGIBLE_REPLICA),
        (proposal({1: 100, 4: -1}), KNOWN, ErrorCode.INELIGIBLE_REPLICA),
        (proposal({1: 99, 3: 300}), KNOWN, KNOWN._replace(isr=(1, 3))),
        (proposal({1: 100}), RECOVERING, RECOVERING._replace(recovering=False)),
        (proposal({1: 100}, recovering=True), RECOVERING, REPEATED),
        (proposal({1: 100, 2: 200}, recovering=True), RECOVERING, ErrorCode.INVALID_REQUEST),
        (proposal({1: 100}, recovering=True), KNOWN, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_allowed(asked, known, verdict):
    assert judge(asked, known, (1, 2, 3, 4), LIVE) == verdict


def test_isrs_change_in_one_write_and_keep_the_leader_epoch(env, cluster):
    async def story():
        await cluster.create("t", {index: [2, 3, 1] for index in range(20)})
        multi, writes = cluster.tree.multi, []

        async def counted(operations):
            writes.append(len(operations))
            return await multi(operations)

        cluster.tree.multi = counted
        cluster.channels.take()
        said = await cluster.alter(2, {("t", index): (0, 0, [2, 3]) for index in range(20)})
        assert said == [(2, 0, 1, [2, 3])] * 20
        assert writes == [1 + 20], "the fence, and a node for each partition"
        assert await cluster.state("t", 7) == (2, 0, [2, 3], 1)
        told = cluster.channels.take()
        everybody = {("t", index): (2, 0, [2, 3]) for index in range(20)}
        assert told == [(broker_id, "metadata", everybody) for broker_id in (1, 2, 3)]
        assert await cluster.alter(2, {("t", 0): (0, 1, [2, 3, 1])}, version=2) == [(2, 0, 2, [1, 2, 3])]

    env.run(story())


def test_each_partition_has_its_own_answer(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 3], 2: [2, 3]})
        changes = {
            ("t", 0): (0, 0, [2]),
            ("t", 1): (1, 0, [2]),
            ("t", 2): (0, 0, {2: cluster.epoch(2), 3: cluster.epoch(3) - 1}),
            ("t", 9): (0, 0, [2]),
            (b"unknown topic id", 0): (0, 0, [2]),
        }
        assert await cluster.alter(2, changes) == [
            (2, 0, 1, [2]),
            ErrorCode.NOT_CONTROLLER,
            (2, 0, 0, [2, 3]),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]
        later = cluster.epoch(3) + 1
        assert await cluster.alter(2, {("t", 0): (0, 1, {2: -1, 3: later})}) == [ErrorCode.INELIGIBLE_REPLICA]

    env.run(story())


def test_who_may_ask(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        change = {("t", 0): (0, 0, [2])}
        assert await cluster.alter(2, change, broker_epoch=cluster.epoch(2) - 1) is ErrorCode.STALE_BROKER_EPOCH
        assert await cluster.alter(2, change, broker_epoch=cluster.epoch(2) + 1) is ErrorCode.STALE_BROKER_EPOCH
        assert await cluster.alter(9, change, broker_epoch=1) is ErrorCode.STALE_BROKER_EPOCH
        request = cluster.alteration(2, change)
        await cluster.controller.stop()
        assert answers(cluster.controller.alter_partition(request).take()) is ErrorCode.NOT_CONTROLLER
        assert await cluster.state("t", 0) == (2, 0, [2, 3], 0)

    env.run(story())


def test_a_replica_that_is_dead_leaving_or_without_its_log_does_not_enter(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 1]})
        assert await cluster.alter(2, {("t", 0): (0, 0, [2])}) == [(2, 0, 1, [2])]
        epoch = cluster.epoch(3)
        await cluster.die(3)
        assert await cluster.alter(2, {("t", 0): (0, 1, {2: -1, 3: epoch})}) == [ErrorCode.INELIGIBLE_REPLICA]
        await cluster.join(3)
        await cluster.settle()
        assert await cluster.alter(2, {("t", 0): (0, 1, {2: -1, 3: epoch})}) == [ErrorCode.INELIGIBLE_REPLICA]
        assert await cluster.alter(2, {("t", 0): (0, 1, [2, 3])}) == [(2, 0, 2, [2, 3])]
        cluster.channels.failed_logs.add((1, "t", 1))
        notice = b'{"version":1,"broker":1,"event":1}'
        await cluster.tree.create("/log_dir_event_notification/log_dir_event_", notice, sequential=True)
        await cluster.settle()
        await cluster.settle()
        assert await cluster.state("t", 1) == (2, 1, [2], 1)
        assert await cluster.alter(2, {("t", 1): (1, 1, [2, 1])}) == [ErrorCode.INELIGIBLE_REPLICA]

    env.run(story())


def test_a_state_that_somebody_else_wrote_is_read_again(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 3]})
        other = LeaderAndIsr(2, 0, (2, 3), controller_epoch=1).encode()
        await cluster.tree.set("/brokers/topics/t/partitions/0/state", other, 0)
        said = await cluster.alter(2, {("t", 0): (0, 0, [2]), ("t", 1): (0, 0, [2])})
        assert said == [ErrorCode.INVALID_UPDATE_VERSION, (2, 0, 1, [2])], "the other partition is written all the same"
        assert await cluster.alter(2, {("t", 0): (0, 1, [2])}) == [(2, 0, 2, [2])]

    env.run(story())


def test_an_answer_of_the_tree_that_is_lost(env):
    """The write took effect: the controller finds it, and says so."""
    tree = SimCoordination(env.clock, SimTree(env.clock))
    cluster = Cluster(env, tree)

    async def story():
        await cluster.start()
        await cluster.create("t", {0: [2, 3]})
        fates = [Fate.LOST_AFTER]
        tree.tree.trouble = lambda name: fates.pop() if name == "multi" and fates else Fate.DONE
        pending = cluster.controller.alter_partition(cluster.alteration(2, {("t", 0): (0, 0, [2])}))
        await env.clock.sleep(1_000)
        assert fates == []
        assert answers(pending.take()) == [(2, 0, 1, [2])]
        assert await cluster.state("t", 0) == (2, 0, [2], 1)
        await cluster.controller.stop()

    env.run(story())


def test_the_controller_dies_between_write_and_answer(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        request = cluster.alteration(2, {("t", 0): (0, 0, [2])})
        multi = cluster.tree.multi

        async def last(operations):
            results = await multi(operations)
            cluster.tree.multi = multi
            await multi([Delete("/controller"), Set("/controller_epoch", b"7")])
            await env.clock.sleep(0)
            cluster.controller._resign()
            return results

        cluster.tree.multi = last
        pending = cluster.controller.alter_partition(request)
        await cluster.settle()
        assert answers(pending.take()) is ErrorCode.NOT_CONTROLLER, "it does not know whether it was done"
        await cluster.settle()
        assert cluster.controller.controller_epoch == 8
        again = cluster.controller.alter_partition(request)
        await cluster.settle()
        assert answers(again.take()) == [(2, 0, 1, [2])]
        assert await cluster.state("t", 0) == (2, 0, [2], 1)

    env.run(story())


def test_a_request_that_waits_when_the_controllership_ends_is_refused(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        pending = cluster.controller.alter_partition(cluster.alteration(2, {("t", 0): (0, 0, [2])}))
        assert not pending.done
        await cluster.controller.stop()
        assert answers(pending.take()) is ErrorCode.NOT_CONTROLLER
        assert await cluster.state("t", 0) == (2, 0, [2, 3], 0)

    env.run(story())
