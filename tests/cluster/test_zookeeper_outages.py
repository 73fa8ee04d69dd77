"""Three brokers, and a ZooKeeper that is restarted, paused, or cut off from one of them, while clients produce."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TOPIC = "t"
SESSION_S = 2.0


class Outages:
    """Three brokers, each with a proxy of its own between it and a ZooKeeper of the test."""

    def __init__(self, folder: Path) -> None:
        from proxy_thread import ProxyThread
        from zookeeper_server import ZooKeeperServer

        from cluster import BROKERS, Cluster

        self.server = ZooKeeperServer(folder / "zookeeper")
        self.server.start()
        self.proxies = [ProxyThread(self.server.port) for _ in range(BROKERS)]
        self.cluster = Cluster(folder, {}, self.server.address)
        for node_id, proxy in enumerate(self.proxies):
            self.cluster.own[node_id] = {"zookeeper.connect": f"{proxy.address}/outages"}
        self.cluster.start_all()
        self.cluster.create_topic(TOPIC, BROKERS)

    def led_by(self, node_id: int) -> int:
        """The partition that a broker leads."""
        return next(index for index in range(3) if self.cluster.leader(TOPIC, index) == node_id)

    def end(self) -> None:
        """Stop everything."""
        self.cluster.end()
        for proxy in self.proxies:
            proxy.close()
        self.server.resume()
        self.server.stop()


@pytest.fixture
def outages(tmp_path: Path) -> Iterator[Outages]:
    """Brokers and a ZooKeeper. No broker may log a traceback."""
    import zookeeper_server

    if zookeeper_server.class_path() is None:
        pytest.skip(zookeeper_server.why_not())
    pytest.importorskip("kazoo", reason="kazoo is not installed")
    outages = Outages(tmp_path)
    yield outages
    outages.end()
    for log in outages.cluster.logs():
        assert "Traceback" not in log, log[-6000:]


class Load(threading.Thread):
    """Produces to each partition in turn, as an idempotent producer, and remembers what was acknowledged."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[list[bytes]] = [[], [], []]
        self.error: BaseException | None = None
        self._cluster = cluster
        self._is_over = False
        self._producers = [cluster.producer(TOPIC, index) for index in range(3)]
        self.start()

    def run(self) -> None:
        number = 0
        try:
            while not self._is_over:
                for index, producer in enumerate(self._producers):
                    value = b"%d" % number
                    number += 1
                    self._cluster.produce(producer, [value])
                    self.acknowledged[index].append(value)
                time.sleep(0.005)
        except BaseException as error:
            self.error = error

    def wait_for(self, count: int) -> None:
        """Return when so many records more are acknowledged in each partition."""
        wanted = len(self.acknowledged[2]) + count
        while len(self.acknowledged[2]) < wanted:
            if self.error is not None:
                raise self.error
            time.sleep(0.01)

    def end(self) -> None:
        """Produce no more; everything that was acknowledged is there, once and in order."""
        self._is_over = True
        self.join()
        if self.error is not None:
            raise self.error
        for index, acknowledged in enumerate(self.acknowledged):
            assert self._cluster.values(TOPIC, index) == acknowledged


def restart(outages: Outages) -> None:
    outages.server.stop()
    time.sleep(1.5 * SESSION_S)
    outages.server.start()


def pause(outages: Outages) -> None:
    outages.server.pause()
    time.sleep(1.5 * SESSION_S)
    outages.server.resume()


def cut_all_once(outages: Outages) -> None:
    for _ in range(3):
        for proxy in outages.proxies:
            proxy.cut()
        time.sleep(0.3)


@pytest.mark.takes_turns("outage")
@pytest.mark.parametrize("outage", [restart, pause, cut_all_once])
def test_the_cluster_goes_on_after_an_outage(outages: Outages, outage: Callable[[Outages], None]) -> None:
    load = Load(outages.cluster)
    load.wait_for(10)
    outage(outages)
    load.wait_for(10)
    for index in range(3):
        outages.cluster.in_sync(TOPIC, index, {0, 1, 2})
    outages.cluster.create_topic("after")
    load.end()


def test_a_leader_that_is_cut_off_from_zookeeper_is_replaced_and_comes_back(outages: Outages) -> None:
    load = Load(outages.cluster)
    load.wait_for(10)
    index = outages.led_by(2)
    outages.proxies[2].cut_off()
    outages.cluster.until(lambda: not_led_by(outages, 2, index))
    load.wait_for(10)
    outages.cluster.in_sync(TOPIC, index, {0, 1})
    outages.proxies[2].heal()
    outages.cluster.in_sync(TOPIC, index, {0, 1, 2})
    load.wait_for(10)
    load.end()


def test_a_leader_that_stood_still_past_its_session_is_replaced_and_comes_back(outages: Outages) -> None:
    load = Load(outages.cluster)
    load.wait_for(10)
    index = outages.led_by(2)
    process = outages.cluster.processes[2].process
    process.send_signal(signal.SIGSTOP)
    outages.cluster.until(lambda: not_led_by(outages, 2, index))
    process.send_signal(signal.SIGCONT)
    load.wait_for(10)
    outages.cluster.in_sync(TOPIC, index, {0, 1, 2})
    load.end()


def not_led_by(outages: Outages, node_id: int, index: int) -> None:
    from cluster import NotYetError

    leader_id = outages.cluster.partition(TOPIC, index).leader_id
    if leader_id == node_id:
        raise NotYetError(f"broker {node_id} leads partition {index}")
