"""One client connection: bytes in, frames to the dispatcher, answers out in the order of the requests.

Reading. All connections of a server read into one shared buffer, because a read and its handling are one step of the
loop. Complete frames are handled where they lie, without a copy. An incomplete one moves to a buffer of its own, which
grows with the bytes that have really arrived, so a false frame size costs no memory. A handler that keeps a `records`
field after it has returned must copy it (`RequestContext.kept`), because it is a view of the frame; other fields are
not. A long frame is decoded in pieces: a hundred megabytes may hold millions of small rows (`RequestContext.is_long`).

The gate. Brokers talk to each other before this broker serves clients, and beyond max.connections. So a connection that
may not be served yet is read while its requests are of brokers (`Server.may_pass`). The first other one is held.
What the client can still send and hear, and what is done with the next frame, are two tables (connection_states.py).

Order and memory. No frame is handled while a request is parked, while the client does not take its answers (the write
buffer is above its high mark), or while it has to wait because of a quota (throttles.py). Meanwhile up to
`READ_AHEAD_BYTES_MAX` bytes are read ahead. Produces that wait for replicas are the exception (carried_out.py).

The end of the client. Every complete frame that has arrived is handled, in order, even if its client is gone. A client
that sends no more (end of file) still gets its answers; then the connection is closed. When the socket is lost, its
unread bytes are read first. Then a request that only waits (a long poll) is cancelled; one that cannot be cancelled is
waited for; and the frames behind it are handled without an answer. Until then the connection counts as open. Only the
broker itself drops frames: if one cannot be read, a Produce with acks=0 failed, a client is idle, the broker ends.
"""

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.broker.answer_writer import AnswerWriter
from barnabas.broker.authentication import Authentication, begin_login
from barnabas.broker.carried_out import CARRIED_OUT_BYTES_MAX, CarriedOutAnswers
from barnabas.broker.connection_states import REQUESTS_MOVES, SOCKET_MOVES, Requests, Socket
from barnabas.broker.read_buffers import IncompleteFrame
from barnabas.broker.requests import CLOSE, NOT_YET, TABLE, Api, RequestContext
from barnabas.broker.unserved import answer_to_unserved, words_for_size
from barnabas.cluster.security.acls import ANONYMOUS
from barnabas.config.addresses import as_java
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.frames import EncodedFrame, EncodedResponse
from barnabas.protocol.message import Message
from barnabas.runtime.pending import CarriedOut, Pending
from barnabas.runtime.ports import Buffer

if TYPE_CHECKING:
    from barnabas.broker.server import Server

FRAME_SIZE: Final = Struct(">i")
READ_AHEAD_BYTES_MAX: Final = 64 * 1024  # of frames behind a request in flight; one more read may go beyond it
DECODED_AT_ONCE_BYTES_MAX = 32 * 1024  # of a frame: a few thousand small rows, a few milliseconds
FRAMES_PER_TURN: Final = 64  # of one connection, before the others get their turn
API_KEY: Final = Struct(">h")
OPEN: Final = Socket.OPEN
LOST: Final = Socket.LOST
READY: Final = Requests.READY
IN_FLIGHT: Final = Requests.IN_FLIGHT
DROPPED: Final[Requests] = Requests.DROPPED  # with its type: mypy shall believe that a call may drop what was not


