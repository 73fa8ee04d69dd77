"""The broker at the other end, for tests of what connects to brokers."""

import asyncio
import struct
from typing import Any, cast

from barnabas.protocol import frames


class OtherBroker(asyncio.Protocol):
    """The other end of one connection: it notes the requests, and answers when the test says so."""

    def __init__(self, connections: "list[OtherBroker]") -> None:
        self.requests: list[tuple[Any, Any]] = []
        self.is_lost = False
        self._received = bytearray()
        connections.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                break
            self.requests.append(frames.decode_request(bytes(self._received[4 : 4 + size])))
            del self._received[: 4 + size]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def answer(self, position: int, message: Any) -> None:
        header, _ = self.requests[position]
        for part in frames.encode_response(header.api_key, header.api_version, header.correlation_id, message):
            self.transport.write(cast(bytes, part))
