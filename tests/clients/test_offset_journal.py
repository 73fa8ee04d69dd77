"""`barnabas offsets log|diff|restore|undo` against a broker process with an offset journal."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from waiting import until_said

Run = Callable[..., subprocess.CompletedProcess[str]]
JOURNAL = "__offset_journal"


@pytest.fixture
def run(journal_broker: Any) -> Run:
    """Runs a command to its end against the broker."""

    def run_command(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return forked.barnabas(*words, code=code, BARNABAS_BOOTSTRAP=journal_broker.bootstrap)

    return run_command


@pytest.fixture
def orders(journal_broker: Any) -> str:
    """A topic of two partitions with a hundred records each."""
    producer = KafkaProducer(bootstrap_servers=journal_broker.bootstrap)
    admin = KafkaAdminClient(bootstrap_servers=journal_broker.bootstrap)
    admin.create_topics({"orders": {"num_partitions": 2, "replication_factor": 1}})
    admin.close()
    for partition in (0, 1):
        for number in range(100):
            producer.send("orders", b"%d" % number, partition=partition)
    producer.flush()
    producer.close()
    return "orders"


def commit(bootstrap: str, group: str, offsets: dict[int, int], topic: str = "orders", metadata: str = "") -> None:
    """A commit by a consumer that assigns its partitions itself."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, client_id="my-app")
    consumer.assign([TopicPartition(topic, partition) for partition in offsets])
    consumer.commit(
        {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata, -1)
            for partition, offset in offsets.items()
        }
    )
    consumer.close(autocommit=False)


def consume_as_a_member(bootstrap: str, group: str, count: int, topic: str = "orders") -> None:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        client_id="my-app",
    )
    for _ in range(count):
        next(consumer)
    consumer.commit()
    consumer.close(autocommit=False)


def committed(run: Run, group: str) -> dict[int, int]:
    rows = json.loads(run("offsets", "list", group, "--json").stdout)
    return {row["partition"]: row["committed_offset"] for row in rows}


def changes(run: Run, group: str, *words: str) -> list[tuple[str, int, Any, Any]]:
    """Cause, partition, old and new offset."""
    rows = json.loads(run("offsets", "log", group, "--json", *words).stdout)
    return [
        (row["cause"], row["partition"], row["old_offset"], row["new_offset"])
        for row in rows
        if row["kind"] == "change"
    ]


def pause() -> str:
    """A time between two changes, as an option takes it."""
    time.sleep(0.02)
    now = time.time()
    time.sleep(0.02)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"


