"""What SASL mechanisms have in common."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from barnabas.cluster.security.scram import ScramCredential

MESSAGE_BYTES_MAX = 64 * 1024  # of a client: to check half a megabyte would keep everybody else waiting


class AuthenticationError(Exception):
    """A login has failed: str() is what the client is told, `why` what the log says. They name no secret."""

    def __init__(self, told: str, why: str | None = None) -> None:
        super().__init__(told)
        self.why = why or told


class LoginError(Exception):
    """The broker cannot start with these logins: a library or a file is missing. str() says what to do."""


class TokenPrincipal(str):
    """The principal of somebody who has logged in by a delegation token: it may not ask for tokens itself."""

    __slots__ = ()


class TokenCredential(NamedTuple):
    """By what somebody logs in with a delegation token, as whom, and until when."""

    credential: "ScramCredential"
    owner: str
    expires_ms: int


class ServerSide(ABC):
    """One login, as the broker sees it."""

    mechanism: str
    user: str | None = None  # who it is, when the login is complete
    expires_ms: int | None = None  # until when the proof of a complete login counts, by the wall clock; None: for good
    refusal: AuthenticationError | None = None  # with which the next step fails: the client is told so beforehand

    @property
    def principal(self) -> str:
        """The user as a principal."""
        return f"User:{self.user}"

    @property
    def is_complete(self) -> bool:
        """Whether the user is known."""
        return self.user is not None

    @abstractmethod
    def step(self, token: bytes) -> bytes:
        """The answer to a message of the client. AuthenticationError: the login has failed."""


class ClientSide(Protocol):
    """One login, as the client sees it."""

    mechanism: str

    def first(self) -> bytes:
        """What is sent first."""

    def step(self, token: bytes) -> bytes | None:
        """The answer to the broker's message; None: it was the last. AuthenticationError: do not go on."""
