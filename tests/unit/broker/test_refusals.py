"""The log says what clients were refused: once per client, kind and minute, each at DEBUG."""

import logging

import barnabas.broker.api  # noqa: F401  (it fills the table)
import pytest
from barnabas.broker import refusals
from barnabas.broker.refusals import Refusals
from barnabas.broker.requests import TABLE, RequestContext
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from simulator.clock import SimClock
from simulator.env import sim_env


@pytest.fixture
def clock() -> SimClock:
    return sim_env(1).clock


def context(client_id: str | None = "shop") -> RequestContext:
    return RequestContext(ApiKey.PRODUCE, 9, 1, client_id, "/192.0.2.7")


def told(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno == level]
    caplog.clear()
    return lines


def test_once_in_a_minute_and_then_how_many_there_were(clock: SimClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    noted = Refusals(clock)
    for number in range(1_235):
        noted.note(context(), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", number)
    noted.note(context("other"), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", 1)
    noted.note(context(), ErrorCode.INVALID_RECORD, "partition %s-%d", "orders", 2)
    assert told(caplog) == [
        "Produce of client 'shop' at 192.0.2.7: MESSAGE_TOO_LARGE: partition orders-0",
        "Produce of client 'other' at 192.0.2.7: MESSAGE_TOO_LARGE: partition orders-1",
        "Produce of client 'shop' at 192.0.2.7: INVALID_RECORD: partition orders-2",
    ]
    clock.advance(59_999)
    noted.note(context(), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", 3)
    assert told(caplog) == []
    clock.advance(1)
    noted.note(context(), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", 4)
    assert told(caplog) == [
        "Produce of client 'shop' at 192.0.2.7: MESSAGE_TOO_LARGE: partition orders-4 "
        "(1,235 more of this kind in the minute before)"
    ]
    clock.advance(120_000)
    noted.note(context(), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", 5)
    assert "more" not in told(caplog)[0]


def test_each_at_debug(clock: SimClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    noted = Refusals(clock)
    for number in range(3):
        noted.note(context(), ErrorCode.MESSAGE_TOO_LARGE, "partition %s-%d", "orders", number)
    assert len(told(caplog, logging.DEBUG)) == 2


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_clients_that_come_under_many_names(
    clock: SimClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    monkeypatch.setattr(refusals, "KINDS_MAX", 5)
    caplog.set_level(logging.INFO)
    noted = Refusals(clock)
    for number in range(5 + excess):
        noted.note(context(f"client-{number}"), ErrorCode.MESSAGE_TOO_LARGE, "it")
    assert len(told(caplog)) == 5 + excess
    for number in range(100):
        noted.note(context(f"other-{number}"), ErrorCode.MESSAGE_TOO_LARGE, "it")
    assert len(told(caplog)) <= 2  # one line for all that there is no room for


def test_many_names_keep_nothing_else_out_of_the_log(
    clock: SimClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "KINDS_MAX", 5)
    caplog.set_level(logging.INFO)
    noted = Refusals(clock)
    for number in range(100):
        noted.note(context(f"client-{number}"), ErrorCode.MESSAGE_TOO_LARGE, "it")
    caplog.clear()
    other = context()
    other.principal = "User:other"
    noted.note(other, ErrorCode.MESSAGE_TOO_LARGE, "it")
    noted.note(context("client-101"), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic 'secret'")
    assert told(caplog) == [
        "Produce of client 'shop' at 192.0.2.7: MESSAGE_TOO_LARGE: it",
        "Produce of client 'client-101' at 192.0.2.7: TOPIC_AUTHORIZATION_FAILED: topic 'secret'",
    ]


def test_what_a_client_sends_makes_no_long_line_and_no_second_one(
    clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    noted = Refusals(clock)
    noted.note(context("a\n" + "b" * 30_000), ErrorCode.INVALID_TOPIC_EXCEPTION, "topic %r", "c\n" + "d" * 30_000)
    (line,) = told(caplog)
    assert "\n" not in line
    assert len(line) < 400


def test_every_api_of_kafka_that_is_not_built_is_in_the_table() -> None:
    listed = {key for keys in refusals.NOT_BUILT.values() for key in keys}
    assert listed == {*ApiKey} - TABLE.keys()
