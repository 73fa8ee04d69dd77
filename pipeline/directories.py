"""What is in data directories, and which bytes of which segment one task reads.

A query reads a log from one offset to another. That range is cut into pieces: byte ranges of segments that begin and
end where batches do, which the offset index says. Nothing is changed, and no lock is taken, so the broker may run: up
to the checkpointed high watermark, no byte of a log changes any more.
"""

import fnmatch
import glob
import logging
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from barnabas.pipeline.batches import OFFSETS_END, Array
from barnabas.pipeline.options import ReadOptions
from barnabas.protocol import uuids
from barnabas.protocol.batch_layout import HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from barnabas.runtime.disk import RealDisk
from barnabas.storage import checkpoints
from barnabas.storage.checkpoints import META_PROPERTIES

logger = logging.getLogger("barnabas.pipeline")

_LOG_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)\Z")
_SEGMENT = re.compile(r"(?P<base_offset>\d{20})\.log(?P<swap>\.swap)?\Z")
INDEX_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
SEGMENT_OFFSETS_MAX = 2**31  # an index entry has four bytes for an offset
_LOOKS_MAX = 40
_MOMENT_S = 0.025


@dataclass(frozen=True)
class Segment:
    """One file of a log."""

    path: str
    base_offset: int
    size_bytes: int
    inode: int

    @property
    def is_swap(self) -> bool:
        """Whether it is whole, but has not its name yet, because its broker puts it in the place of others."""
        return self.path.endswith(".swap")

    def beside(self, extension: str) -> str:
        """The path of a file that belongs to the segment."""
        stem, _, suffix = self.path.rpartition(".log")
        return f"{stem}.{extension}{suffix}"


@dataclass(frozen=True)
class Log:
    """One replica of a partition, as it lies in a data directory."""

    directory: str
    topic: str
    partition: int
    topic_id: str | None
    start_offset: int  # the first one that may be read
    end_offset: int  # where to stop: the high watermark, or OFFSETS_END
    segments: tuple[Segment, ...]

    @property
    def folder(self) -> str:
        return f"{self.directory}/{self.topic}-{self.partition}"

    @property
    def first_offset(self) -> int:
        """The first offset that the files can give."""
        return max(self.start_offset, self.segments[0].base_offset) if self.segments else self.start_offset


@dataclass(frozen=True)
class Piece:
    """Bytes of a segment, in which whole batches are."""

    log: Log
    segment: Segment
    start: int
    end: int
    offsets_from: int  # the offsets that can be in it begin here
    offsets_below: int  # and end here
    low: int  # of them those are wanted that are not below this one
    high: int  # and before this one
    is_tail: bool  # whether it reaches to the end of the log's last file
    only: bool | None = None  # of these offsets: those in transactions (True), or those outside of any (False)

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def read_logs(options: ReadOptions, topics: Sequence[str], *, with_internal: bool) -> list[Log]:
    """The logs of these topics (patterns with `*`; none: all) in the data directories of the query.

    OSError or CheckpointError: a directory cannot be read. With `replicas` = `one` the replica that reaches furthest.
    """
    found: list[Log] = []
    for directory in _paths(options.directories):
        found += logs_of(
            directory, topics, with_internal=with_internal, until_high_watermark=options.until != "log-end"
        )
    if options.replicas == "one":
        furthest: dict[tuple[str, int], Log] = {}
        for log in found:
            other = furthest.get((log.topic, log.partition))
            if other is None or _reach(log) > _reach(other):
                furthest[log.topic, log.partition] = log
        found = list(furthest.values())
    return sorted(found, key=lambda log: (log.topic, log.partition, log.directory))


def _reach(log: Log) -> tuple[int, int, int]:
    """How far a replica is known to reach. Of one without a high watermark this is not known, however long it is."""
    known = 0 if log.end_offset == OFFSETS_END else log.end_offset
    last = log.segments[-1] if log.segments else None
    return known, last.base_offset if last else 0, last.size_bytes if last else 0


def _paths(directories: Iterable[str]) -> list[str]:
    """The directories, with `*` in their names expanded."""
    paths: list[str] = []
    for name in directories:
        matches = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
        folders = [os.path.abspath(path) for path in matches if os.path.isdir(path)]
        if not folders:
            raise FileNotFoundError(f"there is no data directory {name}")
        for folder in folders:
            paths += _data_directories(folder)
    return list(dict.fromkeys(paths))


