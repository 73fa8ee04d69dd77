"""Topics that are created on demand, while the tree fails or is slow."""

import asyncio
import gc
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from barnabas.broker.api.metadata import metadata
from barnabas.broker.auto_topics import MADE_WITHIN_MS
from barnabas.broker.broker import Broker
from barnabas.broker.requests import RequestContext
from barnabas.cluster.tree.port import ConnectionLossError, Operation
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import MetadataRequest
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import ended
from simulator.env import sim_env


def test_a_lost_connection_is_a_warning_and_the_next_request_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = sim_env(3)
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092", "coordination.path": ":memory:"}
    broker = Broker(env, BrokerConfig.of(settings), "/data")
    env.run(broker.start())
    unhandled: list[object] = []

    async def ask() -> ErrorCode:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        answer = broker.auto_topics.create("wanted")
        await env.clock.sleep(50)
        return answer

    async def lost(operations: object) -> None:
        raise ConnectionLossError("", "nobody answers")

    with monkeypatch.context() as patched:
        patched.setattr(broker.coordination, "multi", lost)
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                assert env.run(ask()) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gc.collect()
    env.run(env.clock.sleep(1_000))  # the controller tries its own writes again
    assert unhandled == []
    assert caplog.text.count("topic wanted cannot be created: nobody answers") == 1
    env.run(ask())
    assert broker.metadata_cache.contains("wanted")
    env.run(broker.stop())


def test_a_client_waits_a_bounded_time_for_a_topic_that_is_slow_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    env = sim_env(3)
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092", "coordination.path": ":memory:"}
    broker = Broker(env, BrokerConfig.of(settings), "/data")
    env.run(broker.start())
    really = broker.coordination.multi
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="wanted")])

    async def slow(operations: Sequence[Operation]) -> list[Any]:
        await env.clock.sleep(MADE_WITHIN_MS * 2)
        return await really(operations)

    async def ask() -> tuple[int, float]:
        began = env.clock.monotonic_ms()
        reply = metadata(broker, asked, RequestContext(ApiKey.METADATA, 9, 1, None))
        assert isinstance(reply, Pending)
        answer = await ended(reply)
        return answer.topics[0].error_code, env.clock.monotonic_ms() - began

    monkeypatch.setattr(broker.coordination, "multi", slow)
    error, waited_ms = env.run(ask())
    assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert MADE_WITHIN_MS <= waited_ms < MADE_WITHIN_MS * 2
    env.run(env.clock.sleep(MADE_WITHIN_MS * 4))
    assert broker.metadata_cache.contains("wanted"), "the creation went on"
    env.run(broker.stop())
