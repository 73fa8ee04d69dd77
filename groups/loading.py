"""Loads an offsets partition after a start or a leader change, by replay of its log in pieces (runtime/turns.py).

The coordinator answers COORDINATOR_LOAD_IN_PROGRESS until the log is replayed. If commits wait for replicas, the high
watermark must also have reached the log end at which the epoch began. Records of later group protocols (KIP-848,
KIP-932, KIP-1071) are ignored; only the ids of their groups are remembered. A record that cannot be decoded is logged
and skipped. A batch that cannot be read is logged, and read again after `RETRY_MS`: until then the partition is not
served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

from barnabas.groups.classic import ClassicGroup
from barnabas.groups.records import GROUP_KEY_VERSION, decode_group
from barnabas.groups.runtime import Shard, ShardConfig
from barnabas.offsets.records import (
    OFFSET_KEY_VERSIONS,
    OffsetCommits,
    OffsetRemovals,
    decode_key,
    decode_value,
    key_version,
)
from barnabas.offsets.stored import Splitter
from barnabas.protocol.errors import CorruptBatchError, ErrorCode, ProtocolError
from barnabas.protocol.record_batch import (
    BatchHeader,
    Record,
    batches,
    crc_is_valid,
    records_in,
    unpacked,
)
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import Pieces, Turns

if TYPE_CHECKING:
    from barnabas.protocol.records import GroupMetadataValue

logger = logging.getLogger("barnabas.groups")

TELL_MS = 5_000.0  # how often the log says how far a partition is
RETRY_MS = 5_000  # after the log could not be read
SLICE_BYTES = 64 * 1024  # how much of the log is read at a time
BATCH_BYTES_MAX = 256 * 1024 * 1024
_COMMIT_MARKER = 1

# Key version -> type of the group. A group of that type exists if its record of that key has a value.
_FOREIGN_GROUP_KEYS = {3: "consumer", 11: "share", 17: "streams"}
_OTHER_KNOWN_KEYS = frozenset(range(3, 24)) - {9, 18}


class Progress(NamedTuple):
    """How far a partition is loaded. `end_offset`: where it ended when its loading began. `stopped_by`: why it does not
    get further now; empty if it does.
    """

    partition: int
    start_offset: int
    loaded_offset: int
    end_offset: int
    stopped_by: str

    @property
    def percent(self) -> int:
        """Of the offsets. Compaction leaves gaps, so it is no measure of time."""
        return 100 * (self.loaded_offset - self.start_offset) // max(1, self.end_offset - self.start_offset)


class Loader:
    """One load of one shard. `done` is called once, when the partition can be served; never after `cancel`."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        turns: Turns,
        config: ShardConfig,
        buffer_bytes: int,
        done: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._clock = clock
        self._config = config
        self._slice_bytes = min(buffer_bytes, SLICE_BYTES)
        self._done = done
        self._start = self._position = shard.log.log_start_offset
        self._end = shard.log.log_end_offset
        self._metadata: dict[str, GroupMetadataValue] = {}
        self._unknown_versions: set[int] = set()
        self._record_count = 0
        self._splitter = Splitter()
        self._started_ms = self._told_ms = clock.monotonic_ms()
        self._stopped_by = ""
        self._work = turns.begin(self._load())

    def cancel(self) -> None:
        """Stop loading: this broker does not lead the partition any more."""
        self._work.cancel()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        position = min(self._position, self._end)
        return Progress(self._shard.partition, self._start, position, self._end, self._stopped_by)

    def _load(self) -> Pieces[None]:
        while self._position < self._end:
            self._tell()
            try:
                yield from self._replay_slice()
                self._stopped_by = ""
            except (OSError, ProtocolError, ValueError) as error:
                self._log_failure(error)
                later: Pending[None] = Pending()
                self._clock.call_later(RETRY_MS, partial(later.complete, None))
                yield later
        yield from self._restore_groups()
        outcome = ErrorCode.NONE
        if self._shard.waits_for_replicas:
            committed: Pending[ErrorCode] = Pending()
            self._shard.log.park_until(self._end, committed.complete)
            outcome = yield committed
        if outcome in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self._log_end()
            self._done()
        # Otherwise the leader is changing, and `cancel` will follow.

    def _replay_slice(self) -> Pieces[None]:
        data = self._shard.log.read(self._position, self._slice_bytes)
        if not len(data):  # compaction has removed everything up to the end
            self._position = self._end
            return
        before = self._position
        for header, batch in batches(data):
            yield
            if not crc_is_valid(batch):  # it may be possible to decode it all the same, to other offsets
                raise CorruptBatchError(
                    "the batch there is damaged, its checksum is wrong. Let another replica lead this partition, or "
                    "put its folder back from a backup"
                )
            records = unpacked(batch, header, BATCH_BYTES_MAX)
            if header.base_offset < before or header.is_transactional or not self._store(records, header):
                yield from self._replay_records(records, header, before)
            self._position = header.next_offset
        assert self._position > before

    def _store(self, records: bytes, header: BatchHeader) -> bool:
        """Store what a batch commits, without decoding it. False: it has other records, too."""
        runs = self._splitter.runs(records, header.base_offset, header.record_count)
        if runs is None:
            return False
        for group_id, run in runs:
            self._shard.offsets.store(group_id, run)
        self._record_count += header.record_count
        return True

    def _replay_records(self, records: bytes, header: BatchHeader, before: int) -> Pieces[None]:
        """Replay the records of a batch from an offset on, one by one."""
        producer_id = header.producer_id if header.is_transactional else -1
        for record in records_in(records, header):
            yield
            if record.offset >= before:
                self._record_count += 1
                if header.is_control:
                    self._replay_control(header.producer_id, record)
                else:
                    self._replay_record(record, producer_id)

    def _tell(self) -> None:
        """Log now and then how far it is, unless it stands still."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS and not self._stopped_by:
            self._told_ms = now_ms
            logger.info(
                "offsets partition %d: loading, %d%% (offset %d of %d, %d records, %d groups so far)",
                self._shard.partition,
                self.progress.percent,
                self._position,
                self._end,
                self._record_count,
                self._shard.offsets.group_count,
            )

    def _log_failure(self, error: Exception) -> None:
        """Log an error once. The rest is not served, because consumers would get older offsets, or none."""
        if str(error) != self._stopped_by:
            self._stopped_by = str(error)
            logger.error(
                "offsets partition %d cannot be loaded behind offset %d: %s. Its groups are told to wait until it can.",
                self._shard.partition,
                self._position,
                error,
            )

    def _log_end(self) -> None:
        logger.log(
            logging.INFO if self._record_count else logging.DEBUG,  # a new broker has fifty empty partitions
            "offsets partition %d: loaded %d groups from %d records in %.0f ms",
            self._shard.partition,
            len(self._shard.groups),
            self._record_count,
            self._clock.monotonic_ms() - self._started_ms,
        )

    def _replay_control(self, producer_id: int, record: Record) -> None:
        key = record.key or b""
        if len(key) >= 4:
            committed = int.from_bytes(key[2:4], "big") == _COMMIT_MARKER
            self._shard.offsets.replay_end_transaction(producer_id, committed)

    def _replay_record(self, record: Record, producer_id: int) -> None:
        shard = self._shard
        key, value = record.key, record.value
        try:
            if key is None:
                raise ValueError("a record without a key")
            version = key_version(key)
            if version in OFFSET_KEY_VERSIONS:
                group_id, topic, partition = decode_key(key)
                change: OffsetCommits | OffsetRemovals
                if value is None:
                    change = OffsetRemovals(group_id, ((topic, partition),))
                else:
                    change = OffsetCommits(group_id, {intern(topic): {partition: decode_value(value)}})
                shard.offsets.replay(change, record.offset, producer_id)
            elif version == GROUP_KEY_VERSION:
                group = decode_group(key, value)
                if group.metadata is None:
                    self._metadata.pop(group.group_id, None)
                else:
                    self._metadata[group.group_id] = group.metadata
            elif version in _FOREIGN_GROUP_KEYS:
                length = int.from_bytes(key[2:4], "big")
                group_id = key[4 : 4 + length].decode()
                if value is None:
                    shard.foreign_groups.pop(group_id, None)
                else:
                    shard.foreign_groups[group_id] = _FOREIGN_GROUP_KEYS[version]
            elif version not in _OTHER_KNOWN_KEYS and version not in self._unknown_versions:
                self._unknown_versions.add(version)
                logger.warning("offsets partition %d: records of key version %d are ignored", shard.partition, version)
        except (ProtocolError, ValueError) as error:
            logger.warning("offsets partition %d: record at %d is ignored: %s", shard.partition, record.offset, error)

    def _restore_groups(self) -> Pieces[None]:
        shard = self._shard
        now_ms = self._clock.now_ms()
        for group_id in dict.fromkeys([*self._metadata, *shard.offsets.group_ids(), *shard.offsets.pending_counts]):
            yield
            if group_id in shard.foreign_groups:
                continue
            metadata = self._metadata.get(group_id)
            if metadata is None:
                shard.groups[group_id] = ClassicGroup(group_id, self._config, now_ms)
            else:
                shard.groups[group_id] = ClassicGroup.restore(group_id, self._config, metadata)
