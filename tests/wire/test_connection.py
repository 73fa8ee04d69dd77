"""One connection: frames that arrive in any pieces, the order of answers, limits, and bytes that are no request."""

import errno
import logging
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from barnabas.broker.answer_writer import UNSENT_BYTES_MAX
from barnabas.broker.carried_out import CARRIED_OUT_BYTES_MAX
from barnabas.broker.connection import READ_AHEAD_BYTES_MAX
from barnabas.broker.read_buffers import CAPACITY_FIRST
from barnabas.broker.requests import CLOSE
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
    ProduceResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.runtime.pending import CarriedOut, Pending
from simulator.clock import PIECES_PER_PASS

Handle = Callable[..., None]
Harness = Any  # of conftest.py
MakeHarness = Callable[[dict[str, str]], Any]


def heartbeat(correlation_id: int, member: str = "m", version: int = 4) -> bytes:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    return frames.encode_request(ApiKey.HEARTBEAT, version, correlation_id, "test", message)


def answer_ok(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
    return HeartbeatResponse()


class Parking:
    """A handler that parks, and the test that completes."""

    def __init__(self) -> None:
        self.parked: list[Pending[HeartbeatResponse]] = []
        self.members: list[str] = []

    def __call__(self, broker: Any, request: Any, context: Any) -> Pending[HeartbeatResponse]:
        pending: Pending[HeartbeatResponse] = Pending()
        self.parked.append(pending)
        self.members.append(request.member_id)
        return pending


@pytest.mark.parametrize("is_reading", [False, True])
@pytest.mark.parametrize("read_size", [3, 1 << 20])
def test_no_client_is_answered_before_the_broker_serves(
    harness: Harness, handle: Handle, read_size: int, is_reading: bool
) -> None:
    handle(ApiKey.HEARTBEAT, answer_ok)
    harness.server.is_reading, harness.server.serving = is_reading, False
    early = harness.connect(read_size=read_size)
    early.feed(heartbeat(1) + heartbeat(2))
    early.feed(heartbeat(3))
    harness.run()
    assert early.correlation_ids() == []
    harness.server.serve()
    harness.run()
    assert early.correlation_ids() == [1, 2, 3]


@pytest.mark.parametrize("read_size", [1, 2, 3, 5, 7, 64, 1 << 20])
def test_frames_arrive_in_any_pieces(harness: Harness, handle: Handle, read_size: int) -> None:
    members = []

    def remember(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
        members.append(request.member_id)
        return HeartbeatResponse()

    handle(ApiKey.HEARTBEAT, remember)
    wire = harness.connect(read_size=read_size)
    wire.feed(heartbeat(1, "a") + heartbeat(2, "b" * 300) + heartbeat(3, "c"))
    harness.run()
    assert members == ["a", "b" * 300, "c"]
    assert wire.correlation_ids() == [1, 2, 3]


@pytest.mark.parametrize("size", [CAPACITY_FIRST - 1, CAPACITY_FIRST, CAPACITY_FIRST + 1, 3_000_000])
@pytest.mark.parametrize("read_size", [50_000, 1 << 30])
def test_large_frames(harness: Harness, handle: Handle, size: int, read_size: int) -> None:
    seen = []

    def remember(broker: Any, request: Any, context: Any) -> SyncGroupResponse:
        seen.append(request.assignments[0].assignment)
        return SyncGroupResponse()

    handle(ApiKey.SYNC_GROUP, remember)
    payload = bytes(range(256)) * (size // 256)
    message = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id="m",
        assignments=[SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=payload)],
    )
    handle(ApiKey.HEARTBEAT, answer_ok)
    wire = harness.connect(read_size=read_size)
    wire.feed(frames.encode_request(ApiKey.SYNC_GROUP, 3, 1, "test", message) + heartbeat(2))
    assert seen == [payload]
    assert wire.correlation_ids() == [1, 2]


@pytest.mark.parametrize(("excess", "is_served"), [(-1, True), (0, True), (1, False)])
def test_the_size_of_a_frame_is_limited(
    make_harness: MakeHarness, handle: Handle, excess: int, is_served: bool
) -> None:
    limit = len(heartbeat(1)) - 4 - excess
    harness = make_harness({"socket.request.max.bytes": str(limit)})
    handle(ApiKey.HEARTBEAT, answer_ok)
    wire = harness.connect()
    wire.feed(heartbeat(1))
    assert wire.closed is not is_served
    assert wire.correlation_ids() == ([1] if is_served else [])


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1])
def test_a_size_that_cannot_be_closes_the_connection(harness: Harness, size: int) -> None:
    wire = harness.connect()
    wire.feed(struct.pack(">i", size))
    assert wire.closed
    assert harness.server.protocol_errors == 1


