"""The format of a portable backup of committed offsets (`barnabas offsets export`, `import`), version 1. No IO.

A backup is text: JSON objects in UTF-8, one a line, each line ended by a line feed.

    {"kind": "backup", "version": 1, "cluster_id": "…", "time_ms": …, "check": "…"}          the first line
    {"kind": "position", …, "check": "…"}                                                     any number
    {"kind": "end", "positions": …, "check": "…"}                                             the last line

A position is the next record that a group reads:

    group, topic, partition          as names and a number
    offset, leader_epoch, metadata   what the group had committed; leader epoch -1: not known
    topic_id                         of the topic that had the name then; null: the topic was gone, or had no id
    log_start, log_end               of the log then: its first offset, and the one behind its last committed record;
                                     null: the log could not be read
    batch                            the batch that has the record at the offset. If none has it (compaction has taken
                                     it, or it is before the log), the next one; null: there is none yet
    before                           the batch before that one; null: that one is the first of the log

A batch is described by its header (`protocol/record_batch.py`): base_offset, last_offset, crc, timestamp (the largest
of its records, in ms), leader_epoch, attributes, records (their number), bytes; and producer_id, producer_epoch,
base_sequence, if it has a producer id. The CRC-32C in the header covers neither the base offset nor the leader epoch,
so it is the same in each log that has the same batch.

`check` ends each line. It is the CRC-32C, in eight hexadecimal digits, of what comes before `,"check":` in this line
and in all lines before it. So the first line that was changed, or before which a line is missing, can be named.

A reader ignores fields that it does not know, and refuses a file with a larger version. What a reader of version 1 must
know to be right needs a new version.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from barnabas.protocol.batch_layout import HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES
from barnabas.protocol.checksum import crc32c

VERSION = 1

_CHECK = b',"check":"'
_CHECK_BYTES = len(_CHECK) + len('00000000"}')
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)


class BackupError(ValueError):
    """A file is no whole backup. The message names the line."""


class Batch(NamedTuple):
    """What the header of a batch says."""

    base_offset: int
    last_offset: int
    crc: int
    timestamp: int
    leader_epoch: int
    attributes: int
    record_count: int
    size_bytes: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def has_sequence(self) -> bool:
        """Whether an idempotent producer has numbered its records. A broker takes such a batch once only."""
        return self.producer_id >= 0 and self.base_sequence >= 0

    def is_same(self, other: "Batch | None") -> bool:
        """Whether both have the same bytes, wherever they lie: all that the CRC covers is equal."""
        return other is not None and _content(self) == _content(other)


def _content(batch: Batch) -> tuple[int, ...]:
    return (batch.last_offset - batch.base_offset, batch.crc, batch.timestamp, *batch[5:])


class Position(NamedTuple):
    """A committed offset, and how to recognise its place."""

    group: str
    topic: str
    topic_id: str | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    log_start: int | None
    log_end: int | None
    batch: Batch | None
    before: Batch | None


class Backup(NamedTuple):
    """A whole file."""

    cluster_id: str | None
    time_ms: int
    positions: list[Position]


def batches_in(records: bytes | memoryview) -> list[Batch] | None:
    """The headers of the batches of a Fetch; the last batch may be cut off. None: there is one of an older format."""
    found = []
    at = 0
    while at + HEADER_BYTES <= len(records):
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            _,
            timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = HEADER.unpack_from(records, at)
        if magic != MAGIC:
            return None
        size = length + PREFIX_BYTES
        if size < HEADER_BYTES:
            break
        found.append(
            Batch(
                *(base_offset, base_offset + last_offset_delta, crc, timestamp, leader_epoch, attributes, count, size),
                *(producer_id, producer_epoch, base_sequence),
            )
        )
        at += size
    return found


# ---- writing ----


def lines(cluster_id: str | None, time_ms: int, positions: Iterable[Position]) -> Iterator[bytes]:
    """The lines of a file."""
    check = 0
    count = 0

    def line(fields: dict[str, Any]) -> bytes:
        nonlocal check
        content = json.dumps(fields, separators=(",", ":")).encode()[:-1]
        check = crc32c(content, check)
        return b'%b%b%08x"}\n' % (content, _CHECK, check)

    yield line({"kind": "backup", "version": VERSION, "cluster_id": cluster_id, "time_ms": time_ms})
    for position in positions:
        count += 1
        fields = position._asdict()
        for name in ("batch", "before"):
            if fields[name] is not None:
                fields[name] = _batch_fields(fields[name])
        yield line({"kind": "position", **fields})
    yield line({"kind": "end", "positions": count})


def _batch_fields(batch: Batch) -> dict[str, int]:
    fields = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "crc": batch.crc,
        "timestamp": batch.timestamp,
        "leader_epoch": batch.leader_epoch,
        "attributes": batch.attributes,
        "records": batch.record_count,
        "bytes": batch.size_bytes,
    }
    if batch.producer_id >= 0:
        fields["producer_id"] = batch.producer_id
        fields["producer_epoch"] = batch.producer_epoch
        fields["base_sequence"] = batch.base_sequence
    return fields


# ---- reading ----


def read(file: Iterable[bytes]) -> Backup:
    """The backup in these lines. BackupError."""
    check = 0
    number = 0
    first: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    positions: list[Position] = []
    batches: dict[Batch, Batch] = {}  # many groups are in the same batch
    for number, line in enumerate(file, 1):
        if end is not None:
            raise BackupError(f"line {number}: something follows the end")
        if first is not None and not line.endswith(b"\n"):
            raise BackupError(f"line {number}: the file ends within it: it was cut off")
        content = line.rstrip(b"\n")[:-_CHECK_BYTES]
        if first is None:
            first = _first(line)
        check = crc32c(content, check)
        if line != b'%b%b%08x"}\n' % (content, _CHECK, check):
            raise BackupError(f"line {number} was changed, or lines before it are missing")
        fields = _object(line)
        try:
            if number == 1:
                continue
            if fields.get("kind") == "end":
                end = fields
                if end["positions"] != len(positions):
                    raise ValueError("the number of positions is wrong")
            elif fields.get("kind") == "position":
                positions.append(_position(fields, batches))
            else:
                raise ValueError(f"its kind is {fields.get('kind')!r}")
        except KeyError as error:
            raise BackupError(f"line {number}: the field {error} is missing") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise BackupError(f"line {number}: {error}") from None
    if first is None:
        raise BackupError("the file is empty")
    if end is None:
        raise BackupError(f"the file ends behind line {number} without its last line: it was cut off")
    return Backup(first["cluster_id"], first["time_ms"], positions)


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {}


def _first(line: bytes) -> dict[str, Any]:
    fields = _object(line)
    version = fields.get("version")
    if fields.get("kind") != "backup" or not isinstance(version, int):
        raise BackupError('line 1: this is no backup of offsets; one begins with {"kind":"backup","version":1')
    if version > VERSION:
        raise BackupError(
            f"line 1: the backup has version {version}, and this command knows {VERSION}: use a newer barnabas"
        )
    if not isinstance(fields.get("cluster_id"), str | None) or not _is_whole(fields.get("time_ms"), _INT64):
        raise BackupError("line 1: it has no cluster_id and time_ms")
    return fields


def _position(fields: dict[str, Any], batches: dict[Batch, Batch]) -> Position:
    return Position(
        _text(fields, "group"),
        _text(fields, "topic"),
        None if fields["topic_id"] is None else _text(fields, "topic_id"),
        _whole(fields, "partition", range(2**31)),
        _whole(fields, "offset", range(2**63)),
        _whole(fields, "leader_epoch", _INT32),
        _text(fields, "metadata"),
        None if fields["log_start"] is None else _whole(fields, "log_start", _INT64),
        None if fields["log_end"] is None else _whole(fields, "log_end", _INT64),
        _batch(fields["batch"], batches),
        _batch(fields["before"], batches),
    )


def _batch(fields: dict[str, Any] | None, batches: dict[Batch, Batch]) -> Batch | None:
    if fields is None:
        return None
    batch = Batch(
        _whole(fields, "base_offset", _INT64),
        _whole(fields, "last_offset", _INT64),
        _whole(fields, "crc", range(2**32)),
        _whole(fields, "timestamp", _INT64),
        _whole(fields, "leader_epoch", _INT32),
        _whole(fields, "attributes", _INT32),
        _whole(fields, "records", _INT32),
        _whole(fields, "bytes", _INT64),
        *(fields.get(name, -1) for name in ("producer_id", "producer_epoch", "base_sequence")),
    )
    return batches.setdefault(batch, batch)


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise ValueError(f"{name} is no text")
    return str(fields[name])


def _whole(fields: dict[str, Any], name: str, allowed: range) -> int:
    if not _is_whole(fields[name], allowed):
        raise ValueError(f"{name} is {fields[name]!r}")
    return int(fields[name])


def _is_whole(value: Any, allowed: range) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed
