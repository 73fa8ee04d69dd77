"""The pytest plugin of Barnabas: a broker for the whole run, and topics and groups that no other test has.

    def test_orders(barnabas, barnabas_topic):
        barnabas_topic.produce(["a"])

`barnabas` is one broker for the run (with pytest-xdist, one for each worker); faults of a test are gone when it ends.
`barnabas_cluster` is three brokers. `@pytest.mark.barnabas(config={…}, fresh=True, brokers=3)` gives a test brokers of
its own.
"""

from collections.abc import Callable, Iterator

import pytest
from barnabas.testing import Barnabas, Group, Topic

CLUSTER = 3


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker."""
    config.addinivalue_line("markers", "barnabas(config, fresh, brokers): a test's own brokers, with these settings")


@pytest.fixture(scope="session")
def _barnabas_of() -> Iterator[Callable[[int], Barnabas]]:
    """Starts brokers that many tests use, one cluster for each number of brokers."""
    started: dict[int, Barnabas] = {}

    def of(brokers: int) -> Barnabas:
        if brokers not in started:
            started[brokers] = Barnabas(brokers).start()
        return started[brokers]

    yield of
    for kafka in started.values():
        kafka.stop()


def _given(request: pytest.FixtureRequest, shared: Callable[[int], Barnabas], brokers: int) -> Iterator[Barnabas]:
    marker = request.node.get_closest_marker("barnabas")
    settings = {} if marker is None else dict(marker.kwargs)
    brokers = settings.get("brokers", brokers)
    if settings.get("fresh") or settings.get("config"):
        with Barnabas(brokers, settings.get("config")) as kafka:
            yield kafka
        return
    kafka = shared(brokers)
    yield kafka
    for node_id, process in kafka.processes.items():
        if process.runs:
            kafka.ask("DELETE", "/v1/control/rules", node_id=node_id)
        else:
            kafka.restart(node_id)


@pytest.fixture
def barnabas(request: pytest.FixtureRequest, _barnabas_of: Callable[[int], Barnabas]) -> Iterator[Barnabas]:
    """A broker that serves."""
    yield from _given(request, _barnabas_of, 1)


@pytest.fixture
def barnabas_cluster(request: pytest.FixtureRequest, _barnabas_of: Callable[[int], Barnabas]) -> Iterator[Barnabas]:
    """Three brokers that serve."""
    yield from _given(request, _barnabas_of, CLUSTER)


@pytest.fixture
def barnabas_topic(barnabas: Barnabas, request: pytest.FixtureRequest) -> Topic:
    """A topic of this test alone."""
    return barnabas.topic(_name_of(request))


@pytest.fixture
def barnabas_group(barnabas: Barnabas, request: pytest.FixtureRequest) -> Group:
    """A group of this test alone."""
    return barnabas.group(_name_of(request))


def _name_of(request: pytest.FixtureRequest) -> str:
    name = request.node.originalname if hasattr(request.node, "originalname") else request.node.name
    return "".join(each if each.isalnum() or each in "._-" else "-" for each in name)[:100]
