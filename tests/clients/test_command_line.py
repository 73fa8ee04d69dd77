"""`barnabas`: what a person types, against a broker process."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.protocol.uuids import from_text

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = forked.BARNABAS


def in_json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def lines_in_json(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("start",),
        ("status",),
        ("cluster",),
        ("cluster", "backup"),
        ("demo",),
        ("produce",),
        ("consume",),
        *(("topics", word) for word in ("list", "describe", "create", "alter", "delete")),
        *(("groups", word) for word in ("list", "describe", "lag", "explain", "delete")),
        *(("offsets", word) for word in ("list", "set", "delete", "cleanup")),
        *(("configs", word) for word in ("describe", "set", "delete")),
        *(("features", word) for word in ("describe", "upgrade", "downgrade", "disable")),
    ],
)
def test_help_teaches_by_example(run: Run, words: tuple[str, ...]) -> None:
    shown = run(*words, "--help").stdout
    assert f"barnabas {' '.join(words)}".strip() in shown.replace("Usage: barnabas", "", 1)


def test_a_command_that_there_is_not_is_answered_with_one_that_there_is(run: Run) -> None:
    assert "No such command 'topic'. Did you mean 'topics'?" in run("topic", "list", code=2).stderr
    error = {"error": "No such command 'topic'. Did you mean 'topics'?", "exit_code": 2}
    assert json.loads(run("topic", "list", "--json", code=2).stderr) == error


def test_the_life_of_a_topic(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "2", "--config", "retention.ms=1234567")
    assert "already exists" in run("topics", "create", name, code=1).stderr
    run("topics", "create", name, "--if-not-exists")
    listed = {row["topic"]: row for row in in_json(run("topics", "list", "--json"))}
    assert listed[name]["partitions"] == 2
    run("topics", "alter", name, "--partitions", "3")
    (described,) = in_json(run("topics", "describe", name, "--json"))
    assert len(from_text(described["topic_id"])) == 16
    assert described["topic_id"] in run("topics", "list").stdout
    assert described["configs"] == {"retention.ms": "1234567"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert name in run("topics", "describe", name).stdout
    refused = run("topics", "delete", "__transaction_state", code=2).stderr
    assert "all open transactions are forgotten" in refused
    assert "nothing was changed" in refused
    refused = run("topics", "delete", name, code=2).stderr
    assert refused.startswith("barnabas: nothing was changed")
    assert "--yes" in refused
    run("topics", "delete", name, "--yes")
    run("topics", "delete", name, "--yes", code=3)
    run("topics", "describe", name, code=3)
    assert name not in run("topics", "list").stdout


def test_records_go_in_and_come_out(run: Run, name: str) -> None:
    run("produce", name, stdin="one\ntwo\n")
    sent = lines_in_json(run("produce", name, "--key-separator", ":", "--json", stdin="k:three\n"))
    assert [(row["topic"], row["partition"], row["offset"]) for row in sent] == [(name, 0, 2)]
    run(
        "produce",
        name,
        "--value",
        "four",
        "--key",
        "k",
        "--header",
        "a=1",
        "--compression",
        "zstd",
        "--timestamp",
        "77",
    )
    run("produce", name, "--value", "-", "--key", "k", "--null-value", "-", "--acks", "1")
    read = ("consume", name, "--from-beginning", "--max", "5", "--timeout", "20")
    assert run(*read).stdout.splitlines() == ["one", "two", "three", "four", "null"]
    rows = lines_in_json(run(*read, "--json"))
    assert [row["value"] for row in rows] == ["one", "two", "three", "four", None]
    assert rows[3] == {
        "topic": name,
        "partition": 0,
        "offset": 3,
        "timestamp": 77,
        "key": "k",
        "value": "four",
        "headers": [{"name": "a", "value": "1"}],
    }
    assert f"77\t{name}-0\t3\tk\ta=1\tfour" in run(*read, "--details").stdout
    assert run("produce", name, "--value", "x", "--count", "500").stderr == f"500 records to {name}\n"


def test_nothing_to_read_is_told_by_the_exit_code(run: Run, name: str) -> None:
    run("consume", name, code=3)
    run("topics", "create", name)
    assert run("consume", name, "--timeout", "0.5", code=3).stdout == ""


def test_a_group_goes_on_where_it_committed(run: Run, name: str) -> None:
    run("produce", name, stdin="".join(f"{number}\n" for number in range(10)))
    read = ("consume", name, "--group", name, "--from-beginning", "--timeout", "20", "--max")
    assert run(*read, "4").stdout.split() == ["0", "1", "2", "3"]
    (row,) = in_json(run("offsets", "list", name, "--json"))
    assert (row["committed_offset"], row["log_end_offset"], row["lag"]) == (4, 10, 6)
    assert run(*read, "2").stdout.split() == ["4", "5"]
    assert name in run("groups", "list", "--state", "Empty").stdout
    (described,) = in_json(run("groups", "describe", name, "--json"))
    assert (described["state"], described["members"]) == ("Empty", [])


def test_committed_offsets_can_be_moved(run: Run, name: str) -> None:
    run("produce", name, stdin="".join(f"{number}\n" for number in range(10)))
    move = ("offsets", "set", name)

    def committed() -> int:
        return int(in_json(run("offsets", "list", name, "--json"))[0]["committed_offset"])

    run(*move, "--to", "earliest", "--yes", code=3)
    run(*move, "--topic", name, "--to", "7", "--yes")
    assert committed() == 7
    preview = run(*move, "--to", "earliest", "--dry-run").stdout
    assert "-7" in preview
    assert committed() == 7
    run(*move, "--shift-by", "-2", "--yes")
    assert committed() == 5
    run(*move, "--to", "latest", "--yes")
    assert committed() == 10
    run(*move, "--to", "2020-01-01T00:00", "--yes")
    assert committed() == 0
    run(*move, "--to", "9999", "--yes", "--json")
    assert committed() == 10
    assert "--yes" in run(*move, "--to", "earliest", code=2).stderr
    run(*move, "--to", "sometime", code=2)
    run("offsets", "delete", name, "--topic", f"{name}:0", "--yes")
    run("offsets", "list", name, code=3)


def test_a_living_group_is_left_alone(broker: Any, run: Run, name: str, wait_until: Any) -> None:
    run("topics", "create", name)
    command = [*COMMAND, "consume", name, "--group", name, "--bootstrap", broker.bootstrap]
    with forked.Popen(command, stdout=subprocess.PIPE) as consumer:
        try:

            def joined() -> bool:
                groups = in_json(run("groups", "list", "--json"))
                return any(row["group"] == name and row["state"] == "Stable" for row in groups)

            wait_until(joined)
            refused = run("offsets", "set", name, "--topic", name, "--to", "earliest", "--yes", code=1)
            assert "has 1 member, which would commit over it" in refused.stderr
            assert "members" in run("groups", "delete", name, "--yes", code=1).stderr
            (described,) = in_json(run("groups", "describe", name, "--json"))
            assert described["members"][0]["partitions"] == [[name, 0]]
        finally:
            consumer.send_signal(signal.SIGTERM)
    assert consumer.returncode == 0
    # The member has left. The group has no offsets, so it may be gone by now.
    assert name not in run("groups", "list", "--state", "Stable").stdout
    rebalancing = ("--state", "PreparingRebalance", "--state", "completingrebalance")
    assert name not in run("groups", "list", *rebalancing).stdout


def test_features_go_up_and_down(run: Run) -> None:
    def level() -> int:
        rows = {row["feature"]: row for row in in_json(run("features", "describe", "--json"))}
        assert rows["metadata.version"]["level"] == 30
        assert (rows["transaction.version"]["min_supported"], rows["transaction.version"]["max_supported"]) == (0, 2)
        return int(rows["transaction.version"]["level"])

    assert level() == 2
    words = ("--feature", "transaction.version=1")
    assert run("features", "downgrade", *words, "--dry-run").stdout == "transaction.version: can be downgraded to 1\n"
    assert level() == 2
    told = run("features", "upgrade", *words, code=1).stderr
    assert "Can't downgrade the version of this feature" in told
    assert "to lower a level: barnabas features downgrade --feature transaction.version=1" in told
    assert run("features", "downgrade", *words).stdout == "transaction.version: downgraded to 1\n"
    assert run("features", "downgrade", *words).stdout == "transaction.version: at level 1 already\n"
    assert level() == 1
    assert run("features", "disable", "--feature", "transaction.version").stdout == "transaction.version: disabled\n"
    assert level() == 0
    assert "transaction.version" in run("features", "describe").stdout
    (row,) = in_json(run("features", "upgrade", "--feature", "transaction.version=2", "--json"))
    assert row == {"feature": "transaction.version", "result": "upgraded to 2", "level": 2, "level_before": 0}
    assert level() == 2
    told = run("features", "upgrade", "--feature", "transaction.version=3", code=1).stderr
    assert "only supports versions 0-2" in told
    assert "barnabas features describe" in told
    assert "does not support this feature" in run("features", "upgrade", "--feature", "no.such=1", code=1).stderr
    for wrong in (
        ["--feature", "a"],
        ["--feature", "a=x"],
        ["--feature", "a=1", "--feature", "a=2"],
        ["--all", *words],
        [],
    ):
        run("features", "upgrade", *wrong, code=2)
    run("features", "disable", code=2)


def test_settings_of_topics_and_brokers(run: Run, name: str) -> None:
    run("topics", "create", name)
    run("configs", "set", "topic", name, "retention.ms=5000000", "cleanup.policy=compact")
    rows = {row["name"]: row for row in in_json(run("configs", "describe", "topic", name, "--json"))}
    assert rows["retention.ms"]["value"] == "5000000"
    assert rows["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    run("configs", "delete", "topic", name, "cleanup.policy")
    assert "cleanup.policy" not in run("configs", "describe", "topic", name).stdout
    assert "segment.bytes" in run("configs", "describe", "topic", name, "--all").stdout
    assert "Invalid value soon" in run("configs", "set", "topic", name, "retention.ms=soon", code=1).stderr
    run("configs", "set", "topic", name, "retention.ms", code=2)
    run("configs", "describe", "topic", f"{name}-not", code=3)
    run("configs", "set", "topic", f"{name}-not", "retention.ms=1", code=3)
    run("configs", "describe", "topic", name, "no.such.setting", code=3)
    run("configs", "describe", "broker", "first", code=2)
    run("configs", "describe", "broker", "77", code=3)


def test_the_status_of_a_broker(broker: Any, run: Run) -> None:
    said = in_json(run("status", "--json"))
    (known,) = said["brokers"]
    assert f"{known['host']}:{known['port']}" == said["bootstrap"] == broker.bootstrap
    assert said["controller"] == known["node_id"]
    assert known["http"] is None or known["http"].startswith("127.0.0.1:")  # Apache Kafka has none
    assert len(said["cluster_id"]) == 22
    assert said["version"].startswith("4.")
    assert said["cluster_id"] in run("status").stdout


def test_what_a_setting_means(run: Run, name: str) -> None:
    run("topics", "create", name)
    (row,) = in_json(run("configs", "describe", "topic", name, "segment.ms", "--json"))
    assert (row["type"], row["source"]) == ("LONG", "DEFAULT_CONFIG")
    shown = run("configs", "describe", "topic", name, "segment.ms", "--docs").stdout
    assert shown.startswith("segment.ms = 604800000  (default)\n")
    assert row["documentation"]
    assert row["documentation"] in shown


def test_settings_of_all_brokers(run: Run) -> None:
    key = "log.cleaner.delete.retention.ms"

    def held(resource: str) -> list[tuple[str, str]]:
        rows = in_json(run("configs", "describe", "broker", resource, "--json"))
        return [(row["value"], row["source"]) for row in rows if row["name"] == key]

    assert held("default") == []
    run("configs", "set", "broker", "default", f"{key}=77000", "--dry-run")
    assert "overrides nothing" in run("configs", "describe", "broker", "default").stderr
    run("configs", "set", "broker", "default", f"{key}=77000")
    assert held("default") == held("0") == [("77000", "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    run("configs", "set", "broker", "0", f"{key}=88000")
    assert held("0") == [("88000", "DYNAMIC_BROKER_CONFIG")]
    run("configs", "delete", "broker", "0", key)
    assert held("0") == [("77000", "DYNAMIC_DEFAULT_BROKER_CONFIG")]
    run("configs", "delete", "broker", "default", key)
    assert held("default") == held("0") == []


def test_settings_of_a_group(run: Run, name: str) -> None:
    key = "consumer.session.timeout.ms"

    def held() -> tuple[str, str]:
        (row,) = in_json(run("configs", "describe", "group", name, key, "--json"))
        return row["value"], row["source"]

    default = held()
    assert default[0] != "55000"
    run("configs", "set", "group", name, f"{key}=55000")
    assert held() == ("55000", "DYNAMIC_GROUP_CONFIG")
    assert f"group.{key}={default[0]}" in run("configs", "describe", "group", name).stdout
    assert key in run("configs", "set", "group", name, f"{key}=1", code=1).stderr
    run("configs", "delete", "group", name, key)
    assert held() == default


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("groups", "describe", "no-such-group"), 3, "no-such-group"),
        (("groups", "lag", "no-such-group"), 3, "no-such-group"),
        (("groups", "delete", "no-such-group", "--yes"), 3, "there is no such group"),
        (("offsets", "list", "no-such-group"), 3, "there is no group no-such-group"),
        (("groups", "list", "--state", "asleep"), 2, "asleep"),
        (("produce", "a/b", "--value", "x"), 2, "a/b"),
        (("produce", "words", "--value", "x", "--partition", "99"), 2, "99"),
        (("consume", "--pattern", "("), 2, "regular expression"),
        (("topics", "list", "--bootstrap", ""), 2, "--bootstrap wants HOST:PORT"),
        (("topics", "list", "--bootstrap", "host:notaport"), 2, "not 'host:notaport'"),
        (("produce", "words", "--value", "x", "--timestamp", "99999999999999999999"), 2, "--timestamp"),
        (("produce", "w" * 40_000, "--value", "x"), 2, "barnabas: "),
        (("offsets", "list", "g" * 40_000), 1, "closed the connection"),
    ],
)
def test_what_goes_wrong_is_told_in_a_sentence(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in run(*words, code=code).stderr


@pytest.mark.parametrize("words", [("--help",), ("topics", "-h"), ("status",), ("topics", "list", "--json")])
@pytest.mark.parametrize(("redirected", "code"), [(">/dev/full", 1), (">&-", 0), ("<&- >&- 2>&-", 0)])
def test_output_that_cannot_be_written(broker: Any, words: tuple[str, ...], redirected: str, code: int) -> None:
    """No room for it is told in a sentence. What a parent has closed is not wanted, and costs nothing else."""
    environment = {**os.environ, "BARNABAS_BOOTSTRAP": broker.bootstrap}
    line = f"{shlex.join([*COMMAND, *words])} {redirected}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment, timeout=200)
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (code, ""), done
    assert ("No space left on device" in done.stderr) == (done.returncode == 1), done


@pytest.mark.parametrize("command", [("topics", "list"), ("produce", "x", "--value", "y"), ("consume", "x")])
def test_a_broker_that_is_not_there(run: Run, command: tuple[str, ...]) -> None:
    told = run(*command, "--bootstrap", "127.0.0.1:1", code=1).stderr
    assert told.startswith("barnabas: no broker answers at 127.0.0.1:1. Start one with `barnabas start`")
    assert told.count("\n") == 1


@pytest.mark.parametrize("columns", ["80", "120"])
def test_examples_in_the_help_stay_on_their_line(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    from barnabas.cli import configs, consume, demo, features, groups, offsets, produce, topics

    monkeypatch.setenv("COLUMNS", columns)
    docs = [module.app.info.help or "" for module in (topics, groups, offsets, configs, features)]
    docs += [
        info.callback.__doc__
        for module in (topics, groups, offsets, configs, features, produce, consume, demo)
        for info in module.app.registered_commands
    ]
    examples = [
        line.strip() for doc in docs for line in doc.splitlines() if line.startswith("    ") and "barnabas " in line
    ]
    assert len(examples) > 40
    assert [line for line in examples if len(line) > 78] == []
    assert (
        "barnabas configs set topic orders retention.ms=3600000 cleanup.policy=compact" in run("configs", "-h").stdout
    )


# ---------------------------------------------------------------- start


def start(*words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a start that is refused."""
    done = forked.run([*COMMAND, "start", *words], capture_output=True, text=True, timeout=timeout_s)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_start_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys, barnabas.cli.main, barnabas.cli.start, barnabas.broker.broker, uvloop\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert {"kafka", "typer", "pydantic", "rich", "http", "lzma", "shutil", "True"} & set(done.stdout.split()) == set()


