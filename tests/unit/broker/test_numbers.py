"""Numbers that go on after a restore: every broker of a cluster raises them, and nobody lowers or raises them twice."""

from collections.abc import Sequence

from barnabas.broker.control.numbers import Numbers, go_on_from
from barnabas.cluster import registration
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import ProducerIdBlock
from barnabas.cluster.tree.port import Stat
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env


def test_all_brokers_raise_them() -> None:
    env = sim_env(5)
    tree = SimTree(env.clock, 1_000)
    brokers = [SimCoordination(env.clock, tree) for _ in range(3)]
    numbers = Numbers.of_all([Numbers(2999, [("t", 0, 3), ("t", 1, 9), ("gone", 0, 4)]), Numbers(999, [("t", 0, 7)])])

    async def story() -> None:
        for node_id, broker in enumerate(brokers):
            await broker.start()
            await registration.make_persistent_paths(broker, node_id)
        for index, epoch in enumerate((5, 9)):
            state = LeaderAndIsr(1, epoch, (1,))
            await brokers[0].create(paths.partition_state("t", index), state.encode(), make_parents=True)
        slow, read = brokers[1], brokers[1].get_many

        async def read_before_another_writes(names: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
            slow.get_many = read  # type: ignore[method-assign]
            found = await read(names)
            await go_on_from(brokers[0], numbers, 0)
            return found

        slow.get_many = read_before_another_writes  # type: ignore[method-assign]
        for node_id, broker in enumerate(brokers[1:], 1):
            await go_on_from(broker, numbers, node_id)
        nodes = await brokers[0].get_many([paths.partition_state("t", index) for index in (0, 1)])
        assert [LeaderAndIsr.of_node(node).leader_epoch for node in nodes] == [8, 9]  # type: ignore[union-attr]
        block = ProducerIdBlock.decode((await brokers[0].get(paths.PRODUCER_ID_BLOCK))[0])
        assert block is not None
        assert block.last == 2999

    env.run(story())
