"""Planted faults: each makes one line of the product wrong, for as long as its context lasts.

They prove that the checkers can fail. A fault names the function that it changes, the text to find in it and what to
put there; the product has no switches. When its text changes, `planted` says so and the fault is written anew.
"""

import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from barnabas.sim import storage, world
from barnabas.sim.violation import Violation

SEEDS_MAX = 300


class Fault(NamedTuple):
    """One wrong line. `campaign` is which simulation is to find it: `world` or `storage`."""

    name: str
    campaign: str
    where: str  # module:function or module:Class.function, below barnabas
    right: str
    wrong: str
    focus: str = ""  # the steps of the storage workload in which it can show; else all of them are sampled


FAULTS = (
    # Recovery
    Fault(
        "checksum not looked at",
        "storage",
        "storage.recovery:_check_segment",
        "if not record_batch.crc_is",
        "if 0 and record_batch.crc_is",
    ),
    Fault("torn tail kept", "storage", "storage.segment:Segment.cut_at", "file.truncate(position)", "pass"),
    Fault("every stop taken for a clean one", "storage", "storage.recovery:open_log", "elif clean:", "elif True:"),
    Fault(
        "gap in the log not seen", "storage", "storage.recovery:_check_batches", "and not may_have_gaps", "and False"
    ),
    Fault(
        "snapshot's checksum not looked at",
        "storage",
        "storage.producer_state:read_snapshot",
        "if crc32c(memoryview(data)[6:]) != crc:",
        "if False:",
    ),
    Fault(
        "producer forgotten at the log start",
        "storage",
        "storage.log_reader:replay_producers",
        "if batch.producer_id < 0:",
        "if batch.producer_id < 0 or batch.base_offset < start:",
    ),
    Fault(
        "epochs not recovered",
        "storage",
        "storage.recovery:_check_segment",
        "if batch.partition_leader_epoch > epoch:",
        "if False:",
    ),
    # Durability
    Fault(
        "flush that does not sync",
        "storage",
        "storage.durable_log:flush_together",
        "failures = disk.sync_all([path for _, _, files in begun for path in files])",
        "failures = {}",
    ),
    Fault("checkpoint not synced", "storage", "storage.checkpoints:write_bytes", "file.sync()", "pass"),
    Fault(
        "indexes not synced at a clean stop",
        "storage",
        "storage.durable_log:DurableLog.seal",
        "self._unsynced_files += self.active_segment.index_paths()",
        "pass",
    ),
    Fault(
        "indexes not synced before a roll",
        "storage",
        "storage.log:Log._roll_to",
        "self._sync_indexes(old)",
        "pass",
        "append to flushed",
    ),
    Fault(
        "cut not synced",
        "storage",
        "storage.log:Log._after_truncation",
        "self.active_segment.sync()",
        "pass",
        "append to followed",
    ),
    Fault(
        "recovery point not lowered on disk",
        "storage",
        "storage.log_directory:LogDirectory._recovery_point_lowered",
        "if self._recovery_points.get(key, 0) > log.recovery_point and",
        "if False and",
        "append to followed",
    ),
    # Compaction, truncation, indexes
    Fault(
        "compaction keeps the older record",
        "storage",
        "storage.cleaner:Cleaner._kept_batch",
        "record.offset >= latest",
        "record.offset < latest",
    ),
    Fault(
        "compaction gives up a durable record",
        "storage",
        "storage.cleaner:Cleaner._compact",
        "if log.recovery_point < found.first_uncleanable:  # a record",
        "if False:  # a record",
        "compaction",
    ),
    Fault(
        "new batches under old indexes",
        "storage",
        "storage.cleaner:Cleaner._swap",
        "yield folder._replace()  # never",
        "pass  # never",
        "compaction",
    ),
    Fault(
        "index entry one batch too far",
        "storage",
        "storage.segment:Segment._index",
        "self.offset_index.append(last_offset, position)",
        "self.offset_index.append(last_offset, position + size)",
    ),
    Fault(
        "time index not truncated",
        "storage",
        "storage.segment:Segment.truncate",
        "self.time_index.truncate(offset)",
        "pass",
        "shutdown",
    ),
    Fault(
        "epochs not truncated",
        "storage",
        "storage.log:Log._after_truncation",
        "self.leader_epochs.truncate_from_end(log_end_offset)",
        "pass",
        "append to followed",
    ),
    Fault(
        "producers not truncated",
        "storage",
        "storage.log:Log._after_truncation",
        "at_once(rebuild_producers(self))",
        "pass",
        "append to followed",
    ),
    # Producers and the high watermark
    Fault(
        "duplicate window of one",
        "world",
        "storage.producer_state:ProducerStateManager.update_data",
        "if len(batches) == BATCHES_REMEMBERED:",
        "if batches:",
    ),
    Fault(
        "duplicates not recognised", "world", "storage.log:Log._check_producer", "if stored is not None:", "if False:"
    ),
    Fault(
        "sequences not checked",
        "world",
        "storage.log:Log._check_producer",
        "entry = self.producers.entries.get(header.producer_id)",
        "return None",
    ),
    Fault(
        "high watermark before the write",
        "world",
        "storage.log_reader:LogReader.set_high_watermark",
        "min(max(offset, self.log_start_offset), self.log_end_offset)",
        "offset + 1",
    ),
    Fault("acknowledged before it is synced", "world", "storage.log:Log._maybe_flush", "self.flush()", "pass"),
    Fault(
        "producer ids given twice",
        "world",
        "replication.producer_ids:take_block",
        "await coordination.set(paths.PRODUCER_ID_BLOCK, block.encode(), stat.version)",
        "pass",
    ),
    Fault(
        "fetch without its timer", "world", "replication.fetching:ParkedFetch.__init__", "params.max_wait_ms", "1e12"
    ),
    # Groups
    Fault(
        "table updated before the commit",
        "world",
        "groups.runtime:Shard.write",
        "self._unwritten.append(",
        "records and self.replay(records, 1 << 40); self._unwritten.append(",
    ),
    Fault(
        "only half of the groups' log loaded",
        "world",
        "groups.loading:Loader.__init__",
        "self._end = shard.log.log_end_offset",
        "self._end = shard.log.log_end_offset // 2",
    ),
    Fault(
        "the first commit wins in loading",
        "world",
        "groups.loading:Loader._replay_record",
        "shard.offsets.replay(",
        "shard.offsets.get(group_id, topic, partition) or shard.offsets.replay(",
    ),
    Fault(
        "tombstones ignored in loading",
        "world",
        "offsets.table:OffsetTable.replay",
        "self._remove(group_id, topic, partition)",
        "pass",
    ),
    Fault(
        "commits are answered and not written",
        "world",
        "groups.runtime:Shard._append",
        "write.records.write(records)",
        "pass",
    ),
    Fault(
        "generation of a commit not checked",
        "world",
        "groups.classic:ClassicGroup.check_commit",
        "if generation != self.generation:",
        "if False:",
    ),
    Fault(
        "generation of a sync not checked",
        "world",
        "groups.classic:ClassicGroup._check_sync",
        "if request.generation_id != self.generation:",
        "if False:",
    ),
    Fault("group's timer not armed again", "world", "groups.runtime:Shard.run_effects", "self._arm(group)", "pass"),
    Fault(
        "end of the join phase not waited for",
        "world",
        "groups.rebalance:Rebalancing._set_join_deadline",
        "self._wake_at(deadline_ms)",
        "pass",
    ),
    Fault(
        "everybody gets the leader's assignment",
        "world",
        "groups.rebalance:Rebalancing._sync_response",
        "assignment=member.assignment",
        "assignment=self.members[self.leader].assignment",
    ),
    Fault(
        "generation does not grow",
        "world",
        "groups.rebalance:Rebalancing._complete_join",
        "self.generation += 1",
        "self.generation = 1",
    ),
    Fault(
        "sessions not begun after loading",
        "world",
        "groups.classic:ClassicGroup.start_sessions",
        "self._restart_session(member, monotonic_ms)",
        "pass",
    ),
    # Fetch sessions
    Fault(
        "session keeps the old position",
        "world",
        "broker.fetch_sessions:SessionPartition.ask",
        "self.fetch_offset = asked.fetch_offset",
        "pass",
    ),
    Fault(
        "session leaves out records",
        "world",
        "broker.fetch_sessions:SessionPartition.answer",
        "must = has_more",
        "must = False",
    ),
    Fault(
        "session repeats what it said",
        "world",
        "broker.fetch_sessions:SessionPartition.answer",
        "self.sent_high_watermark = high_watermark",
        "pass",
    ),
    # Topics, records and offsets that are deleted
    Fault(
        "new topic in the log of the old",
        "world",
        "storage.log_manager:LogManager.delete",
        'self._take_away(log, "delete")',
        "None",
    ),
    Fault(
        "ids of deleted topics stay known",
        "world",
        "replication.metadata_cache:MetadataCache._set_topic_id",
        "self._names.pop(known, None)",
        "pass",
    ),
    Fault(
        "offsets of deleted topics stay",
        "world",
        "groups.coordinator:GroupCoordinator.on_partitions_deleted",
        "if not gone:",
        "if gone:",
    ),
    Fault(
        "one record too many deleted",
        "world",
        "replication.partition:Partition.delete_records_before",
        "self.log.delete_records_before(offset)",
        "self.log.delete_records_before(min(offset + 1, self.high_watermark))",
    ),
    Fault(
        "deleted offsets come back",
        "world",
        "offsets.kafka:KafkaOffsetManager.remove",
        "self._write_tombstones(shard, group_id, chosen, done)",
        "[shard.offsets._remove(group_id, *key) for key in chosen]; done(ErrorCode.NONE)",
    ),
    # Expiry
    Fault(
        "offsets expire too soon",
        "world",
        "offsets.kafka:KafkaOffsetManager._clean",
        "self._config.offsets_retention_minutes * 60_000",
        "self._config.offsets_retention_minutes * 55_000",
    ),
    Fault("offsets never expire", "world", "offsets.kafka:KafkaOffsetManager._tick", "self.cleanup()", "pass"),
    Fault(
        "offsets of a living group expire",
        "world",
        "offsets.expiry:expired_offsets",
        "subscribed = situation.subscribed_topics",
        "pass",
    ),
    # Offsets in the tree
    Fault(
        "offsets in the tree are answered and not written",
        "world",
        "offsets.zookeeper:ZooKeeperOffsetManager._tell",
        "await work",
        "work.close()",
    ),
    # Producers that do not wait, compaction, retention
    Fault(
        "deleted keys come back",
        "world",
        "storage.cleaner:Cleaner._build_map",
        "if record.key is not None and record.offset",
        "if record.key is not None and record.value is not None and record.offset",
    ),
    Fault(
        "latest value of a key thrown away",
        "world",
        "storage.cleaner:Cleaner._kept_batch",
        "record.offset >= latest.get(_map_key(record.key), -1)",
        "record.offset > latest.get(_map_key(record.key), -1)",
    ),
    Fault(
        "log start not written before files go",
        "storage",
        "storage.log_directory:LogDirectory.write_log_starts",
        "self._write_now(checkpoints.LOG_START_OFFSETS)",
        "pass",
        "retention",
    ),
)


