"""A recorded session is sent again, in its order, and answered as it was."""

import base64
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.broker.control.recorder import EXCHANGES_MAX
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import FetchRequest
from barnabas.testing import Barnabas, Difference, Group, SessionError, Topic
from barnabas.testing.kept import address_of
from barnabas.testing.wire import Connection
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CommitFailedError, RebalanceInProgressError

RECORDS = 20


@pytest.fixture(scope="module")
def kafka() -> Iterator[Barnabas]:
    with Barnabas() as kafka:
        yield kafka


def consume(kafka: Barnabas, topic: Topic, group: Group, seen: list[bytes], name: str, together: Any) -> None:
    consumer = KafkaConsumer(
        topic.name,
        bootstrap_servers=kafka.bootstrap,
        group_id=group.name,
        client_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
    )
    while len(seen) < RECORDS:
        for records in consumer.poll(timeout_ms=200).values():
            seen += [record.value for record in records]
        with suppress(CommitFailedError, RebalanceInProgressError):  # the other one joins
            consumer.commit()
    together.wait(200)  # else one that is left alone would take the other's partition
    consumer.close()


def live(kafka: Barnabas, topic: Topic, group: Group) -> None:
    """Two members, records between their polls, a transaction that is committed and one that is aborted."""
    seen: list[bytes] = []
    together = threading.Barrier(2)
    members = [
        threading.Thread(target=consume, args=(kafka, topic, group, seen, f"member-{number}", together))
        for number in range(2)
    ]
    for number, member in enumerate(members, 1):  # one after the other: the delay of a first rebalance is a time
        member.start()
        group.wait_stable(members=number, timeout=50)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{topic.name}-tx")
    producer.init_transactions()
    for number in range(RECORDS):
        producer.begin_transaction()
        producer.send(topic.name, b"%d" % number, partition=number % 2).get(200)
        producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic.name, b"never", partition=0).get(200)
    producer.abort_transaction()
    producer.close()
    for member in members:
        member.join(200)
        assert not member.is_alive()


def is_timed(different: Difference) -> bool:
    """Whether it says how long something took, which is not replayed.

    Who joins while an assignment is being written ends the generation, and SyncGroup is answered with that.
    """
    errors = (different.recorded, different.now)
    is_overtaken = different.api == "SYNC_GROUP" and ErrorCode.REBALANCE_IN_PROGRESS in errors
    return different.api == "Heartbeat" or is_overtaken


def test_what_clients_did_is_done_again(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders", partitions=2), kafka.group("billing")
    mark = kafka.snapshot()
    live(kafka, topic, group)
    session = kafka.requests(since=mark.next_requests, frames=True)
    asked = {"JoinGroup", "SyncGroup", "Produce", "Fetch", "OffsetCommit", "EndTxn"}
    assert asked <= {row["api"] for row in session}
    offsets, values = group.offsets, topic.values()
    assert sum(offsets.values()) >= RECORDS
    kafka.restore(mark)
    assert (topic.values(), group.offsets) == ([], {})
    assert [each for each in kafka.replay(session) if not is_timed(each)] == []
    assert sorted(topic.values()) == sorted(values)
    assert group.offsets == offsets


def test_a_member_of_the_consumer_protocol_is_in_the_epochs_of_now(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders", partitions=2), kafka.group("billing")
    before = len(kafka.requests())
    with closing(Connection(address_of(kafka.bootstrap), 10.0)) as client:

        def beat(epoch: int, **fields: Any) -> int:
            request = messages.ConsumerGroupHeartbeatRequest(
                group_id=group.name, member_id="m", member_epoch=epoch, **fields
            )
            answer = client.ask(1, request, 10.0)
            assert answer.error_code == ErrorCode.NONE, answer
            return int(answer.member_epoch)

        epoch = beat(0, subscribed_topic_names=[topic.name], rebalance_timeout_ms=10_000, topic_partitions=[])
        assert beat(epoch) == epoch
        commit = messages.OffsetCommitRequest
        row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        topics = [commit.OffsetCommitRequestTopic(name=topic.name, partitions=[row])]
        request = commit(group_id=group.name, member_id="m", generation_id_or_member_epoch=epoch, topics=topics)
        assert client.ask(9, request, 10.0).topics[0].partitions[0].error_code == ErrorCode.NONE
        fetch = messages.OffsetFetchRequest
        of_group = fetch.OffsetFetchRequestGroup(group_id=group.name, member_id="m", member_epoch=epoch, topics=None)
        assert client.ask(9, fetch(groups=[of_group]), 10.0).groups[0].error_code == ErrorCode.NONE
        beat(-1)
    session = kafka.requests(frames=True)[before:]
    assert kafka.replay(session) == []
    assert group.generation > epoch


def test_a_long_poll_waits_for_the_records_that_it_got_however_slow_the_replay_is(kafka: Barnabas) -> None:
    topic = kafka.topic("orders")
    mark = kafka.snapshot()
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1_000_000)
    first = FetchRequest(max_bytes=1_000_000)
    first.topics = [FetchRequest.FetchTopic(topic=topic.name, partitions=[partition])]
    first.session_epoch = 0  # begins a fetch session, in which a partition without news is not in the answer
    with ThreadPoolExecutor() as pool, closing(Connection(address_of(kafka.bootstrap), 30)) as connection:
        number = connection.ask(12, first, 30).session_id
        poll = FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1_000_000, session_id=number, session_epoch=1)
        polled = pool.submit(connection.ask, 12, poll, 60)
        while len(kafka.requests("Fetch", since=mark.next_requests)) < 2:
            time.sleep(0.05)
        topic.produce(["a"])
        assert polled.result(200).responses[0].partitions[0].records
    session = kafka.requests(since=mark.next_requests, frames=True)
    _, row = (row for row in session if row["api"] == "Fetch")
    poll.max_wait_ms = 1  # over, before the replay sends the Produce
    row["frame"] = base64.b64encode(frames.encode_request(ApiKey.FETCH, 12, 1, "poll", poll)).decode()
    kafka.restore(mark)
    assert kafka.replay(session) == []


