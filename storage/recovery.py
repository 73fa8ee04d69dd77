"""Opening the folder of a log: what a crash interrupted is completed, what it damaged is cut off."""

import logging
from collections.abc import Container, Generator, Sequence
from contextlib import closing, suppress
from typing import TypeVar

from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL
from barnabas.protocol.errors import CorruptBatchError
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env
from barnabas.storage import checkpoints
from barnabas.storage.batch_headers import is_old_format
from barnabas.storage.directory_contents import LogFolder, is_log_file
from barnabas.storage.index import TransactionIndex
from barnabas.storage.leader_epochs import UNDEFINED, LeaderEpochCache
from barnabas.storage.log import Log
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import UNSYNCED, Segment, file_name
from barnabas.storage.segments import Segments

logger = logging.getLogger("barnabas.storage")

T = TypeVar("T")

_WINDOW_BYTES = 1 << 20  # how much is checked in one piece, in about ten milliseconds
_INDEXES = ("index", "timeindex", "txnindex")
_BESIDE = (*_INDEXES, UNSYNCED)


class OldFormatError(ValueError):
    """The log holds message sets of Kafka 0.x. They cannot be read here, and must not be cut off as damage."""


class Progress(NamedTuple):
    """How far the work on one log has come."""

    log: str
    checked_bytes: int
    of_bytes: int


Pieces = Generator[Progress | None, None, T]  # of the work of a start; what takes long says how far it is


def open_log(
    env: Env,
    files: OpenFiles,
    directory: str,
    topic: str,
    partition: int,
    config: TopicConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    found: LogFolder | None,
) -> Pieces[Log]:
    """Open or make the log in `directory`, piece by piece. `found` is what is known of its folder already.

    If the last stop was `clean`, the files are trusted. If not, every batch from the recovery point's segment on is
    checked, the log is cut at the first bad batch, and the indexes from there on are made again. The caller must flush
    such a log before it takes records: else the part that was cut could come back behind them. Segments that are cut
    off whole are set aside. OSError, CheckpointError and OldFormatError if it cannot be opened.
    """
    folder = _Folder(env, files, directory, f"{topic}-{partition}", config)
    names = folder.tidied_names(found)
    segments = folder.segments(names)
    folder.drop_damaged_transaction_indexes(segments, names)
    leader_epochs = folder.leader_epochs(names, found)
    topic_id = folder.topic_id(names, found, clean)
    before = [(segment.base_offset, segment.size) for segment in segments]
    log_end_offset, last_epoch, checked_from, no_producers_from = yield from _find_end(
        folder, segments, leader_epochs, recovery_point=recovery_point, log_start_offset=log_start_offset, clean=clean
    )
    if last_epoch >= 0 and leader_epochs.epoch_for_offset(log_end_offset - 1) not in (UNDEFINED, last_epoch):
        yield from folder.find_epochs(segments, leader_epochs)
    if is_new := not segments:
        segments.append(folder.first_segment(log_end_offset))
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    leader_epochs.truncate_from_end(log_end_offset + 1)
    leader_epochs.truncate_from_start(log_start_offset)
    snapshots = [int(name[:20]) for name in names if name.endswith(".snapshot") and name[:20].isdigit()]
    log = Log(
        env,
        files,
        directory,
        topic,
        partition,
        config,
        Segments(segments, log_end_offset),
        topic_id=topic_id,
        log_start_offset=log_start_offset,
        # Recovery has checked what is there, but a crash now could still lose it. Only a sync raises the point.
        recovery_point=min(recovery_point, log_end_offset),
        producers=ProducerStateManager(env.disk, directory, snapshots),
        leader_epochs=leader_epochs,
        unsynced_folders=(directory, directory.rpartition("/")[0]) if is_new else () if clean else (directory,),
    )
    if before and before != [(segment.base_offset, segment.size) for segment in segments]:
        log.durability.sync_with_next_flush([segments[-1].path], with_names=True)  # it was cut
    for passed_bytes in log.producers.rebuild(
        log.segments, log.log_start_offset, checked_from=checked_from, no_producers_from=no_producers_from
    ):
        yield Progress(log.name, passed_bytes, log.size_bytes)
    log.producers.keep_snapshots_of(segment.base_offset for segment in segments)
    return log


