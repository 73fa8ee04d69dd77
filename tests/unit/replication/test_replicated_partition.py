"""A partition of two and three replicas, led by this broker, told by hand-made LeaderAndIsr and followers' fetches."""

import struct

import pytest
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.controller.alter_partition import Proposal, judge
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AlterPartitionResponse, StopReplicaRequest, UpdateMetadataRequest
from barnabas.replication import record_deletion
from barnabas.replication.fetch_values import FetchParams, FetchPartition
from barnabas.replication.isr import PROPOSED_AGAIN_MS
from barnabas.runtime.pending import Pending
from barnabas.storage.validation import AppendOrigin
from replication_world import TOPIC_ID, Host, Observed, batch, offsets_of
from simulator.storage_transactions import take_part


def partition_of(host):
    return host.manager.partition("t", 0)


def fetch_as(host, replica_id, offset, **options):
    """A follower's fetch: its acknowledgement of all below `offset`."""
    params = FetchParams(replica_id=replica_id, **options)
    return host.manager.fetching.fetch(params, [FetchPartition("t", 0, offset, 1 << 20, log_start_offset=0)])


def consume(host, offset, **options):
    return host.manager.fetching.fetch(FetchParams(**options), [FetchPartition("t", 0, offset, 1 << 20)])


def lead_three(host, **options):
    host.live(1, 2, 3)
    settings = {"isr": (1, 2, 3), "replicas": (1, 2, 3), **options}
    assert host.lead(**settings) == ErrorCode.NONE
    return partition_of(host)


# --- high watermark, acks ---


def test_high_watermark_is_what_the_whole_isr_has(env, host):
    partition = lead_three(host)
    produced = Observed(host.append(count=2))
    env.clock.advance(0)
    assert (partition.high_watermark, produced.done) == (0, False)
    fetch_as(host, 2, 2)
    env.clock.advance(0)
    assert (partition.high_watermark, produced.done) == (0, False)
    fetch_as(host, 3, 1)
    assert partition.high_watermark == 1
    env.clock.advance(0)
    assert not produced.done
    fetch_as(host, 3, 2)
    assert partition.high_watermark == 2
    assert not produced.done, "signal now, serve afterwards"
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NONE


def test_acks_0_and_1_answer_at_once(host):
    lead_three(host)
    for acks in (0, 1):
        (result,) = host.append(acks=acks)
        assert result.error is ErrorCode.NONE
    assert partition_of(host).high_watermark == 0


@pytest.mark.parametrize("acks", [-2, 2])
def test_other_acks_are_refused(host, acks):
    lead_three(host)
    (result,) = host.append(acks=acks)
    assert (result.error, result.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert partition_of(host).log_end_offset == 0


def test_one_wait_for_all_partitions(env, host):
    lead_three(host)
    assert host.lead("u", isr=(1, 2), replicas=(1, 2)) == ErrorCode.NONE
    produced = Observed(host.append("t", "u", "absent"))
    fetch_as(host, 2, 1)
    fetch_as(host, 3, 1)
    env.clock.advance(0)
    assert not produced.done
    host.manager.fetching.fetch(FetchParams(replica_id=2), [FetchPartition("u", 0, 1, 100)])
    env.clock.advance(0)
    errors = [result.error for result in produced.value]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_timeout_leaves_the_records(env, host):
    partition = lead_three(host)
    produced = Observed(host.append(timeout_ms=500))
    env.clock.advance(499)
    assert not produced.done
    env.clock.advance(1)
    assert produced.value[0].error is ErrorCode.REQUEST_TIMED_OUT
    assert partition.log_end_offset == 1
    assert partition._parked.count == 0
    for replica in (2, 3):
        fetch_as(host, replica, 1)
    env.clock.advance(0)
    assert partition.high_watermark == 1


def test_a_producer_that_went_away_is_forgotten(env, host):
    partition = lead_three(host)
    outcome = host.append()
    outcome.cancel()
    assert partition._parked.count == 0
    env.clock.advance(2_000)
    assert not outcome.done


def test_leadership_lost_while_waiting(env, host):
    lead_three(host)
    produced = Observed(host.append())
    fetched = Observed(consume(host, 0, max_wait_ms=10_000, min_bytes=1))
    assert host.lead(leader=2, leader_epoch=1, partition_epoch=1, replicas=(1, 2, 3)) == ErrorCode.NONE
    assert not produced.done
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert host.following == [("t", 0)]
    assert not fetched.done, "a consumer may go on reading from a follower"
    env.clock.advance(10_000)
    assert (fetched.value[0].error, len(fetched.value[0].records)) == (ErrorCode.NONE, 0)
    assert (host.append(acks=1))[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_batch_in_flight_does_not_overtake_one_that_met_too_few_replicas(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"min.insync.replicas": "2"})
    host.start_bare()
    partition = lead_three(host, isr=(1,))

    def produce(sequence, epoch=0):
        records = record_batch.build(
            [record_batch.Record(value=b"v")], producer_id=7, producer_epoch=epoch, base_sequence=sequence
        )
        return partition.append_as_leader(records, origin=AppendOrigin.CLIENT, required_acks=-1).error

    assert produce(3) is ErrorCode.NOT_ENOUGH_REPLICAS
    partition.isr = (1, 2)
    assert produce(4) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [produce(3), produce(4)] == [ErrorCode.NONE] * 2


def test_min_insync_replicas(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"min.insync.replicas": "2"})
    host.start_bare()
    partition = lead_three(host, isr=(1,))
    (refused,) = host.append()
    assert (refused.error, refused.base_offset, partition.log_end_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1, 0)
    assert refused.error_message == "in sync are [1] of [1, 2, 3], and min.insync.replicas wants 2"
    (taken,) = host.append(acks=1)
    assert taken.error is ErrorCode.NONE
    assert partition.high_watermark == 0, "stands still below min ISR (3.7+)"
    assert host.lead(isr=(1, 2), replicas=(1, 2, 3), leader_epoch=1, partition_epoch=1) == ErrorCode.NONE
    produced = Observed(host.append())
    fetch_as(host, 2, 2)
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NONE
    assert partition.high_watermark == 2


