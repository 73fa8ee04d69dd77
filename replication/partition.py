"""One replica of one partition on this broker: its role, ISR and high watermark, and the requests that wait for it.

The rules are those of Kafka's Partition class. Every transition is a plain function that runs to its end. Waiting
requests are woken later, through `Wakes`.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from barnabas.cluster.leader_and_isr import NO_LEADER, LeaderAndIsr
from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import PlainBatch
from barnabas.replication import isr as isr_policy
from barnabas.replication.isr import RemoteReplica
from barnabas.replication.parked import Parked, Ticket
from barnabas.replication.wakes import Wakes
from barnabas.runtime.ports import Buffer, Clock
from barnabas.storage.log import Log
from barnabas.storage.validation import Appendable, AppendOrigin, AppendResult

logger = logging.getLogger("barnabas.replication")

NONE: Final = ErrorCode.NONE
ALL_IN_SYNC: Final = -1  # required acks of a produce that waits for the high watermark


class PartitionHost(Protocol):
    """The part of the host broker that a partition needs."""

    node_id: int
    clock: Clock
    config: BrokerConfig
    lease: LeaseView
    metadata_cache: MetadataCache
    wakes: Wakes

    def propose_isr(self, partition: "Partition") -> None:
        """Ask the controller for `pending_isr`; `isr_confirmed` or `isr_refused` is called later, never inside."""


class FetchWaiter(Protocol):
    """A parked fetch, as the partitions it waits for see it."""

    def partition_moved(self, position: int, answers: dict[Any, Any] | None) -> None:
        """Something moved in the partition at `position` of the fetch: complete it if that is enough.

        Waiters of one wake can share answers through `answers`. None: there is nobody to share with.
        """


class Partition:
    """The replica on this broker. `isr`, `remote` and the epoch's start mean something only while it leads."""

    __slots__ = (
        "_delete_waiters",
        "_failing",
        "_host",
        "_parked",
        "controller_epoch",
        "fetch_waiters",
        "index",
        "is_leader",
        "is_suspended",
        "isr",
        "isr_since_ms",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "marked",
        "partition_epoch",
        "pending_isr",
        "remote",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, index: int, topic_id: bytes | None, log: Log, host: PartitionHost) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.controller_epoch = -1
        self.leader_epoch_start_offset = -1
        self.is_leader = False
        self.is_suspended = False  # led in a session that was lost: neither leader nor follower until LeaderAndIsr
        self.isr: tuple[int, ...] = ()
        self.isr_since_ms = 0.0  # since when this leader has that one; monotonic
        self.replicas: tuple[int, ...] = ()
        self.remote: dict[int, RemoteReplica] = {}
        self.pending_isr: LeaderAndIsr | None = None  # a change that the controller has not confirmed yet
        self.marked = False  # for Wakes
        self.fetch_waiters: dict[FetchWaiter, int] = {}  # fetch -> position of this partition in it
        self._host = host
        self._parked: Parked[ErrorCode] = Parked()  # on the high watermark
        self._delete_waiters: Parked[ErrorCode] = Parked()  # on the low watermark
        self._failing: deque[tuple[Callable[[ErrorCode], None], ErrorCode]] = deque()

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "suspended leader" if self.is_suspended else "follower"
        return f"<Partition {self.topic}-{self.index} {role} epoch {self.leader_epoch}>"

    def epoch_error(self, leader_epoch: int) -> ErrorCode:
        """The error when a client's leader epoch is older or newer than ours (KIP-320). -1: the client sent none."""
        if leader_epoch in (-1, self.leader_epoch):
            return NONE
        return ErrorCode.FENCED_LEADER_EPOCH if leader_epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # --- offsets ---

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed yet."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """First offset that read_committed must not see yet; never beyond the high watermark."""
        return self.log.last_stable_offset

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset the next record will get."""
        return self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """Lowest log start over the live replicas (leader only)."""
        lowest = self.log.log_start_offset
        for replica in self.remote.values():
            if replica.log_start_offset < lowest and self._host.metadata_cache.is_alive(replica.replica_id):
                lowest = replica.log_start_offset
        return lowest

    # --- in-sync replicas ---

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The larger of the confirmed ISR and the one that was proposed."""
        pending = self.pending_isr
        return pending.isr if pending is not None and len(pending.isr) > len(self.isr) else self.isr

    @property
    def minimum_isr_size(self) -> int:
        """min.insync.replicas, but never more than there are replicas."""
        wanted, most = self.log.config.min_insync_replicas, len(self.replicas)
        return wanted if wanted < most else most

    @property
    def shortage(self) -> str:
        """Which replicas are in sync, if they are too few for min.insync.replicas; else empty. For a leader."""
        if len(self.isr) >= (wanted := self.minimum_isr_size):
            return ""
        return f"in sync are {list(self.isr)} of {list(self.replicas)}, and min.insync.replicas wants {wanted}"

    # --- LeaderAndIsr ---

    def make_leader(
        self,
        *,
        leader_epoch: int,
        partition_epoch: int,
        controller_epoch: int,
        isr: Sequence[int],
        replicas: Sequence[int],
        recovering: bool = False,
    ) -> bool:
        """Lead from now on, or go on leading, also after a suspension. True when this broker did not lead before.

        `recovering`: elected from outside the ISR, which this leader confirms (KIP-704).
        """
        if partition_epoch < self.partition_epoch:
            return False
        assert leader_epoch >= self.leader_epoch, "the controller's epochs never go back"
        if self.log.finish_truncation is not None:  # it is written from now on
            self.log.finish_truncation()
        self.log.missing_from = None  # nobody has more: from now on it counts as whole
        node_id = self._host.node_id
        assert node_id in replicas, "only a replica can lead"
        now_ms = self._host.clock.monotonic_ms()
        was_leader = self.is_leader
        # Nobody else has led meanwhile. In an epoch between, followers may have cut their logs for another leader.
        keeps_followers = (was_leader or self.is_suspended) and leader_epoch <= self.leader_epoch + 1
        epoch_is_new = leader_epoch > self.leader_epoch
        if epoch_is_new or partition_epoch > self.partition_epoch:
            self.pending_isr = None  # the controller has decided since, so a proposal under way does not count
        self.controller_epoch = controller_epoch
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        if not was_leader or tuple(isr) != self.isr:
            self.isr_since_ms = now_ms
        self.isr = tuple(isr)
        log_end_offset = self.log.log_end_offset
        if epoch_is_new:
            self.leader_epoch = leader_epoch
            self.leader_epoch_start_offset = log_end_offset
            self.log.leader_epochs.assign(leader_epoch, log_end_offset)  # before any record of the epoch arrives
        self._watch_followers(self.remote if keeps_followers else {}, epoch_is_new, now_ms)
        self.leader_id = node_id
        self.is_leader = True
        self.is_suspended = False
        if recovering and self.pending_isr is None:
            self._propose_isr(self.isr)
        assert self.leader_epoch_start_offset <= log_end_offset, "a leader's epoch begins in its log"
        self.raise_high_watermark()
        self.wake_later()
        return not was_leader

    def _watch_followers(self, known: dict[int, RemoteReplica], epoch_is_new: bool, now_ms: float) -> None:
        """Begin with what is known of the followers. Of the others this leader knows nothing."""
        self.remote = {}
        for replica_id in self.replicas:
            if replica_id == self._host.node_id:
                continue
            in_isr = replica_id in self.isr
            remote = known.get(replica_id)
            if remote is None:
                remote = RemoteReplica(replica_id, last_caught_up_ms=now_ms if in_isr else isr_policy.NEVER)
            elif epoch_is_new:
                remote.begin_epoch(now_ms, in_isr=in_isr, leader_end_offset=self.log.log_end_offset)
            self.remote[replica_id] = remote

    def make_follower(
        self,
        *,
        leader_id: int,
        leader_epoch: int,
        partition_epoch: int,
        controller_epoch: int,
        replicas: Sequence[int],
    ) -> bool:
        """Follow `leader_id` (-1: nobody) from now on. True when the leader epoch is a new one."""
        if partition_epoch < self.partition_epoch:
            return False
        assert leader_epoch >= self.leader_epoch, "the controller's epochs never go back"
        assert leader_id != self._host.node_id, "nobody follows itself"
        changed = leader_epoch > self.leader_epoch
        self.controller_epoch = controller_epoch
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = -1
        self._end_role(leader_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return changed

    def suspend(self) -> None:
        """The session of this leader was lost, so another broker may lead: serve nothing until LeaderAndIsr.

        The epoch and what is known of followers stay, because the controller may find that nothing has changed.
        """
        assert self.is_leader, "only a leader can be suspended"
        self.is_leader = False
        self.is_suspended = True
        self.pending_isr = None
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def stop(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """This broker no longer hosts the partition: fail the requests that wait."""
        self._end_role(NO_LEADER, error)

    def _end_role(self, leader_id: int, error: ErrorCode) -> None:
        self.is_leader = self.is_suspended = False
        self.leader_id = leader_id
        self.isr = ()
        self.remote = {}
        self.pending_isr = None
        self.fail_waiters(error)

    # --- appending ---

    def append_as_leader(
        self, records: Appendable | PlainBatch, *, origin: AppendOrigin, required_acks: int
    ) -> AppendResult:
        """Append in this leader's epoch. The result's error says why not."""
        if not self.is_leader:
            return AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if required_acks == ALL_IN_SYNC and len(self.isr) < self.minimum_isr_size:
            if origin is AppendOrigin.CLIENT:
                assert not isinstance(records, PlainBatch)
                self.log.producers.note_refused(records, ErrorCode.NOT_ENOUGH_REPLICAS, self._host.clock.now_ms())
            return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS, self.shortage)
        log = self.log
        result = log.append_as_leader(
            records, leader_epoch=self.leader_epoch, origin=origin, now_ms=self._host.clock.now_ms()
        )
        if not result.error:
            self.raise_high_watermark()
            if self.fetch_waiters or self._parked.count:
                self._host.wakes.mark(self)
        return result

    # --- following ---

    def append_as_follower(
        self, records: Buffer, leader_epoch: int, leader_high_watermark: int, leader_log_start_offset: int
    ) -> AppendResult:
        """Append what the leader of an epoch has sent, unchanged, and take over its high watermark and log start.

        NOT_LEADER_OR_FOLLOWER if the answer is from another epoch than the one that is followed now.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            return AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the answer is from another leader epoch")
        log = self.log
        result = log.append_as_follower(records) if len(records) else AppendResult(NONE)
        if result.error is not NONE:
            return result
        high_watermark = min(leader_high_watermark, log.log_end_offset)
        if high_watermark > log.high_watermark:
            log.set_high_watermark(high_watermark)
        if leader_log_start_offset > log.log_start_offset:
            log.delete_records_before(min(leader_log_start_offset, log.log_end_offset))
        if self.fetch_waiters:
            self._host.wakes.mark(self)
        return result

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> Ticket[ErrorCode]:
        """Call `waiter` once the high watermark has reached `offset`, in offset order, never inside this call.

        NONE, or NOT_ENOUGH_REPLICAS_AFTER_APPEND when the ISR has become too small meanwhile; another error when the
        leadership goes first. Cancel the ticket to stop waiting.
        """
        ticket = self._parked.park(offset, waiter)
        if not self.is_leader:
            self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= offset:
            self._host.wakes.mark(self)
        return ticket

    def park_until_deleted(self, offset: int, waiter: Callable[[ErrorCode], None]) -> Ticket[ErrorCode]:
        """As `park_until`, for the low watermark: every live replica has deleted the records below `offset`."""
        ticket = self._delete_waiters.park(offset, waiter)
        if not self.is_leader:
            self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.low_watermark >= offset:
            self._host.wakes.mark(self)
        return ticket

    def delete_records_before(self, offset: int) -> None:
        """Raise the log start; waiters on the low watermark hear of it."""
        assert offset <= self.log.high_watermark, "what is not committed is not deleted"
        if offset > self.log.log_start_offset:
            self.log.delete_records_before(offset)
        self.wake_later()

    def raise_high_watermark(self) -> bool:
        """Raise it to the offset that the whole ISR has reached; not below min.insync.replicas (Kafka 3.7+).

        True if it moved.
        """
        log = self.log
        candidate = log.segments.end_offset
        if candidate <= log.high_watermark or len(self.isr) < self.minimum_isr_size:
            return False
        if self.remote:
            candidate = isr_policy.high_watermark_candidate(
                candidate,
                self.maximal_isr,
                self.remote.values(),
                self._host.clock.monotonic_ms(),
                self._host.config.replica_lag_time_max_ms,
                self._host.metadata_cache.is_alive,
            )
            if candidate <= log.high_watermark:
                return False
        assert self.is_leader, "a follower takes over its leader's high watermark"
        log.set_high_watermark(candidate)
        return True

    # --- followers ---

    def follower_fetched(
        self,
        replica_id: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: float,
        broker_epoch: int,
    ) -> None:
        """A follower's fetch, which was just read, acknowledges everything below `fetch_offset`."""
        replica = self.remote.get(replica_id)
        if replica is None:
            return
        if replica.broker_epoch != broker_epoch:  # another life of the follower
            replica.broker_epoch = broker_epoch
            replica.end_refusal()
        if replica.idle_in is not None:  # in another session, which must say again where the follower is
            self.wake_later()
        moved = replica.fetched(fetch_offset, log_start_offset, leader_end_offset, now_ms)
        if (
            replica_id not in self.isr
            and self.pending_isr is None
            and now_ms >= replica.proposed_again_ms
            and isr_policy.may_join(replica, self.isr, self.log.high_watermark, self.leader_epoch_start_offset)
            and self._host.metadata_cache.is_alive(replica_id)
        ):
            self._propose_isr((*self.isr, replica_id))
        if moved and self.raise_high_watermark():
            self.wake_later()
        elif self._delete_waiters.count:
            self._host.wakes.mark(self)

    def brokers_changed(self) -> None:
        """Other brokers live than before: nobody waits for a replica that is dead."""
        if self.raise_high_watermark():
            self.wake_later()
        elif self._delete_waiters.count:
            self._host.wakes.mark(self)

    def shrink_isr(self) -> None:
        """Propose to drop the members that have been behind for too long (every replica.lag.time.max.ms / 2)."""
        if not self.is_leader or len(self.isr) < 2 or self.pending_isr is not None:
            return
        late = isr_policy.out_of_sync(
            self.isr,
            self._host.node_id,
            self.remote,
            self.log.log_end_offset,
            self._host.clock.monotonic_ms(),
            self._host.config.replica_lag_time_max_ms,
        )
        if late:
            logger.info("%s-%d: shrinking the ISR %s: out of sync are %s", self.topic, self.index, list(self.isr), late)
            self._propose_isr(tuple(member for member in self.isr if member not in late))

    def has_silent_follower(self, since_ms: float) -> bool:
        """Whether a member of the ISR was not caught up since then: slow, dead, or the follower of another leader."""
        for replica in self.remote.values():
            if replica.caught_up_ms < since_ms and replica.replica_id in self.isr:
                return True
        return False

    def isr_confirmed(self, confirmed: LeaderAndIsr) -> None:
        """The controller has written what was proposed, or says what it had written already."""
        if confirmed.leader_epoch != self.leader_epoch or confirmed.partition_epoch < self.partition_epoch:
            return  # the proposal stays unconfirmed until LeaderAndIsr
        assert self.is_leader, "who does not lead any more waits for no answer"
        logger.info("%s-%d: the ISR changed from %s to %s", self.topic, self.index, list(self.isr), list(confirmed.isr))
        self.pending_isr = None
        if confirmed.isr != self.isr:
            self.isr_since_ms = self._host.clock.monotonic_ms()
        self.isr = confirmed.isr
        self.partition_epoch = confirmed.partition_epoch
        for member in confirmed.isr:
            if member in self.remote:
                self.remote[member].end_refusal()
        self.raise_high_watermark()
        self.wake_later()

    def isr_refused(self) -> None:
        """The controller does not want what was proposed: the confirmed ISR counts."""
        proposed, self.pending_isr = self.pending_isr, None
        for member in () if proposed is None else proposed.isr:
            if member not in self.isr and member in self.remote:
                self.remote[member].refuse(self._host.clock.monotonic_ms())
        if self.raise_high_watermark():
            self.wake_later()

    def _propose_isr(self, isr: tuple[int, ...]) -> None:
        assert self.is_leader, "only a leader changes the ISR"
        assert self.pending_isr is None, "one proposal at a time"
        self.pending_isr = LeaderAndIsr(
            self.leader_id, self.leader_epoch, isr, self.partition_epoch, self.controller_epoch
        )
        self._host.propose_isr(self)

    # --- waking ---

    def wake_later(self) -> None:
        """Look at all waiting requests, in the next wake."""
        if self.fetch_waiters or self._parked.count or self._delete_waiters.count or self._failing:
            self._host.wakes.mark(self)

    def fail_waiters(self, error: ErrorCode) -> None:
        """Fail all waiting requests, in the next wake."""
        for waiter in self._parked.take_all():
            self._failing.append((waiter, error))
        for waiter in self._delete_waiters.take_all():
            self._failing.append((waiter, error))
        self.wake_later()

    def wake(self) -> None:
        """Serve the waiters whose offset was reached. Called by Wakes. One at a time: a bug costs one waiter only."""
        while self._failing:
            waiter, error = self._failing.popleft()
            waiter(error)
        if self.is_leader and (self._parked.count or self._delete_waiters.count) and self._host.lease.holds:
            if self._parked.count:
                enough = len(self.maximal_isr) >= self.minimum_isr_size
                error = NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                high_watermark = self.log.high_watermark
                while (released := self._parked.release_first(high_watermark)) is not None:
                    released(error)
            if self._delete_waiters.count:
                low_watermark = self.low_watermark
                while (released := self._delete_waiters.release_first(low_watermark)) is not None:
                    released(NONE)
        if self.fetch_waiters:
            answers: dict[Any, Any] | None = {} if len(self.fetch_waiters) > 1 else None
            for fetch, position in list(self.fetch_waiters.items()):
                fetch.partition_moved(position, answers)
