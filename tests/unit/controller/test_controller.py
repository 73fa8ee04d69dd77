"""What a controller writes and whom it tells what, when brokers come and go and topics are made and deleted."""

import asyncio
import json

import pytest
from barnabas.cluster.tree.payloads import BrokerEndpoint, BrokerRegistration
from barnabas.cluster.tree.port import ConnectionLossError, Create, Delete, MultiError, Set
from barnabas.controller.controller import Controller
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import LeaderAndIsrRequest, UpdateMetadataRequest


def test_new_controller_tells_every_broker_who_lives(cluster):
    assert cluster.controller.active
    for broker_id in (1, 2, 3):
        request = cluster.channels.last(UpdateMetadataRequest, broker_id)
        assert sorted(broker.id for broker in request.live_brokers) == [1, 2, 3]
        assert (request.controller_id, request.controller_epoch) == (1, 1)
        assert request.broker_epoch > 0


def test_creation(env, cluster):
    async def story():
        cluster.channels.take()
        await cluster.create("t", {0: [2, 3], 1: [3, 1]})
        assert await cluster.state("t", 0) == (2, 0, [2, 3], 0)
        assert await cluster.state("t", 1) == (3, 0, [1, 3], 0)
        topic, _ = await cluster.tree.get("/brokers/topics/t")
        assert len(json.loads(topic)["topic_id"]) == 22, "a topic without an id is given one"
        is_new = [
            state.is_new
            for _, request in cluster.channels.told
            if isinstance(request, LeaderAndIsrRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        assert is_new == [True, True, True, True], "each replica is told once"
        told = cluster.channels.take()
        leads = {broker_id: details for broker_id, kind, details in told if kind == "lead" and details}
        first, second = {("t", 0): (2, 0, [2, 3])}, {("t", 1): (3, 0, [1, 3])}
        assert leads == {1: second, 2: first, 3: {**first, **second}}
        for broker_id in (1, 2, 3):
            kinds = [kind for other, kind, _ in told if other == broker_id]
            assert kinds.index("lead") < kinds.index("metadata")
            assert (broker_id, "metadata", {**first, **second}) in told

    env.run(story())


def test_the_states_of_a_topic_are_one_write(env, cluster):
    async def story():
        writes = []
        multi = cluster.tree.multi

        async def counted(operations):
            writes.append(len(operations))
            return await multi(operations)

        cluster.tree.multi = counted
        await cluster.create("t", {index: [1, 2, 3] for index in range(20)})
        assert [count for count in writes if count > 2] == [1 + 1 + 40], "fence, folder, and two nodes a partition"

    env.run(story())


def test_dead_leader(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [3, 2], 2: [2]})
        cluster.channels.take()
        await cluster.die(2)
        assert await cluster.state("t", 0) == (3, 1, [1, 3], 1)
        assert await cluster.state("t", 1) == (3, 1, [3], 1)
        assert await cluster.state("t", 2) == (-1, 1, [2], 1), "the last member stays"
        told = cluster.channels.take()
        assert {broker_id for broker_id, _, _ in told} == {1, 3}
        final = {}
        for broker_id, kind, details in told:
            if kind == "metadata" and broker_id == 1:
                final.update(details)
        assert final == {("t", 0): (3, 1, [1, 3]), ("t", 1): (3, 1, [3]), ("t", 2): (-1, 1, [2])}
        for _ in range(3):
            await cluster.join(2)
            await cluster.settle()
            await cluster.die(2)
        await cluster.join(2)
        await cluster.settle()
        leader, epoch, isr, _ = await cluster.state("t", 2)
        assert (leader, isr) == (2, [2]), "elected cleanly when it returns"
        assert epoch == 1 + 1 + 3 * 2
        assert (await cluster.state("t", 0))[2] == [1, 3], "its leader lets it in again, not the controller"
        request = cluster.channels.last(LeaderAndIsrRequest, 2)
        assert request.broker_epoch == cluster.controller.term.state.brokers[2].epoch

    env.run(story())


def test_unclean_election_only_where_it_is_allowed(env, cluster):
    async def story():
        for topic in ("clean", "unclean"):
            await cluster.create(topic, {0: [2, 3]})
        await cluster.tree.create(
            "/config/topics/unclean", b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
        )
        await cluster.die(3)
        await cluster.die(2)
        await cluster.join(3)
        await cluster.settle()
        assert await cluster.state("clean", 0) == (-1, 2, [2], 2)
        assert (await cluster.state("unclean", 0))[0] == 3
        data, _ = await cluster.tree.get("/brokers/topics/unclean/partitions/0/state")
        assert json.loads(data)["leader_recovery_state"] == 1
        cluster.host.config.set_dynamic({"unclean.leader.election.enable": "true"}, {})
        await cluster.settle()
        assert (await cluster.state("clean", 0))[::2] == (3, [3]), "allowed for all now"

    env.run(story())


def test_no_live_replica_at_creation(env, cluster):
    async def story():
        await cluster.die(2)
        await cluster.create("t", {0: [2]})
        assert await cluster.tree.exists("/brokers/topics/t/partitions/0/state") is None
        await cluster.join(2)
        await cluster.settle()
        assert await cluster.state("t", 0) == (2, 0, [2], 0)

    env.run(story())


def test_a_state_written_by_its_leader_is_read_again(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        shrunk = {"controller_epoch": 1, "leader": 2, "version": 1, "leader_epoch": 0, "isr": [2, 1]}
        await cluster.tree.set("/brokers/topics/t/partitions/0/state", json.dumps(shrunk).encode(), 0)
        await cluster.die(2)
        assert await cluster.state("t", 0) == (1, 1, [1], 2), "3 had left the ISR: it may not lead"

    env.run(story())


def test_isr_notice(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        shrunk = {"controller_epoch": 1, "leader": 2, "version": 1, "leader_epoch": 0, "isr": [2, 1]}
        await cluster.tree.set("/brokers/topics/t/partitions/0/state", json.dumps(shrunk).encode(), 0)
        cluster.channels.take()
        notice = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"gone","partition":1}]}'
        await cluster.tree.create("/isr_change_notification/isr_change_", notice, sequential=True)
        await cluster.settle()
        told = cluster.channels.take()
        state = {("t", 0): (2, 0, [1, 2])}
        assert sorted(told) == [(broker_id, what, state) for broker_id in (1, 2, 3) for what in ("lead", "metadata")]
        assert await cluster.tree.children("/isr_change_notification") == []

    env.run(story())


