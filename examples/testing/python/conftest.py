"""Each test is run with each client."""

import uuid
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from service import CLIENTS, Client


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where another Kafka is."""
    parser.addoption("--bootstrap", help="run on this Kafka what commands no broker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what commands a broker, if it is another Kafka."""
    if config.getoption("--bootstrap"):
        commands = [item for item in items if "barnabas" in getattr(item, "fixturenames", ())]
        items[:] = [item for item in items if item not in commands]
        config.hook.pytest_deselected(items=commands)


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the brokers."""
    return request.config.getoption("--bootstrap") or request.getfixturevalue("barnabas").bootstrap


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """The client of the service."""
    return CLIENTS[request.param](bootstrap, "service")


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Makes topics."""

    def make(partitions: int = 1) -> str:
        name = f"topic-{uuid.uuid4().hex[:8]}"
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.create_topics([NewTopic(name, partitions, 1)])
        finally:
            admin.close()
        return name

    return make


@pytest.fixture
def new_group() -> str:
    """The name of a group."""
    return f"group-{uuid.uuid4().hex[:8]}"
