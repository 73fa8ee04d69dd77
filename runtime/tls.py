"""TLS over any connection: a transport for the protocol above it, and a protocol of the transport below it.

The library is OpenSSL, by `ssl.SSLObject`: bytes in, bytes out. asyncio's own TLS would not do here: it tells nobody
of a connection before its handshake is over (so no limit counts it), drops the alert that says why a handshake has
failed, and cannot keep a connection whose client sends no more.

The protocol above has its connection from the begin. What it writes before the end of the handshake is sent then. What
comes is given to it as by any transport; a client that sends no more still gets its answers. A handshake is done in
turns with other tasks, because signing takes a millisecond, and a thousand clients may come at once. A handshake that
is not over in time, or fails, ends the connection; the other side gets the alert that says why.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, cast

from barnabas.runtime.ports import Buffer, Clock, Timer
from barnabas.runtime.turns import Turns, Work

HANDSHAKE_WITHIN_MS = 10_000.0
READ_BYTES: Final = 64 * 1024  # taken from the socket at once: four records
HANDSHAKE_BYTE: Final = 22  # the first of each connection that speaks TLS
PLAIN_START_BYTES = 16  # kept of what a client without TLS has sent first


class State(Enum):
    """How far a connection is."""

    HANDSHAKE = "nobody is known yet"
    OPEN = "bytes go both ways"
    CLOSED = "nothing is sent any more"


class TlsError(Exception):
    """Keys, certificates or words about TLS cannot be used: str() says which, and why. It names no secret."""


class HandshakeError(Exception):
    """A handshake has failed: str() says why. `plain` are the first bytes of an other side that speaks no TLS."""

    def __init__(self, why: str, plain: bytes = b"") -> None:
        super().__init__(why)
        self.plain = plain


@dataclass(slots=True, eq=False)
class TlsSide:
    """What the connections of one listener, or of one client, have in common.

    `context` is asked for each connection. `server_hostname` None: this is the side of the server. `on_open` hears that
    the other side is known, before any of its bytes are read, and may close the connection. `on_failure` hears why a
    handshake has failed, or an alert that has come later.
    """

    clock: Clock
    turns: Turns
    context: Callable[[], ssl.SSLContext]
    on_open: "Callable[[TlsTransport], None]" = lambda transport: None
    on_failure: "Callable[[TlsTransport, HandshakeError], None]" = lambda transport, error: None
    server_hostname: str | None = None
    # The buffer of all: a read and its handling are one step of the loop.
    buffer: memoryview = field(init=False, default_factory=lambda: memoryview(bytearray(READ_BYTES)))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, side: TlsSide, above: asyncio.BufferedProtocol | asyncio.Protocol) -> None:
        super().__init__()
        self.above = above
        self.below = cast(asyncio.Transport, None)  # until the connection is made
        self._side = side
        self._state = State.HANDSHAKE
        self._object: ssl.SSLObject | None = None  # made with the first bytes: a silent client costs little
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent: list[Buffer] = []  # written before the end of the handshake
        self._timer: Timer | None = None
        self._turn: Work | None = None
        self._is_paused = False
        self._is_full = False  # the other side does not take what is sent
        self._waits_for_room = False  # nothing is read until it does
        self._has_ended = False  # the other side sends no more
        self._told_end = False

    # ------------------------------------------------------------------ the side of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.below = cast(asyncio.Transport, transport)
        self._timer = self._side.clock.call_later(HANDSHAKE_WITHIN_MS, self._is_late)
        self.above.connection_made(self)
        if self._side.server_hostname is not None and self._state is State.HANDSHAKE:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> Buffer:
        return self._side.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is State.CLOSED:
            return
        received = self._side.buffer[:nbytes]
        if self._state is State.OPEN:
            self._incoming.write(received)
            self._deliver()
            return
        if self._object is None and received[0] != HANDSHAKE_BYTE:
            self._fail(HandshakeError("it does not speak TLS", bytes(received[:PLAIN_START_BYTES])))
            return
        self._incoming.write(received)
        if self._turn is None:
            self.below.pause_reading()  # so nobody can send without end meanwhile
            self._turn = self._side.turns.begin(self._take_turn())

    def eof_received(self) -> bool:
        """The other side sends no more. Keep the transport: it may still hear."""
        self._has_ended = True
        if self._state is State.OPEN:
            self._deliver()
        elif self._state is State.HANDSHAKE and self._object is None and self._turn is None:
            self.close()  # it has said nothing, as a probe does
        elif self._state is State.HANDSHAKE and self._turn is None:
            self._fail(HandshakeError("it has closed the connection in the middle of the handshake"))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is State.HANDSHAKE and self._object is not None:
            self._side.on_failure(self, HandshakeError("the connection was lost in the middle of the handshake"))
        self._end_handshake()
        was_open, self._state = self._state is State.OPEN, State.CLOSED
        above = self.above
        try:
            if was_open:
                self._state = State.OPEN  # the protocol above may ask for what is unread
            above.connection_lost(exc)
        finally:
            self._state = State.CLOSED
            self.above, self._object = asyncio.BufferedProtocol(), None  # no cycle keeps the memory of both

    def pause_writing(self) -> None:
        self._is_full = True
        self.above.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._waits_for_room:
            self._waits_for_room = False
            self._read_on()
        self.above.resume_writing()

    # ------------------------------------------------------------------ the handshake

    def _take_turn(self) -> Any:
        self._turn = None
        self._read_on()
        self._shake_hands()
        return
        yield

    def _shake_hands(self) -> None:
        if self._state is not State.HANDSHAKE:
            return
        try:
            if self._object is None:
                name = self._side.server_hostname
                self._object = self._side.context().wrap_bio(
                    self._incoming, self._outgoing, server_side=name is None, server_hostname=name
                )
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
            if self._has_ended:
                self._fail(HandshakeError("it has closed the connection in the middle of the handshake"))
        except (ssl.SSLError, ValueError) as error:  # ValueError: a name that no certificate can have
            self._fail(HandshakeError(words_for(error)))
        else:
            if self._resumes_an_expired_certificate():
                self._fail(HandshakeError("its certificate is refused: certificate has expired"))
            else:
                self._open()

    def _resumes_an_expired_certificate(self) -> bool:
        """Whether a client resumes a session (TLS 1.2) whose certificate has expired since.

        OpenSSL has looked at the certificate only when the session began.
        """
        if self._object is None or not self._object.session_reused:
            return False
        ends = (self._object.getpeercert() or {}).get("notAfter")
        return ends is not None and ssl.cert_time_to_seconds(str(ends)) * 1000 < self._side.clock.now_ms()

    def _open(self) -> None:
        self._end_handshake()
        self._state = State.OPEN
        self._side.on_open(self)
        unsent, self._unsent = self._unsent, []
        for data in unsent:
            if self._state is State.OPEN:
                self._encrypt(data)
        self._send_outgoing()
        self._deliver()

    def _is_late(self) -> None:
        self._timer = None
        what = "is not complete" if self._object is not None else "has not begun"
        error = HandshakeError(f"the handshake {what} after {HANDSHAKE_WITHIN_MS / 1000:.0f} s")
        self._side.on_failure(self, error)
        self.abort()

    def _fail(self, error: HandshakeError) -> None:
        """Send the alert, if there is one, and close."""
        if self._state is not State.HANDSHAKE:
            return
        self._send_outgoing()
        self._side.on_failure(self, error)
        self.close()

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def peer_certificate(self) -> bytes | None:
        """What the other side has shown (DER), and was checked; None: it has shown none."""
        return None if self._object is None else self._object.getpeercert(binary_form=True)

    # ------------------------------------------------------------------ what comes

    def _deliver(self) -> None:
        """Give the protocol above what has come, as far as it reads."""
        while self._state is State.OPEN and not self._is_paused:
            if isinstance(self.above, asyncio.Protocol):
                data = self._decrypt()
                if not data:
                    break
                self.above.data_received(data)
                continue
            buffer = memoryview(cast(Any, self.above.get_buffer(-1)))
            filled = self._decrypt_into(buffer)
            del buffer  # the protocol may replace what it is a view of
            if not filled:
                break
            self.above.buffer_updated(filled)
        else:
            return
        if self._outgoing.pending and self._is_full:
            # TLS itself answers, to requests for new keys: who asks for them without end must take the answers.
            self._waits_for_room = True
            self.below.pause_reading()
        self._send_outgoing()
        if self._has_ended and not self._told_end and self._state is State.OPEN:
            self._told_end = True
            if not self.above.eof_received():
                self.close()

    def _decrypt_into(self, buffer: memoryview) -> int:
        """Fill a buffer with what has come; returns how many bytes there were."""
        filled, size = 0, len(buffer)
        assert self._object is not None
        try:
            while filled < size:
                read = self._object.read(size - filled, buffer[filled:])
                if not read:  # the other side has said that it sends no more
                    self._has_ended = True
                    break
                filled += cast(int, read)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._has_ended = True
        except ssl.SSLError as error:  # an alert, or bytes that nobody may have sent
            if not filled:  # with TLS 1.3 a server refuses a client's certificate only now
                self._side.on_failure(self, HandshakeError(words_for(error)))
                self.abort()
        return filled

    def _decrypt(self) -> bytes:
        buffer = bytearray(READ_BYTES)
        filled = self._decrypt_into(memoryview(buffer))
        return bytes(buffer[:filled])

    def decrypted(self, received: bytes) -> bytes:
        """All that has come and was not read, with these bytes behind it, on a connection that is lost."""
        if self._object is None or self._state is not State.OPEN:
            return b""
        self._incoming.write(received)
        pieces = []
        while piece := self._decrypt():
            pieces.append(piece)
        return b"".join(pieces)

    # ------------------------------------------------------------------ the side of the protocol above

    def write(self, data: Buffer) -> None:
        """Send, or keep until the handshake is over."""
        if self._state is State.OPEN:
            self._encrypt(data)
            self._send_outgoing()
        elif self._state is State.HANDSHAKE:
            self._unsent.append(bytes(data))

    def _encrypt(self, data: Buffer) -> None:
        assert self._object is not None
        left = memoryview(data)
        try:
            while len(left):
                left = left[self._object.write(left) :]
        except ssl.SSLError:  # the connection has met an error before
            self.abort()

    def _send_outgoing(self) -> None:
        if self._outgoing.pending:
            self.below.write(self._outgoing.read())

    def close(self) -> None:
        """Send what was written, and that nothing more follows; then close."""
        if self._state is State.CLOSED:
            return
        if self._state is State.OPEN and self._object is not None:
            with suppress(ssl.SSLError):  # the other side has not said the same yet, and need not
                self._object.unwrap()
        self._end_handshake()
        self._state = State.CLOSED
        self._send_outgoing()
        self.below.close()

    def abort(self) -> None:
        self._end_handshake()
        self._state = State.CLOSED
        self.below.abort()

    def is_closing(self) -> bool:
        return self._state is State.CLOSED or self.below.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        self.below.pause_reading()

    def resume_reading(self) -> None:
        """Read again; what had come already is delivered in the next pass of the loop."""
        self._is_paused = False
        self._read_on()
        self._side.clock.call_soon(self._deliver)

    def _read_on(self) -> None:
        """Read from the socket, unless something is waited for."""
        if not (self._is_paused or self._waits_for_room or self._turn or self.below.is_closing()):
            self.below.resume_reading()

    def is_reading(self) -> bool:
        return not self._is_paused and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As of the transport below: TLS adds a hundredth."""
        self.below.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.below.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        return self.below.get_write_buffer_size() + sum(map(len, self._unsent))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in ("ssl_object", "sslcontext"):
            return self._object if name == "ssl_object" else self._side.context()
        return self.below.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.above = cast(asyncio.Protocol, protocol)


_WORDS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, or no version that is enabled here",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is enabled here (ssl.enabled.protocols)",
    "NO_PROTOCOLS_AVAILABLE": "no version of TLS is enabled (ssl.enabled.protocols)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it accepts no version of TLS that is enabled here (ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "it has no cipher suite that is enabled here (ssl.cipher.suites)",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it accepts no cipher suite or certificate of this side",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate (ssl.client.auth=required)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of this side (ssl.keystore)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this side's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this side's certificate is not valid at this time",
}


def words_for(error: Exception) -> str:
    """Why a handshake has failed, as the end of a sentence about the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return _WORDS.get(reason, f"the handshake has failed: {reason.lower().replace('_', ' ')}")
    return str(error)
