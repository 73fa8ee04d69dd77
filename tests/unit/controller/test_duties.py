"""Controlled shutdown, elections that clients ask for, balance, producer ids; a controller that is not registered."""

import json

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree.payloads import encode_isr_change
from barnabas.cluster.tree.port import CoordinationError, Create, Delete, NotEmptyError, Set
from barnabas.controller.controller import Controller
from barnabas.controller.leader_elections import ElectionResult, ElectionType
from barnabas.controller.requests import Answered
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AllocateProducerIdsRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from controller_world import Cluster

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


# --- controlled shutdown ---


def shut_down(cluster, broker_id, broker_epoch=None):
    epoch = cluster.epoch(broker_id) if broker_epoch is None else broker_epoch
    return cluster.ask(
        cluster.controller.controlled_shutdown(ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch))
    )


def remaining(response):
    assert response.error_code == ErrorCode.NONE
    return [(partition.topic_name, partition.partition_index) for partition in response.remaining_partitions]


def test_controlled_shutdown(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [3, 2], 2: [2], 3: [1, 3]})
        cluster.channels.take()
        assert remaining(await shut_down(cluster, 2)) == [], "a partition with one replica does not count"
        assert await cluster.state("t", 0) == (3, 1, [1, 3], 1)
        assert await cluster.state("t", 1) == (3, 1, [3], 1)
        assert await cluster.state("t", 2) == (2, 0, [2], 0)
        assert await cluster.state("t", 3) == (1, 0, [1, 3], 0)
        told = cluster.channels.take()
        assert [details for other, kind, details in told if (other, kind) == (2, "stop")] == [{("t", 1): False}]
        assert (2, "lead", {("t", 0): (3, 1, [1, 3])}) in told, "it hears who leads now"
        assert (3, "lead", {("t", 1): (3, 1, [3])}) in told

        assert await cluster.alter(3, {("t", 0): (1, 1, [3, 1, 2])}) == [ErrorCode.INELIGIBLE_REPLICA]
        asked = cluster.controller.elect_leaders(PREFERRED, [("t", 0)])
        assert (await cluster.ask(asked))["t", 0].error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert remaining(await shut_down(cluster, 2)) == [], "asking twice changes nothing"
        assert await cluster.state("t", 1) == (3, 1, [3], 1)

        await cluster.die(2)
        assert await cluster.state("t", 2) == (-1, 1, [2], 1)
        assert await cluster.state("t", 0) == (3, 1, [1, 3], 1), "its death changes no more"
        await cluster.join(2)
        await cluster.settle()
        assert (await cluster.state("t", 2))[0] == 2
        assert await cluster.alter(3, {("t", 0): (1, 1, [3, 1, 2])}) == [(3, 1, 2, [1, 2, 3])]

    env.run(story())


@pytest.mark.parametrize(("isr", "after"), [([2, 3], (-1, 3, [2])), ([1], (1, 3, [1])), ([3, 1], (1, 3, [1]))])
def test_a_broker_that_starts_says_that_others_are_in_sync_in_its_place(env, cluster, isr, after):
    """Those wait to be taken out of the ISR before they register, and one that lives leads."""

    async def story():
        await cluster.create("t", {0: [2, 3, 1]})
        await cluster.alter(2, {("t", 0): (0, 0, [2, 3])})
        await cluster.die(3)
        await cluster.die(2)
        assert await cluster.state("t", 0) == (-1, 2, [2], 3)
        said = json.dumps({"version": 1, "controller_epoch": 1, "leader": -1, "leader_epoch": 2, "isr": isr})
        await cluster.tree.set("/brokers/topics/t/partitions/0/state", said.encode())
        notice = encode_isr_change([("t", 0)])
        await cluster.tree.create("/isr_change_notification/isr_change_", notice, sequential=True)
        await cluster.settle()
        assert (await cluster.state("t", 0))[:3] == after

    env.run(story())