def _data_directories(folder: str) -> list[str]:
    """The folder itself, or the data directories of several brokers in it. FileNotFoundError: neither."""
    names = os.listdir(folder)
    if not names or META_PROPERTIES in names or any(map(_LOG_FOLDER.match, names)):
        return [folder]
    inside = sorted(os.path.dirname(path) for path in glob.glob(f"{glob.escape(folder)}/*/{META_PROPERTIES}"))
    if not inside:
        raise FileNotFoundError(f"{folder} is no data directory: it has no {META_PROPERTIES}")
    return inside


def logs_of(
    directory: str,
    topics: Sequence[str],
    *,
    with_internal: bool,
    until_high_watermark: bool,
    with_empty: bool = False,
) -> list[Log]:
    """The logs of one data directory; also those without any segment if `with_empty`."""
    disk = RealDisk()
    watermarks_path = f"{directory}/{checkpoints.HIGH_WATERMARKS}"
    has_watermarks = os.path.exists(watermarks_path)
    if until_high_watermark and not has_watermarks:
        logger.warning("%s has no checkpoint of high watermarks: reading its logs to their ends", directory)
    watermarks = checkpoints.read_offsets(disk, watermarks_path)
    starts = checkpoints.read_offsets(disk, f"{directory}/{checkpoints.LOG_START_OFFSETS}")
    found = []
    for name in sorted(os.listdir(directory)):
        match = _LOG_FOLDER.match(name)
        if match is None or not is_wanted(match["topic"], topics, with_internal=with_internal):
            continue
        topic, partition = match["topic"], int(match["partition"])
        if name != f"{topic}-{partition}":
            continue
        folder = f"{directory}/{name}"
        try:
            segments = segments_of(folder)
            topic_id = checkpoints.read_partition_metadata(disk, f"{folder}/{checkpoints.PARTITION_METADATA}")
        except (FileNotFoundError, NotADirectoryError):
            if os.path.isdir(folder):
                raise
            continue  # deleted meanwhile, or no log
        if segments or with_empty:
            end = OFFSETS_END
            if until_high_watermark and has_watermarks:
                end = watermarks.get((topic, partition), 0)
                if (topic, partition) not in watermarks and any(one.size_bytes for one in segments):
                    logger.warning(
                        "%s: nothing is read, because it has no high watermark in %s (yet)", folder, watermarks_path
                    )
            text = None if topic_id is None else uuids.to_text(topic_id)
            start = starts.get((topic, partition), 0)
            found.append(Log(directory, topic, partition, text, start, end, segments))
    return found


def is_wanted(topic: str, topics: Sequence[str], *, with_internal: bool) -> bool:
    """Whether the topic is among these patterns; without patterns, whether all topics are wanted, or it is a user's."""
    if topics:
        return any(fnmatch.fnmatchcase(topic, pattern) for pattern in topics)
    return with_internal or not topic.startswith("__")


def segments_of(folder: str) -> tuple[Segment, ...]:
    """The segments in a log's folder, as they are now.

    A broker may remove segments, or swap cleaned ones in, while their names are read. Then a name may be missing in the
    list, and for a moment the new segment is only there as `.swap`. So a list counts when the next one is the same.
    """
    seen: list[tuple[str, int]] | None = None
    found: list[Segment] = []
    for look in range(1, _LOOKS_MAX + 1):
        try:
            found = _list_segments(folder)
        except FileNotFoundError:
            if look == _LOOKS_MAX or not os.path.isdir(folder):
                raise
            now = None
        else:
            now = [(segment.path, segment.inode) for segment in found]
            if now == seen and not any(segment.is_swap for segment in found):
                return tuple(found)
        if seen is not None:
            time.sleep(_MOMENT_S)
        seen = now
    return _after_swaps(found)


def _list_segments(folder: str) -> list[Segment]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _SEGMENT.match(entry.name)
            if match:
                status = os.stat(entry.path)  # of `entry.stat()` an open file's size may be old
                found.append(Segment(entry.path, int(match["base_offset"]), status.st_size, status.st_ino))
    return sorted(found, key=lambda segment: (segment.base_offset, segment.path))


def _after_swaps(found: list[Segment]) -> tuple[Segment, ...]:
    """The segments as they will be when their broker has started again: it was killed before the end of a swap."""
    swaps = [(segment.base_offset, _last_offset(segment)) for segment in found if segment.is_swap]
    return tuple(
        segment
        for segment in found
        if segment.is_swap or not any(first <= segment.base_offset <= last for first, last in swaps)
    )


def _last_offset(segment: Segment) -> int:
    """The last offset in a segment, as the headers of its batches say."""
    last, position = segment.base_offset, 0
    with open(segment.path, "rb") as file:
        while len(content := os.pread(file.fileno(), HEADER_BYTES, position)) == HEADER_BYTES:
            base_offset, length, _, magic, _, _, last_offset_delta, *_ = HEADER.unpack(content)
            if magic != MAGIC or length < HEADER_BYTES - PREFIX_BYTES:
                break
            last = max(last, base_offset + last_offset_delta)
            position += PREFIX_BYTES + length
    return last