def test_who_moved_what_and_the_way_back(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    consume_as_a_member(at, "billing", 30)
    (first,) = {row["member_id"] for row in json.loads(run("offsets", "log", "billing", "--json").stdout)}
    assert first.startswith("my-app-")
    before = committed(run, "billing")
    quiet = pause()
    run("offsets", "set", "billing", "--topic", orders, "--to", "latest", "--yes")
    run("offsets", "delete", "billing", "--topic", "orders:1", "--yes")
    found = changes(run, "billing")
    resets = [change for change in found if change[0] != "commit"]
    assert [(cause, partition, new) for cause, partition, _, new in resets] == [
        ("reset", 0, 100),
        ("reset", 1, 100),
        ("deletion", 1, None),
    ]
    shown = run("offsets", "log", "billing").stdout
    assert "barnabas-cli" in shown
    assert "/127.0.0.1" in shown
    assert "deletion" in shown
    # Nothing is done before it is agreed to.
    assert "--yes" in run("offsets", "restore", "billing", "--at", quiet, code=2).stderr
    assert committed(run, "billing") == {0: 100}
    done = json.loads(run("offsets", "restore", "billing", "--at", quiet, "--yes", "--json").stdout)
    assert committed(run, "billing") == before
    assert {row["partition"]: row["then"] for row in done} == {f"orders-{key}": value for key, value in before.items()}
    run("offsets", "restore", "billing", "--at", quiet, "--yes")  # there is nothing left to do
    rows = json.loads(run("offsets", "diff", "billing", "--from", quiet, "--json").stdout)
    assert all(row["from"] == row["to"] == before[row["partition"]] for row in rows)
    assert any("reset" in row["causes"] for row in rows)


def commit_for_a_moment(bootstrap: str, group: str, topic: str) -> None:
    """A commit of an old client: version 2, with a retention time of its own."""
    make = messages.OffsetCommitRequest
    rows = [make.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")]
    topics = [make.OffsetCommitRequestTopic(name=topic, partitions=rows)]
    request = make(group_id=group, generation_id_or_member_epoch=-1, retention_time_ms=1, topics=topics)
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(frames.encode_request(ApiKey.OFFSET_COMMIT, 2, 1, "an old client", request))
        answer = client.recv(4096)
    answered = frames.decode_response(ApiKey.OFFSET_COMMIT, 2, memoryview(answer)[4:])[1]
    assert [row.error_code for row in answered.topics[0].partitions] == [0]


def test_every_cause_with_all_that_is_known_of_it(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    (described,) = json.loads(run("topics", "describe", orders, "--json").stdout)
    before = time.time()
    consumer = KafkaConsumer(
        orders, bootstrap_servers=at, group_id="g", enable_auto_commit=False, client_id="my-app", group_instance_id="i"
    )
    while len(consumer.assignment()) < 2:
        consumer.poll(1000)
    for offset, text in ((3, "first"), (7, "second")):
        consumer.commit({TopicPartition(orders, 0): OffsetAndMetadata(offset, text, 0)})
    consumer.close(autocommit=False)
    run("groups", "remove", "g", "--instance", "i", "--yes")
    run("offsets", "set", "g", "--topic", f"{orders}:0", "--to", "50", "--yes")
    run("offsets", "set", "g", "--topic", f"{orders}:0", "--to", "60", "--live", "--yes")
    run("offsets", "delete", "g", "--topic", f"{orders}:0", "--yes")
    commit(at, "old", {1: 9})
    commit_for_a_moment(at, "short", orders)
    while not any(change[0] == "expiry" for change in changes(run, "short")):
        time.sleep(0.2)
    run("topics", "delete", orders, "--yes")
    while not any(change[0] == "topic gone" for change in changes(run, "old")):
        time.sleep(0.2)

    def of(group: str) -> list[dict[str, Any]]:
        return [row for row in json.loads(run("offsets", "log", group, "--json").stdout) if row["kind"] == "change"]

    found = [*of("g"), *of("short"), *of("old")]
    for row in found:
        assert row["topic"] == orders
        assert row["topic_id"] == described["topic_id"]
        assert before - 1 < datetime.fromisoformat(row["time"]).timestamp() < time.time() + 1
    fields = ("cause", "partition", "old_offset", "old_leader_epoch", "old_metadata")
    fields += ("new_offset", "new_leader_epoch", "new_metadata", "host", "principal")
    assert [tuple(row[name] for name in fields) for row in found] == [
        ("commit", 0, None, -1, "", 3, 0, "first", "/127.0.0.1", "User:ANONYMOUS"),
        ("commit", 0, 3, 0, "first", 7, 0, "second", "/127.0.0.1", "User:ANONYMOUS"),
        ("reset", 0, 7, 0, "second", 50, -1, "", "/127.0.0.1", "User:ANONYMOUS"),
        ("live reset", 0, 50, -1, "", 60, -1, "", "/127.0.0.1", "User:ANONYMOUS"),
        ("deletion", 0, 60, -1, "", None, -1, "", "/127.0.0.1", "User:ANONYMOUS"),
        ("commit", 0, None, -1, "", 5, -1, "", "/127.0.0.1", "User:ANONYMOUS"),
        ("expiry", 0, 5, -1, "", None, -1, "", "", ""),
        ("commit", 1, None, -1, "", 9, -1, "", "/127.0.0.1", "User:ANONYMOUS"),
        ("topic gone", 1, 9, -1, "", None, -1, "", "", ""),
    ]
    generations = [row["generation"] for row in found]
    assert generations[0] == generations[1] >= 1
    assert generations[2:] == [-1] * 7
    assert all(row["member_id"].startswith("i-") for row in found[:2])
    assert {row["member_id"] for row in found[2:]} == {""}
    clients = [row["client_id"] for row in found]
    assert [clients[index] for index in (0, 1, 5, 6, 7, 8)] == ["my-app", "my-app", "an old client", "", "my-app", ""]
    assert all(name.startswith("barnabas-cli") for name in clients[2:5])


def test_undo_takes_back_the_last_reset_and_itself(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    commit(at, "g", {0: 10, 1: 20}, metadata="kept")
    assert "nothing" in run("offsets", "undo", "g", "--yes", code=3).stderr
    run("offsets", "set", "g", "--to", "earliest", "--yes")
    assert committed(run, "g") == {0: 0, 1: 0}
    plan = run("offsets", "undo", "g", code=2).stdout
    assert "reset" in plan
    assert "barnabas-cli" in plan
    assert committed(run, "g") == {0: 0, 1: 0}
    run("offsets", "undo", "g", "--yes")
    assert committed(run, "g") == {0: 10, 1: 20}
    rows = json.loads(run("offsets", "list", "g", "--json").stdout)
    assert {row["metadata"] for row in rows} == {"kept"}
    run("offsets", "undo", "g", "--yes")
    assert committed(run, "g") == {0: 0, 1: 0}


def test_each_live_reset_is_taken_back_alone(journal_broker: Any, run: Run, orders: str) -> None:
    """Also those of one script, which follow each other at once."""
    for offset in ("10", "20", "30"):
        run("offsets", "set", "g", "--topic", "orders:0", "--to", offset, "--live", "--yes")
    run("offsets", "undo", "g", "--live", "--yes")
    assert committed(run, "g") == {0: 20}


def test_a_deleted_group_comes_back(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10, 1: 20})
    run("groups", "delete", "g", "--yes")
    run("offsets", "list", "g", code=3)
    run("offsets", "undo", "g", "--yes")
    assert committed(run, "g") == {0: 10, 1: 20}
    run("offsets", "diff", "g", "--from", "1h")


def test_what_cannot_be_put_back_is_said(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    run("topics", "create", "short-lived")
    commit(at, "g", {0: 10})
    commit(at, "g", {0: 5}, topic="short-lived")
    quiet = pause()
    run("topics", "delete", "short-lived", "--yes")
    deadline = time.monotonic() + 200
    while not any(change[0] == "topic gone" for change in changes(run, "g")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    refused = run("offsets", "restore", "g", "--at", quiet, "--yes", code=1)
    assert "short-lived-0: left as it is: the partition does not exist" in refused.stderr
    run("topics", "create", "short-lived")
    refused = run("offsets", "restore", "g", "--at", quiet, "--yes", code=1)
    assert "another topic has that name now" in refused.stderr
    assert committed(run, "g") == {0: 10}


def test_offsets_outside_the_log_are_moved_to_its_nearest_end(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10})
    quiet = pause()
    run("offsets", "set", "g", "--to", "latest", "--yes")
    admin = KafkaAdminClient(bootstrap_servers=journal_broker.bootstrap)
    admin.delete_records({TopicPartition(orders, 0): 50})
    admin.close()
    assert "10 is deleted: the log begins later" in run("offsets", "restore", "g", "--at", quiet, "--yes").stdout
    assert committed(run, "g") == {0: 50}


def test_a_journal_that_was_deleted_says_nothing_wrong(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10})
    first = pause()
    commit(journal_broker.bootstrap, "g", {0: 20})
    run("topics", "delete", JOURNAL, "--yes")
    commit(journal_broker.bootstrap, "g", {0: 30})
    commit(journal_broker.bootstrap, "g", {0: 40})
    (row,) = json.loads(run("offsets", "diff", "g", "--from", first, "--json").stdout)
    assert (row["from"], row["to"]) == (10, 40)  # __consumer_offsets still has it
    assert [(old, new) for _, _, old, new in changes(run, "g")] == [(None, 10), (10, 20), (20, 30), (30, 40)]


def test_a_journal_of_another_offsets_topic_says_so(journal_broker: Any, run: Run, orders: str) -> None:
    """Who deletes __consumer_offsets and starts with more partitions has a journal with too few."""
    commit(journal_broker.bootstrap, "g", {0: 10})
    run("offsets", "log", "g")
    said = run("topics", "delete", "__consumer_offsets", "--yes").stderr
    assert "all groups lose all committed offsets" in said
    assert "no group has a committed offset any more" in said
    journal_broker.stop()
    journal_broker.settings = [*journal_broker.settings, "offsets.topic.num.partitions=9"]
    journal_broker.start()
    commit(journal_broker.bootstrap, "g", {0: 20})
    assert "Delete it: brokers make it again." in run("offsets", "log", "g", code=1).stderr
    run("topics", "delete", JOURNAL, "--yes")
    commit(journal_broker.bootstrap, "g", {0: 30})
    assert changes(run, "g")[-1] == ("commit", 0, 20, 30)


def test_a_journal_with_too_few_partitions_is_told_in_the_log(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10})
    said = run("topics", "delete", "__consumer_offsets", "--yes").stderr
    assert "all groups lose all committed offsets" in said
    assert "no group has a committed offset any more" in said
    journal_broker.stop()
    journal_broker.settings = [*journal_broker.settings, "offsets.topic.num.partitions=99"]
    journal_broker.start()
    for number in range(20):
        commit(journal_broker.bootstrap, f"g{number}", {0: 20})
    until_said("fewer partitions than __consumer_offsets", journal_broker.log)


def test_what_retention_has_deleted_is_not_known(journal_broker: Any, run: Run, orders: str) -> None:
    for offset in (10, 20):
        commit(journal_broker.bootstrap, "g", {0: offset})
    first = pause()
    commit(journal_broker.bootstrap, "g", {0: 30})
    run("configs", "set", "topic", JOURNAL, "retention.ms=1")
    kinds = ["change"]
    while kinds[:1] == ["change"]:
        time.sleep(0.1)
        kinds = [row["kind"] for row in json.loads(run("offsets", "log", "g", "--json").stdout)]
    for later in ("nothing was written since", "something was"):
        (row,) = json.loads(run("offsets", "diff", "g", "--from", first, "--json").stdout)
        assert (row["from"], row["from_is_known"]) == (None, False), later
        answer = run("offsets", "restore", "g", "--at", first, "--yes", code=1)
        assert "the journal does not know where it was" in answer.stdout + answer.stderr
        run("configs", "set", "topic", JOURNAL, "retention.ms=86400000")
        commit(journal_broker.bootstrap, "g", {0: 40})
    gap, change, *_ = json.loads(run("offsets", "log", "g", "--json").stdout)
    assert "retention has deleted" in gap["why"]
    assert (change["old_offset"], change["new_offset"]) == (30, 40)


CUT_WHILE_IT_IS_READ = """
import subprocess, sys, time
from barnabas.cli import main
from kafka import KafkaConsumer
begins, ends, answer = KafkaConsumer.beginning_offsets, KafkaConsumer.end_offsets, KafkaConsumer.{moment}
def answer_and_cut(self, *args):
    KafkaConsumer.{moment} = answer
    found, places = answer(self, *args), self.assignment()
    command = [sys.executable, "-m", "barnabas", "configs", "set", "topic", "__offset_journal", "retention.ms=1"]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    while begins(self, places) != ends(self, places):
        time.sleep(0.02)
    return found
KafkaConsumer.{moment} = answer_and_cut
main.main()
"""


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("beginning_offsets", ()),
        ("end_offsets", ()),
        ("end_offsets", ("--since", "1h")),
        ("offsets_for_times", ("--since", "1h")),
        ("seek", ()),
    ],
)
def test_a_journal_that_is_cut_while_it_is_read(
    journal_broker: Any, run: Run, orders: str, moment: str, words: tuple[str, ...]
) -> None:
    """Nothing is left of it, and this is said. Once, there was no answer at all."""
    commit(journal_broker.bootstrap, "g", {0: 10})
    assert changes(run, "g") == [("commit", 0, None, 10)]
    code = CUT_WHILE_IT_IS_READ.format(moment=moment)
    environment = os.environ | {"BARNABAS_BOOTSTRAP": journal_broker.bootstrap}
    command = [sys.executable, "-c", code, "offsets", "log", "g", "--json", *words]
    done = forked.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done
    assert [row["why"] for row in json.loads(done.stdout)] == ["retention has deleted what was written before"]


