"""What a person gets who has no Java, no disk, no broker or no patience: a sentence, an exit code, no half tables."""

import errno
import io
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import forked
from barnabas.cli.pipeline import _cell, _sentence, _summary, no_commits
from barnabas.cli.shared.exits import ExitCode, Failure
from barnabas.pipeline import session, wire
from barnabas.pipeline.local_files import LOCK_FILE, OutError, local_path, only_run_in
from barnabas.pipeline.source import Source
from data_directories import pipeline
from spark_settings import JAVA_OPTIONS

COMMAND = [sys.executable, "-m", "barnabas", "pipeline"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run([*COMMAND, *words], capture_output=True, text=True, timeout=200, env=os.environ | environment)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A data directory without logs."""
    path = tmp_path / "data"
    path.mkdir()
    (path / "meta.properties").touch()
    return str(path)


def failed(done: subprocess.CompletedProcess[str], code: int) -> str:
    """What it says, in a line."""
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    return line


def test_the_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "matplotlib"):
        with monkeypatch.context() as patch:
            patch.setattr(session, "find_spec", lambda module, name=name: None if module == name else object())
            assert "pip install 'barnabas[spark]'" in (session.what_is_missing("matplotlib") or "")


@pytest.mark.parametrize(("version", "said"), [("1.8.0_402", "this is Java 8"), ("11.0.2", "this is Java 11")])
def test_java_is_too_old(source: str, tmp_path: Path, version: str, said: str) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    done = run("lag", "--source", source, "--out", str(tmp_path / "out"), JAVA_HOME=str(tmp_path / "java"))
    assert said in failed(done, 1)


def test_spark_home_and_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_java_version", lambda: 17)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "there is no Spark: unset it" in (session.what_is_missing() or "")
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-core_2.12-3.5.1.jar"
    jar.touch()
    assert "spark-core_2.12-3.5.1.jar, and PySpark is" in (session.what_is_missing() or "")
    jar.rename(jar.with_name(f"spark-core_2.13-{version('pyspark')}.jar"))
    assert session.what_is_missing() is None
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/proc/nothing,{jar.parent}")
    assert session.what_is_missing() is None
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/nothing,/proc/other")
    assert "no folder that can be written: /proc/nothing (" in (session.what_is_missing() or "")


def test_a_folder_that_is_no_source(tmp_path: Path) -> None:
    done = run("lag", "--source", str(tmp_path), "--out", str(tmp_path / "out"))
    assert "no meta.properties" in failed(done, 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", ["lag", "report"])
def test_results_that_cannot_be_written(source: str, tmp_path: Path, job: str) -> None:
    (tmp_path / "file").touch()
    said = failed(run(job, "--source", source, "--out", str(tmp_path / "file" / "out")), 1)
    assert str(tmp_path / "file" / "out") in said
    assert "cannot be written: " in said


def test_where_there_is_no_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow names no file."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    monkeypatch.setattr("barnabas.cli.pipeline._without_spark", full)
    with pytest.raises(Failure, match=r"^--out /there cannot be written: no space left on device\.$"):
        _summary("export", Source(), "/there", {}, {}, is_plain=True)


def test_the_report_is_a_file(source: str, tmp_path: Path) -> None:
    assert "is a folder" in failed(run("report", "--source", source, "--out", str(tmp_path)), 1)
    assert "say --source" in failed(run("report", "--out", str(tmp_path / "report.html")), 2)


def test_a_second_run_at_the_same_time(source: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with only_run_in(out):
        said = failed(run("lag", "--source", source, "--out", out), ExitCode.TRY_AGAIN)
        assert "another run" in said
        assert f"process {os.getpid()}" in said
        with pytest.raises(OutError), only_run_in(out):
            raise AssertionError
    with only_run_in(out):  # the lock ended with the run, though its file is still there
        assert (tmp_path / "out" / LOCK_FILE).read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lag", "--source", "{source}", "--out", ""), "--out is empty: name a folder."),
        (("lag", "--source", "", "--out", "{out}"), "--source names nothing: say HOST:PORT or a data directory."),
        (("export", "--source", "{source}", "--out", "{out}", "--topic", ""), "--topic: Topic name is invalid"),
        (("export", "--source", "{source}", "--out", "{out}", "--topic", "../lag"), "--topic: Topic name is invalid"),
    ],
)
def test_what_is_empty_or_leads_elsewhere(
    source: str, tmp_path: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `--out $NAME` of a variable that is not set, which is no reason to write to `/`."""
    out = tmp_path / "out"
    assert pipeline(*(word.format(source=source, out=out) for word in words)) == ExitCode.NOT_VALID
    assert says in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("at", ["2026-11-28T10:00:00Z", "2026-11-28 10:00", "2026-11-28T12:00+02:00"])
def test_times_are_taken_as_they_are_shown(source: str, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("barnabas.cli.pipeline._run", lambda *_, **words: given.update(words))
    assert pipeline("offsets", "--source", source, "--out", "out", "--at", at) == ExitCode.DONE
    assert given["at"] == datetime(2026, 11, 28, 10, tzinfo=UTC)


def test_a_table_that_the_next_session_would_not_know(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own catalog is in memory, and its files stay: the next run could neither read nor make the table."""
    conf = {"spark.sql.catalogImplementation": "in-memory", "spark.sql.catalog.lake": "a.Catalog"}
    spark = SimpleNamespace(conf=conf, stop=lambda: None)
    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    monkeypatch.setattr(session, "start_session", lambda *_: spark)
    words = ("lag", "--source", source, "--out", str(tmp_path / "out"), "--table")
    assert pipeline(*words, "default.lag") == ExitCode.NOT_VALID
    assert "--table default.lag: this catalog forgets its tables when the run ends" in capsys.readouterr().err
    assert [session.forgets_tables(spark, one) for one in ("lag", "lake.lag", "`lake`.a.lag")] == [True, False, False]
    for more in ({"spark.sql.catalogImplementation": "hive"}, {"spark.sql.defaultCatalog": "lake"}):
        assert not session.forgets_tables(SimpleNamespace(conf=conf | more), "lag")


@pytest.mark.parametrize(
    ("out", "environment", "path"),
    [
        ("tables", {}, Path("tables")),
        ("/a/b", {}, Path("/a/b")),
        ("file:/a", {}, Path("/a")),
        ("file:///a", {}, Path("/a")),
        ("hdfs://host/a", {}, None),
        ("s3a://bucket/a", {}, None),
        ("tables", {"PYSPARK_GATEWAY_PORT": "1"}, None),  # a cluster's settings say where this is
    ],
)
def test_what_is_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, out: str, environment: Mapping[str, str], path: Path | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_path(out) == path


FULL = """An error occurred while calling o514.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:805)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:549)
\t... 29 more
"""
LOST = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "pipeline/wire.py", line 1, in send
barnabas.pipeline.wire.UnreachableError: no broker answers: a:1
"""
ALONE = """An error occurred while calling o138.tableExists.
: java.lang.IncompatibleClassChangeError: class SparkView can not implement View
\tat java.base/java.lang.ClassLoader.defineClass1(Native Method)
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ALONE, "class SparkView can not implement View."),
        (FULL, "No space left on device."),
        (LOST, "no broker answers: a:1."),
        ("[PATH_NOT_FOUND] There is none.\nmore", "[PATH_NOT_FOUND] There is none."),
        ("ValueError: not that", "ValueError: not that."),
    ],
)
def test_what_is_said_of_an_error_of_spark(error: str, said: str) -> None:
    assert _sentence(error) == said


def test_brokers_that_are_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    source = f"127.0.0.1:{port},[::1]:{port},127.0.0.1:99999"
    said = failed(run("lag", "--source", source, "--out", str(tmp_path / "out")), ExitCode.TRY_AGAIN)
    assert "no broker of --source can be reached" in said
    assert f"127.0.0.1:{port}: " in said
    assert not (tmp_path / "out").exists()


def test_a_broker_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, as a process does that was stopped. Another one of the source may answer."""
    monkeypatch.setattr(wire, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = Source(brokers=(address,)).refused() or ""
        assert address in said
        assert "timed out" in said
        with pytest.raises(wire.LostConnectionError):
            wire.Cluster([address])._connection(("127.0.0.1", silent.getsockname()[1]))


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/data/orders-0"), wire.UnreachableError("no broker answers")]
)
def test_what_the_driver_cannot_read(
    source: str, tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_job(*_: object) -> None:
        raise error

    monkeypatch.setattr(session, "what_is_missing", lambda *_: None)
    monkeypatch.setattr(session, "start_session", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("barnabas.pipeline.sources.register", lambda _: None)
    monkeypatch.setattr("barnabas.pipeline.progress.shown", lambda *_: nullcontext())
    monkeypatch.setattr("barnabas.pipeline.runs.run_job", run_job)
    assert pipeline("verify", "--source", source, "--out", str(tmp_path / "out")) != ExitCode.DONE
    assert str(error) in capsys.readouterr().err


def test_java_does_not_start(source: str, tmp_path: Path) -> None:
    if session.what_is_missing():
        pytest.skip(session.what_is_missing() or "")
    done = run("health", "--source", source, "--out", str(tmp_path / "out"), "--memory", "banana")
    assert done.returncode == ExitCode.FAILED
    assert "Traceback" not in done.stderr
    assert "-Xmxbanana" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("What Java says is above. Look at --spark and --memory.")


def test_what_java_and_spark_say_at_each_start_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    said = [
        *("WARNING: Using incubator modules: jdk.incubator.vector", "Picked up JAVA_TOOL_OPTIONS: -Xmx3g"),
        *('Setting default log level to "WARN".', 'Setting Spark log level to "FATAL".'),
        "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
        *("Starting Streaming TransformWithStateInPandas Python worker.", "", ""),
        *("Invalid maximum heap size: -Xmxbanana", "12:00:00 WARN Utils: what a person asked for"),
    ]
    session.pass_on(io.BytesIO("\n".join([*said, "", "größe"]).encode()))
    assert capsys.readouterr().err.splitlines() == [*said[-2:], "", "größe"]


def test_a_stream_that_found_nothing_does_not_say_that_nobody_has_committed() -> None:
    """A commit of half a minute ago has no row yet: only what comes later closes its window."""
    assert "unless it was a few seconds ago" in no_commits(is_stream=False)
    assert "in the last window, or nothing came after its window" in no_commits(is_stream=True)


def test_the_help_names_the_extra() -> None:
    done = run("--help", COLUMNS="130")
    assert "pip install 'barnabas[spark]'" in done.stdout


def test_ctrl_c(tmp_path: Path) -> None:
    """While a broker does not answer. The command ends, and leaves no table."""
    if session.what_is_missing():
        pytest.skip(session.what_is_missing() or "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["lag", "--source", address, "--out", str(tmp_path / "out"), "--memory", "1g"]
        words += ["--spark", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"]
        process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        silent.settimeout(90)
        for _ in range(2):  # the command looks whether there is a broker, and how much it has
            with silent.accept()[0] as first:
                first.sendall(struct.pack(">iihi", 10, first.recv(1000)[11], 0, 0))
        connection, _ = silent.accept()  # Spark runs, and asks it
        with connection:
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=200)
    assert process.returncode == 130, errors
    assert output == ""
    assert "Traceback" not in errors
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK_FILE]


def test_ctrl_c_while_java_starts() -> None:
    """It waits until Java can be told to end. Who is in a hurry presses it twice."""
    before = signal.getsignal(signal.SIGINT)
    started: list[int] = []

    def start(presses: int) -> None:
        with session.ctrl_c_waits():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            started.append(presses)

    for presses in (0, 1):
        with pytest.raises(KeyboardInterrupt) if presses else nullcontext():
            start(presses)
    with pytest.raises(KeyboardInterrupt):
        start(2)
    assert started == [0, 1]
    assert signal.getsignal(signal.SIGINT) == before


def test_names_of_groups_do_not_break_the_table() -> None:
    assert [_cell(one) for one in ("billing", "größe", "new\nline\x1b[2J", None, 7)] == [
        *("billing", "größe", "new\\nline\\x1b[2J"),
        *(None, 7),
    ]
    assert len(_cell("g" * 3_000)) == 60
