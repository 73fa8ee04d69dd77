"""One HTTP connection: bytes in, requests to the routes, answers out in the order of the requests.

h11 reads and writes HTTP/1.0 and 1.1; this module does the rest. One request is handled at a time. What comes behind it
(pipelining) is handled in turns with other tasks, one request a turn, so that a thousand of them delay no other client;
when more than `READ_AHEAD_BYTES_MAX` wait, reading stops. A long answer is made and written in turns, too, as the
client takes it.

Who may ask. A request that comes from loopback needs no token. But a web page that is open on the same machine can
send requests, too: so its `Host` must name this machine (a page whose own name was bound to 127.0.0.1 is refused), an
`Origin` must be this server, and a request that changes something must be of type application/json (a page cannot send
that elsewhere without asking first). Requests from other hosts show `http.token`, or log in (`logins.py`). A client
that names the cluster that it means (`Barnabas-Cluster`) is refused by brokers of others.

Slow clients. A request must be complete, and an answer be taken on, within a time (`deadline_ms`, which the server
looks at). Limits: `HEAD_BYTES_MAX` of request line and headers, `BODY_BYTES_MAX` of a body.
"""

import asyncio
import hmac
from collections.abc import Callable, Generator, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import h11
from barnabas.broker.http import logins
from barnabas.broker.http.coordinators import check_of_group
from barnabas.broker.http.routes import METHODS_THAT_CHANGE, HttpAnswer, HttpError, HttpRequest, Route, find, is_open
from barnabas.broker.http.schemas import problem
from barnabas.broker.http.server import HttpServer
from barnabas.cluster.security.acls import ANONYMOUS, THIS_BROKER
from barnabas.cluster.security.mechanism import AuthenticationError
from barnabas.config.addresses import as_java
from barnabas.config.listeners import is_loopback, url_of
from barnabas.protocol.frames import foreign_protocol
from barnabas.runtime import strict_json
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, Work

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1024 * 1024
BODY_AT_ONCE_BYTES_MAX = 32 * 1024  # a longer body is decoded in a thread
READ_AHEAD_BYTES_MAX = 32 * 1024
ANSWER_AT_ONCE_BYTES_MAX = 64 * 1024
REQUEST_WITHIN_MS = 30_000.0  # from its first byte to its last
IDLE_MAX_MS = 60_000.0  # between two requests
TAKEN_WITHIN_MS = 30_000.0  # how long a client may take nothing of an answer
DRAINED_WITHIN_MS = 2_000.0  # what still comes after an answer that ends the connection
EVENTS_PER_TURN = 100  # of one connection; a body may come as a million chunks
NEVER = float("inf")


