"""Data directories for the benches of the pipeline: commits of many groups, and records of a topic."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path

from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol import record_batch, uuids
from barnabas.protocol.batch_layout import INT64
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import PlainRecords, Record

PARTITIONS = 8
SEGMENT_BYTES = 256 << 20
INDEX_INTERVAL_BYTES = 4096
GROUPS = 2000
TOPIC_ID = bytes(range(16))
START_MS = 1_700_000_000_000
RECORDS_TOPIC = "events"
RECORD_BYTES = 1000
RECORDS_PER_BATCH = 100
RECORD_TEMPLATES = 500
# A broker writes one when it begins a segment; without them a reader looks for open transactions in the whole log.
NO_PRODUCERS = struct.pack(">hIi", 1, crc32c(bytes(4)), 0)


def write_commits(folder: Path, count: int, per_batch: int) -> None:
    """A data directory with so many commits, in all partitions alike, with offset indexes."""
    rng = random.Random(1)
    templates = []
    for number in range(GROUPS):
        records = PlainRecords()
        offsets = {
            partition: CommittedOffset(rng.randrange(1 << 40), 3, "", START_MS + number, -1, TOPIC_ID)
            for partition in range(per_batch)
        }
        OffsetCommits(f"group-{number:04d}", {f"topic-of-orders-{number % 50:02d}": offsets}).append_to(records)
        templates.append(record_batch.build_plain(records, START_MS + number).data)
    _write_topic(folder, OFFSETS_TOPIC, count, per_batch, templates, rng)


def record_count(count: int, per_batch: int) -> int:
    """How many records `count` become, since all partitions have as many whole batches."""
    return PARTITIONS * (-(-(count // PARTITIONS) // per_batch)) * per_batch


def write_records(folder: Path, size_bytes: int) -> int:
    """A data directory with so many bytes of records of 1 KB, in zstd batches of a hundred, if it is not there.

    Returns their number.
    """
    count = size_bytes // RECORD_BYTES
    if folder.exists():
        return record_count(count, RECORDS_PER_BATCH)
    rng = random.Random(1)
    templates = []
    for number in range(RECORD_TEMPLATES):
        records = []
        for index in range(RECORDS_PER_BATCH):
            key = b"customer-%06d" % rng.randrange(1_000_000)
            order = b'{"order": %d, "amount": %d, "note": "' % (number * 100 + index, rng.randrange(10_000))
            note = rng.randbytes((RECORD_BYTES - len(order) - len(key) - 2) // 2).hex().encode()
            records.append(Record(-1, START_MS + number, key, order + note + b'"}'))
        templates.append(record_batch.build(records, compression=Compression.ZSTD))
    _write_topic(folder, RECORDS_TOPIC, count, RECORDS_PER_BATCH, templates, rng)
    return record_count(count, RECORDS_PER_BATCH)


def _write_topic(
    folder: Path, topic: str, count: int, per_batch: int, templates: Sequence[bytearray], rng: random.Random
) -> None:
    ends = {}
    for partition in range(PARTITIONS):
        log = folder / f"{topic}-{partition}"
        log.mkdir(parents=True)
        offset, end = 0, count // PARTITIONS
        while offset < end:
            offset = _write_segment(log, offset, end, per_batch, templates, rng)
        ends[partition] = offset
        _write_topic_id(log)
    lines = "".join(f"{topic} {partition} {end}\n" for partition, end in ends.items())
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (folder / name).write_text(f"0\n{len(ends)}\n{lines}")
    _write_properties(folder)


def write_logs(folder: Path, logs: dict[str, bytes]) -> None:
    """A data directory with these logs, by `topic-partition`, each in one segment."""
    for name, content in logs.items():
        log = folder / name
        log.mkdir(parents=True)
        (log / f"{0:020d}.log").write_bytes(content)
        _write_topic_id(log)
    _write_properties(folder)


def _write_topic_id(log: Path) -> None:
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuids.to_text(TOPIC_ID)}")


def _write_properties(folder: Path) -> None:
    (folder / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    ids = ("cluster.id=AAAAAAAAAAAAAAAAAAAAAQ", "directory.id=AAAAAAAAAAAAAAAAAAAAAg")
    (folder / "meta.properties").write_text("\n".join(("version=1", "node.id=1", *ids, "")))


def _write_segment(
    log: Path, base: int, end: int, per_batch: int, templates: Sequence[bytearray], rng: random.Random
) -> int:
    offset, position, indexed = base, 0, 0
    entries = bytearray()
    with (log / f"{base:020d}.log").open("wb", buffering=1 << 20) as file:
        while offset < end and position < SEGMENT_BYTES:
            batch = templates[int(rng.random() * len(templates))]
            INT64.pack_into(batch, 0, offset)  # the checksum does not cover it
            file.write(batch)
            if position - indexed > INDEX_INTERVAL_BYTES:
                entries += (offset + per_batch - 1 - base).to_bytes(4, "big") + position.to_bytes(4, "big")
                indexed = position
            position += len(batch)
            offset += per_batch
    (log / f"{base:020d}.index").write_bytes(entries)
    if base:
        (log / f"{base:020d}.snapshot").write_bytes(NO_PRODUCERS)
    return offset
