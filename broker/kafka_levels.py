"""The levels of features on which a KRaft cluster has agreed, from its log of metadata in an adopted directory.

With them its groups of the consumer protocol (KIP-848) go on when the directory is served here, and its producers use
the version of transactions that they know. A directory without such a log is of a Kafka that has no features.
"""

import logging
import re
import struct
from collections.abc import Iterable, Iterator

from barnabas.broker.adoption import METADATA_FOLDER
from barnabas.cluster.features import SUPPORTED, Levels
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ProtocolError
from barnabas.protocol.varint import decode_unsigned
from barnabas.runtime.ports import Disk, read_file
from barnabas.storage.directory_contents import DirectoryContents

logger = logging.getLogger("barnabas.broker")

_SNAPSHOT = re.compile(r"(\d{20})-\d{10}\.checkpoint\Z")  # up to, not including, this offset
_SEGMENT = re.compile(r"\d{20}\.log\Z")
_FRAME_VERSION = 1
_FEATURE_LEVEL = 12  # the key of a FeatureLevelRecord
_INT16 = struct.Struct(">h")


def read_levels(disk: Disk, found: Iterable[DirectoryContents]) -> Levels:
    """The levels in these directories, as far as they are supported here; empty if they do not say any."""
    levels: dict[str, int] = {}
    for contents in found:
        folder = f"{contents.path}/{METADATA_FOLDER}"
        if METADATA_FOLDER in contents.names and disk.is_directory(folder):
            try:
                levels.update(_updates(disk, folder))
            except (OSError, ProtocolError, ValueError) as error:
                logger.warning("cannot read the levels of Kafka's features in %s: %s", folder, error)
    return {
        name: min(level, SUPPORTED[name].last)
        for name, level in levels.items()
        if name in SUPPORTED and level and level >= SUPPORTED[name].first
    }


def _updates(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    """Each level that was finalised, oldest first: in the newest snapshot, then in the log behind it."""
    names = disk.list_directory(folder)
    start = 0
    snapshot = max((match for match in map(_SNAPSHOT.match, names) if match), key=lambda match: match[0], default=None)
    if snapshot is not None:
        start = int(snapshot[1])
        yield from _levels_in(disk, f"{folder}/{snapshot[0]}", 0)
    for name in filter(_SEGMENT.match, names):
        yield from _levels_in(disk, f"{folder}/{name}", start)


def _levels_in(disk: Disk, path: str, start: int) -> Iterator[tuple[str, int]]:
    for header, batch in record_batch.batches(memoryview(read_file(disk, path))):
        if header.is_control or header.base_offset < start:
            continue
        for record in record_batch.records(batch):
            level = None if record.value is None else _feature_level(record.value)
            if level is not None:
                yield level


def _feature_level(value: bytes | memoryview) -> tuple[str, int] | None:
    """The feature and its level; None for other records."""
    frame, position = decode_unsigned(value, 0)
    key, position = decode_unsigned(value, position)
    if (frame, key) != (_FRAME_VERSION, _FEATURE_LEVEL):
        return None
    _, position = decode_unsigned(value, position)  # the version of the record: there is one
    length, position = decode_unsigned(value, position)
    end = position + length - 1
    return bytes(value[position:end]).decode(), _INT16.unpack_from(value, end)[0]
