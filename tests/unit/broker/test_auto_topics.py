"""Topics made because somebody asked for them, where the tree does not do as it is told."""

import asyncio
import gc
import logging

import pytest
from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.coordination.port import ConnectionLossError
from barnabas.protocol.errors import ErrorCode
from barnabas.sim.env import sim_env


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
            assert env.run(ask()) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    gc.collect()
    env.run(env.clock.sleep(1))
    assert unhandled == []
    assert "topic wanted cannot be created: nobody answers" in caplog.text
    env.run(ask())
    assert broker.metadata_cache.contains("wanted")
    env.run(broker.stop())
