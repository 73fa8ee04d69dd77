"""The way of a test to its brokers: JSON over the HTTP API, with redirections to a group's coordinator."""

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

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

    def producer(self) -> Any:
        """A kafka-python producer, which others use, too."""

    def consumer(self, **settings: Any) -> Any:
        """A kafka-python consumer."""


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


def ask(address: str, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
    """The answer of the broker at this address, or of the one that it redirects to. CommandError: it refuses."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    target = path + (f"?{urlencode(given)}" if given else "")
    for _ in range(REDIRECTIONS_MAX + 1):
        connection = http.client.HTTPConnection(address, timeout=ANSWERS_WITHIN_S)
        try:
            content = None if body is None else json.dumps(body)
            headers = {} if method == "GET" else {"Content-Type": "application/json"}
            connection.request(method, target, content, headers)
            answer = connection.getresponse()
            document = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != REDIRECTED:
            break
        address = urlsplit(answer.headers["Location"]).netloc
    if answer.status >= 300:
        error = document["error"]
        raise (WaitTimeoutError if answer.status == TIMED_OUT else CommandError)(error["name"], error["message"])
    return document
