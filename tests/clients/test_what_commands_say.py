"""What the commands say: of addresses without a broker, groups that are not there or are made, types of groups."""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest

Run = Any  # of conftest.py


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.77", "no broker answers at 127.0.0.77 (without a port, 9092 is meant)."),
        ("a.invalid:9092", "the host a.invalid cannot be found: no name server or hosts file knows its address."),
        ("a.invalid:9092,b.invalid:1", "the host a.invalid cannot be found"),
        ("a.invalid:9092,127.0.0.1:1", "no broker answers at a.invalid:9092,127.0.0.1:1."),
    ],
)
def test_an_address_without_a_broker(run: Run, address: str, told: str) -> None:
    shown = run("topics", "list", "--bootstrap", address, code=1).stderr
    assert shown.startswith(f"barnabas: {told}")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092", "127.0.0.1:9092:1", "::zz:9092", ":9092", ""]
)
def test_what_is_no_address(run: Run, address: str) -> None:
    told = run("topics", "list", "--bootstrap", address, code=2).stderr
    assert told.startswith("barnabas: --bootstrap wants HOST:PORT with a port from 1 to 65535")
    assert told.endswith(f"not {address!r}.\n")


def test_what_takes_connections_and_answers_nothing(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        told = run("topics", "list", "--bootstrap", address, "--timeout", "0.2", code=1).stderr
    assert told.startswith(f"barnabas: no answer in 0.2 s from {address}. A broker that stands still")
    assert "TLS" in told


def test_a_topic_that_is_not_there(run: Run) -> None:
    for words in (
        ("topics", "describe", "no-topic"),
        ("consume", "no-topic", "--timeout", "1"),
        ("offsets", "set", "g", "--topic", "no-topic", "--to", "1"),
        ("records", "delete", "no-topic", "--before", "1"),
    ):
        assert (
            run(*words, code=3).stderr == "barnabas: there is no topic no-topic. (All topics: barnabas topics list)\n"
        )


def test_an_offset_outside_the_log_is_said_where_it_is_moved(run: Run, name: str) -> None:
    run("produce", name, "--value", "x")
    words = ("offsets", "set", f"{name}-group", "--topic", name, "--yes", "--to")
    assert f"outside the log of {name}-0: its nearest end is taken there." in run(*words, "4711").stderr
    assert "outside the log" not in run(*words, "1").stderr


IS_KAFKA = "CLIENTS_BROKER_COMMAND" in os.environ


@pytest.mark.parametrize(
    "words", [("diff", "g", "--from", "1h"), ("undo", "g"), ("restore", "g", "--at", "1h"), ("log", "g")]
)
@pytest.mark.parametrize("settings", [(), ("offsets.journal.enable=false",)])
def test_without_a_journal_it_is_said_why_and_what_to_do(
    make_broker: Any, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    broker = make_broker(*settings)
    done = barnabas(broker, "offsets", *words)
    if IS_KAFKA:
        assert (done.returncode, "is no Barnabas: Apache Kafka has no offset journal" in done.stderr) == (1, True)
    elif settings:
        assert done.returncode == 1
        assert done.stderr.startswith(
            "barnabas: broker 0 has offsets.journal.enable=false, and there is no offset journal"
        )
        assert "Start all brokers with offsets.journal.enable=true" in done.stderr
        assert "`barnabas offsets set g` moves it" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (
            3,
            "barnabas: there is no offset journal yet: the first commit of a group makes it.\n",
        )


def test_what_needs_the_http_api_says_so_before_a_plan(make_broker: Any) -> None:
    broker = make_broker("http.listeners=none")
    assert barnabas(broker, "topics", "create", "orders").returncode == 0
    for words in (
        ("groups", "lag", "g"),
        ("groups", "explain", "g"),
        ("offsets", "cleanup", "--group", "g"),
        ("offsets", "set", "g", "--topic", "orders", "--to", "earliest", "--live"),
    ):
        done = barnabas(broker, *words)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert "has no HTTP API, which this command needs" in done.stderr
        assert ("Start it without http.listeners=none." in done.stderr) is not IS_KAFKA
        assert ("it is no Barnabas (Apache Kafka has none)" in done.stderr) is IS_KAFKA


@pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka has no such tree")
def test_a_backup_of_the_tree_beside_the_logs(run: Run, tmp_path: Path) -> None:
    assert f"{tmp_path / 'backup'}: the tree " in run("cluster", "backup", str(tmp_path / "backup")).stdout
    assert (tmp_path / "backup").read_bytes().startswith(b"SQLite format 3")


def barnabas(broker: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.barnabas(*words, "--bootstrap", broker.bootstrap)


@pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka has no HTTP API")
def test_the_address_of_the_http_api_is_no_brokers(run: Run, broker: Any) -> None:
    address = json.loads(run("status", "--json").stdout)["brokers"][0]["http"]
    told = run("topics", "list", "--bootstrap", address, code=1).stderr
    assert told.startswith(f"barnabas: {address} is an HTTP server, and no port of Kafka's protocol. Its broker is at ")
    assert broker.bootstrap.rpartition(":")[2] in told


@pytest.mark.parametrize("live", [(), ("--live",)])
def test_a_group_that_offsets_set_makes_is_said(run: Run, name: str, live: tuple[str, ...]) -> None:
    run("topics", "create", name)
    words = ("offsets", "set", f"{name}-group", "--topic", name, "--to", "earliest", "--yes", *live)
    assert f"There is no group {name}-group yet: this would make it." in run(*words, "--dry-run").stderr
    assert f"There is no group {name}-group yet: this makes it." in run(*words).stderr
    assert "There is no group" not in run(*words).stderr


def test_a_list_of_groups_tells_the_type_of_the_group_from_what_its_members_are(run: Run, name: str) -> None:
    run("produce", name, "--value", "x")
    run("consume", name, "--group", name, "--from-beginning", "--max", "1")
    (row,) = [row for row in json.loads(run("groups", "list", "--json").stdout) if row["group"] == name]
    assert (row["type"], row["protocol_type"]) == ("classic", "consumer")
    (line,) = [line for line in run("groups", "list").stdout.splitlines() if line.startswith(name)]
    assert line.split() == [name, "classic", "Empty", "consumers"]


@pytest.mark.parametrize(
    "words",
    [
        ("groups", "lag"),
        ("groups", "explain"),
        ("groups", "describe"),
        ("offsets", "list"),
        ("offsets", "cleanup", "--group"),
    ],
)
def test_a_group_that_is_not_there_is_told_in_words_of_commands(run: Run, words: tuple[str, ...]) -> None:
    told = run(*words, "no-such-group", code=3).stderr
    assert told == "barnabas: there is no group no-such-group. (All groups: barnabas groups list)\n"
