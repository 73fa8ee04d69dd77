"""What a log knows of its idempotent and transactional producers (KIP-98, KIP-360).

`answer_to` decides and changes nothing. `update_data` and `update_marker` are called for what was appended, on a leader
as on a follower, and once more for the batches behind the last snapshot when a log is opened. So the state is a
function of the log.
"""

import contextlib
import logging
from collections.abc import Generator, Iterable
from typing import Final

from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import BatchHeader
from barnabas.protocol.transaction_marker import EndTransactionMarker, marker_of
from barnabas.runtime.ports import Disk
from barnabas.storage import checkpoints
from barnabas.storage.index import AbortedTransaction
from barnabas.storage.producer_entry import (
    BATCHES_REMEMBERED,
    ProducerBatch,
    ProducerEntry,
    Verification,
    check_data,
    check_marker,
    last_sequence_of,
)
from barnabas.storage.producer_snapshot import encode_snapshot, read_snapshot
from barnabas.storage.refused_batches import RefusedBatches
from barnabas.storage.segments import Segments
from barnabas.storage.validation import Appendable, AppendOrigin, AppendResult

logger = logging.getLogger("barnabas.storage")

REPLAYED_AFTER_CRASH_BYTES = 4 << 20  # at least, if the log has as many
_BYTES_PER_PIECE: Final = 4 << 20  # how many bytes of batches a replay passes before it yields
_NONE: Final = -1


class ProducerStateManager:
    """All producers of one log, its open transactions, and the snapshot files."""

    __slots__ = (
        "_disk",
        "_ongoing",
        "_refused",
        "directory",
        "entries",
        "last_snapshot_offset",
        "map_end_offset",
        "snapshots",
        "unreplicated",
        "verifications",
    )

    def __init__(self, disk: Disk, directory: str, snapshots: Iterable[int] = ()) -> None:
        self._disk = disk
        self.directory = directory
        self.entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset -> producer id, in rising order of offsets
        self.unreplicated: dict[int, int] = {}  # first offset -> offset of the marker, until that is replicated
        self.verifications: dict[int, Verification] = {}  # producer id -> what its coordinator was asked
        self._refused = RefusedBatches()
        self.snapshots: list[int] = sorted(snapshots)
        self.last_snapshot_offset = _NONE
        self.map_end_offset = 0

    # -- reading

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The state of one producer."""
        return self.entries.get(producer_id)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is not decided yet, or None."""
        first = next(iter(self._ongoing), None)
        if self.unreplicated:
            ended = min(self.unreplicated)
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

    # -- before an append

    def answer_to(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
        origin: AppendOrigin,
        log_start_offset: int,
        now_ms: int,
    ) -> AppendResult | None:
        """What to answer without an append: a refusal, or where the same batch is already. None: append it."""
        entry = self.entries.get(header.producer_id)
        if marker is not None:
            error = check_marker(
                entry,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                raises_epochs=origin is AppendOrigin.COORDINATOR_OF_VERSION_2,
            )
            return None if error is ErrorCode.NONE else AppendResult(error, log_start_offset=log_start_offset)
        is_client = origin is AppendOrigin.CLIENT
        if is_client and entry is not None:
            last_sequence = last_sequence_of(header.base_sequence, header.last_offset_delta)
            stored = entry.duplicate_of(header.producer_epoch, header.base_sequence, last_sequence)
            if stored is not None:
                return AppendResult(
                    ErrorCode.NONE,
                    base_offset=stored.first_offset,
                    last_offset=stored.last_offset,
                    log_append_time_ms=stored.timestamp,
                    log_start_offset=log_start_offset,
                    duplicate=True,
                )
        elif is_client and self._refused:
            refused = self._refused.before(header, now_ms)
            if refused is not None:
                message = f"the producer's batch of sequence {refused.base_sequence} was refused, and comes first"
                return AppendResult(refused.error, message)
        is_transactional = bool(header.attributes & TRANSACTIONAL)
        if (
            is_transactional
            and (entry is None or not entry.is_open_in(header.producer_epoch))
            and self.confirmed_verification(header.producer_id, header.producer_epoch) is None
        ):
            return AppendResult(ErrorCode.INVALID_TXN_STATE)
        error = check_data(
            entry,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=is_transactional,
            check_sequence=is_client,
            verification=self.verifications.get(header.producer_id) if self.verifications else None,
        )
        return None if error is ErrorCode.NONE else AppendResult(error, log_start_offset=log_start_offset)

    def note_refused(self, records: Appendable, error: ErrorCode, now_ms: int) -> None:
        """A client's records were refused for a reason that passes: no later ones of its producer overtake them."""
        self._refused.note(records, error, self.entries, now_ms)

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
        if self._refused:
            self._refused.forget(producer_id)
        entry = self._entry_in(producer_id, producer_epoch)
        delta = last_offset - base_offset
        assert delta >= 0, "a batch has records"
        batches = entry.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        batches.append(ProducerBatch(last_sequence_of(base_sequence, delta), last_offset, delta, timestamp))
        entry.last_timestamp = timestamp
        if is_transactional and self.verifications:
            self.verifications.pop(producer_id, None)
        if is_transactional and entry.current_transaction_first_offset == _NONE:
            assert not self._ongoing or base_offset > next(reversed(self._ongoing)), "transactions begin one by one"
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
        entry = self._entry_in(producer_id, producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.current_transaction_first_offset
        if first_offset == _NONE:
            return None
        entry.current_transaction_first_offset = _NONE
        self._ongoing.pop(first_offset, None)
        self.unreplicated[first_offset] = offset
        if marker.commit:
            return None
        last_stable_offset = next(iter(self._ongoing), offset + 1)
        return AbortedTransaction(producer_id, first_offset, offset, last_stable_offset)

    def _entry_in(self, producer_id: int, producer_epoch: int) -> ProducerEntry:
        """The entry of a producer that has appended in this epoch: sequences of another one count no more."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = producer_epoch
        return entry

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Transactions whose marker is replicated are decided."""
        self.unreplicated = {first: last for first, last in self.unreplicated.items() if last >= high_watermark}

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
        self.unreplicated.clear()
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
        path = self.snapshot_path(offset)
        with contextlib.closing(self._disk.open(path, create=True)) as file:
            try:
                file.truncate(0)
                file.write(0, encode_snapshot(self.entries.values()))
            except OSError:
                with contextlib.suppress(OSError):  # half a snapshot does no harm: its checksum does not match
                    self._disk.remove(path)
                raise
        self.last_snapshot_offset = offset
        if offset not in self.snapshots:
            self.snapshots.append(offset)
            self.snapshots.sort()
        return path

    def load_snapshot(self, log_start_offset: int, log_end_offset: int, latest: int | None = None) -> int:
        """Load the newest usable snapshot ≤ `latest`; the offset from which batches must be replayed.

        `latest` is the log end by default. Snapshots above the log end are removed.
        """
        assert log_start_offset <= log_end_offset, "a log cannot start behind its end"
        self.clear()
        for offset in [offset for offset in self.snapshots if offset > log_end_offset]:
            self.remove_snapshot(offset)
        for offset in [offset for offset in reversed(self.snapshots) if latest is None or offset <= latest]:
            path = self.snapshot_path(offset)
            try:
                entries = read_snapshot(self._disk, path)
            except (FileNotFoundError, checkpoints.CheckpointError) as error:
                logger.warning("removing a producer snapshot that cannot be used: %s", error)
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


def _is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    return entry.current_transaction_first_offset == _NONE and now_ms - entry.last_timestamp >= expiration_ms
