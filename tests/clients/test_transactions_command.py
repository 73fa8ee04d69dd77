"""`barnabas transactions` on a running broker: what is open is listed, described and aborted; what hangs is found."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import forked
import hand_made_transactions as by_hand
import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FindCoordinatorRequest, ListOffsetsRequest, OffsetCommitRequest
from broker_process import Client

BrokerProcess: TypeAlias = Any  # of conftest.py
ESCAPES = "\x1b[31mred\n\u202e"
NOBODY = (7_000_000, 0)  # a producer that no coordinator knows


@pytest.fixture(scope="module")
def trusting(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker where transactions can be made to hang."""
    process = make_broker()
    with closing(Client(process.port)) as client:
        by_hand.find_coordinator(client, "first")
        by_hand.trust_producers(client)
    return process


@pytest.fixture
def client(trusting: BrokerProcess) -> Iterator[Client]:
    with closing(Client(trusting.port)) as made:
        yield made


@pytest.fixture
def topic(client: Client, name: str) -> str:
    assert client.create_topic(name, 2) == 0
    return name


def run(broker: BrokerProcess, *words: str, program: str | None = None) -> subprocess.CompletedProcess[str]:
    start = ["-m", "barnabas"] if program is None else ["-c", program]
    environment = {**os.environ, "BARNABAS_BOOTSTRAP": broker.bootstrap}
    command = [sys.executable, *start, "transactions", *words]
    return forked.run(command, capture_output=True, text=True, timeout=200, env=environment)


def done(broker: BrokerProcess, *words: str) -> str:
    result = run(broker, *words)
    assert result.returncode == 0, result
    return result.stdout


def document(broker: BrokerProcess, *words: str) -> Any:
    return json.loads(done(broker, *words, "--json"))


def stable(client: Client, topic: str, index: int) -> int:
    """The last stable offset."""
    asks = ListOffsetsRequest
    rows = [asks.ListOffsetsPartition(partition_index=index, timestamp=-1)]
    request = asks(replica_id=-1, isolation_level=1, topics=[asks.ListOffsetsTopic(name=topic, partitions=rows)])
    return int(client.ask(ApiKey.LIST_OFFSETS, 5, request).topics[0].partitions[0].offset)


def test_what_is_open_is_listed_described_and_aborted(trusting: BrokerProcess, client: Client, topic: str) -> None:
    producer = by_hand.begin(client, topic, [(topic, 0), (topic, 1)], timeout_ms=700_000)
    assert by_hand.write(client, topic, producer, topic, 0) == 0
    client.produce(topic, 0, by_hand.build([by_hand.Record(value=b"of another producer")]))

    (row,) = document(trusting, "list", "--producer-id", str(producer[0]))
    assert (row["transactional_id"], row["state"], row["partitions"]) == (topic, "Ongoing", 2)
    assert (row["timeout_ms"], row["producer_id"]) == (700_000, producer[0])
    assert 0 <= row["age_ms"] < 60_000
    assert topic in done(trusting, "list", "--state", "ongoing")
    (matching,) = document(trusting, "list", "--id-pattern", f"{topic[:-3]}.+")
    assert matching["transactional_id"] == topic
    assert document(trusting, "list", "--id-pattern", topic[:-3]) == []
    assert document(trusting, "list", "--longer-than", "3600") == []
    assert document(trusting, "list", "--state", "CompleteAbort", "--producer-id", str(producer[0])) == []

    found = document(trusting, "describe", topic)
    assert (found["state"], found["producer_id"], found["producer_epoch"]) == ("Ongoing", *producer)
    assert found["ends_ms"] == found["start_ms"] + 700_000
    written, other = found["partitions"]
    assert (written["first_offset"], written["last_stable_offset"], written["high_watermark"]) == (0, 0, 2)
    assert written["held_back"] == 2
    assert (other["first_offset"], other["note"]) == (None, "nothing is written yet")
    shown = done(trusting, "describe", topic)
    assert "timeout 11 min 40 s, which aborts it in 11 min" in shown

    refused = run(trusting, "abort", topic)  # nobody is there to ask
    assert refused.returncode == 2
    assert "nothing was changed" in refused.stderr
    assert stable(client, topic, 0) == 0
    assert document(trusting, "abort", topic, "--yes") == [{"transactional_id": topic, "result": "aborted"}]
    assert stable(client, topic, 0) == 3
    assert by_hand.end(client, topic, producer, commit=True) != 0  # its producer is fenced out
    again = run(trusting, "abort", topic, "--yes")
    assert (again.returncode, "no open transaction (CompleteAbort)" in again.stderr) == (3, True)
    assert "no transaction is open" in done(trusting, "describe", topic)


