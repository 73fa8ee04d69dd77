"""Hostile logins for a simulated broker: SASL in any order, spoilt or right, with and without TLS, and TLS by hand.

An attacker has a password and a token of `mallory`, and knows the names of others. Each case is one connection.
Whatever it sends, it is nobody or `mallory`; only `mallory` gets an answer of a request; and when it goes, or its time
is over, nothing of it is kept. Meanwhile an honest client logs in and is served.
"""

import asyncio
import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from barnabas.broker.broker import Broker
from barnabas.cluster.security.acls import ANONYMOUS
from barnabas.cluster.security.mechanism import AuthenticationError
from barnabas.cluster.security.scram import HASHES, ScramClient, ScramCredential, salted
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.tls import TlsSide, TlsTransport
from barnabas.runtime.tls_context import Keys, client_context
from certificates import Authority
from mutations import case, spoil
from simulator.env import SimEnv, sim_env
from tokens import Issuer
from worlds import Worlds

CASES_PER_BROKER = 200
ANSWER_WITHIN_MS, FORGOTTEN_WITHIN_MS = 400.0, 11_000.0  # a refusal comes late; a TLS handshake may take ten seconds
STEPS_MAX = 12
ATTACKER, OTHER, NOBODY = "mallory", "admin", "nobody"
SECRETS = {ATTACKER: "known", OTHER: "planted-secret"}
MECHANISMS = ("PLAIN", *HASHES, "OAUTHBEARER")
SASL_PORT, SASL_SSL_PORT, SSL_PORT = 9092, 9093, 9094
SALT, ITERATIONS = bytes(range(20)), 4096
HANDSHAKE_RECORD, CLIENT_HELLO = 22, 1


@cache
def authority() -> Authority:
    """Made once: keys take their time."""
    return Authority()


@cache
def issuers() -> tuple[Issuer, Issuer]:
    """Who gives out tokens, and somebody who gives out others under the same names."""
    return Issuer(), Issuer()


