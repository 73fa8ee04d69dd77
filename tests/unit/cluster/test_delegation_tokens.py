"""Delegation tokens: in the tree as Kafka 3.9 keeps them, between two brokers, and until they end."""

import base64
from typing import Any

import pytest
from barnabas.cluster.security.delegation_tokens import DelegationTokens
from barnabas.cluster.security.mechanism import AuthenticationError, TokenPrincipal
from barnabas.cluster.security.scram import ScramClient, ScramServer
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.payloads import DelegationToken
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from simulator.coordination import SimCoordination, SimTree
from simulator.env import SimEnv, sim_env

SETTINGS = {
    "delegation.token.secret.key": "planted-key",
    "delegation.token.expiry.time.ms": "60000",
    "delegation.token.max.lifetime.ms": "600000",
    "delegation.token.expiry.check.interval.ms": "1000",
}
# As Kafka 3.9.1 wrote them into ZooKeeper.
OF_KAFKA = (
    b'{"issueTimestamp":1795854932521,"renewers":["User%3Aa%20b","User%3Abob"],"tokenRequester":"User%3Aadmin",'
    b'"tokenId":"_CrebKJeSmyesrmTJ68nRA","owner":"User%3Acar%20ol%2C%C3%BC","expiryTimestamp":1795941332521,'
    b'"maxTimestamp":1796459732521,"version":3}'
)
TOKEN = DelegationToken(
    *("_CrebKJeSmyesrmTJ68nRA", "User:car ol,ü", "User:admin", ("User:a b", "User:bob")),
    *(1795854932521, 1796459732521, 1795941332521),
)


class Brokers:
    """Two brokers with one tree."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(1)
        self.tree = SimTree(self.env.clock)
        self.sessions = [SimCoordination(self.env.clock, self.tree) for _ in range(2)]
        config = BrokerConfig.of(SETTINGS)
        self.first, self.second = (DelegationTokens(self.env, config, each, lambda: True) for each in self.sessions)

    async def start(self) -> None:
        for session, tokens in zip(self.sessions, (self.first, self.second), strict=True):
            await session.start()
            await tokens.start()

    def run(self, work: Any) -> Any:
        return self.env.run(work)

    def wait(self, seconds: float) -> None:
        self.run(self.env.clock.sleep(seconds * 1000))

    def new(self, **more: Any) -> DelegationToken:
        asked = {"owner": "User:alice", "requester": "User:alice", "renewers": ("User:bob",), "lifetime_ms": -1} | more
        token: DelegationToken = self.run(self.first.create(**asked))
        return token


@pytest.fixture
def brokers() -> Any:
    brokers = Brokers()
    brokers.run(brokers.start())
    yield brokers
    brokers.first.stop()
    brokers.second.stop()
    brokers.wait(1)


def test_nodes_are_as_kafka_has_them() -> None:
    assert payloads.decode_delegation_token(OF_KAFKA) == TOKEN
    assert payloads.decode_delegation_token(payloads.encode_delegation_token(TOKEN)) == TOKEN
    ours, kafkas = (payloads.json.loads(each) for each in (payloads.encode_delegation_token(TOKEN), OF_KAFKA))
    assert ours == kafkas
    older = OF_KAFKA.replace(b'"version":3', b'"version":2').replace(b'"tokenRequester":"User%3Aadmin",', b"")
    assert payloads.decode_delegation_token(older).requester == TOKEN.owner
    for wrong in (b"", b"{}", b"[]", OF_KAFKA.replace(b'"version":3', b'"version":4')):
        with pytest.raises(ValueError, match=r"."):
            payloads.decode_delegation_token(wrong)


def test_the_secret_is_in_no_node(brokers: Brokers) -> None:
    token = brokers.new()
    secret = brokers.first.hmac_of(token.token_id)
    assert len(secret) == 64
    nodes = b"".join(data or b"" for _, data, _ in brokers.tree.nodes())
    assert b"User%3Aalice" in nodes
    assert secret not in nodes
    assert base64.b64encode(secret) not in nodes
    assert b"planted-key" not in nodes


def test_a_start_with_another_key_says_that_tokens_count_no_more(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka is silent, and refuses each login."""
    token = brokers.new()
    brokers.run(brokers.sessions[0].create(paths.delegation_token(TOKEN.token_id), OF_KAFKA))  # by nobody knows which
    for key, is_told in (("planted-key", False), ("planted-other", True)):
        caplog.clear()
        config = BrokerConfig.of(SETTINGS | {"delegation.token.secret.key": key})
        started = DelegationTokens(brokers.env, config, brokers.sessions[1], lambda: True)
        brokers.run(started.start())
        assert ("1 delegation token was made by another delegation.token.secret.key" in caplog.text) == is_told
        assert "planted" not in caplog.text
        started.stop()
        brokers.wait(1)
    renewed = brokers.run(brokers.first.renew("User:alice", brokers.first.hmac_of(token.token_id), -1))
    assert renewed[0] == ErrorCode.NONE
    assert payloads.json.loads(brokers.run(brokers.sessions[0].get(paths.delegation_token(token.token_id)))[0])[
        "keyCheck"
    ]


def test_lifetimes(brokers: Brokers) -> None:
    for asked_ms, max_ms, usual_ms in (
        (-1, 600_000, 60_000),
        (0, 600_000, 60_000),
        (10**13, 600_000, 60_000),
        (5, 5, 5),
    ):
        token = brokers.new(lifetime_ms=asked_ms)
        assert (token.max_ms - token.issued_ms, token.expires_ms - token.issued_ms) == (max_ms, usual_ms)


