"""The pure policies: elections, assignment, ISR, preferred replica, version 0 offsets, names."""

import pytest
from barnabas.cluster import topic_names
from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.controller import election, topic_admin
from barnabas.controller.assignment import AssignmentError, assign, fixed_start, rack_alternated
from barnabas.controller.state import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    ControllerState,
    PartitionState,
    ReplicaState,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.replication import isr
from barnabas.replication.fetching import ReplicaView, select_rack_aware
from barnabas.replication.offset_lookup import offsets_before

STATE = LeaderAndIsr(1, 5, (1, 2, 3), partition_epoch=7, controller_epoch=2)


# --- election ---


@pytest.mark.parametrize(
    ("live", "unclean", "leader", "members"),
    [
        ({1, 2, 3}, False, 1, (1, 2, 3)),
        ({2, 3}, False, 2, (2, 3)),
        ({3}, False, 3, (3,)),
        ({4}, False, None, None),
        ({4}, True, 4, (4,)),
        (set(), True, None, None),
    ],
)
def test_offline_election(live, unclean, leader, members):
    elected = election.elect_offline([1, 2, 3, 4], STATE, live, unclean=unclean)
    if leader is None:
        assert elected is None
        return
    assert (elected.leader, elected.isr, elected.leader_epoch) == (leader, members, 6)
    assert elected.partition_epoch == 7, "the node's version is the condition of the write"
    assert elected.recovering == (leader == 4)


def test_offline_election_follows_the_assignment_not_the_isr():
    assert election.elect_offline([3, 2, 1], STATE, {1, 2, 3}, unclean=False).leader == 3


def test_an_in_sync_replica_wins_over_an_earlier_one_that_is_not():
    state = LeaderAndIsr(NO_LEADER, 1, (3,))
    assert election.elect_offline([1, 2, 3], state, {1, 2, 3}, unclean=True).leader == 3


@pytest.mark.parametrize(
    ("before", "isr", "eligible"),
    [
        (LeaderAndIsr(1, 4, (1, 2, 3)), (1, 2), ()),  # two are left
        (LeaderAndIsr(1, 4, (1, 2, 3)), (1,), (2, 3)),  # two left together
        (LeaderAndIsr(1, 4, (1, 2)), (1,), (2,)),  # 3 had left before, and may lack what these two had
        (LeaderAndIsr(1, 4, (1,), eligible=(2,)), (1,), (2,)),  # another leader epoch
        (LeaderAndIsr(1, 4, (1,), eligible=(2,)), (1, 3), ()),  # these two acknowledge without 2
        (LeaderAndIsr(1, 4, (1,), eligible=(2,)), (3,), ()),  # an unclean election
        (LeaderAndIsr(1, 4, (1, 2)), (3,), ()),
        (LeaderAndIsr(1, 4, (1,)), (1,), ()),
    ],
)
def test_who_was_in_sync_before_the_last_one_is_remembered(before, isr, eligible):
    assert before.changed(isr[0], isr).remembering(before).eligible == eligible


def test_an_unclean_election_prefers_who_was_in_sync_last():
    state = LeaderAndIsr(1, 4, (1,), eligible=(3,))
    assert election.elect_offline([1, 2, 3], state, {2, 3}, unclean=True).leader == 3
    assert election.elect_offline([1, 2, 3], state, {2}, unclean=True).leader == 2
    assert election.elect_offline([1, 2, 3], state, {2, 3}, unclean=False) is None


def test_first_state():
    assert election.first_state([2, 1, 3], {1, 3}) == LeaderAndIsr(1, 0, (1, 3))
    assert election.first_state([2], {1, 3}) is None


def test_other_elections():
    live = {1, 2, 3}
    assert election.elect_preferred([2, 1], STATE, live).leader == 2
    assert election.elect_preferred([4, 1], STATE, live | {4}) is None, "not in sync"
    moved = election.elect_controlled_shutdown([1, 2, 3], STATE, live, {1})
    assert (moved.leader, moved.isr) == (2, (2, 3))
    assert election.elect_controlled_shutdown([1], LeaderAndIsr(1, 0, (1,)), {1}, {1}) is None


@pytest.mark.parametrize(
    ("isr", "able", "leader", "members"),
    [
        ((1, 2, 3), {1, 2, 3}, None, None),  # all can write
        ((1, 2, 3), set(), None, None),  # nobody can
        ((1, 2, 3), {4}, None, None),  # only one that lacks records
        ((1, 2, 3), {2, 3}, 3, (2, 3)),  # in the order of the candidates
        ((1, 2, 3), {1, 2}, 1, (1, 2)),  # the leader goes on, and does not wait for one that cannot
        ((1, 2), {2}, 2, (2,)),
    ],
)
def test_one_that_can_write_leads_if_it_is_in_sync(isr, able, leader, members):
    elected = election.elect_able(STATE._replace(isr=isr), [4, 3, 2, 1], able)
    if leader is None:
        assert elected is None
    else:
        assert (elected.leader, elected.isr, elected.leader_epoch) == (leader, members, 6)


