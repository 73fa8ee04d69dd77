"""The tree of a machine's brokers in a real SQLite file, for worlds in virtual time.

`FileTree` takes the place of a `SimTree`. Each process has its own client of the file, as in production; what a client
writes is there at once, and survives it. SQLite brings the -wal into the file when the last one that uses it closes it.
A process that is killed does not close anything, so then the files are put back as they were.
"""

import os
import random
import shutil
import sqlite3
import tempfile
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from barnabas.cluster.tree import tree_backup
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.port import ANY_VERSION, Coordination
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.cluster.tree.tree_opening import INDEX, LOG
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.ports import Clock, Env

from simulator.clock import SimClock
from simulator.host import Life
from simulator.network import SimNetwork

NAME = "coordination.sqlite"
PARTS = ("", LOG, INDEX)
SCRAP_BYTES = 4_000_000  # by so much the file gets longer, and then shorter


class _TreeDisk(RealDisk):
    """The folder of the tree. Nothing is synced, and a file has changed when its content has, at whatever time."""

    syncs = False

    def modified_ms(self, path: str) -> int:
        """For the tree itself, a number that tells its content from any other."""
        return zlib.crc32(Path(path).read_bytes()) if path.endswith(NAME) else super().modified_ms(path)


@dataclass(frozen=True, slots=True)
class _Client:
    life: Life
    coordination: EmbeddedCoordination


class FileTree:
    """The file, and who uses it. `close` removes it."""

    def __init__(self, clock: SimClock, network: SimNetwork, session_timeout_ms: float) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._env = Env(clock=clock, disk=_TreeDisk(), network=network, rng=random.Random(0))  # of the operator
        self._folder = tempfile.mkdtemp(prefix="barnabas-simulator-")
        self.path = f"{self._folder}/{NAME}"
        self._clients: list[_Client] = []

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def plain(self, line: str) -> str:
        """A line of a log without what is another name or number in each run."""
        return line.replace(self._folder, "").replace(f"process {os.getpid()}", "a process")

    # -- the processes

    def connect(self, clock: Clock, life: Life) -> Coordination:
        """The client of a process."""
        env = Env(clock=clock, disk=_TreeDisk(), network=life.env.network, rng=life.env.rng)
        coordination = EmbeddedCoordination(env, self.path, self.session_timeout_ms)
        self._clients.append(_Client(life, coordination))
        return coordination

    def kill(self, session_id: int) -> None:
        """What is dead uses the file no more. If nobody else does, what SQLite has beside the file stays as it is."""
        dead = [client for client in self._clients if not client.life.alive]
        self._clients = [client for client in self._clients if client.life.alive]
        is_last = not any(client.coordination._reader for client in self._clients)
        left = self.copy() if is_last and any(client.coordination._reader for client in dead) else None
        for client in dead:
            _vanish(client.coordination)
        if left is not None:
            self.put_back(left)

    # -- what an operator does

    def troubles(self) -> list[str]:
        """What the brokers say that is wrong with the files."""
        return [client.coordination.trouble for client in self._clients if client.coordination._reader]

    def remove(self, parts: tuple[str, ...]) -> None:
        """Remove these files."""
        for part in parts:
            Path(self.path + part).unlink(missing_ok=True)

    def vacuum(self) -> None:
        """Make the file as short as it can be, as another process."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def lengthen(self) -> None:
        """Make the file longer, with nothing in it."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(f"CREATE TABLE scrap AS SELECT zeroblob({SCRAP_BYTES})")
            connection.execute("DROP TABLE scrap")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    async def backup(self) -> bytes:
        """What `barnabas cluster backup` makes."""
        return (await tree_backup.take(self._env, self.path)).content

    def copy(self) -> dict[str, bytes]:
        """What `cp` makes of the file and what is beside it."""
        return {part: Path(self.path + part).read_bytes() for part in PARTS if os.path.exists(self.path + part)}

    def put_back(self, content: dict[str, bytes]) -> None:
        """Put these files there, and no others. Nobody uses them."""
        self.remove(PARTS)
        for part, data in content.items():
            Path(self.path + part).write_bytes(data)

    def delete(self, path: str) -> bool:
        """Delete a node by hand; whether it was there."""
        with closing(TreeFile(self.path, self._env.clock.now_ms, syncs=False)) as file, file.transaction():
            is_there = file.has(path)
            if is_there:
                file.delete(path, ANY_VERSION, file.take_zxid())
        return is_there


def _vanish(coordination: EmbeddedCoordination) -> None:
    """What the system does to a process's files and locks when it is dead."""
    if coordination._lock is not None:
        coordination._lock.release()
        coordination._lock = None
    for file in (coordination._seen, coordination._changes.writer, coordination._reader):
        if file is not None:
            file.close()
    coordination._place.close()
