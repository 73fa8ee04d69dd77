"""Two sockets on one port: the system takes both until one accepts connections. With both loops."""

import asyncio
import errno
from collections.abc import Callable

import pytest
from barnabas.runtime.network import RealNetwork

uvloop = pytest.importorskip("uvloop")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_second_that_would_accept_is_refused(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scene() -> None:
        network = RealNetwork()
        first = await network.listen("127.0.0.1", 0, asyncio.Protocol, 1)
        second = await network.listen("127.0.0.1", first.port, asyncio.Protocol, 1)
        await first.accept()
        with pytest.raises(OSError) as refused:
            await second.accept()
        assert refused.value.errno == errno.EADDRINUSE
        first.close()
        second.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())
