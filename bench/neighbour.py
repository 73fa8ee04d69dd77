"""A client that produces one small record after the other, and writes down how long each took.

It runs in a process of its own (`python -m bench.neighbour PORT TOPIC FILE`), so its notes are what a client feels
while the broker is busy with something else. `Neighbour` starts and stops it, and reads its notes.
"""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.loads import batch, produce_frame

NOTE = struct.Struct("dd")  # when a request was sent (monotonic clock, the same in all processes); seconds it took
PAUSE_SECONDS = 0.001


class Neighbour:
    """The process, and its notes."""

    def __init__(self, port: int, topic: str, notes: Path) -> None:
        self._words = [sys.executable, "-m", "bench.neighbour", str(port), topic, str(notes)]
        self._notes = notes
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, and return when the broker has answered it."""
        self._process = await asyncio.create_subprocess_exec(*self._words)
        while not self._notes.exists() or not self._notes.stat().st_size:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End the process."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    def felt(self, began: float, ended: float) -> str:
        """The notes of the requests that were under way between two instants, as text."""
        notes = NOTE.iter_unpack(self._notes.read_bytes())
        spans = sorted(took for at, took in notes if at < ended and at + took > began)
        if not spans:
            return "no request of the neighbour"
        p50, p99, worst = (spans[min(int(len(spans) * share), len(spans) - 1)] * 1000 for share in (0.5, 0.99, 1))
        return f"neighbour p50 {p50:6.1f} p99 {p99:6.1f} worst {worst:6.1f} ms of {len(spans)}"


def main(words: Sequence[str]) -> None:
    """Produce until killed."""
    port, topic, path = words
    frame = produce_frame(topic, 0, batch([bytes(100)]))
    with socket.create_connection(("127.0.0.1", int(port))) as connection, open(path, "ab", buffering=0) as notes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            began = time.monotonic()
            connection.sendall(frame)
            size = int.from_bytes(_exactly(connection, 4), "big")
            _exactly(connection, size)
            notes.write(NOTE.pack(began, time.monotonic() - began))
            time.sleep(PAUSE_SECONDS)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise SystemExit("the broker closed the connection")
        data += more
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
