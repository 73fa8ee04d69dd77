"""While a coordinator loads, commands wait, and `groups describe` says how far it is."""

from typing import Any

import pytest
from barnabas.cli.groups import loading_line, tell_loading
from barnabas.cli.shared import client as cli_client
from barnabas.cli.shared.client import describe_groups
from kafka.errors import CoordinatorLoadInProgressError, NotCoordinatorError

ROW = {"partition": 7, "start_offset": 100, "loaded_offset": 500, "end_offset": 1100, "stopped_by": ""}


class Client:
    """A kafka-python client whose coordinator loads for a while."""

    def __init__(self, *errors: str | None) -> None:
        self.errors = list(errors)
        self._controller_id = None
        self._manager: Any = self
        self.cluster: Any = self
        self._coordinators: dict[str, int] = {}

    def request_update(self) -> None:
        """No effect."""

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        error = self.errors.pop(0)
        return {name: {"group_state": "" if error else "Stable", "error": error} for name in names}


class Api:
    """Two brokers, of which one loads."""

    def of_each_broker(self, path: str, query: dict[str, str]) -> list[Any]:
        assert (path, query) == ("/v1/groups", {"state": "Dead"})
        return [{"node_id": 1, "loading": [ROW]}, {"node_id": 2, "loading": []}]


def test_a_group_is_asked_again_until_its_coordinator_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_client, "RETRY_MS", 1)
    client = Client("[Error 14] CoordinatorLoadInProgressError: ", "[Error 16] NotCoordinatorError: ", None)
    told: list[Exception] = []
    assert describe_groups(client, ["g"], on_wait=told.append)["g"]["group_state"] == "Stable"
    assert [type(error) for error in told] == [CoordinatorLoadInProgressError], "it is told once"
    assert not client.errors


def test_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    tell_loading(Api(), NotCoordinatorError())  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    tell_loading(Api(), CoordinatorLoadInProgressError())  # type: ignore[arg-type]
    assert capsys.readouterr().err == "broker 1 loads committed offsets: 40 % of partition 7. Waiting.\n"
    assert loading_line({"node_id": 1, "loading": []}) is None
    stopped = [ROW, ROW | {"partition": 8, "stopped_by": "the batch there is damaged"}]
    assert loading_line({"node_id": 1, "loading": stopped}) == (
        "broker 1 cannot load partition 8 of __consumer_offsets from offset 500 on: the batch there is damaged. "
        "It goes on when it can."
    )
    many = [ROW | {"partition": number} for number in range(12)]
    assert "partition 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …" in (loading_line({"node_id": 1, "loading": many}) or "")