def test_a_shutdown_waits_for_a_replica_that_catches_up(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.alter(2, {("t", 0): (0, 0, [2])})
        assert remaining(await shut_down(cluster, 2)) == [("t", 0)]
        assert await cluster.state("t", 0) == (2, 0, [2], 1), "it leads on meanwhile"
        assert await cluster.alter(2, {("t", 0): (0, 1, [2, 3])}) == [(2, 0, 2, [2, 3])]
        assert remaining(await shut_down(cluster, 2)) == []
        assert await cluster.state("t", 0) == (3, 1, [3], 3)

    env.run(story())


def test_two_that_shut_down_do_not_hand_over_to_each_other(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3, 1], 1: [2, 3]})
        assert remaining(await shut_down(cluster, 3)) == []
        assert remaining(await shut_down(cluster, 2)) == [("t", 1)]
        assert (await cluster.state("t", 0))[:3] == (1, 2, [1])
        assert (await cluster.state("t", 1))[:3] == (2, 1, [2])
        await cluster.die(3)
        assert (await cluster.state("t", 1))[:3] == (2, 1, [2]), "it leads on until it goes"

    env.run(story())


def test_a_shutdown_that_is_refused(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        stale = await shut_down(cluster, 2, cluster.epoch(2) - 1)
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
        assert (await shut_down(cluster, 9, 1)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
        assert remaining(await shut_down(cluster, 3, -1)) == [], "a broker without an epoch is believed"
        await cluster.controller.stop()
        refused = cluster.controller.controlled_shutdown(ControlledShutdownRequest(broker_id=2)).take()
        assert refused.error_code == ErrorCode.NOT_CONTROLLER

    env.run(story())


# --- elections ---


def test_elections_that_clients_ask_for(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [3, 2], 2: [2, 1], 3: [2], 4: [1]})
        await cluster.create("dying", {0: [2, 1]})
        await cluster.die(2)
        await cluster.tree.create("/admin/delete_topics/dying")
        await cluster.settle()

        async def elect(kind, *partitions):
            results = await cluster.ask(cluster.controller.elect_leaders(kind, partitions))
            return [result.leader if result.error is ErrorCode.NONE else result.error for result in results.values()]

        needless, absent = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        named = [("t", 0), ("t", 1), ("t", 9), ("absent", 0), ("dying", 0)]
        dead = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await elect(PREFERRED, *named) == [dead, needless, absent, absent, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert await elect(UNCLEAN, ("t", 3), ("t", 4)) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, needless]
        await cluster.join(2)
        await cluster.settle()
        assert await elect(PREFERRED, ("t", 0)) == [dead], "it lives, but is not in sync"
        await cluster.alter(3, {("t", 0): (1, 1, [3, 2])})
        assert await elect(PREFERRED, ("t", 0), ("t", 1)) == [2, needless]
        assert await cluster.state("t", 0) == (2, 2, [2, 3], 3)

    env.run(story())


def test_an_unclean_election_on_request_needs_no_setting(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        await cluster.die(3)
        await cluster.die(2)
        await cluster.join(3)
        await cluster.settle()
        assert (await cluster.state("t", 0))[:3] == (-1, 2, [2]), "nobody allowed it"
        results = await cluster.ask(cluster.controller.elect_leaders(UNCLEAN, [("t", 0)]))
        assert results == {("t", 0): ElectionResult(ErrorCode.NONE, None, 3)}
        data, _ = await cluster.tree.get("/brokers/topics/t/partitions/0/state")
        assert json.loads(data)["leader_recovery_state"] == 1
        request = cluster.alteration(3, {("t", 0): (3, 3, [3])})
        assert (await cluster.ask(cluster.controller.alter_partition(request))).error_code == ErrorCode.NONE
        data, _ = await cluster.tree.get("/brokers/topics/t/partitions/0/state")
        assert "leader_recovery_state" not in json.loads(data), "its leader has confirmed it"

    env.run(story())


def test_an_old_tool_wants_preferred_leaders(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3], 1: [2, 3]})
        await cluster.die(2)
        await cluster.join(2)
        await cluster.settle()
        await cluster.alter(3, {("t", 0): (1, 1, [3, 2]), ("t", 1): (1, 1, [3, 2])})
        for partition in (0, 1):
            node = {
                "version": 1,
                "partitions": [{"topic": "t", "partition": partition}, {"topic": "x", "partition": 0}],
            }
            await cluster.tree.create("/admin/preferred_replica_election", json.dumps(node).encode())
            await cluster.settle()
            assert (await cluster.state("t", partition))[0] == 2
            assert await cluster.tree.exists("/admin/preferred_replica_election") is None
        await cluster.tree.create("/admin/preferred_replica_election", b"what?")
        await cluster.settle()
        assert await cluster.tree.exists("/admin/preferred_replica_election") is None
        assert cluster.controller.controller_epoch == 1

    env.run(story())


