"""A bounded number of open files, the least recently used closed first."""

import errno
import logging

from barnabas.runtime.ports import Disk, File

logger = logging.getLogger("barnabas.storage")

TOO_MANY = (errno.EMFILE, errno.ENFILE)


class OpenFiles:
    """Files by path. A broker has many thousand segments and works on few of them at a time."""

    __slots__ = ("_files", "_limit", "disk")

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        assert limit > 0
        self.disk = disk
        self._limit = limit
        self._files: dict[str, File] = {}

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file, valid until the next call. OSError as `Disk.open`."""
        file = self._files.pop(path, None)
        if file is None:
            try:
                file = self.disk.open(path, create=create)
            except OSError as error:
                if not self.make_room(error):
                    raise
                file = self.disk.open(path, create=create)
            if len(self._files) >= self._limit:
                oldest = next(iter(self._files))
                self._files.pop(oldest).close()
        self._files[path] = file
        return file

    def make_room(self, error: OSError) -> bool:
        """If the system has no more descriptors, keep half as many from now on; whether to try again is worth it."""
        if error.errno not in TOO_MANY or not self._files:
            return False
        self._limit = max(1, len(self._files) // 2)
        logger.warning("too many open files: keeping %d open; raise the limit (ulimit -n)", self._limit)
        for path in list(self._files)[: len(self._files) - self._limit + 1]:
            self.close(path)
        return True

    def close(self, path: str) -> None:
        """Close one file, if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Rename a file on disk; it stays open."""
        self.disk.rename(source, target)
        self.close(target)
        file = self._files.pop(source, None)
        if file is not None:
            self._files[target] = file

    def close_folder(self, directory: str) -> None:
        """Close every file of a folder."""
        prefix = directory + "/"
        for path in [path for path in self._files if path.startswith(prefix)]:
            self.close(path)

    def close_all(self) -> None:
        """Close everything."""
        for file in self._files.values():
            file.close()
        self._files.clear()
