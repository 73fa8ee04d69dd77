"""One client connection: bytes in, frames to the dispatcher, answers out in the order of the requests.

Reading. All connections of a server read into one shared buffer, because a read and its handling are one step of the
loop. Frames that are complete in it are handled where they lie, without a copy. An incomplete frame moves to a buffer
of its own. That buffer grows with the bytes that have really arrived, so a false frame size costs no memory. A handler
that keeps a `records` field after it has returned must copy it (`RequestContext.kept`), because it is a view of the
frame; other fields are not. A long frame is decoded in pieces, in turns with other works, because a hundred megabytes
may hold millions of small rows. Its handler knows that the request is long (`RequestContext.is_long`).

The gate. Brokers talk to each other before this broker serves clients, and beyond max.connections. So a connection
that may not be served yet is read as long as its requests are of brokers (`Server.may_pass`). The first other request
is held until the broker serves and the connection has a place.

Order and memory. One request is in flight at a time. No further frame is handled while a request is parked, or while
the client does not take its answers (the write buffer is above its high mark). Meanwhile up to `READ_AHEAD_BYTES_MAX`
bytes are read ahead; then reading stops.

Produces that wait for replicas are the exception. Their records are in the log already, and only their answers wait
(`CarriedOut`). So the Produces behind them are handled, as long as all together have no more than
`CARRIED_OUT_BYTES_MAX`. Otherwise each batch of a producer would be a round trip to the followers of its own.

The end of the client. Every complete frame that has arrived is handled, in order, even if its client is gone. A client
that sends no more (end of file) still gets its answers; then the connection is closed. When the socket is lost, its
unread bytes are read first. Then a request that only waits (a long poll) is cancelled; a request that cannot be
cancelled is waited for; and the frames behind it are handled without an answer. Until then the connection counts as
open, so the limits on connections bound this work too. Only the broker's own decisions drop frames that have arrived:
a frame that cannot be read, a failed Produce with acks=0, an idle connection, the end of the broker.

Writing. Records that a fetch found in a file are not read into memory. They are sent from the file as the client takes
them, by the operating system or in pieces, in turns with the other connections (senders.py). If the file is gone in the
middle of an answer, the connection is closed, because the client was told the size of the answer already.
"""

import asyncio
import logging
from collections import deque
from struct import Struct
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from barnabas.broker.context import CLOSE, RequestContext
from barnabas.broker.dispatch import TABLE, Api
from barnabas.broker.refusals import not_built
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode, ProtocolError
from barnabas.protocol.frames import EncodedFrame, EncodedResponse
from barnabas.protocol.message import Message, Part, Reference
from barnabas.runtime.pending import CarriedOut, Pending
from barnabas.runtime.ports import Buffer
from barnabas.storage.open_files import FileRange

if TYPE_CHECKING:
    from barnabas.broker.server import Server

logger = logging.getLogger("barnabas.broker")

FRAME_SIZE = Struct(">i")
READ_BUFFER_BYTES = 256 * 1024
READ_AHEAD_BYTES_MAX = 64 * 1024  # of frames behind a request in flight; one more read may go beyond it
CARRIED_OUT_BYTES_MAX = 128 * 1024  # of Produces that wait for replicas, of one connection
FRAME_CAPACITY_FIRST = 1024  # memory given to an incomplete frame before its bytes have come
FRAME_CAPACITY_GROWTH = 4
DECODED_AT_ONCE_BYTES_MAX = 32 * 1024  # of a frame: a few thousand small rows, a few milliseconds
FRAMES_PER_TURN = 64  # so many of one connection are handled before the others get their turn
PART_JOINED_BELOW = 32 * 1024  # bytes; to copy fewer costs less than another send
UNSENT_BYTES_MAX = 64 * 1024  # small answers are collected up to here, then sent together
WRITE_BUFFER_HIGH = 32 * 1024
WRITE_BUFFER_LOW = 0  # sending from a file needs an empty write buffer
PIECE_BYTES = 128 * 1024  # read from a file and written at a time, where the system does not send from it

API_KEY = Struct(">h")
_NO_REPLY = object()

NOT_YET = (CoroutineType, asyncio.Future)  # concrete classes: isinstance() of the abstract Awaitable is slow


