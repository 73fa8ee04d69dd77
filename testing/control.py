"""The way of a test to its brokers: JSON over the HTTP API, with redirections to a group's coordinator."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

from barnabas.testing.kept import Kept, address_of
from barnabas.testing.wire import Wire

ANSWERS_WITHIN_S = 75.0
REDIRECTIONS_MAX = 3
POLL_S = 0.01
TIMED_OUT, REDIRECTED = 408, 307


class CommandError(Exception):
    """A broker has refused a command. `name` is for programs, the message says what to do."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class WaitTimeoutError(CommandError):
    """What was waited for did not happen in time. The message says what was seen last."""


class Brokers(Protocol):
    """The brokers of a test, as its topics, groups and clock ask them."""

    wire: Wire

    @property
    def running(self) -> list[int]:
        """The node ids of those that run."""

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: Any = None,
        *,
        node_id: int | None = None,
    ) -> Any:
        """A request to the HTTP API of a broker; without `node_id`, of any that runs."""


def wait(is_so: Callable[[], bool], told: Callable[[], str], timeout: float) -> None:
    """Look until it is so. WaitTimeoutError with what is told: it was not in time."""
    deadline = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() >= deadline:
            raise WaitTimeoutError("WAIT_TIMED_OUT", f"not so within {timeout} s: {told()}.")
        time.sleep(POLL_S)


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]  # by their names in small letters
    body: bytes


class Connection:
    """To the HTTP API of one broker. It takes half the processor time of `http.client`, which reads headers as mail."""

    def __init__(self, address: str) -> None:
        self.sock = socket.create_connection(address_of(address), timeout=ANSWERS_WITHIN_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address = address
        self._answers = self.sock.makefile("rb")

    def ask(self, method: str, target: str, body: bytes) -> Answer:
        """The answer. OSError: it does not come."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._address}"]
        if method != "GET":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        status = int(self._line().split()[1])
        headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(self._chunks()))
        return Answer(status, headers, self._read(int(headers["content-length"])))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line(), 16):
            yield self._read(size)
            self._line()
        self._line()

    def _line(self) -> str:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the broker has closed the connection")
        return line.decode("latin-1").rstrip()

    def _read(self, size: int) -> bytes:
        found = self._answers.read(size)
        if len(found) < size:
            raise ConnectionResetError("the broker has closed the connection")
        return found

    def close(self) -> None:
        """Close it."""
        self._answers.close()
        self.sock.close()


class Http:
    """Asks the HTTP APIs of brokers, on connections that stay open."""

    def __init__(self) -> None:
        self._kept: Kept[Connection] = Kept()

    def ask(self, address: str, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        """The answer of the broker there, or of the one that it redirects to. CommandError: it refuses."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        content = b"" if body is None else json.dumps(body).encode()
        for _ in range(REDIRECTIONS_MAX + 1):
            answer = self._answer(address, method, target, content)
            if answer.status != REDIRECTED:
                break
            address = urlsplit(answer.headers["location"]).netloc
        document = json.loads(answer.body)
        if answer.status >= 300:
            error = document["error"]
            raise (WaitTimeoutError if answer.status == TIMED_OUT else CommandError)(error["name"], error["message"])
        return document

    def _answer(self, address: str, method: str, target: str, body: bytes) -> Answer:
        connection = self._kept.take(address) or Connection(address)
        try:
            answer = connection.ask(method, target, body)
        except BaseException:
            connection.close()
            raise
        if answer.headers.get("connection") == "close":
            connection.close()
        else:
            self._kept.give(address, connection)
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._kept.close()
