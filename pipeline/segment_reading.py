"""Reads a piece of a segment, a few megabytes at a time."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from barnabas.pipeline.batches import OFFSETS_END, Batches, batch_bytes, walk
from barnabas.pipeline.directories import Log, Piece, Segment, offsets_at, pieces_of, segments_of
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.place import Place, Read
from barnabas.pipeline.transactions import Aborted, Deciding, Ended, Transactions
from barnabas.protocol.batch_layout import HEADER_BYTES
from barnabas.runtime.disk import RealDisk
from barnabas.storage.index import TransactionIndex
from barnabas.storage.producer_snapshot import read_snapshot

logger = logging.getLogger("barnabas.pipeline")

READ_BYTES = 4 << 20
"""How much is taken apart together: enough for many batches, and little enough for a processor's cache."""


def read_piece(piece: Piece, *, fail_on_data_loss: bool = True, must_reach: bool = False) -> Iterator[Read]:
    """The batches of a piece, with those around the offsets that are asked for.

    If the segment has been replaced or removed since the piece was planned (compaction, retention), its offsets are
    looked for in the files that are there now. LostRecordsError: they are gone. With `must_reach`: or they are not
    there yet, because the log ends below its high watermark; who goes on behind them would never see them.
    """
    fails = fail_on_data_loss and must_reach
    try:
        with open(piece.segment.path, "rb") as file:
            if os.fstat(file.fileno()).st_ino == piece.segment.inode:
                yield from _read_open(piece, file.fileno(), fails=fails)
                return
    except FileNotFoundError:
        pass
    for other in _planned_again(piece, fail_on_data_loss=fail_on_data_loss):
        yield from read_piece(other, fail_on_data_loss=fail_on_data_loss, must_reach=must_reach)


def _read_open(piece: Piece, descriptor: int, *, fails: bool) -> Iterator[Read]:
    log, segment = piece.log, piece.segment
    transactions = Transactions(lambda: ended_transactions(log, log.end_offset))
    reached = max(segment.base_offset, piece.offsets_from)
    bounds = {
        "offsets_from": piece.offsets_from,
        "offsets_below": piece.offsets_below,
        "offsets_to": piece.high if piece.high < piece.offsets_below else OFFSETS_END,
    }
    for position, batches in _walk_file(descriptor, segment, piece.start, piece.end, is_tail=piece.is_tail, **bounds):
        name = os.path.basename(segment.path)
        place = Place(log.topic, log.partition, transactions, log.directory, name, position)
        yield Read(place, batches, piece.low, piece.high, piece.only)
        if batches.ended:
            return
        reached = max([reached, *batches.last_offsets[-1:] + 1])
        if batches.corrupt and batches.corrupt[-1].position >= batches.starts.max(initial=0):
            reached = OFFSETS_END  # the end is there, and was said to be corrupt

    if piece.is_tail:
        check_reached(log, int(reached), piece.high, fails=fails)


def _walk_file(
    descriptor: int, segment: Segment, position: int, end: int, *, is_tail: bool = False, **bounds: int
) -> Iterator[tuple[int, Batches]]:
    """The batches of a file between two positions, a few megabytes at a time, and where these begin.

    `bounds` are offsets, as `walk` takes them. LostRecordsError: the file was truncated since it was listed.
    """
    wanted = READ_BYTES
    while position < end:
        asked = min(wanted, end - position)
        content = os.pread(descriptor, asked, position)
        batches = walk(content, following_bytes=end - position - len(content), is_tail=is_tail, **bounds)
        if not batches.consumed and not batches.ended:
            if len(content) < asked:
                raise LostRecordsError(
                    f"{segment.path} has no whole batch at {position}, and was {end} bytes long before"
                )
            wanted = max(2 * wanted, batch_bytes(batches.data, 0))
            continue
        yield position, batches
        if batches.ended:
            return
        position += batches.consumed
        wanted = READ_BYTES


def check_reached(log: Log, reached: int, high: int, *, fails: bool) -> None:
    """Say that a log ends below its high watermark. The last segment is never cleaned, so it has all its offsets."""
    if log.end_offset == OFFSETS_END or reached >= high:
        return
    text = (
        f"{log.folder} ends at {reached}, below its high watermark of {log.end_offset}: it was copied while its broker "
        "ran, or has lost its end. Copy it again, the checkpoint of high watermarks first"
    )
    if fails:
        raise LostRecordsError(text)
    logger.warning("%s", text)