@pytest.mark.parametrize("group", [b"billing", b""])
@pytest.mark.parametrize("content", [b"not of a journal", b"\x63 of a later version", None])
def test_a_record_that_cannot_be_read_ends_nothing(
    journal_broker: Any, run: Run, orders: str, group: bytes, content: bytes | None
) -> None:
    """As `__admin_client` any client may write into the journal, as into all internal topics of Kafka."""
    at = journal_broker.bootstrap
    commit(at, "billing", {0: 10})
    quiet = pause()
    run("offsets", "set", "billing", "--topic", orders, "--to", "50", "--yes")
    journal_end(at)
    consumer = KafkaConsumer(bootstrap_servers=at)
    partition = partition_for("billing", len(consumer.partitions_for_topic(JOURNAL)))
    consumer.close()
    producer = Producer({"bootstrap.servers": at, "client.id": "__admin_client"})
    refused: list[Any] = []
    producer.produce(JOURNAL, content, group, partition, on_delivery=lambda error, _: refused.append(error))
    producer.flush(200)
    assert refused == [None]
    journal_broker.kill()
    journal_broker.start()
    commit(at, "billing", {0: 60})
    rows = json.loads(run("offsets", "log", "billing", "--json").stdout)
    (gap,) = [row for row in rows if row["kind"] == "gap"]
    assert "journal" in gap["why"]
    assert [(row["cause"], row["partition"], row["new_offset"]) for row in rows if row["kind"] == "change"] == [
        ("commit", 0, 10),
        ("reset", 0, 50),
        ("reset", 1, 50),
        ("commit", 0, 60),
    ]
    assert gap["why"] in run("offsets", "log", "billing").stdout
    run("offsets", "restore", "billing", "--at", quiet, "--topic", orders, "--yes")
    assert committed(run, "billing") == {0: 10}


