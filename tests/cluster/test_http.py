"""The HTTP API of three brokers: what concerns a group is answered by its coordinator, and the commands find it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from ports import free_ports
from waiting import until

Start = Callable[..., Any]

ASK = """
import json, sys
from barnabas.cli.shared.client import admin
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.exits import Failure
from barnabas.cli.shared.target import Target

with admin(target := Target(sys.argv[1], 30, 0.5, as_json=True)) as client:
    api = HttpApi(client, target)
    try:
        group = api.get("/v1/groups/{group}", group=sys.argv[2])
        print(json.dumps([group, list(api.of_each_broker("/v1/groups"))]))
    except Failure as failure:
        failure.tell(True)
        sys.exit(failure.code)
"""


def ask_as_a_command(bootstrap: str, group: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ASK, bootstrap, group]
    return forked.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **environment})


def get(address: str, target: str, **headers: str) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(address, timeout=200)
    connection.request("GET", target, headers=headers)
    response = connection.getresponse()
    found = response.status, response.headers, json.loads(response.read())
    connection.close()
    return found


def use_groups(bootstrap: str, *groups: str) -> None:
    """Let the groups commit."""
    forked.barnabas("topics", "create", "t", "-b", bootstrap, code=0)
    for group in groups:
        forked.barnabas("offsets", "set", group, "--topic", "t", "--to", "earliest", "--yes", "-b", bootstrap, code=0)


def test_the_coordinator_answers_wherever_one_asks(start: Start) -> None:
    ready = start("--brokers", "3", "--port", "0").ready()
    addresses, bootstrap = ready["http"], ready["bootstrap"]
    assert len(set(addresses)) == 3
    groups = ["team/billing", "a", "b"]
    use_groups(bootstrap, *groups)
    coordinators = {}
    for group in groups:
        target = "/v1/groups/" + group.replace("/", "%2F")
        answers = [get(address, target) for address in addresses]
        (coordinator,) = [number for number in range(3) if answers[number][0] == 200]
        coordinators[group] = coordinator
        assert answers[coordinator][2]["group"] == group
        for number, (status, headers, body) in enumerate(answers):
            if number != coordinator:
                assert (status, body["error"]["name"]) == (307, "NOT_COORDINATOR")
                assert headers["Location"] == f"http://{addresses[coordinator]}{target}"
    for group, coordinator in coordinators.items():
        done = ask_as_a_command(bootstrap, group)
        assert done.returncode == 0, done
        found, of_each = json.loads(done.stdout)
        assert (found["group"], found["node_id"]) == (group, coordinator)
        assert sorted(row["group"] for answer in of_each for row in answer["groups"]) == sorted(groups)
    missing = ask_as_a_command(bootstrap, "nobody")
    assert missing.returncode == 3
    assert "there is no group" in json.loads(missing.stderr)["error"]

    # A broker that stands still: the others are asked, and soon coordinate its groups.
    paused = 0
    os.kill(ready["pids"][paused], signal.SIGSTOP)
    try:
        others = ",".join(address for number, address in enumerate(bootstrap.split(",")) if number != paused)
        until(lambda: ask_as_a_command(others, "a").returncode == 0)
        until(lambda: len(get(addresses[1], "/v1/status")[2]["brokers"]) == 2)
    finally:
        os.kill(ready["pids"][paused], signal.SIGCONT)


def test_a_port_that_is_set_counts_up_with_the_brokers(start: Start) -> None:
    port = free_ports(3)[0]
    ready = start("--brokers", "3", "--port", "0", "--set", f"http.listeners=http://127.0.0.1:{port}").ready()
    assert ready["http"] == [f"127.0.0.1:{port + number}" for number in range(3)]
    assert [get(address, "/v1/status")[2]["node_id"] for address in ready["http"]] == [0, 1, 2]


@pytest.mark.parametrize("token", [None, "wrong", "a-long-secret"])
def test_other_hosts_show_the_token(start: Start, token: str | None) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = probe.getsockname()[0]
    ready = start(
        *("--port", "0", "--set", f"http.listeners=http://{host}:0", "--set", "http.token=a-long-secret"),
    ).ready()
    assert ready["http"].startswith(host)
    bootstrap = ready["bootstrap"]
    use_groups(bootstrap, "billing")
    done = ask_as_a_command(bootstrap, "billing", **({} if token is None else {"BARNABAS_HTTP_TOKEN": token}))
    if token == "a-long-secret":
        assert done.returncode == 0, done
    else:
        assert done.returncode == 1
        assert "BARNABAS_HTTP_TOKEN" in json.loads(done.stderr)["error"]


def test_a_broker_without_it(start: Start) -> None:
    ready = start("--port", "0", "--set", "http.listeners=none").ready()
    assert ready["http"] is None
    done = ask_as_a_command(ready["bootstrap"], "billing")
    assert done.returncode == 1
    assert "has no HTTP API" in json.loads(done.stderr)["error"]


def test_an_address_in_use_is_said(start: Start, tmp_path: Path) -> None:
    ready = start("--port", "0").ready()
    words = ("start", "--json", "--port", "0", "--data", str(tmp_path / "other"))
    done = forked.barnabas(*words, "--set", f"http.listeners=http://{ready['http']}", code=1)
    assert f"the HTTP API cannot listen at HTTP://{ready['http']}: " in done.stderr
    assert "http.listeners" in done.stderr
    assert not (tmp_path / "other").exists()
