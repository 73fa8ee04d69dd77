"""`barnabas.testing` and its pytest plugin, as a suite of somebody else's uses them."""

import asyncio
import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.http.lives import SNAPSHOT
from barnabas.broker.http.schemas import problem
from barnabas.runtime import directory_copies, temporary
from barnabas.testing import Barnabas, CommandError, Snapshot, StartError, Topic, WaitTimeoutError
from confluent_kafka import Producer
from kafka import KafkaConsumer
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from waiting import until_said


@pytest.fixture(scope="module")
def kafka() -> Iterator[Barnabas]:
    with Barnabas() as kafka:
        yield kafka


def test_records_are_written_and_read(kafka: Barnabas) -> None:
    topic = kafka.topic("orders", partitions=2)
    assert topic.name.startswith("orders-")
    assert topic.values() == []
    topic.produce(["a", "b"], key="k", partition=1, timestamp_ms=5, headers=[("h", b"1")])
    assert topic.values() == ["a", "b"]
    first = topic.wait_records(2, timeout=50)[0]
    assert (first.partition, first.offset, first.timestamp_ms, first.key) == (1, 0, 5, b"k")
    assert first.headers == (("h", b"1"),)
    with pytest.raises(WaitTimeoutError, match="waited for 3 records: 2 came within"):
        topic.wait_records(3, timeout=0.2)
    assert kafka.topic("exact", unique=False).name == "exact"


def test_a_topic_has_the_settings_that_it_is_given(kafka: Barnabas) -> None:
    topic = kafka.topic("short", config={"retention.ms": "1000"})
    topic.produce(["old"], timestamp_ms=1)
    deadline = time.monotonic() + 200
    while topic.values():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_group_is_committed_waited_for_and_loses_a_member(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("billing")
    assert (group.offsets, group.state, group.generation, group.members) == ({}, "Dead", 0, [])
    topic.produce(["a", "b", "c"])
    group.commit(topic, 0, 1)
    assert group.offsets == {(topic.name, 0): 1}
    with pytest.raises(WaitTimeoutError, match="was last seen Empty with 0 members, generation 0, 2 records behind"):
        group.wait_lag(0, timeout=0.2)
    consumer = KafkaConsumer(topic.name, bootstrap_servers=kafka.bootstrap, group_id=group.name, client_id="billing-1")
    try:
        assert next(consumer).value == b"b"
        assert next(consumer).value == b"c"
        consumer.commit()
        group.wait_stable(members=1)
        group.wait_lag(0)
        generation = group.generation
        assert generation >= 1
        expired = group.expire_member(0)
        assert expired.startswith("billing-1")
        assert expired not in group.members
        consumer.poll(1000)
    finally:
        consumer.close()
    joins = kafka.requests("JoinGroup", client="billing-1")
    assert joins[0]["groups"] == [group.name]
    assert joins[0]["answer"]["error_code"] in (0, 79)


def test_the_third_commit_of_one_group_fails(kafka: Barnabas) -> None:
    topic, group, other = kafka.topic("orders"), kafka.group("billing"), kafka.group("other")
    with kafka.fail("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", nth=3, times=1, group=group) as fault:
        group.commit(topic, 0, 1)
        other.commit(topic, 0, 1)
        group.commit(topic, 0, 2)
        with pytest.raises(KafkaError):
            group.commit(topic, 0, 3)
        assert fault.fired == 1
        group.commit(topic, 0, 4)
    assert fault.fired == 1
    assert group.offsets == {(topic.name, 0): 4}
    assert other.offsets == {(topic.name, 0): 1}
    with pytest.raises(CommandError, match="Kafka has no error 'NONSENSE'"):
        kafka.fail("OffsetCommit", error="NONSENSE")


def test_eight_days_pass_in_a_moment(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders", config={"retention.ms": "86400000"}), kafka.group("billing")
    kept = kafka.topic("kept")
    kept.produce(["a"])
    topic.produce(["old"])
    group.commit(kept, 0, 1)
    busy = kafka.group("busy")
    consumer = KafkaConsumer(kept.name, bootstrap_servers=kafka.bootstrap, group_id=busy.name, client_id="busy-1")
    try:
        while not consumer.assignment():
            consumer.poll(100)
        busy.wait_stable(members=1)
        before_ms = kafka.clock.now_ms
        kafka.clock.advance(days=8, hours=1)
        assert kafka.clock.now_ms - before_ms >= 8 * 86_400_000 + 3_600_000
        assert group.offsets == {}, "offsets.retention.minutes is seven days"
        assert topic.values() == []
        assert kept.values() == ["a"]
        assert len(busy.members) == 1
        consumer.poll(100)
        kafka.clock.advance(sessions="expire")
        assert busy.members == []
    finally:
        consumer.close()


def test_the_clock_stands_still(kafka: Barnabas) -> None:
    kafka.clock.freeze()
    at_ms = kafka.clock.now_ms
    time.sleep(0.02)
    assert kafka.clock.now_ms == at_ms
    kafka.clock.advance(hours=2)
    assert kafka.clock.now_ms == at_ms + 7_200_000
    kafka.clock.resume()
    time.sleep(0.02)
    assert at_ms + 7_200_000 < kafka.clock.now_ms < at_ms + 7_200_000 + 60_000
    with pytest.raises(ValueError, match="time does not go back"):
        kafka.clock.advance(seconds=-1)


def test_a_transaction_times_out_by_the_clock(kafka: Barnabas) -> None:
    from confluent_kafka import KafkaException, Producer

    topic = kafka.topic("orders")
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic.name, "transaction.timeout.ms": 60_000}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b"a")
    producer.flush()
    kafka.clock.advance(minutes=2)
    with pytest.raises(KafkaException):
        producer.commit_transaction()


def produced(kafka: Barnabas, topic: Topic, value: str) -> str | None:
    """Why a record is not taken; None: it is."""
    told: list[Any] = []
    settings = {"bootstrap.servers": kafka.bootstrap, "retries": 0, "message.timeout.ms": 5_000, "linger.ms": 0}
    producer = Producer(settings)
    producer.produce(topic.name, value, on_delivery=lambda error, message: told.append(error))
    producer.flush(200)
    (error,) = told
    return None if error is None else str(error.name())


def produced_at_last(kafka: Barnabas, topic: Topic, value: str, deadline: float) -> bool:
    while (why := produced(kafka, topic, value)) is not None:
        assert time.monotonic() < deadline, why
    return True


def test_half_of_an_answer_is_sent(kafka: Barnabas) -> None:
    request = struct.pack(">ihhih4s", 14, 18, 0, 7, 4, b"half")
    host, _, port = kafka.bootstrap.rpartition(":")
    with kafka.half_answer("ApiVersions", client="half") as fault:
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(request)
            received = b"".join(iter(lambda: connection.recv(65_536), b""))
        (size,) = struct.unpack_from(">i", received)
        assert len(received) == (size + 4) // 2
        assert fault.fired == 1
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(request)
            assert len(connection.recv(65_536)) == size + 4
    assert kafka.requests(client="half")[-1]["fate"] == "answered"


