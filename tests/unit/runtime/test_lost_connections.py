"""What has arrived on a connection that is lost can still be had: on the real network, with both loops."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import cast

import pytest
from barnabas.runtime.env import real
from barnabas.runtime.ports import Env

uvloop = pytest.importorskip("uvloop")


class Peer(asyncio.Protocol):
    """The end that does not read, writes, and finds the other end gone."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.connected = asyncio.Event()
        self.lost: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.read = bytearray()
        self.connected.set()

    def data_received(self, data: bytes) -> None:
        self.read += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(bytes(self.read) + self.env.network.unread(self.transport))


@pytest.mark.parametrize("end", ["closes", "resets"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nothing_that_has_arrived_is_lost(new_loop: Callable[[], asyncio.AbstractEventLoop], end: str) -> None:
    content = os.urandom(50_000)

    async def scene(env: Env) -> None:
        peer = Peer(env)
        listener = await env.network.listen("127.0.0.1", 0, lambda: peer, 1)
        await listener.accept()
        client = socket.create_connection(("127.0.0.1", listener.port))
        await peer.connected.wait()
        await asyncio.sleep(0)
        peer.transport.pause_reading()
        client.sendall(content)
        if end == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        while not peer.lost.done():
            peer.transport.write(b"an answer")
            await asyncio.sleep(0.001)
        assert await peer.lost == content
        listener.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene(real()))
