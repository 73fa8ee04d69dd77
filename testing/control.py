"""The way of a test to its brokers: JSON over the HTTP API, with redirections to a group's coordinator."""

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from barnabas.testing.kept import Kept
from barnabas.testing.wire import Wire

ANSWERS_WITHIN_S = 75.0
REDIRECTIONS_MAX = 3
POLL_S = 0.01
POLLED_MS_MAX = 55_000  # as long as a broker allows
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

    def check_started(self) -> None:
        """RuntimeError: they are not, or are stopped."""

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


def wait_for(brokers: Brokers, path: str, query: dict[str, Any], timeout: float) -> dict[str, Any]:
    """What is seen when it is as `query` wants it: long polls, of which each is as long as a broker allows.

    WaitTimeoutError says what was seen last.
    """
    deadline = time.monotonic() + timeout
    while True:
        left_ms = max(round((deadline - time.monotonic()) * 1000), 0)
        asked = {**query, "timeout_ms": min(left_ms, POLLED_MS_MAX)}
        try:
            seen: dict[str, Any] = brokers.ask("GET", path, asked)
            return seen
        except WaitTimeoutError as error:
            if left_ms <= POLLED_MS_MAX:
                said = str(error).removeprefix(f"not so within {asked['timeout_ms']} ms")
                raise WaitTimeoutError(error.name, f"not so within {timeout:g} s{said}") from None


def whole(number: int, what: str) -> int:
    """A number. TypeError: it is something else, as a text is."""
    if type(number) is not int:
        raise TypeError(f"{what} is an int, not {type(number).__name__}")
    return number


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


class Http:
    """Asks the HTTP APIs of brokers, on connections that stay open."""

    def __init__(self) -> None:
        self._kept: Kept[http.client.HTTPConnection] = Kept()

    def ask(self, address: str, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        """The answer of the broker there, or of the one that it redirects to. CommandError: it refuses."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        content = None if body is None else json.dumps(body)
        for _ in range(REDIRECTIONS_MAX + 1):
            answer, text = self._answer(address, method, target, content)
            if answer.status != REDIRECTED:
                break
            address = urlsplit(answer.headers["Location"]).netloc
        document = json.loads(text)
        if answer.status >= 300:
            error = document["error"]
            raise (WaitTimeoutError if answer.status == TIMED_OUT else CommandError)(error["name"], error["message"])
        return document

    def _answer(
        self, address: str, method: str, target: str, content: str | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._kept.take(address) or http.client.HTTPConnection(address, timeout=ANSWERS_WITHIN_S)
        try:
            connection.request(method, target, content, {} if method == "GET" else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # else the broker has closed it
            self._kept.give(address, connection)
        return answer, text

    def close(self) -> None:
        self._kept.close()
