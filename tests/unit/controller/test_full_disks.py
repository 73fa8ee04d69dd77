"""Who leads, and who is in sync, while the disks of brokers refuse writes."""

import pytest
from barnabas.controller.leader_elections import ElectionType
from barnabas.protocol.errors import ErrorCode


def test_one_that_can_write_leads_until_the_disk_has_room(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [3, 2, 1]})
        await cluster.disk_changes(2, is_full=True)
        assert (await cluster.state("t", 0))[:3] == (3, 1, [1, 3])
        assert (await cluster.state("t", 1))[:3] == (3, 1, [1, 3]), "nobody waits for its records"
        elections = cluster.controller.term.elections
        for _ in range(3):
            await elections.balance()
        preferred = (await elections.elect(ElectionType.PREFERRED, [("t", 0)]))["t", 0]
        assert preferred.error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert (await cluster.state("t", 0))[:2] == (3, 1)
        version = (await cluster.state("t", 0))[3]
        assert await cluster.alter(3, {("t", 0): (1, version, [1, 2, 3])}) == [ErrorCode.INELIGIBLE_REPLICA]
        await cluster.disk_changes(2, is_full=False)
        assert await cluster.alter(3, {("t", 0): (1, version, [1, 2, 3])}) == [(3, 1, version + 1, [1, 2, 3])]
        await elections.balance()
        assert (await cluster.state("t", 0))[:3] == (2, 2, [1, 2, 3])

    env.run(story())


@pytest.mark.parametrize("first_again", [1, 2, 3])
def test_where_nobody_can_write_the_lead_stays_and_moves_to_the_first_that_can(env, cluster, first_again):
    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        for broker_id in (2, 3, 1):
            await cluster.disk_changes(broker_id, is_full=True)
        assert (await cluster.state("t", 0))[:3] == (1, 2, [1])
        version = (await cluster.state("t", 0))[3]
        assert await cluster.alter(1, {("t", 0): (2, version, [1, 2, 3])}) == [(1, 2, version + 1, [1, 2, 3])]
        for _ in range(3):
            await cluster.controller.term.elections.balance()
            await cluster.disk_changes(2, is_full=True)  # said again
        assert (await cluster.state("t", 0))[:3] == (1, 2, [1, 2, 3])
        await cluster.disk_changes(first_again, is_full=False)
        assert (await cluster.state("t", 0))[:3] == (first_again, 3, [first_again])

    env.run(story())


def test_a_leader_that_cannot_write_gives_way_when_one_that_can_is_in_sync(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        version = (await cluster.state("t", 0))[3]
        await cluster.alter(2, {("t", 0): (0, version, [2])})
        await cluster.disk_changes(2, is_full=True)
        assert (await cluster.state("t", 0))[:3] == (2, 0, [2])
        await cluster.alter(2, {("t", 0): (0, version + 1, [2, 3])})
        await cluster.settle()
        assert (await cluster.state("t", 0))[:3] == (3, 1, [3])

    env.run(story())


def test_when_the_leader_dies_one_that_has_all_records_leads_although_it_cannot_write(env, cluster):
    async def story():
        await cluster.create("t", {0: [1, 2, 3]})
        for broker_id in (1, 2, 3):
            await cluster.disk_changes(broker_id, is_full=True)
        version = (await cluster.state("t", 0))[3]
        await cluster.alter(3, {("t", 0): (2, version, [1, 2, 3])})
        await cluster.die(3)
        assert (await cluster.state("t", 0))[:3] == (1, 3, [1, 2])

    env.run(story())


def test_a_new_controller_asks_and_a_new_life_of_the_broker_begins_anew(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.disk_changes(2, is_full=True)
        cluster.controller.begin_again()
        await env.clock.sleep(1_000)
        await cluster.settle()
        state = cluster.controller.term.state
        assert not state.can_write(2, ("t", 0))
        cluster.channels.full_disks.clear()
        await cluster.die(2)
        await cluster.join(2)
        await cluster.settle()
        assert state.can_write(2, ("t", 0))

    env.run(story())
