"""Very many clients that join or sync at once: their requests are handled in turns, and others come between."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from barnabas.broker import crowds, requests
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.turns import BUDGET_MS
from simulator import clock

Harness = Any  # of conftest.py
AT_ONCE = 3
CLIENTS = 30


@pytest.fixture(autouse=True)
def _crowds_begin_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "AT_ONCE_MAX", AT_ONCE)
    monkeypatch.setattr(clock, "WORK_STEP_MS", 1.0)  # as if every piece took a millisecond


class Handled:
    """Handlers that note whose request they were given. JoinGroups come in crowds here, heartbeats do not."""

    def __init__(self, handle: Callable[..., None]) -> None:
        self.order: list[str] = []
        handle(ApiKey.JOIN_GROUP, self.join, (0, 9))
        handle(ApiKey.HEARTBEAT, self.heartbeat)
        requests.TABLE[ApiKey.JOIN_GROUP].comes_in_crowds = True

    def join(self, broker: Any, request: Any, context: Any) -> Any:
        self.order.append(request.member_id)
        if request.member_id == "wrong":
            raise RuntimeError("a bug")
        return messages.JoinGroupResponse(member_id=request.member_id)

    def heartbeat(self, broker: Any, request: Any, context: Any) -> Any:
        self.order.append("heartbeat")
        return messages.HeartbeatResponse()


@pytest.fixture
def handled(handle: Callable[..., None]) -> Handled:
    return Handled(handle)


def join(member_id: str, correlation_id: int = 1) -> bytes:
    protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=member_id.encode())
    request = messages.JoinGroupRequest(member_id=member_id, protocols=[protocol])
    return frames.encode_request(ApiKey.JOIN_GROUP, 5, correlation_id, "test", request)


def heartbeat(correlation_id: int = 1) -> bytes:
    return frames.encode_request(ApiKey.HEARTBEAT, 4, correlation_id, "test", messages.HeartbeatRequest())


def test_the_first_are_handled_at_once_the_others_in_turns_and_in_order(harness: Harness, handled: Handled) -> None:
    wires = [harness.connect() for _ in range(CLIENTS)]
    for number, wire in enumerate(wires):
        wire.feed(join(f"m{number}"))
    assert handled.order == [f"m{number}" for number in range(AT_ONCE)]
    other = harness.connect()
    other.feed(heartbeat())
    assert other.correlation_ids() == [1]
    passes: list[int] = []
    harness.env.clock.loop.after_pass = lambda: passes.append(len(handled.order))
    harness.run()
    assert max(after - before for before, after in pairwise(passes)) <= BUDGET_MS + 1
    handled.order.remove("heartbeat")
    assert handled.order == [f"m{number}" for number in range(CLIENTS)]
    for number, wire in enumerate(wires):
        (answer,) = wire.answers()
        assert frames.decode_response(ApiKey.JOIN_GROUP, 5, answer)[1].member_id == f"m{number}"  # type: ignore[attr-defined]


def test_few_in_each_pass_are_no_crowd(harness: Harness, handled: Handled) -> None:
    for number in range(CLIENTS):
        harness.connect().feed(join(f"m{number}"))
        harness.run()
        assert len(handled.order) == number + 1


def test_what_comes_behind_on_the_same_connection_waits(harness: Harness, handled: Handled) -> None:
    for number in range(AT_ONCE):
        harness.connect().feed(join(f"m{number}"))
    wire = harness.connect()
    wire.feed(join("last", 7) + heartbeat(8))
    assert len(handled.order) == AT_ONCE
    harness.run()
    assert handled.order[AT_ONCE:] == ["last", "heartbeat"]
    assert wire.correlation_ids() == [7, 8]


def test_their_bytes_are_their_own_while_they_wait(harness: Harness, handled: Handled) -> None:
    wires = [harness.connect() for _ in range(CLIENTS)]
    for number, wire in enumerate(wires):
        wire.feed(join(f"m{number}"))
    harness.connect().feed(b"\x00\x00\x10\x00" + b"\x7f" * 4_000)  # into the same buffer
    harness.run()
    assert handled.order == [f"m{number}" for number in range(CLIENTS)]


def test_a_client_that_goes_has_asked_all_the_same(harness: Harness, handled: Handled) -> None:
    wires = [harness.connect() for _ in range(CLIENTS)]
    for number, wire in enumerate(wires):
        wire.feed(join(f"m{number}"))
    for wire in wires:
        wire.lose()
    harness.run()
    assert len(handled.order) == CLIENTS
    assert harness.server.connections == {}


def test_one_that_fails_or_cannot_be_read_keeps_no_other_waiting(harness: Harness, handled: Handled) -> None:
    for number in range(AT_ONCE):
        harness.connect().feed(join(f"m{number}"))
    failing, garbled, last = (harness.connect() for _ in range(3))
    failing.feed(join("wrong"))
    cut = join("cut")[4:-20]
    garbled.feed(len(cut).to_bytes(4, "big") + cut)
    last.feed(join("last"))
    harness.run()
    assert handled.order[AT_ONCE:] == ["wrong", "last"]
    assert frames.decode_response(ApiKey.JOIN_GROUP, 5, failing.answers()[0])[1].error_code == -1  # type: ignore[attr-defined]
    assert garbled.closed
    assert len(last.answers()) == 1


def test_even_a_bug_while_one_is_let_in_keeps_no_other_waiting(
    harness: Harness, handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(AT_ONCE):
        harness.connect().feed(join(f"m{number}"))
    escaped: list[dict[str, Any]] = []
    harness.env.clock.loop.set_exception_handler(lambda loop, context: escaped.append(context))
    unlucky, last = harness.connect(), harness.connect()
    unlucky.feed(join("unlucky"))
    last.feed(join("last"))

    real = type(unlucky.connection)._handle_request

    def handle(connection: Any, *rest: Any) -> None:
        if connection is unlucky.connection:
            raise RuntimeError("a bug")
        real(connection, *rest)

    monkeypatch.setattr(type(unlucky.connection), "_handle_request", handle)
    harness.run()
    assert handled.order[AT_ONCE:] == ["last"]
    assert len(escaped) == 1


def test_members_wait_for_each_other_so_their_requests_come_in_crowds() -> None:
    assert {row.key for row in requests.TABLE.values() if row.comes_in_crowds} == {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
    }