def journal_end(bootstrap: str) -> int:
    """How many records the journal has, once it does not grow any more."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    places = [TopicPartition(JOURNAL, index) for index in consumer.partitions_for_topic(JOURNAL)]
    ends = [-1]
    while len(ends) < 3 or ends[-1] != ends[-3]:
        ends.append(sum(consumer.end_offsets(places).values()))
        time.sleep(0.05)
    consumer.close()
    return ends[-1]


OTHER_CLOCK = """
import os
from barnabas.cli import main
from barnabas.runtime.clock import RealClock
now_ms = RealClock.now_ms
RealClock.now_ms = lambda self: now_ms(self) + (os.path.exists({file!r}) and {ahead_ms})
main.main()
"""


@pytest.mark.parametrize("hours", [1, 24])
def test_a_clock_that_was_ahead_for_a_moment_does_not_spoil_the_way_back(
    make_broker: Callable[..., Any], tmp_path: Path, hours: int
) -> None:
    file = tmp_path / "ahead"
    broker = make_broker(program=["-c", OTHER_CLOCK.format(file=str(file), ahead_ms=hours * 3_600_000)])
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"orders": {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for _ in range(100):
        producer.send("orders", b"x")
    producer.close()
    for offset in (10, 20):
        commit(broker.bootstrap, "billing", {0: offset})
    file.touch()
    commit(broker.bootstrap, "billing", {0: 30})
    journal_end(broker.bootstrap)
    file.unlink()
    for offset in (40, 50):
        commit(broker.bootstrap, "billing", {0: offset})
    journal_end(broker.bootstrap)
    quiet = pause()
    commit(broker.bootstrap, "billing", {0: 60})
    words = ("offsets", "restore", "billing", "--at", quiet, "--yes", "--json")
    done = forked.barnabas(*words, code=0, BARNABAS_BOOTSTRAP=broker.bootstrap)
    assert [(row["now"], row["then"]) for row in json.loads(done.stdout)] == [(60, 50)]
    assert "clock was set back" in done.stderr


HINDERED_JOURNAL = """
import os, sys
from barnabas.broker import offset_journal
from barnabas.cli import main
from barnabas.protocol.errors import ErrorCode
append = offset_journal.LedJournalLog.append
def write_blocked(self, batch):
    return ErrorCode.KAFKA_STORAGE_ERROR if os.path.exists({file!r}) else append(self, batch)
