"""One broker with everything real but time, disk and network: it elects itself, creates, leads, serves, deletes."""

import json
from itertools import pairwise

import pytest
from barnabas.cluster.producer_ids import ProducerIds
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import Create, Delete, Set
from barnabas.controller.requests import FOLDERS_PER_REQUEST
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from barnabas.runtime.pending import Pending
from replication_world import Host, Observed, batch, offsets_of, result_of


async def create(host, name="orders", partitions=1, **options):
    error, message = await host.admin.create_topic(name, partition_count=partitions, replication_factor=1, **options)
    assert error is ErrorCode.NONE, message
    await host.wait(lambda: host.metadata_cache.has_leaders(name, partitions))


async def set_to(host, entity_path, settings):
    assert await host.admin.change_overrides(entity_path, lambda current: settings)


def test_creates_leads_appends_and_is_fetched_from_by_long_poll(env, alone):
    async def story():
        assert alone.controller.active
        await create(alone, partitions=2)
        cache = alone.metadata_cache
        assert cache.controller_id == 1
        assert cache.topic_name(cache.topic_id("orders")) == "orders"
        partition = alone.manager.partition("orders", 0)
        assert partition.is_leader
        assert (partition.isr, partition.leader_epoch, partition.topic_id) == ((1,), 0, cache.topic_id("orders"))
        assert sorted(alone.leading) == [("orders", 0), ("orders", 1)]
        state, stat = await alone.coordination.get("/brokers/topics/orders/partitions/0/state")
        assert json.loads(state) == {
            "controller_epoch": 1,
            "leader": 1,
            "version": 1,
            "leader_epoch": 0,
            "isr": [1],
        }
        assert partition.partition_epoch == stat.version == 0

        params = FetchParams(max_wait_ms=10_000, min_bytes=1)
        waiting = Observed(alone.manager.fetching.fetch(params, [FetchPartition("orders", 0, 0, 1 << 20)]))
        assert not waiting.done
        appended = alone.manager.append([("orders", 0, batch(3))], required_acks=-1, timeout_ms=1_000)
        assert isinstance(appended, list), "the ISR is this broker alone, so it is committed"
        assert (appended[0].error, appended[0].base_offset) == (ErrorCode.NONE, 0)
        assert not waiting.done, "never inside the transition"
        before_ms = env.clock.monotonic_ms()
        await env.clock.sleep(0)
        assert waiting.done
        assert env.clock.monotonic_ms() == before_ms, "no timer was needed"
        (fetched,) = waiting.value
        assert (fetched.error, fetched.high_watermark) == (ErrorCode.NONE, 3)
        assert offsets_of(fetched.records) == [0]
        assert alone.manager.fetching.parked_count == 0
        assert partition.fetch_waiters == {}

    env.run(story())


def test_a_big_topic_is_made_in_pieces_and_without_a_sync_for_each_log(env, alone):
    async def story():
        made = [0]

        def look():
            made.append(len(alone.manager.partitions))
            if made[-1] < 250:
                env.clock.call_soon(look)

        look()
        env.disk.journal = []
        await create(alone, partitions=250)
        assert made[-1] == 250
        assert max(after - before for before, after in pairwise(made)) == FOLDERS_PER_REQUEST
        assert not [path for kind, path in env.disk.journal if kind.startswith("sync")]
        await env.clock.sleep(1_001)
        syncs = [path for kind, path in env.disk.journal if kind == "sync_directory"]
        assert syncs == [alone.log_manager.directories[0].path], "the names of all folders, once"

    env.run(story())


def test_deletes_and_creates_again_under_the_same_name(env, alone):
    async def story():
        await create(alone, partitions=3, configs={"cleanup.policy": "compact"})
        first_id = alone.metadata_cache.topic_id("orders")
        assert alone.manager.partition("orders", 0).log.config.cleanup_policy == {"compact"}
        waiting = Observed(
            alone.manager.fetching.fetch(
                FetchParams(max_wait_ms=60_000, min_bytes=1), [FetchPartition("orders", 0, 0, 1 << 20)]
            )
        )
        deleted = []
        alone.manager.on_deleted.append(deleted.extend)
        assert await alone.admin.delete_topic("orders") == (ErrorCode.NONE, None)
        assert await alone.admin.delete_topic("orders") == (ErrorCode.NONE, None), "asking twice is fine"
        await alone.wait(lambda: not alone.metadata_cache.contains("orders"))
        await create(alone, partitions=1)  # waits for the last steps of the deletion
        assert sorted(deleted) == [("orders", 0), ("orders", 1), ("orders", 2)]
        assert waiting.done
        assert waiting.value[0].error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert alone.metadata_cache.topic_id("orders") not in (first_id, bytes(16))
        assert alone.metadata_cache.topic_name(first_id) is None
        assert alone.manager.partition("orders", 0).log.config.cleanup_policy == {"delete"}, (
            "settings of the old one are gone"
        )
        assert await alone.coordination.children("/admin/delete_topics") == []

    env.run(story())


