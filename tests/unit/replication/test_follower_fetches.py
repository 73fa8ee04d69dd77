"""The leader's side of followers' fetches: what is read, who is caught up, and frames of a former life."""

import itertools
import random

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from barnabas.replication.fetching import Fetching
from barnabas.replication.follower_fetches import TELL_WITHIN_MS
from replicas_world import LATENCY_MS, World
from simulator.env import sim_env

PARTITIONS = 40


@pytest.fixture
def world():
    return World(sim_env(5))


@pytest.fixture
def reads(monkeypatch):
    """(topic, index) of each read of a partition."""
    found = []
    read_one = Fetching._read_one

    def noted(fetching, params, requested, *rest):
        found.append((params.replica_id, requested.index))
        return read_one(fetching, params, requested, *rest)

    monkeypatch.setattr(Fetching, "_read_one", noted)
    return found


def lead_many(world, **options):
    world.lead(1, *[("t", index) for index in range(PARTITIONS)], **options)
    world.run(2_000)


def test_only_partitions_with_news_are_read(world, reads):
    lead_many(world)
    reads.clear()
    world.run(5_000)
    assert reads == [], "idle partitions cost nothing"
    world[1].append(index=7)
    world.run(1_200)
    assert {index for _, index in reads} == {7}
    assert len(reads) <= 2 * 4, "records, acknowledgement and high watermark, for two followers"
    assert world[2].log("t", 7).high_watermark == world[3].log("t", 7).high_watermark == 1


def test_a_follower_that_is_idle_for_long_is_caught_up_when_records_come(world):
    lead_many(world)
    lag_ms = world[1].config.replica_lag_time_max_ms
    world.run(3 * lag_ms)
    partition = world[1].partition("t", 3)
    proposed = []
    world[1].replica_manager.propose_isr = lambda partition: proposed.append(partition.pending_isr.isr)
    world[1].append(index=3)
    partition.shrink_isr()
    world.run(LATENCY_MS / 2)
    partition.shrink_isr()
    assert proposed == []
    world.cut |= {(2, 1), (1, 2)}
    world[1].append(index=3)
    world.run(lag_ms + 2_000)
    partition.shrink_isr()
    assert proposed == [(1, 3)], "the one that does not fetch any more leaves"


def test_a_follower_whose_session_ended_does_not_stay_caught_up(world):
    lead_many(world)
    world.cut |= {(2, 1), (1, 2)}
    world.run(2_000)
    last_ms = world[1].partition("t", 3).remote[2].caught_up_ms
    for session in list(world[1].fetch_sessions._sessions.values()):
        if session.follower._replica_id == 2:
            world[1].fetch_sessions.close(session.id)
    assert world[1].partition("t", 3).remote[2].caught_up_ms == last_ms
    world.run(1_000)
    assert world[1].partition("t", 3).remote[2].caught_up_ms == last_ms
    assert len(world[1].partition("t", 3).fetch_waiters) == 1, "of the other follower"


def test_a_follower_outside_the_isr_is_looked_at_until_it_may_join(world):
    proposed = []
    world[1].replica_manager.propose_isr = lambda partition: proposed.append(partition.pending_isr.isr)
    world.lead(1, isr=(1, 3))
    partition = world[1].partition()
    world.run(1_200)
    assert proposed == [(1, 3, 2)]
    proposed.clear()
    partition.isr_refused()
    world.run(1_200)
    assert proposed == [(1, 3, 2)]


def test_a_follower_that_is_not_eligible_is_proposed_ever_less_often(world):
    """Until it lives a new life, or the controller speaks."""
    proposed = []

    def refuse(partition):
        proposed.append(world.env.clock.monotonic_ms())
        world.env.clock.call_soon(partition.isr_refused)

    world[1].replica_manager.propose_isr = refuse
    world.lead(1, isr=(1, 3))
    world.run(60_000)
    pauses = [after - before for before, after in itertools.pairwise(proposed)]
    slips_ms = 5 * LATENCY_MS + TELL_WITHIN_MS  # a proposal is made at a fetch, and fetches come when there is news
    assert all(after >= before - slips_ms for before, after in itertools.pairwise(pauses))
    assert pauses[0] <= 1_000
    assert 4_000 <= pauses[-1] < 5_000
    for speak in (
        lambda: world.lead(1, isr=(1, 3)),
        lambda: world[1].partition().remote[2].__setattr__("broker_epoch", 7),
    ):
        before = len(proposed)
        speak()
        world.run(2_500)
        assert len(proposed) >= before + 3


def test_the_high_watermark_comes_with_the_next_answer_only(world):
    lead_many(world)
    world[1].append(index=1)
    world.run(5)
    assert world[1].partition("t", 1).high_watermark == 1
    assert world[2].log("t", 1).high_watermark == 0, "a follower does not wake up for it"
    world[1].append(index=2)
    world.run(5)
    assert world[2].log("t", 1).high_watermark == 1


