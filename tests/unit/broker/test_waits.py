"""Waits of tests (`/v1/control/…/wait`) without brokers."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.http import waits
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest
from barnabas.protocol.errors import ErrorCode
from simulator.env import sim_env

TARGET = "/v1/control/groups/g/wait?members=1"


@pytest.mark.parametrize("given", ["&timeout_ms=10000", ""])
def test_a_wait_is_sent_on_to_the_broker_to_which_its_group_has_moved(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """For what is left of its time: it once looked at the former broker until that was over, or had all of it again."""
    env = sim_env()
    known_ms = env.clock.monotonic_ms() + 5_000
    asked: list[str] = []

    def check(_: Any, request: HttpRequest) -> HttpAnswer:
        if env.clock.monotonic_ms() < known_ms:
            raise HttpError(503, "COORDINATOR_NOT_AVAILABLE", "no broker coordinates the group now. Ask again soon.")
        asked.append(request.target)
        return HttpAnswer.json({}, status=307)

    monkeypatch.setattr(waits, "gate_of", lambda _: SimpleNamespace(lives=None))
    monkeypatch.setattr(waits, "check_of_group", check)
    moved = SimpleNamespace(shard_of=lambda _: ErrorCode.NOT_COORDINATOR)
    services: Any = SimpleNamespace(env=env, group_coordinator=moved)
    query = {"state": None, "members": 1, "lag": None, "timeout_ms": 10_000}
    request = HttpRequest("GET", TARGET + given, {"group": "g"}, query, None, "/127.0.0.1", "")
    assert env.run(waits.wait_for_group(services, request)).status == 307
    [target] = asked
    assert 4_900 < int(target.removeprefix(f"{TARGET}&timeout_ms=")) <= 5_000
