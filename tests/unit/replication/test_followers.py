"""Followers copy a leader: records, high watermark, log start; and what they do when the two logs differ."""

import logging
from itertools import pairwise

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchResponse
from barnabas.replication import record_deletion
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from barnabas.replication.follower import Action, Follower, handle_answer
from barnabas.replication.replica_fetcher import CATCH_UP_BYTES_PER_MS
from barnabas.storage.log import Log
from replicas_world import LATENCY_MS, World
from replication_world import TOPIC_ID, Observed, batch
from simulator.env import sim_env


@pytest.fixture
def world():
    return World(sim_env(5))


def same(world, *node_ids, topic="t", index=0):
    first, *others = [world[node_id].values(topic, index) for node_id in node_ids]
    return all(first == other for other in others)


def test_records_and_high_watermark_come_to_all_replicas(world):
    world.lead(1)
    world[1].append(count=3)
    world.run()
    assert same(world, 1, 2, 3)
    assert world[1].log().high_watermark == 3
    world[1].append()
    world.run(1_000)
    assert [replica.log().high_watermark for replica in world.replicas.values()] == [4, 4, 4]


def test_acks_all_is_answered_as_soon_as_all_replicas_have_it(world):
    world.lead(1)
    world.run(1_000)
    produced = Observed(world[1].append(acks=-1))
    world.run(1.5 * LATENCY_MS)
    assert not produced.done
    world.run(LATENCY_MS)
    assert produced.value[0].error is ErrorCode.NONE


def test_a_follower_is_served_before_the_leader_has_heard_of_the_topic_by_update_metadata(world):
    world.lead(1)
    assert world[1].metadata_cache.topic_name(world[1].partition().topic_id) is None
    world[1].append()
    world.run(20)
    assert same(world, 1, 2)


def test_what_was_asked_in_an_earlier_epoch_of_the_same_leader_counts_no_more(world):
    world.lead(1)
    world.run()
    partition = world[2].partition()
    follower = Follower(partition)
    follower.asked = follower.ask()
    answer = FetchResponse.PartitionData(records=batch(), high_watermark=1, log_start_offset=0)
    epoch = partition.leader_epoch
    assert follower.is_current
    world.lead(1)
    assert (partition.leader_id, partition.leader_epoch) == (1, epoch + 1)
    assert not follower.is_current
    assert handle_answer(follower, answer).action is Action.IGNORE
    late = partition.append_as_follower(answer.records, epoch, 1, 0)  # the second guard
    assert (late.error, partition.log_end_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)


def test_a_wait_that_began_in_an_earlier_epoch_changes_nothing(world):
    world.lead(1, to=[2])  # the leader has not heard of it, so the follower tries again later
    world.run(3 * LATENCY_MS)
    assert world.fetches(2, 1)
    world.lead(1)
    former_epoch = 0
    world.run(50)
    asked = len(world.fetches(2, 1))
    world[1].append()
    world.run(500)
    assert same(world, 1, 2)
    later = world.fetches(2, 1)[asked:]
    epochs = [part.current_leader_epoch for request in later for topic in request.topics for part in topic.partitions]
    assert epochs
    assert former_epoch not in epochs


def test_idle_partitions_are_named_once(world):
    keys = [("t", index) for index in range(50)]
    world.lead(1, *keys)
    world.run(3_000)
    first, *others = world.fetches(2, 1)
    assert sum(len(topic.partitions) for topic in first.topics) == 50
    assert len(others) > 3
    assert [request.topics for request in others] == [[]] * len(others)
    world[1].append(index=7)
    world.run(400)
    named = [
        partition.partition
        for request in world.fetches(2, 1)[1:]
        for topic in request.topics
        for partition in topic.partitions
    ]
    assert named == [7], "the acknowledgement of the one that has news"


def test_a_new_leader_cuts_what_the_old_one_had_alone(world):
    world.lead(1)
    world[1].append(count=2)
    world.run(1_000)
    world.cut |= {(2, 1), (3, 1), (1, 2), (1, 3)}
    world[1].append(value=b"lost")
    world[1].append(value=b"lost")
    world.run(1_000)
    assert world[1].log().log_end_offset == 4
    world.lead(2, to=(2, 3))
    world[2].append(value=b"kept")
    world.run()
    world.cut.clear()
    world.lead(2)
    world.run(2_000)
    assert same(world, 1, 2, 3)
    assert world[1].values()[-1] == (2, b"kept")
    assert world[1].log().leader_epochs.entries == [(0, 0), (1, 2)]


