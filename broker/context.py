"""What a handler knows about a request beside its body, and what it may answer."""

from asyncio import Future
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Final, TypeAlias

from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Buffer


class Close(Enum):
    """The answer that is no answer: close this connection (Produce with acks=0 that went wrong)."""

    CLOSE = "close"


CLOSE: Final = Close.CLOSE

# What a handler returns: the response message; a Pending of it (a request that waits, answered with no task); a
# coroutine of it (what changes something and takes a while), which is done to its end even if its client is gone; a
# future of it (what only looks, in turns), which is cancelled then; None (no response at all); CLOSE.
Reply: TypeAlias = Any | Pending[Any] | Coroutine[Any, Any, Any] | Future[Any] | Close | None


class RequestContext:
    """One request's header and where it came from.

    `client_host` is Kafka's text form of the peer's address, with the slash ("/127.0.0.1"). `dialled_host` and
    `dialled_port` are the local end of the connection: the address this client reached the broker by.
    """

    __slots__ = (
        "_frame_is_lent",
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
        frame_is_lent: bool = False,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.listener_name = listener_name
        self.dialled_host = dialled_host
        self.dialled_port = dialled_port
        self._frame_is_lent = frame_is_lent

    def kept(self, records: Buffer) -> Buffer:
        """A `records` field of the request that is still good after the handler has returned.

        The frame may lie in memory that the next read of any connection goes into.
        """
        return bytearray(records) if self._frame_is_lent else records