def test_the_high_watermark_comes_soon_if_nothing_else_moves(world):
    """What the follower knows to be committed is what it can serve if all others die."""
    lead_many(world)
    world[1].append(index=1)
    world.run(TELL_WITHIN_MS + 5 * LATENCY_MS)
    assert world[2].log("t", 1).high_watermark == world[3].log("t", 1).high_watermark == 1
    for index in (1, 2, 3):  # of both followers the later one moves it, while the other waits
        world[1].append(index=index)
        world.run(TELL_WITHIN_MS / 3)
    world.run(TELL_WITHIN_MS + 5 * LATENCY_MS)
    ends = [world[2].log("t", index).high_watermark for index in (1, 2, 3)]
    assert ends == [world[1].log("t", index).log_end_offset for index in (1, 2, 3)]


def test_the_high_watermark_comes_also_if_the_fetch_that_has_read_it_waits_on(world):
    """It moves while a request of the follower is under way. That one reads it, and then waits for bytes."""
    world.lead(1, *[("t", index) for index in range(3)])
    world.run(2_000)
    rng = random.Random(3)
    for _ in range(60):
        for index in rng.sample(range(3), 2):
            world.run(rng.uniform(0, 4 * LATENCY_MS))
            world[1].append(index=index)
        world.run(1_500)
        for index in range(3):
            ends = {node: world[node].log("t", index).high_watermark for node in (1, 2, 3)}
            assert set(ends.values()) == {world[1].log("t", index).log_end_offset}


def test_a_new_leader_epoch_ends_the_wait(world):
    lead_many(world)
    world.lead(1, ("t", 1), to=(1,))
    world.run(3)
    assert any(
        answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        for _, _, response in world.answers[-4:]
        for topic in response.responses
        for answer in topic.partitions
    )


def test_min_bytes_count_over_all_partitions(world):
    for replica in world.replicas.values():
        replica.config.replica_fetch_min_bytes = 150
    lead_many(world)
    world[1].append(index=1)
    world.run(5)
    assert world[2].log("t", 1).log_end_offset == 0
    world[1].append(index=2)
    world[1].append(index=3)
    world.run(5)
    assert [world[2].log("t", index).log_end_offset for index in (1, 2, 3)] == [1, 1, 1]


def fetch_as_follower(world, offset, epoch=-1):
    params = FetchParams(replica_id=2, replica_epoch=epoch, version=17)
    wanted = FetchPartition("t", 0, offset, 1 << 20, log_start_offset=0)
    (result,) = world[1].replica_manager.fetching.fetch(params, [wanted])
    return result.error


def test_a_fetch_of_a_former_life_acknowledges_nothing(world):
    world.lead(1, to=(1,))
    world[1].append(count=2)
    remote = world[1].partition().remote[2]
    assert fetch_as_follower(world, 1, epoch=7) is ErrorCode.NONE
    assert remote.log_end_offset == 1
    world[1].replica_manager.fetching.replica_confirmed(2, 9)
    assert fetch_as_follower(world, 0, epoch=9) is ErrorCode.NONE
    assert (remote.log_end_offset, remote.broker_epoch) == (0, 9)
    assert fetch_as_follower(world, 2, epoch=7) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert remote.log_end_offset == 0, "what the former life had is not known to be there now"
    assert fetch_as_follower(world, 1) is ErrorCode.NONE, "a version that does not say it"


def test_a_fetch_with_a_made_up_epoch_does_not_shut_the_follower_out(world):
    """Anybody can send it. Only the controller knows which lives there are."""
    world.lead(1, to=(1,))
    world[1].append(count=2)
    assert fetch_as_follower(world, 0, epoch=1 << 62) is ErrorCode.NONE
    assert fetch_as_follower(world, 2, epoch=7) is ErrorCode.NONE
    assert world[1].partition().remote[2].log_end_offset == 2


def test_a_fetch_beside_the_session_does_not_hide_where_the_follower_is(world):
    """Nothing moves in the partition, so its follower would not name it again in its session."""
    world.lead(1)
    world[1].append(count=2)
    world.run(2_000)
    remote = world[1].partition().remote[2]
    assert remote.log_end_offset == 2
    assert remote.idle_in is not None
    assert fetch_as_follower(world, 0) is ErrorCode.NONE
    assert remote.log_end_offset == 0
    world.run(2_000)
    assert remote.log_end_offset == 2
    assert remote.idle_in is not None


def test_a_restarted_follower_goes_on_in_a_new_session(world):
    lead_many(world)
    world[2].replica_manager.broker_epoch += 100
    world.connections = {key: value for key, value in world.connections.items() if key[0] != 2}
    world[1].append(index=1)
    world.run(2_000)
    assert world[2].log("t", 1).log_end_offset == 1


def test_idle_partitions_hear_that_the_follower_has_registered_again(world):
    """Else the leader names the former registration in AlterPartition, which the controller refuses for ever."""
    lead_many(world)
    world[2].replica_manager.broker_epoch += 100
    world.run(1_200)
    remote = world[1].partition("t", 3).remote
    assert remote[2].broker_epoch == world[2].replica_manager.broker_epoch
    assert remote[2].idle_in is not None
    assert remote[3].broker_epoch == world[3].replica_manager.broker_epoch