def test_commands_import_no_part_of_a_broker() -> None:
    """They are clients, and each start pays for what is imported."""
    code = (
        "import importlib, sys\n"
        "from barnabas.cli.commands import COMMANDS\n"
        "for name in COMMANDS:\n"
        "    name == 'start' or importlib.import_module(f'barnabas.cli.{name}')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    parts = ("broker", "controller", "replication", "storage.log", "storage.segment", "coordinators.groups.coordinator")
    imported = [name.removeprefix("barnabas.") for name in done.stdout.split() if name.startswith("barnabas.")]
    assert [name for name in imported if name.startswith(parts)] == []


def test_a_second_broker_on_the_same_data_is_refused(broker: Any) -> None:
    refused = start("--data", str(broker.data), "--port", "0")
    assert refused.returncode == 1
    assert str(broker.data) in refused.stderr


def test_a_host_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    done = start("--data", str(tmp_path / "data"), "--listeners", "PLAINTEXT://a.invalid:0")
    assert done.returncode == 1
    assert "PLAINTEXT://a.invalid:0: a host in it cannot be found" in done.stderr


def test_a_port_in_use_is_refused(broker: Any, tmp_path: Path) -> None:
    refused = start("--data", str(tmp_path), "--listeners", f"PLAINTEXT://{broker.bootstrap}")
    assert refused.returncode == 1
    assert broker.bootstrap in refused.stderr
    assert "--port" in refused.stderr


def test_data_of_another_node_is_refused(own_broker: Any) -> None:
    assert own_broker.stop() == 0
    refused = start("--data", str(own_broker.data), "--port", "0", "--set", "node.id=7")
    assert refused.returncode == 1
    assert "belongs to node 0, this is node 7" in refused.stderr


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused = start("--config", str(tmp_path / "missing.properties"))
    assert (refused.returncode, "missing.properties" in refused.stderr) == (2, True)
    # A directory, because root may read every file.
    refused = start("--config", str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"barnabas: {tmp_path} cannot be read: Is a directory. Let this user read it, or name another.\n"
    )


def test_damaged_identity_is_refused(own_broker: Any) -> None:
    assert own_broker.stop() == 0
    (own_broker.data / "meta.properties").write_text("version=1\nnode.id=zero\n")
    refused = start("--data", str(own_broker.data), "--port", "0")
    assert refused.returncode == 1
    assert "meta.properties" in refused.stderr


def test_settings_that_are_not_valid_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a comment\nnum.partitions=many\nno.such.setting=1\n")
    refused = start("--config", str(file), "--data", str(tmp_path / "data"))
    assert refused.returncode == 2
    assert "server.properties:2: " in refused.stderr
    assert "server.properties:3: Unknown configuration no.such.setting" in refused.stderr


def test_a_configuration_may_come_through_a_pipe(tmp_path: Path) -> None:
    """`--config <(...)`, as a shell gives it. Each of several brokers would want to read it."""
    for words, said in ((("--port", "9"), "no.such.setting"), (("--brokers", "3"), "cannot be read by each broker")):
        source, sink = os.pipe()
        os.write(sink, b"no.such.setting=1\n" if "--port" in words else b"num.partitions=3\n")
        os.close(sink)
        command = [*COMMAND, "start", "--config", f"/dev/fd/{source}", "--data", str(tmp_path / "data"), *words]
        refused = subprocess.run(command, pass_fds=[source], capture_output=True, text=True, timeout=200, check=False)
        os.close(source)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert not (tmp_path / "data").exists()


def test_a_kafka_users_file_works(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=0\nnum.network.threads=3\nlog.retention.hours=168\n")
    words = ["--config", str(file), "--data", str(tmp_path / "data"), "--listeners", "PLAINTEXT://127.0.0.1:0"]
    process = forked.Popen([*COMMAND, "start", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, noted = process.communicate(timeout=200)
    assert "127.0.0.1:" in line
    assert process.returncode == 0
    assert "server.properties:2: num.network.threads has no effect" in noted


def test_the_ready_line_in_json(own_broker: Any) -> None:
    own_broker.stop()
    words = ["--data", str(own_broker.data), "--port", "0", "--json", "--profile", "ci"]
    process = forked.Popen([*COMMAND, "start", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    rest, noted = process.communicate(timeout=200)
    assert process.returncode == 0
    assert rest == ""
    assert ready["event"] == "ready"
    assert ready["pid"] == process.pid
    assert ready["node_id"] == 0
    assert len(ready["cluster_id"]) == 22
    assert ready["data"] == str(own_broker.data)
    assert ready["bootstrap"].startswith("127.0.0.1:")
    assert "offsets.topic.num.partitions=1" in noted


def test_demo_shows_a_round_trip(tmp_path: Path) -> None:
    done = forked.run([*COMMAND, "demo"], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "message 0" in done.stdout
    assert "message 9" in done.stdout
    assert "went on where it was" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_modules_in_the_folder_of_the_user_are_not_imported(tmp_path: Path) -> None:
    """As the program `barnabas` starts another one: `python -m` alone would look there first."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    command = [sys.executable, "-P", "-m", "barnabas", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_commands_run_where_a_warning_is_an_error(tmp_path: Path) -> None:
    """Until 2026-11-30 the import of kafka-python ended them, with a traceback."""
    env = os.environ | {"PYTHONWARNINGS": "error"}
    done = subprocess.run([*COMMAND, "demo"], capture_output=True, text=True, timeout=200, cwd=tmp_path, env=env)
    assert (done.returncode, "Warning" in done.stderr) == (0, False), done.stderr
    assert "went on where it was" in done.stdout


def test_commands_read_answers_without_assertions(tmp_path: Path) -> None:
    """Until 2026-11-30 the commands waited for 30 s with PYTHONOPTIMIZE, and said that no broker answers."""
    environment = os.environ | {"PYTHONOPTIMIZE": "1"}
    done = subprocess.run([*COMMAND, "demo"], capture_output=True, text=True, timeout=20, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "went on where it was" in done.stdout


# ---- where offsets set moves a group ----


def committed(run: Run, group: str) -> dict[tuple[str, int], int]:
    rows = in_json(run("offsets", "list", group, "--json"))
    return {(row["topic"], row["partition"]): row["committed_offset"] for row in rows}


def a_topic_with_records(run: Run, name: str) -> None:
    run("topics", "create", name, "--partitions", "2")
    run("produce", name, stdin="".join(f"{number}\n" for number in range(40)))


@pytest.mark.parametrize(
    "content",
    [
        "{topic},0,3\n{topic},1,4\n",
        "topic,partition,offset\n{topic},0,3\n\n# a note\n{topic},1,4\n",
        '[{{"topic": "{topic}", "partition": 0, "offset": 3}}, {{"topic": "{topic}", "partition": 1, "offset": 4}}]',
        '{{"topic": "{topic}", "partition": 0, "committed_offset": 3}}\n'
        '{{"topic": "{topic}", "partition": 1, "new_offset": 4, "committed_offset": 9}}\n',
    ],
    ids=["csv", "csv with a header", "json", "json lines"],
)
def test_offsets_set_to_a_file(run: Run, name: str, tmp_path: Path, content: str) -> None:
    a_topic_with_records(run, name)
    file = tmp_path / "positions"
    file.write_text(content.format(topic=name))
    run("offsets", "set", name, "--to-file", str(file), "--yes")
    assert committed(run, name) == {(name, 0): 3, (name, 1): 4}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{topic},0,3\n{topic},1,1000\n", "outside its log"),
        ("{topic},0,3\n{topic},7,1\n", "no such partition"),
        ("{topic},0,3\n{topic},0,4\n", "there twice"),
        ("{topic},0,3\n{topic},1,-4\n", "a whole number"),
        ("{topic},0,3\n{topic},1\n", "is not topic,partition,offset"),
        ('{{"topic": "{topic}", "partition": 0}}', "topic, partition and offset are needed"),
        ('{{"topic": "{topic}", ', "no JSON"),
    ],
)
def test_a_file_with_one_wrong_row_changes_nothing(run: Run, name: str, tmp_path: Path, content: str, why: str) -> None:
    a_topic_with_records(run, name)
    run("offsets", "set", name, "--topic", name, "--to", "5", "--yes")
    before = committed(run, name)
    file = tmp_path / "positions"
    file.write_text(content.format(topic=name))
    done = run("offsets", "set", name, "--to-file", str(file), "--yes", code=2)
    assert why in done.stderr
    assert committed(run, name) == before


def test_offsets_set_to_another_group(run: Run, name: str) -> None:
    a_topic_with_records(run, name)
    run("offsets", "set", f"{name}-canary", "--topic", name, "--to", "7", "--yes")
    run("offsets", "set", name, "--to-group", f"{name}-canary", "--topic", f"{name}:1", "--yes")
    assert committed(run, name) == {(name, 1): 7}
    run("offsets", "set", name, "--to-group", f"{name}-canary", "--live", "--yes")  # nobody is there; it is the same
    assert committed(run, name) == {(name, 0): 7, (name, 1): 7}
    run("offsets", "set", name, "--to-group", f"{name}-nobody", "--yes", code=3)
    run("offsets", "set", name, "--to-group", name, "--to", "3", "--yes", code=2)


# ---- offsets cleanup ----


def test_offsets_are_cleaned_up_also_of_a_topic_that_is_gone(run: Run, name: str) -> None:
    for topic in (name, f"{name}-old"):
        run("topics", "create", topic, "--partitions", "2")
        run("offsets", "set", name, "--topic", topic, "--to", "0", "--yes")
    clean = ("offsets", "cleanup", "--group", name)
    shown = run("offsets", "list", name).stdout
    assert shown.count("in 6 d 23 h") + shown.count("in 7 d") == 4
    (first, *_) = in_json(run("offsets", "list", name, "--json"))
    assert first["kept_by"] is None
    assert first["expires_ms"] > 0
    assert run(*clean, "--dry-run").stdout.count(name) == 4
    assert "Add --yes" in run(*clean, "--topic", name, code=2).stderr
    run(*clean, "--gone", "--yes", code=3)
    run(*clean, "--topic", f"{name}:7", code=3)
    (done,) = in_json(run(*clean, "--topic", f"{name}-old:1", "--yes", "--json"))
    assert done == {"partition": f"{name}-old-1", "committed_offset": 0, "result": "removed"}
    run(*clean, "--yes")
    run("offsets", "list", name, code=3)
    assert "there is no group" in run("offsets", "cleanup", "--group", f"{name}-none", "--yes", code=3).stderr