@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_leader_epoch_that_another_broker_wrote_reaches_the_leader(env, cluster, is_read_before):
    """As a broker does before it registers, when its logs have later epochs than the tree (broker/adoption.py).

    A write of the controller that came too late may have made it read the state before the notice.
    """

    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 3]})
        for index, leader, isr in ((0, 2, [2, 3]), (1, -1, [3])):
            raised = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 7, "isr": isr}
            await cluster.tree.set(f"/brokers/topics/t/partitions/{index}/state", json.dumps(raised).encode(), 0)
        if is_read_before:
            await cluster.controller.term.tree.read_states([("t", 0), ("t", 1)])
        cluster.channels.take()
        notice = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":1}]}'
        await cluster.tree.create("/isr_change_notification/isr_change_", notice, sequential=True)
        await cluster.settle()
        told = cluster.channels.take()
        roles = {("t", 0): (2, 7, [2, 3]), ("t", 1): (3, 8, [3])}
        assert [entry for entry in told if entry[1] == "lead"] == [(2, "lead", roles), (3, "lead", roles)]
        assert [entry for entry in told if entry[1] == "metadata"] == [(b, "metadata", roles) for b in (1, 2, 3)]

    env.run(story())


def test_a_start_whose_session_is_lost_at_once_ends(env, cluster):
    async def story():
        other = Controller(env, cluster.host.config, 2, cluster.tree, cluster.channels)
        starting = asyncio.create_task(other.start())
        await env.clock.sleep(0)
        other.begin_again()
        await env.clock.sleep(1_000)
        assert starting.done()
        await other.stop()

    env.run(story())


@pytest.mark.parametrize("answer", [ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH])
def test_failed_logs(env, cluster, answer):
    """The log that is back has its role already if the request was sent again, because its answer was lost.

    Until 2026-11 such a replica stayed offline for the controller, and never came into sync.
    """

    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 1]})
        cluster.channels.failed_logs.add((2, "t", 0))
        notice = b'{"version":1,"broker":2,"event":1}'
        await cluster.tree.create("/log_dir_event_notification/log_dir_event_", notice, sequential=True)
        await cluster.settle()
        await cluster.settle()
        assert await cluster.state("t", 0) == (3, 1, [3], 1)
        assert (await cluster.state("t", 1))[0] == 2, "its other log is fine"
        assert await cluster.tree.children("/log_dir_event_notification") == []
        request = cluster.channels.last(UpdateMetadataRequest, 1)
        offline = [s.offline_replicas for t in request.topic_states for s in t.partition_states if t.topic_name == "t"]
        assert [2] in offline
        cluster.channels.failed_logs.clear()
        cluster.channels.answers_else = answer
        await cluster.tree.create("/log_dir_event_notification/log_dir_event_", notice, sequential=True)
        await cluster.settle()
        await cluster.settle()
        assert await cluster.alter(3, {("t", 0): (1, 1, [3, 2])}) == [(3, 1, 2, [2, 3])]

    env.run(story())