CLIENT_HELLO = bytes.fromhex("16030100c8010000c4")


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (CLIENT_HELLO, "it speaks TLS, and this port has Kafka's protocol without it"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks HTTP, and this port has Kafka's protocol"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP, and this port has Kafka's protocol"),
        (b"SSH-2.0-x\r\n", "a frame of 1397966893 bytes (socket.request.max.bytes=104857600)"),
    ],
)
@pytest.mark.parametrize("read_size", [4, 1 << 30])
def test_another_protocol_is_named_once(
    harness: Harness, caplog: pytest.LogCaptureFixture, start: bytes, said: str, read_size: int
) -> None:
    for _ in range(10):
        wire = harness.connect(read_size=read_size)
        wire.feed(start)
        assert wire.closed
        answered = b"".join(wire.written)
        assert answered.startswith(b"HTTP/1.1 400 ") if "HTTP" in said else not answered
        assert said.encode() in answered or not answered
    assert harness.server.protocol_errors == 10
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"closing the connection of 192.0.2.7: {said}")
    harness.env.clock.advance(60_000)
    harness.connect().feed(start)
    assert caplog.records[-1].getMessage().endswith("(9 more of this kind in the minute before)")


def test_a_lying_size_takes_no_memory(harness: Harness) -> None:
    wire = harness.connect()
    wire.feed(struct.pack(">i", 100_000_000) + bytes(10))
    assert not wire.closed
    assert len(memoryview(wire.connection.get_buffer(-1))) <= CAPACITY_FIRST


def test_one_request_in_flight_and_answers_in_order(harness: Harness, handle: Handle) -> None:
    parking = Parking()
    handle(ApiKey.HEARTBEAT, parking)
    wire = harness.connect()
    wire.feed(heartbeat(1, "a") + heartbeat(2, "b"))
    wire.feed(heartbeat(3, "c"))
    assert parking.members == ["a"]
    for done in range(3):
        parking.parked[done].complete(HeartbeatResponse())
        harness.run()
    assert parking.members == ["a", "b", "c"]
    assert wire.correlation_ids() == [1, 2, 3]


def produce(correlation_id: int, size: int = 10) -> bytes:
    topic = ProduceRequest.TopicProduceData(
        name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=bytes(size))]
    )
    message = ProduceRequest(acks=-1, timeout_ms=correlation_id, topic_data=[topic])
    return frames.encode_request(ApiKey.PRODUCE, 9, correlation_id, "test", message)


class Replicas:
    """A handler of Produce whose requests are carried out, and answered by the test. They are told by `timeout_ms`."""

    def __init__(self) -> None:
        self.waiting: dict[int, CarriedOut[ProduceResponse]] = {}
        self.cancelled: list[int] = []

    def __call__(self, broker: Any, request: Any, context: Any) -> CarriedOut[ProduceResponse]:
        number = request.timeout_ms
        pending = self.waiting[number] = CarriedOut()
        pending.on_cancel = lambda: self.cancelled.append(number)
        return pending

    def answer(self, *numbers: int) -> None:
        for number in numbers:
            self.waiting[number].complete(ProduceResponse())


@pytest.fixture
def replicas(handle: Handle) -> Replicas:
    replicas = Replicas()
    handle(ApiKey.PRODUCE, replicas, (3, 13))
    return replicas