class _Extent(NamedTuple):
    """Where a log ends. After a crash: from where on it was checked, and from where on no batch has a producer."""

    log_end_offset: int
    last_epoch: int = UNDEFINED  # of the last batch, if there is one in the last segment
    checked_from: int | None = None
    no_producers_from: int | None = None


def _find_end(
    folder: "_Folder",
    segments: list[Segment],
    leader_epochs: LeaderEpochCache,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
) -> Pieces[_Extent]:
    """Recover the log if it was not closed cleanly. What does not belong to it any more leaves `segments`."""
    if not segments:
        extent = _Extent(log_start_offset)
    elif clean:
        last = segments[-1].last_batch()
        if last is None:
            extent = _Extent(segments[-1].base_offset)
        else:
            extent = _Extent(last.last_offset + 1, last.partition_leader_epoch)
    else:
        while len(segments) > 1 and segments[1].base_offset <= log_start_offset:
            # Retention had done so. A crash may bring back some, and not their neighbours.
            segments.pop(0).delete_files()
        check = _Check(folder, segments, leader_epochs)
        checked_from, log_end_offset = yield from check.run(recovery_point)
        no_producers_from = None if check.has_producers else checked_from
        extent = _Extent(log_end_offset, check.last_epoch, checked_from, no_producers_from)
    if extent.log_end_offset < log_start_offset:
        # Retention had given up all segments, and a crash took the empty one begun then. Offsets never go back.
        text = "%s: the remaining records end at offset %d, below the log start offset %d, where the log goes on empty"
        logger.warning(text, folder.log, extent.log_end_offset, log_start_offset)
        folder.set_aside(segments)
        segments.clear()
        extent = _Extent(log_start_offset, UNDEFINED, log_start_offset, extent.no_producers_from)
    return extent


