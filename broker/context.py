"""What a handler knows about a request beside its body, and what it may answer."""

from collections.abc import Awaitable
from enum import Enum
from typing import Any, Final, TypeAlias

from barnabas.runtime.pending import Pending


class Close(Enum):
    """The answer that is no answer: close this connection (Produce with acks=0 that went wrong)."""

    CLOSE = "close"


CLOSE: Final = Close.CLOSE

# What a handler returns: the response message; a Pending of it (a request that waits, answered with no task); an
# awaitable of it (admin requests, which may take a task of their own); None (no response at all); CLOSE.
Reply: TypeAlias = Any | Pending[Any] | Awaitable[Any] | Close | None


class RequestContext:
    """One request's header and where it came from.

    `client_host` is Kafka's text form of the peer's address, with the slash ("/127.0.0.1"). `dialled_host` and
    `dialled_port` are the local end of the connection: the address this client reached the broker by.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "dialled_host",
        "dialled_port",
        "listener_name",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str = "/127.0.0.1",
        listener_name: str = "PLAINTEXT",
        dialled_host: str = "127.0.0.1",
        dialled_port: int = 9092,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.listener_name = listener_name
        self.dialled_host = dialled_host
        self.dialled_port = dialled_port
