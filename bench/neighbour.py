"""A client that sends one request after the other, and writes down how long each took.

It runs in a process of its own (`python -m bench.neighbour PORT FRAME FILE PAUSE`), so its notes are what a client
feels while the broker is busy with something else. It also notes how much too late it wakes up from its pauses: that is
what the machine adds to each figure. `Neighbour` starts and stops it, and reads its notes.
"""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.wire import Latencies

# When a request was sent (monotonic clock, the same in all processes); the seconds that it took; how late it woke up.
NOTE = struct.Struct("ddd")
Window = tuple[float, float]


class Neighbour:
    """The process, and its notes."""

    def __init__(self, port: int, frame: bytes, notes: Path, pause_s: float = 0.001) -> None:
        self._words = [sys.executable, "-m", "bench.neighbour", str(port), frame.hex(), str(notes), str(pause_s)]
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

    def felt(self, *windows: Window) -> tuple[Latencies, Latencies]:
        """The requests that were under way between two instants, and how late it woke up after them."""
        took, late = Latencies(), Latencies()
        notes = self._notes.read_bytes()
        for at, seconds, overslept in NOTE.iter_unpack(notes[: len(notes) // NOTE.size * NOTE.size]):
            if any(at < ended and at + seconds > began for began, ended in windows):
                took.spans.append(seconds)
                late.spans.append(overslept)
        return took, late


def main(words: Sequence[str]) -> None:
    """Send until killed."""
    port, frame, path, pause_s = words[0], bytes.fromhex(words[1]), words[2], float(words[3])
    with socket.create_connection(("127.0.0.1", int(port))) as connection, open(path, "ab", buffering=0) as notes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        while True:
            began = time.monotonic()
            connection.sendall(frame)
            size = int.from_bytes(answers.read(4), "big")
            if len(answers.read(size)) < max(size, 1):
                raise SystemExit("the broker closed the connection")
            answered = time.monotonic()
            time.sleep(pause_s)
            notes.write(NOTE.pack(began, answered - began, time.monotonic() - answered - pause_s))


if __name__ == "__main__":
    main(sys.argv[1:])