@pytest.mark.parametrize("read_size", [1, 7, 100, 1 << 20])
def test_produces_do_not_wait_for_the_replicas_of_those_before(
    harness: Harness, replicas: Replicas, read_size: int
) -> None:
    wire = harness.connect(read_size=read_size)
    wire.feed(produce(1) + produce(2) + produce(3))
    harness.run()
    assert list(replicas.waiting) == [1, 2, 3]
    replicas.answer(2)
    harness.run()
    assert wire.correlation_ids() == []
    replicas.answer(1)
    harness.run()
    assert wire.correlation_ids() == [1, 2]
    replicas.answer(3)
    harness.run()
    assert wire.correlation_ids() == [1, 2, 3]


@pytest.mark.parametrize("read_size", [1, 7, 1 << 20])
def test_other_requests_wait_for_the_produces_before_them(
    harness: Harness, handle: Handle, replicas: Replicas, read_size: int
) -> None:
    parking = Parking()
    handle(ApiKey.HEARTBEAT, parking)
    wire = harness.connect(read_size=read_size)
    wire.feed(produce(1) + produce(2) + heartbeat(3, "a") + produce(4))
    replicas.answer(1)
    harness.run()
    assert parking.members == []
    replicas.answer(2)
    harness.run()
    assert (parking.members, list(replicas.waiting)) == (["a"], [1, 2])
    parking.parked[0].complete(HeartbeatResponse())
    harness.run()
    replicas.answer(4)
    harness.run()
    assert wire.correlation_ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(("excess", "handled"), [(-1, [1, 2]), (0, [1, 2]), (1, [1])])
def test_the_bytes_of_produces_that_wait_are_limited(
    harness: Harness, replicas: Replicas, excess: int, handled: list[int]
) -> None:
    half = CARRIED_OUT_BYTES_MAX // 2
    overhead = len(produce(1, half)) - 4 - half
    wire = harness.connect()
    wire.feed(produce(1, half - overhead) + produce(2, half - overhead + excess) + produce(3))
    harness.run()
    assert list(replicas.waiting) == handled
    replicas.answer(1)
    harness.run()
    assert list(replicas.waiting) == [1, 2, 3]
    replicas.answer(2, 3)
    harness.run()
    assert wire.correlation_ids() == [1, 2, 3]


def test_an_answer_that_is_there_at_once_waits_for_those_before(harness: Harness, handle: Handle) -> None:
    replicas = Replicas()

    def refuse_even(broker: Any, request: Any, context: Any) -> Any:
        return replicas(broker, request, context) if request.timeout_ms % 2 else ProduceResponse()

    handle(ApiKey.PRODUCE, refuse_even, (3, 13))
    wire = harness.connect()
    wire.feed(produce(1) + produce(2) + produce(3) + produce(4))
    harness.run()
    assert wire.correlation_ids() == []
    replicas.answer(1)
    assert wire.correlation_ids() == [1, 2]
    replicas.answer(3)
    assert wire.correlation_ids() == [1, 2, 3, 4]


def test_a_produce_that_is_not_carried_out_yet_holds_those_behind_it(harness: Harness, handle: Handle) -> None:
    replicas = Replicas()
    checking: list[Pending[ProduceResponse]] = []

    def check_the_second(broker: Any, request: Any, context: Any) -> Any:
        if request.timeout_ms != 2:
            return replicas(broker, request, context)
        checking.append(Pending())
        return checking[0]

    handle(ApiKey.PRODUCE, check_the_second, (3, 13))
    wire = harness.connect()
    wire.feed(produce(1) + produce(2) + produce(3))
    harness.run()
    assert list(replicas.waiting) == [1]
    checking[0].complete(ProduceResponse())
    harness.run()
    assert (list(replicas.waiting), wire.correlation_ids()) == ([1, 3], [])
    replicas.answer(3, 1)
    assert wire.correlation_ids() == [1, 2, 3]


def test_a_bug_in_one_of_several_answers(harness: Harness, handle: Handle) -> None:
    replicas = Replicas()
    handle(ApiKey.PRODUCE, replicas, (3, 13), lambda request, error: ProduceResponse(throttle_time_ms=77))
    wire = harness.connect()
    wire.feed(produce(1) + produce(2))
    replicas.waiting[1].fail(ValueError("a bug"))
    replicas.answer(2)
    assert wire.correlation_ids() == [1, 2]