class World:
    """A broker, which some hundred cases share."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(7)
        self.escaped: list[object] = []
        self.env.clock.loop.set_exception_handler(lambda loop, context: self.escaped.append(context))
        own = authority().sign("broker")
        for path, text in (("/own", own.key_pem() + own.chain_pem), ("/keys", issuers()[0].keys().decode())):
            file = self.env.disk.open(path, create=True)
            file.write(0, text.encode())
            file.close()
        users = " ".join(f'user_{name}="{secret}"' for name, secret in SECRETS.items())
        jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        config = BrokerConfig.of(
            {
                "listeners": f"SASL://127.0.0.1:{SASL_PORT},BOTH://127.0.0.1:{SASL_SSL_PORT},SSL://127.0.0.1:{SSL_PORT}",
                "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,BOTH:SASL_SSL,SSL:SSL",
                "coordination.path": ":memory:",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "inter.broker.listener.name": "SASL",
                "connections.max.reauth.ms": "2000",
                "sasl.oauthbearer.jwks.endpoint.url": "file:///keys",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/own",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{OTHER}",
                **{f"listener.name.{name}.plain.sasl.jaas.config": jaas for name in ("sasl", "both")},
            }
        )
        self.broker = Broker(self.env, config, "/data")
        self.env.run(self.broker.start())
        for user, secret in SECRETS.items():
            kept = {each: _credential(each, secret) for each in HASHES}
            self.env.run(self.broker.credentials.alter(user, kept))


@cache
def _credential(mechanism: str, secret: str) -> ScramCredential:
    return ScramCredential.of_salted(mechanism, salted(mechanism, secret, SALT, ITERATIONS), SALT, ITERATIONS)


worlds = Worlds(World, CASES_PER_BROKER)


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, env: SimEnv) -> None:
        self.data = b""
        self.closed = False
        self.transport: Any = None
        self._env = env

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    async def answer(self) -> bytes | None:
        """The next frame, without its size; None: there is none in time."""
        begin_ms = self._env.clock.monotonic_ms()
        while self._env.clock.monotonic_ms() - begin_ms < ANSWER_WITHIN_MS:
            if len(self.data) >= 4 and len(self.data) >= 4 + (size := struct.unpack_from(">i", self.data)[0]):
                frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
                return frame
            if self.closed:
                break
            await self._env.clock.sleep(1)
        return None


# ------------------------------------------------------------------ what an attacker sends


class Talk:
    """What an attacker has said and heard."""

    def __init__(self, random: Random, now_s: float = 0) -> None:
        self.random = random
        self.now_s = now_s
        self.number = 0
        self.mechanism = "PLAIN"
        self.scram: ScramClient | None = None
        self.expects: tuple[Callable[[Talk], bytes], ...] = (Talk.handshake,)  # what the broker takes next
        self.heard = b""  # the token of the broker's last answer
        self.asked: dict[int, tuple[ApiKey, int]] = {}  # by correlation id

    def frame(self, api: ApiKey, version: int, message: Any) -> bytes:
        self.number += 1
        self.asked[self.number] = api, version
        return frames.encode_request(api, version, self.number, "fuzz", message)[4:]

    def hear(self, answer: bytes) -> ApiKey | None:
        """Remember a token; what was answered."""
        number = struct.unpack_from(">i", answer)[0] if len(answer) >= 4 else -1
        api, version = self.asked.get(number, (None, 0))
        if api is ApiKey.SASL_AUTHENTICATE:
            told = frames.decode_response(api, version, memoryview(answer))[1]
            self.heard = bytes(told.auth_bytes)
            is_done = not self.heard or self.heard.startswith(b"v=")
            self.expects = (Talk.metadata, Talk.handshake) if is_done else (Talk.token,)
        elif api is ApiKey.SASL_HANDSHAKE:
            self.expects = (Talk.token,) if version else (Talk.raw_token,)
        elif api is None:
            self.heard = answer
            self.expects = (Talk.raw_token, Talk.metadata, Talk.handshake)
        return api

    def next_step(self) -> bytes:
        """Mostly what the broker expects."""
        return self.random.choice(self.expects if self.random.random() < 0.85 else STEPS)(self)

    # each of these is a step

    def versions(self) -> bytes:
        version = self.random.choice((0, 3, 4, 99))
        request = messages.ApiVersionsRequest(client_software_name="fuzz", client_software_version="1")
        made = self.frame(ApiKey.API_VERSIONS, min(version, 4), request)
        return made[:2] + struct.pack(">h", version) + made[4:]

    def metadata(self) -> bytes:
        return self.frame(ApiKey.METADATA, 9, messages.MetadataRequest(topics=[]))

    def handshake(self) -> bytes:
        foreign = ("", "plain", "GSSAPI", "X" * 30_000)
        if not self.number or self.random.random() < 0.5:  # else the same again
            self.mechanism = self.random.choice(MECHANISMS if self.random.random() < 0.9 else foreign)
        self.scram, self.heard = None, b""
        request = messages.SaslHandshakeRequest(mechanism=self.mechanism)
        return self.frame(ApiKey.SASL_HANDSHAKE, self.random.choice((1, 1, 1, 0)), request)

    def token(self) -> bytes:
        request = messages.SaslAuthenticateRequest(auth_bytes=self._token())
        return self.frame(ApiKey.SASL_AUTHENTICATE, self.random.choice((0, 1, 2, 2)), request)

    def raw_token(self) -> bytes:
        return self._token()

    def garbage(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 8, 100, 5_000)))

    def _token(self) -> bytes:
        random = self.random
        mechanism = self.mechanism if random.random() < 0.95 else random.choice(MECHANISMS)
        if mechanism in HASHES:
            made = self._of_scram(mechanism)
        else:
            made = self._of_oauth() if mechanism == "OAUTHBEARER" else self._of_plain()
        return spoil(random, made) if random.random() < 0.1 else made

    def _name(self) -> str:
        others = (OTHER, OTHER, OTHER, NOBODY, "", "a,b=c", "\0", "é", "x" * 4_000)
        return ATTACKER if self.random.random() < 0.8 else self.random.choice(others)

    def _of_plain(self) -> bytes:
        secret = self.random.choice((*[SECRETS[ATTACKER]] * 9, "wrong", "", "x" * 400_000))
        return "\0".join((self.random.choice(("", "", "", self._name())), self._name(), secret)).encode()

    def _of_scram(self, mechanism: str) -> bytes:
        if self.scram is not None and self.heard and self.random.random() < 0.9:
            try:
                return self.scram.step(self.heard) or b""
            except (AuthenticationError, ValueError):
                return b"c=biws,r=,p="
        self.scram = ScramClient(mechanism, self._name(), SECRETS[ATTACKER], self.random.randbytes(20))
        if self.random.random() < 0.1:
            self.scram._first += self.random.choice((b",tokenauth=true", b",n=admin", b",m=x", b",,", b",x"))
        return self.scram.first()

    def _of_oauth(self) -> bytes:
        if self.heard.startswith(b"{"):
            return b"\x01"
        issuer, other = issuers()
        # The token of the attacker counts; none of the others does.
        claims: dict[str, Any] = self.random.choice(
            (
                *[{"user": ATTACKER}] * 8,
                {"user": ATTACKER, "key": other.key},
                *({"user": OTHER, "key": other.key}, {"user": OTHER, "key": "x" * 32, "algorithm": "HS256"}),
                *({"user": OTHER, "key": None, "algorithm": "none"}, {"user": OTHER, "exp": 5}),
                *({"user": OTHER, "aud": "others"}, {"user": None}, {"user": ["admin"]}),
            )
        )
        made = issuer.token(now_s=self.now_s, **claims)
        name = self.random.choice(("", "", "", f"a={self._name()}"))
        return f"n,{name},\x01auth=Bearer {made}\x01\x01".encode()


STEPS = (Talk.handshake, Talk.token, Talk.raw_token, Talk.metadata, Talk.versions, Talk.garbage)


def hello(random: Random) -> bytes:
    """The first message of a client that speaks TLS 1.3 and 1.2."""
    share = struct.pack(">HH", 0x1D, 32) + random.randbytes(32)
    extensions = b""
    for kind, content in (
        (43, b"\x04\x03\x04\x03\x03"),  # versions
        (10, b"\0\x02\0\x1d"),  # groups
        (13, b"\0\x08\x04\x03\x08\x04\x04\x01\x05\x03"),  # signatures
        (51, struct.pack(">H", len(share)) + share),
    ):
        extensions += struct.pack(">HH", kind, len(content)) + content
    ciphers = b"\x13\x01\x13\x02\xc0\x2b\xc0\x2f"
    body = b"\x03\x03" + random.randbytes(32) + b"\0" + struct.pack(">H", len(ciphers)) + ciphers + b"\x01\0"
    body += struct.pack(">H", len(extensions)) + extensions
    message = bytes([CLIENT_HELLO]) + struct.pack(">I", len(body))[1:] + body
    return struct.pack(">BHH", HANDSHAKE_RECORD, 0x0301, len(message)) + message


def tls_bytes(random: Random) -> bytes:
    """What comes to a listener with TLS: a handshake and records behind it, spoilt or not, or something else."""
    data = hello(random)
    for _ in range(random.choice((0, 0, 1, 3))):
        content = random.randbytes(random.choice((0, 1, 40, 16_500)))
        data += struct.pack(">BHH", random.choice((20, 21, 22, 23, 24, 99)), 0x0303, len(content)) + content
    if random.random() < 0.1:
        data = frames.encode_request(ApiKey.API_VERSIONS, 0, 1, "fuzz", messages.ApiVersionsRequest()) + data
    return spoil(random, data) if random.random() < 0.7 else data


# ------------------------------------------------------------------ a case


def check(seed: int, number: int) -> str | None:
    """One case; what went wrong."""
    here = worlds.next_case()
    found = here.env.run(_case(here, case(seed, "logins", number)))
    if found is not None:
        worlds.forget()
    return found


async def _case(here: World, random: Random) -> str | None:
    env, broker = here.env, here.broker
    failures, escaped, kept = broker.request_gate.handler_failures, len(here.escaped), len(broker.server.connections)
    client = Client(env)
    kind = random.random()
    if kind < 0.15:
        found = await _attack_tls(env, client, random)
    else:
        found = await _attack(here, client, random, with_tls=kind < 0.3)
    if found is None:
        found = await _neighbour(env)
    if client.transport is not None:
        client.transport.abort() if random.random() < 0.5 else client.transport.close()
    await env.clock.sleep(FORGOTTEN_WITHIN_MS)
    if found is None and broker.request_gate.handler_failures != failures:
        found = "a handler has failed"
    if found is None and len(here.escaped) != escaped:
        found = f"an exception that nobody has caught: {here.escaped[-1]}"
    if found is None and len(broker.server.connections) != kept:
        found = "a connection is kept"
    return found


async def _attack_tls(env: SimEnv, client: Client, random: Random) -> str | None:
    await env.network.connect("127.0.0.1", random.choice((SSL_PORT, SASL_SSL_PORT)), lambda: client)
    await _write(env, client, tls_bytes(random), random)
    if random.random() < 0.3 and not client.closed:
        client.transport.write_eof()
    await env.clock.sleep(random.choice((0, 1, 100, FORGOTTEN_WITHIN_MS)))
    return None


async def _attack(here: World, client: Client, random: Random, *, with_tls: bool) -> str | None:
    env, server = here.env, here.broker.server
    before = set(server.connections)
    if with_tls:
        context = client_context(Keys(trusted=authority().pem), ("TLSv1.3",), ())
        side = TlsSide(env.clock, env.turns, lambda: context, server_hostname="127.0.0.1")
        await env.network.connect("127.0.0.1", SASL_SSL_PORT, lambda: TlsTransport(side, client))
    else:
        await env.network.connect("127.0.0.1", SASL_PORT, lambda: client)
    await env.clock.sleep(1)
    connections = [each for each in server.connections if each not in before]
    talk = Talk(random, env.clock.now_ms() // 1000)
    for _ in range(random.randint(1, STEPS_MAX)):
        if client.closed:
            break
        made = talk.next_step()
        made = spoil(random, made) if random.random() < 0.03 else made
        size = len(made) if random.random() < 0.97 else random.choice((0, -1, 2**31 - 1, 1, len(made) + 7))
        await _write(env, client, struct.pack(">i", size) + made, random)
        if random.random() < 0.05:
            await env.clock.sleep(random.choice((500, 2_100)))  # a login counts two seconds
        if random.random() < 0.9:  # else the next is sent ahead
            answer = await client.answer()
            api = None if answer is None else talk.hear(answer)
            principals = {each.principal for each in connections}
            if not principals <= {ANONYMOUS, f"User:{ATTACKER}"}:
                return f"an attacker is {principals}"
            if api is ApiKey.METADATA and ANONYMOUS in principals:
                return "a request is answered to who has not logged in"
            if answer is not None and SECRETS[OTHER].encode() in answer:
                return "an answer has a secret"
    return None


async def _write(env: SimEnv, client: Client, data: bytes, random: Random) -> None:
    size = random.choice((1 << 20, 1 << 20, 1_000, 7)) if len(data) < 3_000 else 1 << 20
    for start in range(0, len(data), size):
        if client.closed:
            return
        client.transport.write(data[start : start + size])
        await env.clock.sleep(0)


async def _neighbour(env: SimEnv) -> str | None:
    """An honest client."""
    client, talk = Client(env), Talk(Random(1))
    await env.network.connect("127.0.0.1", SASL_PORT, lambda: client)
    token = f"\0{OTHER}\0{SECRETS[OTHER]}".encode()
    for api, version, message in (
        (ApiKey.SASL_HANDSHAKE, 1, messages.SaslHandshakeRequest(mechanism="PLAIN")),
        (ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=token)),
        (ApiKey.METADATA, 9, messages.MetadataRequest(topics=[])),
    ):
        client.transport.write(struct.pack(">i", len(made := talk.frame(api, version, message))) + made)
        if await client.answer() is None:
            return f"the neighbour gets no answer to {api.name}"
    client.transport.close()
    return None
