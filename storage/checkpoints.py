"""The small text files of a data directory, in Kafka's formats (`storage/log_format.md` has them all).

A file that cannot be read is never guessed at: `CheckpointError` says which file and which line.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice, pairwise

from barnabas.protocol import uuids
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import Disk, File, read_file

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
BOOT_ID = ".boot_id"  # not Kafka's: of the machine when a broker last used the directory
CLOCK_DOUBT = ".clock_doubt"  # not Kafka's: for how long no offset expires by a clock that may be wrong
TREE_MARK = ".tree_mark"  # not Kafka's: what its broker knows of the tree (`TreeKnowledge`)

_SHOWN_CHARACTERS_MAX = 80
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
_INT64_MAX = 2**63 - 1


class CheckpointError(ValueError):
    """A file of the data directory that does not have the form it should have."""


def read_text(disk: Disk, path: str) -> str | None:
    """The whole file, or None when there is none."""
    try:
        return read_file(disk, path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text") from error


def write_text(disk: Disk, path: str, text: str) -> None:
    """Replace the file. A crash leaves the old one or the new one whole."""
    temporary = path + ".tmp"
    with closing(disk.open(temporary, create=True)) as file:
        file.truncate(0)
        file.write(0, text.encode())
        file.sync()
    disk.rename(temporary, path)
    disk.sync_directory(path.rpartition("/")[0] or "/")


def write_unsynced(disk: Disk, path: str, data: bytes) -> None:
    """Overwrite the file. A crash may leave any part of it."""
    with closing(disk.open(path, create=True)) as file:
        file.truncate(0)
        file.write(0, data)


def read_clean_epoch(disk: Disk, path: str) -> int:
    """The epoch in the marker of a clean stop. -1: it does not say it, as before Kafka 3.7, and is a marker even so."""
    try:
        return int(json.loads(read_text(disk, path) or "{}")["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def write_clean_epoch(disk: Disk, path: str, broker_epoch: int) -> None:
    """Write the marker of a clean stop, as Kafka does (KIP-966)."""
    write_text(disk, path, f'{{"version":0,"brokerEpoch":{broker_epoch}}}')


def read_boot_id(disk: Disk, path: str) -> str:
    """What `write_boot_id` has written; "" or another text when that was lost, or cannot be read."""
    try:
        return read_text(disk, path) or ""
    except (CheckpointError, OSError):
        return ""


def write_boot_id(disk: Disk, path: str) -> None:
    """Write the machine's boot id. It is not synced: if it is lost, so may be records, and that is what it must say."""
    write_unsynced(disk, path, disk.boot_id().encode())


class TreeKnowledge(NamedTuple):
    """What a broker knows of its tree, so that it knows an older copy of it, and which numbers that gives again."""

    mark: int = 0  # the last one that it has made in the tree
    leader_epoch: int = -1  # the largest one of all partitions, of which it was told
    producer_id: int = -1  # the last one of the blocks that it was given


NO_TREE_KNOWLEDGE: TreeKnowledge = TreeKnowledge()


def read_tree_knowledge(disk: Disk, path: str) -> TreeKnowledge:
    """What `write_in_each` has written of it; nothing where that was lost, or cannot be read."""
    try:
        lines = (read_text(disk, path) or "").splitlines()
    except (CheckpointError, OSError):
        lines = []
    # A file of an earlier release has the mark only.
    found = dict(zip(TreeKnowledge._fields, map(str.strip, lines)))
    return TreeKnowledge(**{name: int(number) for name, number in found.items() if _INTEGER.match(number)})


def read_clock_doubt(disk: Disk, path: str) -> int:
    """For how many milliseconds the clock was in doubt; 0 where that was lost, or cannot be read."""
    try:
        return max(integer_of((read_text(disk, path) or "").strip()) or 0, 0)
    except (CheckpointError, OSError):
        return 0


def write_in_each(
    disk: Disk, paths: Iterable[str], numbers: Iterable[int], failed: Callable[[str, OSError], None]
) -> list[File]:
    """Write the same numbers to files of several directories; `failed` is told of those that cannot be written."""
    files: list[File] = []
    numbers = tuple(numbers)
    for path in paths:
        try:
            files.append(write_numbers(disk, path, numbers))
        except OSError as error:
            failed(path, error)
    return files


