"""Which of several addresses has a broker that answers: a command asks it first, and it knows the others."""

import asyncio
import struct
from enum import IntEnum
from typing import cast

from barnabas.runtime.clock import RealClock
from barnabas.runtime.network import RealNetwork

Address = tuple[str, int]

CONNECT_TIMEOUT_MS = 3_000  # of one attempt; a closed port refuses at once, but a host that is down does not answer
ANSWER_TIMEOUT_MS = 3_000  # a process that stands still accepts connections, and answers nothing
RETRY_MS = 50
# ApiVersions version 0, without a client id. Every broker answers it, also before it serves clients.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Outcome(IntEnum):
    """What happened at an address; what is greater is better."""

    NOTHING_LISTENS = 0
    SILENT = 1
    CLOSED = 2  # the connection, without an answer
    ANSWERED = 3


class _Question(asyncio.Protocol):
    """Asks for the versions."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(API_VERSIONS)

    def data_received(self, data: bytes) -> None:
        self._settle(Outcome.ANSWERED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(Outcome.CLOSED)

    def silent(self) -> None:
        """Nothing has come in time."""
        self._settle(Outcome.SILENT)

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


async def _ask(clock: RealClock, host: str, port: int) -> Outcome:
    attempt = asyncio.ensure_future(RealNetwork().connect(host, port, _Question))

    def give_up() -> None:
        attempt.cancel()

    timer = clock.call_later(CONNECT_TIMEOUT_MS, give_up)
    try:
        transport, protocol = await attempt
    except (OSError, UnicodeError, asyncio.CancelledError):
        return Outcome.NOTHING_LISTENS
    finally:
        timer.cancel()
    question = cast(_Question, protocol)
    timer = clock.call_later(ANSWER_TIMEOUT_MS, question.silent)
    try:
        return await question.outcome
    finally:
        timer.cancel()
        transport.close()


async def _best(clock: RealClock, addresses: list[Address]) -> tuple[Outcome, Address]:
    """The best outcome, and the first address that has it. All are asked at once; one that answers is enough."""
    asked = {asyncio.ensure_future(_ask(clock, *address)): address for address in addresses}
    waiting = set(asked)
    found: list[tuple[Outcome, Address]] = []
    while waiting and not any(outcome is Outcome.ANSWERED for outcome, _ in found):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        found += [(attempt.result(), address) for attempt, address in asked.items() if attempt in done]
    for attempt in waiting:
        attempt.cancel()
    return max(found, key=lambda pair: pair[0])


def listens(addresses: list[Address]) -> bool:
    """Whether something listens at one of the addresses now."""
    return asyncio.run(_best(RealClock(), addresses))[0] is not Outcome.NOTHING_LISTENS


def first_to_answer(addresses: list[Address], wait_s: float) -> Address | None:
    """An address that answers. None if nothing listens at any of them for `wait_s`.

    While all that listen are silent, it waits without end: the caller has a time limit. One that closes the connection
    is returned, too, if no other answers: the caller's client has the words for it.
    """

    async def first() -> Address | None:
        clock = RealClock()
        last_ms = clock.monotonic_ms() + wait_s * 1000
        while True:
            outcome, address = await _best(clock, addresses)
            if outcome in (Outcome.CLOSED, Outcome.ANSWERED):
                return address
            if outcome is Outcome.NOTHING_LISTENS and clock.monotonic_ms() >= last_ms:
                return None
            await clock.sleep(RETRY_MS)

    return asyncio.run(first())
