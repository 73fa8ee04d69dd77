"""`barnabas doctor` against a broker: each trouble is made, found, mended by the command that it names, and gone."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import forked
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata, TopicPartition

pytestmark = [
    pytest.mark.skipif("CLIENTS_BROKER_COMMAND" in os.environ, reason="Apache Kafka has no HTTP API"),
]

BrokerProcess: TypeAlias = Any  # of conftest.py


@pytest.fixture(scope="module")
def quick(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that looks at its groups four times a second."""
    return make_broker("offsets.lag.check.interval.ms=250")


def barnabas(bootstrap: str, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.barnabas(*words, BARNABAS_BOOTSTRAP=bootstrap)


def doctor(broker: BrokerProcess, *words: str) -> dict[str, Any]:
    done = barnabas(broker.bootstrap, "doctor", "--json", "--stalled-after", "1", "--limit", "1000", *words)
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == document["exit_code"], done.stderr
    return document


def of(broker: BrokerProcess, group: str, check: str) -> dict[str, Any] | None:
    """The finding of a check that is about a group."""
    for row in doctor(broker)["findings"]:
        if row["check"] == check and row["where"] == f"group {group}":
            found: dict[str, Any] = row
            return found
    return None


def await_finding(broker: BrokerProcess, group: str, check: str) -> dict[str, Any]:
    end = time.monotonic() + 200
    while (found := of(broker, group, check)) is None:
        assert time.monotonic() < end, json.dumps(doctor(broker)["findings"], indent=1)
        time.sleep(0.2)
    return found


def await_gone(broker: BrokerProcess, group: str, check: str) -> None:
    end = time.monotonic() + 200
    while (found := of(broker, group, check)) is not None:
        assert time.monotonic() < end, found
        time.sleep(0.2)


def run(broker: BrokerProcess, finding: dict[str, Any], *more: str) -> str:
    """Run the command of a finding as a person would copy it."""
    words = shlex.split(finding["command"])
    assert words[0] == "barnabas"
    done = barnabas(broker.bootstrap, *words[1:], *more)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def make_topic(broker: BrokerProcess, name: str, partitions: int = 1, records: int = 0) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic(name, partitions, 1)])
    admin.close()
    write(broker, name, records)


def write(broker: BrokerProcess, name: str, records: int) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(records):
        producer.send(name, b"%d" % number, partition=0)
    producer.flush()
    producer.close()


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)})
    admin.close()


