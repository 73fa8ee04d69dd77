"""Checks a cluster's brokers and tree after every event that may have changed one of them.

**What is committed.** The committed end of a partition is the highest high watermark that any leader has had. What is
below it was, or could have been, acknowledged and read. A member of the ISR *in the tree* may become leader at any time
without asking anybody, so each of them must have all that is committed. This holds in every instant, also while a
change of the ISR is under way: the leader counts a joining replica before the tree has it, and a leaving one until the
leader knows that the tree has it no more. The leader's own, maximal ISR is another matter. It may hold a broker that
the controller has taken out and that has lost its log since. So it is checked only when the leader raises its high
watermark, and only for followers that are in the leader's epoch.

**What is equal.** The first leader that commits a batch defines it. Every replica must have the same batches below its
own high watermark, and a member of the ISR all that is committed. Each replica remembers how far it was compared.
Compaction takes records out of batches on each broker by itself. There only batches that still have as many records as
they had are compared.

**What may be lost.** A machine that loses unsynced bytes may lose committed records. It may not come back into an ISR
with them missing. But if no other member of an ISR is left, the loss cannot be helped, and the partition is `excused`
from then on. So is a partition whose topic allows unclean elections, after one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import PartitionState, TopicAssignment, decode_config, decode_number
from barnabas.protocol.batch_layout import DELETE_HORIZON, HEADER, HEADER_BYTES, PREFIX_BYTES
from barnabas.replication.partition import Partition
from barnabas.storage.log import Log

from simulator.coordination import Node, SimTree
from simulator.history import ALL_IN_SYNC, OFFSETS_TOPIC
from simulator.host import Life
from simulator.observations import History, Moment, Outcome, Produce
from simulator.storage_transactions import check_bounds
from simulator.violation import Violation

NO_LEADER = -1
TOLD_WITHIN_MS = 10_000.0  # calm after which every broker knows what the tree says
CALM_LOOKS_EVERY_MS = 1_000.0
CHANGED_BY_CLEANER = -1  # in place of the number of records

Key = tuple[str, int, bytes | None]  # topic, partition, topic id: a topic that is made again is another one


class _State(NamedTuple):
    """A partition's state node."""

    version: int
    leader: int
    epoch: int
    isr: tuple[int, ...]
    since_ms: float


class _Batch(NamedTuple):
    """What is compared of a batch."""

    last_offset: int
    epoch: int
    crc: int
    records: int


class _Seen(NamedTuple):
    """A replica at the last look."""

    high_watermark: int
    log_end_offset: int
    log_start_offset: int
    leader_epoch: int
    partition_epoch: int
    is_leader: bool
    isr: tuple[int, ...]


class _Replica:
    """One replica in one life of its broker."""

    __slots__ = ("compared", "log", "position", "seen", "segment")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.seen: _Seen | None = None
        self.compared = log.log_start_offset  # up to here its batches are known to be right
        self.segment: Any = None  # where the comparison goes on
        self.position = 0


class _Watched:
    """What a process had at the last look. Most looks find the same again, so that must be found out quickly."""

    __slots__ = ("controller_epoch", "partitions", "replicas", "session_id")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.replicas: list[tuple[Partition, Key, _Replica]] = []
        self.session_id: int | None = None  # in which it last served
        self.controller_epoch = 0  # of the last request of a controller that it has obeyed


class _Committed:
    """What the leaders of a partition have committed."""

    __slots__ = ("batches", "end")

    def __init__(self) -> None:
        self.end = 0
        self.batches: dict[int, _Batch] = {}  # by base offset


