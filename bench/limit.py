"""`python -m bench.limit`: the least that a request can cost. An empty protocol on uvloop reads frames and answers.

It prints its port. The first eight bytes of a connection are how many bytes each of its answers has.
"""

import asyncio
import sys
from struct import Struct
from typing import cast

import uvloop

INT32 = Struct(">i")
SIZES = Struct(">ii")


class Empty(asyncio.BufferedProtocol):
    """Answers each frame with the same bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._answer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        end = self._filled + nbytes
        position = 0
        if not self._answer and end >= SIZES.size:
            _, size = SIZES.unpack_from(self._buffer)
            self._answer = INT32.pack(size) + bytes(size)
            position = SIZES.size
        while end - position >= 4:
            (size,) = INT32.unpack_from(self._buffer, position)
            if position + 4 + size > end:
                break
            position += 4 + size
            self.transport.write(self._answer)
        self._buffer[: end - position] = self._buffer[position:end]
        self._filled = end - position


async def serve() -> None:
    """Serve until the process is killed."""
    server = await asyncio.get_running_loop().create_server(Empty, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve()))
