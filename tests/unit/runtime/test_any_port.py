"""Port 0 on every address: one port, whichever family a client dials."""

import asyncio
import socket

import pytest
from barnabas.runtime.network import RealNetwork


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_one_port_for_all_addresses(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 on this machine")

    async def story() -> None:
        network = RealNetwork()
        listener = await network.listen("", 0, asyncio.Protocol, 5)
        await listener.accept()
        port = listener.port
        transport, _ = await network.connect(host, port, asyncio.Protocol)
        transport.close()
        listener.close()
        with pytest.raises(OSError):
            await network.connect(host, port, asyncio.Protocol)

    asyncio.run(story())


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
