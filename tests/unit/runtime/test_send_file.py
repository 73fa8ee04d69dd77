"""Sending from a file past the transport: on the real network, with both loops."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from barnabas.runtime.env import real
from barnabas.runtime.ports import Env

uvloop = pytest.importorskip("uvloop")

SIZE = 8 << 20  # more than sockets hold


class Peer(asyncio.Protocol):
    """The end that sends."""

    def __init__(self) -> None:
        self.connected: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected.set_result(cast(asyncio.Transport, transport))


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], scene: Callable[[Env], object]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene(real()))  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "sendfile"), reason="this system has no sendfile")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_bytes_go_from_the_file_until_the_socket_is_full(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "file").write_bytes(content)

    async def scene(env: Env) -> None:
        peer = Peer()
        listener = await env.network.listen("127.0.0.1", 0, lambda: peer, 1)
        await listener.accept()
        file = env.disk.open(str(tmp_path / "file"))
        with socket.socket() as client:
            client.connect(("127.0.0.1", listener.port))
            transport = await peer.connected
            position = 0
            while sent := env.network.send_file(transport, file, position, SIZE - position):
                position += sent
            assert 0 < position < SIZE, "nobody reads"
            transport.write(content[position : position + 100_000])
            assert transport.get_write_buffer_size() > 0
            received = bytearray()
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            received += await loop.sock_recv(client, 1)
            assert env.network.send_file(transport, file, position, 1) == 0, "first what the transport has"
            position += 100_000
            while len(received) < SIZE:
                if not transport.get_write_buffer_size():
                    position += env.network.send_file(transport, file, position, SIZE - position)
                received += await loop.sock_recv(client, 1 << 20)
            assert received == content
            assert env.network.send_file(transport, file, SIZE, 1) == 0, "behind the end of the file"
            transport.close()
            assert env.network.send_file(transport, file, 0, 1) == 0, "its descriptor may be another's soon"
        file.close()
        listener.close()

    run(new_loop, scene)
