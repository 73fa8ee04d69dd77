"""What a leader serves without its lease, and after its session was lost."""

import pytest
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.protocol.errors import ErrorCode
from barnabas.replication import record_deletion
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from replication_world import Host, Observed, offsets_of

LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def host(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"))
    host.start_bare()
    host.live(1, 2)
    assert host.lead(isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
    return host


def fetch(host, offset, replica_id=-1, **options):
    params = FetchParams(replica_id=replica_id, **options)
    return host.manager.fetching.fetch(params, [FetchPartition("t", 0, offset, 1 << 20, log_start_offset=0)])


def partition_of(host):
    return host.manager.partition("t", 0)


def test_without_the_lease_nothing_is_answered_as_committed(env, host):
    host.append(acks=1)
    fetch(host, 1, replica_id=2)
    assert partition_of(host).high_watermark == 1
    host.lease.holds = False
    (refused,) = host.append()
    assert (refused.error, partition_of(host).log_end_offset) == (LOST, 1)
    assert fetch(host, 0)[0].error is LOST
    assert host.manager.list_offset("t", 0, -1).error is LOST
    assert host.manager.list_offsets_version_0("t", 0, -1, 1)[0] is LOST
    (deleted,) = record_deletion.delete(host.manager, [("t", 0, 1)], 0)
    assert (deleted.error, partition_of(host).log_start_offset) == (LOST, 0)
    assert host.append("absent")[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets_of(fetch(host, 0, replica_id=2)[0].records) == [0], "followers go on"
    host.lease.holds = True
    assert offsets_of(fetch(host, 0)[0].records) == [0]


def test_what_is_reached_without_the_lease_is_not_acknowledged(env, host):
    produced = Observed(host.append(timeout_ms=100_000))
    waited = []
    partition_of(host).park_until(1, waited.append)
    host.lease.holds = False
    fetch(host, 1, replica_id=2)
    env.clock.advance(10)
    assert partition_of(host).high_watermark == 1
    assert (produced.done, waited) == (False, [])
    host.manager.lease_lapsed()
    assert produced.value[0].error is LOST, "it may look for another leader"
    assert waited == [], "a coordinator keeps its records, because they are in the log"
    host.lease.holds = True
    host.manager.lease_regained()
    env.clock.advance(0)
    assert waited == [ErrorCode.NONE]
    assert host.manager._waiting == {}


def test_a_parked_fetch_ends_with_an_error_without_the_lease(env, host):
    waiting = Observed(fetch(host, 0, max_wait_ms=500, min_bytes=1))
    host.lease.holds = False
    env.clock.advance(500)
    assert waiting.value[0].error is LOST


def test_waits_are_forgotten_when_they_end(env, host):
    produced = Observed(host.append())
    gone = host.append()
    assert len(host.manager._waiting) == 2
    gone.cancel()
    fetch(host, 2, replica_id=2)
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NONE
    Observed(host.append(timeout_ms=10))
    env.clock.advance(10)
    assert host.manager._waiting == {}


def test_after_a_lost_session_it_serves_nothing_until_the_controller_has_spoken(env, host):
    host.manager.broker_epoch = 5
    produced = Observed(host.append(timeout_ms=100_000))
    parked = Observed(fetch(host, 0, max_wait_ms=10_000, min_bytes=1))
    host.manager.suspend()
    partition = partition_of(host)
    env.clock.advance(0)
    assert produced.value[0].error is LOST
    assert parked.value[0].error is LOST
    assert host.following == [("t", 0)], "coordinators let go"
    for outcome in (host.append(acks=1)[0], fetch(host, 0)[0], fetch(host, 0, replica_id=2)[0]):
        assert outcome.error is LOST
    assert host.manager.list_offset("t", 0, -1).error is LOST

    host.manager.broker_epoch = 6
    again = {"isr": (1, 2), "replicas": (1, 2)}
    assert host.lead(**again, broker_epoch=5) == ErrorCode.STALE_BROKER_EPOCH
    assert not partition.is_leader
    assert host.lead(**again, broker_epoch=6) == ErrorCode.NONE
    assert host.leading == [("t", 0), ("t", 0)], "coordinators load again"
    assert (partition.leader_epoch, partition.leader_epoch_start_offset) == (0, 0)
    fetch(host, 1, replica_id=2)
    assert partition.high_watermark == 1
    assert host.lead(**again, broker_epoch=6) == ErrorCode.STALE_CONTROLLER_EPOCH, "twice is once too often"


def test_what_was_sent_to_the_former_registration_does_not_end_a_suspension(env, host):
    host.manager.broker_epoch = 5
    host.manager.suspend()  # it has not registered again yet, and another broker may lead already
    assert host.lead(isr=(1, 2), replicas=(1, 2), broker_epoch=5) == ErrorCode.STALE_BROKER_EPOCH
    assert not partition_of(host).is_leader
    assert host.lead(isr=(1, 2), replicas=(1, 2), broker_epoch=6) == ErrorCode.NONE, "it registers in this moment"
    assert partition_of(host).is_leader


def test_a_suspended_leader_follows_when_the_controller_says_so(env, host):
    host.append(acks=1)
    host.manager.suspend()
    assert host.lead(leader=2, leader_epoch=1, partition_epoch=1, isr=(2,), replicas=(1, 2)) == ErrorCode.NONE
    partition = partition_of(host)
    assert (partition.is_leader, partition.is_suspended, partition.leader_id) == (False, False, 2)
