"""The examples in `examples/testing/`: each starts a broker and commands it, with clients of its language."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Maven's, and that of its tests: they live for seconds
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "testing"
pytestmark = pytest.mark.timeout(300)


def run(language: str, folder: Path, *commands: str) -> str:
    """What these commands print in a copy of the example, with a command `barnabas` on the path."""
    place = folder / language
    shutil.copytree(EXAMPLES / language, place, ignore=shutil.ignore_patterns("node_modules", "target", "__pycache__"))
    program = folder / "barnabas"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m barnabas "$@"\n')
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "JDK_JAVA_OPTIONS": QUICK_JAVA}
    shown = ""
    for command in commands:
        done = subprocess.run(
            shlex.split(command), cwd=place, env=environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-8_000:]
        shown += done.stdout
    return shown


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain")
def test_go(tmp_path: Path) -> None:
    assert "ok" in run("go", tmp_path, "go test -count=1 ./...")


@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js")
def test_node(tmp_path: Path) -> None:
    assert "# pass 2" in run("node", tmp_path, "npm ci --silent", "node --test --test-reporter=tap")


@pytest.mark.skipif(shutil.which("mvn") is None, reason="no Maven")
def test_java(tmp_path: Path) -> None:
    assert "Tests run: 1, Failures: 0, Errors: 0" in run("java", tmp_path, "mvn --batch-mode test")


@pytest.mark.takes_turns("client")
@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka", "aiokafka"])
def test_python(tmp_path: Path, with_plugin: list[str], client: str) -> None:
    """Of two hundred and one tests, each of which names its clients: in two processes with a broker each."""
    arguments = " ".join(["-q", "-n", "2", "-p", "no:cacheprovider", "-k", client, *with_plugin, "."])
    assert "69 passed" in run("python", tmp_path, f"{shlex.quote(sys.executable)} -m pytest {arguments}")
