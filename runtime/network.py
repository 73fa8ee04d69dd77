"""TCP through the running asyncio loop."""

import asyncio
from collections.abc import Callable

from barnabas.runtime.ports import Listener


class RealListener:
    """A listening socket (or several, one per address of the host)."""

    __slots__ = ("_server",)

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        """The port in use, also where 0 was asked for."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop accepting."""
        self._server.close()


class RealNetwork:
    """The network of this machine."""

    __slots__ = ()

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Accept connections; an empty host or 0.0.0.0 means every address."""
        loop = asyncio.get_running_loop()
        return RealListener(await loop.create_server(factory, host or None, port, backlog=backlog))

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect."""
        return await asyncio.get_running_loop().create_connection(factory, host, port)