@pytest.mark.parametrize("is_now", [True, False], ids=["now", "recorded"])
def test_what_a_broker_cannot_do_yet_is_asked_again(kafka: Barnabas, is_now: bool) -> None:
    """As clients do. So a replay may be faster or slower than the session was."""
    topic = kafka.topic("orders")
    mark = kafka.snapshot()

    def not_yet(here: bool) -> AbstractContextManager[Any]:
        return kafka.fail("AddPartitionsToTxn", error="CONCURRENT_TRANSACTIONS", times=2) if here else nullcontext()

    with not_yet(not is_now):
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"{topic.name}-tx")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.name, b"a").get(200)
        producer.commit_transaction()
        producer.close()
    session = kafka.requests(since=mark.next_requests, frames=True)
    assert sum(row["api"] == "AddPartitionsToTxn" for row in session) == (1 if is_now else 3)
    kafka.restore(mark)
    with not_yet(is_now):
        assert kafka.replay(session) == []
    assert topic.values() == ["a"]


def test_what_is_answered_differently_is_told(kafka: Barnabas) -> None:
    topic, group = kafka.topic("orders"), kafka.group("billing")
    mark = kafka.snapshot()
    topic.produce(["a"])
    group.commit(topic, 0, 1)
    session = kafka.requests(since=mark.next_requests, frames=True)
    (produce,) = (row for row in session if row["api"] == "Produce")
    (other,) = kafka.replay(session)
    assert other[:3] == (produce["number"], 0, "Produce")
    assert other.field == f"responses[{topic}].partition_responses[0].base_offset"
    assert (other.recorded, other.now) == (0, 1)
    kafka.restore(mark)
    with kafka.fail("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", group=group):
        (failed,) = kafka.replay(session)
    assert (failed.api, failed.recorded, failed.now) == ("OffsetCommit", 0, 30)
    kafka.restore(mark)
    with kafka.cut("OffsetCommit"):
        (closed,) = kafka.replay(session)
    assert (closed.field, closed.recorded, closed.now) == ("", "answered", "closed")
    assert kafka.replay([]) == []
    with pytest.raises(SessionError, match="has no frame"):
        kafka.replay(kafka.requests(since=mark.next_requests))
    with pytest.raises(SessionError, match=f"request {produce['number']} of broker 0 is in the session twice"):
        kafka.replay([*session, produce])


def test_a_session_whose_beginning_is_gone_is_refused(kafka: Barnabas) -> None:
    mark = kafka.snapshot()
    host, _, port = kafka.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        for _ in range(EXCHANGES_MAX + 1):
            connection.sendall(frames.encode_request(ApiKey.API_VERSIONS, 0, 1, "many", messages.ApiVersionsRequest()))
            answers.read(int.from_bytes(answers.read(4), "big"))
    with pytest.raises(SessionError, match=r"the requests \d+ to \d+ of broker 0 are no longer kept"):
        kafka.requests(since=mark.next_requests, frames=True)
    assert kafka.requests(since=mark.next_requests, client="many"), "what is there is shown"


