"""Corrupt places of a log: put aside in a folder, or the end of the query.

For each place there are two files, named by where it is: its bytes, and a JSON object that says where it is and what is
wrong. A task that runs again writes the same files again, so they can be counted.
"""

import json
import logging
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from barnabas.pipeline.batches import Array, Corrupt
from barnabas.pipeline.local_files import write_file
from barnabas.pipeline.place import Place
from barnabas.protocol.checksum import crc32c
from barnabas.runtime.counted import counted

logger = logging.getLogger("barnabas.pipeline")

_NAME_MAX = 180

KEPT_BYTES_MAX = 16 << 20
"""Of a corrupt place of gigabytes only the beginning is kept; the JSON says its whole size."""


class CorruptLogError(Exception):
    """A log has a corrupt place, and the query does not say where to put such places."""


def put_aside(folder: str | None, place: Place, data: Array, corrupt: Iterable[Corrupt]) -> None:
    """Put these places aside. CorruptLogError, if there is no folder for them."""
    for one in corrupt:
        about = describe(place, one)
        if folder is None:
            raise CorruptLogError(
                f"{sentence(about)}. The option `aside` names a folder for corrupt batches; then the query goes on"
            )
        logger.warning("%s: skipped, and put aside in %s", sentence(about), folder)
        content = data[one.position : one.position + min(one.size_bytes, KEPT_BYTES_MAX)].tobytes()
        name = _name(about, content)
        write_file(Path(folder, f"{name}.batch"), content)
        write_file(Path(folder, f"{name}.json"), json.dumps(about, indent=1).encode())


def _name(about: dict[str, Any], content: bytes) -> str:
    where = about["position"] if about["position"] is not None else about["offset"]
    if where is None:  # over the wire there is no position, and without a header no offset
        where = f"crc-{crc32c(content):08x}"
    parts = [about["topic"], about["partition"], about["segment"] or "wire", where]
    if about["kind"] == "record":
        parts.append(f"record-{about['offset']}")
    if about["directory"]:
        parts.insert(0, about["directory"].strip("/").replace("/", "_"))
    name = ".".join(map(str, parts))
    if len(name) > _NAME_MAX:  # a topic may have 249 characters, and so may a file
        name = f"{name[:_NAME_MAX]}.{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return name


def describe(place: Place, corrupt: Corrupt) -> dict[str, Any]:
    """Where a corrupt place is, and what is wrong, as JSON has it."""
    return {
        "kind": "record" if corrupt.is_record else "batch",
        "topic": place.topic,
        "partition": place.partition,
        "offset": corrupt.offset if corrupt.offset >= 0 else None,
        "directory": place.directory,
        "segment": place.segment,
        "position": None if place.segment is None else place.position + corrupt.position,
        "size_bytes": corrupt.size_bytes,
        "reason": corrupt.reason,
    }


def sentence(about: dict[str, Any]) -> str:
    """The same for people."""
    where = f"{about['topic']}-{about['partition']}"
    if about["segment"] is not None:
        where = f"{about['directory']}/{where}/{about['segment']} at byte {about['position']}"
    if about["offset"] is not None:
        where += f", offset {about['offset']}"
    return f"{where}: {about['reason']} ({counted(about['size_bytes'], 'byte')})"
