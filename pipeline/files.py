"""Files and folders wherever Spark can write: a few words of Hadoop's file system; and those of this machine alone."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.pipeline.local_files import OutError, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AnyFiles(Protocol):
    """What `Files` and `LocalFiles` both can."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing if there is no such folder."""

    def names_below(self, folder: str) -> list[str]:
        """The files in a folder and in those below it: their paths from it, sorted."""

    def move(self, old: str, new: str) -> None:
        """Give a file or folder another name, in one step. The folders above the new name are made."""

    def read(self, path: str) -> str | None:
        """The text of a small file; None if there is no such file."""

    def write(self, path: str, text: str) -> None:
        """Write a small file, in place of the one that is there. The folders above it are made."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it, if it is there."""

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder with nothing in it."""
        if not self.names(folder):
            self.remove(folder)

    def check_ours(self, folder: str, what: str, *marks: str) -> None:
        """OutError if the folder has files but none of these, by which one knows `what` a run has written."""
        names = self.names(folder)
        if names and not set(marks) & set(names):
            some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            raise OutError(f"{folder} is {what}, but no run has written what is in it ({some}): name another --out")


class Files(AnyFiles):
    """The file system that a path is on. A path is local unless it names another scheme, as in Spark."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        hadoop = spark._jvm.org.apache.hadoop.fs
        self._path: Any = hadoop.Path
        self._read_all: Any = spark._jvm.org.apache.commons.io.IOUtils.toString
        self._system: Any = hadoop.Path(path).getFileSystem(spark._jsc.hadoopConfiguration())

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """What is in a folder, with the bytes of each file."""
        if not self.exists(folder):
            return {}
        return {one.getPath().getName(): one.getLen() for one in self._system.listStatus(self._path(folder))}

    def names_below(self, folder: str) -> list[str]:
        if not self.exists(folder):
            return []
        root = self._system.makeQualified(self._path(folder)).toUri()
        found, left = [], self._system.listFiles(self._path(folder), True)
        while left.hasNext():
            found.append(str(root.relativize(left.next().getPath().toUri()).getPath()))
        return sorted(found)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, where they are missing."""
        self._system.mkdirs(self._path(path))

    def move(self, old: str, new: str) -> None:
        target = self._path(new)
        self._system.mkdirs(target.getParent())
        if not self._system.rename(self._path(old), target):
            raise OSError(f"{old} could not be renamed to {new}")

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        stream = self._system.open(self._path(path))
        try:
            return str(self._read_all(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        stream = self._system.create(self._path(path), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)


class LocalFiles(AnyFiles):
    """The same without Spark, for paths of this machine. Beside `NAME` Hadoop keeps its checksums, as `.NAME.crc`."""

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(folder) if not _is_checksums(name))
        return []

    def names_below(self, folder: str) -> list[str]:
        found = (os.path.relpath(f"{place}/{name}", folder) for place, _, names in os.walk(folder) for name in names)
        return sorted(name for name in found if not _is_checksums(os.path.basename(name)))

    def move(self, old: str, new: str) -> None:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        with suppress(FileNotFoundError):
            os.replace(_checksums(old), _checksums(new))
        os.replace(old, new)

    def read(self, path: str) -> str | None:
        with suppress(FileNotFoundError):
            return Path(path).read_text()
        return None

    def write(self, path: str, text: str) -> None:
        with suppress(FileNotFoundError):
            os.remove(_checksums(path))  # they are not those of this text
        write_file(Path(path), text.encode())

    def remove(self, path: str) -> None:
        for one in (path, _checksums(path)):
            if os.path.isdir(one) and not os.path.islink(one):
                shutil.rmtree(one)
            else:
                with suppress(FileNotFoundError):
                    os.remove(one)


def _checksums(path: str) -> str:
    folder, name = os.path.split(path)
    return f"{folder}/.{name}.crc"


def _is_checksums(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")
