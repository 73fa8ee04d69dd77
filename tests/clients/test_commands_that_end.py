"""Every command of `barnabas` ends with a sentence, whatever its options are and whatever happens to the broker.

The tables are made from the commands themselves, so that they contain new commands and options.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest
from barnabas.cli import (
    cluster,
    configs,
    consume,
    doctor,
    features,
    groups,
    offsets,
    produce,
    records,
    status,
    topics,
    transactions,
)
from turns import TODAY

COMMAND = forked.BARNABAS
BACKUP = str(Path(__file__).resolve().parents[1] / "golden" / "offsets-backup-1.jsonl")
OF_ALL = {"--bootstrap", "--timeout", "--wait", "--command-config"}  # options that every command has

# What each command needs to be complete, in a cluster that has the topic t.
COMPLETE: dict[tuple[str, ...], list[str]] = {
    ("status",): [],
    ("cluster", "show"): [],
    ("cluster", "backup"): ["-"],
    ("doctor",): [],
    ("topics", "list"): [],
    ("topics", "describe"): ["t"],
    ("topics", "create"): ["t", "--if-not-exists"],
    ("topics", "alter"): ["t", "--partitions", "2"],
    ("topics", "delete"): ["t", "--yes"],
    ("produce",): ["t", "--value", "x"],
    ("consume",): ["t", "--from-beginning", "--max", "1"],
    ("records", "delete"): ["t", "--before", "latest", "--yes"],
    ("groups", "list"): [],
    ("groups", "describe"): ["g"],
    ("groups", "delete"): ["g", "--yes"],
    ("groups", "lag"): ["g"],
    ("groups", "explain"): ["g"],
    ("groups", "remove"): ["g", "--member", "m", "--yes"],
    ("offsets", "list"): ["g"],
    ("offsets", "set"): ["g", "--topic", "t", "--to", "earliest", "--yes"],
    ("offsets", "delete"): ["g", "--topic", "t", "--yes"],
    ("offsets", "log"): ["g"],
    ("offsets", "diff"): ["g", "--from", "2026-01-01"],
    ("offsets", "restore"): ["g", "--at", "2026-01-01", "--yes"],
    ("offsets", "undo"): ["g", "--yes"],
    ("offsets", "cleanup"): ["--group", "g", "--yes"],
    ("offsets", "migrate"): ["--from", "zookeeper", "--group", "g", "--yes"],
    ("offsets", "export"): ["-"],
    ("offsets", "import"): [BACKUP, "--yes"],
    ("transactions", "list"): [],
    ("transactions", "describe"): ["x"],
    ("transactions", "find-hanging"): [],
    ("transactions", "abort"): ["x", "--yes"],
    ("configs", "describe"): ["broker", "0", "--all"],
    ("configs", "set"): ["topic", "t", "retention.ms=1"],
    ("configs", "delete"): ["topic", "t", "retention.ms"],
    ("features", "describe"): [],
    ("features", "upgrade"): ["--feature", "transaction.version=2"],
    ("features", "downgrade"): ["--feature", "transaction.version=2"],
    ("features", "disable"): ["--feature", "group.version"],
}


def commands() -> dict[tuple[str, ...], Any]:
    """Every command that asks a broker, by its words."""
    import typer.main

    found: dict[tuple[str, ...], Any] = {}
    for name, module in (
        ("topics", topics),
        ("records", records),
        ("groups", groups),
        ("offsets", offsets),
        ("transactions", transactions),
        ("configs", configs),
        ("cluster", cluster),
        ("features", features),
    ):
        group: Any = typer.main.get_command(module.app)
        found |= {(name, word): command for word, command in group.commands.items()}
    for name, module in (
        ("produce", produce),
        ("consume", consume),
        ("status", status),
        ("doctor", doctor),
    ):
        found[(name,)] = typer.main.get_command(module.app)
    return found


def options(command: Any) -> list[Any]:
    """The options of a command that take a value."""
    return [
        param for param in command.params if param.param_type_name == "option" and not getattr(param, "is_flag", False)
    ]


def test_every_command_is_in_the_table() -> None:
    assert sorted(commands()) == sorted(COMPLETE)


def test_every_command_has_its_limits() -> None:
    for words, command in commands().items():
        names = [name for param in command.params for name in param.opts]
        assert len(names) == len(set(names)), f"{words}: an option is there twice"
        assert {"--timeout", "--wait", "--bootstrap"} <= set(names), words
        assert any("--json" in param.opts for param in command.params), words


RUN_MANY = """
import contextlib, io, json, sys, traceback
from barnabas.cli.main import run
results = []
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = run(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = None
    results.append([code, said.getvalue()])
json.dump(results, sys.stdout)
"""


def run_many(cases: list[list[str]]) -> list[tuple[int | None, str]]:
    """Exit code and standard error of each: one process runs them all, because a start of Python costs more."""
    done = forked.run(
        [sys.executable, "-c", RUN_MANY], input=json.dumps(cases), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout)]


def values_of(option: str, number: int) -> list[str]:
    """What an option of this command is given. Of an option that all have, each command takes one value each day."""
    values = ["", "x", "99999999999999999999999", "-99999999999999999999999", "nan", "inf", "\udcff", "9" * 400]
    takes_turns = option in OF_ALL and "ALL_TURNS" not in os.environ
    return [values[(TODAY.toordinal() + number) % len(values)]] if takes_turns else values


def test_no_value_of_an_option_ends_in_a_traceback() -> None:
    cases = [
        [*words, *COMPLETE[words], option.opts[0], value, *end]
        for number, (words, command) in enumerate(commands().items())
        for option in options(command)
        for value in values_of(option.opts[0], number)
        # Nothing listens at port 1, so a command with valid values fails with that.
        for end in (["--bootstrap", "127.0.0.1:1"], ["--json"])
        if not (end == ["--json"] and option.opts[0] not in ("--bootstrap", "--timeout", "--wait"))
    ]
    cases = [case if "--bootstrap" in case else [*case, "--bootstrap", "127.0.0.1:1"] for case in cases]
    cases = [[*case, "--wait", "0"] for case in cases]
    assert len(cases) > 500
    for case, (code, said) in zip(cases, run_many(cases)):
        assert code in (1, 2), (case, code, said)
        assert "Traceback" not in said, (case, said)
        assert said, case
        if "--json" in case:
            assert json.loads(said)["exit_code"] == code, case


NOT_VALID = [
    ["topics", "list", "--timeout", "0"],
    ["topics", "list", "--timeout", "nan"],
    ["topics", "list", "--timeout", "inf"],
    ["topics", "list", "--wait", "-1"],
    ["topics", "create", "t", "--partitions", "0"],
    ["topics", "create", "t", "--partitions", "2147483648"],
    ["topics", "create", "t", "--replication-factor", "32768"],
    ["produce", "t", "--value", "x", "--timestamp", "9223372036854775808"],
    ["produce", "t", "--value", "x", "--timestamp", "-1"],
    ["produce", "t", "--value", "x", "--partition", "2147483648"],
    ["produce", "t", "--key-separator", ""],
    ["consume", "t", "--timeout", "nan"],
    ["consume", "t", "--max", "0"],
    ["consume", "t", "--partition", "2147483648"],
    ["consume", "t", "--offset", "1e3"],
    ["consume", "t", "--format", "{nothing}"],
    ["produce", "t", "--format", "xml"],
    ["records", "delete", "t", "--before", "soon"],
    ["topics", "alter", "t"],
    ["offsets", "set", "g", "--shift-by", "9223372036854775808"],
    ["offsets", "set", "g", "--to", "99999-01-01T00:00"],
    ["demo", "--data", ""],
    ["demo", "--port", "65536"],
    ["start", "--data", ""],
    ["start", "--config", ""],
    ["start", "--listeners", ""],
    ["start", "--profile", ""],
    ["start", "--port", "65536"],
    ["start", "--set", "log.dirs="],
    ["start", "--set", "=1"],
    ["topics", "describe", "\udcff"],
    ["groups", "describe", "g", "\udcff"],
    ["transactions", "describe", "\udcff"],
    ["offsets", "list", "\udcff"],
    ["consume", "\udcff"],
    ["consume", "t", "--group", "\udcff"],
    ["acls", "explain", "User:\udcff", "read", "topic", "t"],
    ["quotas", "list", "--user", "\udcff"],
    ["topics", "lost"],
    ["nothing-such"],
]


@cache
def refused() -> dict[tuple[str, ...], tuple[int | None, str]]:
    """What becomes of each, without and with --json."""
    cases = [[*words, *form] for words in NOT_VALID for form in ([], ["--json"])]
    starts = [case for case in cases if case[0] == "start"]  # each takes over the standard streams
    done = [forked.run([*COMMAND, *case], capture_output=True, text=True) for case in starts]
    others = [case for case in cases if case[0] != "start"]
    ends = [*((one.returncode, one.stderr) for one in done), *run_many(others)]
    return dict(zip(map(tuple, [*starts, *others]), ends, strict=True))


@pytest.mark.parametrize("words", NOT_VALID, ids=" ".join)
def test_what_is_not_valid_is_not_tried(words: list[str]) -> None:
    plain, as_json = refused()[*words], refused()[*words, "--json"]
    assert plain[0] == as_json[0] == 2, plain
    assert plain[1]
    said = json.loads(as_json[1])
    assert said["exit_code"] == 2
    assert said["error"]


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server


def bootstrap_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_broker_that_never_answers_ends_every_command(silent_server: socket.socket) -> None:
    processes = {}
    for words, rest in COMPLETE.items():
        limit = "0.05" if words == ("consume",) else "0.5"
        command = [
            *COMMAND,
            *words,
            *rest,
            "--timeout",
            limit,
            "--bootstrap",
            bootstrap_of(silent_server),
            "--json",
        ]
        processes[words] = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for words, process in processes.items():
        shown, said = process.communicate(timeout=200)
        assert (process.returncode, shown) == (1, ""), (words, said)
        assert "no answer in" in json.loads(said)["error"], (words, said)


def accepted(server: socket.socket, process: "subprocess.Popen[str]") -> socket.socket:
    """The next connection of a process that lives, however long it takes to make one."""
    server.settimeout(0.2)
    while process.poll() is None:
        with suppress(TimeoutError):
            return server.accept()[0]
    raise AssertionError(f"it ended with {process.returncode}: {process.communicate()}")


@pytest.fixture(scope="module")
def begun() -> Iterator[dict[tuple[str, ...], tuple[socket.socket, "subprocess.Popen[str]"]]]:
    """All commands begin together, each at a server of its own that does not answer, because each waits for seconds."""
    found = {}
    with ExitStack() as servers:
        for words, rest in COMPLETE.items():
            server = servers.enter_context(socket.create_server(("127.0.0.1", 0)))
            command = [*COMMAND, *words, *rest, "--timeout", "600", "--bootstrap", bootstrap_of(server)]
            found[words] = server, forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        yield found
        for _, process in found.values():
            process.kill()
            process.communicate()


@pytest.mark.timeout(900)  # all begin, which takes long on a busy machine
@pytest.mark.parametrize("words", COMPLETE, ids=" ".join)
def test_ctrl_c_ends_every_command_that_waits(
    words: tuple[str, ...], begun: dict[tuple[str, ...], tuple[socket.socket, "subprocess.Popen[str]"]]
) -> None:
    server, process = begun[words]
    with ExitStack() as connections:
        # The first connection only tests whether something listens; the next one sends requests.
        for _ in range(2):
            connections.enter_context(accepted(server, process))
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate()
    assert process.returncode == 130, said
    assert (shown, "Traceback" in said) == ("", False), said


@pytest.mark.parametrize("started_by", [(), ("sh", "-c", 'trap "" INT; exec "$@"', "sh")], ids=["terminal", "script"])
def test_ctrl_c_ends_the_demo_and_its_broker(started_by: tuple[str, ...]) -> None:
    """A script that starts a command with `&` has it ignore SIGINT."""
    command = [*started_by, *COMMAND, "demo"]
    process = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = next(line for line in process.stdout if "serves at" in line)
    host, _, port = line.split("serves at ", 1)[1].split()[0].rpartition(":")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


# kafka-python's loop logs whatever is raised in one of its tasks, KeyboardInterrupt as well, and goes on.
SWALLOWING_DEMO = """
import time
from contextlib import suppress
from barnabas.cli import demo, main

def wait():
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a sleep does not wake it

def swallow(bootstrap):
    with suppress(BaseException):
        wait()
    wait()

demo._produce, demo.TIME_LIMIT_S = swallow, {limit_s}
main.main()
"""


def test_a_client_that_swallows_what_ends_the_demo_does_not_keep_it() -> None:
    command = [sys.executable, "-c", SWALLOWING_DEMO.format(limit_s=60), "demo"]
    process = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("serves at" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    late = forked.run(
        [sys.executable, "-c", SWALLOWING_DEMO.format(limit_s=2), "demo"], capture_output=True, text=True, timeout=200
    )
    assert (late.returncode, "was not done in 2 s" in late.stderr) == (1, True), late


def test_the_reader_of_the_output_may_leave(broker: Any, name: str) -> None:
    at = ["--bootstrap", broker.bootstrap]
    forked.run([*COMMAND, "produce", name, "--value", "x", "--count", "3", *at], check=True, timeout=200)
    forked.run([*COMMAND, "consume", name, "-g", name, "--from-beginning", "--max", "1", *at], check=True, timeout=200)
    reading = [
        ["status"],
        ["topics", "list"],
        ["topics", "describe", name],
        ["groups", "list"],
        ["groups", "describe", name],
        ["offsets", "list", name],
        ["configs", "describe", "broker", "0", "--all", "--docs"],
        ["consume", name, "--from-beginning", "--max", "3"],
        ["produce", name, "--value", "x"],
    ]
    for words in reading:
        for form in ([], ["--json"], ["--help"]):
            process = forked.Popen(
                [*COMMAND, *words, *form, *at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
            process.stderr.close()
            assert process.wait(200) == 0, (words, form, said)
            assert "Error" not in said, (words, said)


def test_endless_input_ends_when_the_broker_has_gone(own_broker: Any, name: str) -> None:
    command = [*COMMAND, "produce", name, "--timeout", "10", "--bootstrap", own_broker.bootstrap, "--json"]
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        process = forked.Popen(command, stdin=endless.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["offset"] == 0
        own_broker.kill()
        try:
            _, said = process.communicate(timeout=200)
        finally:
            endless.kill()
    assert process.returncode == 1
    assert json.loads(said)["exit_code"] == 1


def test_slow_input_is_no_slow_broker(broker: Any, name: str) -> None:
    command = [*COMMAND, "produce", name, "--timeout", "1", "--bootstrap", broker.bootstrap, "--json"]
    with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        waiting = subprocess.run(["sleep", "2"], check=True, timeout=200)
        assert waiting.returncode == 0
        process.stdin.write("late\n")
        shown, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert json.loads(shown)["offset"] == 0


def test_bytes_go_as_they_were_typed(broker: Any, name: str) -> None:
    at = [b"--bootstrap", broker.bootstrap.encode()]
    command = [os.fsencode(word) for word in COMMAND]
    forked.run([*command, b"produce", name.encode(), b"--value", b"\xff\x00"[:1], *at], check=True, timeout=200)
    read = [*command, b"consume", name.encode(), b"--from-beginning", b"--max", b"1", *at]
    assert forked.run(read, check=True, timeout=200, capture_output=True).stdout == b"\xff\n"


def test_status_waits_for_a_broker_that_is_being_started(own_broker: Any) -> None:
    own_broker.stop()
    refused = forked.run(
        [*COMMAND, "status", "--bootstrap", own_broker.bootstrap], capture_output=True, text=True, timeout=200
    )
    assert refused.returncode == 1
    assert "no broker answers" in refused.stderr
    waiting = forked.Popen([*COMMAND, "status", "--wait", "60", "--bootstrap", own_broker.bootstrap])
    own_broker.start()
    assert waiting.wait(200) == 0
