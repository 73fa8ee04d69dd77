"""How a connection of a SASL listener logs in, before its first request is handled, and again when its time is over.

A client asks for a mechanism (SaslHandshake), then sends its messages: in SaslAuthenticate, or without any request
around them after a SaslHandshake of version 0, as clients of Kafka 0.10 do. Until then it may ask ApiVersions, and
nothing else: another request ends the connection, in the middle of a login with an answer. A login that fails is
answered after connection.failed.authentication.delay.ms, and the connection is closed. With connections.max.reauth.ms a
client logs in again in time (KIP-368), as the same user by the same mechanism; the first request after that time ends
the connection.
"""

from struct import Struct
from typing import Any, Protocol

from barnabas.broker.connection_states import LOGIN_MOVES, Login
from barnabas.broker.logins import ListenerLogins
from barnabas.broker.requests import TABLE
from barnabas.cluster.security.mechanism import MESSAGE_BYTES_MAX, AuthenticationError, ServerSide
from barnabas.config.sasl import MECHANISMS
from barnabas.protocol import codec, frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode, UnsupportedVersionError
from barnabas.protocol.message import Message

API_KEY = Struct(">h")
SIZE = Struct(">i")
VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}  # the last of each
# Before a login, also where sasl.server.max.receive.size allows more: a message, and the longest client id.
REQUEST_BYTES_MAX = MESSAGE_BYTES_MAX + 33 * 1024
REFUSED_BYTES_MAX = 8 * 1024  # of a request that is decoded only to refuse it
STEPS_MAX = 10  # messages of one login
KAFKAS_MECHANISMS = {*MECHANISMS, "GSSAPI"}


class LoggingIn(Protocol):
    """The connection that logs in."""

    client_host: str

    def send(self, parts: list[Any]) -> None:
        """Send a frame."""

    def close(self) -> None:
        """Send what was written, and close."""

    def logged_in(self, principal: str, *, for_good: bool) -> None:
        """The client is known."""


def begin_login(
    connection: LoggingIn, logins: ListenerLogins | None, bytes_max: int
) -> tuple["Authentication | None", int]:
    """The login that a new connection has to do (None: none), and how large its requests may be until then."""
    if logins is None:
        return None, bytes_max
    return Authentication(connection, logins), min(logins.bytes_max, REQUEST_BYTES_MAX, bytes_max)