def write_numbers(disk: Disk, path: str, numbers: Iterable[int]) -> File:
    """Write one in each line, and return the open file, because only the caller knows whether it must be synced."""
    file = disk.open(path, create=True)
    try:
        file.write(0, b"".join(b"%-19d\n" % number for number in numbers))  # always as long: no crash leaves a part
    except BaseException:
        file.close()
        raise
    return file


def _shown(text: str) -> str:
    """The line as an error shows it, because damaged lines can be long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…")


def _read_lines(disk: Disk, path: str, fields: int) -> list[list[str]]:
    text = read_text(disk, path)
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if lines[0] != "0":
        raise CheckpointError(f"{path}: line 1: version {_shown(lines[0])} is not known")
    if len(lines) < 2 or integer_of(lines[1]) != len(lines) - 2:
        raise CheckpointError(f"{path}: line 2: the number of entries does not match the lines that follow")
    rows = []
    for number, line in enumerate(lines[2:], 3):
        row = line.split()
        if len(row) != fields:
            raise CheckpointError(f"{path}: line {number}: {_shown(line)} does not have {fields} fields")
        rows.append(row)
    return rows


def integer_of(text: str) -> int | None:
    """A number of 64 bits as these files have it; None for anything else (Python's `int` takes more)."""
    number = int(text) if _INTEGER.match(text) else None
    return None if number is None or abs(number) > _INT64_MAX else number


def _integer(path: str, row: list[str], index: int) -> int:
    """A partition, an offset or an epoch: none of them is negative in these files."""
    number = integer_of(row[index])
    if number is None or number < 0:
        raise CheckpointError(f"{path}: {_shown(row[index])} in {_shown(' '.join(row))} is no number from 0 on")
    return number


def read_offsets(disk: Disk, path: str) -> dict[tuple[str, int], int]:
    """Offsets by (topic, partition); empty when there is no file."""
    return {(row[0], _integer(path, row, 1)): _integer(path, row, 2) for row in _read_lines(disk, path, 3)}


def offsets_texts(offsets: Mapping[tuple[str, int], int], lines_max: int) -> Iterator[str]:
    """What `write_offsets` writes, in pieces of so many lines."""
    yield f"0\n{len(offsets)}\n"
    items = iter(offsets.items())
    while lines := [f"{topic} {partition} {offset}\n" for (topic, partition), offset in islice(items, lines_max)]:
        yield "".join(lines)


def write_offsets(disk: Disk, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    write_text(disk, path, "".join(offsets_texts(offsets, len(offsets))))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(leader epoch, start offset) in the order of the file; empty when there is none."""
    entries = [(_integer(path, row, 0), _integer(path, row, 1)) for row in _read_lines(disk, path, 2)]
    for (left_epoch, left_start), (right_epoch, right_start) in pairwise(entries):
        if left_epoch >= right_epoch or left_start >= right_start:
            raise CheckpointError(f"{path}: epochs and offsets must rise")
    return entries


def epochs_text(epochs: Iterable[tuple[int, int]]) -> str:
    """The file that `read_epochs` reads."""
    lines = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    return f"0\n{len(lines)}\n" + "".join(lines)


def read_properties(disk: Disk, path: str) -> dict[str, str] | None:
    """`key=value` lines, comments left out; None when there is no file."""
    text = read_text(disk, path)
    if text is None:
        return None
    properties = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            key, equals, value = stripped.partition("=")
            if not equals:
                raise CheckpointError(f"{path}: line {number}: {_shown(line)} is not key=value")
            properties[key.strip()] = value.strip()
    return properties


def write_properties(disk: Disk, path: str, properties: Mapping[str, str]) -> None:
    write_text(disk, path, "".join(f"{key}={value}\n" for key, value in properties.items()))


def read_partition_metadata(disk: Disk, path: str) -> bytes | None:
    """The topic id, or None when there is no file."""
    text = read_text(disk, path)
    if text is None:
        return None
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if values.get("version") != "0" or "topic_id" not in values:
        raise CheckpointError(f"{path}: expected the lines 'version: 0' and 'topic_id: …'")
    try:
        return uuids.from_text(values["topic_id"])
    except ValueError as error:
        raise CheckpointError(f"{path}: {_shown(values['topic_id'])} is not a topic id") from error


def write_partition_metadata(disk: Disk, path: str, topic_id: bytes) -> None:
    """Write the topic id; not synced."""
    write_unsynced(disk, path, f"version: 0\ntopic_id: {uuids.to_text(topic_id)}".encode())
