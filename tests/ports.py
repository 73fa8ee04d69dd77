"""Ports for servers of tests that have to be known before the server listens, or are kept while it is away."""

import random
import socket
from contextlib import ExitStack

LOWEST, HIGHEST = (
    10_000,
    29_999,
)  # below those that the system gives to clients, who are refused while no server listens
CLAIMS = ExitStack()


def free_port() -> int:
    """A port that is free, and that no other test takes as long as this process lives."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports in a row, as `free_port`.

    The claim is a UDP socket on the number. It ends with its process and does not hinder who listens there with TCP.
    """
    while True:
        first = random.randint(LOWEST, HIGHEST + 1 - count)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as claims:
                for port in ports:
                    claims.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(("127.0.0.1", port))
                CLAIMS.push(claims.pop_all())
        except OSError:
            continue
        return ports