class ReadBuffer:
    """The memory that the connections of one server read into, one after the other."""

    __slots__ = ("in_use", "view")

    def __init__(self, size: int = READ_BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size))
        self.in_use = False

    def give_away(self) -> None:
        """A frame in it is needed for longer: the next read goes into other memory."""
        if self.in_use:
            self.view = memoryview(bytearray(len(self.view)))


class _Answer:
    """An answer that must wait: for replicas, or for the answers to earlier requests."""

    __slots__ = ("api", "connection", "context", "pending", "reply", "request", "size")

    def __init__(
        self, connection: "Connection", api: Api, context: RequestContext, request: Any, size: int, reply: Any
    ) -> None:
        self.connection = connection
        self.api = api
        self.context = context
        self.request = request
        self.size = size  # of the request
        self.reply = reply
        self.pending: Pending[Any] | None = None  # what it waits for

    def complete(self, reply: Any) -> None:
        """The replicas have the records."""
        self.reply = reply
        self.pending = None
        self.connection.answer_carried_out()

    def fail(self, error: BaseException) -> None:
        """The request met a bug and has no answer: answer with an error."""
        self.complete(self.connection.failure_of(self.api, self.context, self.request, error))


class Connection(asyncio.BufferedProtocol):
    """A client of one listener. Made by the server for every accepted connection."""

    __slots__ = (
        "_capacity",
        "_carried_out",
        "_carried_out_bytes",
        "_filled",
        "_frame",
        "_frame_size",
        "_handling_frames",
        "_has_ended",
        "_held",
        "_inside_handler",
        "_is_held_back",
        "_is_lost",
        "_outgoing",
        "_parked",
        "_read_ahead",
        "_reading_paused",
        "_request",
        "_server",
        "_turn_is_over",
        "_unsent",
        "_unsent_bytes",
        "_write_paused",
        "client_host",
        "closed",
        "dialled_host",
        "dialled_port",
        "is_gated",
        "last_active_ms",
        "listener_name",
        "number",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: "Server", listener_name: str) -> None:
        self._server = server
        self.listener_name = listener_name
        self.client_host = "/"
        self.dialled_host = ""
        self.dialled_port = -1
        self.closed = True
        self.last_active_ms = 0.0
        self._read_ahead = bytearray()  # received, not yet looked at
        self._frame: bytearray | None = None  # the frame being received, when it came in pieces
        self._frame_size = 0
        self._capacity = 0
        self._filled = 0
        self._parked: Pending[Any] | None = None
        self._request: tuple[Api, RequestContext, Any] | None = None  # the one in flight
        self._carried_out: deque[_Answer] = deque()  # their records are in the log; in the order of the requests
        self._carried_out_bytes = 0
        self._is_held_back = False  # the next frame waits until one of those is answered
        self._inside_handler = False
        self._handling_frames = False
        self._unsent: list[Buffer] = []  # small answers to frames of one read
        self._unsent_bytes = 0
        self._outgoing: deque[Part] = deque()  # what is left of an answer that is sent from files
        self._reading_paused = False
        self._write_paused = False
        self._turn_is_over = False  # it has handled FRAMES_PER_TURN, and goes on in the next pass of the loop
        self._has_ended = False  # the client sends no more
        self._is_lost = False  # the socket is gone: nobody gets an answer
        self.number = 0  # in the order in which the server accepted them
        self.is_gated = True  # only requests of brokers are handled
        self._held: bytes | None = None  # the frame of the request in flight, if it waits at the gate

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        self.client_host = "/" + (str(peer[0]) if peer else "")
        if local:
            self.dialled_host, self.dialled_port = str(local[0]), int(local[1])
        self.last_active_ms = self._server.env.clock.monotonic_ms()
        self._server.accepted += 1
        self.number = self._server.accepted
        refusal = self._server.admit(self)
        if refusal is not None:
            self._server.note_refused_connection(self.client_host, refusal)
            transport.close()
            return
        self.closed = False
        self.transport.set_write_buffer_limits(WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW)
        self.is_gated = not self._server.is_served(self)
        # The transport cannot be paused here: uvloop starts reading after this method in any case.
        self._write_paused = not self._server.is_reading

    def begin(self) -> None:
        """Read requests from now on. What is not of a broker stays at the gate."""
        self.resume_writing()

    def open_gate(self) -> None:
        """Handle all requests from now on: the server serves, and has a place for this connection."""
        self.is_gated = False
        held, self._held = self._held, None
        if held is not None:
            self._request = None
            self._handle_frame(memoryview(held))
        self._handle_read_ahead()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone. Handle what has arrived, without answers."""
        self._is_lost = self._has_ended = True
        self._write_paused = not self._server.is_reading
        self._unsent.clear()
        self._release_outgoing()
        if not self.closed:
            self._take_in(self._server.env.network.unread(self.transport))
        if self._parked is not None and self._parked.cancel():
            self._request = self._parked = None
        self._give_up_carried_out()
        if self.closed:
            self._forget()
        else:
            self._handle_read_ahead()

    def _take_in(self, data: bytes) -> None:
        """Handle bytes that had arrived when the transport was lost."""
        rest = memoryview(data)
        while len(rest) and not self.closed:
            buffer = memoryview(self.get_buffer(len(rest)))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            del buffer  # it is a view of a bytearray that buffer_updated may replace
            self.buffer_updated(size)

    def pause_writing(self) -> None:
        """The client takes its answers too slowly."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client has taken what was sent to it."""
        self._write_paused = False
        if self._outgoing:
            self._server.senders.ask(self)
        else:
            self._handle_read_ahead()

    def eof_received(self) -> bool:
        """The client sends no more. Keep the transport: the client still gets its answers."""
        self._has_ended = True
        if not self.closed:
            self._handle_read_ahead()
        return True

    def get_buffer(self, sizehint: int) -> Buffer:
        """Where the next bytes go: into the frame that is being received, or the shared buffer."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        assert not self._server.read_buffer.in_use, "a read inside the handling of a read"
        return self._server.read_buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete; keep the rest."""
        if self.closed:
            return
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == self._capacity:
                self._frame_filled(self._frame)
            return
        read_buffer = self._server.read_buffer
        data = read_buffer.view[:nbytes]
        if self._read_ahead or not self._may_handle():  # also when this connection's turn is over
            self._read_ahead += data
            self._handle_read_ahead()
            return
        read_buffer.in_use = True
        try:
            position = self._handle_frames(data)
        finally:
            read_buffer.in_use = False
        if position < nbytes and not self.closed:
            self._read_ahead += data[position:]
            self._pause_or_resume_reading()

    # ------------------------------------------------------------------ frames

    def _handle_read_ahead(self) -> None:
        """Handle frames that were read ahead, as far as allowed now. Close if the client has ended and all is done."""
        if self._read_ahead and self._may_handle():
            received, self._read_ahead = self._read_ahead, bytearray()
            data = memoryview(received)
            position = self._handle_frames(data)
            if not self.closed:
                self._read_ahead = bytearray(data[position:])  # a new one: handled frames may be views of the old
        self._pause_or_resume_reading()
        if self._has_ended and self._may_handle() and not self._carried_out:  # and no whole frame is left
            self.close()

    def _may_handle(self) -> bool:
        return (
            self._request is None
            and not self._is_held_back
            and not self._write_paused
            and not self.closed
            and not self._turn_is_over
            and not self._outgoing
        )

    def _pause_or_resume_reading(self) -> None:
        full = len(self._read_ahead) >= READ_AHEAD_BYTES_MAX and not self._may_handle()
        if full != self._reading_paused and not self.closed and not self._has_ended:
            self._reading_paused = full
            if full:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _handle_frames(self, data: memoryview) -> int:
        """Handle complete frames in order until one is parked, and send their answers together.

        The caller has looked whether the first may be handled. Returns how many bytes of `data` need not be kept.
        """
        end = len(data)
        position = 0
        left = FRAMES_PER_TURN
        self._handling_frames = True
        while end - position >= 4 and (position == 0 or self._may_handle()):
            if left == 0:
                self._turn_is_over = True
                self._server.env.clock.call_soon(self._take_turn)
                break
            left -= 1
            (size,) = FRAME_SIZE.unpack_from(data, position)
            if self._carried_out and not self._may_follow(data, position, size):
                break
            if not 0 < size <= self._server.frame_bytes_max:
                self._refuse(f"a frame of {size} bytes (socket.request.max.bytes={self._server.frame_bytes_max})")
                position = end
                break
            begin = position + 4
            position = begin + size
            if position > end:
                self._begin_frame(size, data[begin:])
                position = end
                break
            self._handle_frame(data[begin:position])
        self._handling_frames = False
        if not self.closed:
            self._flush()
        return position

    def _may_follow(self, data: memoryview, position: int, size: int) -> bool:
        """Whether the next frame is handled while Produces wait for replicas: if it is another one, and complete."""
        if not API_KEY.size <= size <= CARRIED_OUT_BYTES_MAX - self._carried_out_bytes:
            self._is_held_back = True
        elif len(data) - position >= 4 + size:
            self._is_held_back = API_KEY.unpack_from(data, position + 4)[0] != ApiKey.PRODUCE
            return not self._is_held_back
        return False

    def _begin_frame(self, size: int, beginning: memoryview) -> None:
        """Give an incomplete frame a buffer of its own, a few times as large as what has arrived."""
        self._frame_size = size
        self._filled = len(beginning)
        self._capacity = min(size, max(FRAME_CAPACITY_FIRST, FRAME_CAPACITY_GROWTH * self._filled))
        self._frame = bytearray(self._capacity)
        self._frame[: self._filled] = beginning

    def _frame_filled(self, frame: bytearray) -> None:
        """The frame's buffer is full: handle the frame if it is complete, or give it more room."""
        if self._capacity < self._frame_size:
            self._capacity = min(self._frame_size, FRAME_CAPACITY_GROWTH * self._capacity)
            self._frame = bytearray(self._capacity)  # a new one, because the transport still holds a view of the old
            self._frame[: self._filled] = frame
            return
        self._frame = None
        self._handle_frame(memoryview(frame))

    # ------------------------------------------------------------------ requests

    def _handle_frame(self, frame: memoryview) -> None:
        server = self._server
        self.last_active_ms = server.env.clock.monotonic_ms()
        try:
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
            )
            if context.is_long:
                api = api.in_pieces
                request = server.env.turns.run(
                    api.decode_in_pieces(header.api_version, frame, position), to_the_end=True
                )
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

    def _give_up_decoding(self, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            self._refuse(f"a request that cannot be read: {error}")
            return
        # It is a bug of the broker, not of the client.
        logger.error("a request of %s cannot be decoded; closing its connection", self.client_host, exc_info=error)
        self._server.handler_failures += 1
        self.close()

    def _waits_in_crowd(self, api: Api, context: RequestContext, frame: memoryview, position: int) -> bool:
        """Whether so many such requests have come that this one waits for its turn (crowds.py)."""
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
        self._request = (api, context, None)

        def failed(error: Exception) -> None:
            self._request = None
            self._give_up_decoding(error)

        def decoded(request: Any) -> None:
            self._request = None
            if self.closed:
                return
            self._handle_request(api, context, frame, request)
            if self._read_ahead or self._has_ended:
                self._go_on_soon()

        decoding.on_failure = failed
        decoding.then(decoded)

    def _handle_request(self, api: Api, context: RequestContext, frame: memoryview, request: Any) -> None:
        server = self._server
        if self.is_gated and not server.may_pass(self, api, request):
            self._held = bytes(frame)
            self._request = (api, context, request)
            return
        if api.is_of_brokers is True and server.is_late(self, request):
            self.close()
            return
        server.requests_of[context.api_key] += 1
        try:
            reply = api.handler(server.broker, request, context)
        except Exception:
            reply = server.answer_failure(api, context, request)
        if isinstance(reply, Message) and not self._carried_out:  # nearly always
            self._answer(api, context, request, reply)
            return
        if isinstance(reply, NOT_YET):
            reply = server.outcome(api, context, request, reply)
        if isinstance(reply, Pending):
            if self._is_lost and reply.cancel():
                return
            if type(reply) is CarriedOut:
                self._await_replicas(api, context, request, len(frame), reply)
            else:
                self._park(api, context, request, reply)
        elif self._carried_out:
            self._answer_in_turn(api, context, request, reply)
        else:
            self._answer(api, context, request, reply)

    def _handle_unserved(self, header: frames.RequestHeader) -> None:
        """Close the connection; but answer an ApiVersions that is too new with the versions served (KIP-511)."""
        api_key, api_version, correlation_id = header.api_key, header.api_version, header.correlation_id
        row = TABLE.get(api_key)
        if row is None or api_key != ApiKey.API_VERSIONS or api_version < row.first_version:
            context = RequestContext(api_key, api_version, correlation_id, header.client_id, self.client_host)
            why = (
                not_built(api_key) if row is None else f"versions {row.first_version} to {row.last_version} are served"
            )
            what = "version %d; its connection is closed: " + why
            self._server.refusals.note(context, ErrorCode.UNSUPPORTED_VERSION, what, api_version)
            self._server.protocol_errors += 1
            self.close()
            return
        if self._is_lost:
            return
        from barnabas.broker.api.api_versions import too_new

        self._write(frames.encode_response(api_key, 0, correlation_id, too_new(row)))

    def _park(self, api: Api, context: RequestContext, request: Any, reply: Pending[Any]) -> None:
        """Wait until the answer, or its encoding, is complete."""
        self._request = (api, context, request)
        self._parked = reply
        self._inside_handler = True
        reply.on_failure = self._fail
        reply.then(self._complete)
        self._inside_handler = False

    def _fail(self, error: BaseException) -> None:
        """The parked request met a bug and has no answer: answer with an error."""
        assert self._request is not None
        self._complete(self._server.answer_failure(*self._request, error))

    def _complete(self, reply: Any) -> None:
        """Send the answer of the parked request, and go on with the next frame."""
        assert self._request is not None
        api, context, request = self._request
        self._request = self._parked = None
        self.last_active_ms = self._server.env.clock.monotonic_ms()
        if self._carried_out:
            self._answer_in_turn(api, context, request, reply)
        else:
            self._answer(api, context, request, reply)
        if self._read_ahead or self._has_ended:
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Handle in the next pass of the loop what was read ahead."""
        if not self._inside_handler:
            self._server.env.clock.call_soon(self._handle_read_ahead)

    def _await_replicas(
        self, api: Api, context: RequestContext, request: Any, size: int, reply: CarriedOut[Any]
    ) -> None:
        """Answer when the replicas have the records. Produces behind it are handled meanwhile."""
        # The plain row: an answer in this queue is encoded at once, so it must not be long.
        answer = _Answer(self, TABLE[api.key], context, request, size, _NO_REPLY)
        self._carried_out.append(answer)
        self._carried_out_bytes += size
        answer.pending = reply
        self._inside_handler = True
        reply.on_failure = answer.fail
        reply.then(answer.complete)
        self._inside_handler = False

    def _answer_in_turn(self, api: Api, context: RequestContext, request: Any, reply: Any) -> None:
        """Answer behind those that wait for replicas. A long answer is encoded now, and does not wait for its turn."""
        if api.is_wide and isinstance(reply, Message):
            reply = self._encode_in_pieces(api, context, request, reply)
            if reply is None:
                return
        self._carried_out.append(_Answer(self, api, context, request, 0, reply))

    def answer_carried_out(self) -> None:
        """Send the answers that are there, in the order of the requests, and go on."""
        self.last_active_ms = self._server.env.clock.monotonic_ms()
        waiting = self._carried_out
        while waiting and waiting[0].reply is not _NO_REPLY:
            answer = waiting.popleft()
            self._carried_out_bytes -= answer.size
            self._is_held_back = False
            self._answer(answer.api, answer.context, answer.request, answer.reply)
        if self._read_ahead or self._has_ended:
            self._go_on_soon()

    def _give_up_carried_out(self) -> None:
        """The client is gone: its records stay, and nobody waits for the answers."""
        given_up, self._carried_out = self._carried_out, deque()
        self._carried_out_bytes = 0
        self._is_held_back = False
        for answer in given_up:
            if answer.pending is not None:
                answer.pending.cancel()

    def failure_of(self, api: Api, context: RequestContext, request: Any, error: BaseException) -> Any:
        """The answer to a request whose answer cannot be made."""
        return self._server.answer_failure(api, context, request, error)

    def _take_turn(self) -> None:
        self._turn_is_over = False
        self._handle_read_ahead()

    def _answer(self, api: Api, context: RequestContext, request: Any, reply: Any) -> None:
        if reply is None or self.closed:
            return
        if reply is CLOSE:
            self.close()
            return
        if self._is_lost:
            return
        if type(reply) is EncodedResponse:
            self._write([reply.frame(context.correlation_id)])
            return
        if type(reply) is EncodedFrame:
            self._write(reply.parts)
            return
        if api.is_wide:
            encoded = self._encode_in_pieces(api, context, request, reply)
            if encoded is not None:
                self._answer(api, context, request, encoded)
            return
        try:
            parts = frames.encode_response(api.key, context.api_version, context.correlation_id, reply)
        except Exception:
            self._answer(api, context, request, self._encode_failure(api, context, request))
            return
        self._write(parts)

    def _encode_in_pieces(self, api: Api, context: RequestContext, request: Any, reply: Any) -> Any:
        """The encoded answer. None: it is not ready yet, and will be sent later."""
        encoding = frames.encode_response_in_pieces(api.key, context.api_version, context.correlation_id, reply)
        try:
            encoded = self._server.env.turns.run(encoding)
        except Exception:
            return self._encode_failure(api, context, request)
        if isinstance(encoded, Pending):
            self._park(api, context, request, encoded)
            return None
        return encoded

    def _encode_failure(self, api: Api, context: RequestContext, request: Any) -> Any:
        """What the client gets instead of an answer that cannot be encoded: an error, or CLOSE."""
        failure = self._server.answer_failure(api, context, request)
        if failure is CLOSE:
            return CLOSE
        return EncodedFrame(frames.encode_response(api.key, context.api_version, context.correlation_id, failure))

    def _write(self, parts: list[Part]) -> None:
        """Send an answer: large parts without a copy, small ones joined with those of neighbouring answers."""
        for slot, part in enumerate(parts):
            size = len(part)
            if isinstance(part, Reference):
                self._outgoing.extend((*self._unsent, *parts[slot:]))
                self._unsent.clear()
                self._unsent_bytes = 0
                self._server.senders.ask(self)
                return
            if size < PART_JOINED_BELOW:
                self._unsent.append(part)
                self._unsent_bytes += size
            else:
                self._flush()
                self.transport.write(part)
        if not self._handling_frames or self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        unsent = self._unsent
        if unsent:
            self.transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
            unsent.clear()
            self._unsent_bytes = 0

    # ------------------------------------------------------------------ answers from files

    def send_some(self, bytes_max: int) -> int:
        """One turn: send more of the answer under way, about `bytes_max` at most. Returns how many bytes were sent."""
        outgoing = self._outgoing
        if not outgoing:  # the connection was lost meanwhile
            return 0
        transport, network = self.transport, self._server.env.network
        self.last_active_ms = self._server.env.clock.monotonic_ms()
        left = bytes_max
        while outgoing and left > 0 and not self._write_paused:
            if transport.is_closing():  # connection_lost will follow
                return bytes_max - left
            part = outgoing[0]
            size = len(part)
            if isinstance(part, FileRange):
                sent = part.send(network, transport, left)
                if not sent:
                    piece = part.read(PIECE_BYTES)
                    if piece is None:
                        self._break_off()
                        break
                    transport.write(piece)
                    sent = len(piece)
                left -= sent
                if sent < size:
                    continue
                part.release()
            else:
                assert not isinstance(part, Reference)
                transport.write(part)
                left -= size
            outgoing.popleft()
        if outgoing:
            if not self._write_paused:
                self._server.senders.ask(self)
        elif not self.closed:
            self._handle_read_ahead()
        elif not transport.is_closing():
            transport.close()
        return bytes_max - left

    def _break_off(self) -> None:
        """Close: a part of an answer was sent, and its rest is not on the disk any more."""
        logger.warning("closing the connection of %s: records of its answer are gone from the disk", self.client_host)
        self._release_outgoing()
        self.abort()

    def _release_outgoing(self) -> None:
        for part in self._outgoing:
            if isinstance(part, FileRange):
                part.release()
        self._outgoing.clear()

    # ------------------------------------------------------------------ the end

    def _refuse(self, what: str) -> None:
        """The client sent bytes that are no request: log one line and close the connection."""
        logger.warning("closing the connection of %s: %s", self.client_host, what)
        self._server.protocol_errors += 1
        self.close()

    def close(self) -> None:
        """Send what was written and the answer that is under way, then close. No further request is handled."""
        if not self.closed:
            self.closed = True
            if self._is_lost:
                self._forget()
                return
            self._flush()
            if not self._outgoing:
                self.transport.close()

    def _forget(self) -> None:
        self._server.forget(self)
        self._read_ahead = bytearray()
        self._frame = None

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self.closed = True
        self._release_outgoing()
        if self._is_lost:
            self._forget()
        else:
            self.transport.abort()

    def end_idleness(self) -> None:
        """Close if the client is taken for gone: nothing has come from it for connections.max.idle.ms.

        A client that waits for an answer may be idle. But if it has closed its sending half, it may have closed both,
        which looks the same from here: then it is taken for gone, and its long poll is cancelled.
        """
        if self._request is None and not self._carried_out:
            self.abort()  # not close(): a client that takes nothing would keep the connection open
        elif self._has_ended and not self._is_lost:
            self.transport.abort()