offset_journal.LedJournalLog.append = write_blocked
main.main()
"""


@pytest.mark.parametrize("http", ["http://127.0.0.1:0", "none"])
def test_a_journal_that_is_behind_is_noticed_also_where_it_has_nothing_of_the_time(
    make_broker: Callable[..., Any], tmp_path: Path, http: str
) -> None:
    """The group's last record is older than T, and a later change is not in the journal yet."""
    file = tmp_path / "write_blocked"
    words = ["-c", HINDERED_JOURNAL.format(file=str(file))]
    broker = make_broker(f"http.listeners={http}", program=words)
    environment = os.environ | {"BARNABAS_BOOTSTRAP": broker.bootstrap}

    def run_command(*words: str) -> subprocess.CompletedProcess[str]:
        return forked.barnabas(*words, BARNABAS_BOOTSTRAP=broker.bootstrap)

    def begin(*words: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return forked.Popen([*forked.BARNABAS, *words], stdout=pipe, stderr=pipe, text=True, env=environment)

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"orders": {"num_partitions": 2, "replication_factor": 1}})
    admin.close()
    commit(broker.bootstrap, "billing", {0: 0})
    journal_end(broker.bootstrap)
    quiet = pause()
    file.touch()
    commit(broker.bootstrap, "billing", {0: 0, 1: 0}, metadata="again")
    commit(broker.bootstrap, "new", {0: 0})
    begun = [  # together, because each waits for seconds
        begin("offsets", *words)
        for group in ("billing", "new")
        for words in (("diff", group, "--from", quiet), ("restore", group, "--at", quiet, "--yes"))
    ]
    for process in begun:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 1, (process.args, said)
        assert "the journal does not have the last changes" in said, process.args
    file.unlink()
    journal_end(broker.bootstrap)
    done = run_command("offsets", "restore", "billing", "--at", quiet, "--yes", "--json")
    assert done.returncode == 0, done
    rows = json.loads(run_command("offsets", "list", "billing", "--json").stdout)
    assert [(row["partition"], row["committed_offset"]) for row in rows] == [(0, 0)]


