"""What is asked of web servers: bounded in size and time, whatever they answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from barnabas.runtime.web import BYTES_MAX, WebError, fetch


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Makes a server that treats its one client so; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def make(answer: Callable[[socket.socket], None]) -> str:
        def serve() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.recv(65536)
                answer(client)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/keys?a=b"

    yield make
    listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def test_an_answer(server: Callable[..., str]) -> None:
    assert fetch(server(lambda client: client.sendall(HEAD % 2 + b"{}"))) == b"{}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "500"),
        (b"\x15\x03\x01", "."),
        (b"", "."),
        (HEAD % 10 + b"{}", "."),
        (HEAD % (BYTES_MAX + 1) + b"x" * (BYTES_MAX + 1), "longer"),
    ],
)
def test_what_is_no_answer(server: Callable[..., str], answer: bytes, why: str) -> None:
    with pytest.raises(WebError, match=why):
        fetch(server(lambda client: client.sendall(answer)))


@pytest.mark.parametrize("begin", [b"", HEAD % 1_000_000, b"HTTP/1.1 200 OK\r\n"])
def test_a_server_that_never_ends(server: Callable[..., str], begin: bytes) -> None:
    def drip(client: socket.socket) -> None:
        client.sendall(begin)
        while True:
            client.sendall(b"x")
            time.sleep(0.02)

    with pytest.raises(WebError):
        fetch(server(drip), timeout_s=0.3)


def test_nobody_listens() -> None:
    with pytest.raises(WebError):
        fetch("http://127.0.0.1:1/")
    with pytest.raises(WebError):
        fetch("http://[x/")