def test_what_hangs_is_found_and_aborted_by_the_command_that_is_printed(
    trusting: BrokerProcess, client: Client, topic: str
) -> None:
    offset = by_hand.write(client, topic, NOBODY, topic, 1, ago_ms=by_hand.HOUR_MS)
    producer = by_hand.begin(client, topic, [(topic, 0)])
    by_hand.write(client, topic, producer, topic, 0, ago_ms=by_hand.HOUR_MS)  # its coordinator knows this one
    (row,) = document(trusting, "find-hanging", "--topic", topic)
    assert (row["topic"], row["partition"], row["producer_id"], row["start_offset"]) == (topic, 1, NOBODY[0], offset)
    assert row["held_back"] == 1
    assert document(trusting, "find-hanging", "--topic", topic, "--longer-than", "7200") == []
    assert document(trusting, "find-hanging", "--topic", topic, "--partition", "0", "--longer-than", "0") == []
    shown = done(trusting, "find-hanging", "--topic", topic, "--broker", "0").splitlines()
    words = shlex.split(shown[-1])
    assert words[:3] == ["barnabas", "transactions", "abort"]
    result = run(trusting, *words[2:], "--yes")
    assert result.returncode == 0, result
    assert stable(client, topic, 1) == offset + 2
    assert document(trusting, "find-hanging", "--topic", topic) == []
    gone = run(trusting, *words[2:], "--yes")
    assert (gone.returncode, "no open transaction begins at offset" in gone.stderr) == (3, True)


def test_the_doctor_finds_what_hangs_and_what_is_open_for_long(
    trusting: BrokerProcess, client: Client, topic: str
) -> None:
    def findings() -> dict[str, str]:
        """The command of each finding about transactions of this test, by what it is about."""
        words = ("doctor", "--json", "--stalled-after", "1", "--limit", "5000")
        result = forked.barnabas(*words, BARNABAS_BOOTSTRAP=trusting.bootstrap)
        rows = json.loads(result.stdout)["findings"]
        return {
            row["where"]: row["command"]
            for row in rows
            if row["check"].endswith("transactions") and topic in row["where"]
        }

    by_hand.write(client, topic, NOBODY, topic, 1, ago_ms=by_hand.HOUR_MS)
    by_hand.begin(client, topic, [(topic, 0)])
    time.sleep(1.1)
    found = findings()
    assert sorted(found) == [f"partition {topic}-1", f"transaction {topic}"]
    for line in found.values():
        words = shlex.split(line)
        assert run(trusting, *words[2:], "--yes").returncode == 0
    assert findings() == {}