class Member:
    """A consumer in a thread. It polls while it is not told to hang, and commits nothing by itself."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, **settings: Any) -> None:
        self._make = lambda: KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            heartbeat_interval_ms=100,
            session_timeout_ms=10_000,
            auto_offset_reset="earliest",
            **{"enable_auto_commit": False, **settings},
        )
        self.partitions = -1
        self._polls = threading.Event()
        self._polls.set()
        self._has_hung = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = self._make()
        while not self._stop.is_set():
            if not self._polls.is_set():
                self._has_hung.set()
                self._polls.wait()
                continue
            consumer.poll(timeout_ms=100)
            self.partitions = len(consumer.assignment())
        consumer.close(autocommit=False)

    def hang(self) -> None:
        """Poll no more. Its last poll has ended when this returns: within it the member could still join again."""
        self._polls.clear()
        assert self._has_hung.wait(200)

    def close(self) -> None:
        self._stop.set()
        self._polls.set()
        self._thread.join(200)


Wait = Callable[..., None]


def test_a_new_broker_is_well_and_says_what_it_cannot_know_yet(own_broker: BrokerProcess) -> None:
    done = barnabas(own_broker.bootstrap, "doctor")
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    assert "ERROR" not in done.stdout
    assert "it cannot know yet which offsets stand still for 10 min" in done.stdout
    assert "checks, 1 broker, " in done.stdout


def test_a_group_whose_member_commits_nothing(quick: BrokerProcess, name: str, wait_until: Wait) -> None:
    make_topic(quick, name, records=1)
    commit(quick, name, name, 0)
    member = Member(quick, name, name)
    try:
        wait_until(lambda: member.partitions == 1)
        found = await_finding(quick, name, "stalled groups")
        assert found["severity"] == "error"
        assert found["since_ms"] > 0
        assert f"{name}-0" in found["what"]
        assert f"--topic {name}:0 --shift-by 1 --live" in found["command"]
        run(quick, found, "--yes")  # it passes over the record that is not processed
        await_gone(quick, name, "stalled groups")
    finally:
        member.close()


def test_a_commit_behind_the_end(quick: BrokerProcess, name: str) -> None:
    make_topic(quick, name, records=3)
    commit(quick, name, name, 1000)
    found = await_finding(quick, name, "commits past the end")
    assert found["severity"] == "warning"
    assert "at 1000, end 3" in found["what"]
    run(quick, found, "--yes")
    await_gone(quick, name, "commits past the end")


def test_a_member_that_does_not_join_again(quick: BrokerProcess, name: str, wait_until: Wait) -> None:
    make_topic(quick, name, partitions=2)
    hanging = Member(quick, name, name)
    other = None
    try:
        wait_until(lambda: hanging.partitions == 2)
        hanging.hang()
        other = Member(quick, name, name)
        found = await_finding(quick, name, "hanging members")
        assert "waits" in found["what"]
        assert f"groups remove {name} --member" in found["command"]
        assert "removed" in run(quick, found, "--yes")
        wait_until(lambda: other is not None and other.partitions == 2)
        await_gone(quick, name, "hanging members")
        assert "an operator has removed it" in barnabas(quick.bootstrap, "groups", "explain", name).stdout
    finally:
        hanging.close()
        if other is not None:
            other.close()


def test_a_rebalance_storm(quick: BrokerProcess, name: str, wait_until: Wait) -> None:
    make_topic(quick, name, partitions=2)
    stays = Member(quick, name, name)
    try:
        for _ in range(3):
            wait_until(lambda: stays.partitions == 2)
            comes = Member(quick, name, name)
            wait_until(lambda: stays.partitions == 1)
            comes.close()
        found = await_finding(quick, name, "rebalance storms")
        assert "left or were thrown out" in found["what"]
        assert "because" in run(quick, found)
    finally:
        stays.close()
    await_gone(quick, name, "rebalance storms")  # nobody is there any more


def test_no_alarm(quick: BrokerProcess, name: str, wait_until: Wait) -> None:
    """A group that stopped when it had read all, one that reads a quiet topic, one that stopped in the middle."""
    make_topic(quick, name, records=5)
    done, middle, lives = f"{name}-done", f"{name}-middle", f"{name}-lives"
    for group, offset in ((done, 5), (middle, 3), (lives, 5)):
        commit(quick, group, name, offset)
    member = Member(quick, lives, name, enable_auto_commit=True, auto_commit_interval_ms=100)
    try:
        wait_until(lambda: member.partitions == 1)
        time.sleep(2.5)  # more than --stalled-after, and ten looks of the broker
        rows = doctor(quick)["findings"]
    finally:
        member.close()
    assert [row for row in rows if row["severity"] != "note" and name in row["where"]] == []
    stopped = [row for row in rows if row["check"] == "stopped groups"]
    assert [row["severity"] for row in stopped] == ["note"]


def test_offsets_that_expire(make_broker: Callable[..., BrokerProcess], name: str) -> None:
    broker = make_broker(
        "offsets.lag.check.interval.ms=250",
        "offsets.retention.minutes=1",
        "offsets.retention.check.interval.ms=600000",
    )
    make_topic(broker, name, records=3)
    commit(broker, name, name, 1)
    found = await_finding(broker, name, "expiring offsets")
    assert found["severity"] == "warning"
    words = shlex.split(found["command"])
    assert words[:2] == ["barnabas", "start"]
    assert words[-2:] == ["--set", "offsets.retention.minutes=2"]
    broker.stop()
    broker.settings = [broker.settings[0], "offsets.retention.minutes=20160"]
    broker.start()
    assert of(broker, name, "expiring offsets") is None


def test_a_full_disk(make_broker: Callable[..., BrokerProcess], tmp_path: Path, name: str, wait_until: Wait) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        # Batches of 100 KB leave about 50 KB: the tree, which is on this disk as well, needs a page for the change.
        words = ["mount", "-t", "tmpfs", "-o", "size=12336k", "tmpfs", str(disk)]
        forked.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    try:
        broker = make_broker("log.retention.check.interval.ms=500", "log.segment.bytes=1048576", folder=disk)
        try:
            admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
            admin.create_topics([NewTopic(name, 1, 1, topic_configs={"file.delete.delay.ms": "0"})])
            admin.close()
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap, retries=0, request_timeout_ms=5_000)
            failed = 0
            for _ in range(200):
                try:
                    producer.send(name, bytes(100_000)).get(200)
                except Exception:
                    failed += 1
                    if failed > 2:
                        break
            assert failed
            rows = {row["check"]: row for row in doctor(broker)["findings"]}
            assert rows["logs"]["severity"] == "error"
            assert "No space left on device" in rows["logs"]["what"]
            assert "disks" in rows
            assert "retention.bytes = -1" in run(broker, rows["logs"], "--docs")  # it shows what could be less
            assert doctor(broker)["errors"]
            done = barnabas(broker.bootstrap, "configs", "set", "topic", name, "retention.bytes=5000000")
            assert done.returncode == 0, done
            wait_until(lambda: not {"logs", "disks"} & {row["check"] for row in doctor(broker)["findings"]}, 40, 0.5)
            producer.send(name, b"more").get(200)
            producer.close()
        finally:
            broker.stop()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


HOSTILE_NAMES = ["-x", "--help", "--", "it's", "a b", '"$HOME"', "`id`", "ünï☃", "a\n    echo b", "\x1b[31mred'\\"]


def commands(broker: BrokerProcess, check: str) -> dict[str, str]:
    """What a check prints for each group."""
    rows = [row for row in doctor(broker)["findings"] if row["check"] == check]
    return {row["where"].removeprefix("group "): row["command"] for row in rows}


def test_commands_work_as_printed_whatever_the_groups_are_called(
    quick: BrokerProcess, wait_until: Callable[..., None]
) -> None:
    admin, check = KafkaAdminClient(bootstrap_servers=quick.bootstrap), "commits past the end"
    topics = {group: f"-t{number}" for number, group in enumerate(HOSTILE_NAMES)}
    for group, topic in topics.items():
        make_topic(quick, topic, records=3)
        commit(quick, group, topic, 99)
    wait_until(lambda: topics.keys() <= commands(quick, check).keys())
    printed = commands(quick, check)
    page = barnabas(quick.bootstrap, "doctor", "--limit", "1000").stdout
    assert page.replace("\n", "").isprintable()
    program = f'barnabas() {{ {shlex.quote(sys.executable)} -m barnabas "$@"; }}'
    for group in topics:
        assert printed[group].isprintable()  # on one line, and nothing that a terminal obeys
        agreed = printed[group].replace(" --topic", " --yes --topic", 1)
        done = subprocess.run(["bash", "-c", f"{program}; {agreed}"], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, (printed[group], done)
        assert [one.offset for one in admin.list_group_offsets(group)[group].values()] == [3]
    admin.close()
    wait_until(lambda: not topics.keys() & commands(quick, check).keys())