def test_clients_hear_of_the_cluster_as_it_was(kafka: Barnabas) -> None:
    old = kafka.topic("old", partitions=2)
    with kafka.stale_metadata(client="stale") as fault:
        new = kafka.topic("new")
        consumer = kafka.consumer(client_id="stale")
        try:
            found = consumer.topics()
            assert old.name in found
            assert new.name not in found
            assert consumer.partitions_for_topic(old.name) == {0, 1}
        finally:
            consumer.close()
        assert fault.fired >= 1
        assert new.values() == []  # others hear of it
    for body in ({"api": "Fetch"}, {"error": "UNKNOWN_SERVER_ERROR"}):
        with pytest.raises(CommandError, match=r"effect stale_metadata|error is given for effect error"):
            kafka.rule(effect="stale_metadata", **body)


def test_a_full_disk_takes_nothing_and_loses_nothing(kafka: Barnabas) -> None:
    topic, other = kafka.topic("orders"), kafka.topic("other")
    assert produced(kafka, topic, "a") is None
    with kafka.disk_full(topic=topic, partition=0) as fault:
        assert produced(kafka, topic, "b") == "KAFKA_STORAGE_ERROR"
        assert fault.fired >= 1
        assert produced(kafka, other, "a") is None
    with kafka.disk_full() as fault:
        assert produced(kafka, other, "b") == "KAFKA_STORAGE_ERROR"
        assert other.values() == ["a"]
    deadline = time.monotonic() + 200
    assert produced_at_last(kafka, topic, "c", deadline)  # for some seconds the directory is watched
    assert topic.values() == ["a", "c"]
    for fields in ({"api": "Produce"}, {"client": "c"}, {"group": "g"}):
        with pytest.raises(CommandError, match="is for the broker itself: it goes without"):
            kafka.disk_full(**fields)
    with pytest.raises(CommandError, match="wants the topic"):
        kafka.rule(effect="log_failed")