def _find(where: str) -> tuple[Any, str]:
    """The module or class, and the name in it."""
    module_name, _, path = where.partition(":")
    owner: Any = import_module(f"barnabas.{module_name}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The product is wrong in this one place. LookupError when the text is not there (once)."""
    owner, name = _find(fault.where)
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(fault.right) != 1:
        raise LookupError(f"{fault.where} has {source.count(fault.right)} times {fault.right!r}")
    code = compile(
        source.replace(fault.right, fault.wrong),
        f"<{fault.name}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    users = [(owner, name)]
    if inspect.ismodule(owner):  # others have imported it by name
        users += [(module, name) for module in _modules() if getattr(module, name, None) is function]
    try:
        for user, attribute in users:
            setattr(user, attribute, made[name])
        yield
    finally:
        for user, attribute in users:
            setattr(user, attribute, function)


def _modules() -> list[Any]:
    import sys

    return [module for name, module in sorted(sys.modules.items()) if name.startswith("barnabas.")]


def caught_by(fault: Fault, seeds: range) -> tuple[int, str] | None:
    """The first seed that catches it, and the invariant that was violated; None when none does."""
    with planted(fault):
        for seed in seeds:
            violation = world.run(seed, minutes=1).violation if fault.campaign == "world" else power_cut(fault, seed)
            if violation is not None:
                return seed, violation.invariant
    return None


def power_cut(fault: Fault, seed: int) -> Violation | None:
    """What the storage workload in which a planted fault can show runs into."""
    try:
        storage.run(seed, steps=60 if fault.focus else 40, keep_every=1 if fault.focus else 17, focus=fault.focus)
    except (Violation, AssertionError) as error:
        return error if isinstance(error, Violation) else Violation("an assertion", str(error))
    return None
