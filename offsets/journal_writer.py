"""Writes the offset journal (journal.py): takes note of each change of the table, and appends what was noted.

A coordinator notes a change when it replays it. The notes of a pass of the loop are appended together at its end; under
load, those of `LINGER_MS` (offset_journal.py). Nobody waits for that: a commit is answered before, and stays answered.

The journal's partition usually has the leader of the offsets partition, and then its log is here. Otherwise the notes
go to its leader by Produce. They wait while there is no leader, or the log takes nothing. When `WAITING_BYTES_MAX`
bytes wait, only a gap is kept of later changes: how many, from when to when. It is written as soon as writing works
again.

**Catching up.** Whoever begins to write (after loading, and after each change of the journal's leader) first looks at
the last record there. Every record says where in `__consumer_offsets` its changes are. So what a crash took from the
journal is between that position and what waits here: it is read from `__consumer_offsets`, and written with the cause
`RECOVERED`. What was written already, and only its answer lost, is not written again. An empty journal begins with what
`__consumer_offsets` has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from barnabas.coordinators.append_errors import TOO_LARGE
from barnabas.coordinators.shard import CoordinatorLog
from barnabas.offsets import journal as form
from barnabas.offsets.journal import NO_OFFSET, Cause, Gap, Row
from barnabas.offsets.journal_parts import Lost, Part, gap_part
from barnabas.offsets.journal_place import JournalLog, Leader, Progress
from barnabas.offsets.journal_recovery import Recovery, end_of
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    GroupOffsets,
    OffsetCommits,
    OffsetRemovals,
    encode_positions,
)
from barnabas.offsets.table import OffsetTable
from barnabas.protocol.errors import ErrorCode, ProtocolError
from barnabas.protocol.record_batch import PlainBatch, PlainRecords, build_plain
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Buffer
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.offsets.offset_journal import OffsetJournal

logger = logging.getLogger("barnabas.offsets")

PART_BYTES = 64 * 1024  # so many bytes of notes, or a few more, are one batch
PARTS_AT_ONCE_MAX: Final = 4  # more batches than that are appended in turns with other tasks
TOLD_AGAIN_MS: Final = 60_000  # then the log of the broker says once more why there are gaps
WAITING_BYTES_MAX = 8 * 1024 * 1024  # of all partitions
RECOVERED_MAX: Final = 100_000  # more offsets of the log than that are not read again: they become a gap
BEGINNING_MAX = 10_000  # the same for a journal that is empty
LOOK_BACK_MAX: Final = 1_000  # so many batches are looked at for the last record that can be understood

_NOTHING: Final[GroupOffsets] = {}
_NO_PARTITIONS: Final[dict[int, CommittedOffset]] = {}
_NONE: Final = CommittedOffset(NO_OFFSET)
_OF_A_TRANSACTION: Final = form.encode_origin(Cause.TRANSACTION)
_metadata_of: Final = attrgetter("metadata")
_BEGINS: Final = "the journal begins here: earlier changes are not in it"
_UNDONE: Final = "the log of __consumer_offsets has lost its end: later changes than this, noted before, may be undone"
_FULL: Final = "the journal could not be written for too long"
_TOO_LARGE_FOR_IT: Final = "a record was too large for the journal"
_UNREADABLE: Final = "these changes could not be read again from __consumer_offsets"
_FAILED: Final = "a change could not be written down"


class PartitionJournal:
    """The journal of one offsets partition that this broker owns, from its loading to its unloading."""

    def __init__(self, journal: OffsetJournal, partition: int, log: CoordinatorLog, table: OffsetTable) -> None:
        self.partition = partition
        self.closed = False
        self._journal = journal
        self._place = journal.place
        self._clock = journal.env.clock
        self._turns = journal.env.turns
        self._log = log
        self._table = table
        self._end_position = log.log_end_offset  # of the last change that was noted, in the log of offsets
        self._has_past = table.has_offsets  # whether the journal should have something about it
        self._open: Part | None = None  # what is noted now
        self._parts: deque[Part] = deque()  # what waits, oldest first
        self._told_why, self._told_ms = "", 0  # which gap the log of the broker had last
        self._lost: Lost | None = None  # comes after all that waits; later notes are counted in it
        self._is_marked = False
        self._is_busy = False  # catching up, or a batch is on its way to another broker
        self._caught_up_with: Leader | None = None
        self._local: JournalLog | None = None  # the log here, if this broker leads it
        self._written_to = -1  # what was noted before this position of the log of offsets is in the journal

    # ---- noting ----

    def note(self, records: OffsetCommits | OffsetRemovals, position: int) -> None:
        """Note what these records, the first of them at `position`, will change in the table. It never raises."""
        end_position = position + records.count
        now_ms = self._clock.now_ms()
        if self._lost is not None:
            self._lost.add(records.count, end_position, now_ms)
        else:
            try:
                self._note(records, position, end_position, now_ms)
            except Exception as error:  # the journal must not fail a commit
                logger.error("the journal of offsets: a change of group %s is lost", records.group_id, exc_info=error)
                self._lose(_FAILED, records.count, position, end_position, now_ms)
        self._end_position = end_position
        if not self._is_marked:
            self._is_marked = True
            self._journal.mark(self)

    def _note(self, records: OffsetCommits | OffsetRemovals, position: int, end_position: int, now_ms: int) -> None:
        table = self._table
        part = self._open
        if part is None or part.size_bytes >= PART_BYTES:
            part = self._next_part(position, now_ms)
            if part is None:
                self._lose(_FULL, records.count, position, end_position, now_ms)
                return
        group_id = records.group_id
        origin = records.origin or form.UNNAMED
        key = form.key_of(group_id)
        if type(records) is OffsetCommits:
            if records.count == 1:
                known = table.decoded.get(group_id) or table.to_change(group_id)
                value = self._one(origin, position, now_ms, known, records)
            else:
                value = self._several(origin, position, now_ms, records)
            if value is not None:
                part.add(key, value, records.count, end_position, now_ms)
                return
            rows = form.rows_of_commit(table.of_group(group_id), records.offsets, self._journal.topic_id)
        else:
            assert type(records) is OffsetRemovals
            # A topic that is gone may have been made again, with another id.
            is_gone = origin[0] == Cause.TOPIC_GONE
            id_of = self._journal.former_topic_id if is_gone else self._journal.topic_id
            rows = form.rows_of_removal(table.of_group(group_id), records.partitions, id_of)
        self._journal.last_commits.pop(group_id, None)
        self._add_rows(part, key, origin, position, now_ms, rows, end_position)

    def _one(
        self, origin: bytes, position: int, now_ms: int, known: GroupOffsets, records: OffsetCommits
    ) -> bytes | None:
        """The record of a commit of one offset without metadata; None: it takes the general path."""
        for topic, offsets in records.offsets.items():
            for partition, new in offsets.items():
                old = known.get(topic, _NO_PARTITIONS).get(partition, _NONE)
                if new.metadata or old.metadata:
                    return None
                journal = self._journal
                if records.group_id in journal.last_commits:
                    del journal.last_commits[records.group_id]
                topic_id = journal.topic_id(topic) if new.topic_id is NO_TOPIC_ID else new.topic_id
                return form.encode_one(
                    origin,
                    position,
                    now_ms,
                    topic,
                    topic_id,
                    partition,
                    old.offset,
                    old.leader_epoch,
                    new.offset,
                    new.leader_epoch,
                )
        return None

    def _several(self, origin: bytes, position: int, now_ms: int, records: OffsetCommits) -> bytes | None:
        """The record of a commit without metadata; None: it takes the general path.

        A group mostly commits the same partitions again. Then the old positions are the new ones of the commit before.
        """
        commit = records.columns
        if commit is None or records.count > form.ROWS_MAX:
            return None
        journal, table = self._journal, self._table
        last = journal.last_commits.get(records.group_id, ())
        topics = []
        for index, columns in enumerate(commit):
            topic, topic_id, partitions, positions = columns
            before = last[index] if index < len(last) else None
            if before is None or before.partitions != partitions or before.topic != topic:
                before = table.columns(records.group_id, topic, partitions)
            if before is not None:
                old_positions = before.positions
            else:
                known = table.of_group(records.group_id)
                olds = list(map(known.get(topic, _NO_PARTITIONS).get, columns.numbers(), repeat(_NONE)))
                if any(map(_metadata_of, olds)):
                    return None
                old_positions = encode_positions([part for old in olds for part in (old.offset, old.leader_epoch)])
            if topic_id is NO_TOPIC_ID:
                topic_id = journal.topic_id(topic)
            topics.append((topic, topic_id, partitions, old_positions, positions))
        journal.keep(records.group_id, commit, records.count)
        return form.encode_plain(origin, position, now_ms, topics)

    def _add_rows(
        self,
        part: Part | None,
        key: bytes,
        origin: bytes,
        position: int,
        now_ms: int,
        rows: Sequence[Row],
        end_position: int,
        *,
        are_consecutive: bool = True,
    ) -> None:
        """Add the records of these rows, which may need several parts."""
        for value, count in form.encode_rows(origin, position, now_ms, rows, are_consecutive=are_consecutive):
            if part is not None and part.size_bytes >= PART_BYTES:
                part = self._next_part(position, now_ms)
            after = position + count if are_consecutive else end_position
            if part is None:
                self._lose(_FULL, count, position, after, now_ms)
            else:
                part.add(key, value, count, after, now_ms)
            position = after if are_consecutive else position

    def note_transaction(self, producer_id: int, position: int, origins: Mapping[str, bytes]) -> None:
        """Note what the marker at `position`, which commits a producer's transaction, will change in the table.

        `origins`: who has committed in the transaction, by group, as far as it is known. It never raises.
        """
        end_position = position + 1
        table = self._table
        now_ms = self._clock.now_ms()
        is_begun = False  # all is in one part, which is written as a whole, because it has one position
        for group_id, offsets in table.pending.get(producer_id, {}).items():
            newer = table.newer_than_committed(group_id, offsets)
            count = sum(map(len, newer.values()))
            if not count:
                continue
            self._journal.last_commits.pop(group_id, None)
            if self._lost is not None:
                self._lost.add(count, end_position, now_ms)
                continue
            try:
                rows = form.rows_of_commit(table.of_group(group_id), newer, self._journal.topic_id)
                origin = origins.get(group_id) or _OF_A_TRANSACTION
                part = self._open if is_begun else self._next_part(position, now_ms)
                is_begun = True
                key = form.key_of(group_id)
                self._add_rows(part, key, origin, position, now_ms, rows, end_position, are_consecutive=False)
            except Exception as error:  # the journal must not fail a transaction
                logger.error("the journal of offsets: a change of group %s is lost", group_id, exc_info=error)
                self._lose(_FAILED, count, position, end_position, now_ms)
        self._end_position = end_position
        if not self._is_marked:
            self._is_marked = True
            self._journal.mark(self)

    def _next_part(self, position: int, now_ms: int) -> Part | None:
        """A new part for notes, the one before waits; None: too much waits."""
        self._close_part()
        if self._journal.waiting_bytes >= WAITING_BYTES_MAX:
            return None
        self._open = Part(position, now_ms)
        return self._open

    def _close_part(self) -> None:
        part, self._open = self._open, None
        if part is not None and part.contents:
            self._parts.append(part)
            self._journal.waiting_bytes += part.size_bytes

    def _lose(self, why: str, count: int, position: int, end_position: int, now_ms: int) -> None:
        """Count changes that the journal will not have. Their gap is written after all that waits."""
        if self._lost is None:
            if why != self._told_why or now_ms >= self._told_ms + TOLD_AGAIN_MS:  # there may be fifty gaps a second
                self._told_why, self._told_ms = why, now_ms
                logger.warning("the journal of offsets partition %d has a gap: %s", self.partition, why)
            self._journal.last_commits.clear()
            self._lost = Lost(why, position, now_ms)
        self._lost.add(count, end_position, now_ms)

    # ---- writing ----

    @property
    def has_work(self) -> bool:
        """Whether something waits that nothing will end but another look."""
        if self._is_busy or self.closed:
            return False
        if self._needs_a_journal or self._open is not None:
            return True
        return self._place.exists() and self._place.leader(self.partition) != self._caught_up_with

    @property
    def is_written(self) -> bool:
        """Whether everything that was noted is in the journal."""
        return not self._is_busy and not self.has_work

    def progress(self) -> Progress:
        """How far the journal is."""
        written_to = self._written_to
        if self._caught_up_with is None or self._place.leader(self.partition) != self._caught_up_with:
            written_to = -1
        elif self.is_written:
            written_to = self._end_position
        return Progress(self._end_position, written_to, -1 if self._local is None else self._local.log_end_offset)

    @property
    def _needs_a_journal(self) -> bool:
        """Whether something waits, or a journal should have something and it was not looked yet whether it does."""
        waits = bool(self._parts) or self._lost is not None
        return waits or (self._has_past and self._caught_up_with is None)

    def flush(self) -> None:
        """Write what was noted, if that is possible now."""
        self._is_marked = False
        self.write()

    def write(self) -> None:
        """Write what waits, as far as it can be written now."""
        self._close_part()
        if self._is_busy or self.closed:
            return
        local = self._local
        if local is not None and local.leader == self._caught_up_with:
            if len(self._parts) <= PARTS_AT_ONCE_MAX:
                for _ in self._write_here(local):
                    pass
            else:
                self._is_busy = True
                self._turns.begin(self._write_much_here(local))
            return
        self._local = None
        leader = self._place.leader(self.partition)
        if leader is None:
            if self._needs_a_journal and not self._place.exists():
                self._place.create()
        elif leader != self._caught_up_with:
            self._is_busy = True
            self._turns.begin(self._catch_up(leader))
        elif self._parts or self._lost is not None:
            self._is_busy = True
            self._turns.begin(self._write_there(leader))

    def _write_here(self, log: JournalLog) -> Pieces[None]:
        while (self._parts or self._lost is not None) and log.leader == self._caught_up_with:
            part, gap = self._first()
            error = log.append(self._batch(part))
            if error and error not in TOO_LARGE:
                self._not_written(part, gap)
                return  # the log has logged why; the task `offset journal` tries again
            self._written(part, gap, error)
            yield

    def _write_much_here(self, log: JournalLog) -> Pieces[None]:
        try:
            yield from self._write_here(log)
        finally:
            self._is_busy = False

    def _write_there(self, leader: Leader) -> Pieces[None]:
        try:
            while (self._parts or self._lost is not None) and not self.closed:
                part, gap = self._first()
                error = yield self._place.send(self.partition, leader[0], self._batch(part).data)
                if error and error not in TOO_LARGE:
                    self._not_written(part, gap)
                    self._caught_up_with = None  # it may have been written: look before it is written again
                    return
                self._written(part, gap, error)
                if self._place.leader(self.partition) != leader:
                    return
                self._close_part()
        finally:
            self._is_busy = False

    def _first(self) -> tuple[Part, Lost | None]:
        """What to write now, taken from what waits: a part, or the record of a gap, and then the gap."""
        if self._parts:
            return self._parts.popleft(), None
        lost, self._lost = self._lost, None
        assert lost is not None
        gap = Gap(lost.position, lost.end_position, lost.first_ms, lost.last_ms, lost.count, lost.why)
        return gap_part(gap), lost

    def _not_written(self, part: Part, gap: Lost | None) -> None:
        """It waits again."""
        if gap is None:
            self._parts.appendleft(part)
            return
        if self._lost is not None:
            gap.add(self._lost.count, self._lost.end_position, self._lost.last_ms)
        self._lost = gap

    def _written(self, part: Part, gap: Lost | None, error: ErrorCode) -> None:
        """It does not wait any more: it is in the journal, or too large for it."""
        self._has_past = True
        self._written_to = part.end_position
        if gap is None:
            self._journal.waiting_bytes -= part.size_bytes
            if error:
                self._lose(_TOO_LARGE_FOR_IT, part.count, part.position, part.end_position, part.last_ms)

    def _batch(self, part: Part) -> PlainBatch:
        records = PlainRecords()
        for key, value in part.contents:
            records.add(key, value)
        return build_plain(records, self._clock.now_ms())

    # ---- catching up ----

    def _catch_up(self, leader: Leader) -> Pieces[None]:
        """Make what waits follow what the journal has, and then write it."""
        local = self._place.local(self.partition)
        try:
            if local is not None and local.leader != leader:
                local = None
            end_position = before = None
            for _ in range(LOOK_BACK_MAX):
                if local is not None:
                    yield
                    data: Buffer | None = local.last_batch(before)
                else:
                    data = yield self._place.fetch_last_batch(self.partition, leader[0], before)
                if data is None or self.closed:
                    return  # the task `offset journal` tries again
                found = end_of(data)
                if found is None or found.end_position is not None:
                    end_position = None if found is None else found.end_position
                    break
                before = found.offset  # nothing of it is a record of a journal
            yield from self._join(end_position)
        except OSError as error:
            logger.warning("the journal of offsets partition %d cannot be read: %s", self.partition, error)
            return
        finally:
            self._is_busy = False
        if not self.closed:
            self._local = local
            self._caught_up_with = leader
            self.write()

    def _join(self, end_position: int | None) -> Pieces[None]:
        """The journal ends at this position of the log of offsets, or is empty (None): find what is missing."""
        now_ms = self._clock.now_ms()
        self._close_part()
        known_to = self._end_position
        if end_position is None:
            first = self._parts[0].position if self._parts else known_to
            if not self._has_past:
                return
            end_position = self._log.log_start_offset
            if first - end_position > BEGINNING_MAX:
                self._put_first(gap_part(Gap(0, first, 0, now_ms, -1, _BEGINS)))
                return
        if end_position > known_to:
            # It is seen here for the first time: until now, what was noted was what clients were told.
            self._put_first(gap_part(Gap(known_to, known_to, now_ms, now_ms, -1, _UNDONE)))
            return
        while self._parts and self._parts[0].end_position <= end_position:  # written; only the answer was lost
            self._journal.waiting_bytes -= self._parts.popleft().size_bytes
        lost_from = known_to if self._lost is None else self._lost.position
        first = self._parts[0].position if self._parts else lost_from
        if end_position >= first:
            return
        if first - end_position > RECOVERED_MAX:
            self._put_first(gap_part(Gap(end_position, first, 0, now_ms, -1, _UNREADABLE)))
            return
        recovered: list[Part] = []
        longest = min(self._table.longest_transaction, RECOVERED_MAX)
        recovery = Recovery(self._log, end_position, first, self._journal.topic_id, longest)
        try:
            for record in recovery.changes():
                yield
                if self.closed:
                    return
                self._add_recovered(recovered, recovery.time_ms, *record)
        except (OSError, ProtocolError, ValueError) as error:
            logger.warning("offsets partition %d cannot be read for its journal: %s", self.partition, error)
            recovered.append(gap_part(Gap(recovery.position, first, recovery.time_ms, now_ms, -1, _UNREADABLE)))
        count = sum(part.count for part in recovered)
        if count:
            logger.info("the journal of offsets partition %d: %s recovered", self.partition, counted(count, "change"))
        for part in reversed(recovered):
            self._put_first(part)

    def _add_recovered(
        self, parts: list[Part], time_ms: int, group_id: str, position: int, cause: Cause, rows: list[Row]
    ) -> None:
        now_ms = self._clock.now_ms()
        origin = form.encode_origin(cause)
        if not parts or (parts[-1].size_bytes >= PART_BYTES and parts[-1].end_position <= position):
            parts.append(Part(position, now_ms))
        for value, count in form.encode_rows(origin, position, time_ms, rows, are_consecutive=False):
            parts[-1].add(form.key_of(group_id), value, count, position + 1, now_ms)

    def _put_first(self, part: Part) -> None:
        self._parts.appendleft(part)
        self._journal.waiting_bytes += part.size_bytes

    # ---- the end ----

    def close(self) -> None:
        """This broker does not own the offsets partition any more. What waits is left to the next owner."""
        self._close_part()
        if self._local is not None and not self._is_busy:
            for _ in self._write_here(self._local):
                pass
        self.closed = True
        self._journal.waiting_bytes -= sum(part.size_bytes for part in self._parts)
        self._parts.clear()
        self._lost = None
        self._journal.forget(self)
