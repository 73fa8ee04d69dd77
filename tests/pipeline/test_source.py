"""What `--source` can be, and what a command says that cannot run."""

import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import forked
import pytest
from barnabas.pipeline import session
from barnabas.pipeline.session import what_is_missing
from barnabas.pipeline.source import Source, source_of
from data_directories import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def data_directory(path: Path) -> str:
    path.mkdir(parents=True)
    (path / "meta.properties").touch()
    return str(path)


def test_brokers() -> None:
    assert source_of("127.0.0.1:9092") == Source(brokers=("127.0.0.1:9092",))
    assert source_of("a:1, [::1]:2") == Source(brokers=("a:1", "[::1]:2"))


def test_data_directories(tmp_path: Path) -> None:
    one, other = data_directory(tmp_path / "one"), data_directory(tmp_path / "other")
    assert source_of(one) == Source(directories=(one,))
    assert source_of(f"{one},{other}") == Source(directories=(one, other))
    assert source_of(str(tmp_path)) == Source(directories=(one, other)), "those of several brokers"


@pytest.mark.parametrize("text", ["", ",", "no-such-folder", "host:port"])
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(ValueError):
        source_of(text)


def test_a_folder_without_logs_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no meta\.properties"):
        source_of(str(tmp_path))


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.barnabas("pipeline", *words, **environment)


@pytest.mark.parametrize("text", ["127.0.0.1", "http://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092"])
def test_what_is_neither_a_directory_nor_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a directory that exists nor HOST:PORT"):
        source_of(text)


def test_the_port_of_something_else_than_a_broker_is_told(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        done = run("lag", "--source", address, "--out", str(tmp_path))
        server.shutdown()
    assert done.returncode == 2
    assert f"--source: what answers at {address} is no Kafka broker" in done.stderr or "HTTP server" in done.stderr


def test_a_wrong_source_ends_the_command_before_spark_starts(tmp_path: Path) -> None:
    done = run("lag", "--source", str(tmp_path / "nothing"), "--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip().endswith("is neither a directory that exists nor HOST:PORT.")


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    done = run("lag", "--source", "127.0.0.1:1", "--out", str(tmp_path), PATH="/nowhere", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "install" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "this is Java 8" in (what_is_missing() or "")


def test_a_name_that_the_operating_system_refuses_is_told(tmp_path: Path) -> None:
    """As a folder that this user may not read or write is."""
    name = "x" * 300
    done = run("lag", "--source", name, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (1, f"barnabas: --source {name} cannot be read: file name too long.\n")
    done = run("report", "--source", data_directory(tmp_path / "data"), "--out", str(tmp_path / name))
    assert done.returncode == 1
    assert done.stderr == f"barnabas: --out {tmp_path / name} cannot be written: file name too long.\n"


def test_a_directory_without_commits_is_told_what_it_lacks(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "start_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    assert pipeline("offsets", "--source", data_directory(tmp_path / "data"), "--out", str(tmp_path / "out")) == 3
    said = capsys.readouterr()
    assert said.out.endswith("Committed now: nothing.\n")
    assert "Nothing was there to read" in said.err
    assert "Of a cluster, name all data directories or a broker." in said.err
