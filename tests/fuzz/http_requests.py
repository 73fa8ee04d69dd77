"""Hostile HTTP requests for a simulated broker, next to a neighbour who behaves.

Each case is one connection: requests made by hand and spoilt, sent in pieces of any size. The connection must get
answers that an HTTP client can read, none of them 500, and end in time when the requests do not. The neighbour's
request, sent at the same time, is answered. The broker logs no failure and keeps no connection.
"""

import asyncio
import sys
from pathlib import Path
from random import Random

import h11
from barnabas.broker.broker import Broker
from barnabas.broker.http import routes
from barnabas.config.broker import BrokerConfig
from mutations import case, smallest, spoil
from simulator.env import SimEnv, sim_env
from worlds import Worlds

sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))
from http_client import HttpClient, connect, request

CASES_PER_BROKER = 500
ENDS_WITHIN_MS = 200_000.0  # every time limit of a connection together
STATUSES = {100, 200, 307, 400, 401, 403, 404, 405, 408, 411, 413, 415, 421, 431, 501, 503, 505}
TARGETS = (
    *("/v1/status", "/v1/groups", "/v1/groups?state=Stable&state=Empty", "/v1/openapi.json", "/metrics"),
    *("/v1/groups/a", "/v1/groups/a%2Fb", "/v1/groups/%F0%9F%98%80", "/v1/groups/%", "/v1/groups/%FF", "/v1/groups/.."),
    *("*", "/", "//", "/v1/", "/v1/groups/", "?", "/v1/groups?", "/v1/groups?&&=&state", "http://localhost/v1/status"),
    *("http://", "/v1/groups/" + "a" * 9_000, "/" * 500, "/v1/groups/" + "%61" * 3_000, "/v1/groups?" + "a=b&" * 2_000),
)
METHODS = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "X",
)
BODIES = (None, None, None, b"", b"{}", b"[]", b'{"a":1}', b"[" * 2_000, b"\xff", b'"' + b"x" * 40_000 + b'"', b"null")
HEADERS = (
    *({}, {}, {}, {"Connection": "close"}, {"Connection": "keep-alive, close"}, {"Expect": "100-continue"}),
    *(
        {"Transfer_Encoding": "chunked"},
        {"Transfer_Encoding": "gzip"},
        {"Content_Length": "5"},
        {"Content_Length": "-1"},
    ),
    *(
        {"Content_Length": "99999999999999999999"},
        {"Content_Length": "1, 1"},
        {"Upgrade": "h2c", "Connection": "Upgrade"},
    ),
    *(
        {"Origin": "http://evil.example"},
        {"host": "evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {"host": "[::1]]:x"},
    ),
    *({"Authorization": "Bearer x"}, {"Authorization": "Bearer \xff"}, {"Content_Type": "application/json"}),
    *({"X": "y" * 20_000}, {"X y": "z"}, {"": "z"}, {"X": "a\r\n b"}, {"Range": "bytes=0-1"}, {"Accept": "a/b"}),
)


class World:
    """A broker, which some hundred cases share."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(7)
        self.escaped: list[object] = []
        self.env.clock.loop.set_exception_handler(lambda loop, context: self.escaped.append(context))
        config = BrokerConfig.of({"listeners": "PLAINTEXT://127.0.0.1:9092", "coordination.path": ":memory:"})
        self.broker = Broker(self.env, config, "/data")
        self.env.run(self.broker.start())
        routes.load()


worlds = Worlds(World, CASES_PER_BROKER)


def hostile(random: Random) -> bytes:
    """The bytes of a connection: mostly HTTP, mostly spoilt."""
    if random.random() < 0.05:
        return random.randbytes(random.choice((1, 20, 1_000, 40_000)))
    data = b""
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        method, target = random.choice(METHODS), random.choice(TARGETS)
        made = request(method, target, random.choice(BODIES), **random.choice(HEADERS))
        if random.random() < 0.2:
            made = made.replace(b"HTTP/1.1", random.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b"http/1.1", b"")), 1)
        if random.random() < 0.1:
            made = made.replace(b"\r\n", b"\n")
        data += spoil(random, made) if random.random() < 0.5 else made
    return data


def complaint(data: bytes, random: Random) -> str | None:
    """What is wrong with what the broker makes of these bytes."""
    here = worlds.next_case()
    return here.env.run(_talk(here, data, random))


async def _talk(here: World, data: bytes, random: Random) -> str | None:
    env, broker = here.env, here.broker
    failures, escaped = broker.http.handler_failures, len(here.escaped)
    source = random.choice(("127.0.0.1", "127.0.0.1", "192.0.2.1"))
    client = await connect(env, broker, source)
    neighbour = await connect(env, broker)
    size = random.choice((1 << 20, 1 << 20, 1_000, 7, 1)) if len(data) < 3_000 else 1 << 20
    half_closes = random.random() < 0.3
    for start in range(0, len(data), size):
        if client.is_closed:
            break
        client.transport.write(data[start : start + size])
        await env.clock.sleep(0)
    if half_closes and not client.is_closed:
        client.transport.write_eof()
    neighbour.transport.write(request("GET", "/v1/status"))
    answer = await neighbour.answer()
    neighbour.transport.close()
    if answer.status != 200:
        return f"the neighbour is answered {answer.status}"
    ended = asyncio.Event()
    timer = env.clock.call_later(ENDS_WITHIN_MS, ended.set)
    watching = asyncio.ensure_future(_until_closed(client, ended))
    await ended.wait()
    timer.cancel()
    watching.cancel()
    if not client.is_closed:
        return "the connection does not end"
    client.transport.close()
    await env.clock.sleep(5)
    if broker.http.handler_failures != failures:
        return "a handler has failed"
    if len(here.escaped) != escaped:
        return f"an exception that nobody has caught: {here.escaped[-1]}"
    if broker.http.connections or broker.server.connections_elsewhere:
        return "a connection is kept"
    return _not_http(client.data)


async def _until_closed(client: HttpClient, ended: asyncio.Event) -> None:
    await client.until_closed()
    ended.set()


def _not_http(data: bytes) -> str | None:
    """What a client of HTTP cannot read in the answers. It does not know which of them are answers to HEAD."""
    while data:
        head, separator, _ = data.partition(b"\r\n\r\n")
        if not separator:
            return f"half an answer: {data[:100]!r}"
        parsed = h11.Connection(h11.CLIENT)
        parsed.send(h11.Request(method="HEAD", target="/", headers=[("Host", "a")]))
        parsed.send(h11.EndOfMessage())
        parsed.receive_data(head + separator)
        try:
            event = parsed.next_event()
        except h11.RemoteProtocolError as error:
            return f"{error}: {head[:100]!r}"
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            return f"no answer: {head[:100]!r}"
        if event.status_code not in STATUSES:
            return f"status {event.status_code}"
        at = data.find(b"HTTP/1.1 ", len(head))
        data = data[at:] if at >= 0 else b""
    return None


def check(seed: int, number: int) -> str | None:
    """One case; what went wrong, with the smallest bytes that do it."""
    random = case(seed, "http", number)
    data = hostile(random)
    state = random.getstate()

    def again(data: bytes) -> str | None:
        other = Random()
        other.setstate(state)
        return complaint(data, other)

    found = again(data)
    if found is None:
        return None
    worlds.forget()
    least = smallest(data, lambda data: again(data) is not None)
    return f"{found}\n{least.hex()}\n{least[:2_000]!r}"
