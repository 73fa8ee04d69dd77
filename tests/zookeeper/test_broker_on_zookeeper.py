"""A broker whose tree is in a real ZooKeeper: its life, and ZooKeeper's outages while clients produce."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import forked
import pytest
import zookeeper_server
from barnabas.cluster.tree.paths import BROKER_EPOCHS, TREE_MARKS, broker_epoch, tree_mark
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, batch, produce_request
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from old_offsets import GROUP, TOPIC, commit_in_tree, migrate
from ports import free_port
from waiting import until, until_said
from zookeeper_server import ZooKeeperServer, plain

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-3.9.1-zookeeper" / "changes.jsonl"

Start = Callable[..., Any]


def tree(client: KazooClient, path: str = "/") -> dict[str, bytes | None]:
    """Every node and its data."""
    data, _ = client.get(path)
    found = {path: data}
    for name in client.get_children(path):
        found |= tree(client, f"{path.rstrip('/')}/{name}")
    return found


class Producer:
    """Produces one record after the other with acks=all in a thread, and remembers which were acknowledged."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[bytes] = []
        self.refused = 0
        self._port = port
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        client: Client | None = None
        while not self._is_over:
            value = b"%d" % number
            try:
                client = client or Client(self._port)
                if client.produce(TOPIC, 0, batch([value])).error_code == 0:
                    self.acknowledged.append(value)
                    number += 1
                    time.sleep(0.002)
                    continue
            except OSError:
                client = None
            self.refused += 1
            time.sleep(0.02)

    def wait_for(self, count: int) -> None:
        """Return when so many records more are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        """End the thread."""
        self._is_over = True
        self._thread.join()


def check_records(port: int, acknowledged: list[bytes]) -> None:
    """All acknowledged records are there, in order. A record that was sent again may be there twice in a row."""
    values = Client(port).values(TOPIC, 0)
    once = list(dict.fromkeys(values))
    known = set(acknowledged)
    assert [value for value in once if value in known] == acknowledged
    assert sorted(map(int, filter(None, once))) == list(map(int, filter(None, once))), "out of order"


def test_a_backup_of_the_tree_is_zookeepers_own_matter(start: Start, tmp_path: Path) -> None:
    done = forked.barnabas("cluster", "backup", str(tmp_path / "backup"), "--bootstrap", f"127.0.0.1:{start().port}")
    assert (done.returncode, "ZooKeeper" in done.stderr) == (2, True), done
    assert not (tmp_path / "backup").exists()


def test_what_a_broker_writes_is_what_kafka_writes(start: Start, server: ZooKeeperServer) -> None:
    broker = start()
    client = Client(broker.port)
    assert client.create_topic(TOPIC, 2, cleanup_policy="compact") == 0
    assert client.set_config(TOPIC, retention_ms="1000") == 0
    assert client.init_producer_id()[0] >= 0
    with plain(server) as zookeeper:
        ours = tree(zookeeper)

    theirs: dict[str, Any] = {}
    for line in GOLDEN.read_text().splitlines():
        change = json.loads(line)
        if change.get("op") in ("create", "set"):
            theirs[_pattern(change["path"])] = change["data"]
    own = {path for path in ours if path == "/barnabas" or path.startswith("/barnabas/")}
    apart = {"/barnabas", BROKER_EPOCHS, broker_epoch(0), TREE_MARKS, tree_mark(0)}
    assert own == apart, "nodes that are not Kafka's stand apart"
    for path, data in ours.items():
        if path in own:
            continue
        pattern = _pattern(path)
        assert pattern in theirs, f"Kafka has no {path}"
        expected = theirs[pattern]
        if data is None or expected is None:
            assert (data is None) == (expected is None), f"{path}: {data!r}, Kafka has {expected!r}"
        elif expected.startswith("{"):
            optional = {"rack"}
            assert [key for key in json.loads(expected) if key not in optional] == [
                key for key in json.loads(data) if key not in optional
            ], path
        else:
            assert data.isdigit() == expected.isdigit(), path
    always = {_pattern(path) for path in ours}
    for needed in ("/brokers/ids/N", "/controller", "/controller_epoch", "/cluster/id", "/consumers", "/brokers/seqid"):
        assert needed in always


def _pattern(path: str) -> str:
    """A path with numbers and names of topics left out."""
    path = re.sub(r"^(/brokers/topics|/config/topics|/admin/delete_topics)/[^/]+", r"\1/T", path)
    path = re.sub(r"_\d{10}$", "_N", path)
    return re.sub(r"/\d+(?=/|$)", "/N", path)


def test_a_stop_ends_the_session_and_a_start_finds_everything_again(start: Start, server: ZooKeeperServer) -> None:
    first = start()
    client = Client(first.port)
    client.create_topic(TOPIC, 1)
    for number in range(5):
        assert client.produce(TOPIC, 0, batch([b"%d" % number])).error_code == 0
    with plain(server) as zookeeper:
        assert zookeeper.get_children("/brokers/ids") == ["0"]
        epoch = zookeeper.exists("/brokers/ids/0").czxid
        first.end()
        assert zookeeper.get_children("/brokers/ids") == []
        second = start(port=first.port)
        assert Client(second.port).values(TOPIC, 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert zookeeper.exists("/brokers/ids/0").czxid > epoch


def test_who_starts_again_within_its_old_session_waits_for_its_node_to_go(
    start: Start, server: ZooKeeperServer
) -> None:
    first = start()
    Client(first.port).create_topic(TOPIC, 1)
    with plain(server) as zookeeper:
        owner = zookeeper.exists("/brokers/ids/0").ephemeralOwner
        first.end(signal.SIGKILL)
        assert zookeeper.exists("/brokers/ids/0").ephemeralOwner == owner
        second = start(port=first.port, log_level="info")
        assert zookeeper.exists("/brokers/ids/0").ephemeralOwner not in (None, owner)
    assert Client(second.port).produce(TOPIC, 0, batch([b"x"])).error_code == 0
    until_said("is registered already: waiting until that session has ended", second.log)


def test_a_living_brokers_id_is_refused(start: Start, tmp_path: Path) -> None:
    first = start()
    other = start(tmp_path / "other", wait=False, words=["--set", "node.id=0"])
    assert other.process.wait(200) == 1
    assert "A broker with id 0 is running already in this cluster" in other.log.read_text()
    assert not (tmp_path / "other" / "meta.properties").exists()
    assert Client(first.port).create_topic(TOPIC, 1) == 0


@pytest.mark.parametrize("outage", ["restarted", "paused"])
def test_an_outage_that_is_shorter_than_the_session_is_not_noticed_by_producers(
    start: Start, server: ZooKeeperServer, outage: str
) -> None:
    broker = start(session_ms=20_000)
    Client(broker.port).create_topic(TOPIC, 1)
    with plain(server) as zookeeper:
        owner = zookeeper.exists("/brokers/ids/0").ephemeralOwner
    producer = Producer(broker.port)
    try:
        producer.wait_for(20)
        if outage == "restarted":
            server.stop()
            producer.wait_for(20)
            server.start()
        else:
            server.pause()
            producer.wait_for(20)
            server.resume()
        producer.wait_for(20)
    finally:
        producer.stop()
    assert producer.refused == 0
    with plain(server) as zookeeper:
        assert zookeeper.exists("/brokers/ids/0").ephemeralOwner == owner
    assert Client(broker.port).create_topic("after", 1) == 0, "the watches are there again"
    assert Client(broker.port).produce("after", 0, batch([b"x"])).error_code == 0
    check_records(broker.port, producer.acknowledged)


@pytest.mark.parametrize("outage", ["restarted", "paused"])
def test_after_an_outage_that_is_longer_than_the_session_producers_go_on(
    start: Start, server: ZooKeeperServer, outage: str
) -> None:
    broker = start(session_ms=1_000)
    Client(broker.port).create_topic(TOPIC, 1)
    with plain(server) as zookeeper:
        owner = zookeeper.exists("/brokers/ids/0").ephemeralOwner
    producer = Producer(broker.port)
    try:
        producer.wait_for(20)
        if outage == "restarted":
            server.stop()
        else:
            server.pause()
        while not producer.refused:  # the lease is over
            time.sleep(0.01)
        time.sleep(1.5)
        acknowledged = len(producer.acknowledged)
        time.sleep(0.5)
        assert len(producer.acknowledged) == acknowledged, "acknowledged without a lease"
        if outage == "restarted":
            server.start()
        else:
            server.resume()
        producer.wait_for(20)
    finally:
        producer.stop()
    with plain(server) as zookeeper:
        assert zookeeper.exists("/brokers/ids/0").ephemeralOwner not in (None, owner)
    assert Client(broker.port).create_topic("after", 1) == 0
    check_records(broker.port, producer.acknowledged)


def test_a_stopped_process_begins_a_new_session_when_it_goes_on(start: Start, server: ZooKeeperServer) -> None:
    broker = start(session_ms=1_000)
    Client(broker.port).create_topic(TOPIC, 1)
    with plain(server) as zookeeper:
        owner = zookeeper.exists("/brokers/ids/0").ephemeralOwner
        os.kill(broker.process.pid, signal.SIGSTOP)
        while zookeeper.exists("/brokers/ids/0") is not None:
            time.sleep(0.02)
        os.kill(broker.process.pid, signal.SIGCONT)
        while (stat := zookeeper.exists("/brokers/ids/0")) is None:
            time.sleep(0.02)
        assert stat.ephemeralOwner != owner
    producer = Producer(broker.port)
    producer.wait_for(5)
    producer.stop()
    check_records(broker.port, producer.acknowledged)


def refusal(words: list[str]) -> subprocess.CompletedProcess[str]:
    """A start that is refused."""
    done = forked.barnabas("start", "--port", "0", *words)
    assert done.returncode != 0
    return done


def test_a_zookeeper_that_does_not_answer_refuses_the_start(tmp_path: Path) -> None:
    pytest.importorskip("kazoo")
    connect = f"127.0.0.1:{free_port()}"
    words = ["--data", str(tmp_path / "d"), "--set", f"zookeeper.connect={connect}"]
    done = refusal([*words, "--set", "zookeeper.connection.timeout.ms=300"])
    assert f"ZooKeeper at {connect} does not answer within 300 ms" in done.stderr
    assert not (tmp_path / "d" / "meta.properties").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["zookeeper.connect=:no"], "zookeeper.connect=:no is not of the form host:port,host:port/chroot"),
        (["zookeeper.connect=a:1", "coordination.path=/tmp/x"], "name two coordination trees"),
        (["zookeeper.connect=a:1", "zookeeper.set.acl=true"], "or zookeeper.digest.credentials to user:password"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, settings: list[str], said: str) -> None:
    words = ["--data", str(tmp_path / "d")]
    for setting in settings:
        words += ["--set", setting]
    assert said in refusal(words).stderr


def test_the_server_for_tests_says_why_it_is_missing() -> None:
    assert zookeeper_server.why_not()


def test_old_consumers_are_seen_in_zookeeper_before_their_offsets_are_migrated(
    start: Start, server: ZooKeeperServer
) -> None:
    broker = start()
    Client(broker.port).create_topic(TOPIC, 1)
    assert commit_in_tree(broker.port, 7) == 0
    with plain(server) as zookeeper:
        assert zookeeper.get(f"/consumers/{GROUP}/offsets/{TOPIC}/0")[0] == b"7"
        zookeeper.create(f"/consumers/{GROUP}/ids/g_host-1-1", b"{}", ephemeral=True, makepath=True)
        refused = migrate(broker.port, "--yes")
        assert refused.returncode == 1
        assert "g has 1 old consumer (g_host-1-1)" in refused.stderr
    done = migrate(broker.port, "--yes")
    assert done.returncode == 0, done.stderr
    assert "1 committed, 0 kept; read again, 1 of 1 as they should be." in done.stderr
    assert Client(broker.port).committed(GROUP, TOPIC, 0) == (0, 7)


def test_offsets_in_zookeeper_go_with_their_topic_and_with_their_group(start: Start, server: ZooKeeperServer) -> None:
    broker = start(settings={"offsets.storage": "zookeeper"})
    client = Client(broker.port)
    client.create_topic(TOPIC, 1)
    client.create_topic("other", 1)
    assert commit_in_tree(broker.port, 7) == 0
    refused = migrate(broker.port, "--yes")
    assert "offsets.storage=zookeeper" in refused.stderr
    with plain(server) as zookeeper:
        delete = messages.DeleteTopicsRequest
        answer = client.ask(ApiKey.DELETE_TOPICS, 5, delete(topic_names=[TOPIC], timeout_ms=20_000))
        assert answer.responses[0].error_code == 0
        while zookeeper.exists(f"/consumers/{GROUP}/offsets/{TOPIC}"):
            time.sleep(0.02)
        client.create_topic(TOPIC, 1)
        assert commit_in_tree(broker.port, 8) == 0
        answer = client.ask(ApiKey.DELETE_GROUPS, 2, messages.DeleteGroupsRequest(groups_names=[GROUP]))
        assert answer.results[0].error_code == 0
        assert zookeeper.get_children("/consumers") == []


def test_only_the_brokers_user_may_write_what_it_made(start: Start, server: ZooKeeperServer) -> None:
    own = {"zookeeper.set.acl": "true", "zookeeper.digest.credentials": "barnabas:secret"}
    first = start(settings=own)
    assert Client(first.port).create_topic(TOPIC, 1) == 0
    with plain(server) as zookeeper:
        assert b'"partitions"' in zookeeper.get(f"/brokers/topics/{TOPIC}")[0]
        for path in (f"/brokers/topics/{TOPIC}", "/controller_epoch", "/brokers/ids/0", "/"):
            with pytest.raises(NoAuthError):
                zookeeper.set(path, b"{}") if path != "/" else zookeeper.create("/new")
        with pytest.raises(NoAuthError):
            zookeeper.get_children("/config/users")
        zookeeper.create("/consumers/group")
    first.end()
    second = start(port=first.port, settings=own)
    assert Client(second.port).produce(TOPIC, 0, batch([b"x"])).error_code == 0


def test_a_broker_that_needs_no_zookeeper_does_not_load_kazoo() -> None:
    code = "import sys, barnabas.broker.broker, barnabas.cli.start; print('kazoo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("outage", ["stopped", "paused"])
def test_a_broker_stops_without_zookeeper(start: Start, server: ZooKeeperServer, outage: str) -> None:
    broker = start(session_ms=30_000)
    assert Client(broker.port).create_topic(TOPIC, 1) == 0
    assert Client(broker.port).produce(TOPIC, 0, batch([b"x"])).error_code == 0
    if outage == "stopped":
        server.stop()
    else:
        server.pause()
    broker.end()
    assert broker.process.returncode == 0


def test_a_broker_that_is_started_first_waits_for_zookeeper(start: Start, server: ZooKeeperServer) -> None:
    server.stop()
    broker = start(session_ms=30_000, wait=False)
    until_said("connecting to ZooKeeper", broker.log)
    server.start()
    broker.wait_until_ready()
    assert Client(broker.port).create_topic(TOPIC, 1) == 0


KAFKAS_BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"],'
    b'"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"1"}'
)
KRAFTS_CONTROLLER = b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":5}'


def produce_with_one_ack(port: int) -> int:
    """The error code."""
    with closing(Client(port)) as client:
        request = produce_request([(TOPIC, 0, batch([b"x"]))])
        request.acks = 1
        error: int = client.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses[0].error_code
        return error


def test_a_zookeeper_that_comes_back_empty_is_said_and_nothing_is_served(start: Start, server: ZooKeeperServer) -> None:
    process = start()
    with closing(Client(process.port)) as client:
        assert client.create_topic(TOPIC, 1, 1) == 0
    server.stop()
    shutil.rmtree(server.data)
    server.start()
    until_said("is empty, and had the cluster", process.log)
    assert produce_with_one_ack(process.port) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    shown = [sys.executable, "-m", "barnabas", "cluster", "--bootstrap", f"127.0.0.1:{process.port}"]
    done = forked.run(shown, capture_output=True, text=True, timeout=200)
    assert "Broker 0 serves nobody: ZooKeeper at" in done.stdout, done
    with plain(server, "") as client:
        assert client.exists("/barnabas/controller") is None
        assert client.exists("/barnabas/brokers") is None


def made(port: int, topic: str, **configs: str) -> bool:
    """Whether the topic could be created."""
    with closing(Client(port)) as client:
        return client.create_topic(topic, 1, 1, **configs) == 0


def test_an_older_copy_of_zookeeper_is_noticed_and_changes_no_setting(
    start: Start, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """Also by a broker without others, and although the copy was made after its registration."""
    process = start()
    with closing(Client(process.port)) as client:
        assert client.create_topic(TOPIC, 1, 1) == 0
    server.stop()
    shutil.copytree(server.data, tmp_path / "copy")
    server.start()
    until(lambda: made(process.port, "kept", retention_ms="-1"))
    until_said("topic kept: its own settings are now {'retention.ms': '-1'}", process.log)
    time.sleep(1)  # the mark is counted within 50 ms
    server.stop()
    shutil.rmtree(server.data)
    shutil.move(tmp_path / "copy", server.data)
    server.start()
    until_said("is an older copy than it was", process.log)
    assert produce_with_one_ack(process.port) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    time.sleep(1)  # settings were read within some milliseconds
    assert "topic kept: its own settings are now {}" not in process.log.read_text()


def test_a_registration_that_is_deleted_by_hand_is_made_again(start: Start, server: ZooKeeperServer) -> None:
    process = start()
    with closing(Client(process.port)) as client:
        assert client.create_topic(TOPIC, 1, 1) == 0
    with plain(server) as client:
        before = client.get("/brokers/ids/0")[1].czxid
        client.delete("/brokers/ids/0")
        until(lambda: client.exists("/brokers/ids/0") is not None)
        assert client.get("/brokers/ids/0")[1].czxid > before
    until_said("/brokers/ids/0 was deleted while this broker runs", process.log)
    until(lambda: produce_with_one_ack(process.port) == 0)


@pytest.mark.parametrize("path", ["/controller", "/brokers/ids/0"])
def test_a_node_that_somebody_edits_by_hand_is_named_and_the_broker_goes_on(
    start: Start, server: ZooKeeperServer, path: str
) -> None:
    """Once, it wrote a traceback each second, without the name of the node."""
    broker = start()
    with plain(server) as zookeeper, closing(Client(broker.port)) as client:
        good, _ = zookeeper.get(path)
        zookeeper.set(path, b"by hand")
        said = until_said(f"{path} cannot be read", broker.log)
        assert "b'by hand'" in said
        assert client.create_topic(TOPIC, 1) == 0
        time.sleep(3)
        assert broker.log.read_text().count("cannot be read") == 1
        zookeeper.set(path, good)
        zookeeper.delete("/controller")
        until_said("epoch 2", broker.log)
        until(lambda: client.create_topic("other", 1) == 0)


def test_a_partition_state_that_somebody_deletes_is_put_back(start: Start, server: ZooKeeperServer) -> None:
    """Once, the next controller took the partition for a new one, whose leader epoch no broker took."""
    broker = start()
    state = f"/brokers/topics/{TOPIC}/partitions/0/state"
    with plain(server) as zookeeper, closing(Client(broker.port)) as client:
        assert client.create_topic(TOPIC, 1) == 0
        assert client.produce(TOPIC, 0, batch([b"x"])).error_code == 0
        before, _ = zookeeper.get(state)
        zookeeper.delete(state)
        until_said(f"{state} was deleted", broker.log)
        assert zookeeper.get(state)[0] == before
        zookeeper.delete("/controller")
        until_said("epoch 2", broker.log)
        assert client.produce(TOPIC, 0, batch([b"y"])).error_code == 0
        assert client.values(TOPIC, 0) == [b"x", b"y"]


@pytest.mark.parametrize(
    ("path", "data", "who"),
    [
        ("/brokers/ids/0", KAFKAS_BROKER, "the brokers 0 of Apache Kafka"),
        ("/brokers/ids/7", KAFKAS_BROKER, "the brokers 7 of Apache Kafka"),
        ("/controller", KRAFTS_CONTROLLER, "the KRaft controller 3000"),
    ],
)
def test_a_tree_in_which_apache_kafka_runs_is_left_alone(
    start: Start, server: ZooKeeperServer, tmp_path: Path, path: str, data: bytes, who: str
) -> None:
    with plain(server, "") as zookeeper:
        zookeeper.create(f"/barnabas{path}", data, makepath=True)
        zookeeper.create("/barnabas/cluster/id", b'{"version":"1","id":"abcdefghijklmnopqrstuv"}', makepath=True)
        before = tree(zookeeper)
        broker = start(wait=False)
        assert broker.process.wait(200) == 1
        assert f"is that of {who}, which runs" in broker.log.read_text()
        assert tree(zookeeper) == before
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_the_wrong_password_is_said(start: Start) -> None:
    start(settings={"zookeeper.digest.credentials": "u:right", "zookeeper.set.acl": "true"}).end()
    broker = start(settings={"zookeeper.digest.credentials": "u:wrong"}, wait=False)
    assert broker.process.wait(200) == 1
    assert "does not allow this: start with the zookeeper.digest.credentials" in broker.log.read_text()
