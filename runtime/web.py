"""One answer of a web server, for what a broker needs from others: keys and tokens. Blocks: use it in a thread."""

import http.client
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from socket import SHUT_RDWR
from urllib.parse import urlsplit

BYTES_MAX = 1024 * 1024
TIMEOUT_S = 10.0


class WebError(Exception):
    """There is no answer that can be used: str() says why, and shows nothing of what was sent or received."""


def fetch(
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """What the server answers to a GET, or a POST if there is a body: at most BYTES_MAX. WebError.

    It has ended after `timeout_s`, also if the server sends a byte now and then. Redirections are not followed.
    """
    try:
        place = urlsplit(url)
        secured, host = place.scheme == "https", place.hostname or ""
        connection = (
            http.client.HTTPSConnection(host, place.port, timeout=timeout_s, context=tls)
            if secured
            else http.client.HTTPConnection(host, place.port, timeout=timeout_s)
        )
    except ValueError as error:
        raise WebError(f"the URL cannot be read: {error}") from None

    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        with suppress(OSError, AttributeError):
            connection.sock.shutdown(SHUT_RDWR)

    ending = threading.Timer(timeout_s, end)
    ending.daemon = True
    ending.start()
    try:
        path = (place.path or "/") + (f"?{place.query}" if place.query else "")
        connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise WebError(f"the server answers {answer.status}")
        found = answer.read(BYTES_MAX + 1)
        if len(found) > BYTES_MAX:
            raise WebError(f"the answer is longer than {BYTES_MAX:,} bytes")
        if is_late or answer.length:
            raise WebError(f"the answer was not complete within {timeout_s:g} s")
        return found
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WebError(str(error) or type(error).__name__) from None
    finally:
        ending.cancel()
        connection.close()
