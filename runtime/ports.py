"""The ports: all that a broker uses outside its own memory.

`runtime/` implements them with the operating system, `tests/simulator/` with a seeded simulation. No other package
calls `time`, `random`, `open` or `asyncio.sleep` (tests/test_layers.py), so a broker runs the same in both.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Turns
from barnabas.runtime.upkeep import Upkeep

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


# The call had no effect at all, and it may work later: there may be free space, or a free descriptor, or somebody lets
# this process write again to what was made read-only.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM = (*DISK_FULL, errno.EFBIG)
TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


RESTORE_PLAN = "restore-plan.json"  # in a data directory whose content is being replaced (`restoring.py`)
RESTORED_PLAN = "restored-plan.json"  # its name when all is done but to remove what was there before


class SyncFailedError(OSError):
    """The written bytes may be lost. A second sync proves nothing: the system may then report success."""


def may_pass(error: OSError) -> bool:
    """Whether the same call may work later, on the same files. Never True for a failed sync."""
    return error.errno in (*NO_ROOM, *TOO_MANY_OPEN, *READ_ONLY) and not isinstance(error, SyncFailedError)


class Timer(Protocol):
    """A call that will be made later, unless it is cancelled."""

    def cancel(self) -> None:
        """Do not make the call. No effect when it was made or cancelled already."""


class Clock(Protocol):
    """Two clocks, which must not be mixed up, and delayed calls."""

    @property
    def moved_ms(self) -> int:
        """How far tests have moved the wall clock: no jump that anybody should wonder at."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970, for times that are stored or sent. It may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary start, to measure time spans. It never goes back."""

    def elapsed_ms(self) -> float:
        """As `monotonic_ms`, but it goes on while the machine is asleep, as the wall clock does."""

    def work_ms(self) -> float:
        """Milliseconds from an arbitrary start. The difference of two calls is how long a callback has worked.

        Virtual time stands still in a callback, so there each call counts as a fixed amount of work.
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after the current event has been handled. Callbacks run in the order of these requests."""

    def in_thread(self, work: Callable[[], T], thread: str = "work") -> Pending[T]:
        """A Pending of the result of `work`, computed beside the loop: in each thread one work after the other.

        Nothing else may change the values that it uses.
        """

    def call_later(self, delay_ms: float, callback: Callable[[], None], slack_ms: float = 0.0) -> Timer:
        """Call once, no sooner than `delay_ms` from now.

        `slack_ms`: so much later will do, so that an idle machine wakes up once for several calls.
        """

    async def sleep(self, delay_ms: float) -> None:
        """Suspend the calling task for at least `delay_ms`."""


