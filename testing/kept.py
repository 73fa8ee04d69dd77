"""Connections that stay open from one question to the next."""

import socket
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection."""

    sock: socket.socket

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)
Address = tuple[str, int]


def address_of(host_and_port: str) -> Address:
    """The two parts of host:port."""
    host, _, port = host_and_port.rpartition(":")
    return host.strip("[]"), int(port)


class Kept(Generic[C]):
    """Those that nobody uses now. Several threads may take and give, but each connection has one user."""

    def __init__(self) -> None:
        self._idle: dict[str, list[C]] = {}

    def take(self, address: str) -> C | None:
        """One to that address, which is open still; None: there is none."""
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if _is_open(connection.sock):
                return connection
            connection.close()
        return None

    def give(self, address: str, connection: C) -> None:
        """It is not needed for now."""
        self._idle.setdefault(address, []).append(connection)

    def close(self) -> None:
        all_of_them, self._idle = self._idle, {}
        for connection in (each for idle in all_of_them.values() for each in idle):
            connection.close()


def _is_open(connection: socket.socket) -> bool:
    """Whether the other side has neither closed it nor sent something that nobody has asked for."""
    timeout = connection.gettimeout()
    connection.settimeout(0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(timeout)
    return False
