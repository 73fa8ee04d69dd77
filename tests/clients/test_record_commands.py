"""`produce`, `consume` and `records`: lines of JSON, places to begin at, forms of output, records that go."""

import json
import os
import subprocess
from typing import Any

import pytest
from barnabas.pipeline.wire import Cluster
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_records import Record
from barnabas.protocol.checksum import crc32c

Run = Any  # of conftest.py


def written(run: Run, topic: str, *more: str) -> list[Any]:
    done = run("consume", topic, "--from-beginning", "--timeout", "1", "--format", "json", *more)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_of_json_are_records(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "2")
    lines = [
        '{"key": "k", "value": "v", "partition": 1, "timestamp": 1000, "headers": {"a": "1", "b": ""}}',
        '{"value": {"id": [1, "ü"]}, "partition": 1, "topic": "another", "offset": 99}',
        "",
        '{"key_base64": "/w==", "value": null, "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}',
    ]
    words = ("produce", name, "--format", "json", "-p", "0", "--header", "usual=x")
    assert run(*words, stdin="\n".join(lines)).stderr == f"3 records to {name}\n"
    rows = {(row["partition"], row["offset"]): row for row in written(run, name)}
    first, second, third = rows[1, 0], rows[1, 1], rows[0, 0]
    assert (first["key"], first["value"], first["timestamp"]) == ("k", "v", 1000)
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": ""}]
    assert (second["key"], second["value"]) == (None, '{"id": [1, "ü"]}')
    assert second["headers"] == [{"name": "usual", "value": "x"}]
    assert (third["key_base64"], third["value"]) == ("/w==", None)
    assert [header["value"] for header in third["headers"]] == ["1", "2"]


def test_what_consume_prints_is_what_produce_takes(run: Run, name: str) -> None:
    run("topics", "create", name, f"{name}-copy", "--partitions", "3")
    run("produce", name, "--key-separator", ":", "--header", "h=1", stdin="".join(f"k{n}:v{n}\n" for n in range(20)))
    run("produce", name, "--format", "json", stdin='{"value": null}\n{"value": ""}\n{"key": "", "value": null}\n')
    lines = run("consume", name, "--from-beginning", "--timeout", "1", "--format", "json").stdout
    run("produce", f"{name}-copy", "--format", "json", stdin=lines)

    def records(topic: str) -> list[Any]:
        rows = [{key: value for key, value in row.items() if key != "topic"} for row in written(run, topic)]
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    assert records(name) == records(f"{name}-copy")
    assert (None, None) in [(row["key"], row["value"]) for row in records(name)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("value", "Expecting value"),
        ("[1]", "it is no JSON object"),
        ("{}", "it has no value; null is one"),
        ('{"valeu": 1}', "there is no field 'valeu'"),
        ('{"value": 1, "value_base64": "eA=="}', "value and value_base64 exclude each other"),
        ('{"value_base64": "x"}', "value_base64 is no base64"),
        ('{"value": 1, "partition": "0"}', "partition is a whole number"),
        ('{"value": 1, "timestamp": -2}', "timestamp is a whole number"),
        ('{"value": 1, "value": 2}', "a name stands twice in an object"),
        ('{"value": {"id": 1, "id": 2}}', "a name stands twice in an object"),
        ('{"value": [NaN]}', "NaN is no JSON"),
        ('{"value": "x", "headers": {"a": -Infinity}}', "-Infinity is no JSON"),
        ('{"value": "\\ud800"}', "value has half of a surrogate pair"),
        ('{"value": 1, "headers": {"\\ud800": "x"}}', "the name of a header has half of a surrogate pair"),
        ('{"value": 1, "headers": ["a"]}', "headers are "),
    ],
)
def test_a_line_that_is_no_record_is_named(run: Run, name: str, line: str, why: str) -> None:
    done = run("produce", name, "--format", "json", stdin=f'{{"value": "first"}}\n{line}\n', code=1)
    said = done.stderr.splitlines()
    assert said[0] == f"1 record to {name}, then:"
    assert said[1].startswith(f"barnabas: line 2 is no record: {why}"), said
    assert [row["value"] for row in written(run, name)] == ["first"]


