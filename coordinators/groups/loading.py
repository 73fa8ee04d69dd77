"""Loads an offsets partition after a start or a leader change (coordinators/loading.py).

While the end of the log is in doubt, the offsets that it does not change can be read (`Shard.in_doubt`).
Records of other group protocols (KIP-932, KIP-1071) are ignored; only the ids of their groups are remembered.
A record that cannot be decoded is logged and skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.consumer.records import CONSUMER_KEYS, decode
from barnabas.coordinators.groups.records import GROUP_KEY_VERSION, decode_group
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.loading import CoordinatorLoader
from barnabas.offsets.records import OFFSET_KEY_VERSIONS, TopicPartition, decode_change, decode_key, key_version
from barnabas.offsets.stored import Splitter
from barnabas.offsets.table import partitions_of
from barnabas.protocol.errors import ProtocolError
from barnabas.protocol.record_batch import BatchHeader, Record, batches, records_in
from barnabas.protocol.transaction_marker import CONTROL_COMMIT
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import Pieces, Turns

if TYPE_CHECKING:
    from barnabas.protocol.records import GroupMetadataValue

logger = logging.getLogger("barnabas.groups")

# Key version -> type of the group. A group of that type exists if its record of that key has a value.
_FOREIGN_GROUP_KEYS = {11: "share", 17: "streams"}
NAMES_MAX = 10  # groups that a line of the log names
_OTHER_KNOWN_KEYS = frozenset(range(3, 24)) - {9, 18}


class Loader(CoordinatorLoader[Shard]):
    """One load of one shard of groups."""

    keys = "groups"
    advice = "bring the offsets of each group back from the journal (barnabas offsets restore GROUP --at TIME)"

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        turns: Turns,
        config: BrokerConfig,
        buffer_bytes: int,
        done: Callable[[], None],
    ) -> None:
        self._config = config
        self._metadata: dict[str, GroupMetadataValue] = {}
        self._unknown_versions: set[int] = set()
        self._splitter = Splitter()
        super().__init__(shard, clock, turns, buffer_bytes, done)

    def _key_count(self) -> int:
        return len(self._shard.groups) + len(self._shard.consumer.by_id) or self._shard.offsets.group_count

    def _store(self, records: bytes, header: BatchHeader, before: int) -> bool:
        """Store what a batch commits, without decoding it. False: it has other records, too."""
        if header.base_offset < before or header.is_transactional:
            return False
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

    def _note_doubt(self) -> Pieces[None]:
        """Note which offsets the end of the log may change. All others can be told."""
        shard = self._shard
        in_doubt: dict[str, set[TopicPartition]] = {}
        position = self._position
        while position < self._end:
            data = self._read(position)
            if not len(data):  # compaction has removed the rest
                break
            for header, batch in batches(data):
                yield
                for record in records_in(self._unpacked(header, batch), header):
                    for group_id, partition in self._changed_by(header, record):
                        in_doubt.setdefault(group_id, set()).add(partition)
                position = header.next_offset
        shard.in_doubt = in_doubt

    def _changed_by(self, header: BatchHeader, record: Record) -> Iterator[tuple[str, TopicPartition]]:
        """Whose committed offsets a record changes, if it is committed."""
        if header.is_control:
            for group_id, offsets in self._shard.offsets.pending.get(header.producer_id, {}).items():
                yield from ((group_id, each) for each in partitions_of(offsets))
            return
        try:
            if record.key is not None and key_version(record.key) in OFFSET_KEY_VERSIONS:
                group_id, topic, index = decode_key(record.key)
                yield group_id, (topic, index)
        except ValueError:
            return  # its replay says so

    def _doubt(self) -> str:
        in_doubt = self._shard.in_doubt
        if in_doubt is None:
            return super()._doubt()
        if not in_doubt:
            return "Its committed offsets can be read; joins and commits are told to wait"
        names = sorted(in_doubt)
        told = ", ".join(names[:NAMES_MAX]) + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")
        return (
            f"{counted(sum(map(len, in_doubt.values())), 'offset')} of {counted(len(names), 'group')} cannot be read "
            f"({told}). The others can; joins and commits are told to wait"
        )

    def _replay_control(self, producer_id: int, record: Record) -> None:
        key = record.key or b""
        if len(key) >= 4:
            committed = int.from_bytes(key[2:4], "big") == CONTROL_COMMIT
            self._shard.offsets.replay_end_transaction(producer_id, committed, record.offset)

    def _replay_record(self, record: Record, producer_id: int) -> None:
        shard = self._shard
        key, value = record.key, record.value
        try:
            if key is None:
                raise ValueError("a record without a key")
            version = key_version(key)
            if version in OFFSET_KEY_VERSIONS:
                shard.offsets.replay(decode_change(key, value), record.offset, producer_id)
            elif version == GROUP_KEY_VERSION:
                group = decode_group(key, value)
                if group.metadata is None:
                    self._metadata.pop(group.group_id, None)
                else:
                    self._metadata[group.group_id] = group.metadata
            elif version in CONSUMER_KEYS:
                shard.consumer.load(*decode(key, value))
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

    def _restore(self) -> Pieces[None]:
        shard = self._shard
        shard.consumer.end_load()
        now_ms = self._clock.now_ms()
        for group_id in dict.fromkeys([*self._metadata, *shard.offsets.groups()]):
            yield
            if group_id in shard.foreign_groups or group_id in shard.consumer.by_id:
                continue
            metadata = self._metadata.get(group_id)
            if metadata is None:
                shard.groups[group_id] = ClassicGroup(group_id, self._config, now_ms)
            else:
                shard.groups[group_id] = ClassicGroup.restore(group_id, self._config, metadata)
