"""Where a log ends that nobody has open, by the headers of its batches. Nothing is changed.

Checkpoints do not say it after a kill: the files go on behind them.
"""

import re
from contextlib import suppress

from barnabas.protocol.errors import CorruptBatchError
from barnabas.runtime.ports import Disk
from barnabas.storage.batch_headers import stored_batches
from barnabas.storage.directory_contents import LogFolder
from barnabas.storage.index import OffsetIndex
from barnabas.storage.open_files import OpenFiles

_SEGMENT = re.compile(r"(\d{20})\.log\Z")


def end_of_log(disk: Disk, directory: str, folder: LogFolder) -> tuple[int, int] | None:
    """(leader epoch, offset) of the end of the log in a folder of this data directory; None: it has no records.

    A batch that is not whole, at which recovery would cut, does not count.
    """
    epoch = folder.leader_epochs[-1][0] if folder.leader_epochs else -1
    bases = sorted(int(found[1]) for found in map(_SEGMENT.match, folder.files) if found)
    for base_offset in reversed(bases):  # the last one may have no batch yet
        found = _last_batch(disk, f"{directory}/{folder.name}/{base_offset:020d}", base_offset)
        if found is not None:
            return max(epoch, found[0]), max(bases[-1], found[1])
    return None


def _last_batch(disk: Disk, stem: str, base_offset: int) -> tuple[int, int] | None:
    """The leader epoch of a segment's last whole batch, and the offset behind it."""
    files = OpenFiles(disk, 1)
    path = f"{stem}.log"
    try:
        size = files.get(path).size()
        index = OffsetIndex(disk, f"{stem}.index", base_offset)
        begin = index.last_position() if index.load(size) else 0
        found = _last_from(files, path, begin, size)
        return found if found is not None or begin == 0 else _last_from(files, path, 0, size)
    finally:
        files.close_all()


def _last_from(files: OpenFiles, path: str, begin: int, size: int) -> tuple[int, int] | None:
    found = None
    with suppress(CorruptBatchError):  # the end that a crash has torn
        for batch in stored_batches(files, path, begin, size):
            found = batch.partition_leader_epoch, batch.last_offset + 1
    return found
