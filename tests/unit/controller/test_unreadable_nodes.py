"""Wrong nodes that somebody wrote into the tree by hand do not keep the controller from its other work."""

import json

import pytest
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AllocateProducerIdsRequest, ControlledShutdownRequest, UpdateMetadataRequest
from replication_world import Host
from simulator.coordination import SimCoordination, SimTree


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


@pytest.mark.parametrize("entity", ["topics/odd", "groups/odd", "brokers/<default>", "brokers/1"])
def test_settings_that_cannot_be_read_end_the_start_with_a_sentence(env, entity):
    tree = SimTree(env.clock)
    host = Host(env, SimCoordination(env.clock, tree))

    async def story():
        await host.coordination.start()
        await host.coordination.create(f"/config/{entity}", b"{", make_parents=True)
        await host.coordination.create("/config/changes")
        said = rf"the node /config/{entity} of the tree cannot be read: .* Restore the tree from a backup"
        with pytest.raises(CoordinationError, match=said):
            await host.config_changes.start()
        await host.coordination.close()

    env.run(story())


@pytest.mark.parametrize("node", ["partitions/7/state", "partitions/0/notes/more", "notes"])
def test_a_topic_is_deleted_with_nodes_that_somebody_made_below_it(env, node):
    host = Host(env, SimCoordination(env.clock, SimTree(env.clock)))

    async def story():
        await host.start_alone()
        await host.admin.create_topic("t")
        await host.wait(lambda: host.metadata_cache.has_leaders("t", 1))
        epoch = host.controller.controller_epoch
        await host.coordination.create(f"/brokers/topics/t/{node}", make_parents=True)
        await host.admin.delete_topic("t")
        await env.clock.sleep(1_000)
        assert host.coordination.tree.children("/brokers/topics") == []
        assert host.coordination.tree.children("/admin/delete_topics") == []
        assert host.controller.controller_epoch == epoch
        await host.stop()

    env.run(story())


STATE = "/brokers/topics/t/partitions/1/state"
UNREADABLE = [b"junk", b"", b"[]", b"\xff", b'{"leader":1}', b'{"leader":Infinity}', b"[" * 100_000]


def lines(caplog):
    return [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]


async def end_term(cluster):
    """Another term begins, as when somebody deletes `/controller`."""
    before = cluster.controller.controller_epoch
    await cluster.tree.delete("/controller")
    await cluster.settle()
    assert cluster.controller.active
    assert cluster.controller.controller_epoch == before + 1


@pytest.mark.parametrize("data", UNREADABLE)
@pytest.mark.parametrize("met", ["by the controller of now", "by the next one"])
def test_a_partition_state_that_cannot_be_read_costs_only_its_partition(env, cluster, caplog, met, data):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [2, 3, 1]})
        good, _ = await cluster.tree.get(STATE)
        await cluster.tree.set(STATE, data)
        if met == "by the next one":
            await end_term(cluster)
        epoch = cluster.controller.controller_epoch
        await cluster.die(2)
        assert await cluster.state("t", 0) == (3, 1, [1, 3], 1)
        await cluster.die(3)
        await cluster.join(3)
        await cluster.settle()
        assert (await cluster.state("t", 0))[0] == 1
        assert [(await cluster.tree.get(STATE))[0]] == [data], "nobody writes over it"
        assert len(lines(caplog)) == 1, "it is said once, not at each look"
        assert "t-1" in caplog.text
        assert STATE in caplog.text
        await cluster.tree.set(STATE, good)
        await cluster.join(2)
        await cluster.settle()
        assert cluster.controller.controller_epoch == epoch
        leader, leader_epoch, *_ = await cluster.state("t", 1)
        assert (leader, leader_epoch) == ((2, 0) if met == "by the next one" else (2, 1))
        assert cluster.channels.last(UpdateMetadataRequest, 1).live_brokers
        led = [d for _, kind, d in cluster.channels.take() if kind == "lead" and ("t", 1) in d]
        assert led[-1]["t", 1][0] == 2, "the brokers hear of its leader"

    env.run(story())