def test_deletion(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [3]})
        await cluster.tree.create("/config/topics/t", b'{"version":1,"config":{}}')
        cluster.channels.take()
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        told = cluster.channels.take()
        for broker_id in (1, 2, 3):
            details = next(details for other, kind, details in told if (other, kind) == (broker_id, "metadata"))
            assert {leader for leader, _, _ in details.values()} == {-2}
        stops = {broker_id: [d for other, k, d in told if (other, k) == (broker_id, "stop")] for broker_id in (1, 2, 3)}
        both = {("t", 0): False, ("t", 1): False}
        assert stops == {
            1: [],
            2: [{("t", 0): False}, {("t", 0): True}],
            3: [both, dict.fromkeys(both, True)],
        }
        for path in ("/brokers/topics/t", "/config/topics/t", "/admin/delete_topics/t"):
            assert await cluster.tree.exists(path) is None
        assert cluster.controller.term.state.replica_states == {}
        assert cluster.controller.term.state.states == {}

    env.run(story())


def test_deletion_waits_for_a_dead_replica(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.die(3)
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is not None
        cluster.channels.take()
        await cluster.join(3)
        await cluster.settle()
        assert [details for other, kind, details in cluster.channels.take() if (other, kind) == (3, "stop")] == [
            {("t", 0): False},
            {("t", 0): True},
        ]
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_deletion_that_a_broker_cannot_do_is_tried_again_when_it_starts_anew(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        cluster.channels.cannot_delete.add(3)
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is not None
        cluster.channels.cannot_delete.clear()
        await cluster.die(3)
        await cluster.join(3)
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_a_broker_dies_while_deleting(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        cluster.channels.deaf.add(3)
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        await cluster.die(3)
        assert await cluster.tree.exists("/brokers/topics/t") is not None
        cluster.channels.deaf.clear()
        await cluster.join(3)
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_unknown_deletions_and_disabled_deletion(env, cluster):
    async def story():
        await cluster.tree.create("/admin/delete_topics/absent")
        await cluster.settle()
        assert await cluster.tree.children("/admin/delete_topics") == []
        await cluster.create("t", {0: [2]})
        cluster.host.config.delete_topic_enable = False
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        assert await cluster.tree.children("/admin/delete_topics") == []
        assert (await cluster.state("t", 0))[0] == 2

    env.run(story())


def test_new_partitions(env, cluster):
    async def story():
        await cluster.create("t", {0: [2]})
        data, _ = await cluster.tree.get("/brokers/topics/t")
        node = json.loads(data)
        node["partitions"] = {"0": [2], "1": [3, 1]}
        await cluster.tree.set("/brokers/topics/t", json.dumps(node).encode())
        await cluster.settle()
        assert await cluster.state("t", 1) == (3, 0, [1, 3], 0)
        assert await cluster.state("t", 0) == (2, 0, [2], 0)

    env.run(story())


def test_other_endpoints_are_passed_on(env, cluster):
    async def story():
        data = BrokerRegistration((BrokerEndpoint("PLAINTEXT", "host-2", 7777),), 2, "rack-2").encode()
        await cluster.tree.set("/brokers/ids/2", data)
        await cluster.settle()
        request = cluster.channels.last(UpdateMetadataRequest, 3)
        ports = {broker.id: broker.endpoints[0].port for broker in request.live_brokers}
        assert ports == {1: 9092, 2: 7777, 3: 9092}

    env.run(story())


def test_preferred_leaders_come_back(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.die(2)
        await cluster.join(2)
        await cluster.settle()
        leader, epoch, _, version = await cluster.state("t", 0)
        assert leader == 3
        grown = {"controller_epoch": 1, "leader": 3, "version": 1, "leader_epoch": epoch, "isr": [3, 2]}
        await cluster.tree.set("/brokers/topics/t/partitions/0/state", json.dumps(grown).encode(), version)
        notice = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
        await cluster.tree.create("/isr_change_notification/isr_change_", notice, sequential=True)
        await env.clock.sleep(310_000)
        assert (await cluster.state("t", 0))[:3] == (2, epoch + 1, [2, 3])

    env.run(story())


def test_the_next_controller_goes_on_where_the_first_stopped(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [3, 2]})
        await cluster.controller.stop()
        await cluster.tree.delete("/brokers/ids/2")
        await cluster.tree.delete("/controller")
        # half created by the first one
        await cluster.tree.create("/brokers/topics/half", b'{"version":1,"partitions":{"0":[3],"1":[3]}}')
        await cluster.tree.create("/brokers/topics/half/partitions/0", make_parents=True)
        await cluster.tree.create("/brokers/topics/dying", b'{"version":1,"partitions":{"0":[3]}}')
        await cluster.tree.create("/admin/delete_topics/dying")
        second = Controller(env, cluster.host.config, 1, cluster.tree, cluster.channels)
        cluster.controller = second
        await second.start()
        await cluster.settle()
        assert second.controller_epoch == 2
        assert (await cluster.state("t", 0))[:3] == (3, 1, [3]), "one change, where Kafka's makes two"
        assert (await cluster.state("t", 1))[:3] == (3, 1, [3])
        assert (await cluster.state("half", 0)) == (3, 0, [3], 0)
        assert (await cluster.state("half", 1)) == (3, 0, [3], 0)
        assert await cluster.tree.exists("/brokers/topics/dying") is None

    env.run(story())


@pytest.mark.parametrize(("heard", "last"), [(0, 7), (9, 9)])
def test_epochs_go_on_when_somebody_has_deleted_their_node(env, cluster, heard, last):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.tree.multi([Delete("/controller"), Set("/controller_epoch", b"6")])
        await cluster.settle()
        await cluster.tree.delete("/brokers/ids/2")
        await cluster.settle()
        assert (await cluster.state("t", 0))[:2] == (3, 1), "written in epoch 7"
        await cluster.controller.stop()
        await cluster.tree.multi([Delete("/controller"), Delete("/controller_epoch")])
        arguments = env, cluster.host.config, 1, cluster.tree, cluster.channels
        cluster.controller = Controller(*arguments, heard_epoch=lambda: heard)
        await cluster.controller.start()
        await cluster.settle()
        assert cluster.controller.active
        assert cluster.controller.controller_epoch == last + 1
        assert (await cluster.tree.get("/controller_epoch"))[0] == b"%d" % (last + 1)

    env.run(story())


def test_after_the_fence_is_lost_nothing_is_written_or_told(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        other = b'{"version":2,"brokerid":3,"timestamp":"1","kraftControllerEpoch":-1}'
        # in one change with a death, so that the first controller may act on the death before it hears of the second
        await cluster.tree.multi(
            [
                Delete("/brokers/ids/2"),
                Delete("/controller"),
                Create("/controller", other, ephemeral=True),
                Set("/controller_epoch", b"2"),
            ]
        )
        cluster.channels.take()
        await cluster.settle()
        assert not cluster.controller.active
        assert await cluster.state("t", 0) == (2, 0, [2, 3], 0)
        assert not any(kind == "lead" for _, kind, _ in cluster.channels.take())
        with pytest.raises(MultiError):
            await cluster.tree.multi([Set("/controller_epoch", b"3", 1)])

    env.run(story())


def test_a_new_session_registers_before_it_elects(env, cluster):
    async def story():
        await cluster.create("t", {0: [1]})
        order = []

        async def register():
            order.append(("register", cluster.controller.active, cluster.controller.controller_epoch))

        cluster.controller.register_again = register
        await cluster.tree.multi([Delete("/controller")])  # with the session goes what it had made
        cluster.controller.begin_again()
        await cluster.settle()
        assert order == [("register", False, 1)]
        assert cluster.controller.active
        assert cluster.controller.controller_epoch == 2

    env.run(story())


def test_a_tree_that_does_not_answer_is_asked_again(env, cluster):
    async def story():
        children, failures = cluster.tree.children, [2]

        async def lossy(path, watch=None):
            if failures[0]:
                failures[0] -= 1
                raise ConnectionLossError(path)
            return await children(path, watch)

        cluster.tree.children = lossy
        await cluster.create("t", {0: [2]})
        await env.clock.sleep(1_000)
        assert await cluster.state("t", 0) == (2, 0, [2], 0)
        assert failures == [0]

    env.run(story())


def test_a_bug_hands_the_controllership_over(env, cluster, caplog):
    async def story():
        async def bug(*_):
            raise ZeroDivisionError

        cluster.controller.term._brokers_failed = bug
        await cluster.die(3)
        await cluster.settle()
        assert "a bug in a controller event" in caplog.text
        assert cluster.controller.active, "elected again: nobody else was there"
        assert cluster.controller.controller_epoch == 2

    env.run(story())
