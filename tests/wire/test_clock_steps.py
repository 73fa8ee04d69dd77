"""A wall clock that jumps by an hour: logins and rates go by the other clock, tokens by what it says now."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record

World = Any  # of conftest.py
HOUR_MS = 3_600_000
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.fixture
def own(make_world: type[World]) -> Iterator[World]:
    """A broker with a listener that takes tokens, and one that asks for nothing."""
    world = make_world(
        **{
            "listeners": "PLAINTEXT://127.0.0.1:9092,SASL://127.0.0.1:9093",
            "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "inter_broker_listener_name": "PLAINTEXT",
            "sasl_enabled_mechanisms": "OAUTHBEARER",
            "listener.name.sasl.oauthbearer.sasl.jaas.config": MODULE,
        }
    )
    world.create_topic("t")
    yield world
    world.end()


def part(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


async def log_in(world: World, lifetime_ms: int) -> tuple[Any, int]:
    """A client with a token that begins now by the wall clock; the error of its login."""
    _, client = await world.env.network.connect("127.0.0.1", 9093, type(await world.connect()))
    shake = messages.SaslHandshakeRequest(mechanism="OAUTHBEARER")
    assert (await client.ask(ApiKey.SASL_HANDSHAKE, 1, shake)).error_code == 0
    now_s = world.env.clock.now_ms() / 1000
    claims = {"sub": "alice", "iat": now_s, "exp": now_s + lifetime_ms / 1000}
    token = f"n,,\x01auth=Bearer {part({'alg': 'none'})}.{part(claims)}.\x01\x01".encode()
    answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=token))
    return client, answer.error_code


async def is_served(client: Any) -> bool:
    client.send(ApiKey.METADATA, 8, messages.MetadataRequest(topics=[]))
    return await client.answer() is not None


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_login_counts_as_long_as_its_token_had_left(own: World, step_ms: int) -> None:
    """How long is decided when the client logs in."""

    async def run() -> None:
        client, error = await log_in(own, 60_000)
        assert error == 0
        own.env.clock.step_wall_clock(step_ms)
        await own.env.clock.sleep(55_000)
        assert await is_served(client)
        await own.env.clock.sleep(10_000)
        assert not await is_served(client)
        client, error = await log_in(own, 60_000)  # a token by the clock as it is now
        assert (error, await is_served(client)) == (0, True)

    own.env.run(run())


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_rate_does_not_go_by_the_wall_clock(own: World, step_ms: int) -> None:
    quota = messages.AlterClientQuotasRequest
    entity = quota.EntityData(entity_type="user", entity_name="ANONYMOUS")
    row = quota.EntryData(entity=[entity], ops=[quota.OpData(key="producer_byte_rate", value=10_000.0, remove=False)])
    assert own.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, quota(entries=[row])).entries[0].error_code == 0
    make = messages.ProduceRequest
    records = bytes(record_batch.build([Record(offset=0, timestamp=1, value=b"x" * 60_000)]))
    topic = make.TopicProduceData(name="t", partition_data=[make.PartitionProduceData(index=0, records=records)])
    request = make(acks=1, timeout_ms=5_000, topic_data=[topic])

    async def run() -> None:
        client = await own.connect()
        assert (await client.ask(ApiKey.PRODUCE, 9, request)).throttle_time_ms == 0
        own.env.clock.step_wall_clock(step_ms)
        waits_ms = (await client.ask(ApiKey.PRODUCE, 9, request)).throttle_time_ms
        assert waits_ms == pytest.approx(2_015, abs=20)
        own.env.clock.step_wall_clock(-step_ms)
        began_ms = own.env.clock.monotonic_ms()
        assert await is_served(client)
        assert own.env.clock.monotonic_ms() - began_ms == pytest.approx(waits_ms, abs=20)

    own.env.run(run())


def test_a_delegation_token_ends_by_the_wall_clock(make_world: type[World]) -> None:
    """Its end is a time of the calendar; if the clock goes back, it counts again as long as it is there."""
    world = make_world(delegation_token_secret_key="key")
    tokens = world.broker.delegation_tokens

    async def run() -> None:
        token = await tokens.create("User:alice", "User:alice", (), HOUR_MS // 2)
        assert tokens.credential_of(token.token_id, "SCRAM-SHA-256") is not None
        world.env.clock.step_wall_clock(HOUR_MS)
        assert tokens.credential_of(token.token_id, "SCRAM-SHA-256") is None
        error, _ = await tokens.renew("User:alice", tokens.hmac_of(token.token_id), 1_000)
        assert error == ErrorCode.DELEGATION_TOKEN_EXPIRED
        world.env.clock.step_wall_clock(-HOUR_MS)
        assert tokens.credential_of(token.token_id, "SCRAM-SHA-256") is not None

    world.env.run(run())
    world.env.run(world.broker.stop())
