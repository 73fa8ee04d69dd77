"""`barnabas doctor` in a cluster of three: brokers that die or stand still, settings that a cluster regrets."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from waiting import until

Start = Callable[..., Any]


def barnabas(bootstrap: str, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.barnabas(*words, BARNABAS_BOOTSTRAP=bootstrap)


def findings(bootstrap: str) -> list[dict[str, Any]]:
    done = barnabas(bootstrap, "doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"], done.stderr
    rows: list[dict[str, Any]] = document["findings"]
    return rows


def alarms(bootstrap: str) -> set[str]:
    return {row["check"] for row in findings(bootstrap) if row["severity"] != "note"}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test, which end with it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.terminate()
        process.wait(200)


@pytest.mark.takes_turns("left")
@pytest.mark.parametrize("left", ["its directory", "nothing"])
def test_a_broker_that_died_is_started_again_by_the_command(
    start: Start, started: list[subprocess.Popen[str]], tmp_path: Path, left: str
) -> None:
    cluster = start("--brokers", "3", "--port", "0", "--profile", "ci")
    ready = cluster.ready()
    bootstrap = ready["bootstrap"]
    assert barnabas(bootstrap, "topics", "create", "orders", "--partitions", "3").returncode == 0
    until(lambda: alarms(bootstrap) == set())

    os.kill(ready["pids"][2], signal.SIGKILL)
    assert cluster.event()["event"] == "died"
    directory = tmp_path / "d" / "2"
    if left == "nothing":
        shutil.rmtree(directory)
    others = ",".join(bootstrap.split(",")[:2])
    until(lambda: {"brokers", "replicas"} <= alarms(others))
    rows = findings(others)
    (away,) = [row for row in rows if row["check"] == "brokers"]
    assert (away["severity"], away["where"]) == ("error", "broker 2")
    assert "is not there" in away["what"]
    assert 0 <= time.time() * 1000 - away["since_ms"] < 60_000
    replicas = [row for row in rows if row["check"] == "replicas"]
    assert {row["severity"] for row in replicas} == {"warning"}
    assert any("orders-" in row["what"] for row in replicas)
    assert {row["command"] for row in replicas} == {away["command"]}

    words = shlex.split(away["command"])
    assert words[:2] == ["barnabas", "start"]
    assert "--give-up" not in words, "the disk may only not be mounted"
    assert (f"add --give-up {directory} to the command" in away["why"]) == (left == "nothing")
    words += ["--give-up", str(directory)] if left == "nothing" else []
    command = [sys.executable, "-m", "barnabas", *words[1:], "--json"]
    with (tmp_path / "again.log").open("w") as log:
        started.append(forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
    output = started[0].stdout
    assert output is not None
    assert json.loads(output.readline())["event"] == "ready", (tmp_path / "again.log").read_text()
    until(lambda: alarms(bootstrap) == set())


def test_a_broker_that_stands_still_is_a_finding_and_the_others_are_asked(start: Start) -> None:
    ready = start("--brokers", "3", "--port", "0", "--set", "coordination.session.timeout.ms=30000").ready()
    bootstrap = ready["bootstrap"]
    addresses = bootstrap.split(",")
    until(lambda: alarms(bootstrap) == set())
    os.kill(ready["pids"][1], signal.SIGSTOP)
    try:
        begin = time.monotonic()
        rows = findings(",".join((addresses[0], addresses[2])))
        assert time.monotonic() - begin < 60
        (silent,) = [row for row in rows if row["check"] == "brokers"]
        assert (silent["severity"], silent["where"]) == ("error", "broker 1")
        assert "does not answer" in silent["what"]
        document = json.loads(barnabas(addresses[0], "doctor", "--json").stdout)
        assert [row["answers_http"] for row in document["brokers"]] == [True, False, True]
        assert {row["not_made"] is None for row in document["checks"]} == {True, False}
        failed = barnabas(addresses[0], *shlex.split(silent["command"])[1:], "--timeout", "3")
        assert failed.returncode == 1
    finally:
        os.kill(ready["pids"][1], signal.SIGCONT)
    until(lambda: alarms(bootstrap) == set())
    assert barnabas(addresses[0], *shlex.split(silent["command"])[1:]).returncode == 0


def test_settings_that_only_a_cluster_regrets(make_cluster: Callable[..., Any]) -> None:
    cluster = make_cluster(default_replication_factor="1", min_insync_replicas="3")
    bootstrap = f"127.0.0.1:{cluster.ports[0]}"
    cluster.create_topic("orders", unclean_leader_election_enable="true")
    cluster.create_topic("payments", min_insync_replicas="1")
    rows = findings(bootstrap)
    by_check: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_check.setdefault(row["check"], []).append(row)
    assert {row["severity"] for row in by_check["replication"]} == {"warning"}
    assert "default.replication.factor" in by_check["replication"][0]["where"]
    for check in ("in-sync replicas", "unclean elections"):
        for row in by_check[check]:
            assert barnabas(bootstrap, *shlex.split(row["command"])[1:]).returncode == 0, row
    assert not {"in-sync replicas", "unclean elections"} & alarms(bootstrap)
