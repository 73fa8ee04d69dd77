"""Wrong nodes that somebody wrote into the tree by hand do not keep the controller from its other work."""

import pytest
from barnabas.coordination.port import CoordinationError
from barnabas.sim.coordination import SimCoordination, SimTree
from replication_world import Host


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":3}', b'{"partitions":{"x":[1]}}', b'{"partitions":7}'])
@pytest.mark.parametrize("met", ["while it is controller", "when it takes over"])
def test_a_topic_node_that_cannot_be_read(env, met, data):
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)))

    async def story():
        await host.start_alone()
        if met == "when it takes over":
            await host.controller.stop()
            await host.coordination.delete("/controller")
        await host.coordination.create("/brokers/topics/odd", data)
        if met == "when it takes over":
            await host.controller.start()
        await env.clock.sleep(1_000)
        epoch = host.controller.controller_epoch
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        assert not host.metadata_cache.contains("odd")
        await env.clock.sleep(1_000)
        assert host.controller.active
        assert host.controller.controller_epoch == epoch
        await host.coordination.set("/brokers/topics/odd", b'{"version":1,"partitions":{"0":[1]}}')
        await host.wait(lambda: host.metadata_cache.has_leaders("odd", 1))
        await host.stop()

    env.run(story())


def test_settings_that_cannot_be_read_end_the_start_with_a_sentence(env):
    tree = SimTree(env.clock)
    host = Host(env, SimCoordination(env.clock, tree))

    async def story():
        await host.coordination.start()
        await host.coordination.create("/config/topics/odd", b"{", make_parents=True)
        await host.coordination.create("/config/changes")
        with pytest.raises(CoordinationError, match=r"a node below /config of the tree cannot be read: .* Restore the"):
            await host.config_changes.start()
        await host.coordination.close()

    env.run(story())


def test_a_partition_state_that_cannot_be_read_does_not_make_it_spin(env, caplog):
    """The controller gives up, as Kafka's does, and tries again; not as fast as it can."""
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)))

    async def story():
        await host.start_alone()
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        await host.controller.stop()
        await host.coordination.delete("/controller")
        data, _ = await host.coordination.get("/brokers/topics/t/partitions/0/state")
        await host.coordination.set("/brokers/topics/t/partitions/0/state", b"{")
        await host.controller.start()
        await env.clock.sleep(10_000)
        assert host.controller.controller_epoch < 20
        await host.coordination.set("/brokers/topics/t/partitions/0/state", data)
        await env.clock.sleep(5_000)
        assert host.controller.active
        await host.stop()

    env.run(story())
