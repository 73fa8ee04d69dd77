"""delete.topic.enable=false: a wish to delete a topic is forgotten, whenever it is met."""

import pytest
from replication_world import Host
from simulator.coordination import SimCoordination, SimTree


@pytest.mark.parametrize("met", ["while it is controller", "when it takes over"])
def test_a_wish_to_delete_is_forgotten(env, met):
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)), {"delete.topic.enable": "false"})

    async def story():
        await host.start_alone()
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        if met == "when it takes over":
            await host.controller.stop()
            await host.coordination.delete("/controller")
        await host.coordination.create("/admin/delete_topics/t")
        await host.coordination.create("/admin/delete_topics/unknown")
        if met == "when it takes over":
            await host.controller.start()
        await env.clock.sleep(1_000)
        tree = host.coordination.tree
        assert tree.children("/admin/delete_topics") == []
        assert tree.children("/brokers/topics") == ["t"]
        assert host.metadata_cache.contains("t")
        assert host.manager.partition("t", 0).is_leader
        await host.stop()

    env.run(story())
