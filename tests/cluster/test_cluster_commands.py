"""`barnabas cluster` and `barnabas topics describe` against three brokers, one of which stands still or is gone."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import forked
from barnabas.protocol.api_keys import ApiKey
from broker_process import Client, batch, produce_request
from waiting import until

Start = Callable[..., Any]


def run(bootstrap: str, *words: str) -> str:
    return forked.barnabas(*words, "--bootstrap", bootstrap, code=0).stdout


def failed(bootstrap: str, *words: str) -> str:
    """What a command that fails says."""
    return forked.barnabas(*words, "--bootstrap", bootstrap, code=1).stderr


def test_brokers_leaders_and_replicas_are_shown(start: Start, tmp_path: Path) -> None:
    ready = start("--brokers", "3", "--port", "0").ready()
    addresses = ready["bootstrap"].split(",")
    run(addresses[0], "topics", "create", "t", "--partitions", "3")
    seen: dict[str, Any] = {}

    def look(*, through: int = 0) -> dict[str, Any]:
        seen.clear()
        seen.update(json.loads(run(addresses[through], "cluster", "--json")))
        return seen

    until(lambda: look()["under_replicated"] == 0 and len(seen["partitions"]) == 3)
    assert seen["cluster_id"] == ready["cluster_id"]
    assert seen["controller"] in (0, 1, 2)
    assert [broker["address"] for broker in seen["brokers"]] == addresses
    assert sum(broker["leads"] for broker in seen["brokers"]) == 3
    assert {(broker["replicas"], broker["in_sync"]) for broker in seen["brokers"]} == {(3, 3)}
    assert all(row["lag"] == {"0": 0, "1": 0, "2": 0} for row in seen["partitions"])
    assert "0 under-replicated, 0 offline" in run(addresses[1], "cluster")
    assert run(addresses[1], "cluster", "--all") == run(addresses[1], "cluster", "show", "--all")

    backup = json.loads(run(addresses[2], "cluster", "backup", str(tmp_path / "backup"), "--json"))
    assert (backup["cluster_id"], backup["topics"]) == (ready["cluster_id"], 1)
    assert backup["bytes"] == (tmp_path / "backup").stat().st_size

    gone = next(number for number in (2, 1) if number != seen["controller"])
    os.kill(ready["pids"][gone], signal.SIGKILL)
    until(lambda: look()["under_replicated"] == 3 and not seen["offline"] and not seen["brokers"][gone]["address"])
    assert seen["brokers"][gone]["address"] is None
    for row in seen["partitions"]:
        assert (row["offline"], row["lag"][str(gone)]) == ([gone], None)
        assert sorted(row["in_sync"]) == [number for number in range(3) if number != gone]
    assert f"{gone} (offline)" in run(addresses[0], "cluster")
    (described,) = json.loads(run(addresses[0], "topics", "describe", "t", "--json"))
    assert [row["offline"] for row in described["partitions"]] == [[gone]] * 3
    assert f"{gone} (offline)" in run(addresses[0], "topics", "describe", "t")


def test_a_broker_that_stands_still_is_behind_and_keeps_nobody_waiting(start: Start) -> None:
    settings = ("--set", "coordination.session.timeout.ms=60000", "--set", "replica.lag.time.max.ms=500")
    cluster = start("--brokers", "3", "--port", "0", *settings)
    ready = cluster.ready()
    addresses = ready["bootstrap"].split(",")
    run(addresses[0], "topics", "create", "t")
    seen = json.loads(run(addresses[0], "cluster", "--json"))
    leader = seen["partitions"][0]["leader"]
    still = next(number for number in range(3) if number not in (leader, seen["controller"]))
    asked = next(number for number in range(3) if number != still)
    os.kill(ready["pids"][still], signal.SIGSTOP)
    try:
        with closing(Client(int(addresses[leader].rpartition(":")[2]))) as client:
            client.ask(ApiKey.PRODUCE, 9, produce_request([("t", 0, batch([b"1", b"2", b"3"]))]))
        row = json.loads(run(addresses[asked], "cluster", "--json"))["partitions"][0]
        assert still not in row["in_sync"]
        assert row["lag"] == {str(number): None if number == still else 0 for number in range(3)}
        assert f"{still} (? behind)" in run(addresses[asked], "cluster")
    finally:
        os.kill(ready["pids"][still], signal.SIGCONT)
    until(lambda: json.loads(run(addresses[asked], "cluster", "--json"))["under_replicated"] == 0)


def test_produce_says_what_the_brokers_answer_while_they_take_no_records(start: Start) -> None:
    settings = ("--set", "coordination.session.timeout.ms=2000", "--set", "replica.lag.time.max.ms=1000")
    ready = start("--brokers", "3", "--port", "0", *settings).ready()
    addresses = ready["bootstrap"].split(",")
    run(addresses[0], "topics", "create", "shared", "--config", "min.insync.replicas=2")
    run(addresses[0], "topics", "create", "gone", "--partitions", "3", "--replication-factor", "1")
    for number in (1, 2):
        os.kill(ready["pids"][number], signal.SIGKILL)
    until(lambda: json.loads(run(addresses[0], "cluster", "--json"))["offline"] == 2)
    offline = next(
        row["partition"]
        for row in json.loads(run(addresses[0], "cluster", "--json"))["partitions"]
        if row["topic"] == "gone" and row["leader"] is None
    )
    for words, name, error in (
        (("shared", "--partition", "0"), "shared-0", "min.insync.replicas asks for (NOT_ENOUGH_REPLICAS)"),
        (("gone", "--partition", str(offline)), f"gone-{offline}", "there is no leader (LEADER_NOT_AVAILABLE)"),
    ):
        said = failed(addresses[0], "produce", *words, "--value", "x", "--timeout", "2")
        assert f"records of {name} are not taken: " in said, said
        assert error in said, said
        assert "barnabas cluster" in said, said
        assert "no answer" not in said, said


def test_every_command_finds_its_way_past_a_broker_that_stands_still(start: Start) -> None:
    """Also if it is the first of --bootstrap, and before its session is over: it may lead, coordinate and control."""
    ready = start("--brokers", "3", "--port", "0").ready()
    addresses = ready["bootstrap"].split(",")
    run(addresses[0], "topics", "create", "t", "--partitions", "3")
    run(addresses[0], "produce", "t", "--value", "x", "--count", "9")
    run(addresses[0], "consume", "t", "--group", "g", "--from-beginning", "--max", "9")
    still = json.loads(run(addresses[0], "cluster", "--json"))["controller"]
    bootstrap = ",".join([addresses[still], *(address for address in addresses if address != addresses[still])])
    os.kill(ready["pids"][still], signal.SIGSTOP)
    try:
        # Each in turn may be the one that waits until the session is over.
        run(bootstrap, "topics", "create", "u", "--replication-factor", "2")
        run(bootstrap, "produce", "t", "--value", "x", "--count", "9")
        for words in (("topics", "list"), ("groups", "list"), ("status",), ("cluster",)):
            run(bootstrap, *words)
        run(bootstrap, "topics", "describe", "t")
        run(bootstrap, "groups", "describe", "g")
        assert "lag" in run(bootstrap, "offsets", "list", "g")
        assert run(bootstrap, "consume", "t", "--from-beginning", "--max", "18").count("x") == 18
        run(bootstrap, "configs", "set", "topic", "t", "retention.ms=-1")
    finally:
        os.kill(ready["pids"][still], signal.SIGCONT)
