"""Requests of the controller to the broker of its own process."""

from typing import Any

import pytest
from barnabas.controller.channels import LocalChannel
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.sim.env import sim_env


class Broken:
    """A replica manager that has a bug."""

    node_id = 1

    def fail(self, request: object) -> Any:
        raise ValueError("a bug")

    leader_and_isr = update_metadata = stop_replica = fail


def test_a_request_that_raises_is_answered_with_an_error_and_the_next_one_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = sim_env(1)
    channel = LocalChannel(env.clock, Broken())  # type: ignore[arg-type]
    answers: list[Any] = []
    for request in (LeaderAndIsrRequest(), UpdateMetadataRequest(), StopReplicaRequest()):
        channel.send(1, request, answers.append)
    env.clock.advance(1)
    assert [answer.error_code for answer in answers] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 3
    assert caplog.text.count("could not be handled") == 3
