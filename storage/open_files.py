"""A bounded number of open files, of which the least recently used is closed first, and the ranges of them that answers
refer to.
"""

import logging
from asyncio import Transport
from collections.abc import Callable

from barnabas.protocol.message import Reference
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.ports import TOO_MANY_OPEN, Disk, File, Network
from barnabas.storage.index import IndexMemory

logger = logging.getLogger("barnabas.storage")

MORE_FILES_MS = 60_000.0  # how often `keep_more` is due
_RESERVE_MIN, _RESERVE_MAX = 32, 256


class OpenFilesShares(NamedTuple):
    """How many descriptors are for what."""

    segments: int  # kept open by OpenFiles
    connections: int
    reserve: int  # for files that are open for a moment (indexes, snapshots, checkpoints), syncs, the tree, listeners


def share_out(open_files_max: int) -> OpenFilesShares:
    """Divide what the process may have open, so that clients cannot take from the logs what they need."""
    reserve = min(max(open_files_max // 8, _RESERVE_MIN), _RESERVE_MAX)
    segments = max((open_files_max - reserve) // 3, 4)
    return OpenFilesShares(segments, max(open_files_max - reserve - segments, 4), reserve)


class _Referenced:
    """An open file that ranges refer to. `size` is where it was cut off, if that has happened since."""

    __slots__ = ("count", "file", "is_pooled", "size")

    def __init__(self, file: File) -> None:
        self.file = file
        self.count = 0
        self.is_pooled = True
        self.size = 1 << 63


class FileRange(Reference):
    """Bytes of a file. The file stays open until `release`, even if it is renamed, removed or leaves the pool.

    `read` and `send` take bytes from the front; the length is what is left. A second `release` does no harm.
    """

    __slots__ = ("_files", "_length", "_on_error", "_position", "_referenced")

    def __init__(
        self,
        files: "OpenFiles",
        referenced: _Referenced,
        position: int,
        length: int,
        on_error: Callable[[OSError], None],
    ) -> None:
        self._files = files
        self._referenced: _Referenced | None = referenced
        self._position = position
        self._length = length
        self._on_error = on_error
        referenced.count += 1

    def __len__(self) -> int:
        return self._length

    def read(self, length: int) -> bytes | None:
        """The next bytes, `length` of them or what is left. None if the file was cut off or the disk failed."""
        referenced = self._referenced
        assert referenced is not None, "read after release"
        length = min(length, self._length)
        if self._position + length > referenced.size:
            return None
        try:
            data = referenced.file.read(self._position, length)
        except OSError as error:
            self._on_error(error)
            return None
        if len(data) < length:
            return None
        self._take(length)
        return data

    def send(self, network: Network, transport: Transport, length: int) -> int:
        """Send the next bytes without reading them, `length` at most; how many were sent. If it is 0, try `read`."""
        referenced = self._referenced
        assert referenced is not None, "sent after release"
        length = min(length, self._length)
        if self._position + length > referenced.size:
            return 0
        sent = network.send_file(transport, referenced.file, self._position, length)
        self._take(sent)
        return sent

    def _take(self, length: int) -> None:
        self._position += length
        self._length -= length

    def release(self) -> None:
        """Let go of the file."""
        referenced, self._referenced = self._referenced, None
        if referenced is not None:
            self._files.release(referenced)

    def __del__(self) -> None:  # a range that never became an answer
        self.release()


class OpenFiles:
    """Files by path. A broker has many thousand segments and works on few of them at a time.

    Who looks into `opened`, and asks `get` only for what is missing, does not count as a user of late: it is quicker.
    """

    __slots__ = ("_limit", "_limit_max", "_lingering", "_referenced", "disk", "indexes", "opened")

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        assert limit > 0
        self.disk = disk
        self.indexes = IndexMemory()
        self._limit = self._limit_max = limit
        self.opened: dict[str, File] = {}  # the last that `get` was asked for is the last here
        self._referenced: dict[File, _Referenced] = {}
        self._lingering = 0  # files that have left the pool and are open because a range refers to them

    def __len__(self) -> int:
        return len(self.opened) + self._lingering

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file, valid until the next call. OSError as `Disk.open`."""
        file = self.opened.pop(path, None)
        if file is None:
            try:
                file = self.disk.open(path, create=create)
            except OSError as error:
                if not self.make_room(error):
                    raise
                file = self.disk.open(path, create=create)
            if len(self) >= self._limit:
                self._close_oldest()
        self.opened[path] = file
        return file

    def reference(self, path: str, position: int, length: int, on_error: Callable[[OSError], None]) -> FileRange | None:
        """A range of a file. None if ranges refer to half of the files that may be open already.

        `on_error` is called if the disk fails when the range is read.
        """
        file = self.get(path)
        referenced = self._referenced.get(file)
        if referenced is None:
            if len(self._referenced) >= max(1, self._limit // 2):
                return None
            referenced = self._referenced[file] = _Referenced(file)
        return FileRange(self, referenced, position, length, on_error)

    def release(self, referenced: _Referenced) -> None:
        """One range less refers to the file."""
        assert referenced.count > 0, "no range refers to the file"
        referenced.count -= 1
        if not referenced.count:
            del self._referenced[referenced.file]
            if not referenced.is_pooled:
                self._lingering -= 1
                referenced.file.close()

    def cut(self, path: str, size: int) -> None:
        """Truncate a file. A range that reaches beyond can never be read again, even if the file grows."""
        file = self.get(path)
        file.truncate(size)
        referenced = self._referenced.get(file)
        if referenced is not None:
            referenced.size = min(referenced.size, size)
            self.close(path)  # a new range opens the file again, and may refer to what is written there later

    def make_room(self, error: OSError) -> bool:
        """If there are no more descriptors, close some and keep half as many from now on. Whether to try again."""
        idle = [path for path, file in self.opened.items() if file not in self._referenced]
        if error.errno not in TOO_MANY_OPEN or not idle:
            return False
        self._limit = max(1, len(self) // 2)
        logger.warning("too many open files: keeping %d open; raise the limit (ulimit -n)", self._limit)
        for path in idle[: len(self) - self._limit + 1]:
            self.close(path)
        return True

    def keep_more(self) -> None:
        """Some time after descriptors ran out: keep twice as many open again. Who had them may have given them back."""
        self._limit = min(self._limit * 2, self._limit_max)

    def _close_oldest(self) -> None:
        for _ in range(len(self.opened)):
            path, file = next(iter(self.opened.items()))
            del self.opened[path]
            if file not in self._referenced:
                file.close()
                return
            self.opened[path] = file  # it is in use

    def _leave_pool(self, file: File) -> None:
        """Close it, or let the last range that refers to it close it."""
        referenced = self._referenced.get(file)
        if referenced is None:
            file.close()
        else:
            referenced.is_pooled = False
            self._lingering += 1

    def close(self, path: str) -> None:
        file = self.opened.pop(path, None)
        if file is not None:
            self._leave_pool(file)

    def rename(self, source: str, target: str) -> None:
        """Rename a file on disk; it stays open."""
        self.disk.rename(source, target)
        self.close(target)
        file = self.opened.pop(source, None)
        if file is not None:
            self.opened[target] = file

    def close_folder(self, directory: str) -> None:
        prefix = directory + "/"
        for path in [path for path in self.opened if path.startswith(prefix)]:
            self.close(path)

    def close_all(self) -> None:
        for path in list(self.opened):
            self.close(path)
