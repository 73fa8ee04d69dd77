"""TLS over a connection whose other side takes nothing."""

import asyncio
import ssl
from typing import Any, cast

from barnabas.runtime.tls import TlsSide, TlsTransport
from simulator.env import sim_env

HIGH = 64 * 1024
HELLO = b"\x16"
NEW_KEYS = b"k" * 16 * 1024  # requests for new keys; the answers are as long


class Socket(asyncio.Transport):
    """Nobody takes what is written to it, until `take`."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.reads = True
        self.protocol: TlsTransport | None = None

    def write(self, data: Any) -> None:
        before, self.written = self.written, self.written + len(data)
        if before <= HIGH < self.written and self.protocol is not None:
            self.protocol.pause_writing()

    def take(self) -> None:
        self.written = 0
        assert self.protocol is not None
        self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False


class Answers:
    """Has shaken hands; answers as many bytes as come, and has nothing for the protocol above: as OpenSSL with new
    keys, which Python has no words for."""

    session_reused = False

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def do_handshake(self) -> None: ...

    def read(self, size: int, buffer: memoryview) -> int:
        self.outgoing.write(self.incoming.read())
        raise ssl.SSLWantReadError


class Context:
    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **words: Any) -> Answers:
        return Answers(incoming, outgoing)


class Above(asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1024)


def test_who_asks_for_new_keys_without_end_must_take_the_answers() -> None:
    env = sim_env(1)
    socket = Socket()
    context = cast(ssl.SSLContext, Context())
    tls = socket.protocol = TlsTransport(TlsSide(env.clock, env.turns, lambda: context), Above())
    tls.connection_made(socket)

    def come(data: bytes) -> None:
        memoryview(tls.get_buffer(-1))[: len(data)] = data
        tls.buffer_updated(len(data))
        env.clock.advance(0)

    come(HELLO)
    for _ in range(3):
        sent = 0
        while socket.reads:
            come(NEW_KEYS)
            sent += len(NEW_KEYS)
            assert sent < 3 * HIGH, "read without end"
        tls.resume_reading()  # the protocol above knows nothing of it
        env.clock.advance(0)
        assert not socket.reads
        socket.take()
        assert socket.reads
