"""The files of the tree are changed by hand while three brokers use them: nothing that was acknowledged is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import forked
import pytest
from waiting import until, until_said

Start = Callable[..., Any]


def run(bootstrap: str, *words: str, said: str = "") -> str:
    return forked.barnabas(*words, "--bootstrap", bootstrap, code=0, given=said).stdout


def produce(bootstrap: str, numbers: range) -> set[str]:
    """Acknowledged records."""
    values = [f"r{number}" for number in numbers]
    run(bootstrap, "produce", "t", said="\n".join(values))
    return set(values)


@pytest.mark.takes_turns("is_link")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_wal_that_is_removed_and_a_vacuum_lose_nothing(start: Start, tmp_path: Path, is_link: bool) -> None:
    """SQLite follows a link, and has its -wal beside the file."""
    cluster = start("--brokers", "3", "--port", "0")
    run(cluster.ready()["bootstrap"].split(",")[0], "topics", "create", "t")
    assert cluster.end() == 0  # so the file itself holds a whole tree, which is soon an old one
    tree = tmp_path / "d" / "coordination.sqlite"
    if is_link:
        name, tree = tree, tree.rename(tmp_path / "elsewhere")
        name.symlink_to(tree)
    cluster = start("--brokers", "3", "--port", "0")
    ready = cluster.ready()
    addresses = ready["bootstrap"].split(",")
    with sqlite3.connect(tree, isolation_level=None) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    written = produce(addresses[0], range(100))
    for end in ("-wal", "-shm"):
        Path(f"{tree}{end}").unlink()
    os.kill(ready["pids"][2], signal.SIGKILL)
    until_said("those brokers that run go on, and no broker can start", cluster.log)
    words = ["--data", f"{tmp_path}/d/2", "--port", "0", "--set", f"coordination.path={tmp_path}/d/coordination.sqlite"]
    newcomer = [sys.executable, "-m", "barnabas", "start", *words]
    done = forked.run(newcomer, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tree}-wal was removed" in done.stderr
    assert all(f"process {pid} (" in done.stderr for pid in ready["pids"][:2])
    assert not Path(f"{tree}-wal").exists()
    until(lambda: json.loads(run(addresses[0], "cluster", "--json"))["offline"] == 0)
    written |= produce(addresses[0], range(100, 200))
    assert "is older than it was" not in cluster.log.read_text()
    assert cluster.end() == 0

    again = start("--brokers", "3", "--port", "0").ready()
    read = run(again["bootstrap"].split(",")[0], "consume", "t", "--from-beginning", "--max", "200")
    assert set(read.split()) == written


def test_a_broker_that_serves_nobody_says_why_to_who_asks_for_its_status(start: Start, tmp_path: Path) -> None:
    broker = start("--port", "0")
    bootstrap = broker.ready()["bootstrap"]
    run(bootstrap, "topics", "create", "t")
    tree = tmp_path / "d" / "coordination.sqlite"
    aside = tree.rename(tree.with_name("aside"))
    tree.write_bytes(aside.read_bytes())

    def ask(*words: str) -> Any:
        return forked.barnabas(*words, "--bootstrap", bootstrap)

    until(lambda: ask("status").returncode == 1)
    why = f"{tree} was replaced by another file while it is in use"
    for words in (["status"], ["status", "--wait", "1"], ["status", "--json"]):
        done = ask(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"a broker answers at {bootstrap}, and serves nobody. Broker 0: {why}" in done.stderr
    commands = (["topics", "create", "n"], ["topics", "delete", "t", "--yes"], ["configs", "set", "topic", "t", "a=1"])
    for words in commands:
        done = ask(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done
        assert "barnabas status" in done.stderr
    found = json.loads(ask("doctor", "--json").stdout)
    assert {each["check"] for each in found["findings"]} <= {"brokers", "tree"}
    assert found["errors"] == 1
    waiting = [sys.executable, "-m", "barnabas", "status", "--wait", "60", "--bootstrap", bootstrap]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE, text=True) as process:
        tree.unlink()
        aside.rename(tree)
        assert "A broker serves at" in process.communicate(timeout=200)[0]
    assert process.returncode == 0
    broker.end()


def test_doctor_names_the_process_that_keeps_all_others_from_changing_the_tree(start: Start, tmp_path: Path) -> None:
    bootstrap = start("--brokers", "3", "--port", "0").ready()["bootstrap"].split(",")[0]

    def held() -> list[str]:
        found = json.loads(forked.barnabas("doctor", "--json", "--bootstrap", bootstrap).stdout)["findings"]
        return [each["what"] for each in found if each["check"] == "tree" and each["severity"] == "error"]

    with closing(sqlite3.connect(tmp_path / "d" / "coordination.sqlite", isolation_level=None)) as connection:
        run(bootstrap, "topics", "create", "t")  # where there are replicas, brokers change the tree now and then
        assert not held()
        connection.execute("BEGIN IMMEDIATE")
        until(lambda: any(f"process {os.getpid()} " in what for what in held()))
        connection.execute("ROLLBACK")
    until(lambda: not held())
    run(bootstrap, "topics", "create", "u")