def test_balance_leaves_alone_what_is_balanced_enough(env, cluster):
    async def story():
        await cluster.create("t", {index: [2, 3] for index in range(20)})

        async def lead(*indexes):
            for index in indexes:
                leader, epoch, _, version = await cluster.state("t", index)
                if leader == 2:
                    moved = LeaderAndIsr(3, epoch + 1, (2, 3), controller_epoch=1).encode()
                    await cluster.tree.set(f"/brokers/topics/t/partitions/{index}/state", moved, version)
                    notice = json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": index}]}).encode()
                    await cluster.tree.create("/isr_change_notification/isr_change_", notice, sequential=True)
            await env.clock.sleep(310_000)
            return [index for index in range(20) if (await cluster.state("t", index))[0] == 3]

        assert await lead(3, 7) == [3, 7], "ten percent are allowed"
        assert await lead(11) == [], "more are not"
        cluster.host.config.auto_leader_rebalance_enable = False
        assert await lead(1, 2, 3, 4) == [1, 2, 3, 4]

    env.run(story())


# --- producer ids ---


def test_blocks_of_producer_ids(env, cluster):
    async def story():
        async def block(broker_id, epoch=None):
            asked = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch or cluster.epoch(broker_id))
            response = await cluster.ask(cluster.controller.allocate_producer_ids(asked))
            return response.error_code or (response.producer_id_start, response.producer_id_len)

        assert await block(2) == (0, 1000)
        assert await block(3) == (1000, 1000)
        assert await block(2) == (2000, 1000)
        data, _ = await cluster.tree.get("/latest_producer_id_block")
        assert json.loads(data) == {"version": 1, "broker": 2, "block_start": "2000", "block_end": "2999"}
        assert await block(2, cluster.epoch(2) - 1) == ErrorCode.STALE_BROKER_EPOCH
        assert await block(9, 1) == ErrorCode.BROKER_ID_NOT_REGISTERED
        await cluster.controller.stop()
        refused = cluster.controller.allocate_producer_ids(AllocateProducerIdsRequest(broker_id=2)).take()
        assert refused.error_code == ErrorCode.NOT_CONTROLLER

    env.run(story())


# --- registrations ---


@pytest.mark.parametrize("other_is_left", [True, False])
def test_a_broker_that_comes_with_a_new_epoch_was_dead(env, cluster, other_is_left):
    async def story():
        await cluster.create("t", {0: [2, 3] if other_is_left else [2]})
        cluster.channels.take()
        data, _ = await cluster.tree.get("/brokers/ids/2")
        await cluster.tree.multi([Delete("/brokers/ids/2"), Create("/brokers/ids/2", data)])
        await cluster.settle()
        expected = (3, 1, [3]) if other_is_left else (2, 2, [2])
        assert (await cluster.state("t", 0))[:3] == expected
        requests = [request for broker_id, request in cluster.channels.told if broker_id == 2]
        assert {request.broker_epoch for request in requests} == {cluster.epoch(2)}, "nothing goes to its former life"
        final = cluster.channels.last(LeaderAndIsrRequest, 2).topic_states[0].partition_states[0]
        assert (final.leader, final.leader_epoch) == expected[:2]
        cache = cluster.channels.last(UpdateMetadataRequest, 2)
        assert [topic.topic_name for topic in cache.topic_states] == ["t"], "it hears of all partitions"

    env.run(story())