def test_min_insync_replicas_is_capped_by_the_replicas(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"min.insync.replicas": "3"})
    host.start_bare()
    host.live(1)
    host.lead()
    produced = Observed(host.append())
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NONE


# --- ISR, with a controller ---


class Decider:
    """The controller, as far as AlterPartition goes: it decides with the product's own rules."""

    def __init__(self, host):
        self.state = LeaderAndIsr(1, 0, (1, 2, 3))
        self.eligible = {1: 10, 2: 20, 3: 30}
        self.requests = []
        self.error = ErrorCode.NONE
        self.is_there = True
        self.loses_answers = False
        host.manager.broker_epoch = 10
        host.ask = self.ask

    def ask(self, request):
        answer = Pending()
        if not self.is_there:
            answer.complete(None)
            return answer
        self.requests.append(request)
        (topic,) = request.topics
        (partition,) = topic.partitions
        members = {member.broker_id: member.broker_epoch for member in partition.new_isr_with_epochs}
        proposal = Proposal(1, partition.leader_epoch, partition.partition_epoch, members, False)
        verdict = self.error or judge(proposal, self.state, (1, 2, 3), self.eligible)
        if isinstance(verdict, LeaderAndIsr):
            self.state = verdict.at_version(self.state.partition_epoch + 1)
        error = verdict if isinstance(verdict, ErrorCode) else ErrorCode.NONE
        response = AlterPartitionResponse(
            topics=[
                AlterPartitionResponse.TopicData(
                    topic_id=topic.topic_id,
                    partitions=[
                        AlterPartitionResponse.PartitionData(
                            partition_index=partition.partition_index,
                            error_code=error,
                            leader_id=self.state.leader,
                            leader_epoch=self.state.leader_epoch,
                            isr=list(self.state.isr),
                            partition_epoch=self.state.partition_epoch,
                        )
                    ],
                )
            ]
        )
        answer.complete(None if self.loses_answers else response)
        return answer


@pytest.fixture
def led(env):
    """A host with a controller somewhere else."""
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"min.insync.replicas": "2"})
    host.start_bare()
    host.manager.start()
    host.decider = Decider(host)
    yield host
    host.manager.shutdown()


def test_a_slow_follower_leaves_the_isr_and_returns(env, led):
    partition, decider = lead_three(led), led.decider
    produced = Observed(led.append(timeout_ms=100_000))
    for _ in range(5):
        env.clock.advance(7_000)
        fetch_as(led, 2, 1)
    assert not produced.done
    env.clock.advance(11_000)  # the next check: every replica.lag.time.max.ms / 2
    assert partition.isr == (1, 2)
    assert (decider.state.isr, decider.state.leader_epoch) == ((1, 2), 0), "only the controller raises a leader epoch"
    assert partition.partition_epoch == decider.state.partition_epoch == 1
    assert partition.high_watermark == 1
    assert produced.value[0].error is ErrorCode.NONE
    assert len(decider.requests) == 1

    fetch_as(led, 3, 0)
    assert partition.pending_isr is None, "not at the high watermark yet"
    fetch_as(led, 3, 1)
    assert partition.isr == (1, 2), "memory second"
    assert partition.maximal_isr == (1, 2, 3)
    led.append(acks=1)
    fetch_as(led, 2, 2)
    assert partition.high_watermark == 1, "the one being added counts already"
    env.clock.advance(0)
    assert partition.isr == decider.state.isr == (1, 2, 3)
    sent = decider.requests[1]
    assert (sent.broker_id, sent.broker_epoch) == (1, 10)
    members = sent.topics[0].partitions[0].new_isr_with_epochs
    assert [member.broker_id for member in members] == [1, 2, 3]
    assert members[0].broker_epoch == 10


@pytest.mark.parametrize("lost", ["request", "answer", "error"])
def test_a_change_is_sent_again_until_the_controller_has_answered(env, led, lost):
    partition, decider = lead_three(led, isr=(1, 2)), led.decider
    decider.state = decider.state._replace(isr=(1, 2))
    decider.is_there = lost != "request"
    decider.loses_answers = lost == "answer"
    decider.error = ErrorCode.NOT_CONTROLLER if lost == "error" else ErrorCode.NONE
    fetch_as(led, 3, 0)
    env.clock.advance(1_000)
    assert partition.isr == (1, 2), "nothing was confirmed"
    assert partition.maximal_isr == (1, 2, 3), "it may have been written"
    assert len(decider.requests) in (0, 20, 21), "every 50 ms"
    decider.is_there, decider.loses_answers, decider.error = True, False, ErrorCode.NONE
    env.clock.advance(50)
    assert (partition.isr, partition.partition_epoch, partition.pending_isr) == ((1, 2, 3), 1, None)
    sent = len(decider.requests)
    env.clock.advance(1_000)
    assert len(decider.requests) == sent


