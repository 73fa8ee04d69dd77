"""Opening a log directory: finish what a crash interrupted, cut what it left behind."""

import logging
from collections.abc import Generator
from typing import NamedTuple, TypeVar

from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.ports import Disk, Env
from barnabas.storage import checkpoints
from barnabas.storage.leader_epochs import LeaderEpochCache
from barnabas.storage.log import Log
from barnabas.storage.log_reader import rebuild_producers
from barnabas.storage.open_files import OpenFiles
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.segment import Segment, file_name

logger = logging.getLogger("barnabas.storage")

T = TypeVar("T")

_WINDOW_BYTES = 1 << 20  # of one piece: about ten milliseconds
_EXTENSIONS = ("index", "timeindex", "txnindex")


class OldFormatError(ValueError):
    """The log holds message sets of Kafka 0.x, which are not read here and must not be cut off as damage."""


class Progress(NamedTuple):
    """How far the work on one log has come."""

    log: str
    checked_bytes: int
    of_bytes: int


Pieces = Generator[Progress | None, None, T]  # of the work of a start; said is what takes long


def open_log(
    env: Env,
    files: OpenFiles,
    directory: str,
    topic: str,
    partition: int,
    config: TopicConfig,
    *,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean: bool = False,
) -> Pieces[Log]:
    """Open or make the log in `directory`, piece by piece.

    `clean`: the last stop was clean, what is there is trusted. Otherwise every batch from the recovery point's
    segment on is checked, the log is cut at the first bad one, and indexes from there on are made again; the caller
    must flush such a log before it takes records, so that what was cut cannot come back behind them.
    OSError, CheckpointError, OldFormatError when it cannot be opened.
    """
    disk = env.disk
    names: list[str] = []
    if disk.is_directory(directory):
        names = _finish_interrupted_work(env, files, directory, config)
    else:
        disk.make_directory(directory)
    segments = _segments(env, files, directory, names, config)
    _drop_damaged_transaction_indexes(disk, directory, segments, names)
    snapshots = [int(name[:20]) for name in names if name.endswith(".snapshot") and name[:20].isdigit()]
    leader_epochs = LeaderEpochCache(
        disk, f"{directory}/{checkpoints.LEADER_EPOCHS}", on_disk=checkpoints.LEADER_EPOCHS in names
    )
    topic_id = None
    if checkpoints.PARTITION_METADATA in names:
        path = f"{directory}/{checkpoints.PARTITION_METADATA}"
        try:
            topic_id = checkpoints.read_partition_metadata(disk, path)
        except checkpoints.CheckpointError as error:
            if clean:
                raise
            # Written without a sync when the log was made: a crash may have torn it. The controller says the id again.
            logger.warning("%s; a crash left it so, the topic's id is taken from the tree", error)
            disk.remove(path)
    new = not segments
    sizes = [segment.size for segment in segments]
    if new:
        segments = [_first_segment(env, files, directory, log_start_offset, config)]
        log_end_offset = log_start_offset
        clean = True
    elif clean:
        log_end_offset = segments[-1].next_offset()
    else:
        log_end_offset = yield from _check_batches(
            segments,
            recovery_point,
            leader_epochs,
            f"{topic}-{partition}",
            may_have_gaps="compact" in config.cleanup_policy,
        )
    if log_end_offset < log_start_offset:
        # Retention had given up all that is here, and a crash took the segment begun then. Offsets do not go back.
        name = f"{topic}-{partition}"
        logger.warning("%s: what is left ends at %d, the log begins at %d", name, log_end_offset, log_start_offset)
        for segment in segments:
            segment.delete_files()
        segments = [_first_segment(env, files, directory, log_start_offset, config)]
        log_end_offset = log_start_offset
        new = True
    if log_end_offset < recovery_point:
        logger.error(
            "%s-%d ends at %d, though everything up to %d was synced: what came behind was removed or damaged since",
            topic,
            partition,
            log_end_offset,
            recovery_point,
        )
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    leader_epochs.truncate_from_end(log_end_offset + 1)
    leader_epochs.truncate_from_start(log_start_offset)
    log = Log(
        env,
        files,
        directory,
        topic,
        partition,
        config,
        segments,
        topic_id=topic_id,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        # Recovery has checked what is there but a crash now could still lose it: only a sync lifts the point.
        recovery_point=min(recovery_point, log_end_offset),
        producers=ProducerStateManager(disk, directory, snapshots),
        leader_epochs=leader_epochs,
        unsynced_folders=(directory, directory.rpartition("/")[0]) if new else () if clean else (directory,),
    )
    if sizes and sizes != [segment.size for segment in segments]:
        log.sync_with_next_flush(segments[-1].path)  # it was cut
    for checked in rebuild_producers(log):
        yield Progress(log.name, checked, log.size_bytes)
    if not clean:
        log.producers.keep_snapshots_of(segment.base_offset for segment in segments)
    return log


