"""A group of the consumer protocol (KIP-848) through the deaths of its coordinators, on three brokers."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from consumer_threads import Member, Referee

from cluster import NotYetError

pytestmark = pytest.mark.timeout(240)
MakeCluster = Callable[..., Any]
GROUP = "readers"
RECORDS = 20


def test_a_group_goes_on_through_the_deaths_of_its_coordinators(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        group_consumer_min_heartbeat_interval_ms="100",
        group_consumer_heartbeat_interval_ms="300",
        group_consumer_min_session_timeout_ms="2000",
        group_consumer_session_timeout_ms="20000",
    )
    cluster.create_topic("t", 2)
    producers = [cluster.producer("t", index) for index in range(2)]
    referee = Referee()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    members = [Member(bootstrap, GROUP, f"member-{number}", referee, ["t"]) for number in range(2)]
    written = 0

    def all_is_read() -> None:
        read = [set(referee.read.get(("t", index), [])) for index in range(2)]
        if read != [set(range(written))] * 2:
            raise NotYetError(f"read {[len(each) for each in read]}, written {written}")

    def both_read() -> None:
        owned = [len(referee.of(member.name)) for member in members]
        if owned != [1, 1]:
            raise NotYetError(f"the members own {owned}")

    try:
        cluster.until(both_read)
        for _ in range(2):
            coordinator_id = cluster.coordinator(GROUP)
            for half in range(2):
                for producer in producers:
                    cluster.produce(producer, [b"%d" % (written + number) for number in range(RECORDS)])
                written += RECORDS
                if half == 0:
                    cluster.end_one(coordinator_id, signal.SIGKILL)
            cluster.until(all_is_read)
            cluster.start(coordinator_id)
            cluster.in_sync("t", 0, {0, 1, 2})
            cluster.in_sync("t", 1, {0, 1, 2})
        cluster.until(both_read)
        assert not referee.faults
    finally:
        for member in members:
            member.stop()
