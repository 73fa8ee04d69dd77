"""What a log knows of each idempotent or transactional producer, and its snapshots (KIP-98, KIP-360).

`check_data` and `check_marker` decide and change nothing. `update_data` and `update_marker` are called for what was
appended, on a leader as on a follower, and once more for the batches behind the last snapshot when a log is opened. So
the state is a function of the log.
"""

import contextlib
import logging
from collections.abc import Generator, Iterable
from struct import Struct
from typing import NamedTuple

from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, CODEC_MASK, CONTROL, RECORD_COUNT_AT, TRANSACTIONAL
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.ports import Buffer, Disk
from barnabas.storage import checkpoints
from barnabas.storage.index import AbortedTransaction
from barnabas.storage.segments import Segments

logger = logging.getLogger("barnabas.storage")

BATCHES_REMEMBERED = 5  # a producer may have so many requests in flight, and may send each of them again
SEQUENCE_MAX = 2**31 - 1
_SNAPSHOT_HEADER = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NONE = -1
REPLAYED_AFTER_CRASH_BYTES = 4 << 20  # at least, if the log has as many
_BYTES_PER_PIECE = 4 << 20  # how many bytes of batches a replay passes before it yields


class ProducerBatch(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of its first record."""
        return _sequence_minus(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """Offset of its first record."""
        return self.last_offset - self.offset_delta


_NO_BATCH = ProducerBatch(_NONE, _NONE, 0, _NONE)


class ProducerEntry:
    """One producer's state in one log. An epoch of -1 means that none is known."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_transaction_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = _NONE
        self.last_timestamp = _NONE
        self.current_transaction_first_offset = _NONE
        self.batches: list[ProducerBatch] = []

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when unknown."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    @property
    def last_offset(self) -> int:
        """Offset of the last data record that is remembered, -1 when unknown."""
        return self.batches[-1].last_offset if self.batches else _NONE

    def is_open_in(self, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here, in this epoch."""
        return self.current_transaction_first_offset != _NONE and self.producer_epoch == producer_epoch

    def duplicate_of(self, producer_epoch: int, first_sequence: int, last_sequence: int) -> ProducerBatch | None:
        """The remembered batch with the same sequences."""
        if producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None


class Verification:
    """The question to a transaction coordinator whether this partition is in a producer's transaction (KIP-890).

    It is asked before the first batch of a transaction is appended. A marker takes the question away, so an answer that
    comes late says nothing about the next transaction. When the coordinator has said yes, it will write a marker here.
    So the producer's batches are taken until then. In transaction version 2 the marker of the transaction before has
    the epoch of the question, and takes nothing away.

    There is one for each producer. A higher epoch that is asked for takes no question away, because anybody can send
    one; but it bounds the sequences, as in Kafka.
    """

    __slots__ = ("confirmed_epoch", "lowest_sequence", "producer_epoch", "producer_id", "raises_epochs", "started_ms")

    def __init__(
        self, producer_id: int, producer_epoch: int, first_sequence: int, now_ms: int, raises_epochs: bool
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch  # the highest one that is asked for
        self.lowest_sequence = first_sequence  # of all batches of that epoch that wait for the answer
        self.started_ms = now_ms
        self.raises_epochs = raises_epochs  # each end of a transaction raises the epoch (transaction version 2)
        self.confirmed_epoch: int | None = None  # the highest one to which the coordinator has said yes


# A batch of one marker: the number of records; length, attributes, timestamp and offset delta, length of the key, its
# version; the kind; the length of the value; its version, which does not matter; the epoch; the number of headers.
_PLAIN_MARKER = Struct(">i8sBB2xiB")
_PLAIN_MARKER_FIXED = (1, b"\x20\0\0\0\x08\0\0\0", 0x0C, 0)
_PLAIN_MARKER_BYTES = RECORD_COUNT_AT + _PLAIN_MARKER.size


class EndTransactionMarker(NamedTuple):
    """What a control batch that ends a transaction says."""

    commit: bool
    coordinator_epoch: int


def marker_of(batch: Buffer) -> EndTransactionMarker | None:
    """What a control batch says about a transaction; None for control batches of other kinds."""
    if len(batch) == _PLAIN_MARKER_BYTES and not batch[ATTRIBUTES_AT + 1] & CODEC_MASK:  # as coordinators write it
        count, start, kind, value_bytes, epoch, headers = _PLAIN_MARKER.unpack_from(batch, RECORD_COUNT_AT)
        if (count, start, value_bytes, headers) == _PLAIN_MARKER_FIXED and kind in (0, 1):
            return EndTransactionMarker(kind == 1, epoch)
    return _marker_in(batch)


def _marker_in(batch: Buffer) -> EndTransactionMarker | None:
    for record in record_batch.records(batch):
        key, value = record.key, record.value
        if key is None or len(key) < 4:
            return None
        kind = int.from_bytes(key[2:4], "big", signed=True)
        if kind not in (0, 1) or value is None or len(value) < 6:
            return None
        return EndTransactionMarker(kind == 1, int.from_bytes(value[2:6], "big", signed=True))
    return None


def _sequence_minus(sequence: int, delta: int) -> int:
    return sequence - delta if sequence >= delta else SEQUENCE_MAX - (delta - sequence) + 1


def last_sequence_of(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence of a batch's last record; sequences go on at 0 after 2³¹-1."""
    if base_sequence == _NONE:
        return _NONE
    return (base_sequence + last_offset_delta) & SEQUENCE_MAX


def check_data(
    entry: ProducerEntry | None,
    *,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
    check_sequence: bool,
    verification: Verification | None = None,
) -> ErrorCode:
    """Whether a producer may append this batch now, which is no duplicate.

    `verification`: of a transaction that the producer is about to begin here. Of several requests in flight, the one
    with the lowest sequence must come first. As in Kafka, that holds for all its batches, in whatever epoch.
    """
    if verification is not None and check_sequence and (entry is None or producer_epoch >= entry.producer_epoch):
        is_unknown = entry is None or not entry.batches
        if base_sequence > verification.lowest_sequence or (
            base_sequence != 0 and is_unknown and verification.raises_epochs
        ):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry is None:
        return ErrorCode.NONE
    if producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if check_sequence:
        if producer_epoch != entry.producer_epoch:
            if base_sequence != 0 and entry.producer_epoch != _NONE:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif entry.producer_epoch != _NONE:
            last = entry.last_sequence
            if base_sequence != last + 1 and not (base_sequence == 0 and last == SEQUENCE_MAX):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if entry.current_transaction_first_offset != _NONE and not is_transactional:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def check_marker(
    entry: ProducerEntry | None, *, producer_epoch: int, coordinator_epoch: int, raises_epochs: bool = False
) -> ErrorCode:
    """Whether a coordinator may write this marker now.

    `raises_epochs`: a marker has a higher epoch than its transaction (transaction version 2). So one with the epoch of
    an open transaction is late: it belongs to the transaction before.
    """
    if entry is None:
        return ErrorCode.NONE
    if producer_epoch < entry.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if raises_epochs and producer_epoch == entry.producer_epoch and entry.current_transaction_first_offset != _NONE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if coordinator_epoch < entry.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    return ErrorCode.NONE


class ProducerStateManager:
    """All producers of one log, its open transactions, and the snapshot files."""

    __slots__ = (
        "_disk",
        "_ended",
        "_ongoing",
        "directory",
        "entries",
        "last_snapshot_offset",
        "map_end_offset",
        "snapshots",
        "verifications",
    )

    def __init__(self, disk: Disk, directory: str, snapshots: Iterable[int] = ()) -> None:
        self._disk = disk
        self.directory = directory
        self.entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset -> producer id, in rising order of offsets
        self._ended: dict[int, int] = {}  # first offset -> offset of the marker, until that is replicated
        self.verifications: dict[int, Verification] = {}  # producer id -> what its coordinator was asked
        self.snapshots: list[int] = sorted(snapshots)
        self.last_snapshot_offset = _NONE
        self.map_end_offset = 0

    # -- reading

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The state of one producer."""
        return self.entries.get(producer_id)

    def active(self, now_ms: int, expiration_ms: int) -> list[ProducerEntry]:
        """Producers that have not expired, for DescribeProducers."""
        return [entry for entry in self.entries.values() if not _is_expired(entry, now_ms, expiration_ms)]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is not decided yet, or None."""
        first = next(iter(self._ongoing), None)
        if self._ended:
            ended = min(self._ended)
            return ended if first is None else min(first, ended)
        return first

    @property
    def oldest_transaction(self) -> ProducerEntry | None:
        """The producer whose open transaction begins first, or None."""
        producer_id = next(iter(self._ongoing.values()), None)
        return None if producer_id is None else self.entries.get(producer_id)

    @property
    def has_open_transactions(self) -> bool:
        """Whether any transaction is open."""
        return bool(self._ongoing)

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here, in this epoch."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.is_open_in(producer_epoch)

    def confirmed_verification(self, producer_id: int, producer_epoch: int) -> Verification | None:
        """The coordinator's yes that this partition is in the producer's transaction, if there is one."""
        found = self.verifications.get(producer_id)
        return found if found is not None and found.confirmed_epoch == producer_epoch else None

    def is_fenced(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a later epoch of the producer has been here."""
        entry = self.entries.get(producer_id)
        return entry is not None and producer_epoch < entry.producer_epoch

    # -- verification

    def begin_verification(
        self, producer_id: int, producer_epoch: int, first_sequence: int, now_ms: int, *, raises_epochs: bool
    ) -> Verification | None:
        """What the coordinator must confirm (`confirm`) before a transactional batch is taken. None: nothing."""
        if self.is_in_transaction(producer_id, producer_epoch):
            return None
        known = self.verifications.get(producer_id)
        if known is None:
            known = Verification(producer_id, producer_epoch, first_sequence, now_ms, raises_epochs)
            self.verifications[producer_id] = known
        elif producer_epoch > known.producer_epoch:
            known.producer_epoch, known.lowest_sequence = producer_epoch, first_sequence
        elif producer_epoch == known.producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, first_sequence)
        return known

    def confirm(self, asked: Verification, producer_epoch: int) -> bool:
        """The coordinator has said yes to this epoch. False: ask anew, a marker or a yes to a higher one came first."""
        known, confirmed = self.verifications.get(asked.producer_id), asked.confirmed_epoch
        if known is not asked or (confirmed is not None and producer_epoch < confirmed):
            return False
        asked.confirmed_epoch = producer_epoch
        return True

    # -- changing

    def update_data(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        """A data batch of that producer was appended."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = producer_epoch
        delta = last_offset - base_offset
        batches = entry.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        batches.append(ProducerBatch(last_sequence_of(base_sequence, delta), last_offset, delta, timestamp))
        entry.last_timestamp = timestamp
        if is_transactional and self.verifications:
            self.verifications.pop(producer_id, None)
        if is_transactional and entry.current_transaction_first_offset == _NONE:
            entry.current_transaction_first_offset = base_offset
            self._ongoing[base_offset] = producer_id

    def update_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        offset: int,
        timestamp: int,
        *,
        raises_epochs: bool = False,
    ) -> AbortedTransaction | None:
        """A marker was appended at `offset`; the index entry to write if it aborted a transaction.

        `raises_epochs`: its epoch is that of the next transaction (transaction version 2).
        """
        asked = self.verifications.get(producer_id)
        if asked is not None and not (raises_epochs and asked.raises_epochs and asked.producer_epoch == producer_epoch):
            del self.verifications[producer_id]
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = producer_epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.current_transaction_first_offset
        if first_offset == _NONE:
            return None
        entry.current_transaction_first_offset = _NONE
        self._ongoing.pop(first_offset, None)
        self._ended[first_offset] = offset
        if marker.commit:
            return None
        last_stable_offset = next(iter(self._ongoing), offset + 1)
        return AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions whose marker is replicated are decided."""
        if self._ended:
            self._ended = {first: last for first, last in self._ended.items() if last >= high_watermark}

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget idle producers; how many that were."""
        idle = [key for key, entry in self.entries.items() if _is_expired(entry, now_ms, expiration_ms)]
        for producer_id in idle:
            del self.entries[producer_id]
        for asked in list(self.verifications.values()):
            if now_ms - asked.started_ms >= expiration_ms:
                del self.verifications[asked.producer_id]
        return len(idle)

    def clear(self) -> None:
        """Forget everything but the list of snapshot files."""
        self.entries.clear()
        self._ongoing.clear()
        self._ended.clear()
        self.verifications.clear()
        self.map_end_offset = 0

    # -- from the log

    def rebuild(
        self,
        segments: Segments,
        log_start_offset: int,
        *,
        checked_from: int | None = None,
        no_producers_from: int | None = None,
    ) -> Generator[int, None, None]:
        """Take up a snapshot and replay the batches behind it, piece by piece. CorruptBatchError, OSError.

        Yields how many bytes of batches it has passed. The newest snapshot is taken.

        `checked_from`: after a crash, the first offset that was checked. From there on the indexes of aborted
        transactions are empty, and the replay makes their entries again. So the snapshot must not be newer. It must
        also have enough batches behind it, because one that Kafka has written has only the last batch of each producer,
        and producers that have lost their connection send up to five again.

        `no_producers_from`: from there on no batch is one of a producer, so there is nothing to replay.
        """
        latest = segments.end_offset if checked_from is None else checked_from
        bytes_behind = 0
        for segment in reversed(segments) if checked_from is not None else ():
            if bytes_behind >= REPLAYED_AFTER_CRASH_BYTES:
                break
            latest = min(latest, segment.base_offset)
            bytes_behind += segment.size
        start = self.load_snapshot(log_start_offset, segments.end_offset, latest)
        yield from self.replay(segments, start, no_producers_from)

    def replay(self, segments: Segments, start: int, end: int | None = None) -> Generator[int, None, None]:
        """See the batches from `start` to `end`, or to the log end. Yields as `rebuild` does."""
        end = segments.end_offset if end is None else end
        passed = piece = 0
        for segment, batch in segments.batches_from(start) if start < end else ():
            if batch.base_offset >= end:
                break
            passed += batch.size
            if passed - piece >= _BYTES_PER_PIECE:
                yield passed
                piece = passed
            if batch.producer_id < 0:  # the first batch may begin below `start`: a log start can lie inside of one
                continue
            if batch.attributes & CONTROL:
                marker = marker_of(segment.batch_bytes(batch))
                if marker is None:
                    continue
                aborted = self.update_marker(
                    batch.producer_id, batch.producer_epoch, marker, batch.last_offset, batch.max_timestamp
                )
                if aborted is not None:
                    known = segment.transaction_index.entries
                    if not known or known[-1].last_offset < aborted.last_offset:
                        segment.transaction_index.append(aborted)
            elif batch.record_count or batch.base_sequence >= 0:
                self.update_data(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.base_offset,
                    batch.last_offset,
                    batch.max_timestamp,
                    bool(batch.attributes & TRANSACTIONAL),
                )
        self.map_end_offset = segments.end_offset

    # -- snapshots

    def snapshot_path(self, offset: int) -> str:
        """File name of the snapshot that is valid at `offset`."""
        return f"{self.directory}/{offset:020d}.snapshot"

    def take_snapshot(self) -> str | None:
        """Write the state as of `map_end_offset`; the path, which is not synced. None if that file is there already."""
        offset = self.map_end_offset
        if offset == self.last_snapshot_offset:
            return None
        body = bytearray(4)
        for entry in self.entries.values():
            # A row for each batch: the producer may send any of them again. Kafka writes the last one only, and takes
            # the last row of a producer. So the transaction is in that one, and all have the time that expiry asks for.
            *older, last = entry.batches or (_NO_BATCH,)
            for batch in older:
                body += _snapshot_row(entry, batch, _NONE)
            body += _snapshot_row(entry, last, entry.current_transaction_first_offset)
        body[:4] = ((len(body) - 4) // _SNAPSHOT_ENTRY.size).to_bytes(4, "big")
        data = _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body
        path = self.snapshot_path(offset)
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.write(0, data)
        except OSError:
            with contextlib.suppress(OSError):  # half a snapshot does no harm: its checksum does not match
                self._disk.remove(path)
            raise
        finally:
            file.close()
        self.last_snapshot_offset = offset
        if offset not in self.snapshots:
            self.snapshots.append(offset)
            self.snapshots.sort()
        return path

    def load_snapshot(self, log_start_offset: int, log_end_offset: int, latest: int | None = None) -> int:
        """Load the newest usable snapshot ≤ `latest`; the offset from which batches must be replayed.

        `latest` is the log end by default. Snapshots above the log end are removed.
        """
        self.clear()
        for offset in [offset for offset in self.snapshots if offset > log_end_offset]:
            self.remove_snapshot(offset)
        for offset in [offset for offset in reversed(self.snapshots) if latest is None or offset <= latest]:
            path = self.snapshot_path(offset)
            try:
                entries = read_snapshot(self._disk, path)
            except (FileNotFoundError, checkpoints.CheckpointError) as error:
                logger.warning("Dropping a producer snapshot that cannot be used: %s", error)
                self.remove_snapshot(offset)
                continue
            for entry in entries:
                self.entries[entry.producer_id] = entry
            transactions = sorted(
                (entry.current_transaction_first_offset, entry.producer_id)
                for entry in entries
                if entry.current_transaction_first_offset != _NONE
            )
            self._ongoing.update(transactions)
            self.last_snapshot_offset = self.map_end_offset = offset
            return offset
        self.last_snapshot_offset = _NONE
        self.map_end_offset = log_start_offset
        return log_start_offset

    def remove_snapshot(self, offset: int) -> None:
        """Remove one snapshot file."""
        if offset in self.snapshots:
            self.snapshots.remove(offset)
        path = self.snapshot_path(offset)
        if self._disk.exists(path):
            self._disk.remove(path)
        if self.last_snapshot_offset == offset:
            self.last_snapshot_offset = _NONE

    def keep_snapshots_of(self, base_offsets: Iterable[int]) -> None:
        """Remove snapshots that belong to no segment, except the newest."""
        keep = set(base_offsets)
        for offset in self.snapshots[:-1]:
            if offset not in keep:
                self.remove_snapshot(offset)


def _snapshot_row(entry: ProducerEntry, batch: ProducerBatch, transaction_first_offset: int) -> bytes:
    return _SNAPSHOT_ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        transaction_first_offset,
    )


def _is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    return entry.current_transaction_first_offset == _NONE and now_ms - entry.last_timestamp >= expiration_ms


def read_snapshot(disk: Disk, path: str) -> list[ProducerEntry]:
    """The producers of a snapshot file. CheckpointError when it cannot be right."""
    file = disk.open(path, read_only=True)
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    if len(data) < _SNAPSHOT_HEADER.size:
        raise checkpoints.CheckpointError(f"{path}: {len(data)} bytes are too few")
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise checkpoints.CheckpointError(f"{path}: version {version} is not known")
    if crc32c(memoryview(data)[6:]) != crc:
        raise checkpoints.CheckpointError(f"{path}: checksum does not match")
    if count < 0 or len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise checkpoints.CheckpointError(f"{path}: {count} entries do not fit its size")
    entries: dict[int, ProducerEntry] = {}
    for row in _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = row
        entry = entries.get(producer_id)
        if entry is None or entry.producer_epoch != epoch:
            entry = entries[producer_id] = ProducerEntry(producer_id, epoch)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.current_transaction_first_offset = first_offset
        if last_offset >= 0:
            del entry.batches[: 1 - BATCHES_REMEMBERED]
            entry.batches.append(ProducerBatch(last_sequence, last_offset, delta, timestamp))
    return list(entries.values())
