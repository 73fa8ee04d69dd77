"""What a handler knows about a request besides its body, and what it may return."""

from asyncio import Future
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Final, TypeAlias

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer


class Close(Enum):
    """Returned instead of a response: close the connection (a Produce with acks=0 that failed)."""

    CLOSE = "close"


CLOSE: Final = Close.CLOSE

# What a handler returns:
# - the response message;
# - a Pending of it, for a request that waits; it needs no task;
# - a coroutine of it, for a request that changes something in several steps. It runs to its end even if the client is
#   gone;
# - a future of it, for a request that only reads. It is cancelled when the client is gone;
# - None, for no response at all;
# - CLOSE.
Reply: TypeAlias = Any | Pending[Any] | Coroutine[Any, Any, Any] | Future[Any] | Close | None


class RequestContext:
    """One request's header, and the connection that it came by.

    `client_host` is the client's address as Kafka writes it, with a slash ("/127.0.0.1"). `dialled_host` and
    `dialled_port` are the local end of the connection: the address at which this client reached the broker. The request
    `is_long` if its frame is: it may name very many partitions, and is handled in pieces.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "dialled_host",
        "dialled_port",
        "frame_is_lent",
        "is_long",
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
        frame_is_lent: bool = False,
        is_long: bool = False,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.listener_name = listener_name
        self.dialled_host = dialled_host
        self.dialled_port = dialled_port
        self.frame_is_lent = frame_is_lent
        self.is_long = is_long

    def keep_frame(self) -> None:
        """The frame's memory is not used again while the request is handled."""
        self.frame_is_lent = False

    def kept(self, records: Buffer) -> Buffer:
        """A `records` field of the request, copied if need be, that may be used after the handler has returned.

        The frame may be in the shared buffer, which the next read of any connection overwrites.
        """
        return bytearray(records) if self.frame_is_lent else records
