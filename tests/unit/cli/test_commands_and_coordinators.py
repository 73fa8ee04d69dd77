"""What commands do while a group's coordinator moves: such an answer says that nothing was done, so they ask again."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.cli.shared import client as commands
from barnabas.cli.shared.exits import Failure
from kafka import errors


class Admin:
    """kafka-python's client, as far as it is used here; the first answers say that the coordinator moves."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.forgotten = 0
        self._controller_id: int | None = 1
        self._manager = SimpleNamespace(
            cluster=SimpleNamespace(_coordinators={"g": 1}, request_update=self._note_update)
        )

    def _note_update(self) -> None:
        assert not self._manager.cluster._coordinators
        self.forgotten += 1

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: self.answers.pop(0) for name in names}

    def change(self) -> dict[Any, Any]:
        return {"p": self.answers.pop(0)}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "RETRY_MS", 0)


def test_a_description_waits_for_the_coordinator() -> None:
    good = {"group_state": "Stable", "error": None}
    moving = [{"group_state": "", "error": f"[Error {n}] {name}: None"} for n, name in MOVES]
    admin = Admin(*moving, good)
    assert commands.describe_groups(admin, ["g"]) == {"g": good}
    assert admin.forgotten == 3


MOVES = (
    (14, "CoordinatorLoadInProgressError"),
    (15, "CoordinatorNotAvailableError"),
    (16, "NotCoordinatorError"),
)


def test_a_change_that_was_refused_is_sent_again() -> None:
    admin = Admin(errors.NotCoordinatorError, "CoordinatorLoadInProgressError", errors.NoError)
    assert commands.changed(admin, admin.change) == {"p": errors.NoError}
    assert admin.forgotten == 2


def test_a_change_that_may_have_been_made_is_not_sent_again() -> None:
    admin = Admin(errors.RequestTimedOutError, errors.NoError)
    assert commands.changed(admin, admin.change) == {"p": errors.RequestTimedOutError}

    def lost() -> dict[Any, Any]:
        admin.answers.pop(0)
        raise errors.KafkaConnectionError

    with pytest.raises(errors.KafkaConnectionError):
        commands.changed(admin, lost)
    assert not admin.answers


@pytest.mark.parametrize("lives", [True, False])
def test_a_broker_that_goes_away_meanwhile_is_told_in_a_sentence(lives: bool) -> None:
    """Until 2026-11-30 it was "NodeNotReadyError: No node_id provided"."""

    def nobody() -> None:
        raise Failure("no broker answers", 1)

    target: Any = SimpleNamespace(bootstrap="h:1", answers=lambda: lives, nobody_answers=nobody)
    said = r"away just now: `barnabas cluster` shows which\. Try again" if lives else "no broker answers"
    with pytest.raises(Failure, match=said), commands.told_in_sentences(target):
        raise errors.NodeNotReadyError("No node_id provided")