def test_a_client_that_sends_no_more_gets_the_answers_of_its_produces(harness: Harness, replicas: Replicas) -> None:
    wire = harness.connect()
    wire.feed(produce(1) + produce(2))
    wire.connection.eof_received()
    harness.run()
    assert not wire.closed
    replicas.answer(1)
    harness.run()
    assert not wire.closed
    replicas.answer(2)
    harness.run()
    assert wire.correlation_ids() == [1, 2]
    assert wire.closed


def test_when_the_client_is_lost_no_produce_waits_for_replicas(harness: Harness, replicas: Replicas) -> None:
    wire = harness.connect()
    wire.feed(produce(1) + produce(2) + produce(3))
    replicas.answer(2)
    wire.connection.connection_lost(None)
    harness.run()
    assert replicas.cancelled == [1, 3]
    assert not harness.server.connections


def test_what_is_no_request_closes_when_the_produces_before_it_are_answered(
    harness: Harness, replicas: Replicas
) -> None:
    wire = harness.connect()
    wire.feed(produce(1) + struct.pack(">i", -1))
    harness.run()
    assert not wire.closed
    replicas.answer(1)
    harness.run()
    assert wire.correlation_ids() == [1]
    assert wire.closed


def test_what_is_completed_at_once_needs_no_turn_of_the_loop(harness: Harness, handle: Handle) -> None:
    def completed(broker: Any, request: Any, context: Any) -> Pending[HeartbeatResponse]:
        pending: Pending[HeartbeatResponse] = Pending()
        pending.complete(HeartbeatResponse())
        return pending

    handle(ApiKey.HEARTBEAT, completed)
    wire = harness.connect()
    wire.feed(heartbeat(1) + heartbeat(2))
    assert wire.correlation_ids() == [1, 2]


def test_reading_pauses_behind_a_parked_request_and_goes_on_after_it(harness: Harness, handle: Handle) -> None:
    parking = Parking()
    handle(ApiKey.HEARTBEAT, parking)
    wire = harness.connect(read_size=8192)
    count = 3 * READ_AHEAD_BYTES_MAX // len(heartbeat(1))
    wire.feed(b"".join(heartbeat(number) for number in range(count)))
    assert not wire.reading
    assert len(wire.unread) > READ_AHEAD_BYTES_MAX
    while len(wire.written) < count:
        parking.parked[-1].complete(HeartbeatResponse())
        harness.run()
    assert wire.correlation_ids() == list(range(count))
    assert wire.reading