def pieces_of(
    log: Log, low: int, high: int, split_bytes: int, *, newer_than_ms: int | None = None, only: bool | None = None
) -> list[Piece]:
    """The pieces that hold the offsets from `low` to before `high`.

    `newer_than_ms`: segments whose records are all older are left out. `only`: see `Piece`.
    """
    low, high = max(low, log.first_offset), min(high, log.end_offset)
    pieces: list[Piece] = []
    for segment, following in zip(log.segments, [*log.segments[1:], None]):
        segment_end = segment.base_offset + SEGMENT_OFFSETS_MAX if following is None else following.base_offset
        if segment_end <= low or segment.base_offset >= high or not segment.size_bytes:
            continue
        if newer_than_ms is not None and following is not None and _is_older(segment, newer_than_ms):
            continue
        borders = _borders(segment, low, high, split_bytes, segment_end)
        for (begin, first), (end, below) in pairwise(borders):
            is_tail = following is None and end == segment.size_bytes
            pieces.append(Piece(log, segment, begin, end, first, below, low, high, is_tail, only))
    return pieces


def _borders(segment: Segment, low: int, high: int, split_bytes: int, segment_end: int) -> list[tuple[int, int]]:
    """Where to begin, where to cut, and where to end: positions of batches, and their offsets."""
    whole = [(0, segment.base_offset), (segment.size_bytes, segment_end)]
    positions, offsets = offsets_at(segment)
    if not len(positions):
        return whole
    first = int(np.searchsorted(offsets, low, side="right")) - 1
    last = int(np.searchsorted(offsets, high, side="left")) + 1  # the batch behind the one that holds `high`
    start = int(positions[first]) if first >= 0 else 0
    end = int(positions[last]) if last < len(positions) else segment.size_bytes
    wanted = np.arange(start + split_bytes, end - split_bytes // 2, split_bytes)
    inner = positions[np.minimum(np.searchsorted(positions, wanted), len(positions) - 1)]
    chosen = np.unique([start, *inner[(inner > start) & (inner < end)].tolist(), end])
    last_offsets = dict(zip(positions.tolist(), offsets.tolist()))
    found = _where_batches_begin(segment, [one for one in chosen.tolist() if one in last_offsets], last_offsets)
    # Where the index is wrong, the range becomes larger.
    if start == 0 or start not in dict(found):
        found.insert(0, whole[0])
    if end == segment.size_bytes or end not in dict(found):
        found.append(whole[1])
    return found


def offsets_at(segment: Segment) -> tuple[Array, Array]:
    """What the offset index says: positions of batches, and their last offsets. Empty if it cannot be right."""
    index = entries_of(segment.beside("index"), INDEX_ENTRY)
    offsets = index["offset"].astype(np.int64) + segment.base_offset
    positions = index["position"].astype(np.int64)
    rises = bool((offsets[1:] > offsets[:-1]).all() and (positions[1:] > positions[:-1]).all())
    if not len(index) or not rises or positions[-1] >= segment.size_bytes:
        return positions[:0], offsets[:0]
    return positions, offsets


def _where_batches_begin(segment: Segment, positions: list[int], last_offsets: dict[int, int]) -> list[tuple[int, int]]:
    """Those positions at which the file has the batch that the index says, and its offset.

    An index may be damaged, or be that of an older file.
    """
    found = []
    with open(segment.path, "rb") as file:
        for position in positions:
            content = os.pread(file.fileno(), HEADER_BYTES, position)
            if len(content) < HEADER_BYTES:
                continue
            base_offset, _, _, magic, _, _, last_offset_delta, *_ = HEADER.unpack(content)
            if magic == MAGIC and base_offset <= last_offsets[position] <= base_offset + last_offset_delta:
                found.append((position, base_offset))
    return found


def _is_older(segment: Segment, time_ms: int) -> bool:
    """Whether a closed segment's time index says that all its records are older."""
    index = entries_of(segment.beside("timeindex"), TIME_ENTRY)
    return bool(len(index)) and int(index["timestamp"][-1]) < time_ms


def entries_of(path: str, kind: np.dtype) -> Array:
    """The whole entries of an index, up to the zeros that Kafka preallocates; none if there is no file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        content = b""
    used = -(-len(content.rstrip(b"\0")) // kind.itemsize)
    return np.frombuffer(content, kind, min(used, len(content) // kind.itemsize))
