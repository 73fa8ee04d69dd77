"""One segment of a log: a file of record batches and its three indexes."""

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.config.topic import TopicConfig
from barnabas.protocol.batch_layout import HEADER_BYTES, MAGIC_AT
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.record_batch import BatchHeader
from barnabas.runtime.ports import Buffer, Disk, File, may_pass
from barnabas.storage.batch_headers import (
    WINDOW_BYTES,
    HeaderReader,
    Located,
    StoredBatch,
    begins_a_batch,
    stored_batches,
)
from barnabas.storage.index import OffsetIndex, TimeIndex, TransactionIndex
from barnabas.storage.open_files import FileRange, OpenFiles

logger = logging.getLogger("barnabas.storage")

UNSYNCED: Final = "unsynced"
_INT32_MAX: Final = 2**31 - 1
_OFFSETS_END: Final = 2**63
_RECENT_BATCHES_MAX: Final = 32


def file_name(base_offset: int, extension: str) -> str:
    """`<20 digits>.<extension>`"""
    return f"{base_offset:020d}.{extension}"


class Segment:
    """Batches from `base_offset` on.

    To open it costs no access to the disk. Its indexes are read when they are first needed, and made again from the
    batches if they are missing or cannot be right.
    """

    __slots__ = (
        "_bytes_since_index_entry",
        "_files",
        "_first_timestamp",
        "_index_interval_bytes",
        "_loaded",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_recent_offsets",
        "_recent_positions",
        "_times_known",
        "_window_bytes",
        "base_offset",
        "created_ms",
        "directory",
        "is_marked_unsynced",
        "offset_index",
        "path",
        "size",
        "suffix",
        "time_index",
        "touched",
        "transaction_index",
    )

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        base_offset: int,
        *,
        size: int = 0,
        created_ms: int,
        index_interval_bytes: int,
        has_transaction_index: bool = False,
        is_marked_unsynced: bool = False,
        suffix: str = "",
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.suffix = suffix
        self.is_marked_unsynced = is_marked_unsynced
        self._index_interval_bytes = index_interval_bytes
        # A window that begins at an index entry reaches past the next one.
        self._window_bytes = min(2 * index_interval_bytes + HEADER_BYTES, WINDOW_BYTES)
        self.path = self.file_path("log")
        disk = files.disk
        self.offset_index = OffsetIndex(disk, self.file_path("index"), base_offset)
        self.time_index = TimeIndex(disk, self.file_path("timeindex"), base_offset)
        self.transaction_index = TransactionIndex(
            disk, self.file_path("txnindex"), base_offset, on_disk=has_transaction_index
        )
        self._loaded = False
        self._first_timestamp: int | None = None
        self._max_timestamp = -1
        self._offset_of_max_timestamp = base_offset
        self._times_known = False  # whether the two above are right; if not, the time index must be asked
        self._bytes_since_index_entry = 0
        self._forget_recent()
        self.touched = True

    def without_files(self, base_offset: int) -> "Segment":
        """An empty segment in the same folder that has no files: it stands for one that is made later."""
        created_ms, interval = self.created_ms, self._index_interval_bytes
        return Segment(self._files, self.directory, base_offset, created_ms=created_ms, index_interval_bytes=interval)

    @staticmethod
    def create(
        files: OpenFiles, directory: str, base_offset: int, config: TopicConfig, now_ms: int, suffix: str = ""
    ) -> "Segment":
        """A new empty segment. Its index files are made with its first records: most partitions never have any."""
        interval = config.index_interval_bytes
        segment = Segment(
            files, directory, base_offset, created_ms=now_ms, index_interval_bytes=interval, suffix=suffix
        )
        try:
            file = files.get(segment.path, create=True)
            if file.size():
                file.truncate(0)
            _remove_if_there(files.disk, segment.offset_index.path, segment.time_index.path)
        except OSError:
            segment.delete_files()  # if it stayed, what is appended to the one before would overlap it
            raise
        segment.reset_indexes()
        return segment

    def file_path(self, extension: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, extension)}{self.suffix}"

    # -- loading

    def load(self) -> None:
        """Make sure that the indexes are in memory."""
        self.touched = True
        if self._loaded:
            return
        if not self.offset_index.load(self.size) or not self.time_index.load(self.size) or not self._index_ends_right():
            self.rebuild_indexes()
            return
        if not len(self.time_index):
            self._look_for_time_zero()
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        self._bytes_since_index_entry = self.size - self.offset_index.last_position()
        self._loaded = self._times_known = True
        self._files.indexes.loaded(self)

    def _look_for_time_zero(self) -> None:
        # An entry of timestamp 0 at the first offset is all zeros, as is the space that Kafka preallocates.
        first = next(self.batches(), None)
        if first is not None and first.max_timestamp == 0 and first.last_offset == self.base_offset:
            self.time_index.append(0, self.base_offset)

    def _index_ends_right(self) -> bool:
        """Whether a batch lies where the last entry of the offset index says. Most depends on that entry."""
        position, offset = self.offset_index.last_below(self.size, _OFFSETS_END)
        if position < 0:
            return True
        try:
            last = self._last_batch_from(position) if self._holds_a_batch(position, offset) else None
        except CorruptBatchError:
            return False
        return last is not None and offset <= last.last_offset

    def _holds_a_batch(self, position: int, offset: int) -> bool:
        """Whether a batch begins there, whose base offset is not behind `offset`."""
        return begins_a_batch(self._files.get(self.path).read(position, MAGIC_AT + 1), offset)

    def unload(self) -> None:
        """Give the memory of the indexes back, if they can be written."""
        self._forget_recent()
        if self._loaded:
            try:
                self.write_indexes()
            except OSError:
                return
            self.offset_index.unload()
            self.time_index.unload()
            self._loaded = False
            self._files.indexes.unloaded(self)

    def rebuild_indexes(self) -> None:
        """Make the offset and time index again from the batch headers. They end where a header is damaged."""
        self.reset_indexes()
        next_offset = self.base_offset
        try:
            for batch in self.batches():
                if batch.base_offset < next_offset or not self.can_hold(batch.last_offset):
                    raise CorruptBatchError(f"{self.path}: the offset of the batch at {batch.position} is not of it")
                self.index(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
                next_offset = batch.last_offset + 1
        except CorruptBatchError as error:
            logger.error("%s; records behind it are not found by their time", error)
        self.close_time_index()
        try:
            self.write_indexes(new_files=self.is_indexed)
        except OSError as failure:
            if not may_pass(failure):
                raise
        self._files.indexes.loaded(self)

    def reset_indexes(self) -> None:
        """Begin with empty indexes, to which `index` adds."""
        self.offset_index.reset()
        self.time_index.reset()
        self._max_timestamp, self._offset_of_max_timestamp = -1, self.base_offset
        self._bytes_since_index_entry = 0
        self._first_timestamp = None
        self._forget_recent()
        self._loaded = self._times_known = True

    def _forget_recent(self) -> None:
        # Every batch of the last few appends: where a reader at the log end begins is known exactly.
        self._recent_offsets: list[int] = []
        self._recent_positions: list[int] = []

    def index(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Let the indexes know of a batch that was appended, or that recovery found to be good."""
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self._max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size

    # -- what is in it

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any record, -1 when there is none."""
        self._know_times()
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch that holds the largest timestamp."""
        self._know_times()
        return self._offset_of_max_timestamp

    def _know_times(self) -> None:
        """Learn the largest timestamp, if possible without loading the indexes."""
        if not self._times_known:
            last = self.time_index.read_last()
            if last is None:
                self.load()
            else:
                self._max_timestamp, self._offset_of_max_timestamp = last
                self._times_known = True

    def position_for_timestamp(self, timestamp: int) -> int:
        """Where to begin looking for the first record with at least that timestamp."""
        self.load()
        return self.checked_position_for(self.time_index.offset_for(timestamp))

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which the segment's age is reckoned; -1 if there is none."""
        if self._first_timestamp is None:
            if not self.size:
                return -1
            try:
                self._first_timestamp = next(self.batches()).max_timestamp
            except CorruptBatchError:
                self._first_timestamp = -1  # a client that reads the batch is told
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """As `max_timestamp`; the time of the file's last change when no record has one."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._files.disk.modified_ms(self.path)

    def batches(self, position: int = 0) -> Iterator[StoredBatch]:
        """Headers of the whole batches from `position` on. CorruptBatchError where there is no batch."""
        return stored_batches(self._files, self.path, position, self.size)

    def batch_bytes(self, batch: StoredBatch) -> bytes:
        return self.bytes_at(batch.position, batch.size)

    def bytes_at(self, position: int, length: int) -> bytes:
        """What is in the file there; less than `length` at its end."""
        return self._files.get(self.path).read(position, length)

    def next_offset(self) -> int:
        """One more than the last offset of the last batch; the base offset when empty."""
        return self.base_offset if (last := self.last_batch()) is None else last.last_offset + 1

    def last_batch(self) -> StoredBatch | None:
        """CorruptBatchError: it cannot be found, or cannot be in this segment."""
        if not self._loaded and self.size <= WINDOW_BYTES:
            return self._last_batch_from(0)  # one read is cheaper than to load the indexes
        self.load()
        return self._last_batch_from(self.offset_index.last_position())

    def _last_batch_from(self, position: int) -> StoredBatch | None:
        last = None
        for last in self.batches(position):  # noqa: B007
            pass
        if last is not None and (last.base_offset < self.base_offset or not self.can_hold(last.last_offset)):
            raise CorruptBatchError(f"{self.path} ends with offset {last.last_offset}, which cannot be in it")
        return last

    def find(self, offset: int) -> StoredBatch | None:
        """The first batch whose last offset is ≥ `offset`."""
        self.load()
        for batch in self.batches(self.checked_position_for(offset)):
            if batch.last_offset >= offset:
                return batch
        return None

    def checked_position_for(self, offset: int) -> int:
        """As `position_for`, but it checks that a batch begins there. If none does, it makes the index again."""
        position = self.position_for(offset)
        if position and not self._holds_a_batch(position, offset):
            self._mend_indexes(position)
            position = self.position_for(offset)
        return position

    def _mend_indexes(self, position: int) -> None:
        logger.error("%s is damaged, no batch begins at position %d: rebuilding it", self.offset_index.path, position)
        self.rebuild_indexes()

    def position_for(self, offset: int) -> int:
        """Where the batch with `offset` begins: exactly if it was appended lately, else a bit before."""
        recent = self._recent_offsets
        if recent and offset >= recent[0]:
            return self._recent_positions[bisect_right(recent, offset) - 1]
        self.load()
        return self.offset_index.position_for(offset)

    def locate(self, offset: int, max_bytes: int, upper_bound: int, at_least_one: bool) -> Located | None:
        """Whole batches from the one that holds `offset`, below `upper_bound`. None if there are none from there on.

        Little is read whole, because most of it is wanted. Of much, only headers around its begin and its end are read.
        """
        self.load()
        start, end = self.position_for(offset), self.size
        if start >= end:
            return None
        file = self._files.get(self.path)
        wanted = min(max_bytes + self._window_bytes, end - start)
        window = file.read(start, wanted if wanted <= WINDOW_BYTES else self._window_bytes)
        if start and not begins_a_batch(window, offset):
            self._mend_indexes(start)
            return self.locate(offset, max_bytes, upper_bound, at_least_one)
        headers = HeaderReader(file, self.path, self._window_bytes, end)
        first = headers.first_batch(window, start, offset)
        if first is None:
            return None
        position, size, first_offset, last_offset, window, start = first
        if first_offset >= upper_bound or (size > max_bytes and not at_least_one):
            return Located(position, 0, first_offset, first_offset, b"", position)
        limit = min(position + max_bytes, end)
        stop, next_offset = position + size, last_offset + 1
        last_window, last_start = window, start
        indexed_position, indexed_offset = self.offset_index.last_below(limit, upper_bound)
        if indexed_position > stop:
            if indexed_position - start + HEADER_BYTES > len(window):
                last_window = file.read(indexed_position, min(self._window_bytes, end - indexed_position))
                last_start = indexed_position
            if not begins_a_batch(last_window, indexed_offset, indexed_position - last_start):
                self._mend_indexes(indexed_position)
                return self.locate(offset, max_bytes, upper_bound, at_least_one)
            stop, next_offset = indexed_position, indexed_offset + 1
        if stop + HEADER_BYTES <= limit:
            stop, next_offset = headers.pass_batches(last_window, last_start, stop, next_offset, limit, upper_bound)
        return Located(position, stop - position, first_offset, next_offset, window, start)

    def take(self, found: Located) -> Buffer:
        """The bytes of what was located."""
        begin, chunk = found.position - found.chunk_position, found.chunk
        end = begin + found.size
        if end <= len(chunk):
            return chunk if begin == 0 and end == len(chunk) else memoryview(chunk)[begin:end]
        chunk = self._files.get(self.path).read(found.position, found.size)
        if len(chunk) < found.size:
            raise CorruptBatchError(f"{self.path}: the batches at {found.position} are cut off")
        return chunk

    def reference(self, found: Located, on_error: Callable[[OSError], None]) -> FileRange | None:
        """What was located as a range of the file. The file stays open for it. None if too many do (see OpenFiles)."""
        if self._files.get(self.path).size() < found.position + found.size:
            raise CorruptBatchError(f"{self.path}: the batches at {found.position} are cut off")
        return self._files.reference(self.path, found.position, found.size, on_error)

    # -- changing it

    def append(self, data: Buffer, headers: list[BatchHeader], positions: list[int]) -> None:
        """Write the batches at these positions of `data` at the end, all or nothing.

        After an OSError that `may_pass` the segment is as it was.
        """
        assert headers, "an append without batches"
        if not self._loaded:
            self.load()
        position = self.size
        file = self._files.opened.get(self.path) or self._files.get(self.path)
        try:
            file.write(position, data)
        except OSError as error:
            if may_pass(error):
                self._cut_back(file, position, error)
            raise
        self.size = position + len(data)
        if not position:
            self._first_timestamp = headers[0].max_timestamp
        end = len(data)
        if len(self._recent_offsets) >= _RECENT_BATCHES_MAX:
            del self._recent_offsets[: _RECENT_BATCHES_MAX // 2]
            del self._recent_positions[: _RECENT_BATCHES_MAX // 2]
        for slot, header in enumerate(headers):
            at = positions[slot]
            following = positions[slot + 1] if slot + 1 < len(positions) else end
            self._recent_offsets.append(header.base_offset)
            self._recent_positions.append(position + at)
            self.index(
                position + at, following - at, header.base_offset + header.last_offset_delta, header.max_timestamp
            )

    def _cut_back(self, file: File, position: int, error: OSError) -> None:
        """There was no room. The part that was written must not be taken for a batch."""
        try:
            if file.size() != position:  # else it need not be cut, and may be read-only by now
                file.truncate(position)
        except OSError as worse:
            message = f"{self.path} could not be cut back to {position} after a failed write: {worse}"
            raise OSError(errno.EIO, message) from error

    def is_over(
        self, config: TopicConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int, jitter_ms: int
    ) -> bool:
        """Whether records of `size` bytes go into a new segment (the log rolls), because this one is full or too old.

        The age is that of the first record as against these (`max_timestamp`), as in Kafka; without timestamps, that of
        the file. `jitter_ms`: how much earlier it ends, so that not all logs roll at once.
        """
        if not 0 <= last_offset - self.base_offset <= _INT32_MAX:
            return True
        if not self.size:
            return False
        if not self._loaded:
            self.load()
        offsets, times = len(self.offset_index.firsts), len(self.time_index.firsts)
        if self.size + size > config.segment_bytes:
            return True
        if offsets >= config.segment_index_bytes // 8 or times >= config.segment_index_bytes // 12 - 1:
            return True
        first_ms = self.first_timestamp
        age_ms = max_timestamp - first_ms if first_ms >= 0 and max_timestamp >= 0 else now_ms - self.created_ms
        age_max_ms = config.segment_ms
        if "compact" in config.cleanup_policy:  # the active segment is not compacted, so it must not grow too old
            age_max_ms = min(age_max_ms, config.max_compaction_lag_ms)
        return age_ms > max(age_max_ms - jitter_ms, 0)

    def can_hold(self, offset: int) -> bool:
        """Whether the offset fits the 32 bits that an index entry has for it."""
        return 0 <= offset - self.base_offset <= _INT32_MAX

    def truncate(self, offset: int) -> int:
        """Drop the batches that hold `offset` or later ones; returns how many bytes that were."""
        batch = self.find(offset)
        if batch is None:
            return 0
        self._forget_recent()
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.offset_index.write_if_possible()
        self.time_index.write_if_possible()
        self.transaction_index.truncate(offset)
        dropped = self.size - batch.position
        self._files.cut(self.path, batch.position)
        self.size = batch.position
        if not self.size:
            self._first_timestamp = None
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last()
        last_position = self.offset_index.last_position()
        for kept in self.batches(last_position):
            if kept.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max_timestamp = kept.max_timestamp, kept.last_offset
        self._bytes_since_index_entry = self.size - last_position
        return dropped

    def cut_at(self, position: int) -> None:
        """Recovery: drop the bytes from `position` on."""
        assert position <= self.size, "recovery can only cut off what is there"
        file = self._files.get(self.path)
        if file.size() != position:
            file.truncate(position)
        self.size = position

    def close_time_index(self) -> None:
        """Make sure that the time index ends with the segment's largest timestamp."""
        if self._loaded:
            self.time_index.append(self._max_timestamp, self._offset_of_max_timestamp)

    def write_indexes(self, *, new_files: bool = True) -> list[str]:
        """Bring the index files up to date (not synced); their paths. Without `new_files`, make no file."""
        if self._loaded:
            for index in (self.offset_index, self.time_index):
                if index.dirty and ((new_files and self.size) or self._files.disk.exists(index.path)):
                    index.write()
        self.transaction_index.write()
        return self.index_paths()

    def sync_indexes(self) -> None:
        """Make the indexes durable: below the recovery point they are trusted as the batches are."""
        self.close_time_index()
        self.write_indexes()
        for error in self._files.disk.sync_all(self.index_paths()).values():
            raise error

    @property
    def is_indexed(self) -> bool:
        """Whether the offset index has entries. If it has none, the headers of a few batches make the indexes again."""
        return not self._loaded or len(self.offset_index) > 0

    def index_paths(self) -> list[str]:
        """The index files that may not be durable, because they were written since the log was opened."""
        return [each.path for each in (self.offset_index, self.time_index, self.transaction_index) if each.is_written]

    def mark_unsynced(self) -> None:
        """Make an empty file beside the segment, which says that a crash may take the segment's end.

        It stays until the whole segment is synced. By it, recovery tells a hole that a crash left behind the segment
        from a gap that compaction made.
        """
        if not self.is_marked_unsynced:
            self._files.disk.open(self.file_path(UNSYNCED), create=True).close()
            self.is_marked_unsynced = True

    def remove_mark(self) -> None:
        """The segment is durable up to the one that follows."""
        if self.is_marked_unsynced:
            _remove_if_there(self._files.disk, self.file_path(UNSYNCED))
            self.is_marked_unsynced = False

    def rename(self, suffix: str) -> None:
        """Give all files another suffix, the log first, because recovery goes by the log's name."""
        self.remove_mark()
        disk = self._files.disk
        has_transaction_index = self.transaction_index.on_disk
        old_index, old_time, old_transaction = (self.file_path(name) for name in ("index", "timeindex", "txnindex"))
        old_log = self.path
        self.suffix = suffix
        self._files.rename(old_log, self.file_path("log"))
        self._take_names()
        for source, target in ((old_index, self.offset_index.path), (old_time, self.time_index.path)):
            if disk.exists(source):
                disk.rename(source, target)
        if has_transaction_index:
            disk.rename(old_transaction, self.transaction_index.path)

    def moved_to(self, directory: str) -> None:
        """The log is deleted: its folder has another name now."""
        self._files.close(self.path)
        self._files.indexes.unloaded(self)
        self.directory = directory
        self._take_names()

    def _take_names(self) -> None:
        self.path = self.file_path("log")
        self.offset_index.path = self.file_path("index")
        self.time_index.path = self.file_path("timeindex")
        self.transaction_index.path = self.file_path("txnindex")

    def delete_files(self) -> None:
        """Remove all files; harmless when some are gone."""
        self._files.close(self.path)
        self._files.indexes.unloaded(self)
        _remove_if_there(self._files.disk, self.path)
        self._remove_other_files()

    def empty_files(self) -> None:
        """Drop all batches for good. The file that held them stays, because on a full disk no other can be made."""
        self._files.cut(self.path, 0)
        self._files.indexes.unloaded(self)
        self._remove_other_files()

    def hand_file_on(self, base_offset: int) -> None:
        """The file of this segment, which is empty, becomes that of a segment which begins there."""
        self._files.close(self.path)
        if base_offset != self.base_offset:
            self._files.disk.rename(self.path, f"{self.directory}/{file_name(base_offset, 'log')}")

    def _remove_other_files(self) -> None:
        _remove_if_there(self._files.disk, *map(self.file_path, ("index", "timeindex", "txnindex", UNSYNCED)))


def _remove_if_there(disk: Disk, *paths: str) -> None:
    for path in paths:
        if disk.exists(path):
            disk.remove(path)