class HttpConnection(asyncio.Protocol):
    """A connection of one client."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._clock = server.env.clock
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport | None = None  # None: lost
        self._peer = ""
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._is_handling = False
        self._pending: Pending[Any] | None = None  # the answer to the request that is handled
        self._sending: Work | None = None
        self._writable: Pending[None] | None = None  # the sender waits for it
        self._write_paused = False
        self._is_draining = False
        self._waits_for_turn = False
        self._has_ended = False  # the client sends no more
        self.outlives_broker = False  # what it asked for is answered by a later life of the broker
        self.deadline_ms = NEVER

    # ------------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        peer = transport.get_extra_info("peername")
        if not self._server.admit(self, str(peer[0]) if peer else ""):
            cast(asyncio.Transport, transport).abort()
            return
        self.take_over(cast(asyncio.Transport, transport))

    def take_over(self, transport: asyncio.Transport) -> None:
        """Serve a connection that is counted already."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._wait(REQUEST_WITHIN_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone. What only waits is cancelled; what changes something goes on."""
        self._transport = None
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._end_sending()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._is_draining:
            return
        if self._request is None and not self._is_handling and not self._http.trailing_data[0]:
            self._wait(REQUEST_WITHIN_MS)  # its first byte
            foreign = self._foreign(data)
            if foreign is not None:
                self._server.server.note_unreadable(self._peer, "not HTTP", foreign)
                self._refuse(HttpError(400, "NOT_HTTP", f"{foreign}."))
                return
        try:
            self._http.receive_data(data)
        except RuntimeError:  # bytes after an end of file
            return
        if not self._waits_for_turn:
            self._go_on()
        if self._is_handling and len(self._http.trailing_data[0]) > READ_AHEAD_BYTES_MAX and self._transport:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more. It may still wait for answers."""
        self._has_ended = True
        if self._is_draining:
            return False
        self._http.receive_data(b"")
        if not self._waits_for_turn:
            self._go_on()
        return self._is_handling or self._waits_for_turn

    def pause_writing(self) -> None:
        """The client takes the answer too slowly."""
        self._write_paused = True
        self._wait(TAKEN_WITHIN_MS)

    def resume_writing(self) -> None:
        """The client has taken what was sent."""
        self._write_paused = False
        writable, self._writable = self._writable, None
        if writable is not None:
            self.deadline_ms = NEVER
            writable.complete(None)

    # ------------------------------------------------------------------ its end

    def end_if_late(self) -> None:
        """Called now and then: end the connection if its time is over."""
        if self._clock.monotonic_ms() < self.deadline_ms or self._transport is None:
            return
        if self._is_handling and self._http.our_state is h11.SEND_RESPONSE:
            if self._pending is not None:
                self._pending.cancel()
            self._refuse(HttpError(504, "REQUEST_TIMED_OUT", "there is no answer yet. Ask again later."))
        elif self._is_draining or self._is_handling or self._is_between_requests():
            self._transport.abort()
        else:
            self._refuse(HttpError(408, "REQUEST_TIMED_OUT", "the request was not complete in time."))

    @property
    def is_sending(self) -> bool:
        """Whether a long answer is being made and sent."""
        return self._sending is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request, or for the rest of one."""
        return self._transport is not None and not self._is_handling and not self._is_draining

    def _is_between_requests(self) -> bool:
        return self._http.their_state is h11.IDLE and not self._http.trailing_data[0]

    def close_if_idle(self) -> None:
        """The broker stops: close unless a request is under way."""
        if self._transport is not None and not self._is_handling and self._is_between_requests():
            self._transport.close()

    def close(self) -> None:
        """The broker stops: say so to a client that waits for an answer, and close."""
        if self._transport is None:
            return
        if self._is_handling and self._http.our_state is h11.SEND_RESPONSE:
            self._pending = None
            self._refuse(HttpError(503, "BROKER_NOT_AVAILABLE", "this broker stops. Ask another one."))
        self._end_sending()
        if self._transport is not None:
            self._transport.close()

    def _wait(self, span_ms: float) -> None:
        self.deadline_ms = self._clock.monotonic_ms() + span_ms

    def _end_sending(self) -> None:
        sending, self._sending = self._sending, None
        self._writable = None
        if sending is not None:
            sending.cancel()
            sending.pieces.close()

    # ------------------------------------------------------------------ reading

    def _go_on(self) -> None:
        """Read events until a request is complete, or bytes are missing."""
        try:
            for _ in range(EVENTS_PER_TURN):
                if self._transport is None or self._is_handling or self._is_draining or self._waits_for_turn:
                    return
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    self._say_continue()
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            self._cannot_read(error)
            return
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Go on when it is its turn: other tasks and connections have theirs first. Read nothing until then."""
        if self._transport is not None and not self._waits_for_turn:
            self._waits_for_turn = True
            self._transport.pause_reading()
            self._server.env.turns.begin(self._take_turn())

    def _take_turn(self) -> Pieces[None]:
        self._waits_for_turn = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._go_on()
        yield from ()

    def _take(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            self._request = event
            self._body.clear()
            if _head_bytes(event) > HEAD_BYTES_MAX:  # h11 has looked at what came in several reads
                self._head_is_too_long()
            elif _content_length(event) > BODY_BYTES_MAX:
                self._body_is_too_long()
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > BODY_BYTES_MAX:
                self._body_is_too_long()
            elif (refusal := self._refusal(self._request)) is not None:  # no body is kept for strangers
                self._refuse(refusal)
        elif isinstance(event, h11.EndOfMessage):
            self._handle()
        elif isinstance(event, h11.ConnectionClosed):
            if self._transport is not None:
                self._transport.close()
            self._is_draining = True

    def _say_continue(self) -> None:
        if self._request is not None and self._http.they_are_waiting_for_100_continue and self._transport is not None:
            refusal = self._refusal(self._request)
            if refusal is not None:
                self._refuse(refusal)
            else:
                self._transport.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    def _head_is_too_long(self) -> None:
        message = f"request line and headers have more than {HEAD_BYTES_MAX} bytes. Send less."
        self._refuse(HttpError(431, "HEADERS_TOO_LONG", message))

    def _body_is_too_long(self) -> None:
        message = f"the body has more than {BODY_BYTES_MAX} bytes. Send it as several requests."
        self._refuse(HttpError(413, "BODY_TOO_LONG", message))

    def _cannot_read(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            if self._transport is not None:
                self._transport.close()
            return
        status = error.error_status_hint
        if status == 431:
            self._head_is_too_long()
        else:
            self._refuse(HttpError(status, "NOT_HTTP", f"this is no HTTP request that can be read: {error}."))

    def _foreign(self, start: bytes) -> str | None:
        """What is said of a client that speaks another protocol than HTTP; None: it may be HTTP."""
        if start[0] == 0:  # the size of a frame that is shorter than 16 MiB
            bootstrap = self._server.services.addresses.bootstrap
            return f"it speaks Kafka's protocol, and this port has the HTTP API; Kafka's clients want {bootstrap}"
        if foreign_protocol(start[:4]) == "TLS":
            return f"it speaks TLS, and this port has HTTP without it: ask {url_of(self._server.address or '')}"
        return None

    # ------------------------------------------------------------------ who may ask

    def _refusal(self, request: h11.Request | None) -> HttpError | None:
        """Why the client may not ask this; None if it may."""
        assert request is not None
        if is_open(request.target) and not self._body:  # of strangers no body is kept
            return None
        headers = {bytes(name): bytes(value).decode("latin-1").strip() for name, value in request.headers}
        host = headers.get(b"host", "")
        token, known = self._server.config.http_token, self._server.services.logins
        authorization = headers.get(b"authorization", "")
        if not self._has_token(authorization) and not logins.shows_login(known, authorization):
            has_authorizer = self._server.gate.authorizer is not None
            if has_authorizer or not is_loopback(self._peer):
                if authorization:  # who guesses the token must not do so unseen
                    self._server.server.note_failed_login(self._peer, logins.WRONG_TOKEN)
                return logins.refusal(known, has_token=token is not None, has_authorizer=has_authorizer)
            if host and not self._is_own(host):
                message = (
                    f"the Host {host!r} is not this machine. Ask http://127.0.0.1 or http://localhost, or send the"
                )
                return HttpError(403, "FOREIGN_HOST", f"{message} token of http.token.")
        cluster_id, asked = self._server.services.cluster_id, headers.get(b"barnabas-cluster")
        if asked and cluster_id and asked != cluster_id:  # 127.0.0.1 of another machine: nothing must be changed here
            message = f"this broker is of cluster {cluster_id}, not of {asked}."
            return HttpError(421, "OTHER_CLUSTER", message)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            message = "requests from web pages of other servers are refused (header Origin)."
            return HttpError(403, "FOREIGN_ORIGIN", message)
        if request.method.decode() in METHODS_THAT_CHANGE:
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                try:
                    row = find(request.method.decode(), request.target)[0]
                except HttpError as error:  # no header would help
                    return error
                message = "what changes something is sent as JSON: set the header `Content-Type: application/json`"
                return HttpError(415, "NOT_JSON", f"{message}{_wanted(row)}.")
        return None

    def _has_token(self, authorization: str) -> bool:
        """Whether a request shows the token of http.token."""
        token = self._server.config.http_token
        scheme, _, shown = authorization.partition(" ")
        is_right = hmac.compare_digest(shown.strip().encode("latin-1"), (token or "").encode())
        return token is not None and scheme.lower() == "bearer" and is_right

    def _identify(self, authorization: str, go_on: Callable[[str], None]) -> None:
        """Find out who asks, perhaps in a thread; then go on, or refuse."""
        if self._has_token(authorization):
            go_on(ANONYMOUS if self._server.gate.authorizer is None else THIS_BROKER)
            return
        if not logins.shows_login(self._server.services.logins, authorization):
            go_on(ANONYMOUS)
            return
        asked = self._request

        def known(principal: str) -> None:
            if self._transport is not None and self._request is asked and self._http.our_state is h11.SEND_RESPONSE:
                go_on(principal)

        def unknown(error: Exception) -> None:
            why = error.why if isinstance(error, AuthenticationError) else type(error).__name__
            self._server.server.note_failed_login(self._peer, f"HTTP: {why}")
            self._clock.call_later(self._server.config.connection_failed_authentication_delay_ms, refuse)

        def refuse() -> None:
            if self._transport is not None and self._request is asked and self._http.our_state is h11.SEND_RESPONSE:
                self._answer(HttpError(401, "LOGIN_FAILED", logins.REFUSED, logins.CHALLENGES).answer)

        try:
            login = logins.principal_of(self._server.services.logins, authorization)
        except AuthenticationError as error:
            unknown(error)
            return
        login.on_failure = unknown
        login.then(known)

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this machine, whatever the port."""
        if host.startswith("["):
            name = host[1:].partition("]")[0]
        else:
            name = host.partition(":")[0]
        return is_loopback(name.lower()) or name.lower() in self._server.hosts()

    # ------------------------------------------------------------------ handling

    def _handle(self) -> None:
        """A request is complete: find its route, and ask the handler."""
        request = self._request
        assert request is not None
        self._is_handling = True
        self._server.requests += 1
        try:
            refusal = self._refusal(request)
            if refusal is not None:
                raise refusal
            method = request.method.decode()
            row, path, query = find(method, request.target)
            services = self._server.services
            if not row.while_starting and (not services.server.serving or self._server.is_closing):
                why = "stops" if self._server.is_closing else "starts"
                message = f"this broker {why}. Ask again later, or another one."
                raise HttpError(503, "BROKER_NOT_AVAILABLE", message, [("Retry-After", "1")])
            headers = dict(request.headers)
            agent = bytes(headers.get(b"user-agent", b"")).decode("latin-1")
            asked = HttpRequest(
                method,
                request.target.decode("latin-1"),
                path,
                query,
                None,
                f"/{as_java(self._peer)}",
                agent,
            )
            self._wait(row.within_ms)
            self.outlives_broker = row.ends_life
            shown = b"" if row.is_open else bytes(headers.get(b"authorization", b""))
            self._identify(shown.decode("latin-1").strip(), partial(self._handle_of, row, asked))
        except Exception as error:
            self._failed(error)

    def _handle_of(self, row: Route, asked: HttpRequest, principal: str) -> None:
        """It is known who asks: decode the body, a long one in a thread; then ask."""
        asked.principal = principal
        body = bytes(self._body)
        self._body.clear()
        if len(body) > BODY_AT_ONCE_BYTES_MAX:
            decoding = self._clock.in_thread(lambda: _decoded(row, body))
            decoding.on_failure = self._failed
            decoding.then(partial(self._ask, row, asked))
            return
        try:
            value = _decoded(row, body)
        except HttpError as error:
            self._failed(error)
        else:
            self._ask(row, asked, value)

    def _ask(self, row: Route, asked: HttpRequest, body: Any) -> None:
        """Ask the handler, unless the client was told meanwhile that there is no answer."""
        asked.body = body
        if self._transport is None or self._http.our_state is not h11.SEND_RESPONSE:
            return
        try:
            checked = check_of_group(self._server.services, asked) if row.of_group else None
            if checked is None:
                self._expect(row, self._server.gate.handle_http(row, asked, self._failure_answer))
            else:
                self._expect(row, checked)
        except Exception as error:
            self._failed(error)

    def _expect(self, row: Route, reply: Any) -> None:
        """Answer with what a handler has returned, now or later."""
        if isinstance(reply, Generator):
            reply = self._server.env.turns.run(reply, to_the_end=row.method in METHODS_THAT_CHANGE)
        if not isinstance(reply, Pending):
            self._answer(reply)
            return
        self._pending = reply
        reply.on_failure = self._failed
        reply.then(self._answer)

    def _failed(self, error: BaseException) -> None:
        self._answer(self._failure_answer(error))

    def _failure_answer(self, error: BaseException) -> HttpAnswer:
        if isinstance(error, HttpError):
            return error.answer
        request = self._request
        target = "" if request is None else f"{request.method.decode()} {request.target.decode('latin-1')}"
        self._server.note_failure(target, error)
        message = "this is a bug of the broker; its log says more."
        return HttpError(500, "UNKNOWN_SERVER_ERROR", message).answer

    # ------------------------------------------------------------------ answering

    def _refuse(self, error: HttpError) -> None:
        """Answer with an error, and end the connection: the rest of the request is not read."""
        self._is_handling = True
        answer = error.answer
        self._answer(
            HttpAnswer(answer.body, answer.status, answer.content_type, (*answer.headers, ("Connection", "close")))
        )

    def _answer(self, answer: HttpAnswer) -> None:
        self._pending = None
        transport = self._transport
        if transport is None or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return  # the client is gone, or was told that there is no answer
        if self.outlives_broker:
            self._server, self.outlives_broker = self._server.handed_on(self, self._peer), False
        self.deadline_ms = NEVER
        body = answer.body
        headers = [("Content-Type", answer.content_type), ("Cache-Control", "no-store"), *answer.headers]
        headers.append(("X-Content-Type-Options", "nosniff"))
        if self._server.is_closing and ("Connection", "close") not in headers:  # the next request would get no answer
            headers.append(("Connection", "close"))
        headers.append(("Barnabas-Broker", f"{self._server.services.cluster_id}/{self._server.services.node_id}"))
        if isinstance(body, bytes):
            headers.append(("Content-Length", str(len(body))))
        phrase = HTTPStatus(answer.status).phrase
        response = h11.Response(status_code=answer.status, headers=headers, reason=phrase)
        transport.write(self._http.send(response) or b"")
        if self._request is not None and self._request.method == b"HEAD":
            self._answered()
        elif isinstance(body, bytes) and len(body) <= ANSWER_AT_ONCE_BYTES_MAX:
            transport.write(self._http.send(h11.Data(data=body)) or b"")
            self._answered()
        else:
            pieces = _cut(body) if isinstance(body, bytes) else body
            self._sending = self._server.env.turns.begin(self._send(pieces), self._sent, self._broke_off)

    def _send(self, body: Iterator[bytes | None]) -> Pieces[None]:
        for piece in body:
            if piece and self._transport is not None:
                self._transport.write(self._http.send(h11.Data(data=piece)) or b"")
            if self._write_paused:
                self._writable = Pending()
                yield self._writable
            else:
                yield

    def _sent(self, nothing: None) -> None:
        self._sending = None
        self._answered()

    def _broke_off(self, error: Exception) -> None:
        """A part of the answer is sent, so the client can be told only by the end of the connection."""
        self._sending = None
        self._server.note_failure("an answer", error)
        if self._transport is not None:
            self._transport.abort()

    def _answered(self) -> None:
        """The answer is written. Go on with the next request, or end the connection."""
        transport = self._transport
        if transport is None:
            return
        transport.write(self._http.send(h11.EndOfMessage()) or b"")
        self._request = None
        self._is_handling = False
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._server.is_closing:
            self._http.start_next_cycle()
            transport.resume_reading()
            if not self._write_paused:
                self._wait(IDLE_MAX_MS)
            if self._http.trailing_data[0] or self._has_ended:
                self._go_on_soon()
            return
        self._is_draining = True
        if self._has_ended or self._http.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            transport.close()
            return
        # What the client still sends is read and dropped: a reset might take the answer from it.
        self._wait(DRAINED_WITHIN_MS)
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()


