"""The offset journal of three brokers: leaders die, and the journal and the offsets have different leaders."""

import signal
from collections.abc import Callable
from typing import Any

from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.journal import NO_OFFSET, NOT_KNOWN, Cause, Changes, decode, without_repetitions
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from cluster import NotYetError

MakeCluster = Callable[..., Any]
JOURNAL, OFFSETS = "__offset_journal", "__consumer_offsets"
GROUP = "a"
INDEX = partition_for(GROUP, 3)


def moves(cluster: Any) -> list[tuple[Cause, int, int]]:
    """Cause, old and new offset of each change. No gap may be among them."""
    records = without_repetitions(
        decode(GROUP.encode(), bytes(value)) for value in cluster.values(JOURNAL, INDEX) if value is not None
    )
    found = []
    for record in records:
        assert isinstance(record, Changes), record
        found += [(record.cause, row.old_offset, row.new_offset) for row in record.rows]
    return found


def all_written(cluster: Any, last: int) -> None:
    """Wait until the journal has everything from 1 to the last commit; each change once and in order."""

    def check() -> None:
        found = moves(cluster)
        # A commit whose coordinator went before it had answered was sent again: the offset stays where it is.
        once = [move for move in found if move[1] != move[2]]
        if [new for _, _, new in once] != list(range(1, last + 1)):
            raise NotYetError(f"the journal has {found}, wanted up to {last}")
        for cause, old, new in once:
            assert old in (new - 1 if new > 1 else NO_OFFSET, NOT_KNOWN)
            assert cause in (Cause.COMMIT, Cause.RECOVERED)

    cluster.until(check)


def commit(cluster: Any, first: int, last: int) -> None:
    for offset in range(first, last + 1):
        cluster.commit(GROUP, "t", {0: offset})


def prefer(cluster: Any, topic: str) -> None:
    """Have the preferred leader of one topic's partition elected."""
    request = messages.ElectLeadersRequest
    topics = [request.TopicPartitions(topic=topic, partitions=[INDEX])]

    def elect() -> None:
        with cluster.client(cluster.controller()) as client:
            client.ask(ApiKey.ELECT_LEADERS, 2, request(topic_partitions=topics))
        row = cluster.partition(topic, INDEX)
        if row.leader_id != row.replica_nodes[0]:
            raise NotYetError(f"{topic}: {row}")

    cluster.until(elect)


def test_the_journal_has_every_change_through_the_deaths_of_its_leaders(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(auto_leader_rebalance_enable="false")  # a new controller looks after five seconds
    cluster.create_topic("t")
    commit(cluster, 1, 10)
    all_written(cluster, 10)
    offsets, journal = cluster.partition(OFFSETS, INDEX), cluster.partition(JOURNAL, INDEX)
    assert journal.replica_nodes == offsets.replica_nodes
    cluster.balance()  # so that the preferred leader dies
    first = cluster.coordinator(GROUP)
    cluster.end_one(first, signal.SIGKILL)
    commit(cluster, 11, 20)
    all_written(cluster, 20)
    cluster.start(first)
    for topic in (OFFSETS, JOURNAL):
        cluster.in_sync(topic, INDEX, {0, 1, 2})
    # Now the offsets go back to their preferred leader, and the journal stays where it is.
    prefer(cluster, OFFSETS)
    assert cluster.leader(JOURNAL, INDEX) != cluster.leader(OFFSETS, INDEX)
    commit(cluster, 21, 30)
    all_written(cluster, 30)
    cluster.end_one(cluster.leader(JOURNAL, INDEX), signal.SIGKILL)
    commit(cluster, 31, 40)
    all_written(cluster, 40)


def test_a_stop_in_order_leaves_nothing_to_recover(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t")
    commit(cluster, 1, 5)
    all_written(cluster, 5)
    cluster.balance()
    stopping = cluster.coordinator(GROUP)
    cluster.end_one(stopping, signal.SIGTERM)
    commit(cluster, 6, 10)
    all_written(cluster, 10)
    assert cluster.committed(GROUP, "t", 0) == 10
