"""The states of a connection, and the moves that are allowed. Another move is a bug of the broker (as h11 has it).

A connection is in one state of each table. `Socket` says what the client can still send and hear. `Requests` says what
is done with the next frame: it is handled at once when they are READY and the client takes its answers (AnswerWriter).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Socket(Enum):
    """The two directions of the socket."""

    NEW = "accepted by the system, not counted yet"
    OPEN = "the client sends and hears"
    HALF_CLOSED = "the client sends no more; it still gets its answers"
    LOST = "nobody hears; complete frames that have arrived are handled without answers"
    CLOSING = "the broker closes; what was written is sent"
    GONE = "forgotten by the server"

    __hash__ = object.__hash__  # as quick as a look into a table should be; Enum's own is written in Python


class Requests(Enum):
    """What is done with the next frame."""

    NOT_BEGUN = "kept until the broker reads requests"
    READY = "handled at once"
    IN_FLIGHT = "waits for the request before it, which is being decoded, answered or encoded"
    AT_GATE = "waits behind a request that is not of a broker, until the broker serves clients"
    BEHIND_PRODUCE = "waits for a Produce that waits for replicas"
    TURN_OVER = "waits for the next pass of the loop, because others have their turn"
    DROPPED = "not handled any more"

    __hash__ = object.__hash__


class Login(Enum):
    """How far the login of a connection is, if its listener has SASL."""

    NOT_BEGUN = "ApiVersions or SaslHandshake is expected"
    TOKENS = "SaslAuthenticate is expected"
    RAW_TOKENS = "the mechanism's messages are expected, without requests around them"
    DONE = "the client is known"
    REFUSED = "the login has failed, and the connection ends"

    __hash__ = object.__hash__


LOGIN_MOVES: Final[Mapping[Login, frozenset[Login]]] = {
    Login.NOT_BEGUN: frozenset({Login.TOKENS, Login.RAW_TOKENS, Login.REFUSED}),
    Login.TOKENS: frozenset({Login.DONE, Login.REFUSED}),
    Login.RAW_TOKENS: frozenset({Login.DONE, Login.REFUSED}),
    Login.DONE: frozenset({Login.TOKENS, Login.RAW_TOKENS, Login.REFUSED}),  # it logs in again
    Login.REFUSED: frozenset(),
}

SOCKET_MOVES: Final[Mapping[Socket, frozenset[Socket]]] = {
    Socket.NEW: frozenset({Socket.OPEN, Socket.CLOSING}),
    Socket.OPEN: frozenset({Socket.HALF_CLOSED, Socket.LOST, Socket.CLOSING}),
    Socket.HALF_CLOSED: frozenset({Socket.LOST, Socket.CLOSING}),
    Socket.LOST: frozenset({Socket.GONE}),
    Socket.CLOSING: frozenset({Socket.GONE}),
    Socket.GONE: frozenset(),
}

# Each wait ends with READY. Nothing waits for two things: what comes next is asked when the first is over.
_WAITS: Final = frozenset({Requests.IN_FLIGHT, Requests.AT_GATE, Requests.BEHIND_PRODUCE, Requests.TURN_OVER})
REQUESTS_MOVES: Final[Mapping[Requests, frozenset[Requests]]] = {
    Requests.NOT_BEGUN: frozenset({Requests.READY, Requests.DROPPED}),
    Requests.READY: _WAITS | {Requests.DROPPED},
    **dict.fromkeys(_WAITS, frozenset({Requests.READY, Requests.DROPPED})),
    Requests.DROPPED: frozenset(),
}