def _drop_damaged_transaction_indexes(disk: Disk, directory: str, segments: list[Segment], names: list[str]) -> None:
    """They are made again from the batches: from all of them, so no snapshot may say that they were seen."""
    damaged = False
    for segment in segments:
        try:
            assert segment.transaction_index.entries is not None
        except CorruptBatchError as error:
            logger.error("%s; it is made again", error)
            segment.transaction_index.reset()
            damaged = True
    for name in [name for name in names if damaged and name.endswith(".snapshot")]:
        disk.remove(f"{directory}/{name}")
        names.remove(name)


def _finish_interrupted_work(env: Env, files: OpenFiles, directory: str, config: TopicConfig) -> list[str]:
    """Remove what was being removed or written, complete finished compactions. Returns the names that are left."""
    disk = env.disk
    names = disk.list_directory(directory)
    swapped = []
    touched = False
    for name in names:
        if name.endswith((".deleted", ".cleaned", ".tmp")):
            disk.remove(f"{directory}/{name}")
            touched = True
        elif name.endswith(".swap"):
            touched = True
            if name.endswith(".log.swap"):
                swapped.append(int(name[:20]))
    if not touched:
        return names
    names = disk.list_directory(directory)
    bases = sorted(int(name[:20]) for name in names if name.endswith(".log"))
    for base in swapped:
        _complete_swap(env, files, directory, base, bases, config)
    names = disk.list_directory(directory)
    for name in names:
        if name.endswith(".swap"):  # index files of a swap whose log has its name already: made again when needed
            disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)
    return disk.list_directory(directory)


def _complete_swap(
    env: Env, files: OpenFiles, directory: str, base: int, bases: list[int], config: TopicConfig
) -> None:
    """The new file is whole: what it replaces goes, then it takes its place."""
    disk = env.disk
    path = f"{directory}/{file_name(base, 'log')}.swap"
    replacement = Segment(
        files,
        directory,
        base,
        size=disk.file_size(path),
        created_ms=env.clock.now_ms(),
        index_interval_bytes=config.index_interval_bytes,
        suffix=".swap",
    )
    end = base + 1
    for batch in replacement.batches():
        end = batch.last_offset + 1
    for original in bases:
        if base <= original < end:
            files.close(f"{directory}/{file_name(original, 'log')}")
            for extension in ("log", *_EXTENSIONS):
                old = f"{directory}/{file_name(original, extension)}"
                if disk.exists(old):
                    disk.remove(old)
    disk.sync_directory(directory)  # never the new batches under the old indexes
    for extension in _EXTENSIONS:
        if disk.exists(replacement.file_path(extension)):
            disk.rename(replacement.file_path(extension), f"{directory}/{file_name(base, extension)}")
    files.rename(path, f"{directory}/{file_name(base, 'log')}")