def test_a_session_in_a_file(kafka: Barnabas, tmp_path: Path) -> None:
    topic = kafka.topic("orders")
    mark = kafka.snapshot()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, client_id=f"of-{topic}")
    producer.send(topic.name, b"a").get(200)
    producer.close()
    file = tmp_path / "session.jsonl"

    def barnabas(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.barnabas(command, "--bootstrap", kafka.bootstrap, *words)

    lines = barnabas("trace", "--client", f"of-{topic}", "--kept", "--frames", "--json").stdout
    file.write_text(lines)
    number = len(lines.splitlines())
    kafka.restore(mark)
    done = barnabas("replay", str(file))
    assert (done.returncode, done.stdout) == (0, ""), done
    assert f"{number} requests sent again, 0 differences" in done.stderr
    assert topic.values() == ["a"]
    again = barnabas("replay", str(file), "--json")
    assert again.returncode == 1
    (row,) = map(json.loads, again.stdout.splitlines())
    assert (row["recorded"], row["now"]) == (0, 1)
    first = json.loads(lines.splitlines()[0])
    bad = {"frame": "AAAA"}, {"frame": 7}, {"frame": "no base64!"}, {"number": "x"}, {"answered_before": None}
    damaged = [(json.dumps(first | change), "") for change in (*bad, {"node_id": [1]})]
    nonsense = ("nonsense", "is not a session"), ("[" * 200_000, "is not a session"), ("", "is empty")
    for content, message in (*nonsense, ('{"number": 1}', "no request of a session"), *damaged):
        file.write_text(content)
        wrong = barnabas("replay", str(file))
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert message in wrong.stderr, wrong
        assert "Traceback" not in wrong.stderr, wrong
    wrong = barnabas("trace", "--kept", "--frames")
    assert (wrong.returncode, "--frames goes with --json" in wrong.stderr) == (2, True)


def test_a_broker_that_dies_in_the_middle(tmp_path: Path) -> None:
    with Barnabas() as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a"])
        with kafka.drop_answer("Fetch", times=1) as fault, closing(kafka.consumer()) as consumer:
            consumer.assign([TopicPartition(topic.name, 0)])
            consumer.poll(timeout_ms=500)
            assert fault.fired == 1
        file = tmp_path / "session.jsonl"
        was_answered = {"fate": "answered", "answered_before": 1 << 40}
        rows = [row | was_answered if row["api"] == "Fetch" else row for row in kafka.requests(frames=True)]
        file.write_text("\n".join(map(json.dumps, rows)))
        words = ["replay", "--bootstrap", kafka.bootstrap, str(file), "--json"]
        with kafka.drop_answer("Fetch") as fault:
            silent = forked.barnabas(*words, "--timeout", "1.5", code=1)
            assert "not answered within 1.5 s" in silent.stdout, silent
            replay = forked.Popen([*forked.BARNABAS, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            before = fault.fired
            while fault.fired == before:
                time.sleep(0.05)
            kafka.kill()
        _, errors = replay.communicate(timeout=200)
        assert replay.returncode == 1
        assert "Traceback" not in errors


def test_three_brokers() -> None:
    with Barnabas(brokers=3) as kafka:
        topic, group = kafka.topic("orders", partitions=3), kafka.group("billing")
        group.commit(topic, 0, 1)
        before = len(kafka.requests())
        for partition in range(3):
            topic.produce(["a", "b"], partition=partition)
        group.commit(topic, 2, 2)
        session = kafka.requests(frames=True)[before:]
        assert {row["node_id"] for row in session if row["api"] == "Produce"} == {0, 1, 2}
        found = [each for each in kafka.replay(session) if each.api == "Produce"]
        assert {each.field.rpartition(".")[2] for each in found} == {"base_offset"}
        assert len(found) == sum(row["api"] == "Produce" for row in session)
        assert sorted(topic.values()) == ["a"] * 6 + ["b"] * 6
        mark = kafka.snapshot()
        topic.produce(["c"])
        found = {row["api"] for row in kafka.requests(since=mark.next_requests)}
        assert "Produce" in found, "the brokers have begun again, and count from 1"
