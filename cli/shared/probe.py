"""Which of several addresses has a broker that answers: a command asks it first, and it knows the others."""

import asyncio
import ssl
import struct
from enum import IntEnum
from ssl import SSLContext
from typing import cast

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import RealClock
from barnabas.runtime.network import HostNotFoundError, RealNetwork
from barnabas.runtime.tls import HandshakeError, TlsSide, TlsTransport
from barnabas.runtime.turns import Turns

Address = tuple[str, int]

CONNECT_TIMEOUT_MS = 3_000  # of one attempt; a closed port refuses at once, but a host that is down does not answer
ANSWER_TIMEOUT_MS = 3_000  # a process that stands still accepts connections, and answers nothing
RETRY_MS = 50
# ApiVersions version 0, without a client id. Every broker answers it, also before it serves clients.
CORRELATION_ID = 0x6261726E
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, CORRELATION_ID, -1)
ANSWER_BEGIN = struct.Struct(">ii")  # size and correlation id
ANSWER_BYTES_MAX = 4_096  # that are kept of an answer
TLS_ALERT = b"\x15"


class Outcome(IntEnum):
    """What happened at an address, from worst to best."""

    NOT_RESOLVED = 0  # nobody knows the name of the host
    NOTHING_LISTENS = 1
    SILENT = 2
    CLOSED = 3  # the connection, without an answer
    NO_TLS = 4  # the handshake has failed
    FOREIGN = 5  # something answered, in another protocol than Kafka's
    ANSWERED = 6


class Found(NamedTuple):
    """An address, what happened there, and what was answered if that was not Kafka's protocol."""

    outcome: Outcome
    address: Address
    answer: bytes = b""
    why: str = ""
    has_tls: bool = False

    @property
    def place(self) -> str:
        """The address as it is written."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def words(self) -> str:
        """What is wrong with it, as the end of a sentence."""
        where = self.place
        if self.outcome is Outcome.NOT_RESOLVED:
            return f"the host {self.address[0]} cannot be found: no name server or hosts file knows its address"
        if self.outcome is Outcome.NO_TLS:
            return f"there is no TLS with {where}: {self.why}"
        if self.outcome is not Outcome.FOREIGN:
            return f"no broker answers at {where}"
        if self.answer.startswith(b"HTTP/"):
            said = self.answer.partition(b"Kafka's clients want ")[2].partition(b'."')[0].decode("ascii", "replace")
            hint = f" Its broker is at {said}." if said else ""
            return f"{where} is an HTTP server, and no port of Kafka's protocol.{hint}".rstrip(".")
        if self.answer[:1] == TLS_ALERT:
            return f"{where} speaks TLS, and the command does not (--command-config)"
        return f"what answers at {where} is no Kafka broker: {self.answer[:40]!r}"


class _Question(asyncio.Protocol):
    """Asks for the versions."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.answer = b""
        self.why = ""
        self.has_tls = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(API_VERSIONS)

    def data_received(self, data: bytes) -> None:
        self.answer = (self.answer + data)[:ANSWER_BYTES_MAX]
        if len(self.answer) < ANSWER_BEGIN.size:
            return
        size, correlation_id = ANSWER_BEGIN.unpack_from(self.answer)
        if size >= 6 and correlation_id == CORRELATION_ID:
            self._settle(Outcome.ANSWERED)
        elif not self.answer.startswith(b"HTTP/"):  # of an HTTP server the body is wanted, too
            self._settle(Outcome.FOREIGN)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(Outcome.FOREIGN if self.answer else Outcome.CLOSED)

    def silent(self) -> None:
        """Nothing more has come in time."""
        self._settle(Outcome.FOREIGN if self.answer else Outcome.SILENT)

    def note_tls(self, _transport: TlsTransport) -> None:
        self.has_tls = True

    def no_tls(self, _transport: TlsTransport, error: HandshakeError) -> None:
        self.why = str(error)
        self._settle(Outcome.NO_TLS)

    def _settle(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


async def _ask(clock: RealClock, address: Address, tls: SSLContext | None) -> Found:
    question = _Question()

    def protocol() -> asyncio.BaseProtocol:
        if tls is None:
            return question
        opened, failed = question.note_tls, question.no_tls
        side = TlsSide(clock, Turns(clock), lambda: tls, opened, failed, server_hostname=address[0])
        return TlsTransport(side, question)

    attempt = asyncio.ensure_future(RealNetwork().connect(*address, protocol))

    def give_up() -> None:
        attempt.cancel()

    timer = clock.call_later(CONNECT_TIMEOUT_MS, give_up)
    try:
        transport, _ = await attempt
    except (HostNotFoundError, UnicodeError):
        return Found(Outcome.NOT_RESOLVED, address)
    except (OSError, asyncio.CancelledError):
        return Found(Outcome.NOTHING_LISTENS, address)
    finally:
        timer.cancel()
    timer = clock.call_later(ANSWER_TIMEOUT_MS, question.silent)
    try:
        outcome = await question.outcome
        return Found(outcome, address, question.answer, question.why, question.has_tls)
    finally:
        timer.cancel()
        transport.close()


async def _best(clock: RealClock, addresses: list[Address], tls: SSLContext | None) -> Found:
    """The best outcome, and the first address that has it. All are asked at once; one that answers is enough."""
    asked = [asyncio.ensure_future(_ask(clock, address, tls)) for address in addresses]
    waiting = set(asked)
    found: list[Found] = []
    while waiting and not any(each.outcome is Outcome.ANSWERED for each in found):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        found += [attempt.result() for attempt in asked if attempt in done]
    for attempt in waiting:
        attempt.cancel()
    return max(found, key=lambda each: (each.outcome, -addresses.index(each.address)))


def look(addresses: list[Address]) -> Found:
    """What is at the best of the addresses now."""
    return asyncio.run(_best(RealClock(), addresses, None))


def speaks_tls(address: Address) -> bool:
    """Whether there is TLS at an address. Nothing is sent over it that anybody may not know."""
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return asyncio.run(_best(RealClock(), [address], context)).has_tls


def first_to_answer(addresses: list[Address], wait_s: float, tls: SSLContext | None = None) -> Found:
    """The first address that answers. If nothing listens at any of them for `wait_s`, what is wrong with the best one.

    While all that listen are silent, it waits without end: the caller has a time limit. One that closes the connection
    is returned, too, if no other answers: the caller's client has the words for it.
    """

    async def first() -> Found:
        clock = RealClock()
        last_ms = clock.monotonic_ms() + wait_s * 1000
        while True:
            found = await _best(clock, addresses, tls)
            if found.outcome >= Outcome.CLOSED:
                return found
            if found.outcome <= Outcome.NOTHING_LISTENS and clock.monotonic_ms() >= last_ms:
                return found
            await clock.sleep(RETRY_MS)

    return asyncio.run(first())