class ClusterInspector:
    """Its methods raise Violation. `look` is the world's `Look`."""

    def __init__(self, history: History) -> None:
        self.excused: dict[Key, None] = {}  # partitions that may have lost committed records
        self._history = history
        self._events_read = 0
        self._controller_epoch = 0  # in the tree
        self._tree: SimTree | None = None
        self._news: list[Node] = []  # nodes that have changed since the last look
        self._topic_ids: dict[str, bytes | None] = {}
        self._made_again: dict[str, None] = {}  # names that several topics have had
        self._assignments: dict[Key, tuple[int, ...]] = {}
        self._states: dict[Key, _State] = {}
        self._versions: dict[Key, dict[int, _State]] = {}  # all states that a node has had
        self._compacted: dict[str, None] = {}  # topics; a log may not know it yet, while others are compacted already
        self._unclean: dict[str, bool] = {}  # topics whose settings name unclean.leader.election.enable
        self._leaders: dict[tuple[Key, int], int] = {}  # (partition, leader epoch) -> broker
        self._leaders_before: dict[tuple[Key, int], int] = {}  # as above, of before an older tree was put back
        self._epochs_before: dict[Key, int] = {}
        self._registered: dict[int, Life] = {}
        self._registered_of: list[tuple[Life, int]] = []  # the lives and sessions for which `_registered` is right
        self._replicas: dict[tuple[int, int], dict[Key, _Replica]] = {}  # of each life (broker, number)
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._watched_now: list[_Watched] = []  # of the lives of `_registered_of`
        self._committed: dict[Key, _Committed] = {}
        self._suspects: dict[Key, dict[int, None]] = {}  # members of the ISR that have lost bytes
        self._shards: dict[tuple[int, int], tuple[int, int]] = {}  # (partition, epoch) -> (broker, life)
        self._is_tree_older = False  # its ISRs say nothing until all brokers have seen it
        self._next_calm_look_ms = 0.0

    def look(self, lives: Sequence[Life], tree: SimTree, moment: Moment) -> None:
        """Look at what may have changed since the last look."""
        changed: dict[Key, None] = {}
        if self._tree is None:
            self._tree = tree
            tree.on_change = self._news.append
            self._news += tree.nodes()
        with_sessions = [(life, life.coordination.session_id) for life in lives]
        if self._news or with_sessions != self._registered_of:
            self._read_news(changed, moment.now_ms)
            self._find_registered(lives, changed)
            self._registered_of = with_sessions
            places = [(life.broker.node_id, life.number) for life in lives]
            self._watched_now = [self._watched.setdefault(place, _Watched()) for place in places]
        for (life, session_id), watched in zip(with_sessions, self._watched_now):
            if session_id and session_id not in tree.sessions and life.broker.lease.holds:
                detail = f"broker {life.broker.node_id} serves without session {session_id}"
                raise Violation("a lease ends before its session", detail)
            if watched.session_id != session_id:
                self._look_at_new_session(life, watched, session_id)
            if life.touched:
                self._look_at_broker(life, watched, lives, changed)
        for key in changed:
            self._check_isr_has_committed(key)
        if self._events_read < len(self._history.events):
            self._read_history()
        if moment.calm_ms >= TOLD_WITHIN_MS and moment.now_ms >= self._next_calm_look_ms:
            self._next_calm_look_ms = moment.now_ms + CALM_LOOKS_EVERY_MS
            self._look_in_calm(lives, moment.now_ms)

    def note_loss(self, broker_id: int) -> None:
        """The broker's machine has lost bytes that were not synced."""
        for key, state in self._states.items():
            if broker_id in state.isr:
                self._suspects.setdefault(key, {})[broker_id] = None
                self._excuse_if_all_lost(key, state)

    def note_tree_put_back(self, tree: SimTree, *, is_known: bool) -> None:
        """The tree is an older copy of itself from now on: its versions begin again there.

        Its leader epochs do, too, until all brokers have registered; and for good, if no broker can know that it is.
        """
        self._is_tree_older = True
        self._leaders_before |= self._leaders
        for key, epoch in [*self._leaders, *((key, state.epoch) for key, state in self._states.items())]:
            self._epochs_before[key] = max(self._epochs_before.get(key, -1), epoch)
        if not is_known:
            self._leaders_before.clear()
            self._epochs_before.clear()
        self._states.clear()
        self._leaders.clear()
        self._shards.clear()
        self._controller_epoch = 0
        for watched in self._watched.values():
            watched.controller_epoch = 0
        self._news[:] = tree.nodes()

    def note_all_registered(self) -> None:
        """All brokers have seen the tree that was put back: from now on each member of an ISR has what is committed."""
        self._is_tree_older = False
        for key, state in self._states.items():
            self._check_isr_has_committed(key)
            if state.epoch < self._epochs_before.get(key, -1):
                detail = f"{_name(key)}: {state.epoch} after {self._epochs_before[key]} before the tree was put back"
                raise Violation("leader epochs only grow", detail)
            if state.leader != NO_LEADER:
                before = self._leaders_before.get((key, state.epoch), state.leader)
                if before != state.leader:
                    detail = f"{_name(key)} epoch {state.epoch}: {before}, and {state.leader} in a tree put back"
                    raise Violation("one leader per epoch", detail)
        self._leaders |= self._leaders_before

    def look_after_healing(self, lives: Sequence[Life]) -> None:
        """All is calm, and has been for long: every replica is in sync, and all bytes are equal."""
        for key, state in self._states.items():
            if self._is_being_deleted(key):
                continue
            replicas = self._assignments.get(key, ())
            if set(state.isr) != set(replicas):
                raise Violation("all replicas come back into sync", f"{_name(key)}: {replicas}, ISR {state.isr}")
            for life in lives:
                replica = self._replicas.get((life.broker.node_id, life.number), {}).get(key)
                if replica is not None and key not in self.excused:
                    replica.compared, replica.segment = replica.log.log_start_offset, None
                    self._compare(key, replica, self._committed[key].end, life)

    def _read_history(self) -> None:
        """What clients were told to be written for good must be committed."""
        events = self._history.events
        for event in events[self._events_read :]:
            produce = event.operation
            if isinstance(produce, Produce) and event.outcome is Outcome.OK and produce.acks == ALL_IN_SYNC:
                topic, index = produce.partition
                key = (topic, index, self._topic_ids.get(topic))
                committed = self._committed.get(key)
                known = 0 if committed is None else committed.end
                end = produce.base_offset + len(produce.values)
                if known < end and topic not in self._made_again and key not in self.excused:
                    raise Violation("what is acknowledged is committed", f"{_name(key)}: {end}, committed is {known}")
        self._events_read = len(events)

    # -- the tree

    def _read_news(self, changed: dict[Key, None], now_ms: float) -> None:
        news = list(self._news)
        self._news.clear()
        for path, data, version in news:
            parts = path.split("/")
            if parts[1] == "brokers" and len(parts) > 3 and parts[2] == "topics":
                topic = parts[3]
                if len(parts) == 4:
                    self._read_assignment(topic, data)
                elif len(parts) == 7 and parts[6] == "state":
                    key = (topic, int(parts[5]), self._topic_ids.get(topic))
                    if data is None:
                        self._states.pop(key, None)
                    else:
                        self._read_state(key, PartitionState.decode(data), version, now_ms)
                        changed[key] = None
            elif path == paths.CONTROLLER_EPOCH and data is not None:
                self._controller_epoch = decode_number(data)
            elif parts[1] == "config" and len(parts) == 4 and parts[2] == "topics":
                config = decode_config(data) if data is not None else {}
                self._unclean[parts[3]] = config.get("unclean.leader.election.enable") == "true"
                if "compact" in config.get("cleanup.policy", ""):
                    self._compacted[parts[3]] = None

    def _read_assignment(self, topic: str, data: bytes | None) -> None:
        if data is None:
            for key in [key for key in self._states if key[0] == topic]:
                del self._states[key]
            return
        assignment = TopicAssignment.decode(data)
        if self._topic_ids.setdefault(topic, assignment.topic_id) != assignment.topic_id:
            self._made_again[topic] = None
            self._topic_ids[topic] = assignment.topic_id
        for index, replicas in assignment.partitions.items():
            self._assignments[topic, index, assignment.topic_id] = replicas

    def _read_state(self, key: Key, node: PartitionState, version: int, now_ms: float) -> None:
        if node.controller_epoch < self._controller_epoch:
            detail = f"{_name(key)}: by the controller of epoch {node.controller_epoch}, it is {self._controller_epoch}"
            raise Violation("no earlier controller writes states", detail)
        before = self._states.get(key)
        state = _State(version, node.leader, node.leader_epoch, node.isr, now_ms)
        self._states[key] = state
        self._versions.setdefault(key, {})[version] = state
        if node.leader != NO_LEADER:
            self._note_leader(key, node.leader_epoch, node.leader, "the tree")
            if node.leader not in node.isr:
                raise Violation("a leader is in the ISR", f"{_name(key)}: {node.leader}, ISR {node.isr}")
        if before is None:
            return
        if node.leader_epoch < before.epoch:
            raise Violation("leader epochs only grow", f"{_name(key)}: {node.leader_epoch} after {before.epoch}")
        if node.leader_epoch == before.epoch and node.leader != before.leader:
            detail = f"{_name(key)} epoch {node.leader_epoch}: {before.leader} and {node.leader} in the tree"
            raise Violation("one leader per epoch", detail)
        if node.leader not in (NO_LEADER, *before.isr):
            if not self._unclean.get(key[0]):
                detail = f"{_name(key)}: {node.leader} leads, the ISR was {before.isr}"
                raise Violation("a leader comes from the ISR", detail)
            self.excused[key] = None
        suspects = self._suspects.get(key)
        if suspects:
            for broker_id in [broker_id for broker_id in suspects if broker_id not in node.isr]:
                del suspects[broker_id]
            self._excuse_if_all_lost(key, state)

    def _excuse_if_all_lost(self, key: Key, state: _State) -> None:
        if all(broker_id in self._suspects[key] for broker_id in state.isr):
            self.excused[key] = None

    def _note_leader(self, key: Key, epoch: int, broker_id: int, who: str) -> None:
        known = self._leaders.setdefault((key, epoch), broker_id)
        if known != broker_id:
            raise Violation("one leader per epoch", f"{_name(key)} epoch {epoch}: {known}, and {broker_id} says {who}")

    def _find_registered(self, lives: Iterable[Life], changed: dict[Key, None]) -> None:
        """Which process is registered: the owner of a broker's node. Who is, may be elected."""
        assert self._tree is not None
        registered = {}
        for life in lives:
            broker_id = life.broker.node_id
            node = self._tree.find(paths.broker(broker_id))
            if node is not None and node.owner == life.coordination.session_id:
                registered[broker_id] = life
        if registered != self._registered:
            new = {broker_id for broker_id, life in registered.items() if self._registered.get(broker_id) is not life}
            self._registered = registered
            for key, state in self._states.items():
                if not new.isdisjoint(state.isr):
                    changed[key] = None

    # -- brokers

    def _look_at_new_session(self, life: Life, watched: _Watched, session_id: int) -> None:
        """The lease holds in a new session: what was led in the former one may be led by another broker now."""
        broker = life.broker
        if not broker.lease.holds:
            return
        if watched.session_id is not None:
            led = [partition for partition in broker.replica_manager.partitions.values() if partition.is_leader]
            if led:
                raise Violation("who lost its session is suspended", f"broker {broker.node_id}: {led[0]!r}")
        watched.session_id = session_id

    def note_stopped(self, broker_id: int) -> None:
        """The broker has stopped in order, with a controller that it could reach."""
        for key, state in self._states.items():
            if broker_id in state.isr and len(state.isr) > 1 and not self._is_being_deleted(key):
                raise Violation("who leaves in order is in no ISR", f"{_name(key)}: {broker_id}, ISR {state.isr}")

    def _look_at_broker(self, life: Life, watched: _Watched, lives: Sequence[Life], changed: dict[Key, None]) -> None:
        broker = life.broker
        controller_epoch = broker.replica_manager.controller_epoch
        if controller_epoch < watched.controller_epoch:
            detail = f"broker {broker.node_id} obeys {controller_epoch} after {watched.controller_epoch}"
            raise Violation("brokers obey the newest controller", detail)
        watched.controller_epoch = controller_epoch
        partitions = list(broker.replica_manager.partitions.values())
        if partitions != watched.partitions:
            watched.partitions = partitions
            watched.replicas = [self._replica(life, partition) for partition in partitions]
        for slot, (partition, key, replica) in enumerate(watched.replicas):
            log = partition.log
            if log is not replica.log:
                _, key, replica = watched.replicas[slot] = self._replica(life, partition)
            now = (
                log.high_watermark,
                log.segments.end_offset,
                log.log_start_offset,
                partition.leader_epoch,
                partition.partition_epoch,
                partition.is_leader,
                partition.isr,
            )
            seen = replica.seen
            if now != seen:
                replica.seen = _Seen(*now)
                if log.failed is None and not log.closed:
                    self._look_at_replica(key, partition, replica, seen, life, lives, changed)
        for shard in broker.group_coordinator.shards.values():
            led = broker.replica_manager.partitions.get((OFFSETS_TOPIC, shard.partition))
            if led is None or not led.is_leader:
                detail = (
                    f"broker {broker.node_id} has partition {shard.partition} of epoch {shard.leader_epoch}: {led!r}"
                )
                raise Violation("a shard goes with its leadership", detail)
            if not shard.loading:
                place = (shard.partition, shard.leader_epoch)
                owner = self._shards.setdefault(place, (broker.node_id, life.number))
                if owner[0] != broker.node_id:
                    detail = f"partition {place[0]} epoch {place[1]}: brokers {owner[0]} and {broker.node_id}"
                    raise Violation("one loaded shard per epoch", detail)

    def _replica(self, life: Life, partition: Partition) -> tuple[Partition, Key, _Replica]:
        """What is known of a process's replica."""
        key = (partition.topic, partition.index, partition.log.topic_id)
        replicas = self._replicas.setdefault((life.broker.node_id, life.number), {})
        replica = replicas.get(key)
        if replica is None or replica.log is not partition.log:
            replica = replicas[key] = _Replica(partition.log)
        return partition, key, replica

    def _look_at_replica(
        self,
        key: Key,
        partition: Partition,
        replica: _Replica,
        before: _Seen | None,
        life: Life,
        lives: Sequence[Life],
        changed: dict[Key, None],
    ) -> None:
        now = replica.seen
        assert now is not None
        where = f"{_name(key)} on {life.broker.node_id}"
        high_watermark = now.high_watermark
        if not now.log_start_offset <= high_watermark <= now.log_end_offset:
            detail = f"{where}: {now.log_start_offset} <= {high_watermark} <= {now.log_end_offset}"
            raise Violation("the high watermark is in the log", detail)
        check_bounds(replica.log, where)
        if before is not None and now.leader_epoch < before.leader_epoch:
            raise Violation("leader epochs only grow", f"{where}: {now.leader_epoch}, was {before.leader_epoch}")
        if before is None or before[3:] != now[3:]:
            self._check_role(key, partition, life)
        if before is not None and key not in self.excused:
            is_same_role = (now.is_leader, now.leader_epoch) == (before.is_leader, before.leader_epoch)
            goes_back = is_same_role and high_watermark < before.high_watermark
            if goes_back and (now.is_leader or not self._has_leader_forgotten(key, before.log_end_offset)):
                raise Violation("the high watermark never goes back", f"{where}: {high_watermark}, was {before[0]}")
            if now.leader_epoch != before.leader_epoch:
                replica.compared = min(replica.compared, high_watermark)
                replica.segment = None
            if now.log_end_offset < before.log_end_offset:
                replica.compared = min(replica.compared, now.log_end_offset)
                replica.segment = None
                changed[key] = None
        committed = self._committed.get(key)
        if committed is None:
            committed = self._committed[key] = _Committed()
        if key in self.excused:
            committed.end = max(committed.end, high_watermark)
            return
        if high_watermark > committed.end:
            if not now.is_leader:
                detail = f"{where}: {high_watermark}, leaders have committed up to {committed.end}"
                raise Violation("followers know what leaders have committed", detail)
            sizes = [len(now.isr)] if before is None else [len(now.isr), len(before.isr)]
            if max(sizes) < partition.minimum_isr_size:
                raise Violation("min.insync.replicas have what is committed", f"{where}: {high_watermark}, {now.isr}")
            self._check_own_isr(key, partition, life, lives)
            self._take(committed, replica, high_watermark, life)
            changed[key] = None
        if before is None:
            changed[key] = None
        if replica.compared < high_watermark:
            self._compare(key, replica, high_watermark, life)

    def _has_leader_forgotten(self, key: Key, end: int) -> bool:
        """Whether retention took all below `end` from the leader. A follower that has only that drops it, in steps."""
        state = self._states.get(key)
        leader = None if state is None else self._registered.get(state.leader)
        log = None if leader is None else leader.broker.log_manager.get(key[0], key[1])
        return log is not None and log.topic_id == key[2] and log.log_start_offset > end

    def _check_role(self, key: Key, partition: Partition, life: Life) -> None:
        """A broker believes only what the tree has said, not what will be in it."""
        if partition.leader_id == NO_LEADER and not partition.is_leader:
            return
        broker_id = life.broker.node_id
        state = self._versions.get(key, {}).get(partition.partition_epoch)
        known = None if state is None else (state.leader, state.epoch)
        believed = (partition.leader_id, partition.leader_epoch)
        if known != believed:
            detail = f"{_name(key)} on {broker_id}: {believed} in version {partition.partition_epoch}, it says {known}"
            raise Violation("brokers know what the tree has said", detail)
        if partition.is_leader:
            self._note_leader(key, partition.leader_epoch, broker_id, "the broker itself")
            assert state is not None
            if set(partition.isr) != set(state.isr):
                detail = f"{_name(key)} on {broker_id}: ISR {partition.isr}, the tree has had {state.isr}"
                raise Violation("brokers know what the tree has said", detail)

    def _check_own_isr(self, key: Key, partition: Partition, life: Life, lives: Iterable[Life]) -> None:
        """A leader that raises its high watermark has heard from its whole maximal ISR."""
        for other in lives:
            if other is not life and other.broker.node_id in partition.maximal_isr:
                follower = other.broker.replica_manager.partitions.get(key[:2])
                if (
                    follower is not None
                    and follower.log.topic_id == key[2]
                    and follower.leader_epoch == partition.leader_epoch
                    and follower.log_end_offset < partition.high_watermark
                ):
                    detail = (
                        f"{_name(key)}: {partition.high_watermark} on {life.broker.node_id}, "
                        f"the log of {other.broker.node_id} ends at {follower.log_end_offset}"
                    )
                    raise Violation("the high watermark waits for the ISR", detail)

    def _check_isr_has_committed(self, key: Key) -> None:
        """All that is committed is on each member of the ISR that is registered."""
        state, committed = self._states.get(key), self._committed.get(key)
        if state is None or committed is None or key in self.excused or self._is_being_deleted(key):
            return
        if self._is_tree_older:
            return
        for broker_id in state.isr:
            life = self._registered.get(broker_id)
            if life is None:
                continue
            log = life.broker.log_manager.get(key[0], key[1])
            if log is None or log.topic_id != key[2]:
                if committed.end and not life.broker.log_manager.failed_directories:
                    self._raise_short(key, broker_id, 0, committed)
                continue
            if log.failed is not None or log.closed:
                continue
            if log.log_end_offset < committed.end:
                self._raise_short(key, broker_id, log.log_end_offset, committed)
            replica = self._replicas.get((broker_id, life.number), {}).get(key)
            if replica is not None and replica.log is log and replica.compared < committed.end:
                self._compare(key, replica, committed.end, life)

    def _raise_short(self, key: Key, broker_id: int, end: int, committed: _Committed) -> None:
        detail = f"{_name(key)}: the log of {broker_id} ends at {end}, committed is {committed.end}"
        raise Violation("the whole ISR has what is committed", detail)

    # -- bytes

    def _take(self, committed: _Committed, replica: _Replica, end: int, life: Life) -> None:
        """The leader has committed more: these batches are right from now on."""
        replica.compared, before = max(committed.end, replica.log.log_start_offset), replica.compared
        if replica.compared != before:
            replica.segment = None
        for base_offset, batch in self._batches(replica, end, life):
            committed.batches[base_offset] = batch
        if before < committed.end:  # the leader's older batches are not compared yet
            replica.compared, replica.segment = before, None
        committed.end = end

    def _compare(self, key: Key, replica: _Replica, end: int, life: Life) -> None:
        committed = self._committed[key]
        known = committed.batches
        is_compacted = key[0] in self._compacted
        expected = max(replica.compared, replica.log.log_start_offset)  # retention may have taken what was before
        for base_offset, batch in self._batches(replica, end, life):
            right = known.get(base_offset)
            if is_compacted:
                is_equal = right is None or batch.records != right.records or batch == right
            else:
                is_equal = batch == right and base_offset <= expected
            if not is_equal:
                detail = f"{_name(key)} on {life.broker.node_id} at {base_offset}: {batch}, committed is {right}"
                raise Violation("equal bytes below the high watermark", detail)
            expected = batch.last_offset + 1
        if expected < end and not is_compacted:
            detail = f"{_name(key)} on {life.broker.node_id}: nothing at {expected}, committed is {committed.end}"
            raise Violation("equal bytes below the high watermark", detail)
        replica.compared = max(replica.compared, end)

    def _batches(self, replica: _Replica, end: int, life: Life) -> Iterable[tuple[int, _Batch]]:
        """The batches from `replica.compared` to `end`, and where to go on the next time."""
        log = replica.log
        offset = max(replica.compared, log.log_start_offset)
        segments = log.segments
        slot = segments.slot_of(offset)
        unpack = HEADER.unpack_from
        while offset < end and slot < len(segments):
            segment = segments[slot]
            position = replica.position if segment is replica.segment else 0
            data = life.env.disk.data_of(segment.path)  # type: ignore[attr-defined]
            while offset < end and position + HEADER_BYTES <= segment.size:
                base_offset, length, epoch, _, crc, bits, delta, _, _, _, _, _, records = unpack(data, position)
                position += PREFIX_BYTES + length
                if bits & DELETE_HORIZON:
                    records = CHANGED_BY_CLEANER
                if base_offset + delta >= offset:
                    offset = base_offset + delta + 1
                    yield base_offset, _Batch(offset - 1, epoch, crc, records)
            replica.segment, replica.position = segment, position
            replica.compared = max(offset, replica.compared)
            slot += 1

    # -- calm

    def _look_in_calm(self, lives: Iterable[Life], now_ms: float) -> None:
        """All has been calm for long: every broker knows what the tree says, every partition has a leader."""
        processes = {life.broker.node_id: life for life in lives}
        for key, state in self._states.items():
            if now_ms - state.since_ms < TOLD_WITHIN_MS or self._is_being_deleted(key):
                continue
            leader = self._registered.get(state.leader)
            if leader is None:
                able = [broker_id for broker_id in state.isr if self._is_able(key, broker_id)]
                if able:
                    detail = f"{_name(key)}: leader {state.leader}, of the ISR {state.isr} live {able}"
                    raise Violation("a partition has a leader while an ISR member lives", detail)
            for broker_id in self._assignments.get(key, ()):
                if broker_id not in processes or not self._is_able(key, broker_id):
                    continue
                partition = processes[broker_id].broker.replica_manager.partitions.get(key[:2])
                known = None if partition is None else (partition.leader_id, partition.leader_epoch)
                leads = partition is not None and partition.is_leader
                if state.leader != NO_LEADER and (
                    known != (state.leader, state.epoch) or leads != (broker_id == state.leader)
                ):
                    detail = f"{_name(key)}: {broker_id} knows {known}, the tree says {(state.leader, state.epoch)}"
                    raise Violation("what the tree says reaches its brokers", detail)

    def _is_able(self, key: Key, broker_id: int) -> bool:
        """Whether a broker is registered and can use its log."""
        life = self._registered.get(broker_id)
        if life is None:
            return False
        log = life.broker.log_manager.get(key[0], key[1])
        return log is None or (log.failed is None and not life.broker.log_manager.failed_directories)

    def _is_being_deleted(self, key: Key) -> bool:
        assert self._tree is not None
        return self._topic_ids.get(key[0]) != key[2] or self._tree.has(paths.delete_topic(key[0]))


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"