@pytest.mark.parametrize("when", ["99999999999d", "1960-01-01"])
def test_a_time_before_there_was_anything(journal_broker: Any, run: Run, orders: str, when: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10})
    run("offsets", "log", "g", "--since", when)
    run("offsets", "restore", "g", "--at", when, "--yes")
    run("offsets", "list", "g", code=3)


def test_a_time_that_is_not_there_yet(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 10})
    assert "--at lies ahead" in run("offsets", "restore", "g", "--at", "2999-01-01", "--yes", code=2).stderr


def test_a_living_group_is_left_alone(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    consume_as_a_member(at, "billing", 5)
    consumer = KafkaConsumer(orders, bootstrap_servers=at, group_id="billing", enable_auto_commit=False)
    while not consumer.assignment():
        consumer.poll(1000)
    assert "1 member" in run("offsets", "restore", "billing", "--at", "0s", "--yes", code=1).stderr
    assert "1 member" in run("offsets", "undo", "billing", "--yes", code=1).stderr
    consumer.close(autocommit=False)


def test_a_living_group_is_put_back_live(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    consume_as_a_member(at, "billing", 150)
    before = committed(run, "billing")
    run("offsets", "set", "billing", "--to", "earliest", "--yes")
    reader = [*forked.BARNABAS, "consume", orders, "--group", "billing", "--bootstrap", at, "--json"]
    with forked.Popen(reader, stdout=subprocess.PIPE) as consumer:
        try:
            deadline = time.monotonic() + 200
            while sum(committed(run, "billing").values()) < 200:  # it has read everything again
                assert time.monotonic() < deadline
            run("offsets", "undo", "billing", "--live", "--yes", "--timeout", "60")
            assert changes(run, "billing", "--max", "20")[-1][0] in ("live reset", "commit")
            undone = [change for change in changes(run, "billing") if change[0] == "live reset"]
            assert {partition: new for _, partition, _, new in undone} == {
                partition: offset for partition, offset in before.items() if offset != 100
            }
            while sum(committed(run, "billing").values()) < 200:  # and again from there
                assert time.monotonic() < deadline + 30
        finally:
            consumer.terminate()


def test_since_topic_and_max(journal_broker: Any, run: Run, orders: str) -> None:
    at = journal_broker.bootstrap
    for offset in range(5):
        commit(at, "g", {0: offset})
    quiet = pause()
    commit(at, "g", {0: 5, 1: 7})
    assert changes(run, "g", "--since", quiet) == [("commit", 0, 4, 5), ("commit", 1, None, 7)]
    assert len(changes(run, "g", "--since", "1h")) == 7
    assert changes(run, "g", "--max", "1") == [("commit", 1, None, 7)]
    assert changes(run, "g", "--topic", "other") == []
    assert "5 earlier ones are left out" in run("offsets", "log", "g", "--max", "2").stdout
    run("offsets", "log", "nobody", code=3)
    run("offsets", "log", "g", "--since", "sometime", code=2)
    run("offsets", "diff", "g", "--from", "1h", "--to", "2h", code=2)


@pytest.mark.parametrize("words", [("log",), ("diff",), ("restore",), ("undo",)])
def test_help_teaches_by_example(run: Run, words: tuple[str, ...]) -> None:
    assert f"barnabas offsets {words[0]} billing" in run("offsets", *words, "--help").stdout


def test_a_journal_that_is_off_since_is_said(journal_broker: Any, run: Run, orders: str) -> None:
    """What the journal says then is old: nobody may take it for what is so now."""
    commit(journal_broker.bootstrap, "g", {0: 10, 1: 10})
    run("offsets", "set", "g", "--to", "earliest", "--yes")
    journal_broker.stop()
    journal_broker.settings = ["offsets.journal.enable=false"]
    journal_broker.start()
    quiet = pause()
    commit(journal_broker.bootstrap, "g", {0: 30})
    told = run("offsets", "log", "g").stdout
    assert "GAP: broker 0, the group's coordinator, has offsets.journal.enable=false" in told
    refused = run("offsets", "restore", "g", "--at", quiet, "--yes", code=1)
    assert "the journal does not know where it was" in refused.stdout
    assert "has offsets.journal.enable=false" in refused.stderr
    assert "has offsets.journal.enable=false" in run("offsets", "diff", "g", "--from", quiet).stderr
    assert "offsets.journal.enable=false" in run("offsets", "undo", "g", "--yes", code=1).stderr
    assert committed(run, "g") == {0: 30, 1: 0}
    journal_broker.stop()
    journal_broker.settings = []
    journal_broker.start()
    assert changes(run, "g")[-1] == ("recovered", 0, None, 30)
    assert run("offsets", "undo", "g", "--yes").stdout


def test_the_journal_brings_back_what_a_lost_log_of_offsets_had(journal_broker: Any, run: Run, orders: str) -> None:
    """Until 2026-11-30 it said that it knew nothing of any time before the loss."""
    commit(journal_broker.bootstrap, "g", {0: 10, 1: 3})
    commit(journal_broker.bootstrap, "g", {0: 20})
    time.sleep(1.1)
    before = datetime.now().astimezone().isoformat()
    journal_broker.stop()
    for folder in Path(journal_broker.data).glob("__consumer_offsets-*"):
        folder.rename(journal_broker.data.parent / folder.name)
    journal_broker.start()
    run("offsets", "list", "g", code=3)
    run("offsets", "restore", "g", "--at", before, "--yes")
    assert committed(run, "g") == {0: 20, 1: 3}


def test_the_journal_is_internal(journal_broker: Any, run: Run, orders: str) -> None:
    commit(journal_broker.bootstrap, "g", {0: 1})
    run("offsets", "log", "g")
    assert JOURNAL not in run("topics", "list").stdout
    (described,) = json.loads(run("topics", "describe", JOURNAL, "--json").stdout)
    (offsets,) = json.loads(run("topics", "describe", "__consumer_offsets", "--json").stdout)
    assert described["configs"]["cleanup.policy"] == "delete"
    assert described["configs"]["retention.ms"] == str(30 * 24 * 3_600_000)
    assert len(described["partitions"]) == len(offsets["partitions"])
    assert JOURNAL in run("produce", JOURNAL, "--value", "x", code=2).stderr
    run("topics", "alter", JOURNAL, "--partitions", "60", code=1)


def test_a_broker_that_is_killed_loses_no_change(journal_broker: Any, run: Run, orders: str) -> None:
    """SIGKILL while a client commits: the journal shows what is committed, and nothing that is not."""
    chance = random.Random(1)
    offset = 0
    for _ in range(4):
        consumer = KafkaConsumer(
            bootstrap_servers=journal_broker.bootstrap, group_id="g", enable_auto_commit=False, client_id="my-app"
        )
        place = TopicPartition(orders, 0)
        consumer.assign([place])
        for _ in range(chance.randrange(20, 200)):
            offset = (offset + 1) % 100
            consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
        journal_broker.kill()
        consumer.close(autocommit=False)
        journal_broker.start()
        found = changes(run, "g")
        assert committed(run, "g") == {0: offset}
        assert found[-1][3] == offset
        for before, after in pairwise(found):
            assert after[0] in ("commit", "recovered")
            assert after[2] in (None, before[3]), (before, after)
            assert after[3] == (before[3] + 1) % 100, (before, after)
