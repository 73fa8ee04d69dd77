"""What `--source` can be, and what a command says that cannot run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from barnabas.pipeline.session import what_is_missing
from barnabas.pipeline.source import Source, source_of


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
    command = [sys.executable, "-m", "barnabas.broker.main", "pipeline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | environment)


def test_a_wrong_source_ends_the_command_before_spark_starts(tmp_path: Path) -> None:
    done = run("lag", "--source", str(tmp_path / "nothing"), "--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip().endswith("does not exist.")


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