def test_an_epoch_without_records_is_forgotten_and_the_follower_goes_on(world):
    world.lead(1)
    world[1].append()
    world.run(1_000)
    world.lead(3, to=(3,))
    assert world[3].log().leader_epochs.latest == 1
    world.lead(1)
    world[1].append()
    world.run(2_000)
    assert same(world, 1, 2, 3)
    assert world[3].log().leader_epochs.entries == world[1].log().leader_epochs.entries
    assert len(world.fetches(3, 1)) < 20, "it does not ask for ever"


def test_a_leader_that_becomes_follower_while_an_answer_is_under_way_keeps_its_own_records(world):
    world.lead(1)
    world[1].append(count=2)
    world.run(2)
    world.lead(2)
    world[2].append(value=b"second", count=3)
    world.run(2_000)
    assert same(world, 1, 2, 3)


def test_a_follower_away_for_longer_than_retention_begins_anew(world):
    world.lead(1)
    world[1].append(count=2)
    world.run(1_000)
    world.cut |= {(3, 1), (1, 3)}
    world[1].append(count=10)
    world.run(100)
    log = world[1].log()
    log.set_high_watermark(12)
    world[1].partition().delete_records_before(8)
    world.cut.clear()
    world.run(4_000)
    assert world[3].log().log_start_offset == 8
    assert same(world, 1, 3)


def test_the_leaders_log_begins_inside_a_batch(world):
    world.lead(1, to=(1,))
    world[1].append(count=10)
    world[1].log().set_high_watermark(10)
    world[1].partition().delete_records_before(4)
    world.lead(1)
    world.run(2_000)
    assert (world[2].log().log_start_offset, world[2].log().log_end_offset) == (4, 10)
    assert world[2].values() == world[1].values()


def test_a_longer_log_of_an_unclean_election_is_cut(world):
    world.lead(1)
    world.run(600)
    world.cut |= {(3, 1), (1, 3)}
    world[1].append(count=5)
    world.run(1_000)
    world.lead(3, isr=(3,))
    world[3].append(value=b"new")
    world.cut.clear()
    world.run(3_000)
    assert same(world, 1, 2, 3)
    assert world[1].values() == [(0, b"new")]


def test_a_log_with_a_hole_is_cut_there_before_it_follows_but_not_once_it_has_led(world, caplog):
    """Only this broker's files were damaged. Nobody who leads has more; who leads with a hole has the most."""
    caplog.set_level(logging.INFO)
    world.lead(1)
    for _ in range(3):
        world[1].append()
    world.run(1_000)
    world[2].log().missing_from = 1
    world.lead(1, isr=(1, 3))
    world.run(1_000)
    assert "t-0: truncating from offset 3 to 1" in caplog.text
    assert same(world, 1, 2, 3)
    caplog.clear()
    world[3].log().missing_from = 1
    world.lead(3)
    world.run(1_000)
    world.lead(1)
    world.run(1_000)
    assert "truncating" not in caplog.text


def test_log_start_and_low_watermark_come_back(world):
    world.lead(1)
    world[1].append(count=5)
    world.run(1_000)
    deleted = Observed(record_deletion.delete(world[1].replica_manager, [("t", 0, 3)], 5_000))
    world.run(2_000)
    assert [replica.log().log_start_offset for replica in world.replicas.values()] == [3, 3, 3]
    assert deleted.value[0].low_watermark == 3


def test_a_damaged_batch_holds_up_one_partition_only(world):
    world.lead(1, ("t", 0), ("t", 1))
    world.run(600)
    damaged = []

    def damage(response):
        for topic in getattr(response, "responses", ()):
            for answer in topic.partitions:
                if answer.partition_index == 0 and answer.records and len(damaged) < 4:
                    records = bytearray(answer.records)
                    records[-1] ^= 1
                    answer.records = records
                    damaged.append(world.env.clock.monotonic_ms())

    world.on_answer.append(damage)
    world[1].append(index=0)
    world[1].append(index=1)
    world.run(15)
    assert same(world, 1, 2, 3, index=1)
    assert not world[2].values(index=0)
    world.run(3_000)
    assert same(world, 1, 2, 3, index=0)


def test_a_failed_log_stops_no_other_partition(world):
    world.lead(1, ("t", 0), ("t", 1))
    world.run(600)
    world[2].log("t", 0).health.fail(OSError(5, "broken"))
    for index in (0, 1):
        world[1].append(index=index)
    world.run(1_000)
    assert same(world, 1, 2, index=1)
    assert world[2].log("t", 0).log_end_offset == 0


