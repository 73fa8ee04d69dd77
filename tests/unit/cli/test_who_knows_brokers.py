"""Commands ask any broker: not one that knows of none, because it refuses the controller's requests, say."""

from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.cli.shared import client as shared_client
from barnabas.cli.shared.exits import Failure

KNOWN = [SimpleNamespace(node_id=number) for number in range(3)]


class Manager:
    """kafka-python's, as far as it is used: brokers 0 and 1 know all three, broker 2 none."""

    def __init__(self, knowing: set[int]) -> None:
        self.knowing = knowing
        self.cluster = SimpleNamespace(brokers=lambda: KNOWN)
        self.delayed: set[int] = set()
        self.least_loaded_node = lambda: 2

    def run(self, send: Any, *arguments: Any) -> Any:
        return send(*arguments)

    def send(self, request: Any, node_id: int, within_ms: int) -> Any:
        return SimpleNamespace(brokers=KNOWN if node_id in self.knowing else [])

    def connection_delay(self, node_id: int) -> float:
        return 1.0 if node_id in self.delayed else 0


def described(manager: Manager) -> dict[str, Any]:
    client = SimpleNamespace(_manager=manager)

    def describe() -> dict[str, Any]:
        return {"brokers": KNOWN if manager.least_loaded_node() in manager.knowing else []}

    return shared_client._known_cluster(client, describe)


def test_a_broker_that_knows_of_none_is_not_asked_again() -> None:
    manager = Manager({0, 1})
    assert described(manager)["brokers"] == KNOWN
    assert manager.least_loaded_node() == 0
    manager.delayed.add(0)
    assert manager.least_loaded_node() == 1


def test_when_none_knows_a_broker_that_is_said() -> None:
    with pytest.raises(Failure, match="knows of no broker, not even of itself") as failed:
        described(Manager(set()))
    assert "--bootstrap" in failed.value.message
