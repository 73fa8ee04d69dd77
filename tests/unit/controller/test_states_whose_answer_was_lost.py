"""A state that was written counts as changed, also if the answer was lost: otherwise its brokers are never told."""

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree import paths
from barnabas.controller.state import ControllerState
from barnabas.controller.tree import ControllerTree
from simulator.coordination import Fate, SimCoordination, SimTree

PARTITIONS = [("t", 0), ("t", 1)]


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.LOST_BEFORE, Fate.LOST_AFTER])
@pytest.mark.parametrize("version", [0, 3, 2_500])
def test_a_state_that_was_deleted_is_put_back_also_if_the_answer_was_lost(env, fate, version):
    async def story():
        tree = SimTree(env.clock)
        coordination = SimCoordination(env.clock, tree)
        await coordination.start()
        known = LeaderAndIsr(leader=1, leader_epoch=0, isr=(1, 2), controller_epoch=1, partition_epoch=version)
        state = ControllerState()
        state.states["t", 0] = known
        await coordination.create(paths.CONTROLLER_EPOCH, b"1", make_parents=True)
        await coordination.create(paths.partition("t", 0), b"", make_parents=True)
        fates = [Fate.DONE, fate]  # of the write that meets the hole, and of what fills it
        tree.trouble = lambda name: fates.pop(0) if fates and name == "multi" else Fate.DONE
        changed = await ControllerTree(coordination, env.clock, state, 1, 0).change_states(
            [("t", 0)], lambda _, known: None if known.leader == 2 else known.changed(2, [2], recovering=False)
        )
        assert changed == [("t", 0)]
        found = LeaderAndIsr.of_node((await coordination.get_many([paths.partition_state("t", 0)]))[0])
        assert (found.leader, found.leader_epoch, found.partition_epoch) == (2, 1, version + 1)

    env.run(story())


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_a_change_whose_answer_was_lost_is_a_change(env, fate):
    async def story():
        tree = SimTree(env.clock)
        coordination = SimCoordination(env.clock, tree)
        await coordination.start()
        first = LeaderAndIsr(leader=1, leader_epoch=0, isr=(1, 2), controller_epoch=1, partition_epoch=0)
        state = ControllerState()
        await coordination.create(paths.CONTROLLER_EPOCH, b"1", make_parents=True)
        for partition in PARTITIONS:
            await coordination.create(paths.partition_state(*partition), first.encode(), make_parents=True)
            state.states[partition] = first
        left = [fate]
        tree.trouble = lambda name: left.pop() if left and name == "multi" else Fate.DONE

        def decide(partition, known):
            return None if known.leader == 2 else known.changed(2, [2], recovering=False)

        changed = await ControllerTree(coordination, env.clock, state, 1, 0).change_states(PARTITIONS, decide)
        assert changed == PARTITIONS
        assert [state.states[partition].leader_epoch for partition in PARTITIONS] == [1, 1]

    env.run(story())