def test_a_topic_without_settings_of_its_own_is_made_without_a_notice(env, alone):
    """As Kafka makes it (golden tree of 3.9.1); each broker would read four nodes to learn nothing."""

    async def story():
        await create(alone)
        assert await alone.coordination.children("/config/changes") == []
        outcome = await alone.admin.create_topic("letters", configs={"cleanup.policy": "compact"})
        assert outcome == (ErrorCode.NONE, None)
        assert len(await alone.coordination.children("/config/changes")) == 1
        await alone.wait(lambda: alone.metadata_cache.has_leaders("letters", 1))
        assert alone.manager.partition("letters", 0).log.config.cleanup_policy == {"compact"}

    env.run(story())


def test_new_partitions(env, alone):
    async def story():
        await create(alone)
        assert await alone.admin.create_partitions("orders", 3) == (ErrorCode.NONE, None)
        await alone.wait(lambda: alone.metadata_cache.has_leaders("orders", 3))
        assert alone.manager.partition("orders", 2).is_leader

    env.run(story())


def test_settings_reach_the_log_and_the_broker(env, alone):
    async def story():
        await create(alone)
        log = alone.manager.partition("orders", 0).log
        assert log.config.retention_ms == 604_800_000
        await set_to(alone, "topics/orders", {"retention.ms": "1000"})
        await env.clock.sleep(10)
        assert log.config.retention_ms == 1_000
        assert await alone.admin.overrides("topics/orders") == {"retention.ms": "1000"}
        await set_to(alone, "brokers/<default>", {"message.max.bytes": "2000"})
        await env.clock.sleep(10)
        assert alone.config.message_max_bytes == 2_000
        assert log.config.max_message_bytes == 2_000
        await set_to(alone, "brokers/1", {"message.max.bytes": "3000"})
        await env.clock.sleep(10)
        assert alone.config.message_max_bytes == 3_000, "this broker's own is stronger"
        await env.clock.sleep(16 * 60 * 1000)
        await set_to(alone, "topics/orders", {})
        await env.clock.sleep(10)
        assert log.config.retention_ms == 604_800_000
        assert len(await alone.coordination.children("/config/changes")) == 1, "old notices are removed"

    env.run(story())


