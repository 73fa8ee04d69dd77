"""TCP through the running asyncio loop."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from barnabas.runtime.disk import RealFile
from barnabas.runtime.ports import File, Listener

if TYPE_CHECKING:
    from barnabas.runtime.tls import TlsTransport

logger = logging.getLogger("barnabas.broker")

READ_BYTES = 256 * 1024
RESOLVED_WITHIN_S = 0.2
_sendfile: Callable[[int, int, int, int], int] | None = getattr(os, "sendfile", None)  # some systems have none


HostNotFoundError = socket.gaierror  # an OSError: no name server or hosts file knows the address of a host


class RealListener:
    """A listening socket, or several: one per address of the host, all on one port."""

    __slots__ = ("_backlog", "_servers")

    def __init__(self, servers: Sequence[asyncio.Server], backlog: int) -> None:
        assert servers, "a listener without a socket"
        self._servers = servers
        self._backlog = backlog

    @property
    def port(self) -> int:
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def descriptors(self) -> list[int]:
        return [each.fileno() for server in self._servers for each in server.sockets]

    async def accept(self) -> None:
        """Accept connections. OSError when another socket, bound before or after, accepts them."""
        for server in self._servers:
            await server.start_serving()
            if None in server.sockets:  # uvloop has closed it, and does not say why
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            if _tries_as_often_as_the_backlog():
                for each in server.sockets:
                    with socket.socket(fileno=os.dup(each.fileno())) as same:
                        same.listen(self._backlog)

    def close(self) -> None:
        for server in self._servers:
            server.close()


def _tries_as_often_as_the_backlog() -> bool:
    """Whether this loop calls `accept` as often as the backlog is long, although there is no free descriptor.

    For each try that failed, asyncio's own loop tries again a second later, equally often. uvloop does not.
    """
    return isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio has to say. A connection that cannot be accepted waits, and is tried every second."""
    if "socket.accept()" in context["message"]:
        logger.warning("could not accept a connection, retrying every second: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)


class RealNetwork:
    """The network of this machine. Implements the Network port."""

    __slots__ = ()

    async def _server(self, factory: Callable[[], asyncio.BaseProtocol], backlog: int, **where: Any) -> asyncio.Server:
        """A server at `host` and `port`, or of a socket `sock`. It accepts no connections yet."""
        tries = 1 if _tries_as_often_as_the_backlog() else backlog
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, **where, backlog=tries, start_serving=False)

    async def host_name(self) -> str | None:
        """The canonical name of the host. If the resolver takes long, the name that the machine calls itself."""
        name = socket.gethostname()
        resolving = asyncio.get_running_loop().getaddrinfo(name, None, flags=socket.AI_CANONNAME)
        try:
            found = await asyncio.wait_for(resolving, RESOLVED_WITHIN_S)
        except TimeoutError:
            return name
        except OSError:
            return None
        return found[0][3] or name

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Bind an address; an empty host means all addresses."""

        loop = asyncio.get_running_loop()
        if loop.get_exception_handler() is None:
            loop.set_exception_handler(_tell)

        if host or port:
            return RealListener([await self._server(factory, backlog, host=host or None, port=port)], backlog)
        # Port 0: asyncio would choose a different port for each address, but all must have the same one.
        first = await self._server(factory, backlog, host="0.0.0.0", port=0)
        port = first.sockets[0].getsockname()[1]
        try:
            second = await self._server(factory, backlog, host="::", port=port)
        except OSError:  # the machine has no IPv6, or another process has the port there
            return RealListener([first], backlog)
        return RealListener([first, second], backlog)

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)

    def send_file(self, transport: asyncio.Transport, file: File, position: int, length: int) -> int:
        """Send bytes of a file by sendfile, past the transport. Only while the transport has nothing buffered."""
        if _sendfile is None or transport.get_write_buffer_size() or transport.is_closing():
            return 0
        if not isinstance(file, RealFile) or transport.get_extra_info("sslcontext") is not None:
            return 0
        try:
            return _sendfile(transport.get_extra_info("socket").fileno(), file.descriptor, position, length)
        except OSError:  # usually the socket is full
            return 0

    def unread(self, transport: asyncio.Transport) -> bytes:
        """Read the socket of a lost connection to its end. It is closed as soon as `connection_lost` has returned."""
        if transport.get_extra_info("sslcontext") is not None:
            tls = cast("TlsTransport", transport)
            return tls.decrypted(self.unread(tls.below))
        descriptor = transport.get_extra_info("socket").fileno()
        pieces = []
        try:
            while piece := os.read(descriptor, READ_BYTES):
                pieces.append(piece)
        except OSError:  # nothing more has come, or the client has reset the connection
            pass
        return b"".join(pieces)


class KeptListeners(RealNetwork):
    """The network of this machine for several lives of a broker: sockets that listen stay open from life to life.

    Who connects between two lives waits for the next one, and gets no refusal.
    """

    __slots__ = ("_kept", "_used")

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], list[list[socket.socket]]] = {}  # by the address that was asked for
        self._used: dict[tuple[str, int], int] = {}

    def begin_life(self) -> None:
        """From now on each address is asked for once more, in the same order."""
        self._used.clear()

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Listener:
        """Bind an address, or take the socket that is bound to it already."""
        kept = self._kept.setdefault((host, port), [])
        number = self._used.get((host, port), 0)
        self._used[host, port] = number + 1
        if number < len(kept):
            return RealListener(
                [await self._server(factory, backlog, sock=each.dup()) for each in kept[number]], backlog
            )
        listener = await super().listen(host, port, factory, backlog)
        assert isinstance(listener, RealListener)
        kept.append([socket.socket(fileno=os.dup(descriptor)) for descriptor in listener.descriptors])
        return listener