def test_a_leader_that_does_not_answer_is_asked_again_after_20_ms_then_after_twice_as_long(world):
    world.cut |= {(2, 1)}
    world.lead(1, to=(1, 2))
    world.run(700)
    assert 5 <= len(world.fetches(2, 1)) <= 7  # at 0, 20, 60, 140, 300, 620
    world.run(10_000)
    assert len(world.fetches(2, 1)) <= 17, "replica.fetch.backoff.ms is the longest wait"
    world.cut.clear()
    world[1].append()
    world.run(1_100)
    assert same(world, 1, 2)


def test_a_partition_that_is_refused_backs_off_alone(world):
    world.lead(1, ("t", 0), to=(1, 2))
    world.lead(1, ("t", 1), to=(2,))  # the leader has not heard of it yet
    world.run(300)
    world[1].append(index=0)
    world.run(10)
    assert same(world, 1, 2, index=0)
    world.epochs["t", 1] = -1
    world.lead(1, ("t", 1), to=(1,))
    world[1].append(index=1)
    world.run(1_100)
    assert same(world, 1, 2, index=1)


def test_a_topic_made_again_takes_nothing_from_its_former_life(world):
    world.lead(1)
    world[1].append(count=5, value=b"old")
    world.run(1)
    for node_id in world.replicas:
        world.stop_replica(node_id, delete=True)
    world.epochs.clear()
    world.lead(1, topic_id=bytes(15) + b"\x09")
    world[1].append(value=b"new")
    world.run(3_000)
    assert world[2].values() == world[3].values() == [(0, b"new")]


def test_a_broker_that_shuts_down_follows_nothing_new(world):
    world.lead(1)
    world.run()
    world[2].replica_manager.fetchers.begin_shutdown()
    world.lead(3)
    world[3].append()
    world.run(1_000)
    assert (world[1].log().log_end_offset, world[2].log().log_end_offset) == (1, 0)


def test_more_fetchers_take_over_from_one(world):
    keys = [("t", index) for index in range(8)]
    world.lead(1, *keys)
    world.run(600)
    world[2].config.num_replica_fetchers = 3
    for changed in list(world[2].config.on_change):
        changed(frozenset({"num.replica.fetchers"}))
    for index in range(8):
        world[1].append(index=index)
    world.run(600)
    assert all(same(world, 1, 2, index=index) for index in range(8))
    purposes = {purpose for source, target, purpose in world.connections if (source, target) == (2, 1)}
    assert {"fetcher-0", "fetcher-1", "fetcher-2"} <= purposes


def test_an_answer_of_a_lost_session_begins_a_new_one(world):
    world.lead(1)
    world.run(600)
    world[1].fetch_sessions.close(next(iter(world[1].fetch_sessions._sessions)))
    world[1].append()
    world.run(600)
    assert same(world, 1, 2, 3)


def test_records_come_once_whatever_is_lost(world):
    world.lead(1)
    for number in range(40):
        if number % 7 == 3:
            world.cut |= {(2, 1)}
        if number % 7 == 5:
            world.cut |= {(1, 3)}
        if number % 7 == 6:
            world.cut.clear()
        world[1].append(value=b"%d" % number)
        world.run(37)
    world.cut.clear()
    world.run(3_000)
    assert same(world, 1, 2, 3)
    assert len(world[2].values()) == 40


def test_responses_for_partitions_that_nobody_asked_for_are_ignored(world):
    world.lead(1)

    def add(response):
        if isinstance(response, FetchResponse) and response.responses:
            response.responses[0].partitions.append(FetchResponse.PartitionData(partition_index=99))

    world.on_answer.append(add)
    world[1].append()
    world.run()
    assert same(world, 1, 2, 3)
    assert isinstance(world[2].log(), Log)


def test_a_partition_is_copied_at_once_while_the_leader_holds_back_an_answer_for_others(world):
    world.lead(1)
    world.run(1_020)
    world.lead(1, ("t", 1))
    produced = Observed(world[1].append(index=1, acks=-1))
    world.run(6 * LATENCY_MS)
    assert produced.value[0].error is ErrorCode.NONE
    world.run(2_000)
    main = world.fetches(2, 1)[-1]
    assert main.max_wait_ms == world[2].config.replica_fetch_wait_max_ms, "then it joins the others"
    assert len(world[1].fetch_sessions) == 2, "the sessions of the late lanes are closed"
    count = len(world.requests)
    world.run(5_000)
    assert len(world.requests) - count <= 22, "one long poll of each follower at a time"


def asked_every_ms(world, follower_id, *, megabytes):
    """The times between the fetches of a follower that asks as many as the leader needs for so much."""
    asked_ms = []

    class Requests(list):
        def append(self, sent):
            super().append(sent)
            if sent[0] == follower_id:
                asked_ms.append(world.env.clock.monotonic_ms())

    world.requests = Requests()
    world.run(1_000)
    return [after - before for before, after in pairwise(asked_ms)][1:megabytes]


