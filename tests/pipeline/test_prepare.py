"""`barnabas pipeline prepare`: Spark's classes as Java has them, which later runs take from the user's cache."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.offsets.records import CommittedOffset
from barnabas.pipeline.java_classes import archive_option
from barnabas.pipeline.session import what_is_missing
from data_directories import NOW_MS, OFFSETS, DataDirectory
from spark_settings import SMALL

COMMAND = [sys.executable, "-m", "barnabas", "pipeline"]
WITHOUT_COMPILER = [f"--spark={name}={value}" for name, value in SMALL.items() if "codegen" in name]


@pytest.mark.timeout(600)
@pytest.mark.skipif(what_is_missing() is not None, reason="Spark cannot run here")
def test_runs_take_the_classes_that_were_prepared(tmp_path: Path, cache: Path) -> None:
    def run(*words: str) -> str:
        done = subprocess.run([*COMMAND, *words, *WITHOUT_COMPILER], capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    said = run("prepare")
    (archive,) = (cache / "barnabas").iterdir()  # and nothing else is left there
    assert said.startswith(f"{archive} has ")

    directory = DataDirectory(tmp_path / "data")
    directory.commit(directory.log(OFFSETS), "billing", {("orders", 0): CommittedOffset(7, -1, "", NOW_MS, -1)})
    (Path(directory.close()) / "meta.properties").touch()
    loaded = tmp_path / "loaded"
    show = f"spark.driver.extraJavaOptions=-Xlog:class+load:file={loaded}"
    words = ("--source", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--spark", show)
    assert run("offsets", *words).startswith("1 commit added, 1 in ")
    of_spark = [line for line in loaded.read_text().splitlines() if " org.apache.spark.sql." in line]
    assert sum("shared objects file" in line for line in of_spark) > len(of_spark) / 2


def test_without_an_archive_or_with_one_that_is_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive_option("") == ""
    assert archive_option("-XX:ArchiveClassesAtExit=x") == ""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert archive_option("") == ""