REFUSALS = [
    ({"partition_count": 0}, ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive"),
    ({"partition_count": 100_000}, ErrorCode.INVALID_PARTITIONS, "bytes in one node of the tree, of 900000"),
    ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR, "because only 1 broker(s) are registered."),
    ({"configs": {"no.such": "1"}}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such"),
    ({"configs": {"segment.bytes": "many"}}, ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
    ({"assignment": {0: [9]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but no such broker"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSALS)
def test_topics_that_are_refused(env, alone, options, error, message):
    async def story():
        found, text = await alone.admin.create_topic("refused", **options)
        assert found is error
        assert message in text
        assert await alone.coordination.exists("/brokers/topics/refused") is None

    env.run(story())


def test_refusals_that_need_another_topic(env, alone):
    async def story():
        await create(alone, "my.topic")
        assert await alone.admin.create_topic("my.topic") == (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "Topic 'my.topic' already exists.",
        )
        assert (await alone.admin.create_topic("my_topic"))[0] is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await alone.admin.create_partitions("my.topic", 1) == (
            ErrorCode.INVALID_PARTITIONS,
            "Topic already has 1 partition(s).",
        )
        assert (await alone.admin.create_partitions("absent", 2))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found, text = await alone.admin.create_partitions("my.topic", 100_000)
        assert (found, text[:16]) == (ErrorCode.INVALID_PARTITIONS, "100000 partition")
        assert await alone.admin.create_partitions("my.topic", 3, [[1]]) == (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        )
        assert (await alone.admin.delete_topic("absent"))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        outcome = await alone.admin.create_topic("dry", partition_count=2, validate_only=True)
        assert outcome == (ErrorCode.NONE, None)
        assert await alone.coordination.exists("/brokers/topics/dry") is None

    env.run(story())


def restarted(env, path, *, unclean=False):
    return Host(env, EmbeddedCoordination(env, path))


def test_restart_leads_again_in_the_same_epoch(env):
    first = Host(env, EmbeddedCoordination(env, ":memory:"))

    async def story():
        await first.start_alone()
        await create(first)
        await result_of(first.append("orders"))
        await first.controller.stop()
        first.manager.shutdown()
        first.log_manager.shutdown()
        again = Host(env, first.coordination)
        again.log_manager.start()
        again.manager.start()
        again.manager.broker_epoch = first.manager.broker_epoch
        await first.coordination.delete("/controller")
        await again.controller.start()
        await again.wait(lambda: again.metadata_cache.has_leaders("orders", 1))
        partition = again.manager.partition("orders", 0)
        assert (partition.leader_epoch, partition.high_watermark, partition.log_end_offset) == (0, 1, 1)
        assert again.controller.controller_epoch == 2
        await again.stop()

    env.run(story())


def test_a_failed_fence_ends_the_controllership(env, alone, caplog):
    async def story():
        caplog.set_level("INFO")
        await create(alone)
        await alone.coordination.set("/controller_epoch", b"99")  # as an election elsewhere would have
        assert (await alone.admin.create_topic("later", replication_factor=1))[0] is ErrorCode.NONE
        await alone.wait(lambda: alone.metadata_cache.has_leaders("later", 1))
        assert "another controller was elected: resigning from epoch 1" in caplog.text
        assert alone.controller.controller_epoch == 99, "/controller was still ours: taken over afresh"
        state = json.loads((await alone.coordination.get("/brokers/topics/later/partitions/0/state"))[0])
        assert state["controller_epoch"] == 99

    env.run(story())


def test_another_controller_is_noticed_and_followed(env, alone):
    async def story():
        other = b'{"version":2,"brokerid":2,"timestamp":"1","kraftControllerEpoch":-1}'
        await alone.coordination.multi(
            [Delete("/controller"), Create("/controller", other, ephemeral=True), Set("/controller_epoch", b"2")]
        )
        await env.clock.sleep(10)
        assert not alone.controller.active
        assert (await alone.admin.create_topic("later", replication_factor=1))[0] is ErrorCode.NONE
        await env.clock.sleep(10)
        assert not alone.metadata_cache.contains("later"), "not ours to create"
        await alone.coordination.delete("/controller")
        await alone.wait(lambda: alone.metadata_cache.has_leaders("later", 1))
        assert alone.controller.controller_epoch == 3

    env.run(story())


def test_a_failed_log_is_given_up(env, alone):
    async def story():
        await create(alone)
        partition = alone.manager.partition("orders", 0)
        partition.log.health.fail(OSError(5, "disk"))
        await env.clock.sleep(10)
        assert alone.manager.partition("orders", 0) is ErrorCode.KAFKA_STORAGE_ERROR
        (result,) = await result_of(alone.append("orders"))
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert ("orders", 0) in alone.following
        state = json.loads((await alone.coordination.get("/brokers/topics/orders/partitions/0/state"))[0])
        assert (state["leader"], state["isr"]) == (-1, [1])
        assert alone.metadata_cache.partition("orders", 0).leader_id == -1

    env.run(story())


def test_producer_ids_never_repeat(env, alone):
    async def story():
        def ask(request, version):
            assert version == 0
            return alone.controller.allocate_producer_ids(request)

        ids = ProducerIds(env.clock, 1, lambda: alone.manager.broker_epoch, ask, lambda last: Pending.of(None))
        assert ids.next() is None
        await env.clock.sleep(0)
        await env.clock.sleep(0)
        taken = []
        for _ in range(2_500):
            producer_id = ids.next()
            while producer_id is None:
                await env.clock.sleep(1)
                producer_id = ids.next()
            taken.append(producer_id)
            if len(taken) % 100 == 0:
                await env.clock.sleep(0)
        assert taken == list(range(2_500))
        other = ProducerIds(env.clock, 1, lambda: alone.manager.broker_epoch, ask, lambda last: Pending.of(None))
        assert other.next() is None
        await env.clock.sleep(1)
        assert other.next() == 3_000, "the next block"
        ids.stop()
        other.stop()

    env.run(story())
