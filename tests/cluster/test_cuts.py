"""The network between two brokers is cut, while both reach everybody else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port
from proxy import Proxies

from cluster import Cluster, numbered


@contextmanager
def proxied(folder: Path) -> Iterator[tuple[Cluster, Proxies]]:
    """A cluster whose brokers reach each other through proxies, on a listener of their own."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    cluster = Cluster(folder, settings)
    inside = {node_id: free_port() for node_id in cluster.ports}
    proxies = Proxies(inside)
    for node_id, port in cluster.ports.items():
        cluster.words[node_id] = [
            *("--listeners", f"PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{inside[node_id]}"),
            *(
                "--set",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{port},INSIDE://127.0.0.1:{proxies.ports[node_id]}",
            ),
        ]
    try:
        cluster.start_all()
        yield cluster, proxies
    finally:
        cluster.end()
        proxies.end()
    for log in cluster.logs():
        assert "Traceback" not in log, log[-6000:]


def roles(cluster: Cluster) -> tuple[int, int, int]:
    """A leader of "t", a follower, and the third broker, which is controller if that is possible."""
    controller = cluster.controller()
    for index in range(3):
        leader = cluster.leader("t", index)
        if leader != controller:
            return index, leader, next(n for n in cluster.ports if n not in (leader, controller))
    raise AssertionError("one broker leads everything")


def test_a_follower_that_its_leader_does_not_reach_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    with proxied(tmp_path) as (cluster, proxies):
        cluster.create_topic("t", 3)
        index, leader, follower = roles(cluster)
        producer = cluster.producer("t", index)
        cluster.produce(producer, numbered(0))
        cluster.in_sync("t", index, set(cluster.ports))
        proxies.cut(leader, follower)
        cluster.produce(producer, numbered(20))
        cluster.in_sync("t", index, set(cluster.ports) - {follower})
        assert cluster.leader("t", index) == leader
        cluster.produce(producer, numbered(40))
        proxies.heal(leader, follower)
        cluster.in_sync("t", index, set(cluster.ports))
        assert cluster.values("t", index) == numbered(0, 60)


def test_a_leader_that_does_not_reach_the_controller_goes_on_when_it_does(tmp_path: Path) -> None:
    with proxied(tmp_path) as (cluster, proxies):
        cluster.create_topic("t", 3)
        index, leader, _ = roles(cluster)
        controller = cluster.controller()
        producer = cluster.producer("t", index)
        cluster.produce(producer, numbered(0))
        proxies.cut(leader, controller)
        cluster.end_one(next(n for n in cluster.ports if n not in (leader, controller)))
        proxies.heal(leader, controller)
        cluster.produce(producer, numbered(20))
        assert cluster.values("t", index) == numbered(0, 40)