def test_it_is_put_back_while_its_machine_fails(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    mark, pid = kafka.snapshot(), kafka.processes[0].pid
    topic.produce(["b"])
    for effect in ("disk_full", "tree_unreachable", "isolated"):
        with kafka.rule(effect=effect):
            kafka.restore(mark)
            again = kafka.snapshot()
        kafka.restore(again)
        assert topic.values() == ["a"]
    assert kafka.processes[0].pid == pid


def test_the_log_says_one_line_of_a_restore() -> None:
    """Until 2026-11-29 it said ten: how the broker ended and started, between the lines of two tests."""
    with Barnabas() as kafka:
        mark = kafka.snapshot()
        until_said("life 2 of this broker serves: made the snapshot ", kafka.processes[0].log)
        before = kafka.log()
        kafka.restore(mark)
        after = until_said("life 3 of this broker serves: restored ", kafka.processes[0].log)[len(before) :]
        said = after.splitlines()
        assert len(said) == 1, said
        assert "life 3" in said[0]
        kafka.topic("orders")
        until_said("1 partition created", kafka.processes[0].log)


def test_a_log_that_failed_is_back_with_the_next_start() -> None:
    with Barnabas() as kafka:
        topic, other = kafka.topic("orders"), kafka.topic("other")
        assert produced(kafka, topic, "a") is None
        with kafka.log_failed(topic) as fault:
            assert produced(kafka, topic, "b") == "KAFKA_STORAGE_ERROR"
        assert fault.fired >= 1
        assert produced(kafka, topic, "b") is not None
        assert produced(kafka, other, "a") is None
        kafka.restart()
        assert topic.values() == ["a"]
        assert produced(kafka, topic, "b") is None


def test_a_tree_that_does_not_answer_answers_again(kafka: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic("orders")
    with kafka.tree_unreachable() as fault:
        with monkeypatch.context() as patch:
            patch.setattr("barnabas.testing.wire.GIVES_UP_AFTER_S", 2.0)
            with pytest.raises(KafkaError):
                kafka.topic("later")
        assert fault.fired >= 1
        kafka.ask("GET", "/v1/status")
    deadline = time.monotonic() + 200
    assert produced_at_last(kafka, topic, "a", deadline)
    assert kafka.topic("later").values() == []


SHORT_FORMS: dict[str, dict[str, int]] = {
    "drop_request": {},
    "drop_answer": {},
    "cut": {},
    "half_answer": {},
    "delay": {"ms": 7},
    "throttle": {"ms": 7},
}


@pytest.mark.parametrize("effect", SHORT_FORMS)
def test_the_short_form_of_a_fault_has_the_effect_of_its_name(kafka: Barnabas, effect: str) -> None:
    asked = SHORT_FORMS[effect]
    with getattr(kafka, effect)("Produce", client="nobody", **asked):
        (rule,) = kafka.ask("GET", "/v1/control/rules")["rules"]
    expected = {"effect": effect, "api": "Produce", "client": "nobody", **asked}
    assert {name: rule[name] for name in expected} == expected


def test_a_broker_that_is_cut_off_leads_no_longer_and_comes_back() -> None:
    with Barnabas(brokers=3, config={"coordination.session.timeout.ms": "2000"}) as kafka:
        topic, group = kafka.topic("orders"), kafka.group("billing")
        topic.produce(["a"])
        group.commit(topic, 0, 1)
        leader, coordinator = kafka.leader_of(topic, 0), kafka.coordinator_of(group)
        assert leader is not None
        with kafka.delay("Produce", ms=1, role="leader", topic=topic) as fault:
            topic.produce(["b"])
            rules = {node: kafka.ask("GET", "/v1/control/rules", node_id=node)["rules"] for node in kafka.running}
            assert {node: rule["fired"] for node, (rule,) in rules.items()} == {
                node: int(node == leader) for node in kafka.running
            }
        with kafka.fail("OffsetFetch", error="NOT_COORDINATOR", role="controller", times=0):
            pass
        with kafka.delay("OffsetCommit", ms=1, role="coordinator") as fault:
            group.commit(topic, 0, 2)
            assert fault.fired == 1
        others = [node for node in kafka.running if node != leader]
        with kafka.isolate(leader) as fault:
            deadline = time.monotonic() + 200
            while kafka.leader_of(topic, 0) not in others:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert produced_at_last(kafka, topic, "c", deadline)
            assert fault.fired >= 1

        topic.wait(in_sync=3, timeout=50)
        assert topic.values() == ["a", "b", "c"]
        assert kafka.coordinator_of(group) in kafka.processes
        assert coordinator in kafka.processes


def test_a_broker_that_stood_still_is_not_asked_what_it_may_not_know() -> None:
    with Barnabas(brokers=2) as kafka:

        def asked() -> int:
            kafka.wire.metadata(None, 10.0)
            number = int(kafka.ask("GET", "/v1/status")["node_id"])
            assert kafka.requests("Metadata")[-1]["node_id"] == number
            return number

        assert asked() == 0
        kafka.pause(0)
        kafka.resume(0)
        assert asked() == 1
        kafka.isolate(1).remove()
        assert asked() in (0, 1)  # no other is there
        kafka.restart(0)
        assert asked() == 0


def test_a_broker_that_is_away_is_back_on_its_port_with_its_data() -> None:
    with Barnabas() as kafka:
        bootstrap, topic = kafka.bootstrap, kafka.topic("orders")
        topic.produce(["a"])
        with kafka.down():
            assert not kafka.processes[0].runs
        assert kafka.bootstrap == bootstrap
        assert topic.values() == ["a"]
        kafka.restart()
        assert topic.values() == ["a"]
        kafka.pause()
        kafka.resume()
        topic.produce(["b"])
        assert topic.values() == ["a", "b"]
        folder = kafka.folder
    assert not folder.exists()


def test_nobody_waits_for_a_broker_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two wait for it, and do not say meanwhile that they serve."""
    kafka = Barnabas(3)
    begin = kafka.processes[2].begin

    def begin_and_end(*words: Any, **more: Any) -> None:
        begin(*words, **more)
        assert kafka.processes[2].pid is not None
        os.kill(kafka.processes[2].pid, signal.SIGKILL)

    monkeypatch.setattr(kafka.processes[2], "begin", begin_and_end)
    with pytest.raises(StartError, match=r"broker 2 did not start \(exit code -9\)"):
        kafka.start()
    assert kafka.running == []


def test_a_broker_that_does_not_start_leaves_the_others_as_they_are() -> None:
    """Until 2026-11 they ran, but nobody knew where their HTTP API was."""
    with Barnabas(3) as kafka:
        meta = kafka.processes[0].data / "meta.properties"
        text = meta.read_text()
        with pytest.raises(StartError, match="broker 0 did not start"), kafka.down():
            meta.write_text(text.replace("node.id=0", "node.id=7"))
        assert kafka.running == [1, 2]
        for node_id in kafka.running:
            kafka.ask("GET", "/v1/status", node_id=node_id)
        meta.write_text(text)
        kafka.restart(0)
        topic = kafka.topic("orders")
        topic.produce(["a"])
        assert topic.values() == ["a"]


@pytest.mark.parametrize("brokers", [1, 3])
def test_everything_is_put_back(brokers: int) -> None:
    with Barnabas(brokers, {"log.segment.bytes": "1048576"}) as kafka:
        topic, group = kafka.topic("orders"), kafka.group("billing")
        topic.produce([f"{number} {'x' * 500_000}" for number in range(5)])
        group.commit(topic, 0, 2)
        kafka.clock.advance(hours=1)
        before_ms, bootstrap = kafka.clock.now_ms, kafka.bootstrap
        mark = kafka.snapshot()
        for _ in range(2):
            topic.produce(["later"])
            group.commit(topic, 0, 6)
            other = kafka.topic("other")
            kafka.clock.advance(days=3)
            kafka.restore(mark)
            assert kafka.bootstrap == bootstrap
            assert [str(value)[0] for value in topic.values()] == ["0", "1", "2", "3", "4"]
            assert group.offsets == {(topic.name, 0): 2}
            assert before_ms <= kafka.clock.now_ms < before_ms + 86_400_000
            with pytest.raises(CommandError, match="there is no topic"):
                kafka.leader_of(other, 0)
        with kafka.fork() as copy:
            assert copy.bootstrap != kafka.bootstrap
            there = Topic(copy, topic.name)
            there.produce(["of the copy"])
            assert len(there.values()) == 6
            assert len(topic.values()) == 5
        folder = mark.folder
    assert not folder.exists()


def test_the_connection_of_a_restore_goes_on() -> None:
    with Barnabas() as kafka, closing(HTTPConnection(kafka.processes[0].http, timeout=200)) as connection:
        body = json.dumps({"folder": str(kafka.snapshot().folder)})
        sizes = []
        for number in range(60):
            kafka.topic("orders")
            connection.request("POST", "/v1/control/restore", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["life"]) == (200, number + 3)
            own = connection.sock
            assert own is not None, "it stays open"
            connection.request("GET", "/v1/topics")
            assert "orders" not in connection.getresponse().read().decode()
            assert connection.sock is own
            sizes.append(_resident_mb(kafka))
        assert sizes[-1] < sizes[5] + 12, "no life is kept: each has a third of a megabyte"


def _resident_mb(kafka: Barnabas) -> float:
    status = Path(f"/proc/{kafka.processes[0].pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000


def test_it_is_put_back_in_its_process(tmp_path: Path) -> None:
    with Barnabas() as kafka:
        topic, group = kafka.topic("orders"), kafka.group("billing")
        topic.produce(["a"])
        consumer = kafka.consumer(group_id=group.name, auto_offset_reset="earliest")
        consumer.subscribe([topic.name])
        try:
            assert next(consumer).value == b"a"
            pid = kafka.processes[0].pid
            fault = kafka.delay("Fetch", ms=1)
            mark = kafka.snapshot()
            open_files = []
            for _ in range(40):
                topic.produce(["b"])
                kafka.restore(mark)
                open_files.append(len(os.listdir(f"/proc/{pid}/fd")) if os.path.isdir("/proc") else 0)
            assert open_files[-1] <= open_files[0] + 3
            assert kafka.processes[0].pid == pid
            topic.produce(["c"])
            assert next(consumer).value == b"c", "its connections were cut, and it goes on"
            assert fault.fired > 0, "faults go on"
            assert kafka.requests("Fetch")
            with Barnabas() as other:
                foreign = other.snapshot()
                with pytest.raises(CommandError, match="is of another broker"):
                    kafka.restore(foreign)
            half = tmp_path / "half"
            shutil.copytree(mark.folder, half)
            (half / "0" / "meta.properties").unlink()
            for body, why in (
                ({"folder": str(half)}, "not the folder of a whole snapshot"),
                ({"folder": str(tmp_path)}, "not the folder of a whole snapshot"),
                ({"folder": "relative"}, "has no absolute path"),
            ):
                with pytest.raises(CommandError, match=why):
                    kafka.ask("POST", "/v1/control/restore", body=body)
            inside = {"folder": str(kafka.processes[0].data / "snapshot")}
            for body, why in (
                ({"folder": str(tmp_path)}, "is there already"),
                ({"folder": "relative"}, "no absolute"),
                (inside, "is in a data directory"),
            ):
                with pytest.raises(CommandError, match=why):
                    kafka.ask("POST", "/v1/control/snapshots", body=body)
            with pytest.raises(CommandError, match="Look after that file and its disk, or name another folder"):
                kafka.ask("POST", "/v1/control/snapshots", body={"folder": "/proc/no/such/place"})
            with closing(HTTPConnection(kafka.processes[0].http, timeout=200)) as connection:
                for path, body in (("restore", {"folder": str(mark.folder)}), ("clock", {})):  # by one connection
                    headers = {"Content-Type": "application/json"}
                    connection.request("POST", f"/v1/control/{path}", json.dumps(body), headers)
                    answer = connection.getresponse()
                    assert answer.status == 200, answer.read()
                    assert answer.read()
            topic.produce(["c"])
            made = kafka.ask("POST", "/v1/control/snapshots", body={})
            assert problem(SNAPSHOT, made) is None
            own = Path(made["folder"])
            assert kafka.ask("POST", "/v1/control/restore", body={"folder": str(own)})["folder"] == str(own)
            assert topic.values() == ["a", "c"]
            kafka.kill()
            kafka.restore(mark)  # into the folder of a process that has ended
            assert topic.values() == ["a"]
            kafka.restore(mark)
            assert topic.values() == ["a"]
            kafka.processes[0].stop()
        finally:
            consumer.close()


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_snapshot_that_is_not_of_these_brokers_ends_none(brokers: int, tmp_path: Path) -> None:
    """Until 2026-11 all their data was removed first if one of them did not run."""
    with Barnabas(brokers) as other, Barnabas(brokers) as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a"])
        mark = kafka.snapshot()
        topic.produce(["b"])
        foreign = replace(mark, folder=other.snapshot().folder)
        half = replace(mark, folder=tmp_path / "half")
        shutil.copytree(mark.folder, half.folder)
        next(half.folder.glob("0/*-0/*.log")).unlink()
        kafka.kill()
        running = kafka.running
        for wrong, why in (
            (foreign, "is of other brokers"),
            (half, "is not the folder of a whole snapshot"),
            (replace(mark, folder=tmp_path / "gone"), "is not the folder of a whole snapshot"),
        ):
            with pytest.raises(CommandError, match=why):
                kafka.restore(wrong)
        assert kafka.running == running
        kafka.restart()
        assert topic.wait_records(2, timeout=50)[-1].text == "b"
        kafka.kill()
        kafka.restore(mark)
        assert topic.values() == ["a"]


@pytest.mark.parametrize("refusing", [0, 1])
def test_what_one_broker_refuses_the_others_answer_at_once(refusing: int, tmp_path: Path) -> None:
    """Until 2026-12-01 the others answered after 10 s, and did not say why."""
    with Barnabas(brokers=3) as kafka:
        mark = kafka.snapshot()
        link = kafka.processes[refusing].data / "link"
        link.symlink_to(tmp_path)

        def told(path: str, folder: Path) -> list[str]:
            def tell(node_id: int) -> str:
                body = {"folder": str(folder), "brokers": [0, 1, 2]}
                with pytest.raises(CommandError) as refused:
                    kafka.ask("POST", path, body=body, node_id=node_id)
                return str(refused.value)

            with ThreadPoolExecutor(3) as threads:
                return list(threads.map(tell, range(3)))

        begin = time.monotonic()
        for answers in (told("/v1/control/restore", mark.folder), told("/v1/control/snapshots", tmp_path / "new")):
            for node_id, said in enumerate(answers):
                assert f"{link} is a link to a folder" in said
                assert said.startswith(f"broker {refusing} refuses: ") == (node_id != refusing)
        assert time.monotonic() - begin < 5
        link.unlink()
        kafka.restore(mark)
        topic = kafka.topic("orders")
        topic.produce(["a"])
        link.symlink_to(tmp_path)
        with pytest.raises(CommandError, match="is a link to a folder"):
            kafka.restore(mark)
        link.unlink()
        kafka.restore(mark)
        with pytest.raises(UnknownTopicOrPartitionError):
            topic.values()


def test_a_copy_that_finds_no_room_costs_nothing(kafka: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-11 no broker ran after it, and data was lost."""
    topic = kafka.topic("orders")
    topic.produce(["a"])
    mark = kafka.snapshot()
    topic.produce(["b"])

    def full(source: Path, target: Path, **_: Any) -> None:
        target.mkdir(parents=True, exist_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    before = set(kafka.folder.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(directory_copies, "copy", full)
        for change in (kafka.snapshot, lambda: kafka.restore(mark)):
            kafka.kill()
            with pytest.raises(CommandError, match="No space left on device"):
                change()
            assert kafka.running == [0]
            assert topic.values() == ["a", "b"]
    assert set(kafka.folder.iterdir()) == before
    kafka.kill()
    kafka.restore(mark)
    assert topic.values() == ["a"]


def test_no_snapshot_is_in_a_data_directory(kafka: Barnabas, tmp_path: Path) -> None:
    """Until 2026-11 a path that led there by a link was taken, and a restore removed the snapshot."""
    data = kafka.processes[0].data
    link = tmp_path / "link"
    link.symlink_to(data)
    mark = kafka.snapshot()
    for folder in (data / "in-0", data.parent / "no" / ".." / data.name / "in-0", link / "in-0"):
        with pytest.raises(CommandError, match="is in a data directory"):
            kafka.ask("POST", "/v1/control/snapshots", body={"folder": str(folder)})
    shutil.copytree(mark.folder, data / "in-0")
    with pytest.raises(CommandError, match="is in a data directory"):
        kafka.ask("POST", "/v1/control/restore", body={"folder": str(link / "in-0")})
    shutil.rmtree(data / "in-0")


def test_a_folder_that_no_disk_has_ends_no_broker(kafka: Barnabas, tmp_path: Path) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    (tmp_path / "file").touch()
    for folder in ("/tmp/a\0b", f"/tmp/{'x' * 300}", f"{tmp_path}/file/here"):
        for path in ("snapshots", "restore"):
            with pytest.raises(CommandError) as refused:
                kafka.ask("POST", f"/v1/control/{path}", body={"folder": folder})
            assert refused.value.name == "SNAPSHOT_FAILED"
    assert topic.values() == ["a"]


CLOCKS = ("Infinity", "1e30", "1000000000000000000000")
NOTES = [f'{{"files": [{{}}], "clock_stands_at_ms": null, "clock_moved_ms": {number}}}' for number in CLOCKS]
FILES = ("true", "[1]", "[{}]", '[{"../0/meta.properties": 90}]', '[{"/etc/hostname": 1}]')
NOTES += [f'{{"files": {text}, "clock_stands_at_ms": null, "clock_moved_ms": 0}}' for text in FILES]
NOTES += ["[" * 100_000, "[]", "{}", '{"directories": 1, "clock_stands_at_ms": null, "clock_moved_ms": 0}']
DAMAGES: list[tuple[str, bytes | None]] = [
    *(("snapshot.json", text.encode()) for text in NOTES),
    ("0/meta.properties", b"\xff" * 90),
    ("0/coordination.sqlite", b"x" * 5_000),
    ("0/coordination.sqlite", None),
    ("0/replication-offset-checkpoint", None),
    ("0/replication-offset-checkpoint", b""),
]


@pytest.fixture(scope="module")
def noted(kafka: Barnabas) -> Snapshot:
    return kafka.snapshot()


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_a_damaged_snapshot_is_refused_and_nothing_is_lost(
    kafka: Barnabas, noted: Snapshot, tmp_path: Path, number: int
) -> None:
    topic = kafka.topic("orders")
    topic.produce(["a"])
    name, content = DAMAGES[number]
    half = tmp_path / "half"
    shutil.copytree(noted.folder, half)
    (half / name).unlink()
    if content is not None:
        (half / name).write_bytes(content)
    with pytest.raises(CommandError, match="is not the folder of a whole snapshot"):
        kafka.ask("POST", "/v1/control/restore", body={"folder": str(half)})
    assert topic.values() == ["a"]


def test_a_pipe_in_a_snapshot_holds_nobody_up(kafka: Barnabas, noted: Snapshot, tmp_path: Path) -> None:
    for name in ("snapshot.json", "0/meta.properties"):
        odd = tmp_path / name.replace("/", " ")
        shutil.copytree(noted.folder, odd)
        (odd / name).unlink()
        os.mkfifo(odd / name)
        with pytest.raises(CommandError, match="it is no file of a snapshot"):
            kafka.ask("POST", "/v1/control/restore", body={"folder": str(odd)})


def test_a_snapshot_on_which_no_broker_starts_changes_nothing(kafka: Barnabas, tmp_path: Path) -> None:
    """Until 2026-11 the process ended, and its data were those that no broker can start with."""
    topic = kafka.topic("orders")
    topic.produce(["a"])
    mark = kafka.snapshot()
    topic.produce(["b"])
    kafka.clock.advance(days=1)
    moved_ms = kafka.ask("GET", "/v1/control/clock")["moved_ms"]
    odd = tmp_path / "odd"
    shutil.copytree(mark.folder, odd)
    checkpoint = odd / "0" / "replication-offset-checkpoint"
    checkpoint.write_bytes(b"x" * checkpoint.stat().st_size)
    (metadata,) = odd.glob(f"0/{topic.name}-0/partition.metadata")
    metadata.write_bytes(b"x" * metadata.stat().st_size)
    pid = kafka.processes[0].pid
    for _ in range(2):
        with pytest.raises(CommandError, match=r"no broker can start with .*, so all is as it was: "):
            kafka.ask("POST", "/v1/control/restore", body={"folder": str(odd)})
        assert topic.values() == ["a", "b"]
        assert kafka.ask("GET", "/v1/control/clock")["moved_ms"] == moved_ms
    kafka.restore(mark)
    assert topic.values() == ["a"]
    assert kafka.processes[0].pid == pid


def test_a_clock_that_stood_stands_again() -> None:
    with Barnabas() as kafka:
        kafka.clock.freeze()
        stands_ms = kafka.clock.now_ms
        mark = kafka.snapshot()
        assert kafka.clock.now_ms == stands_ms
        kafka.clock.advance(hours=1)
        kafka.clock.resume()
        kafka.restore(mark)
        assert kafka.clock.now_ms == stands_ms


def test_a_broker_whose_tree_is_elsewhere_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "snapshot-1").mkdir()
    (tmp_path / "notes.sqlite").write_text("of somebody else")
    with Barnabas(config={"coordination.path": str(tmp_path / "tree.sqlite")}) as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a"])
        mark = kafka.snapshot()
        topic.produce(["b"])
        later = kafka.topic("later")
        kafka.restore(mark)
        assert topic.values() == ["a"]
        with pytest.raises(CommandError, match="there is no topic"):
            kafka.leader_of(later, 0)
    assert (tmp_path / "snapshot-1").is_dir()
    assert (tmp_path / "notes.sqlite").read_text() == "of somebody else"


def test_three_brokers() -> None:
    with Barnabas(brokers=3) as kafka:
        topic, group = kafka.topic("orders", partitions=3), kafka.group("billing")
        topic.produce(["a"], partition=0)
        group.commit(topic, 0, 1)
        leader = kafka.leader_of(topic, 0)
        assert leader in kafka.processes
        assert kafka.coordinator_of(group) in kafka.processes
        with kafka.delay("Metadata", ms=1) as fault:
            assert topic.values() == ["a"]
            assert fault.fired >= 1
        assert leader is not None
        with kafka.down(leader):
            assert topic.wait_records(1, timeout=50)[0].text == "a"
            group.wait(lag=0, timeout=50)


def test_it_works_in_a_task() -> None:
    async def run() -> str:
        async with Barnabas() as kafka:
            return kafka.cluster_id

    assert asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.001, 0.05])
def test_nothing_is_left_of_a_start_that_was_cancelled(seconds: float) -> None:
    """Until 2026-11-30 the brokers came all the same, and stayed as long as the process."""

    kafka = Barnabas(3)

    async def run() -> None:
        async with kafka:
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(run(), seconds))
    assert (kafka.running, kafka.folder.exists()) == ([], False)