def test_without_replicas_keeps_the_last_member():
    gone = election.without_replicas(STATE, {1})
    assert (gone.leader, gone.isr, gone.leader_epoch) == (NO_LEADER, (2, 3), 6)
    gone = election.without_replicas(STATE, {2})
    assert (gone.leader, gone.isr, gone.leader_epoch) == (1, (1, 3), 6)
    gone = election.without_replicas(STATE, {3, 2, 9})
    assert (gone.leader, gone.isr, gone.leader_epoch) == (1, (1,), 6)
    gone = election.without_replicas(STATE._replace(leader=2), {1, 2, 3})
    assert (gone.leader, gone.isr, gone.leader_epoch) == (NO_LEADER, (2,), 6), "the leader has the most records"
    last = election.without_replicas(LeaderAndIsr(1, 0, (1,)), {1})
    assert (last.leader, last.isr, last.leader_epoch) == (NO_LEADER, (1,), 1)
    assert election.without_replicas(last, {1}) is None
    assert election.without_replicas(STATE, {9}) is None


def test_misled():
    leaders = [("a", 1, 1), ("b", 1, 2), ("c", 2, 2), ("d", 3, -1), ("e", 3, None)]
    assert election.imbalanced_partitions(leaders, 0.4) == ["b", "d"]
    assert election.imbalanced_partitions(leaders, 0.5) == [], "it must be above the limit"


# --- assignment: what Apache Kafka assigned, and the classic example of KIP-36 ---


def test_assignment_without_racks():
    brokers = dict.fromkeys(range(5))
    placed = assign(brokers, 10, 3, start=0, shift=0)
    assert placed == {
        0: [0, 1, 2],
        1: [1, 2, 3],
        2: [2, 3, 4],
        3: [3, 4, 0],
        4: [4, 0, 1],
        5: [0, 2, 3],
        6: [1, 3, 4],
        7: [2, 4, 0],
        8: [3, 0, 1],
        9: [4, 1, 2],
    }


def test_assignment_over_racks():
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    assert rack_alternated(racks) == [0, 1, 2, 3, 4, 5]
    assert rack_alternated({0: "a", 1: "a", 2: "b"}) == [0, 2, 1]
    placed = assign(racks, 12, 3, start=0, shift=0)
    for replicas in placed.values():
        assert len({racks[replica] for replica in replicas}) == 3
    leaders = [replicas[0] for replicas in placed.values()]
    assert sorted(leaders) == sorted([0, 1, 2, 3, 4, 5] * 2)
    for broker in racks:
        assert sum(broker in replicas for replicas in placed.values()) == 6


def test_more_replicas_than_racks_uses_every_rack_and_every_broker_once():
    racks = {0: "a", 1: "b", 2: "a", 3: "b"}
    assigned = assign(racks, 8, 3, start=1, shift=2)
    assert len(assigned) == 8
    for replicas in assigned.values():
        assert len(set(replicas)) == 3
        assert {racks[replica] for replica in replicas} == {"a", "b"}


def test_added_partitions_go_on_where_the_topic_began():
    brokers = dict.fromkeys(range(3))
    start = fixed_start([0, 1, 2], 1)
    assert assign(brokers, 2, 2, start=start, shift=start, first_partition=2) == {2: [0, 2], 3: [1, 2]}
    assert fixed_start([5, 7, 9], 6) == 1
    assert fixed_start([5, 7, 9], 10) == 0


def test_brokers_without_a_rack_are_a_rack_of_their_own():
    racks = {0: "a", 1: None, 2: None}
    for replicas in assign(racks, 6, 2, start=0, shift=0).values():
        assert 0 in replicas
    for replicas in assign(racks, 6, 3, start=0, shift=0).values():
        assert sorted(replicas) == [0, 1, 2]


def test_impossible_assignments():
    with pytest.raises(AssignmentError, match="larger than available brokers: 2"):
        assign({0: None, 1: None}, 1, 3, start=0, shift=0)


# --- ISR ---


def replica(replica_id, log_end_offset, last_caught_up_ms=0.0):
    known = isr.RemoteReplica(replica_id)
    known.log_end_offset = log_end_offset
    known.last_caught_up_ms = last_caught_up_ms
    return known


def test_caught_up_at_the_end_or_at_the_previous_fetch():
    follower = replica(2, 0, isr.NEVER)
    follower.fetched(10, 0, 20, 1_000.0)  # behind
    assert follower.last_caught_up_ms == isr.NEVER
    follower.fetched(20, 0, 30, 2_000.0)  # has what was the end at its previous fetch
    assert follower.last_caught_up_ms == 1_000.0
    assert follower.fetched(30, 0, 30, 3_000.0)
    assert follower.last_caught_up_ms == 3_000.0
    assert not follower.fetched(30, 0, 35, 4_000.0), "the same offset again"
    assert follower.last_caught_up_ms == 3_000.0


def test_out_of_sync_needs_both_distance_and_time():
    remote = {2: replica(2, 90, 0.0), 3: replica(3, 100, 0.0), 4: replica(4, 90, 5_001.0)}
    assert isr.out_of_sync((1, 2, 3, 4), 1, remote, 100, 10_000.0, 5_000) == [2]
    assert isr.out_of_sync((1, 2), 1, remote, 100, 5_000.0, 5_000) == [], "exactly the limit is in time"


