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
    record                           the first record at the offset or behind it; missing if `batch` has none
    record_before                    the last record before the offset; missing if neither batch has one

A batch is described by its header (`protocol/record_batch.py`): base_offset, last_offset, crc, timestamp (the largest
of its records, in ms), leader_epoch, attributes, records (their number), bytes; and producer_id, producer_epoch,
base_sequence, if it has a producer id. The CRC-32C in the header covers neither the base offset nor the leader epoch,
so it is the same in each log that has the same batch.

A record is described by its timestamp in ms, and the CRC-32C of: key, value, the number of headers as int32, and of
each header its name and its value; each of them as its length in bytes (int32; -1: null) and its bytes. So it is the
same wherever the record is, also in another batch. Records of control batches do not count, because no consumer gets
them.

`check` ends each line. It is the CRC-32C, in eight hexadecimal digits, of what comes before `,"check":` in this line
and in all lines before it. So the first line that was changed, or before which a line is missing, can be named.

A reader ignores fields that it does not know, and refuses a file with a larger version. What a reader of version 1 must
know to be right needs a new version.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from barnabas.protocol.batch_layout import CONTROL, HEADER, HEADER_BYTES, INT32, MAGIC, PREFIX_BYTES
from barnabas.protocol.batch_records import Record
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.named_tuple import NamedTuple

VERSION = 1

_CHECK = b',"check":"'
_CHECK_BYTES = len(_CHECK) + len('00000000"}')
_YEAR_10000_MS = 253_402_300_800_000  # no time of later can be shown
_BATCH_FIELDS = ("base_offset", "last_offset", "crc", "timestamp", "leader_epoch", "attributes", "records", "bytes")
_PRODUCER_FIELDS = ("producer_id", "producer_epoch", "base_sequence")


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

    @property
    def is_control(self) -> bool:
        """Whether its records are for brokers only."""
        return bool(self.attributes & CONTROL)

    def is_same(self, other: "Batch | None") -> bool:
        """Whether both have the same bytes, wherever they lie: all that the CRC covers is equal."""
        return other is not None and _content(self) == _content(other)


def _content(batch: Batch) -> tuple[int, ...]:
    return (batch.last_offset - batch.base_offset, batch.crc, batch.timestamp, *batch[5:])


class Mark(NamedTuple):
    """How a record is recognised."""

    timestamp: int
    crc: int


def mark_of(record: Record) -> Mark:
    parts = bytearray()
    for text in (record.key, record.value):
        _add(parts, text)
    headers = record.headers or []
    parts += INT32.pack(len(headers))
    for name, value in headers:
        _add(parts, name.encode("utf-8", "surrogateescape"))
        _add(parts, value)
    return Mark(record.timestamp, crc32c(parts))


def _add(parts: bytearray, text: bytes | None) -> None:
    parts += INT32.pack(-1 if text is None else len(text))
    parts += text or b""


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
    record: Mark | None = None
    record_before: Mark | None = None


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
        for name in ("record", "record_before"):
            if (mark := fields.pop(name)) is not None:
                fields[name] = mark._asdict()
        yield line({"kind": "position", **fields})
    yield line({"kind": "end", "positions": count})


def _batch_fields(batch: Batch) -> dict[str, int]:
    fields = dict(zip(_BATCH_FIELDS, batch))
    if batch.producer_id >= 0:
        fields.update(zip(_PRODUCER_FIELDS, batch[len(_BATCH_FIELDS) :]))
    return fields


# ---- reading ----


def is_backup(first_line: bytes) -> bool:
    """Whether a file that begins so is a backup, of any version."""
    return _object(first_line).get("kind") == "backup"


def read(file: Iterable[bytes]) -> Backup:
    """The backup in these lines. BackupError."""
    check = 0
    number = 0
    first: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    positions: list[Position] = []
    batches: dict[tuple[int, ...], Batch] = {}
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
    except (ValueError, RecursionError):  # a line of nothing but brackets
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
    time_ms = fields.get("time_ms")
    is_time = type(time_ms) is int and 0 <= time_ms < _YEAR_10000_MS
    if not isinstance(fields.get("cluster_id"), str | None) or not is_time:
        raise BackupError("line 1: it has no cluster_id and time_ms")
    return fields


def _position(fields: dict[str, Any], batches: dict[tuple[int, ...], Batch]) -> Position:
    texts = [fields[name] for name in ("group", "topic", "topic_id", "metadata")]
    for name, text in zip(("group", "topic", "topic_id", "metadata"), texts):
        if type(text) is not str and not (text is None and name == "topic_id"):
            raise ValueError(f"{name} is no text")
    # Many lines have the same texts.
    group, topic, topic_id, metadata = (None if text is None else sys.intern(text) for text in texts)
    partition, offset, log_start, log_end = (fields[name] for name in ("partition", "offset", "log_start", "log_end"))
    _check_whole("partition", partition, 0)
    _check_whole("offset", offset, 0)
    _check_whole("leader_epoch", fields["leader_epoch"])
    if log_start is not None or log_end is not None:
        _check_whole("log_start", log_start)
        _check_whole("log_end", log_end)
    assert group is not None
    assert topic is not None
    assert metadata is not None
    return Position(
        *(group, topic, topic_id, partition, offset, fields["leader_epoch"], metadata, log_start, log_end),
        *(_batch(fields["batch"], batches), _batch(fields["before"], batches)),
        *(_mark(fields.get("record")), _mark(fields.get("record_before"))),
    )


def _mark(fields: dict[str, Any] | None) -> Mark | None:
    if fields is None:
        return None
    _check_whole("timestamp", fields["timestamp"])
    _check_whole("crc", fields["crc"], 0)
    return Mark(fields["timestamp"], fields["crc"])


def _batch(fields: dict[str, Any] | None, batches: dict[tuple[int, ...], Batch]) -> Batch | None:
    if fields is None:
        return None
    values = tuple([fields[name] for name in _BATCH_FIELDS] + [fields.get(name, -1) for name in _PRODUCER_FIELDS])
    known = batches.get(values)  # many groups are in the same batch
    if known is None:
        for name, value in zip((*_BATCH_FIELDS, *_PRODUCER_FIELDS), values):
            _check_whole(name, value)
        known = Batch(*values)
        batches[known] = known  # equal to `values`
    return known


def _check_whole(name: str, value: Any, least: int = -(2**63)) -> None:
    if type(value) is not int or not least <= value < 2**63:  # a bool is no number here
        raise ValueError(f"{name} is {value!r}")