def test_the_next_controller_leads_a_partition_whose_state_was_mended(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [2, 3, 1]})
        good, _ = await cluster.tree.get(STATE)
        await cluster.tree.set(STATE, b"junk")
        await cluster.die(2)
        await cluster.tree.set(STATE, good)
        await end_term(cluster)
        assert (await cluster.state("t", 1))[:3] == (3, 1, [1, 3])

    env.run(story())


@pytest.mark.parametrize("partitions", [1, 2])
def test_brokers_know_a_partition_whose_state_cannot_be_read_as_one_without_a_leader(env, cluster, partitions):
    """Otherwise a broker that starts would tell clients fewer partitions, and keys would go elsewhere."""

    async def story():
        await cluster.create("t", {index: [2, 3, 1] for index in range(2 - partitions, 2)})
        await cluster.tree.set(STATE, b"junk")
        await end_term(cluster)
        state = next(
            state
            for topic in cluster.channels.last(UpdateMetadataRequest, 3).topic_states
            for state in topic.partition_states
            if state.partition_index == 1
        )
        assert (state.leader, state.leader_epoch, state.isr, state.replicas) == (-1, -1, [], [2, 3, 1])

    env.run(story())


def test_requests_about_a_partition_whose_state_cannot_be_read(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [2, 3, 1]})
        await cluster.tree.set(STATE, b"junk")
        altered = await cluster.alter(2, {("t", 0): (0, 0, [2, 3]), ("t", 1): (0, 0, [2, 3])})
        assert altered == [(2, 0, 1, [2, 3]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        epoch = cluster.controller.controller_epoch
        await end_term(cluster)
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.epoch(2))
        assert (await cluster.ask(cluster.controller.controlled_shutdown(request))).remaining_partitions == []
        assert (await cluster.state("t", 0))[0] == 3
        await cluster.die(2)
        await cluster.join(2)
        await cluster.settle()
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None
        assert cluster.controller.controller_epoch == epoch + 1

    env.run(story())


def test_a_shutdown_that_meets_a_state_that_cannot_be_read(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [2, 3, 1]})
        await cluster.tree.set(STATE, b"junk")
        request = ControlledShutdownRequest(broker_id=2, broker_epoch=cluster.epoch(2))
        answer = await cluster.ask(cluster.controller.controlled_shutdown(request))
        assert (answer.error_code, answer.remaining_partitions) == (ErrorCode.NONE, [])
        assert (await cluster.state("t", 0))[0] == 3

    env.run(story())


def test_a_partition_that_is_added_where_a_state_cannot_be_read(env, cluster, caplog):
    async def story():
        await cluster.tree.create(STATE, b"junk", make_parents=True)  # the topic's node is empty so far
        assignment = {"version": 1, "partitions": {"0": [2, 3], "1": [2, 3]}}
        await cluster.tree.set("/brokers/topics/t", json.dumps(assignment).encode())
        await cluster.settle()
        assert (await cluster.state("t", 0))[0] == 2
        assert [(await cluster.tree.get(STATE))[0]] == [b"junk"]
        assert len([line for line in lines(caplog) if "t-1" in line]) == 1

    env.run(story())


GARBAGE = [b"junk", b"", b"[]", b"\xff", b'{"brokerid":"x"}', b'{"brokerid":1', b"[" * 100_000]
BROKER = "/brokers/ids/2"


@pytest.mark.parametrize("data", GARBAGE)
def test_the_controller_stays_when_its_node_cannot_be_read(env, cluster, caplog, data):
    async def story():
        epoch = cluster.controller.controller_epoch
        good, _ = await cluster.tree.get("/controller")
        await cluster.tree.set("/controller", data)
        await env.clock.sleep(60_000)
        assert [line.partition(" ")[0] for line in lines(caplog)] == ["/controller"]
        assert repr(data[:60]) in lines(caplog)[0]
        await cluster.create("t", {0: [2, 3, 1]})
        assert (await cluster.state("t", 0))[0] == 2
        await cluster.tree.set("/controller", good)
        await cluster.settle()
        assert cluster.controller.controller_epoch == epoch
        await end_term(cluster)
        assert "Traceback" not in caplog.text

    env.run(story())


@pytest.mark.parametrize("data", [b"junk", b"", b"\xff", b"1e3"])
@pytest.mark.parametrize("met", ["by the controller of now", "by the next one"])
def test_an_epoch_that_cannot_be_read_continues_from_the_last_one(env, cluster, caplog, met, data):
    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        await end_term(cluster)
        before = cluster.controller.controller_epoch
        await cluster.tree.set("/controller_epoch", data)
        if met == "by the next one":
            await cluster.tree.delete("/controller")
            await cluster.settle()
            assert cluster.controller.controller_epoch == before + 1
        await cluster.create("u", {0: [2, 3, 1]})
        assert cluster.controller.active
        assert (await cluster.tree.get("/controller_epoch"))[0] == str(cluster.controller.controller_epoch).encode()
        assert lines(caplog) == [
            f"/controller_epoch cannot be read: controller epochs continue from {before}. The node says {data!r}"
        ]
        assert not [record for record in caplog.records if record.exc_info]

    env.run(story())


def test_producer_ids_that_cannot_be_read_cost_only_producer_ids(env, cluster, caplog):
    async def story():
        async def ask():
            asked = AllocateProducerIdsRequest(broker_id=2, broker_epoch=cluster.epoch(2))
            response = await cluster.ask(cluster.controller.allocate_producer_ids(asked))
            return response.error_code, response.producer_id_start

        epoch = cluster.controller.controller_epoch
        assert await ask() == (ErrorCode.NONE, 0)
        good, _ = await cluster.tree.get("/latest_producer_id_block")
        await cluster.tree.set("/latest_producer_id_block", b"{}")
        for _ in range(3):
            assert await ask() == (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
        assert lines(caplog) == [
            "/latest_producer_id_block cannot be read: producers get no more ids until a broker starts, which mends it."
            " The node says b'{}'"
        ]
        await cluster.tree.set("/latest_producer_id_block", good)
        assert await ask() == (ErrorCode.NONE, 1000)
        assert cluster.controller.controller_epoch == epoch

    env.run(story())


def test_a_controller_node_of_nobody_that_cannot_be_read(env, cluster, caplog):
    async def story():
        epoch = cluster.controller.controller_epoch
        await cluster.controller.stop()
        await cluster.tree.delete("/controller")
        await cluster.tree.create("/controller", b"junk")
        await cluster.controller.start()
        await env.clock.sleep(60_000)
        assert not cluster.controller.active
        assert len(lines(caplog)) < 3, "at the start, and when the watch of the former term fires"
        await cluster.tree.delete("/controller")
        await cluster.settle()
        assert cluster.controller.active
        assert cluster.controller.controller_epoch == epoch + 1
        assert "Traceback" not in caplog.text

    env.run(story())


@pytest.mark.parametrize("data", [*GARBAGE, b'{"endpoints":[],"features":{"f":1},"version":5}'])
@pytest.mark.parametrize("met", ["by the controller of now", "by the next one"])
def test_a_registration_that_cannot_be_read_costs_only_its_broker(env, cluster, caplog, met, data):
    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        good, _ = await cluster.tree.get(BROKER)
        await cluster.tree.set(BROKER, data)
        await cluster.settle()
        if met == "by the next one":
            await end_term(cluster)
        epoch = cluster.controller.controller_epoch
        await cluster.die(3)
        await env.clock.sleep(60_000)
        assert (await cluster.state("t", 0))[0] == (2 if met == "by the controller of now" else 1)
        assert {line.partition(" ")[0] for line in lines(caplog)} == {BROKER}
        assert repr(data[:60]) in caplog.text
        await cluster.tree.set(BROKER, good)
        await cluster.settle()
        assert set(cluster.controller.term.state.brokers) == {1, 2}
        assert cluster.controller.controller_epoch == epoch
        assert "Traceback" not in caplog.text

    env.run(story())


def test_a_child_of_the_registrations_that_is_no_broker(env, cluster, caplog):
    async def story():
        await cluster.tree.create("/brokers/ids/notes")
        await cluster.settle()
        await end_term(cluster)
        assert set(cluster.controller.term.state.brokers) == {1, 2, 3}
        assert "Traceback" not in caplog.text

    env.run(story())
