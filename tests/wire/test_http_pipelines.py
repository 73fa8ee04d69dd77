"""Many HTTP requests, sent at once on each of many connections: who else waits for them."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.http import routes
from barnabas.broker.http.routes import TABLE, HttpAnswer
from barnabas.broker.http.schemas import text
from barnabas.runtime.turns import BUDGET_MS
from simulator.clock import WORK_STEP_MS

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask, connect, request

World = Any  # of conftest.py
CONNECTIONS, REQUESTS = 40, 100
routes.load()


@pytest.fixture
def http_world(make_world: type[Any]) -> Iterator[World]:
    world = make_world()
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.http.handler_failures == 0
    assert world.escaped == []


def test_a_new_connection_is_answered_before_the_pipelines_of_others_end(http_world: World) -> None:
    async def run() -> None:
        world = http_world
        clients = [await connect(world.env, world.broker) for _ in range(CONNECTIONS)]
        await world.env.clock.sleep(10)
        before = world.broker.http.requests
        for client in clients:
            client.transport.write(request("GET", "/health") * REQUESTS)
        probe = await ask(world.env, world.broker, "GET", "/health")
        assert probe.status == 200
        assert world.broker.http.requests - before < CONNECTIONS * REQUESTS / 4
        for client in clients:
            for _ in range(REQUESTS):
                assert (await client.answer()).status == 200
            client.transport.close()

    http_world.env.run(run())


def test_pipelines_take_turns_within_the_budget_of_a_pass(http_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So requests of Kafka's clients, which come in other callbacks, are handled between them."""
    monkeypatch.setattr(routes, "TABLE", dict(TABLE))
    passes: list[list[str]] = []  # of the loop: who asked

    def handler(broker: Any, asking: Any) -> HttpAnswer:
        if not passes or passes[-1] is not now[0]:
            passes.append(now[0])
            http_world.env.clock.call_soon(lambda: now.__setitem__(0, []))
        now[0].append(asking.query["of"])
        return HttpAnswer.json({})

    now: list[list[str]] = [[]]
    routes.route("GET", "/v1/asked", summary="", query=[routes.Parameter("of", text(""))])(handler)

    async def run() -> None:
        world = http_world
        clients = [await connect(world.env, world.broker) for _ in range(CONNECTIONS)]
        await world.env.clock.sleep(10)
        for number, client in enumerate(clients):
            client.transport.write(request("GET", f"/v1/asked?of={number}") * REQUESTS)
        for client in clients:
            for _ in range(REQUESTS):
                await client.answer()
            client.transport.close()

    http_world.env.run(run())
    in_turns = BUDGET_MS / WORK_STEP_MS
    assert max(map(len, passes)) <= in_turns + CONNECTIONS  # what comes on a silent connection is answered at once
    asked = [of for each in passes for of in each]
    assert len(asked) == CONNECTIONS * REQUESTS
    assert all(one != two for one, two in pairwise(asked[CONNECTIONS:-CONNECTIONS])), "one request of each, in turn"
