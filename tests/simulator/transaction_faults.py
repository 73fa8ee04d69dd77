"""Planted faults of transactions: see faults.py. The runs have transactional clients (transactional_part.py)."""

from simulator.faults import Change, Fault

WORLD, CLUSTER = "transactions", "cluster transactions"
HANGS = "no transaction hangs"
SOON = "what is decided is soon marked"
ABORTED = "nothing aborted is visible"
UNDECIDED = "nothing undecided is visible"
ACCEPTED = "a producer in order is accepted"
OFFSETS = "only offsets of committed transactions count"
RELOADED = "a coordinator knows what its log says"

TRANSACTION_FAULTS = (
    # The coordinator decides
    Fault(
        "marker before the prepare record",
        CLUSTER,
        "coordinators.transactions.coordinator:TransactionCoordinator._write",
        "    def written(error: ErrorCode) -> None:\n"
        "        if not error and value.state in PREPARED and not shard.closed:\n"
        "            self.markers.end(shard, value)\n",
        "    if value.state in PREPARED:\n"
        "        self.markers.end(shard, value)\n\n"
        "    def written(error: ErrorCode) -> None:\n",
        SOON,
        1,
        "markers held up,kill in a decision",
    ),
    Fault(
        "end answered before it is in the log",
        CLUSTER,
        "coordinators.transactions.coordinator:TransactionCoordinator._carry_out",
        "    self._write(shard, value, written, lambda: ",
        "    written(ErrorCode.NONE)\n    self._write(shard, value, lambda error: None, lambda: answer.done or ",
        HANGS,
        6,
        "kill in a decision",
    ),
    Fault(
        "epoch not raised for a new producer",
        WORLD,
        "coordinators.transactions.decisions:init_producer_id",
        "epoch = held.producer_epoch + 1",
        "epoch = max(held.producer_epoch, 0)",
        ACCEPTED,
        1,
    ),
    Fault(
        "epoch not raised at an end",
        WORLD,
        "coordinators.transactions.decisions:_prepared",
        "producer_epoch=held.producer_epoch + 1 if bumps",
        "producer_epoch=held.producer_epoch if bumps",
        SOON,
        1,
    ),
    Fault(
        "zombie's epoch not looked at by the coordinator",
        WORLD,
        "coordinators.transactions.decisions:_identity_error",
        "is_current = producer_epoch == held.producer_epoch and",
        "is_current = producer_epoch <= held.producer_epoch and",
        ACCEPTED,
        2,
    ),
    Fault(
        "partitions added while markers are under way",
        CLUSTER,
        "coordinators.transactions.decisions:add_partitions",
        "if is_busy(entry):  # first",
        "if False:  # first",
        "no handler fails",
        1,
        "markers held up",
    ),
    Fault(
        "late transactions are not aborted",
        WORLD,
        "coordinators.transactions.decisions:is_timed_out",
        "held.start_ms + held.timeout_ms < now_ms",
        "held.start_ms + 100 * held.timeout_ms < now_ms",
        "a transaction ends in time",
        2,
    ),
    Fault(
        "every transaction counts as late",
        WORLD,
        "coordinators.transactions.decisions:is_timed_out",
        "held.start_ms + held.timeout_ms < now_ms",
        "held.start_ms < now_ms",
        ACCEPTED,
        2,
    ),
    # Markers
    Fault(
        "marker always commits",
        WORLD,
        "coordinators.transactions.markers:_marker",
        "transaction_result=value.state is PREPARE_COMMIT",
        "transaction_result=True",
        ABORTED,
        1,
    ),
    Fault(
        "complete with the first marker",
        WORLD,
        "coordinators.transactions.markers:Markers._look",
        "if not ending.left and not ending.is_over and ending",
        "if len(ending.left) < len(ending.value.partitions) and not ending.is_over and ending",
        SOON,
        38,
    ),
    Fault(
        "marker sent again behind the end",
        WORLD,
        "coordinators.transactions.markers:Markers._look",
        "        self._done(ending)\n",
        "        self._done(ending)\n"
        "        self._clock.call_later(150.0, lambda: self._send_to(0, [(ending, list(ending.value.partitions))]))\n",
        OFFSETS,
        8,
    ),
    Fault(
        "prepared transactions not ended after a load",
        WORLD,
        "coordinators.transactions.coordinator:TransactionCoordinator._loaded",
        "in PREPARED:",
        "in ():",
        SOON,
        2,
        "in a decision",
    ),
    # Loading
    Fault(
        "only the first record of an id loaded",
        WORLD,
        "coordinators.transactions.shard:TransactionShard.replay",
        "entry.transaction = records.transaction",
        "entry.transaction = entry.transaction if self.loading else records.transaction",
        RELOADED,
        2,
    ),
    # What the log does
    Fault(
        "open transactions hold no reader back",
        WORLD,
        "replication.fetching:Fetching.upper_bound",
        "return partition.log.last_stable_offset",
        "return partition.log.high_watermark",
        "nothing above the last stable offset",
        1,
    ),
    Fault(
        "older open transaction ignored by the last stable offset",
        WORLD,
        "storage.producer_state:ProducerStateManager.first_unstable_offset",
        "next(iter(self._ongoing), None)",
        "next(reversed(self._ongoing), None)",
        "the last stable offset stops at open transactions",
        2,
    ),
    Fault(
        "ended transaction stays open for the last stable offset",
        WORLD,
        "storage.producer_state:ProducerStateManager.update_marker",
        "self._ongoing.pop(first_offset, None)",
        "pass",
        "clients get on",
        1,
    ),
    Fault(
        "aborted transaction not in the index",
        WORLD,
        "storage.log:Log._update_producers",
        "self.segments.active.transaction_index.append(aborted)",
        "pass",
        ABORTED,
        1,
    ),
    Fault(
        "aborted transactions that begin earlier not told",
        WORLD,
        "replication.fetching:Fetching._with_aborted_transactions",
        "aborted = log.segments.aborted_transactions(offset, next_offset)",
        "aborted = [row for row in log.segments.aborted_transactions(offset, next_offset) if row[1] >= offset]",
        ABORTED,
        3,
    ),
    Fault(
        "zombie's epoch not looked at by the log",
        WORLD,
        "storage.producer_entry:check_data",
        "if producer_epoch < entry.producer_epoch:",
        "if False:",
        HANGS,
        2,
        also=(
            Change(
                "coordinators.transactions.verification:TransactionVerification.verify",
                "if not adds and not self.config.transaction_partition_verification_enable:",
                "if True:",
            ),
        ),
    ),
    Fault(
        "partition not verified",
        WORLD,
        "coordinators.transactions.verification:TransactionVerification.verify",
        "if not adds and not self.config.transaction_partition_verification_enable:",
        "if True:",
        HANGS,
        2,
    ),
    Fault(
        "high watermark that a waiting fetch has read not told",
        CLUSTER,
        "replication.follower_fetches:FollowerFetches.fetch",
        "self._news.setdefault(one)",
        "pass",
        "everything is decided in the end",
        3,
    ),
    # Offsets
    Fault(
        "pending offsets count at once",
        WORLD,
        "offsets.table:OffsetTable._make_group",
        "if producer_id < 0:",
        "if True:",
        OFFSETS,
        1,
    ),
    Fault(
        "pending offsets of an aborted transaction count",
        WORLD,
        "offsets.table:OffsetTable.replay_end_transaction",
        "if not committed:",
        "if False:",
        OFFSETS,
        1,
    ),
    Fault(
        "pending offsets not loaded",
        WORLD,
        "coordinators.groups.loading:Loader._replay_records",
        "self._replay_record(record, producer_id)",
        "None if producer_id >= 0 else self._replay_record(record, producer_id)",
        "offsets stay for their time",
        1,
    ),
    Fault(
        "generation not looked at in a transaction",
        WORLD,
        "coordinators.groups.transactional_commits:TransactionalCommits._check",
        "return group.check_commit(member_id, instance_id, generation, transactional=True)",
        "return ErrorCode.NONE",
        "old generations are refused",
        1,
    ),
)
