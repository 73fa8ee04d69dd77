"""`barnabas start --brokers 3`: one command, three processes."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from supervised import WITHIN_S, is_there
from waiting import until, until_said

Start = Callable[..., Any]


def metadata(bootstrap: str, topic: str) -> Any:
    from broker_process import Client

    client = Client(int(bootstrap.rpartition(":")[2]))
    request = messages.MetadataRequest
    try:
        return client.ask(
            ApiKey.METADATA,
            12,
            request(topics=[request.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True),
        )
    finally:
        client.close()


def broker_settings(bootstrap: str, node_id: int, names: list[str]) -> dict[str, str]:
    from broker_process import Client

    describe = messages.DescribeConfigsRequest
    broker = describe.DescribeConfigsResource(resource_type=4, resource_name=str(node_id), configuration_keys=names)
    with closing(Client(int(bootstrap.rpartition(":")[2]))) as client:
        answer = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, describe(resources=[broker]))
    return {row.name: row.value for row in answer.results[0].configs}


def test_three_brokers_serve_and_stop_in_order(start: Start, tmp_path: Path) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    assert list(ready) == ["event", "bootstrap", "http", "node_ids", "pids", "cluster_id", "data", "pid"]
    assert (ready["event"], ready["node_ids"], ready["pid"]) == ("ready", [0, 1, 2], cluster.process.pid)
    assert ready["data"] == str(tmp_path / "d")
    addresses = ready["bootstrap"].split(",")
    assert len(set(addresses)) == 3

    def topic_is_made() -> bool:
        answer = metadata(addresses[0], "t")
        assert len(answer.brokers) == 3
        partitions = answer.topics[0].partitions
        return bool(partitions) and len(partitions[0].isr_nodes) == 3

    until(topic_is_made)
    controller_id = metadata(addresses[0], "t").controller_id
    assert cluster.end() == 0
    assert cluster.event() == {}
    assert not any(map(is_there, ready["pids"]))
    log = cluster.log.read_text()
    stops = [line for line in log.splitlines() if line.endswith("has stopped")]
    assert sorted(line.split(" | ")[0] for line in stops) == ["broker 0", "broker 1", "broker 2"]
    assert stops[-1].startswith(f"broker {controller_id} | ")
    for before, after in itertools.pairwise(stops):
        number = after.split()[1]
        begins = next(place for place, line in enumerate(log.splitlines()) if line.endswith(f"broker {number} stops"))
        assert log.splitlines().index(before) < begins, "one after the other"

    again = start("--port", "0")
    ready_again = again.ready()
    assert ready_again["node_ids"] == [0, 1, 2], "the directory says how many there are"
    assert ready_again["cluster_id"] == ready["cluster_id"]
    assert again.end(signal.SIGINT) == 0


def test_a_broker_that_dies_is_said_at_once(start: Start) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    os.kill(ready["pids"][1], signal.SIGKILL)
    assert cluster.event() == {"event": "died", "node_id": 1, "pid": ready["pids"][1], "exit_code": -9}
    until_said("broker 1 (process", cluster.log)
    assert len(metadata(ready["bootstrap"].split(",")[0], "t").brokers) >= 2
    for node_id in (0, 2):
        os.kill(ready["pids"][node_id], signal.SIGKILL)
        assert cluster.event()["node_id"] == node_id
    assert cluster.process.wait(WITHIN_S) == 1
    assert "no broker runs any more" in cluster.log.read_text()


def test_after_a_death_the_others_stop_cleanly(start: Start) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    os.kill(ready["pids"][2], signal.SIGKILL)
    assert cluster.event()["event"] == "died"
    assert cluster.end(signal.SIGINT) == 0
    stops = [line.split(" | ")[0] for line in cluster.log.read_text().splitlines() if line.endswith("has stopped")]
    assert sorted(stops) == ["broker 0", "broker 1"]


def test_a_broker_that_is_started_alone_again_has_the_defaults_of_its_cluster(start: Start, tmp_path: Path) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    os.kill(ready["pids"][2], signal.SIGKILL)
    assert cluster.event()["event"] == "died"
    tree = f"coordination.path={tmp_path}/d/coordination.sqlite"
    alone = start("--data", str(tmp_path / "d" / "2"), "--port", "0", "--set", tree)
    again = alone.ready()
    addresses = {**dict(enumerate(ready["bootstrap"].split(","))), 2: again["bootstrap"]}
    names = ["default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor"]
    settings = [broker_settings(address, node_id, names) for node_id, address in addresses.items()]
    assert settings == [dict(zip(names, "323", strict=True))] * 3
    assert alone.end() == 0
    assert cluster.end() == 0


def test_a_paused_broker_does_not_hold_up_the_stop(start: Start) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    os.kill(ready["pids"][1], signal.SIGSTOP)
    assert cluster.end(signal.SIGINT) == 0
    log = cluster.log.read_text()
    assert sum(line.endswith("has stopped") for line in log.splitlines()) == 3
    assert "has not stopped yet" not in log
    assert re.search(r"stopping, one after the other: (broker \d \(process \d+\)(, |\. )){3}A second Ctrl-C kills", log)


def test_a_second_ctrl_c_kills_all(start: Start) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    with suspended_for_good(ready["pids"][2]):
        cluster.process.send_signal(signal.SIGINT)
        until_said("stopping, one after the other", cluster.log)
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(WITHIN_S) == 130
        assert not any(map(is_there, ready["pids"]))
    assert "killed before they had stopped: " in cluster.log.read_text()


@contextmanager
def suspended_for_good(process: int) -> Iterator[None]:
    """Pause a process so that SIGCONT does not help: it is stopped again and again."""
    is_over = threading.Event()

    def stop() -> None:
        while not is_over.is_set():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_broker_that_dies_is_started_again_if_asked_for(start: Start) -> None:
    cluster = start("--brokers", "2", "--port", "0", "--restart")
    ready = cluster.ready()
    os.kill(ready["pids"][0], signal.SIGKILL)
    assert cluster.event()["event"] == "died"
    restarted = cluster.event()
    assert (restarted["event"], restarted["node_id"]) == ("restarted", 0)
    assert restarted["pid"] != ready["pids"][0]
    until(lambda: len(metadata(ready["bootstrap"].split(",")[0], "t").brokers) == 2)
    assert cluster.end() == 0
    assert not is_there(restarted["pid"])


def test_a_disk_that_was_given_up_at_the_start_is_not_given_up_again(start: Start, tmp_path: Path) -> None:
    """`--give-up` is for one start. A broker whose new disk is away when it is started again must not begin empty."""
    cluster = start("--brokers", "2", "--port", "0")
    bootstrap = cluster.ready()["bootstrap"].partition(",")[0]
    until(lambda: metadata(bootstrap, "t").topics[0].partitions)
    assert cluster.end() == 0
    disk = tmp_path / "d" / "1"
    shutil.rmtree(disk)
    again = start("--port", "0", "--restart", "--give-up", str(disk))
    pids = again.ready()["pids"]
    disk.rename(tmp_path / "away")
    os.kill(pids[1], signal.SIGKILL)
    assert again.event()["event"] == "died"
    until_said(f"are new ({disk})", again.log)
    shutil.rmtree(disk, ignore_errors=True)
    (tmp_path / "away").rename(disk)
    assert again.event()["event"] == "restarted"
    assert again.end() == 0


def test_the_brokers_end_with_the_supervisor(start: Start) -> None:
    cluster = start("--brokers", "2", "--port", "0")
    ready = cluster.ready()
    cluster.end(signal.SIGKILL)
    until(lambda: not any(map(is_there, ready["pids"])))


def free_below_taken() -> tuple[socket.socket, int]:
    """A port that is taken, and the one below it is free."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with suppress(OSError), socket.create_server(("127.0.0.1", port - 1)):
            return taken, port
        taken.close()


