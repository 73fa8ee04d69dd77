"""A listener of a process that has no free descriptor: it waits, says so seldom, and goes on."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from barnabas.runtime.network import RealNetwork


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Nothing can be opened inside."""
    least = os.dup(0)  # the lowest number that is free
    os.close(least)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_listener_without_descriptors_waits(caplog: pytest.LogCaptureFixture) -> None:
    made: list[asyncio.Protocol] = []

    def factory() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    async def story() -> None:
        listener = await RealNetwork().listen("127.0.0.1", 0, factory, 50)
        await listener.accept()
        clients = [socket.socket() for _ in range(10)]
        for client in clients:
            client.setblocking(False)
        with no_free_descriptor():
            for client in clients:
                client.connect_ex(("127.0.0.1", listener.port))
            await asyncio.sleep(2.5)
            assert made == []
        while len(made) < len(clients):
            await asyncio.sleep(0.02)
        for client in clients:
            client.close()
        listener.close()

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(asyncio.wait_for(story(), 30))
    told = [record.message for record in caplog.records if record.name.startswith("barnabas")]
    assert 1 <= len(told) < 10, "not once for each connection, and again and again"
    assert set(told) == {"could not accept a connection, retrying every second: [Errno 24] Too many open files"}
    assert caplog.text.count("Traceback") == 0