def test_a_forked_child_ends_no_broker_of_its_parent(kafka: Barnabas) -> None:
    """Until 2026-11-30 it removed the data of brokers that ran."""
    topic = kafka.topic("orders")
    topic.produce(["a"])
    child = os.fork()
    if child == 0:
        kafka.stop()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert kafka.folder.exists()
    topic.produce(["b"])
    assert topic.values() == ["a", "b"]


def test_a_task_waits_for_members_that_live_in_its_loop(kafka: Barnabas) -> None:
    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        topic, group = await asyncio.to_thread(kafka.topic), kafka.group("billing")
        consumer = AIOKafkaConsumer(topic.name, bootstrap_servers=kafka.bootstrap, group_id=group.name)
        starting = asyncio.ensure_future(consumer.start())
        try:
            await asyncio.to_thread(group.wait_stable, members=1, timeout=50)
            await starting
        finally:
            await consumer.stop()

    asyncio.run(run())


def test_what_a_test_gets_wrong_is_said_at_once(kafka: Barnabas) -> None:
    """Until 2026-11-30 a text was taken for as many values as it has characters; who had stopped waited 30 s."""
    topic, group = kafka.topic("orders", partitions=2), kafka.group("billing")
    with pytest.raises(TypeError, match=r"values are a list, also for one record: \['abc'\]"):
        topic.produce("abc")
    with pytest.raises(TypeError, match="a key, a value and that of a header is str, bytes or None, not int"):
        topic.produce([5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"headers are a list of pairs: \[\('a', 'b'\)\]"):
        topic.produce(["a"], headers={"a": "b"})  # type: ignore[arg-type]
    for is_text in (
        lambda: topic.produce(["a"], partition="0"),  # type: ignore[arg-type]
        lambda: topic.produce(["a"], timestamp_ms="5"),  # type: ignore[arg-type]
        lambda: topic.wait_records("2"),  # type: ignore[arg-type]
        lambda: group.commit(topic, "0", 7),  # type: ignore[arg-type]
        lambda: group.commit(topic, 0, "7"),  # type: ignore[arg-type]
        lambda: kafka.topic(partitions="3"),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            TypeError, match=r"(a partition|an offset|timestamp_ms|count|partitions) is an int, not str"
        ):
            is_text()
    with pytest.raises(CommandError, match=r"state is one of Empty, Ongoing, .*, not 'Complete'"):
        kafka.wait_transaction("tx", "Complete")
    with pytest.raises(IndexError, match=f"topic {topic.name} has 2 partitions, and none is 2"):
        kafka.leader_of(topic, 2)
    group.commit(topic, 0, 1)
    with pytest.raises(IndexError, match=f"the group {group.name} has 0 members, and none is 0"):
        group.expire_member(0)
    for command in (kafka.kill, kafka.restart, kafka.pause, kafka.resume, kafka.log, kafka.disk_full, kafka.isolate):
        with pytest.raises(IndexError, match="there is no broker 7, only 0"):
            command(7)
    with pytest.raises(IndexError, match="there is no broker 7, only 0"), kafka.down(7):
        pass
    with pytest.raises(RuntimeError, match="these brokers are started already"):
        kafka.start()
    assert topic.values() == []
    other = Barnabas()
    for ask in (
        lambda: other.bootstrap,
        lambda: other.fail("Fetch", error="NOT_LEADER_OR_FOLLOWER"),
        lambda: other.clock.advance(days=1),
        lambda: other.leader_of("orders", 0),
        other.requests,
        other.lint,
        other.snapshot,
        other.kill,
        other.restart,
        lambda: other.topic("orders"),
        lambda: topic_of(other).produce(["a"]),
        lambda: other.group("g").offsets,
    ):
        with pytest.raises(RuntimeError, match="these brokers are not started, or stopped"):
            ask()


def topic_of(kafka: Barnabas) -> Topic:
    return Topic(kafka, "orders")


def test_why_a_broker_does_not_start_is_said() -> None:
    with pytest.raises(StartError, match=r"Invalid value x for configuration num\.partitions"):
        Barnabas(config={"num.partitions": "x"}).start()
    with pytest.raises(ValueError, match="brokers is at least 1"):
        Barnabas(brokers=0)
    with pytest.raises(TypeError, match="brokers is an int, not str"):
        Barnabas(brokers="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"settings are a dict, as .*, not list"):
        Barnabas(config=["num.partitions=3"])  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-11-30 it was FileNotFoundError, without a word of what to do."""
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    with pytest.raises(StartError, match=r"/nowhere/at/all/barnabas-ci-\w+ cannot be made: No such .* Set TMPDIR"):
        Barnabas().start()


def test_settings_may_be_numbers() -> None:
    """Until 2026-12-01 those of a topic were AttributeError: 'int' object has no attribute 'encode'."""
    with Barnabas(config={"num.partitions": 3, "auto.create.topics.enable": False}) as kafka:
        topic = kafka.topic(config={"retention.ms": 1000, "min.cleanable.dirty.ratio": 0.1, "preallocate": False})
        rows = kafka.ask("GET", f"/v1/topics/{topic.name}")
        assert rows["count"] == 3, rows


def test_a_wait_may_be_longer_than_a_broker_lets_one_wait(kafka: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-12-01 timeout=60 was refused: the parameter timeout_ms is from 0 to 55000."""
    monkeypatch.setattr("barnabas.testing.control.POLLED_MS_MAX", 100)
    topic, group = kafka.topic("orders"), kafka.group("billing")
    for wait in (group.wait_stable, lambda timeout: topic.wait(records=1, timeout=timeout)):
        with pytest.raises(WaitTimeoutError, match=r"^not so within 0\.25 s: the"):
            wait(timeout=0.25)
    monkeypatch.undo()
    group.commit(topic, 0, 0)
    assert group.wait(state="Empty", timeout=1_000)["state"] == "Empty"


def test_a_topic_has_as_many_partitions_as_the_setting_says() -> None:
    with Barnabas(config={"num.partitions": "3"}) as kafka:
        assert [kafka.topic().partitions, kafka.topic(partitions=2).partitions] == [3, 2]
        assert kafka.topic("t").wait()["partitions"] == 3


def test_a_broker_that_has_no_room_to_say_why_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    try:
        with suppress(OSError), (tmp_path / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        with pytest.raises(StartError, match="has that disk room"):
            Barnabas().start()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


SUITE = """
import os, pytest, signal

SEEN = []

def test_one(barnabas, barnabas_topic, barnabas_group):
    barnabas.topic("orders", unique=False)
    barnabas_topic.produce(["a"])
    barnabas_group.commit(barnabas_topic, 0, 1)
    barnabas.drop_answer("Produce", client="nobody")  # the test forgets to remove it
    SEEN.append(barnabas)

def test_two(barnabas, barnabas_topic):
    assert barnabas is SEEN[0]
    barnabas.topic("orders", unique=False)  # the one of the other test is gone
    assert barnabas.ask("GET", "/v1/groups")["groups"] == []
    assert barnabas_topic.values() == []
    assert barnabas.ask("GET", "/v1/control/rules")["rules"] == []
    barnabas.kill()

def test_three(barnabas, barnabas_topic):
    barnabas_topic.produce(["a"])
    barnabas.pause()

def test_paused(barnabas, barnabas_topic):
    barnabas_topic.produce(["a"])
    barnabas.clock.freeze()
    barnabas.pause()
    os.kill(barnabas.processes[0].pid, signal.SIGKILL)

def test_killed_while_paused(barnabas, barnabas_topic):
    assert not barnabas.ask("GET", "/v1/control/clock")["stands"]
    barnabas_topic.produce(["a"])
    barnabas.stop()

def test_stopped_ünï(barnabas, barnabas_topic):
    barnabas_topic.produce(["a"])

@pytest.mark.barnabas(brokers=2)
def test_own_one(barnabas):
    assert barnabas.bootstrap.count(",") == 1
    barnabas.topic("mine", unique=False)

@pytest.mark.barnabas(brokers=2)
def test_own_two(barnabas):
    barnabas.topic("mine", unique=False)

@pytest.mark.barnabas(config={"num.partitions": "5"})
def test_four(barnabas):
    assert barnabas is not SEEN[0]
    assert barnabas.bootstrap.count(",") == 0

@pytest.mark.barnabas(fresh=False)
def test_shared_all_the_same(barnabas):
    assert barnabas is SEEN[0]

def test_in_the_cluster(barnabas_topic, barnabas_group, barnabas_cluster):
    barnabas_group.commit(barnabas_topic, 0, 0)
    assert barnabas_cluster.leader_of(barnabas_topic, 0) is not None
    assert barnabas_cluster.coordinator_of(barnabas_group) in (0, 1, 2)

def test_in_the_single_one(barnabas_topic, barnabas_cluster, barnabas):
    assert barnabas.leader_of(barnabas_topic, 0) == 0
"""


def test_the_plugin(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 passed" in done.stdout


OF_SESSION = """
import pytest
from kafka import KafkaProducer

@pytest.fixture(scope="session")
def service(barnabas_bootstrap):
    return barnabas_bootstrap

@pytest.fixture(scope="session")
def topic_of_session(service):
    producer = KafkaProducer(bootstrap_servers=service)
    producer.send("of-session", b"a").get(30)
    producer.close()

def test_one(service, topic_of_session, barnabas, barnabas_topic):
    assert service == barnabas.bootstrap
    assert [row["topic"] for row in barnabas.ask("GET", "/v1/topics")["topics"]] == [barnabas_topic.name]
    barnabas.topic("orders", unique=False)

def test_two(service, barnabas):
    assert service == barnabas.bootstrap
    barnabas.topic("orders", unique=False)

@pytest.mark.barnabas(fresh=True)
def test_own(service, barnabas):
    assert service != barnabas.bootstrap

def test_alone(service):
    assert ":" in service
"""


def test_modules_of_the_suite_are_none_of_the_broker(tmp_path: Path, with_plugin: list[str]) -> None:
    """Until 2026-11-30 it imported them, if their folder was the one in which pytest was run."""
    for name in ("json", "secrets", "typing"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the broker has imported {name}.py of the suite')")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_it(barnabas_topic): barnabas_topic.produce(['a'])")
    command = [str(Path(sys.executable).with_name("pytest")), "-q", *with_plugin, "tests"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


STRICT = """
import pytest

def test_with_a_key(barnabas):
    topic = barnabas.topic(partitions=2)
    topic.produce(["a"], key="k")
    assert topic.values() == ["a"]

def test_a_consumer(barnabas):
    barnabas.consumer().close()

def test_an_error(barnabas):
    with pytest.raises(Exception, match="cannot be made"):
        barnabas.topic(partitions=0)
"""


@pytest.mark.parametrize("one", ["with_a_key", "a_consumer", "an_error"])
def test_nothing_warns_where_a_warning_is_an_error(tmp_path: Path, with_plugin: list[str], one: str) -> None:
    """Until 2026-11-30 the import of kafka-python did, for a test that knows nothing of it."""
    (tmp_path / "test_strict.py").write_text(STRICT)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *with_plugin, "-k", one, "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chosen", ["test_", "alone"])
def test_a_fixture_of_the_session_has_the_address(tmp_path: Path, with_plugin: list[str], chosen: str) -> None:
    """Until 2026-11-30 nothing that lives longer than a test could use the shared broker."""
    (tmp_path / "test_session.py").write_text(OF_SESSION)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "-k", chosen, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("4 passed" if chosen == "test_" else "1 passed") in done.stdout


@pytest.mark.parametrize("marker", ["broker=3", "3", 'brokers="3"', "brokers=0", 'config="a=1"'])
def test_a_wrong_marker_is_said(tmp_path: Path, with_plugin: list[str], marker: str) -> None:
    """Until 2026-11-30 it meant nothing."""
    text = f"import pytest\n\n@pytest.mark.barnabas({marker})\ndef test_it(barnabas):\n    pass\n"
    (tmp_path / "test_marker.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    said = "takes config={…}, fresh=True and brokers=3, not " + marker.replace('"', "'")
    assert f"UsageError: @pytest.mark.barnabas {said}" in done.stdout
    assert "1 error" in done.stdout


REMEMBERS = """
def pytest_configure(config):
    global CONFIG
    CONFIG = config
"""
BEGUN = """
import conftest
import pytest
from barnabas.testing.plugin import SHARED

print("begun before:", *conftest.CONFIG.stash[SHARED]._begun, ".")

def test_before(pytestconfig):
    print("begun:", *pytestconfig.stash[SHARED]._begun, ".")

def test_it(barnabas):
    pass

@pytest.mark.barnabas(brokers=2)
def test_own(barnabas_cluster):
    pass
"""


@pytest.mark.parametrize(("chosen", "begun"), [("before or it", "begun: 1 ."), ("before", "begun: .")])
def test_shared_brokers_begin_to_start_while_tests_are_collected(
    tmp_path: Path, with_plugin: list[str], chosen: str, begun: str
) -> None:
    (tmp_path / "conftest.py").write_text(REMEMBERS)
    (tmp_path / "test_begun.py").write_text(BEGUN)
    command = [sys.executable, "-m", "pytest", "-qs", *with_plugin, "-k", chosen, "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "begun before: 1 3 ." in done.stdout, "when the file is imported"
    assert begun in done.stdout


CLUSTERS = """
SEEN = []

def test_one(barnabas_cluster):
    barnabas_cluster.topic("orders", unique=False).produce(["a"])
    barnabas_cluster.drop_answer("Produce", client="nobody")
    barnabas_cluster.clock.advance(days=1)
    barnabas_cluster.clock.freeze()
    SEEN.append((barnabas_cluster.bootstrap, [process.pid for process in barnabas_cluster.processes.values()]))

def test_two(barnabas_cluster):
    now = barnabas_cluster.bootstrap, [process.pid for process in barnabas_cluster.processes.values()]
    assert SEEN == [now], "the same processes"
    assert barnabas_cluster.ask("GET", "/v1/control/rules")["rules"] == []
    clock = barnabas_cluster.ask("GET", "/v1/control/clock")
    assert (clock["moved_ms"], clock["stands"]) == (0, False)
    topic = barnabas_cluster.topic("orders", unique=False)  # the one of the other test is gone
    assert topic.values() == []
    barnabas_cluster.isolate(2)
    barnabas_cluster.kill(1)

def test_three(barnabas_cluster):
    assert barnabas_cluster.running == [0, 1, 2]
    topic = barnabas_cluster.topic("orders", unique=False)
    topic.produce(["b"])
    assert topic.values() == ["b"]
"""


def test_the_plugin_puts_a_cluster_back(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_clusters.py").write_text(CLUSTERS)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert "never fired" in done.stdout


FAILING = """
import confluent_kafka
import pytest
from kafka.errors import TopicAlreadyExistsError

KEPT = []

def test_it(barnabas, barnabas_group, barnabas_topic):
    barnabas_group.commit(barnabas_topic, 0, 1)
    barnabas.cut("Produce", client="nobody")
    consumer = barnabas.consumer(group_id=barnabas_group.name)
    consumer.subscribe([barnabas_topic.name])
    consumer.poll(3000)
    producer = confluent_kafka.Producer({"bootstrap.servers": barnabas.bootstrap, "transactional.id": "tx"})
    producer.init_transactions(30)
    for is_left in (False, True):
        producer.begin_transaction()
        producer.produce(barnabas_topic.name, "a")
        producer.flush(200)
        if not is_left:
            producer.commit_transaction(30)
    KEPT.append((consumer, producer))
    assert len(barnabas.topic("three").records()) == 0
    with pytest.raises(TopicAlreadyExistsError):
        barnabas.topic(barnabas_topic.name, unique=False)
    assert barnabas_group.offsets == {}
"""


LEAVING = """
def test_it(barnabas, barnabas_topic):
    barnabas.fail("OffsetCommit", error="REBALANCE_IN_PROGRESS")
    barnabas.delay("Fetch", ms=5)
    consumer = barnabas.consumer(group_id="left")
    consumer.subscribe([barnabas_topic.name])
    consumer.poll(3000)
"""


def test_all_that_is_left_is_told_where_a_warning_is_an_error(tmp_path: Path, with_plugin: list[str]) -> None:
    """Until 2026-12-01 it was only the first."""
    (tmp_path / "test_it.py").write_text(LEAVING)
    command = [sys.executable, "-m", "pytest", "-q", "-Werror::barnabas.testing.plugin.BarnabasWarning", *with_plugin]
    done = subprocess.run([*command, "."], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    said = "the fault error for OffsetCommit never fired; the group left still has 1 member: close its consumers"
    assert said in done.stdout, done.stdout


def test_a_failed_test_shows_what_happened_on_its_broker(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nbarnabas_artifacts = left\nbarnabas_config =\n    num.partitions = 3\n    node.id=0\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin]
    done = subprocess.run([*command, "."], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "requests of clients" in done.stdout
    line = r"\n[\d:]{8},\d{3} barnabas-testing: CreateTopics v4 \(test_it-\w+\): answered in \d+ ms, TOPIC_ALREADY_E"
    assert re.search(line, done.stdout), done.stdout
    assert "Fetch v" in done.stdout
    assert "log of broker 0" in done.stdout
    assert "the fault cut for Produce never fired" in done.stdout
    assert "still has 1 member: close its consumers" in done.stdout
    assert "the transaction of tx is still open: commit or abort it" in done.stdout
    assert re.search(r"\n\d\d:\d\d:\d\d,\d{3} generation 0 -> 1, 1 member: ", done.stdout)
    (folder,) = (tmp_path / "left").iterdir()
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    commits = [row["request"] for row in rows if row["api"] == "OffsetCommit"]
    assert commits[0]["group_id"].startswith("test_it")
    assert "topic test_it-" in (folder / "broker-0.log").read_text()
    (story,) = json.loads((folder / "groups.json").read_text()).values()
    assert story["rebalances"][0]["generation"] == 1


@pytest.mark.parametrize(("text", "why"), [("num.partitions", "is no setting. Write it as"), ("nosuch=1", "nosuch")])
def test_a_wrong_setting_of_the_shared_brokers_is_said(
    tmp_path: Path, with_plugin: list[str], text: str, why: str
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(barnabas): pass")
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "--barnabas-config", text, "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode != 0
    assert why in done.stdout + done.stderr


PAUSED = """
def test_it(barnabas):
    barnabas.pause()
    assert False
"""


def test_a_failed_test_that_has_paused_its_broker_ends(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_paused.py").write_text(PAUSED)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr


def test_folders_of_killed_runs_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = KILLED.replace("print(", "kafka._watcher.end(); print(")  # nobody is left to remove it
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True, timeout=200)
    folder = Path(done.stdout.split()[1])
    assert folder.parent == tmp_path
    os.utime(folder, (1, 1))
    with Barnabas() as kafka:
        deadline = time.monotonic() + 200
        while folder.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
            if folder.exists():
                os.utime(folder, (1, 1))
                temporary.remove_abandoned(str(kafka.folder))  # its broker was still ending


KILLED = """
import os, signal
from barnabas.testing import Barnabas

kafka = Barnabas().start()
print(kafka.bootstrap, kafka.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ENDS = {
    "serving": "",
    "paused": "kafka.pause()",
    "killed itself": "kafka.kill()",
    "started again and paused": "kafka.restart(); kafka.pause()",
    "with a forked child": "os.fork() or time.sleep(60)",
}


def assert_nothing_is_left(bootstrap: str, folder: str) -> None:
    """No port, no file, no process."""
    deadline = time.monotonic() + 200
    while left := list(_left(bootstrap, folder)):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _left(bootstrap: str, folder: str) -> Iterator[str]:
    for address in filter(None, bootstrap.split(",")):
        host, _, port = address.partition(":")
        with suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            yield address
    if Path(folder).exists():
        yield folder
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if folder.encode() in process.read_bytes():
                yield str(process)


BOTH = """
import pytest

@pytest.fixture
def service(barnabas, barnabas_cluster):
    barnabas.topic("one")
    barnabas_cluster.topic("three")
    raise RuntimeError("the service does not start")

def test_it(service):
    pass
"""


def test_a_fixture_that_fails_shows_what_happened_on_both_its_clusters(tmp_path: Path, with_plugin: list[str]) -> None:
    """Until 2026-11 it showed nothing, and the files of one cluster took the place of those of the other."""
    (tmp_path / "test_both.py").write_text(BOTH)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "--barnabas-artifacts", "left", "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert "log of broker 2" in done.stdout
    for place, topic in (("broker", "one-"), ("3-brokers", "three-")):
        rows = (tmp_path / "left" / "test_both.py--test_it" / place / "requests.jsonl").read_text()
        assert topic in rows


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("how", ENDS)
def test_nothing_is_left_of_a_test_run_that_is_killed(how: str, brokers: int) -> None:
    """Until 2026-11 a broker that stood still went on for ever, and folders stayed for the next run to remove."""
    script = KILLED.replace("Barnabas()", f"Barnabas({brokers})").replace("import os", "import os, time")
    script = script.replace("os.kill(", f"{ENDS[how]}\nos.kill(")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        bootstrap, folder = run.stdout.readline().split()
        run.wait(200)
        assert_nothing_is_left(bootstrap, folder)


KILLED_WHILE_IT_BEGINS = """
import os, signal
from barnabas.runtime import temporary
from barnabas.testing import Barnabas

kafka = Barnabas()
print(kafka.folder, flush=True)
temporary.lock = lambda path: os.kill(os.getpid(), signal.SIGKILL)
kafka.start()
"""


def test_nothing_is_left_of_a_test_run_that_is_killed_while_it_makes_its_folder() -> None:
    """Until 2026-12 its folder stayed: who watches over it came after it. One of twenty forks was killed so."""
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_BEGINS], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    assert_nothing_is_left("", done.stdout.strip())


KILLED_WORKER = """
import os, signal

def test_it(barnabas):
    barnabas.pause()
    with open("left", "w") as file:
        file.write(f"{barnabas.bootstrap} {barnabas.folder}")
    os.kill(os.getpid(), signal.SIGKILL)

def test_other(barnabas_topic):
    barnabas_topic.produce(["a"])
"""


def test_nothing_is_left_of_a_worker_that_is_killed(tmp_path: Path, with_plugin: list[str]) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED_WORKER)
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "-n", "1", "."]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert_nothing_is_left(*(tmp_path / "left").read_text().split())


BROKER_OF_THE_CONFTEST = """
import pytest

@pytest.fixture
def broker(barnabas):
    return barnabas
"""
KILLED_PYTEST = """
import os, signal, time
import pytest

@pytest.mark.barnabas(fresh=FRESH)
def test_it(broker):
    with open("left", "w") as file:
        file.write(f"{broker.bootstrap} {broker.folder}")
    os.kill(os.getppid(), signal.SIGKILL)
    try:
        time.sleep(60)
    except BaseException:
        open("interrupted", "w").close()
"""


@pytest.mark.parametrize("fresh", [False, True])
def test_nothing_is_left_of_a_pytest_that_is_killed_beside_its_workers(
    tmp_path: Path, with_plugin: list[str], fresh: bool
) -> None:
    """Until 2026-12 a test's own brokers went on until pytest-xdist gave up its worker, six seconds later."""
    (tmp_path / "conftest.py").write_text(BROKER_OF_THE_CONFTEST)
    (tmp_path / "test_killed.py").write_text(KILLED_PYTEST.replace("FRESH", str(fresh)))
    command = [sys.executable, "-m", "pytest", "-q", *with_plugin, "-n", "1", "."]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert_nothing_is_left(*(tmp_path / "left").read_text().split())
    assert not (tmp_path / "interrupted").exists()


def test_trace_shows_what_was_asked(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("traced")
    with (
        kafka.fail("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", times=1, group=group),
        pytest.raises(KafkaError),
    ):
        group.commit(topic, 0, 3)
    command = [sys.executable, "-m", "barnabas", "trace", "--bootstrap", kafka.bootstrap, "--group", group.name]
    shown = subprocess.run([*command, "--kept"], capture_output=True, text=True, timeout=200, check=True).stdout
    assert "OffsetCommit v" in shown
    assert " ms, GROUP_AUTHORIZATION_FAILED, by fault" in shown
    as_json = subprocess.run([*command, "--kept", "--json"], capture_output=True, text=True, timeout=200, check=True)
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert "OffsetCommit" in {row["api"] for row in rows}
    with subprocess.Popen([*command[:-2], "--kept", "--json"], stdout=subprocess.PIPE, text=True) as of_all:
        said, _ = of_all.communicate(timeout=200)
    assert (f"barnabas-cli-{of_all.pid}" in said, topic.name in said) == (False, True)  # nothing of what it asks itself
    live = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    assert live.stdout is not None
    deadline = time.monotonic() + 200
    while not select.select([live.stdout], [], [], 0.5)[0]:  # it asks from where the brokers are when it begins
        assert time.monotonic() < deadline, "nothing is shown"
        group.commit(topic, 0, 5)
    seen = json.loads(live.stdout.readline())
    live.send_signal(signal.SIGINT)
    assert live.wait(200) == 130
    assert group.name in seen["groups"]


def test_lint_says_what_is_better(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("slow")
    for offset in range(12):
        group.commit(topic, 0, offset)
    (found,) = (row for row in kafka.lint() if row["about"] == group.name)
    assert found["rule"] == "commit of each record"
    command = [sys.executable, "-m", "barnabas", "trace", "--bootstrap", kafka.bootstrap, "--lint"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert shown.returncode == 1, shown
    assert "better: commit once after each poll" in shown.stdout
    nothing = subprocess.run([*command, "--client", "nobody"], capture_output=True, text=True, timeout=200)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    wrong = subprocess.run([*command, "--kept"], capture_output=True, text=True, timeout=200)
    assert wrong.returncode == 2
