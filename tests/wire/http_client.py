"""A client of the HTTP API in the simulated world."""

import asyncio
import json
from typing import Any

from barnabas.broker.broker import Broker
from simulator.env import SimEnv


class HttpAnswer:
    """Status, headers and body of an answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["name"])


class HttpClient(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False
        self.news = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def eof_received(self) -> bool:
        self.is_closed = True
        self.news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.news.set()

    async def _more(self) -> None:
        assert not self.is_closed, f"closed after {self.data!r}"
        self.news.clear()
        await self.news.wait()

    async def until_closed(self) -> bytes:
        """Everything until the server closes."""
        while not self.is_closed:
            self.news.clear()
            await self.news.wait()
        return self.data

    async def answer(self, *, without_body: bool = False) -> HttpAnswer:
        """The next answer."""
        while b"\r\n\r\n" not in self.data:
            await self._more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = b""
        if without_body or first.split()[1] == "100":
            pass
        elif "content-length" in headers:
            length = int(headers["content-length"])
            while len(self.data) < length:
                await self._more()
            body, self.data = self.data[:length], self.data[length:]
        elif headers.get("transfer-encoding") == "chunked":
            while True:
                while b"\r\n" not in self.data:
                    await self._more()
                line, _, self.data = self.data.partition(b"\r\n")
                length = int(line, 16)
                while len(self.data) < length + 2:
                    await self._more()
                body += self.data[:length]
                self.data = self.data[length + 2 :]
                if not length:
                    break
        else:
            body, self.data = await self.until_closed(), b""
        return HttpAnswer(int(first.split()[1]), headers, body)


def port_of(broker: Broker) -> int:
    assert broker.http.address is not None
    return int(broker.http.address.rpartition(":")[2])


async def connect(env: SimEnv, broker: Broker, source: str = "127.0.0.1") -> HttpClient:
    _, client = await env.network.connect("127.0.0.1", port_of(broker), HttpClient, source)
    assert isinstance(client, HttpClient)
    return client


def request(method: str, target: str, body: Any = None, host: str = "localhost", **headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    content = b""
    if body is not None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def ask(
    env: SimEnv, broker: Broker, method: str, target: str, body: Any = None, source: str = "127.0.0.1", **headers: str
) -> HttpAnswer:
    """One request on a connection of its own."""
    client = await connect(env, broker, source)
    client.transport.write(request(method, target, body, **headers))
    answer = await client.answer(without_body=method == "HEAD")
    client.transport.close()
    return answer