def _cut(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), ANSWER_AT_ONCE_BYTES_MAX):
        yield body[start : start + ANSWER_AT_ONCE_BYTES_MAX]


def _head_bytes(request: h11.Request) -> int:
    return len(request.target) + sum(len(name) + len(value) for name, value in request.headers)


def _content_length(request: h11.Request) -> int:
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
    return 0


def _wanted(row: Route) -> str:
    """What the body of a request is, as the end of a sentence."""
    if row.body is None:
        return "; it has no body"
    needed, fields = row.body["required"], row.body["properties"]
    if not needed:
        return f"; the body is a JSON object, also {{}}, with any of {', '.join(fields)}"
    others = [name for name in fields if name not in needed]
    also = f", and any of {', '.join(others)}" if others else ""
    return f"; the body is a JSON object with {', '.join(needed)}{also}"


def _decoded(row: Route, body: bytes) -> Any:
    """The body of a request. HttpError if it is not what the route asks for."""
    if row.body is None:
        if body:
            raise HttpError(400, "INVALID_BODY", f"{row.method} {row.path} takes no body.")
        return None
    if not body.strip():
        raise HttpError(400, "INVALID_BODY", f"the body is empty{_wanted(row)}.")
    try:
        value = strict_json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "INVALID_BODY", f"the body is not JSON that can be read: {error}.") from None
    found = problem(row.body, value)
    if found is not None:
        raise HttpError(400, "INVALID_BODY", f"{found}.")
    return value
