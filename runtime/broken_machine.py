"""A disk and a network that fail when a test says so. Brokers without control have the ones that these extend.

The disk of tests need not sync either: what they write is gone after a power cut.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence

from barnabas.runtime.disk import RealDisk, RealFile, descriptor_of
from barnabas.runtime.network import KeptListeners
from barnabas.runtime.ports import Buffer, File

DiskFault = Callable[[str], OSError | None]  # what a change of the file or folder at a path meets; None: nothing


class BreakableDisk(RealDisk):
    """The file systems of this machine; changes fail as `fault` says."""

    def __init__(self, *, syncs: bool = True) -> None:
        super().__init__()
        self.syncs = syncs
        self.fault: DiskFault = lambda path: None
        self.is_full: Callable[[], bool] = lambda: False

    def check(self, path: str) -> None:
        """Raise what a change at this path meets."""
        error = self.fault(path)
        if error is not None:
            raise error

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        if create and not os.path.exists(path):
            self.check(path)
        return _BreakableFile(self, path, descriptor_of(path, create=create, read_only=read_only))

    def make_directory(self, path: str) -> None:
        if not os.path.isdir(path):
            self.check(path)
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        if self.syncs:
            super().sync_directory(path)

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        if self.syncs:
            super().sync_in_background(files, done, directories)
        else:
            asyncio.get_running_loop().call_soon(done, None)

    def sync_all(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        return super().sync_all(files, directories) if self.syncs else {}

    def total_and_free_bytes(self, path: str) -> tuple[int, int]:
        total, free = super().total_and_free_bytes(path)
        return total, 0 if self.is_full() else free


class _BreakableFile(RealFile):
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: BreakableDisk, path: str, descriptor: int) -> None:
        super().__init__(descriptor)
        self._disk = disk
        self._path = path

    def write(self, position: int, data: Buffer) -> None:
        self._disk.check(self._path)
        super().write(position, data)

    def sync(self) -> None:
        if self._disk.syncs:
            super().sync()


class BreakableNetwork(KeptListeners):
    """The network of this machine; this process reaches nobody while a test says so."""

    __slots__ = ("_made", "is_cut_off")

    def __init__(self) -> None:
        super().__init__()
        self.is_cut_off: Callable[[], bool] = lambda: False
        self._made: list[asyncio.BaseTransport] = []  # connections to others

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        if self.is_cut_off():
            raise OSError(errno.EHOSTUNREACH, "a test has isolated this broker")
        made = await super().connect(host, port, factory)
        self._made = [*(each for each in self._made if not each.is_closing()), made[0]]
        return made

    def cut(self) -> None:
        """End the connections to others."""
        made, self._made = self._made, []
        for transport in made:
            if isinstance(transport, asyncio.Transport):
                transport.abort()
