"""The inspection of a cluster on hand-made states: real logs and partitions of three brokers, told by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import PartitionState, TopicAssignment, encode_config
from barnabas.cluster.tree.port import Create
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.replication.partition import Partition
from barnabas.replication.wakes import Wakes
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.validation import AppendOrigin
from simulator.cluster_inspection import ClusterInspector
from simulator.coordination import Session, SimTree
from simulator.env import sim_env
from simulator.observations import History, Moment, Outcome, Produce
from simulator.storage_transactions import take_part
from simulator.violation import Violation

TOPIC_ID = bytes(range(16))
TROUBLE, CALM = 0.0, 11_000.0
STATE = paths.partition_state("t", 0)


class Cluster:
    """Brokers 1, 2 and 3 with one partition `t-0`. The tests write the tree and move the replicas by hand."""

    NO_SEGMENTS = SimpleNamespace(end_offset=0)

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), settings: dict[str, str] | None = None) -> None:
        self.env = sim_env(1)
        self.tree = SimTree(self.env.clock)
        self.history = History(self.env.clock.monotonic_ms)
        self.inspector = ClusterInspector(self.history)
        self.lives: dict[int, Any] = {}
        self.settings = settings or {}
        self.make(paths.topic("t"), TopicAssignment({0: (1, 2, 3)}, TOPIC_ID).encode())
        self.make(STATE, PartitionState(1, 0, isr, 1).encode())
        self.version = 0
        for broker_id in (1, 2, 3):
            self.start(broker_id)
        self.follow(2, 1, 0)
        self.follow(3, 1, 0)
        self.lead(1, 0, isr)

    def make(self, path: str, data: bytes, owner: int = 0) -> None:
        def work(zxid: int) -> None:
            for end in [at for at, letter in enumerate(path) if letter == "/" and at]:
                if not self.tree.has(path[:end]):
                    self.tree.create(Create(path[:end]), zxid, 0)
            self.tree.create(Create(path, data, ephemeral=bool(owner)), zxid, owner)

        self.tree.change(work)

    def start(self, broker_id: int, *, number: int = 1, registered: bool = True) -> None:
        """Start a process; it is registered in a session of its own."""
        config = BrokerConfig.of({"node.id": str(broker_id), "log.dirs": f"/{broker_id}", "min.insync.replicas": "1"})
        log_manager = LogManager(self.env, f"/{broker_id}.{number}", config, lambda topic: self.settings)
        log_manager.start()
        self.lives[broker_id] = SimpleNamespace(
            number=number,
            touched=True,
            env=self.env,
            coordination=SimpleNamespace(session_id=self.session(broker_id, number)),
            broker=SimpleNamespace(
                node_id=broker_id,
                log_manager=log_manager,
                lease=SimpleNamespace(holds=True),
                replica_manager=SimpleNamespace(partitions={}, controller_epoch=1),
                group_coordinator=SimpleNamespace(shards={}),
            ),
        )
        if registered:
            self.register(broker_id)

    def session(self, broker_id: int, number: int) -> int:
        session_id = 10 * number + broker_id
        client: Any = SimpleNamespace(tell=lambda *event: None)
        self.tree.sessions[session_id] = Session(client)
        return session_id

    def register(self, broker_id: int) -> None:
        if self.tree.has(paths.broker(broker_id)):
            self.tree.change(lambda zxid: self.tree.delete(paths.broker(broker_id), -1, zxid))
        self.make(paths.broker(broker_id), b"{}", self.lives[broker_id].coordination.session_id)

    def unregister(self, broker_id: int) -> None:
        self.tree.change(lambda zxid: self.tree.delete(paths.broker(broker_id), -1, zxid))

    def replica(self, broker_id: int) -> Partition:
        life = self.lives[broker_id]
        known = life.broker.replica_manager.partitions
        if ("t", 0) not in known:
            host: Any = SimpleNamespace(
                node_id=broker_id,
                clock=self.env.clock,
                wakes=Wakes(self.env.clock),
                config=SimpleNamespace(replica_lag_time_max_ms=30_000),
                metadata_cache=SimpleNamespace(is_alive=lambda other: True),
                lease=life.broker.lease,
                propose_isr=lambda partition: None,
            )
            log = life.broker.log_manager.get_or_create("t", 0, TOPIC_ID)
            known["t", 0] = Partition("t", 0, TOPIC_ID, log, host)
        partition: Partition = known["t", 0]
        return partition

    def write_state(self, leader: int, epoch: int, isr: tuple[int, ...]) -> None:
        data = PartitionState(leader, epoch, isr, 1).encode()
        self.version = self.tree.change(lambda zxid: self.tree.set(STATE, data, -1, zxid)).version

    def lead(self, broker_id: int, epoch: int, isr: tuple[int, ...], version: int | None = None) -> None:
        self.replica(broker_id).make_leader(
            leader_epoch=epoch,
            partition_epoch=self.version if version is None else version,
            controller_epoch=1,
            isr=isr,
            replicas=(1, 2, 3),
        )

    def follow(self, broker_id: int, leader: int, epoch: int) -> None:
        self.replica(broker_id).make_follower(
            leader_id=leader, leader_epoch=epoch, partition_epoch=self.version, controller_epoch=1, replicas=(1, 2, 3)
        )

    def append(self, leader: int, value: bytes = b"value", times: int = 1) -> None:
        for _ in range(times):
            record = record_batch.Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=value, headers=[])
            result = self.replica(leader).append_as_leader(
                record_batch.build([record]), origin=AppendOrigin.CLIENT, required_acks=1
            )
            assert not result.error

    def begin_transaction(self, leader: int, producer_id: int) -> None:
        partition = self.replica(leader)
        take_part(partition.log, producer_id, 0)
        record = record_batch.Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=b"open", headers=[])
        batch = record_batch.build(
            [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
        assert not partition.append_as_leader(batch, origin=AppendOrigin.CLIENT, required_acks=1).error

    def fetch(self, follower: int, leader: int) -> None:
        """One round of fetching: acknowledge what is there, take what is new."""
        source, target = self.replica(leader), self.replica(follower)
        source.follower_fetched(follower, target.log_end_offset, 0, source.log_end_offset, 0.0, 1)
        read = source.log.read(target.log_end_offset, 1 << 20, upper_bound=1 << 40, at_least_one=True)
        epoch, high_watermark = target.leader_epoch, source.high_watermark
        assert not target.append_as_follower(bytes(read.records), epoch, high_watermark, 0).error

    def fetch_all(self, leader: int = 1) -> None:
        for _ in range(2):
            for follower in {1, 2, 3} - {leader}:
                self.fetch(follower, leader)

    def look(self, calm_ms: float = TROUBLE) -> None:
        self.inspector.look(list(self.lives.values()), self.tree, Moment(self.env.clock.monotonic_ms(), calm_ms))

    def look_after(self, delay_ms: float) -> None:
        self.env.clock.advance(delay_ms)
        self.look(calm_ms=delay_ms)

    def acknowledge(self, end: int, acks: int = -1, outcome: Outcome = Outcome.OK) -> None:
        produce = Produce(("t", 0), ("a",), acks, -1, 0, end - 1)
        self.history.end("producer", self.history.invoke("producer", produce), outcome, produce)

    def say(self, invariant: str) -> str:
        with pytest.raises(Violation) as caught:
            self.look()
        assert caught.value.invariant == invariant
        return str(caught.value)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.append(1, times=3)
    made.fetch_all()
    made.look()
    assert made.replica(1).high_watermark == 3
    return made


def test_a_cluster_at_work_is_fine(cluster: Cluster) -> None:
    for round_number in range(5):
        cluster.append(1, f"value {round_number}".encode(), times=3)
        cluster.look()
        cluster.fetch_all()
        cluster.look()
    cluster.acknowledge(18)
    cluster.look()
    cluster.look_after(20_000)
    cluster.inspector.look_after_healing(list(cluster.lives.values()))


def test_a_failover_is_fine_and_so_is_a_tail_that_is_cut(cluster: Cluster) -> None:
    cluster.append(1, b"never committed")
    cluster.look()
    cluster.write_state(2, 1, (2, 3))
    cluster.look()  # leader 1 has not heard of it
    cluster.lead(2, 1, (2, 3))
    cluster.follow(3, 2, 1)
    cluster.append(2, b"another record")
    cluster.look()
    cluster.fetch(3, 2)
    cluster.fetch(3, 2)
    cluster.look()
    assert cluster.replica(2).high_watermark == 4
    cluster.follow(1, 2, 1)
    cluster.look()
    cluster.lives[1].broker.log_manager.get("t", 0).segments.active.truncate(3)
    cluster.lives[1].broker.log_manager.get("t", 0).segments.end_offset = 3
    cluster.look()
    cluster.fetch(1, 2)
    cluster.look()
    assert cluster.replica(1).log_end_offset == 4


# --- leaders and the tree ---


def test_two_leaders_of_one_epoch_in_the_tree(cluster: Cluster) -> None:
    cluster.write_state(2, 0, (1, 2, 3))
    assert "1" in cluster.say("one leader per epoch")


def test_a_broker_that_leads_an_epoch_of_another(cluster: Cluster) -> None:
    cluster.write_state(2, 1, (1, 2, 3))
    cluster.look()
    cluster.lead(3, 1, (1, 2, 3))
    cluster.say("brokers know what the tree has said")


def test_an_epoch_that_goes_back(cluster: Cluster) -> None:
    cluster.write_state(2, 3, (1, 2, 3))
    cluster.look()
    cluster.write_state(2, 2, (1, 2, 3))
    cluster.say("leader epochs only grow")


def test_a_state_written_by_an_earlier_controller(cluster: Cluster) -> None:
    cluster.make(paths.CONTROLLER_EPOCH, b"2")
    cluster.write_state(2, 3, (1, 2, 3))
    cluster.say("no earlier controller writes states")


def test_a_broker_that_obeys_an_earlier_controller(cluster: Cluster) -> None:
    cluster.lives[2].broker.replica_manager.controller_epoch = 7
    cluster.look()
    cluster.lives[2].broker.replica_manager.controller_epoch = 6
    cluster.say("brokers obey the newest controller")


def test_an_isr_in_memory_before_it_is_in_the_tree(cluster: Cluster) -> None:
    cluster.replica(1).isr = (1, 2)
    cluster.say("brokers know what the tree has said")


def test_an_isr_in_memory_after_the_tree_and_one_change_behind_it(cluster: Cluster) -> None:
    cluster.write_state(1, 0, (1, 2))
    cluster.look()
    cluster.lead(1, 0, (1, 2))
    cluster.write_state(1, 0, (1, 2, 3))
    cluster.look()


def test_a_leader_that_is_not_in_the_isr_when_it_is_elected(cluster: Cluster) -> None:
    cluster.write_state(1, 0, (1, 2))
    cluster.look()
    cluster.write_state(3, 1, (3,))
    cluster.say("a leader comes from the ISR")


def test_an_unclean_election_that_the_topic_allows_excuses_the_partition(cluster: Cluster) -> None:
    cluster.make(paths.topic_config("t"), encode_config({"unclean.leader.election.enable": "true"}))
    cluster.write_state(1, 0, (1, 2))
    cluster.look()
    cluster.write_state(3, 1, (3,))
    cluster.look()
    assert list(cluster.inspector.excused) == [("t", 0, TOPIC_ID)]


# --- the high watermark ---


@pytest.mark.parametrize("wrong", [None, 4])
def test_a_last_stable_offset_beyond_an_open_transaction(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, wrong: int | None
) -> None:
    cluster.begin_transaction(1, 7)
    cluster.append(1, b"behind it")
    cluster.fetch_all()
    cluster.look()
    assert [cluster.replica(each).last_stable_offset for each in (1, 2, 3)] == [3, 3, 3]
    cluster.append(1, b"news")
    cluster.fetch_all()
    monkeypatch.setattr(ProducerStateManager, "first_unstable_offset", property(lambda state: wrong))
    cluster.say("the last stable offset stops at open transactions")


def test_a_last_stable_offset_beyond_the_high_watermark(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "last_stable_offset", property(lambda log: log.high_watermark + 1))
    cluster.append(1)
    cluster.say("the last stable offset is below the high watermark")


def test_a_high_watermark_beyond_the_log(cluster: Cluster) -> None:
    cluster.replica(1).log.high_watermark = 4
    cluster.say("the high watermark is in the log")


def test_a_high_watermark_that_goes_back(cluster: Cluster) -> None:
    cluster.replica(1).log.high_watermark = 2
    cluster.say("the high watermark never goes back")


@pytest.mark.parametrize(("start", "is_right"), [(3, False), (4, True)])
def test_a_follower_may_go_back_when_the_leader_has_forgotten_all_that_it_has(start: int, is_right: bool) -> None:
    cluster = Cluster(isr=(1, 2))
    cluster.append(1, times=3)
    cluster.fetch(2, 1)
    cluster.fetch(2, 1)
    read = cluster.replica(1).log.read(0, 1 << 20, upper_bound=1 << 40, at_least_one=True)
    assert not cluster.replica(3).append_as_follower(bytes(read.records), 0, 3, 0).error
    cluster.append(1, times=2)
    cluster.fetch(2, 1)
    cluster.fetch(2, 1)
    cluster.look()
    assert [cluster.replica(broker_id).high_watermark for broker_id in (1, 2, 3)] == [5, 5, 3]
    cluster.replica(1).log.log_start_offset = start
    cluster.replica(3).log.high_watermark = 2
    if is_right:
        cluster.look()
    else:
        cluster.say("the high watermark never goes back")


def test_a_new_leader_may_begin_with_an_older_high_watermark(cluster: Cluster) -> None:
    cluster.append(1)
    for follower in (2, 3):
        cluster.fetch(follower, 1)
        cluster.fetch(follower, 1)
    cluster.look()
    assert (cluster.replica(1).high_watermark, cluster.replica(2).high_watermark) == (4, 3)
    cluster.write_state(2, 1, (1, 2, 3))
    cluster.lead(2, 1, (1, 2, 3))
    cluster.look()
    assert cluster.replica(2).high_watermark == 3


def test_a_high_watermark_by_the_first_follower(cluster: Cluster) -> None:
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.look()
    cluster.replica(1).log.set_high_watermark(4)
    assert "the log of 3 ends at 3" in cluster.say("the high watermark waits for the ISR")


def test_a_member_of_the_tree_s_isr_that_its_leader_does_not_wait_for(cluster: Cluster) -> None:
    """Its leader has not heard yet that it is in the ISR: it must count it since it proposed that."""
    cluster.write_state(1, 0, (1, 2))
    cluster.lead(1, 0, (1, 2))
    cluster.look()
    cluster.write_state(1, 0, (1, 2, 3))
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.replica(1).log.set_high_watermark(4)
    assert "the log of 3 ends at 3" in cluster.say("the whole ISR has what is committed")


def test_a_leader_that_does_not_know_yet_that_a_member_is_out_of_the_isr(cluster: Cluster) -> None:
    """The member has come back with an empty log, in a later epoch: it is not counted any more."""
    cluster.write_state(1, 1, (1, 2))
    cluster.unregister(3)
    cluster.start(3, number=2)
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.replica(1).log.set_high_watermark(4)
    cluster.look()


def test_high_watermark_set_to_the_log_end_at_the_election(cluster: Cluster) -> None:
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.write_state(2, 1, (2, 3))
    cluster.lead(2, 1, (2, 3))
    cluster.look()
    cluster.replica(2).log.set_high_watermark(4)
    assert "the log of 3 ends at 3, committed is 4" in cluster.say("the whole ISR has what is committed")


def test_a_follower_that_knows_more_than_was_committed(cluster: Cluster) -> None:
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.replica(2).log.set_high_watermark(4)
    cluster.say("followers know what leaders have committed")


def test_what_is_acknowledged_must_be_committed(cluster: Cluster) -> None:
    cluster.append(1)
    cluster.look()
    cluster.acknowledge(3)
    cluster.acknowledge(4, acks=1)
    cluster.acknowledge(4, outcome=Outcome.INFO)
    cluster.look()
    cluster.acknowledge(4)
    cluster.say("what is acknowledged is committed")


# --- a member that has lost records ---


def test_a_member_comes_back_into_its_isr_without_its_records(cluster: Cluster) -> None:
    cluster.unregister(3)
    cluster.start(3, number=2, registered=False)
    cluster.look()  # it recovers; nobody elects it
    cluster.register(3)
    assert "the log of 3 ends at 0, committed is 3" in cluster.say("the whole ISR has what is committed")


def test_a_member_comes_back_when_it_is_out_of_the_isr(cluster: Cluster) -> None:
    cluster.write_state(1, 1, (1, 2))
    cluster.start(3, number=2)
    cluster.look()


def test_the_loss_of_one_member_is_no_excuse(cluster: Cluster) -> None:
    cluster.inspector.note_loss(3)
    cluster.start(3, number=2)
    cluster.say("the whole ISR has what is committed")


def test_the_loss_of_all_members_is_one(cluster: Cluster) -> None:
    cluster.write_state(1, 1, (1, 3))
    cluster.look()
    cluster.inspector.note_loss(3)
    cluster.write_state(3, 2, (3,))
    cluster.start(3, number=2)
    cluster.look()
    assert list(cluster.inspector.excused) == [("t", 0, TOPIC_ID)]


def test_a_loss_is_forgotten_when_the_member_was_out_of_the_isr(cluster: Cluster) -> None:
    cluster.inspector.note_loss(3)
    cluster.write_state(1, 1, (1, 2))
    cluster.look()
    cluster.write_state(1, 1, (1, 2, 3))
    cluster.write_state(3, 2, (3,))
    cluster.look()
    assert not cluster.inspector.excused


# --- bytes ---


def test_another_record_below_the_high_watermark(cluster: Cluster) -> None:
    cluster.append(1, b"right")
    cluster.fetch_all()
    cluster.fetch_all()
    cluster.replica(3).log.segments.active.truncate(3)
    cluster.replica(3).log.segments.end_offset = 3
    cluster.replica(3).log.high_watermark = 3
    wrong = record_batch.build(
        [record_batch.Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=b"wrong", headers=[])]
    )
    record_batch.patch(wrong, 0, 3, 0)
    assert not cluster.replica(3).append_as_follower(bytes(wrong), 0, 3, 0).error
    assert "t-0 on 3 at 3" in cluster.say("equal bytes below the high watermark")


def test_the_same_record_in_another_epoch_is_another(cluster: Cluster) -> None:
    cluster.append(1)
    cluster.fetch(2, 1)
    data = cluster.env.disk.data_of(cluster.replica(2).log.segments.active.path)
    header = record_batch.read_header(bytes(data), 0)
    record_batch.patch(data, 3 * header.size_bytes, 3, 7)
    cluster.fetch(3, 1)
    cluster.fetch(2, 1)
    cluster.fetch(3, 1)
    assert "t-0 on 2 at 3" in cluster.say("equal bytes below the high watermark")


def test_a_difference_above_the_high_watermark_is_no_matter_outside_the_isr(cluster: Cluster) -> None:
    cluster.write_state(1, 0, (1, 2))
    cluster.lead(1, 0, (1, 2))
    cluster.look()
    wrong = record_batch.build([record_batch.Record(offset=0, timestamp=1, key=b"k", value=b"wrong", headers=[])])
    record_batch.patch(wrong, 0, 3, 0)
    assert not cluster.replica(3).append_as_follower(bytes(wrong), 0, 3, 0).error
    cluster.append(1)
    cluster.fetch(2, 1)
    cluster.fetch(2, 1)
    cluster.replica(1).follower_fetched(3, 4, 0, 4, 0.0, 1)
    cluster.look()
    assert cluster.replica(1).high_watermark == 4
    cluster.write_state(1, 0, (1, 2, 3))  # now it must be equal
    assert "t-0 on 3 at 3" in cluster.say("equal bytes below the high watermark")


def test_a_difference_that_nobody_moved_is_found_at_the_end(cluster: Cluster) -> None:
    data = cluster.env.disk.data_of(cluster.replica(2).log.segments.active.path)
    data[17] ^= 1
    cluster.look()
    with pytest.raises(Violation, match="equal bytes below the high watermark: t-0 on 2 at 0"):
        cluster.inspector.look_after_healing(list(cluster.lives.values()))


# --- calm ---


def test_a_partition_without_a_leader_while_a_member_lives(cluster: Cluster) -> None:
    cluster.write_state(-1, 1, (1, 2, 3))
    cluster.look()
    cluster.look_after(5_000)
    with pytest.raises(Violation, match="a partition has a leader while an ISR member lives"):
        cluster.look_after(11_000)


def test_a_partition_without_a_leader_whose_last_member_is_away(cluster: Cluster) -> None:
    cluster.write_state(-1, 1, (3,))
    cluster.unregister(3)
    del cluster.lives[3]
    cluster.look_after(11_000)
    cluster.look_after(11_000)


def test_a_leader_that_is_not_told(cluster: Cluster) -> None:
    cluster.write_state(2, 1, (1, 2, 3))
    cluster.look()
    cluster.follow(1, 2, 1)
    cluster.follow(3, 2, 1)
    with pytest.raises(Violation, match=r"what the tree says reaches its brokers: t-0: 2 knows \(1, 0\)"):
        cluster.look_after(11_000)


def test_a_leader_that_stays_suspended(cluster: Cluster) -> None:
    cluster.replica(1).suspend()
    cluster.look()
    with pytest.raises(Violation, match=r"what the tree says reaches its brokers: t-0: 1 knows"):
        cluster.look_after(11_000)


def test_a_lease_that_outlives_its_session(cluster: Cluster) -> None:
    lease = cluster.lives[1].broker.lease
    lease.holds = False
    del cluster.tree.sessions[11]
    cluster.look()
    lease.holds = True
    cluster.say("a lease ends before its session")


def test_a_leader_goes_on_in_a_new_session(cluster: Cluster) -> None:
    life = cluster.lives[1]
    life.broker.lease.holds = False
    life.coordination.session_id = cluster.session(1, 2)
    cluster.look()
    life.broker.lease.holds = True
    cluster.say("who lost its session is suspended")


def test_a_leader_is_suspended_before_its_lease_holds_in_a_new_session(cluster: Cluster) -> None:
    cluster.lives[1].coordination.session_id = cluster.session(1, 2)
    cluster.replica(1).suspend()
    cluster.look()


def test_a_broker_that_leaves_in_order(cluster: Cluster) -> None:
    with pytest.raises(Violation, match="who leaves in order is in no ISR"):
        cluster.inspector.note_stopped(2)
    cluster.write_state(1, 1, (1, 3))
    cluster.look()
    cluster.inspector.note_stopped(2)


def test_a_broker_that_follows_an_older_epoch(cluster: Cluster) -> None:
    cluster.write_state(1, 4, (1, 2, 3))
    cluster.follow(2, 1, 4)
    cluster.look()
    cluster.replica(2).leader_epoch = 3
    cluster.say("leader epochs only grow")


def test_min_insync_replicas(cluster: Cluster) -> None:
    cluster.write_state(1, 1, (1,))
    cluster.lead(1, 1, (1,))
    cluster.settings["min.insync.replicas"] = "2"
    cluster.lives[1].broker.log_manager.update_topic_config("t")
    cluster.look()
    cluster.append(1)
    cluster.look()
    cluster.replica(1).log.set_high_watermark(4)
    cluster.say("min.insync.replicas have what is committed")


def test_a_replica_out_of_sync_after_healing(cluster: Cluster) -> None:
    cluster.write_state(1, 0, (1, 2))
    cluster.look()
    with pytest.raises(Violation, match="all replicas come back into sync"):
        cluster.inspector.look_after_healing(list(cluster.lives.values()))


# --- shards ---


def lead_offsets(cluster: Cluster, broker_id: int, is_leader: bool = True) -> None:
    log = SimpleNamespace(
        topic_id=None, failed=None, closed=True, high_watermark=0, log_start_offset=0, segments=cluster.NO_SEGMENTS
    )
    partition = SimpleNamespace(
        topic="__consumer_offsets", index=0, log=log, is_leader=is_leader, leader_epoch=4, partition_epoch=0, isr=()
    )
    cluster.lives[broker_id].broker.replica_manager.partitions["__consumer_offsets", 0] = partition


def test_a_shard_goes_with_its_leadership(cluster: Cluster) -> None:
    shard = SimpleNamespace(partition=0, leader_epoch=4, loading=True)
    cluster.lives[1].broker.group_coordinator.shards[0] = shard
    lead_offsets(cluster, 1)
    cluster.look()
    lead_offsets(cluster, 1, is_leader=False)
    cluster.say("a shard goes with its leadership")


def test_one_loaded_shard_per_epoch(cluster: Cluster) -> None:
    lead_offsets(cluster, 1)
    lead_offsets(cluster, 2)
    shard = SimpleNamespace(partition=0, leader_epoch=4, loading=False)
    cluster.lives[1].broker.group_coordinator.shards[0] = shard
    cluster.look()
    cluster.lives[2].broker.group_coordinator.shards[0] = SimpleNamespace(partition=0, leader_epoch=4, loading=True)
    cluster.look()
    cluster.lives[2].broker.group_coordinator.shards[0].leader_epoch = 5
    cluster.lives[2].broker.group_coordinator.shards[0].loading = False
    cluster.look()
    cluster.lives[2].broker.group_coordinator.shards[0].leader_epoch = 4
    cluster.say("one loaded shard per epoch")