def test_json_is_sent_in_the_very_characters_of_its_line(run: Run, name: str) -> None:
    values = [
        '{"price":1.10,"n":1e400,"y":0.1234567890123456789,"z": -0.0, "big":123456789012345678901234567890}',
        '[ "\\u00fc\\/",\t"\\ud800" , {} ]',
        "1.10",
        "true",
    ]
    lines = [f' {{ "headers" : {{"h": {value} }} ,"value"\t: {value} , "key":{value}}} ' for value in values]
    lines.append('{"headers": [{"value": 1.10, "name": "a"}], "value": "x"}')
    run("produce", name, "--format", "json", stdin="\n".join(lines))
    *rows, last = written(run, name)
    assert [row["value"] for row in rows] == values
    assert [row["key"] for row in rows] == values
    assert [row["headers"] for row in rows] == [[{"name": "h", "value": value}] for value in values]
    assert last["headers"] == [{"name": "a", "value": "1.10"}]


def test_what_was_sent_before_a_record_that_cannot_be_sent_is_told(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "3")
    stdin = "".join(f'{{"value": "{text}", "partition": {where}}}\n' for text, where in (("a", 1), ("b", 1), ("c", 99)))
    done = run("produce", name, "--format", "json", "--json", stdin=stdin, code=1)
    places = [json.loads(text) for text in done.stdout.splitlines()]
    assert [(row["partition"], row["offset"]) for row in places] == [(1, 0), (1, 1)]
    error = json.loads(done.stderr)["error"]
    assert error.startswith("line 3 cannot be sent: ")
    assert "partition 99" in error
    told = run("produce", name, "--format", "json", stdin=stdin, code=1).stderr
    assert told == f"2 records to {name}, then:\nbarnabas: {error}\n"


def test_a_record_without_time_and_a_header_without_value_are_copied(run: Run, name: str, broker: Any) -> None:
    run("topics", "create", name, f"{name}-copy")
    headers = [("none", None), ("", b""), ("\u00fc", b"\xff"), ("none", b"1")]
    write(broker, name, [Record(timestamp=-1, key=None, value=b"v", headers=headers)])
    words = ("consume", name, "--from-beginning", "--timeout", "1", "--format", "json")
    run("produce", f"{name}-copy", "--format", "json", stdin=run(*words).stdout)
    (copy,) = written(run, f"{name}-copy")
    assert (copy["timestamp"], copy["key"], copy["value"]) == (-1, None, "v")
    assert copy["headers"] == [
        {"name": "none", "value": None},
        {"name": "", "value": ""},
        {"name": "\u00fc", "value_base64": "/w=="},
        {"name": "none", "value": "1"},
    ]


