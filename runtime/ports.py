"""The ports: everything a broker may ask of the world outside its own memory.

`runtime/` implements them with the operating system, `sim/` with seeded twins. Nothing below or above calls
`time`, `random`, `open` or `asyncio.sleep` (tests/test_layers.py), so a broker runs the same in both worlds.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Turns
from barnabas.runtime.upkeep import Upkeep

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


# What was asked for was not done and nothing else happened: there may be room, or a free descriptor, later.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class SyncFailedError(OSError):
    """What was written may be lost, whatever the reason: asked again, a system may claim that it is stored."""


def may_pass(error: OSError) -> bool:
    """Whether the same may work later, on the same files. Never true of a sync that failed."""
    return error.errno in (*NO_ROOM, *TOO_MANY_OPEN) and not isinstance(error, SyncFailedError)


class Timer(Protocol):
    """A call that will be made later, until cancelled."""

    def cancel(self) -> None:
        """Do not make the call. Harmless when it was made or cancelled already."""


class Clock(Protocol):
    """Two clocks that must not be mixed up, and the only way to have something done later."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970: for what is stored or sent. May jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary start: for measuring spans. Never goes back."""

    def work_ms(self) -> float:
        """Milliseconds from an arbitrary start: how long the current callback has worked, between two calls of this.

        In virtual time, which stands still in a callback, each call counts for a fixed amount of work.
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call after the current event has been handled, in the order asked for."""

    def in_thread(self, work: Callable[[], T]) -> Pending[T]:
        """What `work` returns, done beside the loop: of what computes for long, on values that nobody else changes."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call once, no sooner than `delay_ms` from now."""

    async def sleep(self, delay_ms: float) -> None:
        """Suspend the calling task for at least `delay_ms`."""


class File(Protocol):
    """An open file. Positions and lengths in bytes. Every method may raise OSError."""

    def size(self) -> int:
        """Bytes written so far, synced or not."""

    def read(self, position: int, length: int) -> bytes:
        """Bytes from `position`; shorter than `length` only at the end of the file."""

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position` (to append: at `size()`). A part may be written when it fails."""

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros to `size`."""

    def sync(self) -> None:
        """Return when the content is on stable storage. Blocks; may take milliseconds. SyncFailedError."""

    def close(self) -> None:
        """Close without syncing. Harmless when closed."""


class DirectoryLock(Protocol):
    """An exclusive lock that dies with its process."""

    def release(self) -> None:
        """Give the lock up."""


class Disk(Protocol):
    """A file system. Paths are absolute strings with `/`. Every method may raise OSError (FileNotFoundError, …).

    A rename, a creation or a removal is durable once `sync_directory` of its folder has returned; a file's
    content once `File.sync` has.
    """

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing; `create` makes the file when it is missing, else FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name is there."""

    def is_directory(self, path: str) -> bool:
        """Whether a folder of that name is there."""

    def list_directory(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents; harmless when it exists."""

    def remove(self, path: str) -> None:
        """Remove one file."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it; harmless when it is missing."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give a file or folder another name, replacing a file of that name."""

    def file_size(self, path: str) -> int:
        """Size of a file that need not be open."""

    def modified_ms(self, path: str) -> int:
        """Time of the last change, wall clock."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time of the last change."""

    def sync_directory(self, path: str) -> None:
        """Make the folder's entries durable. SyncFailedError."""

    def sync_in_background(
        self, files: Sequence[File], done: Callable[[OSError | None], None], directories: Sequence[str] = ()
    ) -> None:
        """Sync files, then folders, off the loop; `done` is called on the loop with what went wrong, or None.

        The files may be closed as soon as this has returned.
        """

    def sync_all(self, files: Sequence[str], directories: Sequence[str] = ()) -> dict[str, OSError]:
        """Sync files, then folders, by path and several at a time. Blocks; what went wrong, by path."""

    def total_and_free_bytes(self, path: str) -> tuple[int, int]:
        """Size of the file system that holds `path`, and what is free on it."""

    def open_files_max(self) -> int:
        """How many files this process may have open at a time; connections count too."""

    def lock(self, path: str) -> DirectoryLock:
        """Take an exclusive lock on a file (made when missing); BlockingIOError when another holds it."""


class Listener(Protocol):
    """An address that is this process's, at which it may accept connections."""

    @property
    def port(self) -> int:
        """The port in use, also where 0 was asked for."""

    async def accept(self) -> None:
        """Accept connections from now on; until then they are refused. OSError when another process was faster."""

    def close(self) -> None:
        """Stop accepting. Connections that were accepted live on."""


class Network(Protocol):
    """Stream connections in the shape of asyncio's protocols and transports."""

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Take an address, for connections of one protocol object each. OSError when it cannot be had."""

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect. OSError when refused or unreachable."""

    def send_file(self, transport: asyncio.Transport, file: File, position: int, length: int) -> int:
        """Send bytes of a file as far as the peer takes them now, without reading them; how many were sent.

        0 also where there is no such way, or not now (something is in the transport's buffer), or it failed: reading
        and writing them tells. The file may be cut or written to elsewhere afterwards, but not in this range.
        """

    def unread(self, transport: asyncio.Transport) -> bytes:
        """What has arrived on a connection and was not read. Only to be asked in its `connection_lost`, once."""


@dataclass(frozen=True, slots=True)
class Env:
    """The world of one broker process.

    `turns` is how all its long works share a pass of the loop, `upkeep` what it does by itself again and again.
    """

    clock: Clock
    disk: Disk
    network: Network
    rng: random.Random
    turns: Turns = field(init=False)
    upkeep: Upkeep = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", Turns(self.clock))
        object.__setattr__(self, "upkeep", Upkeep(self.clock, self.turns))

    def random_uuid(self) -> bytes:
        """16 bytes of a random (version 4) UUID that in Kafka's base64 text does not begin with a dash."""
        while True:
            value = bytearray(self.rng.randbytes(16))
            value[6] = value[6] & 0x0F | 0x40
            value[8] = value[8] & 0x3F | 0x80
            if value[0] >> 2 != 62:  # '-' is the 62nd character of the URL-safe alphabet; it would look like an option
                return bytes(value)
