"""`barnabas transactions` and `groups describe` on three brokers: several coordinators, one of which dies."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import forked
import hand_made_transactions as by_hand
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FindCoordinatorRequest

from cluster import NotYetError

MakeCluster = Callable[..., Any]
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
}
NOBODY = (7_000_000, 0)


def run(cluster: Any, node_id: int, *words: str) -> Any:
    done = forked.barnabas(*words, "--json", "--bootstrap", f"127.0.0.1:{cluster.ports[node_id]}", code=0)
    return json.loads(done.stdout)


def coordinator(cluster: Any, transactional_id: str) -> int:
    def find() -> int:
        with cluster.client(cluster.any_broker()) as client:
            answer = client.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=transactional_id, key_type=1))
        if answer.error_code or answer.node_id not in cluster.processes:
            raise NotYetError(str(answer))
        return int(answer.node_id)

    return int(cluster.until(find))


def test_three_coordinators_are_one_list_also_when_one_dies(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**SETTINGS)
    cluster.create_topic("t", 3)
    of: dict[int, str] = {}
    for number in range(50):  # an id of each coordinator
        of.setdefault(coordinator(cluster, f"id-{number}"), f"id-{number}")
    assert sorted(of) == sorted(cluster.ports)
    producers = {}
    for node_id, name in of.items():
        with cluster.client(node_id) as client:
            producers[name] = by_hand.begin(client, name, [("t", index) for index in range(3)])
    for index in range(3):
        with cluster.client(cluster.leader("t", index)) as client:
            by_hand.write(client, of[0], producers[of[0]], "t", index)
    for node_id in cluster.ports:
        rows = run(cluster, node_id, "transactions", "list")
        assert {row["transactional_id"]: row["coordinator"] for row in rows} == {name: at for at, name in of.items()}
        assert all(row["age_ms"] is not None and row["partitions"] == 3 for row in rows)
        described = run(cluster, node_id, "transactions", "describe", of[0])
        assert [row["held_back"] for row in described["partitions"]] == [1, 1, 1]

    # Offsets that a transaction of one coordinator commits wait in a group of another one.
    group = next(name for name in map("group-{}".format, range(50)) if cluster.coordinator(name) != 0)
    with cluster.client(cluster.coordinator(group)) as of_group, cluster.client(0) as client:
        by_hand.commit_in_transaction(client, of[0], producers[of[0]], group, "t", 7, of_group)
    (document,) = run(cluster, 1, "groups", "describe", group)
    assert [(row["kind"], row["transactional_id"], row["offset"]) for row in document["waits"]] == [
        ("offsets", of[0], 7)
    ]

    cluster.end_one(0, signal.SIGKILL)
    assert coordinator(cluster, of[0]) != 0
    rows = run(cluster, 1, "transactions", "list")
    assert sorted(row["transactional_id"] for row in rows) == sorted(of.values())
    assert run(cluster, 2, "transactions", "abort", of[0], "--yes")[0]["result"] == "aborted"
    assert run(cluster, 1, "transactions", "describe", of[0])["state"] == "CompleteAbort"


def test_what_hangs_is_found_on_its_leader_and_on_its_followers(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(**SETTINGS)
    cluster.create_topic("t", 1)
    leader = cluster.leader("t", 0)
    with cluster.client(leader) as client:
        offset = by_hand.write(client, "x", NOBODY, "t", 0, ago_ms=by_hand.HOUR_MS)
    cluster.in_sync("t", 0, set(cluster.ports))
    for node_id in cluster.ports:
        (row,) = run(cluster, leader, "transactions", "find-hanging", "--broker", str(node_id))
        assert (row["topic"], row["producer_id"], row["start_offset"], row["held_back"]) == ("t", NOBODY[0], offset, 1)
    other = next(each for each in cluster.ports if each != leader)
    where = ["--topic", "t", "--partition", "0", "--start-offset", str(offset)]
    cluster.end_one(leader, signal.SIGKILL)
    cluster.leader("t", 0)
    assert run(cluster, other, "transactions", "abort", *where, "--yes")[0]["result"] == "aborted"
    end = time.monotonic() + 200
    while run(cluster, other, "transactions", "find-hanging"):
        assert time.monotonic() < end