def test_a_start_that_fails_for_one_broker_stops_the_others(start: Start) -> None:
    taken, port = free_below_taken()
    with taken:
        cluster = start("--brokers", "2", "--port", str(port - 1))
        assert cluster.event() == {}
        assert cluster.process.wait(WITHIN_S) == 1
    error = json.loads(cluster.log.read_text().splitlines()[-1])
    assert error["error"].startswith("broker 1: ")
    assert f"{port} is in use" in error["error"]


def test_those_that_do_not_start_say_why_behind_the_lines_of_the_others(start: Start, tmp_path: Path) -> None:
    cluster = start("--brokers", "3", "--port", "0")
    bootstrap = cluster.ready()["bootstrap"]
    until(lambda: metadata(bootstrap.partition(",")[0], "t").topics[0].partitions)
    assert cluster.end() == 0
    for number in (0, 2):
        shutil.rmtree(tmp_path / "d" / str(number))
    again = start("--port", "0")
    assert again.event() == {}
    assert again.process.wait(WITHIN_S) == 1
    *_, last = again.log.read_text().splitlines()
    reasons = json.loads(last)["error"].splitlines()
    why = {f"broker {number}: The tree says that node {number} has 1 partition" for number in (0, 2)}
    assert {reason.partition(",")[0] for reason in reasons} <= why, "one may be told to stop before it refuses"
    assert reasons
    with_both = [word for number in (0, 2) for word in ("--give-up", str(tmp_path / "d" / str(number)))]
    given_up = start("--port", "0", *with_both)
    given_up.ready()
    assert given_up.end() == 0


def test_a_second_start_in_the_same_directory_is_refused(start: Start) -> None:
    first = start("--brokers", "2", "--port", "0")
    first.ready()
    second = start("--port", "0")
    assert second.process.wait(WITHIN_S) == 1
    assert "runs already" in second.log.read_text()
    assert first.end() == 0


def test_the_others_logs_are_not_set_aside_because_the_tree_is_lost(start: Start, tmp_path: Path) -> None:
    cluster = start("--brokers", "2", "--port", "0")
    bootstrap = cluster.ready()["bootstrap"]
    until(lambda: metadata(bootstrap.partition(",")[0], "t").topics[0].partitions)
    assert cluster.end() == 0
    for path in (tmp_path / "d").glob("coordination.sqlite*"):
        path.rename(tmp_path / path.name)
    refused = start("--port", "0")
    assert refused.event() == {}
    assert refused.process.wait(WITHIN_S) == 1
    assert "/d/coordination.sqlite is not there" in refused.log.read_text()
    for path in tmp_path.glob("coordination.sqlite*"):
        path.rename(tmp_path / "d" / path.name)
    again = start("--port", "0")
    bootstrap = again.ready()["bootstrap"]
    assert len(metadata(bootstrap.partition(",")[0], "t").topics[0].partitions[0].replica_nodes) == 2
    assert again.end() == 0


def test_the_profile_for_tests_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "barnabas", "start", "--json", "--brokers", "3", "--port", "0", "--profile", "ci"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    abandoned = tmp_path / f"barnabas-ci-{'0' * 32}"  # of a cluster that was killed some minutes ago
    abandoned.mkdir()
    (abandoned / ".lock").touch()
    os.utime(abandoned, (1, 1))
    process = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert Path(ready["data"]).parent == tmp_path
        offsets = metadata(ready["bootstrap"].split(",")[2], "__consumer_offsets").topics[0]
        assert [len(partition.replica_nodes) for partition in offsets.partitions] == [3]
        until(lambda: not abandoned.exists())
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
    assert list(tmp_path.iterdir()) == []