def test_a_follower_that_nobody_waits_for_takes_its_time(world):
    world.lead(1, isr=(1, 2))
    world.cut.add((3, 1))
    world.run(world[1].config.replica_lag_time_max_ms + 1_000)
    for _ in range(10):
        world[1].append(value=bytes(1_000_000))
    world.run(1_000)
    assert world[1].log().high_watermark == 10
    world.cut.clear()
    spans = asked_every_ms(world, 3, megabytes=8)
    assert min(spans) >= 1_000_000 / CATCH_UP_BYTES_PER_MS, spans
    assert same(world, 1, 3)


def test_a_follower_in_sync_asks_at_once_however_much_it_gets(world):
    world.lead(1)
    world.run(1_000)
    for _ in range(10):
        world[1].append(value=bytes(1_000_000))
    spans = asked_every_ms(world, 3, megabytes=8)
    assert max(spans) < 1_000_000 / CATCH_UP_BYTES_PER_MS, spans
    assert same(world, 1, 3)


def test_a_new_epoch_ends_the_wait_for_a_leader_that_was_away(world):
    world.lead(1)
    world.run(100)
    world.cut |= {(2, 1), (1, 2)}
    world.run(5_000)
    world.cut.clear()
    world.lead(1)
    produced = Observed(world[1].append(acks=-1))
    world.run(10 * LATENCY_MS)
    assert produced.value[0].error is ErrorCode.NONE


def test_a_lost_timer_does_not_end_the_copying(world):
    world.lead(1)
    world.run(600)
    world.cut |= {(2, 1), (1, 2)}
    world.run(3_000)
    for fetcher in world[2].replica_manager.fetchers._fetchers.values():
        fetcher._main.timer.cancel()
    world.cut.clear()
    world[1].append()
    world.run(1_000)
    assert not world[2].values()
    world.run(11_000)
    assert same(world, 1, 2)


def test_a_consumer_is_sent_to_the_replica_in_its_rack_which_serves_what_it_knows_to_be_committed(world):
    world.tell_metadata(1, 2, 3, racks={1: "a", 2: "b", 3: "c"})
    world.lead(1)
    world[1].append(count=2)
    world.run(2_000)
    params = FetchParams(rack="b", version=13)
    (told,) = world[1].replica_manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20)])
    assert (told.preferred_read_replica, len(told.records)) == (2, 0)
    (served,) = world[2].replica_manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20)])
    assert (served.high_watermark, served.next_offset, served.preferred_read_replica) == (2, 2, -1)
    world[1].append()
    world.run(3 * LATENCY_MS)
    assert (world[2].log().log_end_offset, world[2].log().high_watermark) == (3, 2)
    (bound,) = world[2].replica_manager.fetching.fetch(params, [FetchPartition("t", 0, 2, 1 << 20)])
    assert (bound.error, len(bound.records)) == (ErrorCode.NONE, 0), "not known to be committed yet"
    (beyond,) = world[2].replica_manager.fetching.fetch(params, [FetchPartition("t", 0, 4, 1 << 20)])
    assert beyond.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_consumer_that_waits_at_a_follower_is_answered_when_the_high_watermark_gets_there(world):
    world.lead(1)
    world.run(2_000)
    params = FetchParams(version=13, max_wait_ms=5_000, min_bytes=1)
    waiting = Observed(world[2].replica_manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20)]))
    world[1].append()
    world.run(3 * LATENCY_MS)
    assert not waiting.done
    world.run(1_000)
    assert waiting.value[0].next_offset == 1


def test_topics_without_an_id_are_asked_for_by_name_in_version_12(world):
    world.lead(1)
    world.run(600)
    for replica in world.replicas.values():  # a fetch by name finds what UpdateMetadata or LeaderAndIsr has told
        assert replica.metadata_cache.topic_name(TOPIC_ID) is None
    world.lead(1, ("old", 0), topic_id=bytes(16))
    for topic in ("t", "old"):
        world[1].append(topic)
    world.run(2_000)
    assert same(world, 1, 2, 3, topic="old")
    assert same(world, 1, 2, 3, topic="t")
    assert world.fetches(2, 1)[-1].replica_id == 2
    for node_id in world.replicas:
        world.stop_replica(node_id, topic="old")
    world[1].append("t")
    world.run(2_000)
    assert same(world, 1, 2, 3, topic="t")
    assert world.fetches(2, 1)[-1].replica_state.replica_id == 2, "with ids again"