def _planned_again(piece: Piece, *, fail_on_data_loss: bool) -> list[Piece]:
    """Pieces for the offsets of a piece whose file is not there any more."""
    low, high = max(piece.low, piece.offsets_from), min(piece.high, piece.offsets_below)
    now = replace(piece.log, segments=segments_of(piece.log.folder) if os.path.isdir(piece.log.folder) else ())
    if not now.segments or now.first_offset > low:
        below = min(now.first_offset, high) if now.segments else high
        text = f"{now.folder}: the offsets from {low} to below {below} were removed while they were read"
        if fail_on_data_loss:
            raise LostRecordsError(text)
        logger.warning("%s", text)
    return pieces_of(now, low, high, OFFSETS_END, only=piece.only)


def log_end(log: Log) -> int:
    """The offset behind the last batch of a log."""
    end = log.first_offset
    if log.segments:
        last = replace(log, segments=log.segments[-1:], end_offset=OFFSETS_END)
        _, indexed = offsets_at(last.segments[0])
        low = max([last.segments[0].base_offset, *indexed[-1:].tolist()])  # what is before it need not be read
        end = max(end, low)
        for piece in pieces_of(last, low, OFFSETS_END, OFFSETS_END):
            for read in read_piece(piece):
                end = max(end, int(read.batches.last_offsets.max(initial=-1)) + 1)
    return end


def ended_transactions(log: Log, end_offset: int) -> Ended:
    """Which transactions of a log have ended below an offset, and how.

    What is in segments says their transaction indexes; what is open at the begin of the last one its snapshot of
    producers; what comes then its batches.
    """
    disk = RealDisk()
    segments = tuple(segment for segment in log.segments if segment.base_offset < end_offset)
    aborted: set[Aborted] = set()
    for segment in segments:
        path = segment.beside("txnindex")
        if os.path.exists(path):
            entries = TransactionIndex(disk, path, on_disk=True).entries
            aborted |= {Aborted(*entry[:3]) for entry in entries if entry.last_offset < end_offset}
    first = len(segments) - 1
    while first > 0 and not os.path.exists(segments[first].beside("snapshot")):
        first -= 1
    if first < 0:
        return Ended(end_offset, (), ())
    following = _following.get(log.folder)
    if following is None or not following.goes_on(segments[first:], end_offset):
        open_since: dict[int, int] = {}
        if first > 0:
            producers = read_snapshot(disk, segments[first].beside("snapshot"))
            since = ((one.producer_id, one.current_transaction_first_offset) for one in producers)
            open_since = {producer: offset for producer, offset in since if offset >= 0}
        following = _following[log.folder] = _Following(segments[first], Deciding(open_since))
    following.follow(segments[first:], end_offset)
    return following.deciding.ended(end_offset, aborted)


@dataclass
class _Following:
    """Follows the transactions of a log's last segments. It knows how far it has come, because a stream asks again each
    time that the log has grown."""

    first: Segment
    deciding: Deciding
    end_offset: int = 0
    segment: Segment | None = None
    position: int = 0
    last_batch: tuple[int, bytes] = (0, b"")  # its position and header

    def goes_on(self, segments: Sequence[Segment], end_offset: int) -> bool:
        """Whether these still begin with what was followed. A log may have been truncated, or replaced."""
        inodes = [one.inode for one in segments]
        if self.segment is None or inodes[0] != self.first.inode or self.segment.inode not in inodes:
            return False
        at, header = self.last_batch
        with open(self.segment.path, "rb") as file:
            return end_offset >= self.end_offset and os.pread(file.fileno(), len(header), at) == header

    def follow(self, segments: Sequence[Segment], end_offset: int) -> None:
        assert end_offset >= self.end_offset, f"followed up to {self.end_offset}, which is beyond {end_offset}"
        inodes = [one.inode for one in segments]
        done = 0 if self.segment is None else inodes.index(self.segment.inode)
        for segment in segments[done:]:
            if self.segment is None or segment.inode != self.segment.inode:
                self.position, self.last_batch = 0, (0, b"")
            self.segment = segment
            if self._follow(segment, end_offset):
                break
        self.end_offset = end_offset

    def _follow(self, segment: Segment, end_offset: int) -> bool:
        """Whether the end is reached."""
        with open(segment.path, "rb") as file:
            found = _walk_file(file.fileno(), segment, self.position, segment.size_bytes, offsets_to=end_offset)
            for position, batches in found:
                self.deciding.take(batches)
                if len(batches):
                    at = int(batches.starts[-1])
                    self.last_batch = position + at, batches.data[at : at + HEADER_BYTES].tobytes()
                self.position = position + batches.consumed
                if batches.ended:
                    return True
        return False


_following: dict[str, _Following] = {}  # by folder
