"""A leader that the controller does not reach finds out that another broker leads, when its followers are silent."""

import json

import pytest
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.protocol.errors import ErrorCode
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from replication_world import Host

STATE = "/brokers/topics/t/partitions/0/state"
LAG_MS = 30_000


@pytest.fixture
def host(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"))
    env.run(host.coordination.start())
    host.start_bare()
    host.manager.start()
    host.live(1, 2)
    assert host.lead(isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
    env.run(host.coordination.create(STATE, state(1, 0), make_parents=True))
    yield host
    host.manager.shutdown()


def state(leader, leader_epoch):
    said = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": leader_epoch, "isr": [1, 2]}
    return json.dumps(said).encode()


def fetch(host, **options):
    params = FetchParams(**options)
    return host.manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20, log_start_offset=0)])[0].error


def test_a_leader_whose_followers_went_over_to_another_serves_nothing(env, host):
    partition = host.manager.partition("t", 0)
    fetch(host, replica_id=2)
    env.clock.advance(LAG_MS / 2)
    assert partition.is_leader, "the follower is silent, and this broker leads still"
    env.run(host.coordination.set(STATE, state(2, 1)))
    env.clock.advance(LAG_MS / 8)
    assert not partition.is_leader
    assert fetch(host) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert host.following == [("t", 0)], "coordinators let go"
    assert host.lead(leader_epoch=2, partition_epoch=2, isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
    assert partition.is_leader


def test_it_finds_out_before_the_other_can_acknowledge_without_it(env, host):
    fetch(host, replica_id=2)
    env.run(host.coordination.set(STATE, state(2, 1)))
    env.clock.advance(LAG_MS / 2)
    assert not host.manager.partition("t", 0).is_leader


def test_nothing_is_read_while_followers_fetch(env, host):
    reads = []
    host.coordination.get_many = reads.append
    for _ in range(20):
        env.clock.advance(1_000)
        fetch(host, replica_id=2)
    assert reads == []


def test_a_state_that_cannot_be_read_says_nothing(env, host):
    other = host.lead("u", isr=(1, 2), replicas=(1, 2))
    assert other == ErrorCode.NONE
    env.run(host.coordination.create(STATE.replace("/t/", "/u/"), state(2, 1), make_parents=True))
    env.run(host.coordination.set(STATE, b"junk"))
    env.clock.advance(LAG_MS / 2)
    assert host.manager.partition("t", 0).is_leader
    assert not host.manager.partition("u", 0).is_leader, "the others are looked at all the same"


def test_many_partitions_are_looked_at_in_pieces(env, host):
    names = [f"many-{index:04}" for index in range(1_200)]
    for name in names:
        assert host.lead(name, isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
    last = STATE.replace("/t/", f"/{names[-1]}/")
    env.run(host.coordination.create(last, state(2, 1), make_parents=True))
    reads, real = [], host.coordination.get_many

    async def get_many(paths, watch=None):
        reads.append(len(paths))
        return await real(paths, watch)

    host.coordination.get_many = get_many
    env.clock.advance(LAG_MS / 2)
    assert max(reads) == 500
    assert not host.manager.partition(names[-1], 0).is_leader
    assert host.manager.partition(names[0], 0).is_leader