def test_a_replica_joins_only_in_the_life_in_which_it_had_everything(env, led):
    partition, decider = lead_three(led, isr=(1, 2)), led.decider
    decider.state = decider.state._replace(isr=(1, 2))
    led.manager.broker_epoch = 9  # it registers in this moment
    led.append("t", "t", acks=1)
    fetch_as(led, 2, 2, replica_epoch=20)
    assert partition.high_watermark == 2
    decider.is_there = False
    fetch_as(led, 3, 2, replica_epoch=30)
    env.clock.advance(100)
    assert partition.maximal_isr == (1, 2, 3)
    led.manager.broker_epoch = 10
    decider.eligible[3] = 31  # it started anew, without its records, before the controller has answered
    fetch_as(led, 3, 0, replica_epoch=31)
    decider.is_there = True
    env.clock.advance(1_000)
    assert decider.state.isr == partition.isr == (1, 2)
    assert partition.pending_isr is None
    members = decider.requests[0].topics[0].partitions[0].new_isr_with_epochs
    assert [member.broker_epoch for member in members] == [10, 20, 30]
    fetch_as(led, 3, 2, replica_epoch=31)
    env.clock.advance(1_000)
    assert decider.state.isr == partition.isr == (1, 2, 3)


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_change_is_dropped(env, led, error):
    partition, decider = lead_three(led, isr=(1, 2)), led.decider
    decider.state = decider.state._replace(isr=(1, 2))
    decider.error = error
    fetch_as(led, 3, 0)
    assert partition.maximal_isr == (1, 2, 3)
    env.clock.advance(10)
    assert (partition.isr, partition.pending_isr, len(decider.requests)) == ((1, 2), None, 1)
    fetch_as(led, 3, 0)
    env.clock.advance(PROPOSED_AGAIN_MS)
    assert len(decider.requests) == 1, "not again at once"
    fetch_as(led, 3, 0)
    env.clock.advance(10)
    assert len(decider.requests) == 2, "it may propose another change"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_a_leader_that_was_overtaken_waits_for_the_controllers_word(env, led, error):
    partition, decider = lead_three(led, isr=(1, 2)), led.decider
    decider.error = error
    fetch_as(led, 3, 0)
    env.clock.advance(10)
    assert (partition.isr, partition.maximal_isr) == ((1, 2), (1, 2, 3)), "either may be in the tree"
    env.clock.advance(60_000)
    assert len(decider.requests) == 1, "no other change is proposed"
    assert led.lead(leader_epoch=1, partition_epoch=5, isr=(1, 2), replicas=(1, 2, 3)) == ErrorCode.NONE
    assert partition.pending_isr is None


def test_an_answer_of_an_earlier_epoch_confirms_nothing(env, led):
    partition = lead_three(led, isr=(1, 2), leader_epoch=3, partition_epoch=7)
    held = []

    def ask(request):
        held.append(Pending())
        return held[-1]

    led.ask = ask
    fetch_as(led, 3, 0)
    env.clock.advance(0)
    partition.isr_confirmed(LeaderAndIsr(1, 2, (1, 2, 3), 9))
    partition.isr_confirmed(LeaderAndIsr(1, 3, (1, 2, 3), 6))
    assert (partition.isr, partition.pending_isr is None) == ((1, 2), False)
    fetch_as(led, 2, 0)
    env.clock.advance(1_000)
    assert len(held) == 1, "one request in flight"