class Connection(asyncio.BufferedProtocol):
    """A client of one listener. Made by the server for every accepted connection."""

    __slots__ = (
        "_authentication",
        "_carried_out",
        "_frame_bytes_max",
        "_held",
        "_in_flight",
        "_incomplete",
        "_parked",
        "_read_ahead",
        "_reading_paused",
        "_requests",
        "_server",
        "_socket",
        "_writer",
        "client_host",
        "dialled_host",
        "dialled_port",
        "is_gated",
        "last_active_ms",
        "listener_name",
        "number",
        "principal",
        "transport",
    )

    transport: asyncio.Transport
    _writer: AnswerWriter

    def __init__(self, server: "Server", listener_name: str) -> None:
        self._server = server
        self.listener_name = listener_name
        self.client_host = "/"
        self.dialled_host = ""
        self.dialled_port = -1
        self.principal = ANONYMOUS
        self.number = 0  # in the order in which the server accepted them
        self.is_gated = True  # only requests of brokers are handled
        self.last_active_ms = 0.0
        self._authentication: Authentication | None = None  # None: there is no login, or it counts for good
        self._frame_bytes_max = server.frame_bytes_max
        self._socket = Socket.NEW
        self._requests = Requests.NOT_BEGUN
        self._reading_paused = False
        self._read_ahead = bytearray()  # received, not yet looked at
        self._incomplete: IncompleteFrame | None = None  # the frame that is being received in pieces
        self._in_flight: tuple[Api, RequestContext, Any] | None = None  # the request that the next frame waits for
        self._parked: Pending[Any] | None = None  # its answer
        self._held: bytes | None = None  # its frame, if it waits at the gate
        self._carried_out = CarriedOutAnswers()

    def _socket_to(self, state: Socket) -> None:
        assert state in SOCKET_MOVES[self._socket], f"{self._socket.name} to {state.name}"
        self._socket = state

    def _requests_to(self, state: Requests) -> None:
        assert state in REQUESTS_MOVES[self._requests], f"{self._requests.name} to {state.name}"
        self._requests = state

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        server = self._server
        self.transport = cast(asyncio.Transport, transport)
        self._writer = AnswerWriter(self.transport, server.env.network, server.senders, self)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        self.client_host = "/" + (as_java(str(peer[0])) if peer else "")
        if local:
            self.dialled_host, self.dialled_port = str(local[0]), int(local[1])
        login = server.logins.get(self.listener_name)
        self._authentication, self._frame_bytes_max = begin_login(self, login, server.frame_bytes_max)
        self.note_activity()
        server.accepted += 1
        self.number = server.accepted
        refusal = server.admit(self)
        if refusal is not None:
            server.note_refused_connection(self.client_host, refusal)
            self.close()
            return
        self._socket_to(Socket.OPEN)
        self.is_gated = not server.is_served(self)
        # The transport cannot be paused until the server reads: uvloop starts reading after this method in any case.
        if server.is_reading and self not in server.arrivals.waiting:
            self._requests_to(READY)

    def begin(self) -> None:
        """Read requests from now on. What is not of a broker stays at the gate."""
        if self._requests is Requests.NOT_BEGUN:
            self._requests_to(READY)
            self._handle_read_ahead()

    def open_gate(self) -> None:
        """Handle all requests from now on: the server serves, and has a place for this connection."""
        self.is_gated = False
        if self._requests is Requests.AT_GATE and (frame := self._held) is not None:
            self._held = None
            self._end_wait()
            self._handle_frame(memoryview(frame))
        self._handle_read_ahead()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone. Handle what has arrived, without answers."""
        self._writer.drop()
        if self._socket is Socket.CLOSING:
            self._forget()
        else:
            self._socket_to(LOST)
            self._take_in(self._server.env.network.unread(self.transport))
        if self._parked is not None and self._parked.cancel():
            self._end_wait()
        if self._requests is Requests.BEHIND_PRODUCE:
            self._requests_to(READY)
        self._carried_out.give_up()
        self._handle_read_ahead()

    def _take_in(self, data: bytes) -> None:
        """Handle bytes that had arrived when the transport was lost."""
        rest = memoryview(data)
        while len(rest) and self._requests is not DROPPED:
            buffer = memoryview(self.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            del buffer  # it is a view of a bytearray that buffer_updated may replace
            self.buffer_updated(size)

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        self._handle_read_ahead()

    def all_sent(self) -> None:
        """An answer from files has been sent as a whole."""
        if self._socket is not Socket.CLOSING:
            self._handle_read_ahead()
        elif not self.transport.is_closing():
            self.transport.close()

    def note_activity(self) -> None:
        """The client is there: it sends, or takes an answer."""
        self.last_active_ms = self._server.env.clock.monotonic_ms()

    def eof_received(self) -> bool:
        """The client sends no more. Keep the transport: the client still gets its answers."""
        if self._socket is OPEN:
            self._socket_to(Socket.HALF_CLOSED)
            self._handle_read_ahead()
        return True

    def get_buffer(self, sizehint: int) -> Buffer:
        """Where the next bytes go: into the frame that is being received, or the shared buffer."""
        if self._incomplete is not None:
            return self._incomplete.free()
        assert not self._server.read_buffer.in_use, "a read inside the handling of a read"
        return self._server.read_buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete; keep the rest."""
        if self._requests is DROPPED:
            return
        if self._incomplete is not None:
            frame = self._incomplete.add(nbytes)
            if frame is not None:
                self._incomplete = None
                self._handle_frame(frame)
            return
        read_buffer = self._server.read_buffer
        data = read_buffer.view
        if self._read_ahead or not self._may_handle():
            self._read_ahead += data[:nbytes]
            self._handle_read_ahead()
            return
        read_buffer.in_use = True
        try:
            position = self._handle_frames(data, nbytes)
        finally:
            read_buffer.in_use = False
        if position < nbytes and self._requests is not DROPPED:
            self._read_ahead += data[position:nbytes]
            self._pause_or_resume_reading()

    def _may_handle(self) -> bool:
        return self._requests is READY and self._writer.takes_answers

    def _handle_read_ahead(self) -> None:
        """Handle frames that were read ahead, as far as allowed now. Close if the client has ended and all is done."""
        if self._read_ahead and self._may_handle():
            received, self._read_ahead = self._read_ahead, bytearray()
            data = memoryview(received)
            position = self._handle_frames(data, len(data))
            if self._requests is not DROPPED:
                self._read_ahead = bytearray(data[position:])  # a new one: handled frames may be views of the old
        self._pause_or_resume_reading()
        if self._socket is not OPEN and self._may_handle() and not self._carried_out.waiting:
            self.close()  # the client has ended, and no whole frame is left

    def _go_on_soon(self) -> None:
        """Handle in the next pass of the loop what was read ahead."""
        if self._read_ahead or self._socket is not OPEN:
            self._server.env.clock.call_soon(self._handle_read_ahead)

    def _pause_or_resume_reading(self) -> None:
        full = len(self._read_ahead) >= READ_AHEAD_BYTES_MAX and not self._may_handle()
        if full != self._reading_paused and self._socket is OPEN:
            self._reading_paused = full
            (self.transport.pause_reading if full else self.transport.resume_reading)()

    def _handle_frames(self, data: memoryview, end: int) -> int:
        """Handle complete frames in order until one must wait, and send their answers together.

        The caller has looked whether the first may be handled. Returns how many bytes of `data` need not be kept: those
        from `end` on were not received.
        """
        position = 0
        left = FRAMES_PER_TURN
        self._writer.collects = True
        while end - position >= 4 and (position == 0 or self._may_handle()):
            if left == 0:
                self._requests_to(Requests.TURN_OVER)
                self._server.env.clock.call_soon(self._take_turn)
                break
            left -= 1
            size: int = FRAME_SIZE.unpack_from(data, position)[0]
            if self._carried_out.waiting and not self._may_follow(data, position, size, end):
                break
            if not 0 < size <= self._frame_bytes_max and not (size == 0 and self._authentication is not None):
                self._refuse_size(size, bytes(data[position : position + 4]))
                position = end
                break
            begin = position + 4
            position = begin + size
            if position > end:
                self._incomplete = IncompleteFrame(size, data[begin:end])
                position = end
                break
            self._handle_frame(data[begin:position])
        if self._requests is not DROPPED:
            self._writer.flush()
        return position

    def _take_turn(self) -> None:
        if self._requests is Requests.TURN_OVER:
            self._requests_to(READY)
            self._handle_read_ahead()

    def _may_follow(self, data: memoryview, position: int, size: int, end: int) -> bool:
        """Whether the next frame is handled while Produces wait for replicas: if it is another one, and complete."""
        if API_KEY.size <= size <= CARRIED_OUT_BYTES_MAX - self._carried_out.size_bytes:
            if end - position < 4 + size:
                return False
            if API_KEY.unpack_from(data, position + 4)[0] == ApiKey.PRODUCE:
                return True
        self._requests_to(Requests.BEHIND_PRODUCE)
        return False

    # ------------------------------------------------------------------ requests

    def _handle_frame(self, frame: memoryview) -> None:
        server = self._server
        self.last_active_ms = server.env.clock.monotonic_ms()
        try:
            if self._authentication is not None and self._authentication.takes(frame):
                return
            header, position = frames.decode_request_header(frame)
            api = TABLE.get(header.api_key)
            if api is None or not api.serves(header.api_version):
                self._handle_unserved(header)
                return
            context = RequestContext(
                header.api_key,
                header.api_version,
                header.correlation_id,
                header.client_id,
                self.client_host,
                self.listener_name,
                self.dialled_host,
                self.dialled_port,
                server.read_buffer.in_use,
                len(frame) > DECODED_AT_ONCE_BYTES_MAX,
                self.principal,
            )
            if context.is_long:
                api = api.in_pieces
                decoding = api.decode_in_pieces(header.api_version, frame, position)
                request = server.env.turns.run(decoding, to_the_end=True)
                if isinstance(request, Pending):
                    server.read_buffer.give_away()  # nobody else may overwrite the frame until it is decoded
                    self._await_decoding(api, context, frame, request)
                    return
            elif api.comes_in_crowds and self._waits_in_crowd(api, context, frame, position):
                return
            else:
                request = api.decode(header.api_version, frame, position)
        except Exception as error:
            self._give_up_decoding(error)
            return
        self._handle_request(api, context, frame, request)

    def logged_in(self, principal: str, *, for_good: bool) -> None:
        """The client is known. Unless it must log in again, no more of its frames are looked at."""
        self.principal = principal
        self._frame_bytes_max = self._server.frame_bytes_max
        if for_good:
            self._authentication = None

    def send(self, parts: list[Any]) -> None:
        """Send a frame of a login, unless nobody hears."""
        if self._socket in (Socket.OPEN, Socket.HALF_CLOSED):
            self._writer.write(parts)

    def _give_up_decoding(self, error: Exception) -> None:
        if isinstance(error, ProtocolError | UnsupportedVersionError):
            self._refuse("unreadable", f"a request that cannot be read: {error}")
            return
        self._server.gate.note_decoding_failure(self.client_host, error)
        self.close()

    def _waits_in_crowd(self, api: Api, context: RequestContext, frame: memoryview, position: int) -> bool:
        """Whether this request waits for its turn, because very many of its kind have come (crowds.py)."""
        turn = self._server.crowds.enter()
        if turn is None:
            return False
        kept = memoryview(bytes(frame))
        decoding = turn.map(lambda _: api.decode(context.api_version, kept, position))
        self._await_decoding(api, context, kept, decoding)
        return True

    def _await_decoding(self, api: Api, context: RequestContext, frame: memoryview, decoding: Pending[Any]) -> None:
        """Handle the request when it is decoded. Its frame is kept until then."""
        context.keep_frame()
        self._requests_to(IN_FLIGHT)
        self._in_flight = (api, context, None)

        def failed(error: Exception) -> None:
            self._end_wait()
            self._give_up_decoding(error)

        def decoded(request: Any) -> None:
            self._end_wait()
            if self._requests is not DROPPED:
                self.note_activity()
                self._handle_request(api, context, frame, request)
                self._go_on_soon()

        decoding.on_failure = failed
        decoding.then(decoded)

    def _end_wait(self) -> None:
        """The request that the next frame waited for goes on, or is given up."""
        self._in_flight = self._parked = None
        if self._requests is not DROPPED:
            self._requests_to(READY)

    def _handle_request(self, api: Api, context: RequestContext, frame: memoryview, request: Any) -> None:
        server = self._server
        if self.is_gated and not server.may_pass(self, api, request):
            self._held = bytes(frame)
            self._requests_to(Requests.AT_GATE)
            self._in_flight = (api, context, request)
            return
        if api.is_of_brokers is True and server.is_late(self, api, request):
            self.close()
            return
        server.requests_of[context.api_key] += 1
        if server.throttles is None:
            reply = server.gate.handle(api, request, context)
        else:
            began_ms = self.last_active_ms  # of its decoding, if that did not wait
            reply = server.throttles.handle(server.gate, api, request, context, len(frame), began_ms)
        if not isinstance(reply, Pending):
            if isinstance(reply, Message) and not self._carried_out.waiting:  # nearly always
                self._answer(api, context, request, reply)
                return
            if isinstance(reply, NOT_YET):
                reply = server.gate.outcome(api, context, request, reply)
        if not isinstance(reply, Pending):
            self._answer_in_order(api, context, request, reply)
        elif self._socket is LOST and reply.cancel():
            return
        elif reply.done:
            self._answer_in_order(api, context, request, reply.take())
        elif type(reply) is CarriedOut:
            failed, completed = server.gate.answer_failure, self._answer_carried_out
            self._carried_out.await_replicas(api, context, request, len(frame), reply, failed, completed)
        else:
            self._park(api, context, request, reply)

    def _handle_unserved(self, header: frames.RequestHeader) -> None:
        parts = answer_to_unserved(self._server.gate.refusals, header, self.client_host)
        if parts is None:
            self._server.protocol_errors += 1
            self.close()
        elif self._socket is not LOST:
            self._writer.write(parts)

    def _park(self, api: Api, context: RequestContext, request: Any, reply: Pending[Any]) -> None:
        """Wait until the answer, or its encoding, is complete."""
        self._requests_to(IN_FLIGHT)
        self._in_flight = (api, context, request)
        self._parked = reply
        reply.on_failure = self._fail
        reply.then(self._complete)

    def _fail(self, error: BaseException) -> None:
        """The parked request met a bug and has no answer: answer with an error."""
        assert self._in_flight is not None
        self._complete(self._server.gate.answer_failure(*self._in_flight, error))

    def _complete(self, reply: Any) -> None:
        """Send the answer of the parked request, and go on with the next frame."""
        assert self._in_flight is not None
        api, context, request = self._in_flight
        self._end_wait()
        self.last_active_ms = self._server.env.clock.monotonic_ms()
        if self._carried_out.waiting:
            self._answer_in_order(api, context, request, reply)
        else:
            self._answer(api, context, request, reply)
        self._go_on_soon()

    def _answer_carried_out(self) -> None:
        """Send the answers that are there, in the order of the requests, and go on."""
        self.note_activity()
        while answer := self._carried_out.take_first():
            if self._requests is Requests.BEHIND_PRODUCE:
                self._requests_to(READY)
            self._answer(*answer)
        self._go_on_soon()

    def _answer_in_order(self, api: Api, context: RequestContext, request: Any, reply: Any) -> None:
        """Answer now, or behind those that wait for replicas. A long answer is encoded now, in any case."""
        if not self._carried_out.waiting:
            self._answer(api, context, request, reply)
            return
        if api.is_wide and isinstance(reply, Message) and api.encodes_in_pieces(reply):
            reply = self._encode_in_pieces(api, context, request, reply)
            if reply is None:
                return
        self._carried_out.put_behind(api, context, request, reply)

    def _answer(self, api: Api, context: RequestContext, request: Any, reply: Any) -> None:
        if self._server.throttles is not None and self._server.throttles.are_asked(context):
            reply, throttle_ms, sending = self._server.throttles.answer(api, request, context, reply)
            self._answer(api, context, request, reply)
            self._writer.count(sending)
            if throttle_ms and self._socket in (Socket.OPEN, Socket.HALF_CLOSED):
                self._writer.mute(self._server.env.clock, throttle_ms)
            return
        if reply is CLOSE:
            self.close()
        if reply is None or self._requests is DROPPED or self._socket is LOST:
            return
        if type(reply) is EncodedResponse:
            self._writer.write([reply.frame(context.correlation_id)])
            return
        if type(reply) is EncodedFrame:
            self._writer.write(reply.parts)
            if reply.is_last:
                self.close()
            return
        if api.is_wide and api.encodes_in_pieces(reply):
            encoded = self._encode_in_pieces(api, context, request, reply)
            if encoded is not None:
                self._answer(api, context, request, encoded)
            return
        try:
            parts = frames.encode_response(api.key, context.api_version, context.correlation_id, reply)
        except Exception:
            self._answer(api, context, request, self._server.gate.encoded_failure(api, context, request))
            return
        self._writer.write(parts)

    def _encode_in_pieces(self, api: Api, context: RequestContext, request: Any, reply: Any) -> Any:
        """The encoded answer. None: it is not ready yet, and will be sent later."""
        encoding = frames.encode_response_in_pieces(api.key, context.api_version, context.correlation_id, reply)
        try:
            encoded = self._server.env.turns.run(encoding)
        except Exception:
            return self._server.gate.encoded_failure(api, context, request)
        if isinstance(encoded, Pending):
            self._park(api, context, request, encoded)
            return None
        return encoded

    def _refuse_size(self, size: int, start: bytes) -> None:
        """A frame that cannot have this size: often the first bytes of another protocol."""
        kind, what, answer = words_for_size(self._server, size, start, self._frame_bytes_max)
        is_first = self._writer.is_empty and not self._carried_out.waiting
        if answer is not None and self._socket is not LOST and is_first:
            self._writer.write([answer])
        self._refuse(kind, what)

    def _refuse(self, kind: str, what: str) -> None:
        """The client sent bytes that are no request: close the connection. The log says it once a minute."""
        self._server.note_unreadable(self.client_host, kind, what)
        self.close()

    def close(self) -> None:
        """Send what was written and the answer that is under way, then close. No further request is handled."""
        if self._requests is DROPPED:
            return
        self._requests_to(DROPPED)
        if self._socket is LOST:
            self._forget()
            return
        self._socket_to(Socket.CLOSING)
        self._writer.flush()
        if not self._writer.is_sending:
            self.transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._writer.drop()
        self.close()
        if self._socket is Socket.CLOSING:
            self.transport.abort()

    def _forget(self) -> None:
        self._socket_to(Socket.GONE)
        self._server.forget(self)
        self._read_ahead = bytearray()
        self._incomplete = None
        self._authentication = None  # it knows this connection, as the writer does: cycles would keep their memory
        self._writer.end()

    def end_idleness(self) -> None:
        """Close if the client is taken for gone: nothing has come from it for connections.max.idle.ms.

        A client that waits for an answer may be idle. But if it has closed its sending half, it may have closed both,
        which looks the same from here: then it is taken for gone, and its long poll is cancelled.
        """
        if self._in_flight is None and not self._carried_out.waiting:
            self.abort()  # not close(): a client that takes nothing would keep the connection open
        elif self._socket in (Socket.HALF_CLOSED, Socket.CLOSING):
            self.transport.abort()