def commit(client: Client, group: str, topic: str, offset: int) -> None:
    """Commit for partition 0."""
    request = OffsetCommitRequest
    rows = [request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = [request.OffsetCommitRequestTopic(name=topic, partitions=rows)]
    client.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=group))

    def error_of(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    assert not error_of(
        by_hand.asked(client, ApiKey.OFFSET_COMMIT, 7, request(group_id=group, topics=topics), error_of)
    )


def test_a_group_that_waits_says_for_which_transaction(trusting: BrokerProcess, client: Client, topic: str) -> None:
    def described() -> tuple[list[dict[str, Any]], str]:
        words = ("groups", "describe", topic)
        said = [
            forked.barnabas(*words, *form, code=0, BARNABAS_BOOTSTRAP=trusting.bootstrap) for form in (["--json"], [])
        ]
        (document,) = json.loads(said[0].stdout)
        return document["waits"], said[1].stdout

    client.produce(topic, 0, by_hand.build([by_hand.Record(value=b"read")]))
    commit(client, topic, topic, 1)
    assert described()[0] == []
    producer = by_hand.begin(client, topic, [(topic, 0)])
    offset = by_hand.write(client, topic, producer, topic, 0)
    (wait,), shown = described()
    assert (wait["kind"], wait["topic"], wait["partition"], wait["offset"]) == ("records", topic, 0, offset)
    assert (wait["transactional_id"], wait["producer_id"]) == (topic, producer[0])
    assert wait["ends_ms"] == wait["since_ms"] + 600_000
    assert f"barnabas transactions abort {topic} " in shown
    assert f"get nothing from offset {offset} on" in shown
    assert by_hand.end(client, topic, producer, commit=True) == 0
    assert described()[0] == []

    by_hand.commit_in_transaction(client, topic, producer, topic, topic, 7)
    (wait,), shown = described()
    assert (wait["kind"], wait["offset"], wait["transactional_id"]) == ("offsets", 7, topic)
    assert "offset 7 counts when it is committed" in shown
    words = wait["command"]
    assert run(trusting, *words[1:], "--yes").returncode == 0
    assert described()[0] == []

    hangs = by_hand.write(client, topic, (NOBODY[0] + 1, 0), topic, 0)
    commit(client, topic, topic, hangs)
    (wait,), shown = described()
    assert (wait["transactional_id"], wait["offset"]) == (None, hangs)
    assert "that no coordinator knows" in shown
    assert run(trusting, *wait["command"][1:], "--yes").returncode == 0
    assert described()[0] == []


def test_what_its_coordinator_ends_does_not_hang(trusting: BrokerProcess, client: Client, topic: str) -> None:
    producer = by_hand.begin(client, topic, [(topic, 0)])
    offset = by_hand.write(client, topic, producer, topic, 0)
    where = ["--topic", topic, "--partition", "0", "--start-offset", str(offset)]
    refused = run(trusting, "abort", *where, "--yes")
    assert refused.returncode == 1
    assert f"`barnabas transactions abort {topic}` aborts it" in refused.stderr
    assert stable(client, topic, 0) == 0
    assert by_hand.end(client, topic, producer, commit=True) == 0


BETWEEN = """
import sys
sys.path[:0] = {path}
import hand_made_transactions as by_hand
from broker_process import Client
from barnabas.cli import abort_transaction
from barnabas.cli.main import run

def agreed(question, yes):
    client = Client({port})
    {meanwhile}

abort_transaction.confirm = agreed
sys.exit(run(sys.argv[1:]))
"""


def between(broker: BrokerProcess, meanwhile: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `abort` as if a person had taken so long to agree."""
    return run(broker, "abort", *words, program=BETWEEN.format(path=sys.path, port=broker.port, meanwhile=meanwhile))


def test_another_transaction_than_the_planned_one_is_not_touched(
    trusting: BrokerProcess, client: Client, topic: str
) -> None:
    producer = by_hand.begin(client, topic, [(topic, 0)])
    ends_and_begins = (
        f"by_hand.end(client, {topic!r}, {producer}, commit=True); "
        f"by_hand.add(client, {topic!r}, {producer}, [({topic!r}, 0)])"
    )
    result = between(trusting, ends_and_begins, topic)
    assert result.returncode == 1
    assert "nothing was changed" in result.stderr
    assert document(trusting, "describe", topic)["state"] == "Ongoing"
    assert by_hand.end(client, topic, producer, commit=True) == 0

    offset = by_hand.write(client, topic, NOBODY, topic, 1)
    where = ["--topic", topic, "--partition", "1", "--start-offset", str(offset)]
    ended_by_another = (
        f"import subprocess; subprocess.run([sys.executable, '-m', 'barnabas.cli.main', 'transactions', 'abort', "
        f"*{where!r}, '--yes'], check=True)"
    )
    result = between(trusting, ended_by_another, *where)
    assert result.returncode == 1
    assert "nothing was changed" in result.stderr


def test_names_do_not_steer_the_terminal(trusting: BrokerProcess, client: Client, topic: str) -> None:
    by_hand.begin(client, f"{ESCAPES}{topic}", [(topic, 0)])
    for words in (["list"], ["describe", f"{ESCAPES}{topic}"], ["abort", f"{ESCAPES}{topic}", "--yes"]):
        result = run(trusting, *words)
        assert result.returncode == 0, result
        assert topic in result.stdout
        assert not {"\x1b", "\u202e"} & set(result.stdout + result.stderr), result
    names = [row["transactional_id"] for row in document(trusting, "list", "--id-pattern", f"(?s).*{topic}")]
    assert names == [f"{ESCAPES}{topic}"]
    missing = run(trusting, "describe", f"{ESCAPES}gone")
    assert (missing.returncode, "\x1b" in missing.stderr, missing.stderr.count("\n")) == (3, False, 1)


def test_the_command_that_is_named_takes_any_id(trusting: BrokerProcess, client: Client, topic: str) -> None:
    name = f"-a b{topic}"
    producer = by_hand.begin(client, name, [(topic, 0)])
    offset = by_hand.write(client, name, producer, topic, 0)
    where = ("--topic", topic, "--partition", "0", "--start-offset", str(offset))
    refused = run(trusting, "abort", *where, "--yes")
    assert (refused.returncode, "the transaction does not hang" in refused.stderr) == (1, True)
    _, line, _ = refused.stderr.split("`")
    assert shlex.split(line)[:3] == ["barnabas", "transactions", "abort"]
    assert shlex.split(line)[3:] == ["--", name]
    assert "aborted" in done(trusting, "abort", "--yes", "--", name)


def test_thousands_of_open_transactions_are_listed_with_their_ages(
    trusting: BrokerProcess, client: Client, topic: str
) -> None:
    ids = [f"{topic}-{number:04}" for number in range(2_000)]
    request = by_hand.InitProducerIdRequest
    for some in (ids[:1_000], ids[1_000:]):
        for one in some:
            client.send(
                ApiKey.INIT_PRODUCER_ID,
                4,
                request(transactional_id=one, transaction_timeout_ms=600_000, producer_id=-1, producer_epoch=-1),
            )
        given = [client.answer(ApiKey.INIT_PRODUCER_ID, 4) for _ in some]
        for one, each in zip(some, given, strict=True):
            adding = by_hand.adding(one, (each.producer_id, each.producer_epoch), [(topic, 0)])
            client.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding)
        for _ in some:
            client.answer(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
    rows = document(trusting, "list", "--state", "Ongoing", "--id-pattern", f"{topic}.*")
    assert sorted(row["transactional_id"] for row in rows) == ids
    assert all(row["partitions"] == 1 for row in rows)
    assert [row["age_ms"] for row in rows] == sorted((row["age_ms"] for row in rows), reverse=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["abort", "--yes"], "say which"),
        (["abort", "x", "--topic", "t"], "not both"),
        (["abort", "--topic", "t", "--partition", "0"], "say which"),
        (["find-hanging", "--partition", "0"], "name it with --topic"),
        (["list", "--longer-than", "1", "--state", "Empty"], "is for open transactions"),
        (["list", "--id-pattern", "(["], "no regular expression"),
        (["describe", ""], "at least one character"),
    ],
)
def test_what_is_not_valid_is_refused(trusting: BrokerProcess, words: list[str], says: str) -> None:
    result = run(trusting, *words)
    assert (result.returncode, says in result.stderr) == (2, True), result


@pytest.mark.parametrize(
    "words",
    [
        ["describe", "there-is-none"],
        ["abort", "there-is-none", "--yes"],
        ["find-hanging", "--topic", "there-is-none"],
        ["find-hanging", "--broker", "77"],
        ["abort", "--topic", "there-is-none", "--partition", "0", "--start-offset", "0", "--yes"],
    ],
)
def test_what_is_not_there_is_said(trusting: BrokerProcess, words: list[str]) -> None:
    result = run(trusting, *words)
    assert result.returncode == 3, result
    assert result.stderr
