"""A broker that a test has isolated loses its session, as behind a real partition, and comes back."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from barnabas.testing import Barnabas
from waiting import until

SESSION_MS = "2000"


@pytest.fixture(params=["embedded", "zookeeper"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Barnabas]:
    config = {"coordination.session.timeout.ms": SESSION_MS}
    if request.param == "zookeeper":
        address = request.getfixturevalue("zookeeper").address
        config = {"zookeeper.connect": f"{address}/{uuid.uuid4().hex}", "zookeeper.session.timeout.ms": SESSION_MS}
    with Barnabas(3, config) as kafka:
        yield kafka
        assert "Traceback" not in "".join(kafka.log(node_id) for node_id in kafka.processes)


@pytest.mark.parametrize("effect", ["isolated", "tree_unreachable"])
def test_its_session_ends_and_others_lead_until_it_is_healed(kafka: Barnabas, effect: str) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    topic.wait(in_sync=3, timeout=50)
    leader = kafka.leader_of(topic, 0)
    assert leader is not None
    others = [node_id for node_id in kafka.processes if node_id != leader]

    def partition() -> dict[str, Any]:
        row: dict[str, Any] = kafka.ask("GET", f"/v1/topics/{topic.name}", node_id=others[0])["partitions"][0]
        return row

    with kafka.rule(effect=effect, node_id=leader) as fault:
        until(lambda: partition()["leader"] in others)
        assert leader not in partition()["in_sync"]
        assert fault.fired >= 1
    topic.wait(in_sync=3, timeout=50)
    topic.produce(["b"])
    assert topic.values() == ["a", "b"]
    with kafka.isolate(leader):
        pass  # shorter than a session: nobody is taken for dead
    topic.produce(["c"])
    assert len(topic.wait_records(3, timeout=50)) == 3