class Authentication:
    """The logins of one connection."""

    __slots__ = ("_connection", "_expires_ms", "_logins", "_server", "_state", "_steps", "_user")

    def __init__(self, connection: LoggingIn, logins: ListenerLogins) -> None:
        self._connection = connection
        self._logins = logins
        self._state = Login.NOT_BEGUN
        self._server: ServerSide | None = None  # of the login that is under way, or of the last one
        self._user: str | None = None  # who has logged in, and by which mechanism
        self._expires_ms: float | None = None
        self._steps = 0

    def _to(self, state: Login) -> None:
        assert state in LOGIN_MOVES[self._state], f"{self._state.name} to {state.name}"
        self._state = state

    def takes(self, frame: memoryview) -> bool:
        """Whether the frame is one of a login, or may not be handled at all. ProtocolError: it cannot be read."""
        state = self._state
        if state is Login.REFUSED:
            return True
        if state is Login.RAW_TOKENS:
            self._step(bytes(frame), None)
            return True
        key = API_KEY.unpack_from(frame)[0] if len(frame) >= API_KEY.size else -1
        if key == ApiKey.SASL_HANDSHAKE and state in (Login.NOT_BEGUN, Login.DONE):
            self._handshake(*self._decoded(frame))
        elif key == ApiKey.SASL_AUTHENTICATE and state is Login.TOKENS:
            header, request = self._decoded(frame)
            self._step(bytes(request.auth_bytes), header)
        elif state is Login.DONE:
            return self._is_over()
        elif key == ApiKey.API_VERSIONS and state is Login.NOT_BEGUN:
            return False
        elif state is Login.TOKENS and len(frame) <= REFUSED_BYTES_MAX:
            self._refuse_in_the_middle(frame)
        else:
            self._refuse("a request before it has logged in")
        return True

    def _is_over(self) -> bool:
        """Whether the time has passed for which the login counts. Then the connection ends."""
        if self._expires_ms is None or self._logins.now_ms() < self._expires_ms:
            return False
        assert self._server is not None
        self._logins.on_end(self._connection.client_host, f"{self._user} ({self._server.mechanism})")
        self._to(Login.REFUSED)
        self._connection.close()
        return True

    def _decoded(self, frame: memoryview) -> tuple[frames.RequestHeader, Any]:
        header, position = frames.decode_request_header(frame)
        key = ApiKey(header.api_key)
        if header.api_version > VERSIONS[key]:
            raise UnsupportedVersionError(f"{key.kafka_name} has no version {header.api_version}")
        return header, codec.decoder(messages.request_class(key), header.api_version)(frame, position)[0]

    def _handshake(self, header: frames.RequestHeader, request: messages.SaslHandshakeRequest) -> None:
        enabled = self._logins.mechanisms
        answer = messages.SaslHandshakeResponse(mechanisms=list(enabled))
        mechanism = request.mechanism
        if mechanism not in enabled:
            answer.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            # Names that are made up would be a kind of failure each, and leave no room in the log for others.
            named = f"the SASL mechanism {mechanism}" if mechanism in KAFKAS_MECHANISMS else "an unknown SASL mechanism"
            self._note_failure(f"{named} is not enabled here")
            self._end(self._parts(header, answer))
            return
        if self._user is not None and self._server is not None and self._server.mechanism != mechanism:
            answer.error_code = ErrorCode.ILLEGAL_SASL_STATE
            self._note_failure("it wants to log in again by another mechanism")
            self._end(self._parts(header, answer))
            return
        self._server = self._logins.server(mechanism)
        self._steps = 0
        self._to(Login.TOKENS if header.api_version > 0 else Login.RAW_TOKENS)
        self._connection.send(self._parts(header, answer))

    def _step(self, token: bytes, header: frames.RequestHeader | None) -> None:
        """Take a message of the mechanism. Without a header it came alone, and is answered so."""
        server = self._server
        assert server is not None
        self._steps += 1
        answer = messages.SaslAuthenticateResponse(error_message="")
        try:
            if self._steps > STEPS_MAX:
                raise AuthenticationError("Authentication failed: too many messages")
            answer.auth_bytes = server.step(token)
            if server.refusal is not None:  # its client need not send what it fails by
                self._note_failure(f"{server.mechanism}: {server.refusal.why}")
            if server.is_complete and self._user not in (None, server.principal):
                before, now = (str(each).replace(":", ".", 1) for each in (self._user, server.principal))
                told = f"Cannot change principals during re-authentication from {before}: {now}"
                raise AuthenticationError(told, "it wants to log in again as somebody else")
        except AuthenticationError as error:
            answer.error_code, answer.error_message = ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)
            answer.auth_bytes = b""
            if error is not server.refusal:
                self._note_failure(f"{server.mechanism}: {error.why}")
            self._end([] if header is None else self._parts(header, answer))
            return
        if server.is_complete:
            self._complete(server, answer)
        token = bytes(answer.auth_bytes)
        self._connection.send([SIZE.pack(len(token)) + token] if header is None else self._parts(header, answer))

    def _complete(self, server: ServerSide, answer: messages.SaslAuthenticateResponse) -> None:
        self._to(Login.DONE)
        self._user = server.principal
        lifetime_ms = self._logins.session_lifetime_ms(server)  # clients of Kafka 0.10 do not hear of it
        answer.session_lifetime_ms = lifetime_ms or 0
        self._expires_ms = None if lifetime_ms is None else self._logins.now_ms() + lifetime_ms
        self._connection.logged_in(server.principal, for_good=lifetime_ms is None)

    def _refuse(self, why: str) -> None:
        """End the connection without an answer."""
        self._note_failure(why)
        self._to(Login.REFUSED)
        self._connection.close()

    def _refuse_in_the_middle(self, frame: memoryview) -> None:
        """End a login that is under way with an answer to another request, in the words of its API, as Kafka does.

        An answer that has no place for the error is not sent: a client (aiokafka) takes one of Metadata for a success.
        """
        header, position = frames.decode_request_header(frame)
        api = TABLE.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            self._refuse("a request in the middle of a login")
            return
        request = api.decode(header.api_version, frame, position)
        answers = [api.failure_response(request, each) for each in (ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.NONE)]
        told, blank = ([] if each is None else self._parts(header, each) for each in answers)
        wants_none = header.api_key == ApiKey.PRODUCE and request.acks == 0
        self._note_failure("a request in the middle of a login")
        self._end([] if wants_none or told == blank else told)

    def _note_failure(self, why: str) -> None:
        self._logins.on_failure(self._connection.client_host, why)

    def _end(self, parts: list[Any]) -> None:
        """The login has failed: answer after a while, so that nobody can try many passwords, and close."""
        self._to(Login.REFUSED)

        def answer() -> None:
            if parts:
                self._connection.send(parts)
            self._connection.close()

        self._logins.after_delay(answer)

    @staticmethod
    def _parts(header: frames.RequestHeader, answer: Message) -> list[Any]:
        return frames.encode_response(header.api_key, header.api_version, header.correlation_id, answer)