def test_a_new_life_hears_of_an_unchanged_leader_epoch(env, cluster):
    """All sessions are over at once. Nobody saw anybody die, so no epoch changes; each must hear that it leads on."""

    async def story():
        await cluster.create("t", {0: [2, 3]})
        nodes = [(f"/brokers/ids/{b}", (await cluster.tree.get(f"/brokers/ids/{b}"))[0]) for b in (1, 2, 3)]
        deletions = [Delete("/controller"), *(Delete(path) for path, _ in nodes)]
        cluster.controller.begin_again()
        await cluster.tree.multi([*deletions, *(Create(path, data) for path, data in nodes)])
        cluster.channels.take()
        cluster.controller.begin_again()
        await cluster.settle()
        await cluster.settle()
        assert cluster.controller.controller_epoch == 2
        assert await cluster.state("t", 0) == (2, 0, [2, 3], 0)
        for broker_id in (2, 3):
            request = cluster.channels.last(LeaderAndIsrRequest, broker_id)
            assert request.broker_epoch == cluster.epoch(broker_id)
            assert request.topic_states[0].partition_states[0].leader_epoch == 0

    env.run(story())


def test_a_controller_that_is_not_registered_empties_the_isrs(env):
    """All three were killed at once. The first that comes is controller, and lives as broker only afterwards."""
    cluster = Cluster(env)

    async def story():
        await cluster.start()
        await cluster.create("t", {0: [2, 3, 1], 1: [1, 2], 2: [3]})
        await cluster.controller.stop()
        await cluster.tree.multi([Delete("/controller"), *(Delete(f"/brokers/ids/{b}") for b in (1, 2, 3))])
        cluster.channels.take()
        second = cluster.controller = Controller(env, cluster.host.config, 1, cluster.tree, cluster.channels)
        await second.start()
        await cluster.settle()
        assert second.active
        assert await cluster.state("t", 0) == (-1, 1, [2], 1)
        assert await cluster.state("t", 1) == (-1, 1, [1], 1)
        assert await cluster.state("t", 2) == (-1, 1, [3], 1)
        assert cluster.channels.take() == []

        await cluster.create("new", {0: [3, 2]})
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.join(3)
        await cluster.settle()
        assert (await cluster.state("new", 0))[:3] == (3, 0, [3])
        await cluster.join(2)
        await cluster.settle()
        assert await cluster.alter(3, {("new", 0): (0, 0, [3, 2])}) == [(3, 0, 1, [2, 3])]
        assert await cluster.tree.exists("/brokers/topics/t") is not None, "it waits for broker 1"
        await cluster.join(1)
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None
        told = {broker_id for broker_id, _, _ in cluster.channels.take()}
        assert told == {1, 2, 3}
        await cluster.controller.stop()

    env.run(story())


# --- late and unfenced ---


def test_giving_up_leaves_the_controllership_of_another_alone(env, cluster, caplog):
    async def story():
        other = b'{"version":2,"brokerid":3,"timestamp":"1","kraftControllerEpoch":-1}'

        async def bug(*_):
            raise ZeroDivisionError

        cluster.controller.term._brokers_failed = bug
        await cluster.tree.delete("/brokers/ids/2")
        await env.clock.sleep(500)
        assert not cluster.controller.active, "it has resigned, and has not removed its node yet"
        await cluster.tree.multi([Delete("/controller"), Create("/controller", other), Set("/controller_epoch", b"2")])
        await env.clock.sleep(5_000)
        assert (await cluster.tree.get("/controller"))[0] == other
        assert not cluster.controller.active

    env.run(story())


def test_answers_of_a_former_life_or_topic_do_not_count(env, cluster):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        former = Answered(3, cluster.epoch(3), {"t": cluster.topic_id("t")})
        await cluster.die(3)
        await cluster.join(3)
        await cluster.settle()
        cluster.controller.term._log_failures_answered(former, [("t", 0, 3)])
        await cluster.settle()
        assert cluster.controller.term.state.is_online(3, ("t", 0))
        cluster.channels.deaf.update({2, 3})
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        other_topic = Answered(2, cluster.epoch(2), {"t": b"the topic before"})
        present = [Answered(b, cluster.epoch(b), {"t": cluster.topic_id("t")}) for b in (2, 3)]
        for answered in (former, other_topic):
            cluster.controller.term._deletions_answered(answered, [("t", 0, answered.broker_id)], [])
        await cluster.settle()
        states = cluster.controller.term.state.replica_states
        assert {state.name for state in states.values()} == {"DELETION_STARTED"}
        for answered in present:
            cluster.controller.term._deletions_answered(answered, [("t", 0, answered.broker_id)], [])
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_events_of_a_former_term_are_dropped(env, cluster):
    async def story():
        former = cluster.controller.term
        await cluster.tree.multi([Delete("/controller")])
        cluster.controller.begin_again()
        await cluster.settle()
        assert cluster.controller.term is not former
        handled = []

        async def handle():
            handled.append("former")

        former._enqueue(handle)
        await cluster.settle()
        assert handled == []

    env.run(story())