def _first_segment(env: Env, files: OpenFiles, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    return Segment.create(
        files,
        directory,
        base_offset,
        now_ms=env.clock.now_ms(),
        index_interval_bytes=config.index_interval_bytes,
    )


def _segments(env: Env, files: OpenFiles, directory: str, names: list[str], config: TopicConfig) -> list[Segment]:
    disk = env.disk
    present = set(names)
    now_ms = env.clock.now_ms()
    segments = []
    for name in names:
        if name.endswith(".log") and name[:20].isdigit():
            base_offset = int(name[:20])
            segments.append(
                Segment(
                    files,
                    directory,
                    base_offset,
                    size=disk.file_size(f"{directory}/{name}"),
                    created_ms=now_ms,
                    index_interval_bytes=config.index_interval_bytes,
                    has_transaction_index=file_name(base_offset, "txnindex") in present,
                )
            )
        elif name.endswith((".index", ".timeindex", ".txnindex")) and f"{name[:20]}.log" not in present:
            disk.remove(f"{directory}/{name}")
    return segments


def _check_batches(
    segments: list[Segment], recovery_point: int, leader_epochs: LeaderEpochCache, name: str, *, may_have_gaps: bool
) -> Pieces[int]:
    """Check from the recovery point's segment on; returns the log end. `segments` loses those behind a cut.

    A segment that begins behind the end of the one before it means that a file in between, or the end of one, was
    lost: unless compaction makes such gaps, the log ends there.
    """
    first = 0
    for slot, segment in enumerate(segments):
        if segment.base_offset <= recovery_point:
            first = slot
    next_offset = segments[first].base_offset
    of_bytes = sum(segment.size for segment in segments[first:])
    checked_bytes = 0
    for slot in range(first, len(segments)):
        segment = segments[slot]
        if slot > first and segment.base_offset != next_offset and not may_have_gaps:
            logger.warning(
                "%s: dropping %d segments from %d on, a crash lost what came before", name, len(segments) - slot, slot
            )
            for later in segments[slot:]:
                later.delete_files()
            del segments[slot:]
            break
        check = _check_segment(segment, max(next_offset, segment.base_offset), leader_epochs)
        while True:
            try:
                position = next(check)
            except StopIteration as result:
                end, next_offset = result.value
                break
            yield Progress(name, checked_bytes + position, of_bytes)
        if end == segment.size:
            checked_bytes += end
            continue
        logger.warning(
            "%s: cutting %d bytes and %d later segments behind offset %d, which a crash left damaged",
            name,
            segment.size - end,
            len(segments) - slot - 1,
            next_offset,
        )
        for later in segments[slot + 1 :]:
            later.delete_files()
        del segments[slot + 1 :]
        segment.cut_at(end)
        break
    for segment in segments[first:-1]:
        segment.write_indexes()
    # The last one's are not trusted before it is complete; to create two files for each of 10,000 logs takes seconds.
    segments[-1].write_indexes(new_files=False)
    return next_offset


def _check_segment(
    segment: Segment, next_offset: int, leader_epochs: LeaderEpochCache
) -> Generator[int, None, tuple[int, int]]:
    """(position behind the last good batch, next offset); its indexes are made again on the way.

    Yields how far it has come.
    """
    segment.reset_indexes()
    segment.transaction_index.reset()
    position = start = 0
    epoch = max(leader_epochs.latest, -1)
    window = memoryview(b"")
    try:
        for batch in segment.batches():
            if batch.base_offset < next_offset or not segment.can_hold(batch.last_offset):
                break
            if batch.position + batch.size > start + len(window):
                if position:
                    yield position
                start = batch.position
                window = memoryview(segment.bytes_at(start, max(batch.size, _WINDOW_BYTES)))
            if not record_batch.crc_is_valid(window[batch.position - start : batch.position - start + batch.size]):
                break
            if batch.partition_leader_epoch > epoch:
                epoch = batch.partition_leader_epoch
                leader_epochs.assign(epoch, batch.base_offset)
            segment.index_recovered(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
            next_offset = batch.last_offset + 1
            position = batch.position + batch.size
    except CorruptBatchError:
        if segment.is_old_format(position):
            raise OldFormatError(
                f"{segment.path} holds message sets of an old format (magic 0 or 1) at {position}; "
                "rewrite the topic with a Kafka 3.x broker first, or move the folder away"
            ) from None
    return position, next_offset