def login(tokens: DelegationTokens, token_id: str, secret: bytes, extension: bytes = b",tokenauth=true") -> ScramServer:
    mechanism = "SCRAM-SHA-512"
    client = ScramClient(mechanism, token_id, base64.b64encode(secret).decode(), b"c" * 20)
    client._first += extension
    server = ScramServer(mechanism, lambda *_: None, b"s" * 32, b"n" * 20, tokens.credential_of)
    server.step(client.step(server.step(client.first())) or b"")
    return server


def test_who_has_the_secret_is_its_owner_at_each_broker(brokers: Brokers) -> None:
    token = brokers.new(owner="User:carol")
    brokers.wait(1)
    for tokens in (brokers.first, brokers.second):
        server = login(tokens, token.token_id, tokens.hmac_of(token.token_id))
        assert server.principal == "User:carol"
        assert isinstance(server.principal, TokenPrincipal)
        assert server.expires_ms == token.expires_ms
    for token_id, secret, extension in (
        (token.token_id, b"wrong", b",tokenauth=true"),
        ("unknown", brokers.first.hmac_of("unknown"), b",tokenauth=true"),
        (token.token_id, brokers.first.hmac_of(token.token_id), b""),
        (token.token_id, brokers.first.hmac_of(token.token_id), b",tokenauth=false"),
    ):
        with pytest.raises(AuthenticationError) as refused:
            login(brokers.first, token_id, secret, extension)
        assert token.token_id not in str(refused.value)


def test_who_may_renew(brokers: Brokers) -> None:
    token = brokers.new(requester="User:admin")
    secret = brokers.first.hmac_of(token.token_id)
    brokers.wait(10)
    now_ms = brokers.env.clock.now_ms
    for principal in ("User:alice", "User:bob"):
        assert brokers.run(brokers.second.renew(principal, secret, 1000)) == (ErrorCode.NONE, now_ms() + 1000)
    assert brokers.run(brokers.first.renew("User:alice", secret, -1)) == (ErrorCode.NONE, now_ms() + 60_000)
    assert brokers.run(brokers.first.renew("User:alice", secret, 10**13)) == (ErrorCode.NONE, now_ms() + 60_000)
    mismatch = (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert brokers.run(brokers.first.renew("User:admin", secret, 1000)) == mismatch
    not_found = (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    for wrong in (b"", b"x" * 64, secret[:-1], b"x" * 100_000):
        assert brokers.run(brokers.first.renew("User:alice", wrong, 1000)) == not_found


def test_expired_tokens_do_not_log_in_and_are_removed(brokers: Brokers) -> None:
    token = brokers.new()
    secret = brokers.first.hmac_of(token.token_id)
    brokers.wait(59)
    login(brokers.second, token.token_id, secret)
    brokers.wait(1.01)
    with pytest.raises(AuthenticationError):
        login(brokers.second, token.token_id, secret)
    assert brokers.run(brokers.second.renew("User:alice", secret, 1))[0] in (
        ErrorCode.DELEGATION_TOKEN_EXPIRED,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    )
    brokers.wait(3)
    assert not list(brokers.first.all())
    assert not list(brokers.second.all())
    assert not [path for path, _, _ in brokers.tree.nodes() if token.token_id in path]


def test_what_may_be_done_with_a_token_that_has_expired(brokers: Brokers) -> None:
    """Until it is removed, its owner and its renewers may end it. Each answer was asked of Kafka 4.3.1."""
    expired, mismatch = (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0), (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    for ends in ("User:alice", "User:bob"):
        token = brokers.new()
        secret = brokers.first.hmac_of(token.token_id)
        brokers.env.clock.step_wall_clock(60_001)
        for principal in ("User:alice", "User:bob", "User:mallory"):
            assert brokers.run(brokers.first.renew(principal, secret, 1)) == expired
        assert brokers.run(brokers.first.expire(ends, secret, 1000)) == expired
        for period_ms in (1000, -1):
            assert brokers.run(brokers.first.expire("User:mallory", secret, period_ms)) == mismatch
        assert brokers.run(brokers.first.expire(ends, secret, -1)) == (ErrorCode.NONE, brokers.env.clock.now_ms())
        assert not list(brokers.first.all())


def test_a_token_that_is_ended_is_gone_everywhere(brokers: Brokers) -> None:
    token = brokers.new()
    secret = brokers.first.hmac_of(token.token_id)
    brokers.wait(1)
    now_ms = brokers.env.clock.now_ms
    assert brokers.run(brokers.second.expire("User:bob", secret, 5000)) == (ErrorCode.NONE, now_ms() + 5000)
    assert brokers.run(brokers.second.expire("User:alice", secret, 10**14)) == (ErrorCode.NONE, token.max_ms)
    assert brokers.run(brokers.second.expire("User:alice", secret, -1)) == (ErrorCode.NONE, now_ms())
    brokers.wait(1)
    for tokens in (brokers.first, brokers.second):
        with pytest.raises(AuthenticationError):
            login(tokens, token.token_id, secret)


def test_without_a_key_nothing_is_done() -> None:
    env = sim_env(1)
    session = SimCoordination(env.clock, SimTree(env.clock))
    tokens = DelegationTokens(env, BrokerConfig.of({}), session, lambda: True)
    env.run(session.start())
    env.run(tokens.start())
    assert not tokens.is_enabled
    tokens.stop()