@pytest.mark.parametrize("met", ["while it is controller", "when it takes over"])
def test_a_wish_to_delete_a_topic_that_was_made_again_is_void(env, cluster, met):
    async def story():
        await cluster.create("t", {0: [2, 3]})
        data, _ = await cluster.tree.get("/brokers/topics/t")
        meant = json.loads(data)["topic_id"]
        another = "A" * 22
        if met == "when it takes over":
            await cluster.controller.stop()
            await cluster.tree.delete("/controller")
        await cluster.tree.create("/admin/delete_topics/t", another.encode())
        if met == "when it takes over":
            cluster.controller = Controller(env, cluster.host.config, 1, cluster.tree, cluster.channels)
            await cluster.controller.start()
        await cluster.settle()
        assert await cluster.tree.exists("/admin/delete_topics/t") is None
        assert await cluster.tree.exists("/brokers/topics/t") is not None
        await cluster.tree.create("/admin/delete_topics/t", meant.encode())
        await cluster.settle()
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_a_new_controller_does_not_have_replicas_made_again_that_are_being_deleted(env, cluster):
    async def story():
        await cluster.create("t", {0: [1, 2]})
        await cluster.create("u", {0: [1, 2]})
        cluster.channels.deaf.add(2)
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        await cluster.controller.stop()
        await cluster.tree.delete("/controller")
        cluster.channels.take()
        cluster.channels.deaf.clear()
        cluster.controller = Controller(env, cluster.host.config, 1, cluster.tree, cluster.channels)
        await cluster.controller.start()
        await cluster.settle()
        told = cluster.channels.take()
        assert {broker for broker, kind, states in told if kind == "lead" and ("u", 0) in states} == {1, 2}
        assert not [broker for broker, kind, states in told if kind == "lead" and ("t", 0) in states]
        assert {broker for broker, kind, states in told if kind == "stop" and states.get(("t", 0))} == {1, 2}
        assert await cluster.tree.exists("/brokers/topics/t") is None

    env.run(story())


def test_the_wish_goes_with_the_topic_in_one_change(env, cluster):
    async def story():
        await cluster.create("t", {index: [2] for index in range(99)})
        seen = []
        multi = cluster.tree.multi

        async def observed(operations):
            results = await multi(operations)
            topic, wish = [await cluster.tree.exists(p) for p in ("/brokers/topics/t", "/admin/delete_topics/t")]
            seen.append((topic is not None, wish is not None))
            return results

        cluster.tree.multi = observed
        await cluster.tree.create("/admin/delete_topics/t")
        await cluster.settle()
        assert seen[-1] == (False, False)
        assert (False, True) not in seen

    env.run(story())


def test_an_event_that_the_tree_refuses_ends_the_term(env, cluster, caplog):
    """Memory may hold half of a change, so everything is read again."""

    async def story():
        await cluster.create("t", {0: [2, 3]})
        machines = cluster.controller.term._machines

        async def refused(*_):
            raise NotEmptyError("/somewhere")

        machines.leave_isrs = refused
        await cluster.tree.delete("/brokers/ids/2")
        await env.clock.sleep(3_000)
        assert "a controller event failed" in caplog.text
        assert cluster.controller.controller_epoch == 2
        assert (await cluster.state("t", 0))[::2] == (3, [3])

    env.run(story())


def test_an_election_that_fails_is_tried_again(env, cluster, monkeypatch):
    async def refuse(operations):
        raise CoordinationError("/controller", "no room")

    async def story():
        with monkeypatch.context() as trouble:
            trouble.setattr(cluster.tree, "multi", refuse)
            await cluster.tree.delete("/controller")
            await env.clock.sleep(500)
            assert not cluster.controller.active
        await env.clock.sleep(2_000)
        assert cluster.controller.active

    env.run(story())
