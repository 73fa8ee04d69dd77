"""Clients that send, stop listening, close and are lost in any order: no move of a connection is outside its tables."""

from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import Any

import pytest
from barnabas.broker.connection import FRAMES_PER_TURN, Connection
from barnabas.broker.connection_states import REQUESTS_MOVES, SOCKET_MOVES, Requests, Socket
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
    ProduceResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.runtime.pending import CarriedOut, Pending

Harness = Any  # of conftest.py
MakeHarness = Callable[[dict[str, str]], Any]
Handle = Callable[..., None]
Move = tuple[Enum, Enum]
PARTITION = ProduceRequest.PartitionProduceData(index=0, records=bytes(3000))
PRODUCE = ProduceRequest(acks=1, topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[PARTITION])])
STEPS = 40
SEEDS = range(300)


class Handlers:
    """Heartbeats are answered at once, SyncGroups when the test says so, Produces when the replicas have them."""

    def __init__(self, random: Random, handle: Handle) -> None:
        self._random = random
        self.handled: list[int] = []  # correlation ids
        self._waiting: list[tuple[Pending[Any], Any]] = []
        handle(ApiKey.HEARTBEAT, self._answer)
        handle(ApiKey.SYNC_GROUP, self._park)
        handle(ApiKey.PRODUCE, self._carry_out, (3, 13), lambda request, error: ProduceResponse())

    def _answer(self, broker: Any, request: Any, context: Any) -> HeartbeatResponse:
        self.handled.append(context.correlation_id)
        return HeartbeatResponse()

    def _park(self, broker: Any, request: Any, context: Any) -> Pending[Any]:
        self.handled.append(context.correlation_id)
        return self._later(Pending(), SyncGroupResponse(), self._random.random() < 0.5)

    def _carry_out(self, broker: Any, request: Any, context: Any) -> Pending[Any]:
        self.handled.append(context.correlation_id)
        return self._later(CarriedOut(), ProduceResponse(), True)

    def _later(self, pending: Pending[Any], answer: Any, can_be_cancelled: bool) -> Pending[Any]:
        if can_be_cancelled:
            pending.on_cancel = lambda: None
        self._waiting.append((pending, answer))
        return pending

    def complete_one(self) -> bool:
        """Answer a request that waits. False: none waits."""
        if not self._waiting:
            return False
        pending, answer = self._waiting.pop(self._random.randrange(len(self._waiting)))
        if self._random.random() < 0.1:
            pending.fail(ValueError("a bug"))
        else:
            pending.complete(answer)
        return True