def test_a_header_whose_name_is_not_utf_8_ends_no_consume(run: Run, name: str, broker: Any) -> None:
    run("topics", "create", name)
    records = [Record(timestamp=5, key=None, value=b"%d" % n, headers=[("?h", b"x"), ("a", None)]) for n in range(3)]
    write(broker, name, records, lambda batch: batch.replace(b"?h", b"\xffh", 1))
    done = run("consume", name, "--from-beginning", "--timeout", "1", "--format", "json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["value"] for row in rows] == ["0", "1", "2"]
    assert [row["headers"][0]["name"] for row in rows] == ["\ufffdh", "?h", "?h"]
    assert f"{name}-0, offset 0: the name of a header is not UTF-8" in done.stderr
    assert done.stderr.count("not UTF-8") == 1


def write(broker: Any, topic: str, records: list[Record], change: Any = bytes) -> None:
    """Produce a batch as it is made here, after a change of its bytes."""
    batch = bytearray(change(bytes(record_batch.build(records))))
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    request = messages.ProduceRequest
    data = request.PartitionProduceData(index=0, records=bytes(batch))
    asked = request(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[request.TopicProduceData(name=topic, partition_data=[data])],
    )
    with Cluster([broker.bootstrap]) as cluster:
        cluster.refresh([topic])
        leader = cluster.leader_of(topic, 0)
        assert leader is not None
        (answered,) = cluster.send(leader, ApiKey.PRODUCE, asked).receive().responses
    assert [row.error_code for row in answered.partition_responses] == [0]


def test_consume_begins_where_it_is_told(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "2")
    stamped = "".join(f'{{"value": "{n}", "partition": 0, "timestamp": {1_000_000 * n}}}\n' for n in range(10))
    run("produce", name, "--format", "json", stdin=stamped + '{"value": "other", "partition": 1}\n')

    def consumed(*words: str, code: int = 0) -> str:
        found: str = run("consume", name, "--timeout", "1", *words, code=code).stdout
        return found.replace("\n", " ").strip()

    assert consumed("-p", "0", "--offset", "7") == "7 8 9"
    assert consumed("--partition", "0", "--offset", "-2") == "8 9"
    assert sorted(consumed("--offset", "-1").split()) == ["9", "other"]
    assert consumed("-p", "0", "--offset", "1970-01-01T02:13:20+00:00") == "8 9"
    assert consumed("-p", "0", "-p", "1", "--offset", "earliest", "--max", "11").count(" ") == 10
    assert consumed("-p", "1", "--from-beginning") == "other"
    assert consumed("-p", "0", "--offset", "latest", code=3) == ""
    assert (
        "has the offsets 0 to 10: it is read from 10 on, not 99"
        in run(*("consume", name, "-p", "0", "--offset", "99", "--timeout", "1"), code=3).stderr
    )
    assert f"{name} has no partition 7; it has 0 to 1." in run("consume", name, "-p", "7", code=3).stderr
    for words in (("--group", "g"), ("another",)):
        assert "one topic" in run("consume", name, "-p", "0", *words, code=2).stderr
    assert "exclude each other" in run("consume", name, "--offset", "0", "--from-beginning", code=2).stderr
    assert "--offset wants earliest" in run("consume", name, "--offset", "soon", code=2).stderr


def test_a_time_may_be_so_long_ago(run: Run, name: str) -> None:
    """Until 2026-11-30 only the commands that read the journal took it."""
    run("produce", name, "--value", "old", "--timestamp", "5")
    run("produce", name, "--value", "new")
    assert run("consume", name, "--offset", "2h", "--max", "1").stdout == "new\n"
    run("offsets", "set", f"g-{name}", "--topic", name, "--to", "90m", "--yes")
    (row,) = json.loads(run("offsets", "list", f"g-{name}", "--json").stdout)
    assert row["committed_offset"] == 1
    (row,) = json.loads(run("records", "delete", name, "--before", "3d", "--yes", "--json").stdout)
    assert row["new_log_start_offset"] == 1
    assert "or 90m, 12h, 3d ago, not '3w'" in run("records", "delete", name, "--before", "3w", code=2).stderr


def test_consume_prints_in_the_form_that_is_asked_for(run: Run, name: str) -> None:
    run("produce", name, "--value", "v", "--key", "k", "--header", "a=1", "--timestamp", "5")
    form = "{topic}/{partition}@{offset}\\t{timestamp} {key}={value} [{headers}]"
    words = ("consume", name, "--from-beginning", "--max", "1", "--timeout", "10", "--format")
    assert run(*words, form).stdout == f"{name}/0@0\t5 k=v [a=1]\n"
    assert run(*words, "value").stdout == "v\n"
    assert run(*words, "details").stdout == f"5\t{name}-0\t0\tk\ta=1\tv\n"
    for wrong in ("{nothing}", "text", ""):
        assert "--format is value, details, json, or a text with {topic}" in run(*words, wrong, code=2).stderr


def test_records_are_deleted(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "2")
    run("produce", name, "-p", "0", stdin="0\n1\n2\n3\n")
    run("produce", name, "-p", "1", "--value", "x")
    words = ("records", "delete", f"{name}:0", "--before", "3")
    assert "nobody is there to ask" in run(*words, code=2).stderr
    run(*words, "--dry-run")
    assert len(written(run, name)) == 5
    assert f"{name}-0: deleted" in run(*words, "--yes").stdout
    assert sorted(row["value"] for row in written(run, name)) == ["3", "x"]
    assert "has no record before 3" in run(*words, "--yes", code=3).stderr
    (first, second) = json.loads(run("records", "delete", name, "--before", "latest", "--yes", "--json").stdout)
    assert (first["new_log_start_offset"], second["new_log_start_offset"]) == (4, 1)
    assert (
        "there is no topic no-topic." in run("records", "delete", "no-topic", "--before", "1", "--yes", code=3).stderr
    )


def test_alter_shows_the_way_to_settings(run: Run, name: str) -> None:
    told = run("topics", "alter", name, "--config", "retention.ms=1", code=2).stderr
    assert f"`barnabas configs set topic {name} retention.ms=1`" in told
    assert "topics alter adds partitions (--partitions N)" in run("topics", "alter", name, code=2).stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(run: Run, shell: str) -> None:
    assert "_BARNABAS_COMPLETE=complete_" + shell in run("completion", shell).stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("barnabas rec", "records"),
        ("barnabas start --pro", "--profile"),
        ("barnabas topics create --part", "--partitions"),
    ],
)
def test_what_is_offered_for_completion(run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, offered: str) -> None:
    monkeypatch.setenv("_BARNABAS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    assert run().stdout.split() == [offered]


def test_bash_takes_the_script(run: Run) -> None:
    script = run("completion", "bash").stdout
    done = subprocess.run(
        ["bash", "-ec", script + "\ncomplete -p barnabas"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done
    assert "barnabas" in done.stdout