@pytest.mark.parametrize(("excess", "sends"), [(-1, 1), (0, 2), (1, 2)])
def test_answers_to_one_read_are_sent_together_up_to_a_limit(
    harness: Harness, handle: Handle, excess: int, sends: int
) -> None:
    shape = sum(map(len, frames.encode_response(ApiKey.SYNC_GROUP, 3, 1, SyncGroupResponse(assignment=b""))))
    payload = bytes(UNSENT_BYTES_MAX // 4 - shape + excess)
    message = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
    handle(ApiKey.SYNC_GROUP, lambda broker, request, context: SyncGroupResponse(assignment=payload))
    wire = harness.connect()
    wire.feed(b"".join(frames.encode_request(ApiKey.SYNC_GROUP, 3, number, "test", message) for number in range(5)))
    assert wire.correlation_ids() == [0, 1, 2, 3, 4]
    assert len(wire.written) == sends


def test_a_slow_reader_gets_no_further_answers(harness: Harness, handle: Handle) -> None:
    handle(ApiKey.HEARTBEAT, answer_ok)
    wire = harness.connect()
    wire.feed(heartbeat(1))
    wire.connection.pause_writing()
    wire.feed(heartbeat(2) + heartbeat(3))
    assert wire.correlation_ids() == [1]
    wire.connection.resume_writing()
    assert wire.correlation_ids() == [1, 2, 3]


def test_a_connection_that_goes_gives_up_a_request_that_only_waits(harness: Harness, handle: Handle) -> None:
    parking = Parking()
    handle(ApiKey.HEARTBEAT, parking)
    wire = harness.connect()
    wire.feed(heartbeat(1, "a") + heartbeat(2, "b"))
    left: list[bool] = []
    parking.parked[0].on_cancel = lambda: left.append(True)
    wire.lose()
    assert left == [True]
    assert parking.members == ["a", "b"]


def test_a_connection_that_goes_waits_for_a_request_that_cannot_be_given_up(harness: Harness, handle: Handle) -> None:
    parking = Parking()
    handle(ApiKey.HEARTBEAT, parking)
    wire = harness.connect()
    wire.feed(heartbeat(1, "a") + heartbeat(2, "b"))
    wire.lose()
    assert parking.members == ["a"]
    assert len(harness.server.connections) == 1
    for done, members in enumerate((["a", "b"], ["a", "b"])):
        parking.parked[done].complete(HeartbeatResponse())
        harness.run()
        assert parking.members == members
    assert len(harness.server.connections) == 0
    assert wire.answers() == []


def test_a_coroutine_is_awaited(harness: Harness, handle: Handle) -> None:
    async def later(broker: Any, request: Any, context: Any) -> HeartbeatResponse:
        await harness.env.clock.sleep(100)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)

    handle(ApiKey.HEARTBEAT, later)
    wire = harness.connect()

    async def feed() -> None:
        wire.feed(heartbeat(1) + heartbeat(2))

    harness.env.run(feed())
    assert wire.correlation_ids() == []
    harness.env.clock.advance(100)
    assert wire.correlation_ids() == [1]
    harness.env.clock.advance(100)
    assert wire.correlation_ids() == [1, 2]
    _, response = frames.decode_response(ApiKey.HEARTBEAT, 4, memoryview(wire.answers()[0]))
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_handler_that_raises_costs_its_client_an_error(
    harness: Harness, handle: Handle, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(broker: Any, request: Any, context: Any) -> Any:
        raise ZeroDivisionError

    async def broken_later(broker: Any, request: Any, context: Any) -> Any:
        raise ZeroDivisionError

    handle(ApiKey.HEARTBEAT, broken if kind == "plain" else broken_later)
    wire = harness.connect()

    async def feed() -> None:
        wire.feed(heartbeat(1))

    harness.env.run(feed())
    harness.run()
    _, response = frames.decode_response(ApiKey.HEARTBEAT, 4, memoryview(wire.answers()[0]))
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert harness.server.gate.handler_failures == 1
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("where", ["handling", "decoding"])
def test_without_a_free_descriptor_no_bug_is_told(
    harness: Harness, handle: Handle, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Modules and schemas are read when they are needed first."""

    def refused(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", "schemas/heartbeat.txt")

    handle(ApiKey.HEARTBEAT, refused)
    if where == "decoding":
        monkeypatch.setattr(frames, "decode_request_header", refused)
    wire = harness.connect()
    wire.feed(heartbeat(1) * 3)
    harness.run()
    if where == "handling":
        _, response = frames.decode_response(ApiKey.HEARTBEAT, 4, memoryview(wire.answers()[0]))
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "clients try again"
    assert wire.closed == (where == "decoding")
    assert harness.server.gate.handler_failures == 0
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "no file descriptor is free" in line.getMessage()
    assert "ulimit -n" in line.getMessage()
    assert line.exc_info is None


@pytest.mark.parametrize(("requests", "tracebacks"), [(9, 9), (10, 10), (11, 10), (1000, 11)])
def test_a_client_in_a_loop_does_not_fill_the_log(
    harness: Harness, handle: Handle, requests: int, tracebacks: int, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(broker: Any, request: Any, context: Any) -> Any:
        raise ZeroDivisionError

    handle(ApiKey.HEARTBEAT, broken)
    harness.connect().feed(heartbeat(1) * requests)
    harness.run()
    assert harness.server.gate.handler_failures == requests
    assert len(caplog.records) == tracebacks


def test_an_answer_that_cannot_be_encoded_is_a_handlers_failure(harness: Harness, handle: Handle) -> None:
    handle(ApiKey.HEARTBEAT, lambda broker, request, context: HeartbeatResponse(throttle_time_ms="soon"))  # type: ignore[arg-type]
    wire = harness.connect()
    wire.feed(heartbeat(1))
    _, response = frames.decode_response(ApiKey.HEARTBEAT, 4, memoryview(wire.answers()[0]))
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("reply", "closes"), [(None, False), (CLOSE, True)])
def test_no_answer_and_a_closed_connection(harness: Harness, handle: Handle, reply: Any, closes: bool) -> None:
    handle(ApiKey.HEARTBEAT, lambda broker, request, context: reply)
    wire = harness.connect()
    wire.feed(heartbeat(1) + heartbeat(2))
    assert wire.answers() == []
    assert wire.closed is closes


def test_nonsense_costs_one_line_and_its_own_connection(
    harness: Harness, handle: Handle, caplog: pytest.LogCaptureFixture
) -> None:
    handle(ApiKey.HEARTBEAT, answer_ok)
    other = harness.connect("192.0.2.8")
    wire = harness.connect()
    with caplog.at_level(logging.INFO, "barnabas"):
        wire.feed(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert wire.closed
    assert len(caplog.records) == 1
    other.feed(heartbeat(1))
    assert other.correlation_ids() == [1]


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_truncated_request_closes_the_connection(harness: Harness, handle: Handle, cut: int) -> None:
    handle(ApiKey.HEARTBEAT, answer_ok)
    body = heartbeat(1)[4:]
    wire = harness.connect()
    wire.feed(struct.pack(">i", len(body) - cut) + body[:-cut])
    assert wire.closed
    assert wire.answers() == []
    assert harness.server.gate.handler_failures == 0


@pytest.mark.parametrize(("key", "version"), [(12, 5), (12, -1), (9999, 0), (-1, 0)])
def test_what_is_not_offered_closes_the_connection(harness: Harness, handle: Handle, key: int, version: int) -> None:
    handle(ApiKey.HEARTBEAT, answer_ok)
    wire = harness.connect()
    body = struct.pack(">hhih", key, version, 1, -1) + bytes(20)
    wire.feed(struct.pack(">i", len(body)) + body)
    assert wire.closed


@pytest.mark.parametrize("version", [5, 99, 32767, -1])  # -1: as Kafka
def test_a_too_new_api_versions_learns_what_is_served_and_goes_on(harness: Harness, version: int) -> None:
    wire = harness.connect()
    body = struct.pack(">hhih", 18, version, 7, 4) + b"test" + b"\x00\x05java\x041.0\x00"
    wire.feed(struct.pack(">i", len(body)) + body)
    correlation_id, response = frames.decode_response(ApiKey.API_VERSIONS, 0, memoryview(wire.answers()[0]))
    assert correlation_id == 7
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.api_keys == [ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]
    wire.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), 8)
    assert wire.correlation_ids() == [7, 8]


# ---------------------------------------------------------------------- limits of the server


@pytest.mark.parametrize(("already_open", "waits"), [(1, False), (2, False), (3, True)])
def test_beyond_max_connections_one_waits_for_a_place(
    make_harness: MakeHarness, already_open: int, waits: bool
) -> None:
    """As in Kafka, which stops accepting: the client is connected, but it is not read until another one goes."""
    harness = make_harness({"max.connections": "3"})
    others = [harness.connect(f"192.0.2.{number}") for number in range(already_open)]
    late = harness.connect("192.0.2.99")
    late.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert not late.closed
    assert late.correlation_ids() == ([] if waits else [1])
    others[0].lose()
    assert late.correlation_ids() == [1]
    assert len(harness.server.connections) == already_open


@pytest.mark.parametrize(("already_waiting", "is_refused"), [(0, False), (1, False), (2, True)])
def test_as_many_wait_as_a_listener_holds(make_harness: MakeHarness, already_waiting: int, is_refused: bool) -> None:
    harness = make_harness({"max.connections": "1", "socket.listen.backlog.size": "2"})
    harness.connect()
    waiting = [harness.connect() for _ in range(already_waiting)]
    assert harness.connect().closed is is_refused
    assert not any(wire.closed for wire in waiting)


def test_who_waits_for_a_place_is_counted_by_its_address_when_it_gets_one(make_harness: MakeHarness) -> None:
    harness = make_harness({"max.connections": "2", "max.connections.per.ip": "1"})
    first, second = harness.connect("192.0.2.1"), harness.connect("192.0.2.2")
    again, gone, third = harness.connect("192.0.2.1"), harness.connect("192.0.2.3"), harness.connect("192.0.2.4")
    gone.lose()
    second.lose()
    assert again.closed
    third.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert third.correlation_ids() == [1]
    assert not first.closed


def test_more_connections_are_allowed_while_some_wait(make_harness: MakeHarness) -> None:
    harness = make_harness({"max.connections": "1"})
    _, second, third = harness.connect(), harness.connect(), harness.connect()
    for wire in (second, third):
        wire.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    harness.config.set_dynamic({"max.connections": "2"}, {})
    assert (second.correlation_ids(), third.correlation_ids()) == ([1], [])
    harness.server.close()
    assert second.closed
    assert third.closed


def test_a_frame_that_never_ends_is_no_sign_of_life(make_harness: MakeHarness) -> None:
    """One byte a while (slow loris): closed as if it were silent."""
    harness = make_harness({"connections.max.idle.ms": "1000"})
    harness.env.run(harness.server.listen())
    wire = harness.connect()
    wire.feed(struct.pack(">i", 1000))
    for _ in range(12):
        harness.env.clock.advance(100)
        if not wire.closed:
            wire.feed(b"\0")
    assert wire.closed


@pytest.mark.parametrize(("already_open", "is_refused"), [(0, False), (1, False), (2, True)])
def test_connections_of_one_address_are_limited(make_harness: MakeHarness, already_open: int, is_refused: bool) -> None:
    harness = make_harness({"max.connections.per.ip": "2", "max.connections.per.ip.overrides": "192.0.2.1:5"})
    for _ in range(already_open):
        harness.connect("192.0.2.7")
    assert harness.connect("192.0.2.7").closed is is_refused
    assert not harness.connect("192.0.2.1").closed
    assert not harness.connect("192.0.2.2").closed


def test_a_client_that_has_gone_before_it_is_admitted_is_nobody_in_particular(harness: Harness) -> None:
    wire = harness.connect(peer=None)  # the system does not know any more who it was
    assert not wire.closed
    wire.lose()
    assert not harness.server.connections


def test_a_closed_connection_frees_its_place(make_harness: MakeHarness) -> None:
    harness = make_harness({"max.connections.per.ip": "1"})
    harness.connect().lose()
    assert not harness.connect().closed
    assert harness.connect().closed


def test_a_refused_connection_frees_no_place(make_harness: MakeHarness) -> None:
    harness = make_harness({"max.connections.per.ip": "1"})
    harness.connect()
    harness.connect().lose()
    assert harness.connect().closed


def test_idle_connections_are_closed_and_parked_ones_are_not(make_harness: MakeHarness, handle: Handle) -> None:
    harness = make_harness({"connections.max.idle.ms": "1000"})
    harness.env.run(harness.server.listen())
    handle(ApiKey.HEARTBEAT, Parking())
    idle, parked, busy = (harness.connect(f"192.0.2.{number}") for number in range(3))
    parked.feed(heartbeat(1))
    for _ in range(3):
        harness.env.clock.advance(400)
        busy.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert idle.closed
    assert not parked.closed
    assert not busy.closed
    harness.env.clock.advance(1100)
    assert busy.closed


def test_very_many_idle_connections_are_closed_in_pieces(make_harness: MakeHarness) -> None:
    harness = make_harness({"connections.max.idle.ms": "1000"})
    harness.env.run(harness.server.listen())
    wires = [harness.connect() for _ in range(3 * PIECES_PER_PASS)]
    closed = [0]

    def look() -> None:
        closed.append(sum(wire.closed for wire in wires))
        if closed[-1] < len(wires):
            harness.env.clock.call_soon(look)

    harness.env.clock.advance(999)
    harness.env.clock.call_later(1, look)
    harness.env.clock.advance(1)
    assert closed[-1] == len(wires)
    assert max(after - before for before, after in pairwise(closed)) <= PIECES_PER_PASS