class _Folder:
    """A log's folder while the log is being opened."""

    def __init__(self, env: Env, files: OpenFiles, directory: str, log: str, config: TopicConfig) -> None:
        self.log = log
        self._env = env
        self._files = files
        self._disk = env.disk
        self._directory = directory
        self._config = config

    def _names(self) -> list[str]:
        """What is in it, without the files that are not the log's. Only their owner removes those."""
        return list(filter(is_log_file, self._disk.list_directory(self._directory)))

    def tidied_names(self, found: LogFolder | None) -> list[str]:
        """Make it; or remove what is half written and complete finished compactions. What is in it then."""
        disk, directory = self._disk, self._directory
        if found is None and not disk.is_directory(directory):
            disk.make_directory(directory)
            return []
        names = self._names() if found is None else list(filter(is_log_file, found.files))
        swapped = []
        touched = False
        present = set(names)
        for name in names:
            if name.endswith(".txnindex.cleaned") and f"{name[:20]}.log.swap" in present:
                continue  # it goes with its log, which has been renamed before it
            if name.endswith((".deleted", ".cleaned", ".tmp")):
                disk.remove(f"{directory}/{name}")
                touched = True
            elif name.endswith(".swap"):
                touched = True
                if name.endswith(".log.swap"):
                    swapped.append(int(name[:20]))
        if not touched:
            return names
        names = self._names()
        bases = sorted(int(name[:20]) for name in names if name.endswith(".log"))
        for base in swapped:
            self._complete_swap(base, bases)
        for name in self._names():
            if not name.endswith(".swap"):
                continue
            log = f"{name[:20]}.log"
            if name.endswith(".txnindex.swap") and log in present and f"{log}.cleaned" not in present:
                disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.swap')}")  # the log has its name
            else:  # other indexes of a swap whose log has its name already: made again when needed
                disk.remove(f"{directory}/{name}")
        disk.sync_directory(directory)
        return self._names()

    def _complete_swap(self, base: int, bases: list[int]) -> None:
        """The new file is whole: remove the files that it replaces, then let it take their place."""
        disk, directory = self._disk, self._directory
        path = f"{directory}/{file_name(base, 'log')}.swap"
        replacement = self._segment(base, disk.file_size(path), suffix=".swap")
        end = base + 1
        markers = set()
        for batch in replacement.batches():
            end = batch.last_offset + 1
            if batch.attributes & CONTROL:
                markers.add(batch.last_offset)
        aborted = f"{directory}/{file_name(base, 'txnindex')}"
        has_aborted = disk.exists(f"{aborted}.swap") or disk.exists(f"{aborted}.cleaned")
        # The first one has perhaps lost its log already, and not yet its indexes.
        for original in dict.fromkeys([base, *(original for original in bases if base <= original < end)]):
            self._files.close(f"{directory}/{file_name(original, 'log')}")
            for extension in ("log", *_BESIDE):
                old = f"{directory}/{file_name(original, extension)}"
                if disk.exists(old) and (old != aborted or has_aborted):
                    disk.remove(old)
        if not has_aborted and disk.exists(aborted):
            self._keep_entries(aborted, base, markers)  # the new one, renamed already, or the one of the first original
        disk.sync_directory(directory)  # never the new batches under the old indexes
        for extension in _INDEXES:
            final = f"{directory}/{file_name(base, extension)}"
            for index in (replacement.file_path(extension), f"{final}.cleaned"):
                if disk.exists(index):
                    disk.rename(index, final)
        self._files.rename(path, f"{directory}/{file_name(base, 'log')}")

    def _keep_entries(self, path: str, base: int, markers: Container[int]) -> None:
        """Keep of an index of aborted transactions what has its marker in the segment."""
        index = TransactionIndex(self._disk, path, base, on_disk=True)
        try:
            kept = [entry for entry in index.entries if entry.last_offset in markers]
        except CorruptBatchError:
            return  # it is made again from the batches
        if len(kept) < len(index.entries):
            index.reset()
            for entry in kept:
                index.append(entry)
        if kept:
            with closing(self._disk.open(path)) as file:
                file.sync()

    def _segment(self, base_offset: int, size: int, present: Container[str] = (), suffix: str = "") -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            size=size,
            created_ms=self._env.clock.now_ms(),
            index_interval_bytes=self._config.index_interval_bytes,
            has_transaction_index=file_name(base_offset, "txnindex") in present,
            is_marked_unsynced=file_name(base_offset, UNSYNCED) in present,
            suffix=suffix,
        )

    def first_segment(self, base_offset: int) -> Segment:
        """A new empty one."""
        return Segment.create(self._files, self._directory, base_offset, self._config, self._env.clock.now_ms())

    def segments(self, names: list[str]) -> list[Segment]:
        """The segments that are there, in order. Index files and marks without a log are removed."""
        present = set(names)
        segments = []
        for name in names:
            path = f"{self._directory}/{name}"
            if name.endswith(".log") and name[:20].isdigit():
                segments.append(self._segment(int(name[:20]), self._disk.file_size(path), present))
            elif name.endswith(tuple(f".{extension}" for extension in _BESIDE)) and f"{name[:20]}.log" not in present:
                self._disk.remove(path)
        return segments

    def drop_damaged_transaction_indexes(self, segments: list[Segment], names: list[str]) -> None:
        """They are made again from all batches, so all producer snapshots go: they say that batches were seen."""
        damaged = False
        for segment in segments:
            try:
                assert segment.transaction_index.entries is not None
            except CorruptBatchError as error:
                logger.error("%s; rebuilding it from the batches", error)
                segment.transaction_index.reset()
                damaged = True
        for name in [name for name in names if damaged and name.endswith(".snapshot")]:
            self._disk.remove(f"{self._directory}/{name}")
            names.remove(name)

    def leader_epochs(self, names: list[str], found: LogFolder | None) -> LeaderEpochCache:
        """What leader-epoch-checkpoint says, which may have been read already."""
        epochs = () if checkpoints.LEADER_EPOCHS not in names else None if found is None else found.leader_epochs
        return LeaderEpochCache(self._disk, f"{self._directory}/{checkpoints.LEADER_EPOCHS}", epochs)

    def find_epochs(self, segments: Sequence[Segment], leader_epochs: LeaderEpochCache) -> Pieces[None]:
        """Make leader-epoch-checkpoint again from the batches.

        Somebody has edited it, or exchanged it or the segments; or a crash came before it was written.
        """
        logger.warning(
            "%s: %s/%s does not fit the batches of the log: it is made again from them",
            *(self.log, self._directory, checkpoints.LEADER_EPOCHS),
        )
        leader_epochs.clear()
        checked_bytes, of_bytes = 0, sum(segment.size for segment in segments)
        for segment in segments:
            with suppress(CorruptBatchError):  # it is told elsewhere
                for batch in segment.batches():
                    if batch.partition_leader_epoch > leader_epochs.latest:
                        leader_epochs.assign(batch.partition_leader_epoch, batch.base_offset)
            checked_bytes += segment.size
            yield Progress(self.log, checked_bytes, of_bytes)

    def topic_id(self, names: list[str], found: LogFolder | None, clean: bool) -> bytes | None:
        """The id that partition.metadata says."""
        if found is not None and found.topic_id is not None:
            return found.topic_id
        if checkpoints.PARTITION_METADATA not in names:
            return None
        path = f"{self._directory}/{checkpoints.PARTITION_METADATA}"
        try:
            return checkpoints.read_partition_metadata(self._disk, path)
        except checkpoints.CheckpointError as error:
            if clean:
                raise
            # It was written without a sync when the log was made, and a crash may have torn it. The tree knows the id.
            logger.warning("%s; a crash has torn it, the topic id is taken from the tree", error)
            self._disk.remove(path)
            return None

    def set_aside(self, segments: Sequence[Segment]) -> None:
        """Take them out of the log. Their batches stay, under names that no broker reads."""
        for segment in segments:
            if not segment.size:
                segment.delete_files()
        cut = [segment for segment in segments if segment.size]
        if not cut:
            return
        now_ms = self._env.clock.now_ms()
        names = set(self._disk.list_directory(self._directory))
        while any(file_name(segment.base_offset, f"log.{now_ms}-cut") in names for segment in cut):
            now_ms += 1
        for segment in cut:
            self._files.close(segment.path)
            self._disk.rename(segment.path, f"{self._directory}/{file_name(segment.base_offset, f'log.{now_ms}-cut')}")
            segment.delete_files()
        logger.error(
            "%s: %s cut off, with the offsets from %d on, %d bytes, and kept as "
            "%s/*.log.%d-cut until you remove that or the topic is deleted",
            self.log,
            counted(len(cut), "segment"),
            cut[0].base_offset,
            sum(segment.size for segment in cut),
            self._directory,
            now_ms,
        )