class Case:
    """One connection and its client."""

    def __init__(self, random: Random, harness: Harness, handlers: Handlers) -> None:
        self._random = random
        self._harness = harness
        self._handlers = handlers
        harness.server.is_reading = harness.server.serving = random.random() < 0.8
        self.wire = harness.connect(read_size=random.choice([50, 1000, 1 << 20]))
        self._sent = b""  # not fed yet
        self._frame_ends: list[int] = []  # of each request, in the stream of bytes
        self._stream_length = self._fed = 0
        self._sends_no_more = self._is_lost = self.broker_closes = False

    def step(self) -> None:
        """Something happens."""
        deeds = [self._send] * 4 + [self._handlers.complete_one] * 3 + [self._harness.run] * 3
        deeds += [self._stop_listening, self._listen, self._serve]
        if self._random.random() < 0.1:
            deeds += [self._half_close, self._lose, self._end_idleness, self._stop_server]
        self._random.choice(deeds)()

    def _send(self) -> None:
        if self._sends_no_more:
            return
        requests = self._random.choice([1, 2, 5, FRAMES_PER_TURN + 2])
        for _ in range(requests):
            self._sent += self._request(requests > FRAMES_PER_TURN)
        size = self._random.choice([len(self._sent), self._random.randrange(len(self._sent) + 1)])
        self._feed(size)

    def _request(self, is_answered_at_once: bool) -> bytes:
        messages = [HeartbeatRequest()] if is_answered_at_once else [HeartbeatRequest(), SyncGroupRequest(), PRODUCE]
        message: Any = self._random.choice(messages)
        frame = frames.encode_request(message.API_KEY, 4, len(self._frame_ends) + 1, "test", message)
        self._stream_length += len(frame)
        self._frame_ends.append(self._stream_length)
        return frame

    def _feed(self, size: int) -> None:
        part, self._sent = self._sent[:size], self._sent[size:]
        self.wire.feed(part)
        if not self.wire.closed:
            self._fed += len(part)

    def _stop_listening(self) -> None:
        if not self._is_lost:
            self.wire.connection.pause_writing()

    def _listen(self) -> None:
        if not self._is_lost:
            self.wire.connection.resume_writing()

    def _serve(self) -> None:
        if not self._harness.server.is_reading:
            self._harness.server.read()
        elif not self._harness.server.serving:
            self._harness.server.serve()

    def _half_close(self) -> None:
        if not self._sends_no_more and not self.wire.unread:
            self._sends_no_more = True
            self.wire.connection.eof_received()

    def _lose(self) -> None:
        if not self._is_lost:
            self._sends_no_more = True
            self.wire.lose()
            self._is_lost = True

    def _end_idleness(self) -> None:
        if self.wire.connection in self._harness.server.connections:
            self.broker_closes = True
            self.wire.connection.end_idleness()
            if self.wire.closed:
                self._lose()  # the transport says so in the next pass of the loop

    def _stop_server(self) -> None:
        self.broker_closes = True
        self._harness.server.close()

    def end(self) -> None:
        """Everything that waits comes; then the client is gone."""
        self._serve()
        self._serve()
        for _ in range(2):
            self._listen()
            self._harness.run()
            while self._handlers.complete_one():
                self._harness.run()
            self._lose()

    def arrived(self) -> int:
        """How many whole requests have come to the broker."""
        fed = self._fed - len(self.wire.unread)
        return sum(end <= fed for end in self._frame_ends)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Move]]:
    """The moves that connections have made."""
    seen: set[Move] = set()
    for name, state in (("_socket_to", "_socket"), ("_requests_to", "_requests")):
        original = getattr(Connection, name)

        def noted(self: Connection, to: Enum, original: Any = original, state: str = state) -> None:
            seen.add((getattr(self, state), to))
            original(self, to)

        monkeypatch.setattr(Connection, name, noted)
    yield seen  # noqa: PT022  (undone by monkeypatch)


def test_any_order_of_events(make_harness: MakeHarness, handle: Handle, moves: set[Move]) -> None:
    for seed in SEEDS:
        random = Random(seed)
        harness = make_harness({})
        handlers = Handlers(random, handle)
        case = Case(random, harness, handlers)
        for _ in range(STEPS):
            case.step()
        case.end()
        handled = handlers.handled
        assert handled == list(range(1, len(handled) + 1)), seed
        if not case.broker_closes:
            assert len(handled) == case.arrived(), seed
        answered = case.wire.correlation_ids() if case.wire.written else []
        assert answered == list(range(1, len(answered) + 1)), seed
        assert not harness.server.connections, seed
    for table in (SOCKET_MOVES, REQUESTS_MOVES):
        never = {(start, end) for start, ends in table.items() for end in ends} - moves
        assert never <= RARE, f"in the table, and never made: {never - RARE}"


RARE = {(Socket.NEW, Socket.CLOSING), (Requests.NOT_BEGUN, Requests.DROPPED)}  # tests/wire/test_limits.py has them


def test_another_move_is_a_bug(harness: Harness) -> None:
    connection = harness.connect().connection
    with pytest.raises(AssertionError, match="OPEN to GONE"):
        connection._socket_to(Socket.GONE)
    with pytest.raises(AssertionError, match="READY to NOT_BEGUN"):
        connection._requests_to(Requests.NOT_BEGUN)