class File(Protocol):
    """An open file. Positions and lengths in bytes. Every method may raise OSError."""

    def size(self) -> int:
        """Bytes written so far, synced or not."""

    def read(self, position: int, length: int) -> bytes:
        """Bytes from `position`; shorter than `length` only at the end of the file."""

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position` (to append: at `size()`). A failed write may have written a part."""

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros to `size`."""

    def sync(self) -> None:
        """Return when the content is on stable storage. Blocks, perhaps for milliseconds. SyncFailedError."""

    def close(self) -> None:
        """Close without syncing. No effect when it is closed already."""


class DirectoryLock(Protocol):
    """An exclusive lock that dies with its process."""

    def release(self) -> None:
        """Give the lock up."""


class Disk(Protocol):
    """A file system. Paths are absolute strings with `/`. Every method may raise OSError (FileNotFoundError, …).

    A rename, a creation or a removal is durable when `sync_directory` of its folder has returned. The content of a
    file is durable when `File.sync` has returned.
    """

    @property
    def syncs(self) -> bool:
        """False: all syncs return at once and do nothing, because what is written need not survive a power cut."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing; `create` makes the file when it is missing, else FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name is there."""

    def is_directory(self, path: str) -> bool:
        """Whether a folder of that name is there."""

    def list_directory(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents; no effect when it exists."""

    def remove(self, path: str) -> None:
        """Remove one file."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it; harmless when it is missing."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give a file or folder another name, replacing a file of that name."""

    def identity(self, path: str) -> tuple[int, int]:
        """What tells a file from one that takes its name later, as long as somebody has the first one open."""

    def file_size(self, path: str) -> int:
        """Size of a file that need not be open."""

    def modified_ms(self, path: str) -> int:
        """Time of the last change, wall clock."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time of the last change."""

    def is_private(self, path: str) -> bool:
        """Whether nobody but its user can read a file; or its group, if that may write it. True: it is missing."""

    def make_private(self, path: str, *, create: bool = False) -> bool:
        """Take the rights of all others, if that can be done; whether it is private now. `create`: if it is missing."""

    def sync_directory(self, path: str) -> None:
        """Make the folder's entries durable. SyncFailedError."""

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        """Sync files, then folders, outside the loop; then the loop calls `done` with the first error, or None.

        The files may be closed as soon as this method has returned.
        """

    def sync_all(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        """Sync files, then folders, several at a time. Blocks; returns the errors by path."""

    def total_and_free_bytes(self, path: str) -> tuple[int, int]:
        """Size of the file system that holds `path`, and its free bytes."""

    def open_files_max(self) -> int:
        """How many files this process may have open at the same time; connections count as files."""

    def boot_id(self) -> str:
        """Names the time since the machine has started. What was not synced before may be lost. "": it is not known."""

    def lock(self, path: str) -> DirectoryLock:
        """Take an exclusive lock on a file, which is made when it is missing; BlockingIOError when another holds it."""

    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the lock on a file. Who asks holds nothing meanwhile. FileNotFoundError."""


def read_file(disk: Disk, path: str, bytes_max: int | None = None) -> bytes:
    """The whole file, or the first `bytes_max` bytes. OSError (FileNotFoundError, …)."""
    with closing(disk.open(path, read_only=True)) as file:
        return file.read(0, file.size() if bytes_max is None else min(file.size(), bytes_max))


def stamp_of(disk: Disk, path: str) -> tuple[tuple[int, int], int, int]:
    """What is another one when a file was replaced or changed. OSError."""
    return disk.identity(path), disk.modified_ms(path), disk.file_size(path)


class Listener(Protocol):
    """An address that this process has bound. It accepts connections there after `accept`."""

    @property
    def port(self) -> int:
        """The port in use, also when port 0 was requested."""

    async def accept(self) -> None:
        """Accept connections from now on; before, they are refused. OSError when another process has the address."""

    def close(self) -> None:
        """Stop accepting. Accepted connections stay open."""


class Network(Protocol):
    """Stream connections in the shape of asyncio's protocols and transports."""

    async def host_name(self) -> str | None:
        """The name under which other machines reach this one; None if this machine's own name does not resolve."""

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Bind an address. `factory` makes one protocol object for each connection. OSError when it cannot be bound."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect. OSError when refused or unreachable."""

    def send_file(self, transport: asyncio.Transport, file: File, position: int, length: int) -> int:
        """Send bytes of a file, as many as the peer takes now, without reading them; returns how many were sent.

        0 also means that the system cannot do this, that the transport's buffer is not empty, or that it failed. The
        caller then reads the bytes and writes them to the transport, which shows an error. The system may still read
        the sent range of the file later, so that range must not change; the rest of the file may.
        """

    def unread(self, transport: asyncio.Transport) -> bytes:
        """The bytes that arrived on a connection and were not read. To be called once, in its `connection_lost`."""


class Env:
    """The environment of one broker process.

    All long tasks of the broker share each pass of the loop through `turns`. `upkeep` runs its repeated work.
    """

    __slots__ = ("clock", "disk", "network", "rng", "secret_rng", "turns", "upkeep")

    def __init__(
        self, clock: Clock, disk: Disk, network: Network, rng: random.Random, secret_rng: random.Random | None = None
    ) -> None:
        """`secret_rng`: for what nobody may guess; None: `rng`, where all is to be repeated."""
        self.clock = clock
        self.disk = disk
        self.network = network
        self.rng = rng
        self.secret_rng = secret_rng
        self.turns = Turns(clock)
        self.upkeep = Upkeep(clock, self.turns)

    def secret_bytes(self, count: int) -> bytes:
        """Random bytes that nobody can guess."""
        return (self.secret_rng or self.rng).randbytes(count)

    def random_uuid(self) -> bytes:
        """16 bytes of a random (version 4) UUID whose text in Kafka's base64 does not begin with a dash."""
        while True:
            value = bytearray(self.rng.randbytes(16))
            value[6] = value[6] & 0x0F | 0x40
            value[8] = value[8] & 0x3F | 0x80
            if value[0] >> 2 != 62:  # 62 is '-' in the URL-safe alphabet: the text would look like an option
                return bytes(value)