def test_changes_of_many_partitions_go_in_one_request(env, led):
    led.live(1, 2, 3)
    requests = []

    def ask(request):
        requests.append(request)
        answer = Pending()
        answer.complete(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        return answer

    led.ask = ask
    for index in range(5):
        led.lead(index=index, isr=(1, 2), replicas=(1, 2, 3))
        fetch = FetchPartition("t", index, 0, 100, log_start_offset=0)
        led.manager.fetching.fetch(FetchParams(replica_id=3), [fetch])
    env.clock.advance(0)
    assert [len(request.topics[0].partitions) for request in requests] == [5]


def test_a_leader_from_outside_the_isr_confirms_that_it_has_recovered(env, led):
    led.live(1, 2, 3)
    led.lead(isr=(1,), replicas=(1, 2, 3), recovering=True)
    led.decider.state = LeaderAndIsr(1, 0, (1,), recovering=True)
    env.clock.advance(0)
    assert led.decider.state == LeaderAndIsr(1, 0, (1,), 1)
    assert partition_of(led).partition_epoch == 1


def test_a_dead_follower_does_not_join(env, led):
    host = led
    lead_three(host, isr=(1, 2))
    host.live(1, 2)
    fetch_as(host, 3, 0)
    assert partition_of(host).pending_isr is None


def test_too_few_after_the_append(env, led):
    host = led
    lead_three(host)
    produced = Observed(host.append(timeout_ms=100_000))
    env.clock.advance(60_000)  # nobody fetches: alone in the ISR
    assert partition_of(host).isr == (1,)
    assert partition_of(host).high_watermark == 0, "below min ISR it stands still"
    fetch_as(host, 2, 1)
    env.clock.advance(0)
    assert partition_of(host).isr == (1, 2)
    env.clock.advance(0)
    assert produced.value[0].error is ErrorCode.NONE


def test_reached_but_too_few(env, host):
    partition = lead_three(host)
    host.log_manager.config.set_dynamic({"min.insync.replicas": "2"}, {})
    waited = []
    partition.append_as_leader(batch(), origin=AppendOrigin.CLIENT, required_acks=1)
    partition.park_until(1, waited.append)
    fetch_as(host, 2, 1)
    fetch_as(host, 3, 1)
    partition.isr = (1,)  # as if the ISR shrank between the advance and the wake
    env.clock.advance(0)
    assert waited == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_a_change_overtaken_by_the_controller_is_dropped(env, led):
    partition = lead_three(led, isr=(1, 2))
    fetch_as(led, 3, 0)
    assert partition.pending_isr is not None
    assert led.lead(leader_epoch=1, partition_epoch=5, isr=(1,), replicas=(1, 2, 3)) == ErrorCode.NONE
    env.clock.advance(10)
    assert (partition.isr, partition.partition_epoch) == ((1,), 5)
    assert led.decider.requests == [], "not sent"


# --- epochs ---


def test_stale_epochs_are_refused(host):
    lead_three(host, leader_epoch=5, partition_epoch=3, controller_epoch=7)
    host.manager.broker_epoch = 100
    options = {"isr": (1,), "replicas": (1, 2, 3), "leader_epoch": 6, "partition_epoch": 4}
    assert host.lead(**options, controller_epoch=6) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert host.lead(**options, controller_epoch=7, broker_epoch=99) == ErrorCode.STALE_BROKER_EPOCH
    older = {**options, "leader_epoch": 4}
    assert host.lead(**older, controller_epoch=7) == ErrorCode.STALE_CONTROLLER_EPOCH
    same = {**options, "leader_epoch": 5}
    assert host.lead(**same, controller_epoch=7) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert host.lead(**options, controller_epoch=7, topic_id=b"x" * 16) == ErrorCode.INCONSISTENT_TOPIC_ID
    not_mine = {**options, "replicas": (2, 3)}
    assert host.lead(**not_mine, controller_epoch=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition_of(host).leader_epoch == 5
    assert partition_of(host).isr == (1, 2, 3)
    stale_node = {**options, "partition_epoch": 2}
    assert host.lead(**stale_node, controller_epoch=7) == ErrorCode.NONE
    assert partition_of(host).leader_epoch == 5, "an older version of the node changes nothing"
    assert host.lead(**options, controller_epoch=7, broker_epoch=100) == ErrorCode.NONE
    assert partition_of(host).leader_epoch == 6


def test_a_new_epoch_is_noted_before_any_record(host):
    partition = lead_three(host, leader_epoch=2)
    host.append(acks=1, count=3)
    host.lead(leader_epoch=4, partition_epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert partition.leader_epoch_start_offset == 3
    assert partition.log.leader_epochs.entries == [(2, 0), (4, 3)]
    result = host.manager.offset_for_leader_epoch("t", 0, 2, current_leader_epoch=4)
    assert (result.error, result.leader_epoch, result.end_offset) == (ErrorCode.NONE, 2, 3)
    assert host.manager.offset_for_leader_epoch("t", 0, 9).end_offset == -1
    for epoch, error in ((3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert host.manager.offset_for_leader_epoch("t", 0, 2, current_leader_epoch=epoch).error is error


def test_new_leader_knows_nothing_of_followers_old_leader_keeps_what_it_knows(env, host):
    partition = lead_three(host)
    host.append(acks=1)
    fetch_as(host, 2, 1)
    host.lead(leader_epoch=1, partition_epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert partition.remote[2].log_end_offset == 1
    host.lead(leader=2, leader_epoch=2, partition_epoch=2, isr=(1, 2, 3), replicas=(1, 2, 3))
    host.lead(leader_epoch=3, partition_epoch=3, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert partition.remote[2].log_end_offset == -1
    assert partition.high_watermark == 0
    for replica in (2, 3):
        fetch_as(host, replica, 1)
    assert partition.high_watermark == 1


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_leader_that_missed_an_epoch_knows_nothing_of_followers(env, host, is_suspended):
    # Another broker may have led in epoch 1. Replica 3 may have followed it, and cut its log for that.
    partition = lead_three(host)
    host.append(acks=1)
    fetch_as(host, 3, 1)
    if is_suspended:
        host.manager.suspend()
    host.lead(leader_epoch=2, partition_epoch=2, isr=(1, 2, 3), replicas=(1, 2, 3))
    fetch_as(host, 2, 1)
    assert partition.high_watermark == 0
    fetch_as(host, 3, 1)
    assert partition.high_watermark == 1


def test_stop_replica(env, host):
    lead_three(host, leader_epoch=3)
    fetched = Observed(consume(host, 0, max_wait_ms=10_000, min_bytes=1))

    def stop(leader_epoch, delete):
        state = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=0, leader_epoch=leader_epoch, delete_partition=delete
        )
        topic = StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[state])
        request = StopReplicaRequest(controller_id=1, controller_epoch=1, topic_states=[topic])
        return host.manager.stop_replica(request).partition_errors[0].error_code

    assert stop(2, False) == ErrorCode.FENCED_LEADER_EPOCH
    assert partition_of(host).is_leader
    assert stop(3, False) == ErrorCode.NONE
    assert partition_of(host) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    env.clock.advance(0)
    assert fetched.value[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert host.log_manager.get("t", 0) is not None
    assert stop(-2, True) == ErrorCode.NONE, "unknown here, but its log is deleted"
    assert host.log_manager.get("t", 0) is None


# --- fetch ---


def test_fetch_refusals(host):
    lead_three(host, leader_epoch=5)
    host.append(acks=1)

    def error(params=None, **options):
        options = {"topic": "t", "index": 0, "fetch_offset": 0, "max_bytes": 100, **options}
        (result,) = host.manager.fetching.fetch(params or FetchParams(), [FetchPartition(**options)])
        assert (result.high_watermark, result.records) == (-1, b"") or result.error is ErrorCode.NONE
        return result.error

    assert error() is ErrorCode.NONE
    assert error(topic=None) is ErrorCode.UNKNOWN_TOPIC_ID
    assert error(topic="absent") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error(topic_id=TOPIC_ID) is ErrorCode.NONE
    assert error(topic_id=b"y" * 16) is ErrorCode.UNKNOWN_TOPIC_ID, "the topic of that id was deleted"
    led = UpdateMetadataRequest.UpdateMetadataPartitionState(partition_index=0, leader=1, replicas=[1])
    newer = UpdateMetadataRequest.UpdateMetadataTopicState(topic_name="t", topic_id=b"y" * 16, partition_states=[led])
    told = UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[newer])
    assert host.manager.update_metadata(told).error_code == ErrorCode.NONE
    assert error(topic_id=b"y" * 16) is ErrorCode.INCONSISTENT_TOPIC_ID, "the replica here is still the former topic's"
    assert error(current_leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert error(current_leader_epoch=6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error(fetch_offset=-1) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert error(fetch_offset=1) is ErrorCode.NONE, "between high watermark and log end: empty"
    assert error(fetch_offset=2) is ErrorCode.OFFSET_OUT_OF_RANGE
    stranger = FetchParams(replica_id=9)
    assert error(stranger) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error(stranger, current_leader_epoch=5) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_serves_consumers_from_version_11(host):
    host.live(1, 2)
    host.lead(leader=2, leader_epoch=3, replicas=(1, 2))
    refused = consume(host, 0, version=10)[0]
    assert (refused.error, refused.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 3))
    assert consume(host, 0, version=11)[0].error is ErrorCode.NONE
    assert consume(host, 0, version=4, replica_id=-2)[0].error is ErrorCode.NONE


def test_consumers_see_the_committed_followers_everything(host):
    lead_three(host)
    host.append(acks=1)
    assert len(consume(host, 0)[0].records) == 0
    result = fetch_as(host, 2, 0)[0]
    assert offsets_of(result.records) == [0]
    assert (result.high_watermark, result.log_start_offset) == (0, 0)


def test_diverging_epoch(host):
    lead_three(host, leader_epoch=2)
    host.append(acks=1, count=3)
    host.lead(leader_epoch=4, partition_epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))

    def fetch(offset, last_fetched_epoch):
        requested = FetchPartition("t", 0, offset, 100, last_fetched_epoch=last_fetched_epoch)
        params = FetchParams(replica_id=2, max_wait_ms=100, min_bytes=1_000)
        return host.manager.fetching.fetch(params, [requested])[0]

    result = fetch(3, 3)
    assert (result.error, result.diverging_epoch, result.records) == (ErrorCode.NONE, (2, 3), b"")
    assert fetch(3, 9).error is ErrorCode.OFFSET_OUT_OF_RANGE, "newer than the leader's own"


def test_long_poll_counts_bytes_over_partitions(env, host):
    host.live(1)
    for topic in ("t", "u"):
        host.lead(topic)
    size = len(batch())
    wanted = [FetchPartition(topic, 0, 0, 1 << 20) for topic in ("t", "u")]
    fetched = Observed(host.manager.fetching.fetch(FetchParams(max_wait_ms=1_000, min_bytes=2 * size), wanted))
    host.append("t", acks=1)
    env.clock.advance(10)
    assert not fetched.done
    host.append("u", acks=1)
    env.clock.advance(10)
    assert [offsets_of(result.records) for result in fetched.value] == [[0], [0]]


SIZE = len(batch())


def poll(host, min_bytes, *partition_max_bytes, topics="tu", max_bytes=0x7FFFFFFF, offset=0):
    wanted = [FetchPartition(topic, 0, offset, limit) for topic, limit in zip(topics, partition_max_bytes)]
    return host.manager.fetching.fetch(FetchParams(max_wait_ms=1_000, min_bytes=min_bytes, max_bytes=max_bytes), wanted)


@pytest.mark.parametrize(
    ("min_bytes", "max_bytes", "partition_max_bytes", "batches"),
    [
        (10 * SIZE - 1, 10 * SIZE - 1, (10 * SIZE - 1,), [9]),  # all three alike, between two batches
        (10 * SIZE - 1, 1 << 30, (10 * SIZE - 1,), [9]),
        (10 * SIZE - 1, 10 * SIZE - 1, (1 << 30,), [9]),
        (10 * SIZE + 1, 1 << 30, (5 * SIZE + 1, 5 * SIZE + 1), [5, 5]),
        (1 << 20, 1 << 30, (5 * SIZE,), [5]),  # more than the partition's limit, the request's, the broker's
        (1 << 20, 5 * SIZE, (1 << 30,), [5]),
        (1 << 20, 5 * SIZE, (1 << 30, 1 << 30), [5, 0]),
        (1 << 20, 1 << 30, (10, 1), [1, 0]),  # limits below one batch
        (10, 1 << 30, (0, 0), [1, 0]),
    ],
)
def test_enough_is_counted_by_what_is_there(host, min_bytes, max_bytes, partition_max_bytes, batches):
    host.live(1)
    for topic in ("t", "u"):
        host.lead(topic)
        for _ in range(20):
            host.append(topic, acks=1)
    results = poll(host, min_bytes, *partition_max_bytes, max_bytes=max_bytes)
    assert isinstance(results, list), "it waits"
    assert [len(result.records) for result in results] == [count * SIZE for count in batches]


def test_more_than_the_broker_gives_at_a_time_is_not_waited_for(env):
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"fetch.max.bytes": "1024"})
    host.start_bare()
    host.live(1)
    host.lead()
    for _ in range(1024 // SIZE + 1):
        host.append(acks=1)
    results = poll(host, 2048, 1 << 30, topics="t")
    assert [len(result.records) for result in results] == [1024 // SIZE * SIZE]


@pytest.mark.parametrize(("there", "is_enough"), [(9, False), (10, True)])
@pytest.mark.parametrize("begins_with", [0, 1, 8])
def test_a_long_poll_counts_bytes_up_to_the_limits(env, host, there, is_enough, begins_with):
    host.live(1)
    host.lead()
    for _ in range(begins_with):
        host.append(acks=1)
    fetched = Observed(poll(host, 10 * SIZE - 1, 10 * SIZE - 1, topics="t"))
    for _ in range(there - begins_with):
        assert not fetched.done
        host.append(acks=1)
        env.clock.advance(1)
    assert fetched.done is is_enough
    env.clock.advance(1_000)
    assert len(fetched.value[0].records) == 9 * SIZE


@pytest.mark.parametrize("limit", [0, 1, SIZE - 1])
def test_a_limit_below_one_batch_neither_spins_nor_sleeps(env, host, limit):
    host.live(1)
    host.lead()
    fetched = Observed(poll(host, 500, limit, topics="t"))
    env.clock.advance(1)
    assert not fetched.done, "nothing is there"
    host.append(acks=1)
    env.clock.advance(1)
    assert offsets_of(fetched.value[0].records) == [0]


def test_what_one_partition_cannot_give_is_waited_for_from_another(env, host):
    host.live(1)
    for topic in ("t", "u"):
        host.lead(topic)
    for _ in range(20):
        host.append("t", acks=1)
    fetched = Observed(poll(host, 10 * SIZE, 8 * SIZE, 8 * SIZE))
    for count in range(2):
        assert not fetched.done
        host.append("u", acks=1)
        env.clock.advance(1)
        assert fetched.done is (count == 1)
    assert [len(result.records) for result in fetched.value] == [8 * SIZE, 2 * SIZE]


def test_long_poll_ends_with_time(env, host):
    host.live(1)
    host.lead()
    fetched = Observed(consume(host, 0, max_wait_ms=500, min_bytes=1))
    env.clock.advance(499)
    assert not fetched.done
    env.clock.advance(1)
    assert (fetched.value[0].error, len(fetched.value[0].records)) == (ErrorCode.NONE, 0)


def test_a_consumer_that_went_away_is_forgotten(env, host):
    host.live(1)
    host.lead()
    outcome = consume(host, 0, max_wait_ms=500, min_bytes=1)
    outcome.cancel()
    assert partition_of(host).fetch_waiters == {}
    assert host.manager.fetching.parked_count == 0
    host.append(acks=1)
    env.clock.advance(1_000)
    assert not outcome.done


def test_each_waiter_is_woken_by_its_own_partition_only(env, host):
    host.live(1)
    topics = [f"topic-{i}" for i in range(50)]
    for topic in topics:
        host.lead(topic)
    params = FetchParams(max_wait_ms=10_000, min_bytes=1)
    fetched = {t: Observed(host.manager.fetching.fetch(params, [FetchPartition(t, 0, 0, 1 << 20)])) for t in topics}
    host.append("topic-7", acks=1)
    env.clock.advance(0)
    assert [topic for topic in topics if fetched[topic].done] == ["topic-7"]


def test_max_bytes_and_the_oversized_first_batch(host):
    host.live(1)
    for topic in ("t", "u"):
        host.lead(topic)
        for _ in range(3):
            host.append(topic, acks=1)
    size = len(batch())

    def sizes(max_bytes, partition_max_bytes, version=12):
        wanted = [FetchPartition(topic, 0, 0, partition_max_bytes) for topic in ("t", "u")]
        results = host.manager.fetching.fetch(FetchParams(max_bytes=max_bytes, version=version), wanted)
        return [len(result.records) // size for result in results]

    assert sizes(1 << 20, 1 << 20) == [3, 3]
    assert sizes(1 << 20, size) == [1, 1]
    assert sizes(1 << 20, 2 * size - 1) == [1, 1]
    assert sizes(1 << 20, size - 1) == [1, 0], "only the first non-empty partition may exceed"
    assert sizes(4 * size, 1 << 20) == [3, 1]
    assert sizes(size - 1, 1 << 20) == [1, 0]
    assert sizes(0, 1 << 20) == [1, 0]


def test_preferred_read_replica(env):
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    host = Host(env, EmbeddedCoordination(env, ":memory:"), {"replica.selector.class": selector})
    host.start_bare()
    host.live(1, 2, 3, racks={1: "a", 2: "b", 3: "c"})
    host.lead(isr=(1, 2, 3), replicas=(1, 2, 3))
    host.append(acks=1)
    for replica in (2, 3):
        fetch_as(host, replica, 1)
    result = consume(host, 0, rack="b", max_wait_ms=1_000, min_bytes=10_000)[0]
    assert (result.preferred_read_replica, len(result.records), result.high_watermark) == (2, 0, 1)
    for options in ({"rack": "a"}, {"rack": "x"}, {}, {"rack": "b", "version": 10}):
        result = consume(host, 0, **options)[0]
        assert (result.preferred_read_replica, len(result.records) > 0) == (-1, True)


# --- offsets ---


def test_list_offsets(env, host):
    partition = lead_three(host, leader_epoch=2)
    host.append(acks=1, count=3)

    def look(timestamp, **options):
        result = host.manager.list_offset("t", 0, timestamp, **options)
        return result.error, result.offset

    assert look(-1) == (ErrorCode.NONE, 0), "the high watermark"
    assert look(-1, replica_id=2) == (ErrorCode.NONE, 3)
    assert look(-2) == (ErrorCode.NONE, 0)
    assert look(-3)[1] == -1, "not committed yet"
    for replica in (2, 3):
        fetch_as(host, replica, 3)
    assert look(-1) == (ErrorCode.NONE, 3)
    assert look(-3) == (ErrorCode.NONE, 0)
    assert look(-3, version=6) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert look(-4) == (ErrorCode.NONE, 0)
    assert look(-4, version=7) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert look(-5) == (ErrorCode.NONE, -1)
    assert look(-9) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert look(0) == (ErrorCode.NONE, 0)
    assert look(1_800_000_000_000) == (ErrorCode.NONE, -1)
    assert look(-1, current_leader_epoch=1)[0] is ErrorCode.FENCED_LEADER_EPOCH
    assert host.manager.list_offset("t", 0, -1).leader_epoch == 2
    host.lead(leader=2, leader_epoch=3, partition_epoch=1, replicas=(1, 2, 3))
    assert look(-1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert look(-1, replica_id=-2) == (ErrorCode.NONE, 3)
    assert partition.high_watermark == 3


def test_a_new_leader_does_not_guess_the_latest_offset(host):
    lead_three(host)
    host.append(acks=1, count=3)
    host.lead(leader_epoch=1, partition_epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3))
    assert host.manager.list_offset("t", 0, -1).error is ErrorCode.OFFSET_NOT_AVAILABLE
    assert host.manager.list_offset("t", 0, -1, version=4).error is ErrorCode.LEADER_NOT_AVAILABLE
    assert host.manager.list_offset("t", 0, 1_800_000_000_000).error is ErrorCode.OFFSET_NOT_AVAILABLE
    assert host.manager.list_offset("t", 0, -2).offset == 0
    for replica in (2, 3):
        fetch_as(host, replica, 3)
    assert host.manager.list_offset("t", 0, -1).offset == 3


def test_list_offsets_version_0(host):
    host.live(1)
    host.lead()
    host.append(acks=1, count=3)
    assert host.manager.list_offsets_version_0("t", 0, -1, 5) == (ErrorCode.NONE, [3, 0])
    assert host.manager.list_offsets_version_0("t", 0, -2, 5) == (ErrorCode.NONE, [0])
    assert host.manager.list_offsets_version_0("u", 0, -2, 5) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


def test_list_offsets_version_0_of_a_segment_that_is_gone(env, host):
    host.live(1)
    host.lead()
    host.append(acks=1, count=3)
    env.disk.remove(next(iter(partition_of(host).log.segments)).path)
    assert host.manager.list_offsets_version_0("t", 0, -1, 5) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


# --- delete records ---


def delete(host, offset, topic="t", timeout_ms=1_000):
    return Observed(record_deletion.delete(host.manager, [(topic, 0, offset)], timeout_ms))


def told(observed):
    (result,) = observed.value
    return result.error, result.low_watermark


def test_delete_records_alone(host):
    host.live(1)
    host.lead()
    host.append(acks=1, count=1)
    host.append(acks=1, count=1)
    assert told(delete(host, 1)) == (ErrorCode.NONE, 1)
    assert told(delete(host, 0)) == (ErrorCode.NONE, 1), "below the log start"
    assert told(delete(host, -1)) == (ErrorCode.NONE, 2)
    assert told(delete(host, 3)) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert told(delete(host, -3)) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert told(delete(host, 0, "absent")) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert told(delete(host, 0, "__consumer_offsets")) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert consume(host, 0)[0].error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_delete_records_waits_for_the_replicas(env, host):
    lead_three(host)
    host.append(acks=1)
    for replica in (2, 3):
        fetch_as(host, replica, 1)
    waiting, late = delete(host, 1), delete(host, 1, timeout_ms=100)
    env.clock.advance(100)
    assert told(late) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    host.live(1, 2)  # broker 3 is dead: it need not follow
    params = FetchParams(replica_id=2)
    host.manager.fetching.fetch(params, [FetchPartition("t", 0, 1, 100, log_start_offset=1)])
    assert not waiting.done
    env.clock.advance(0)
    assert told(waiting) == (ErrorCode.NONE, 1)


# --- follower ---


def test_a_follower_takes_over_records_and_high_watermark(env, host):
    lead_three(host)
    host.append(acks=1)
    records = bytes(fetch_as(host, 2, 0)[0].records)
    host.lead("u", leader=2, replicas=(1, 2))
    partition = host.manager.partition("u", 0)
    fetched = Observed(
        host.manager.fetching.fetch(FetchParams(max_wait_ms=1_000, min_bytes=1), [FetchPartition("u", 0, 0, 100)])
    )
    assert partition.append_as_follower(records, 0, 0, 0).error is ErrorCode.NONE
    env.clock.advance(0)
    assert not fetched.done
    assert partition.append_as_follower(b"", 0, 1, 0).error is ErrorCode.NONE
    env.clock.advance(0)
    assert offsets_of(fetched.value[0].records) == [0]
    assert (partition.log_end_offset, partition.high_watermark) == (1, 1)


# --- transactions ---


def marker(producer_id, *, commit):
    """A control batch as a transaction coordinator writes it."""
    record = record_batch.Record(
        offset=0, timestamp=1, key=struct.pack(">hh", 0, int(commit)), value=struct.pack(">hi", 0, 0), headers=[]
    )
    return record_batch.build([record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True)


def transactional(producer_id, sequence=0):
    record = record_batch.Record(offset=0, timestamp=1, key=b"k", value=b"v", headers=[])
    return record_batch.build(
        [record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
    )


def test_read_committed(env, host):
    host.live(1)
    host.lead()
    partition = partition_of(host)

    def append(records, origin=AppendOrigin.CLIENT):
        result = partition.append_as_leader(records, origin=origin, required_acks=1)
        assert result.error is ErrorCode.NONE, result.error_message

    append(batch())
    take_part(partition.log, 7, 0)
    append(transactional(7))
    committed = FetchParams(isolation_level=1, max_wait_ms=10_000, min_bytes=1)
    (result,) = host.manager.fetching.fetch(committed, [FetchPartition("t", 0, 0, 1 << 20)])
    assert offsets_of(result.records) == [0]
    assert (result.high_watermark, result.last_stable_offset, result.aborted_transactions) == (2, 1, [])
    assert offsets_of(consume(host, 0)[0].records) == [0, 1]
    assert consume(host, 0)[0].aborted_transactions is None
    assert host.manager.list_offset("t", 0, -1, isolation_level=1).offset == 1
    waiting = Observed(host.manager.fetching.fetch(committed, [FetchPartition("t", 0, 1, 1 << 20)]))
    append(batch())
    env.clock.advance(0)
    assert not waiting.done, "the transaction is still open"
    append(marker(7, commit=False), AppendOrigin.COORDINATOR)
    env.clock.advance(0)
    (result,) = waiting.value
    assert offsets_of(result.records) == [1, 2, 3]
    assert (result.last_stable_offset, result.aborted_transactions) == (4, [(7, 1)])


def test_a_read_committed_poll_counts_only_what_it_may_read(env, host):
    host.live(1)
    host.lead()
    partition = partition_of(host)

    def append(records, origin=AppendOrigin.CLIENT):
        assert partition.append_as_leader(records, origin=origin, required_acks=1).error is ErrorCode.NONE
        env.clock.advance(0)

    append(batch())
    take_part(partition.log, 7, 0)
    append(transactional(7))
    for _ in range(20):
        append(batch())
    params = FetchParams(isolation_level=1, max_wait_ms=10_000, min_bytes=5 * SIZE, max_bytes=5 * SIZE + 1)
    waiting = Observed(host.manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20)]))
    env.clock.advance(100)
    assert not waiting.done, "one batch is there for it, the others are behind an open transaction"
    append(marker(7, commit=False), AppendOrigin.COORDINATOR)
    (result,) = waiting.value
    assert 0 < len(result.records) <= 5 * SIZE + 1
    assert result.aborted_transactions == [(7, 1)]
    assert isinstance(host.manager.fetching.fetch(params, [FetchPartition("t", 0, 0, 1 << 20)]), list), (
        "what is aborted counts"
    )


def test_a_poll_that_begins_in_a_gap_of_compaction_counts_what_follows(env, host):
    host.live(1, 2)
    host.lead(leader=2, replicas=(1, 2), isr=(1, 2))
    partition = partition_of(host)
    records = bytearray()
    for base_offset in range(0, 400, 20):
        one = batch()
        struct.pack_into(">q", one, 0, base_offset)
        records += one
    assert partition.append_as_follower(records, 0, 381, 0).error is ErrorCode.NONE
    host.lead(leader_epoch=1, partition_epoch=1)
    for min_bytes, is_there in ((18 * SIZE - 1, True), (18 * SIZE, True), (19 * SIZE + 4096, False)):
        fetched = poll(host, min_bytes, 18 * SIZE - 1 if is_there else 1 << 20, topics="t", offset=35)
        assert isinstance(fetched, list) is is_there
        if not is_there:
            fetched.cancel()
            continue
        assert offsets_of(fetched[0].records)[0] == 40
        assert len(fetched[0].records) == 17 * SIZE


@pytest.mark.parametrize("name", ["", ".", "..", "../../t", "a/b", "a\0b", "ü", "x" * 250])
def test_no_log_is_made_for_a_name_that_no_topic_can_have(host, name):
    """Its folder would lie outside of the data directory, or spoil the checkpoints."""
    assert host.lead(name) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert host.manager.partitions == {}
    assert host.lead("t") == ErrorCode.NONE


def test_no_log_is_made_for_a_negative_partition_or_epoch(host):
    assert host.lead(index=-1) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert host.lead(leader_epoch=-7) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert host.manager.partitions == {}


def test_a_member_of_the_isr_that_is_no_replica_is_out_of_sync(host):
    """Kafka's leader drops it, too."""
    assert host.lead(isr=(1, 99), replicas=(1, 2)) == ErrorCode.NONE
    partition = host.manager.partitions["t", 0]
    partition.shrink_isr()
    assert partition.pending_isr is not None
    assert partition.pending_isr.isr == (1,)


def test_records_are_deleted_when_the_follower_that_is_waited_for_dies(env, host):
    """It had left the ISR before, so its death changes nothing else in the partition."""
    lead_three(host, isr=(1, 2))
    host.append(count=2)
    for replica_id in (2, 3):
        fetch_as(host, replica_id, 2)
    deleted = Observed(record_deletion.delete(host.manager, [("t", 0, 2)], timeout_ms=10_000))
    host.manager.fetching.fetch(FetchParams(replica_id=2), [FetchPartition("t", 0, 2, 1 << 20, log_start_offset=2)])
    env.clock.advance(0)
    assert not deleted.done
    host.live(1, 2)
    env.clock.advance(0)
    assert (deleted.value[0].error, deleted.value[0].low_watermark) == (ErrorCode.NONE, 2)