class _Check:
    """Looks at every batch from the recovery point's segment on, and ends the log before the first bad one.

    Gaps between offsets are no damage. Compaction leaves them, and the topic's policy may have changed since; a
    follower has those of its leader. But a gap behind a segment that was not synced whole is damage: the crash took the
    end of the segment, or the segments behind it.
    """

    def __init__(self, folder: _Folder, segments: list[Segment], leader_epochs: LeaderEpochCache) -> None:
        self._folder = folder
        self._segments = segments
        self._leader_epochs = leader_epochs
        self._checked_bytes = 0
        self._of_bytes = 0
        self.last_epoch = UNDEFINED  # of the last good batch
        self.has_producers = False  # whether a checked batch is one of an idempotent producer, or a marker

    def run(self, recovery_point: int) -> Pieces[tuple[int, int]]:
        """From where on it was checked, and where it ends. Segments behind a cut are removed from the list."""
        segments, log = self._segments, self._folder.log
        first = max((slot for slot, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
        for segment in segments[:first]:
            segment.remove_mark()  # everything there is durable
        self._of_bytes = sum(segment.size for segment in segments[first:])
        checked_from = next_offset = segments[first].base_offset
        for slot in range(first, len(segments)):
            segment = segments[slot]
            if slot > first and segment.base_offset > next_offset and segments[slot - 1].is_marked_unsynced:
                logger.warning("%s: the log ends at offset %d, a crash lost what came behind", log, next_offset)
                self._cut_off(slot)
                break
            end, next_offset = yield from self._check_segment(segment, max(next_offset, segment.base_offset))
            self._checked_bytes += end
            if end < segment.size:
                text = "%s: truncated %d damaged bytes from offset %d on, in %s"
                logger.warning(text, log, segment.size - end, next_offset, segment.path)
                if end:
                    segment.cut_at(end)
                    self._cut_off(slot + 1)
                else:
                    self._cut_off(slot)
                    segments.append(self._folder.first_segment(next_offset))
                break
        for segment in segments[first:-1]:
            segment.write_indexes()
        # The last one's indexes are not trusted before it is complete. New files for 10,000 logs would take seconds.
        segments[-1].write_indexes(new_files=False)
        return checked_from, next_offset

    def _say_that_it_was_renamed(self, segment: Segment, begins: int) -> None:
        logger.error(
            "%s: %s begins with offset %d, so somebody has renamed or exchanged it. It is cut off, and kept: to have "
            "it back, stop this broker, name it %s in place of all segments from that offset on, and write %d "
            "for the log in %s, if that says more",
            *(self._folder.log, segment.path, begins, file_name(begins, "log")),
            *(begins, checkpoints.LOG_START_OFFSETS),
        )

    def _cut_off(self, slot: int) -> None:
        self._folder.set_aside(self._segments[slot:])
        del self._segments[slot:]

    def _check_segment(self, segment: Segment, next_offset: int) -> Pieces[tuple[int, int]]:
        """(position behind the last good batch, next offset). The segment's indexes are made again on the way."""
        leader_epochs = self._leader_epochs
        segment.reset_indexes()
        segment.transaction_index.reset()
        position = start = 0
        epoch = max(leader_epochs.latest, -1)
        window = memoryview(b"")
        try:
            for batch in segment.batches():
                if batch.base_offset < next_offset or not segment.can_hold(batch.last_offset):
                    if not position and batch.base_offset < segment.base_offset:
                        self._say_that_it_was_renamed(segment, batch.base_offset)
                    break
                if batch.position + batch.size > start + len(window):
                    if position:
                        yield Progress(self._folder.log, self._checked_bytes + position, self._of_bytes)
                    start = batch.position
                    window = memoryview(segment.bytes_at(start, max(batch.size, _WINDOW_BYTES)))
                if not record_batch.crc_is_valid(window[batch.position - start : batch.position - start + batch.size]):
                    break
                if batch.partition_leader_epoch > epoch:
                    epoch = batch.partition_leader_epoch
                    leader_epochs.assign(epoch, batch.base_offset)
                if batch.producer_id >= 0:
                    self.has_producers = True
                segment.index(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
                next_offset = batch.last_offset + 1
                self.last_epoch = batch.partition_leader_epoch
                position = batch.position + batch.size
        except CorruptBatchError:
            if is_old_format(segment.bytes_at, position, segment.size):
                raise OldFormatError(
                    f"{segment.path} holds message sets of an old format (magic 0 or 1) at {position}; "
                    "rewrite the topic with a Kafka 3.x broker first, or move the folder away"
                ) from None
        return position, next_offset