@pytest.mark.parametrize(("end", "joins"), [(99, False), (100, True), (101, True)])
def test_may_join(end, joins):
    assert isr.may_join(replica(2, end), (1,), 100, 50) == joins
    assert isr.may_join(replica(2, end), (1,), 50, 100) == joins, "the epoch's start counts as well"
    assert not isr.may_join(replica(2, end), (1, 2), 0, 0)


def test_high_watermark_waits_for_the_isr_and_for_those_about_to_join():
    remote = [replica(2, 80, 0.0), replica(3, 60, 0.0)]

    def candidate(maximal, now_ms=100_000.0, alive=True):
        return isr.high_watermark_candidate(100, maximal, remote, now_ms, 30_000, lambda broker: alive)

    assert candidate((1,)) == 100
    assert candidate((1, 2)) == 80
    assert candidate((1, 2, 3)) == 60
    assert candidate((1,), now_ms=30_000.0) == 60, "caught up lately: about to join"
    assert candidate((1,), now_ms=30_000.0, alive=False) == 100
    remote[1].refuse(1_000.0)
    assert candidate((1,), now_ms=30_000.0) == 80, "its disk is full: it is not about to join"
    assert candidate((1, 3), now_ms=30_000.0) == 60
    remote[1].end_refusal()
    assert candidate((1,), now_ms=30_000.0) == 60


# --- small decisions ---


def test_rack_aware_selector():
    replicas = [ReplicaView(1, "a", 100), ReplicaView(2, "b", 80), ReplicaView(3, "b", 90)]
    assert select_rack_aware("b", 1, replicas) == 3
    assert select_rack_aware("a", 1, replicas) == 1
    assert select_rack_aware("c", 1, replicas) == 1
    assert select_rack_aware("b", 2, replicas) == 2, "the leader, if it is in the rack"


@pytest.mark.parametrize(
    ("timestamp", "count", "bound", "client", "offsets"),
    [
        (-1, 10, 50, True, [50, 20, 10, 0]),
        (-1, 2, 50, True, [50, 20]),
        (-2, 10, 50, True, [0]),
        (250, 10, 50, True, [10, 0]),
        (5, 10, 50, True, []),
        (-1, 10, 45, True, [45, 20, 10, 0]),
        (-1, 10, 45, False, [50, 20, 10, 0]),
    ],
)
def test_offsets_of_version_0(timestamp, count, bound, client, offsets):
    segments = [(0, 100), (10, 200), (20, 300), (50, 999)]
    assert offsets_before(segments, timestamp, count, bound, client) == offsets


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' or '..' is not allowed"),
        ("..", "'.' or '..' is not allowed"),
        ("a" * 249, None),
        ("a" * 250, "longer than the max allowed length 249"),
        ("bad/name", "'bad/name' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("ok.name_-1", None),
        ("umläut", "contains one or more characters"),
        ("line\n", "contains one or more characters"),
    ],
)
def test_topic_names(name, problem):
    found = topic_names.topic_name_problem(name)
    assert found is None if problem is None else problem in found


def test_names_that_collide():
    assert topic_admin.spellings("a.b") == ["a_b"]
    assert topic_admin.spellings("._") == ["..", "_.", "__"]
    assert topic_admin.spellings("ab") == []
    for name in ("a.b", "_a", "a.", "a_b.c", "a.b_c.d-e_f", "__consumer_offsets", "..."):
        others = topic_admin.spellings(name)
        assert others is not None
        assert len({name, *others}) == 2 ** (name.count(".") + name.count("_"))
        assert all(topic_admin.collide(name, other) and not topic_admin.collide(other, other) for other in others)
    assert topic_admin.spellings("a.b.c.d.e.f") is None
    assert not topic_admin.collide("a.b", "ab")


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        ({0: [1, 2], 1: [2, 3]}, ErrorCode.NONE),
        ({1: [1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [1], 1: [1, 2]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [9]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_assignments_by_hand(assignment, error):
    assert topic_admin.assignment_problem(assignment, {1, 2, 3})[0] is error


# --- tables ---


def test_every_state_has_a_way_in_and_the_tables_are_used():
    assert set(PARTITION_TRANSITIONS) == set(PartitionState)
    assert set(REPLICA_TRANSITIONS) == set(ReplicaState)
    state = ControllerState()
    with pytest.raises(AssertionError, match="cannot go"):
        state.enter_partition(("t", 0), PartitionState.ONLINE)
    state.enter_partition(("t", 0), PartitionState.NEW)
    with pytest.raises(AssertionError, match="cannot go"):  # only from offline
        state.enter_partition(("t", 0), PartitionState.NON_EXISTENT)
    assert state.partition_states == {("t", 0): PartitionState.NEW}
    state.enter_partition(("t", 0), PartitionState.OFFLINE)
    state.enter_partition(("t", 0), PartitionState.NON_EXISTENT)
    assert state.partition_states == {}
