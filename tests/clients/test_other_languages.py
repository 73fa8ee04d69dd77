"""Clients that are not Python, as they are: a small program each, built here, against a broker process."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
pytestmark = pytest.mark.timeout(300)


def told(command: list[str], broker: Any, name: str) -> str:
    """Run a program and return its output. If an answer was wrong, it prints why, and its exit code is not 0."""
    done = subprocess.run([*command, broker.bootstrap, name], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain: franz-go cannot be built")
def test_franz_go(broker: Any, name: str, tmp_path: Path) -> None:
    program = tmp_path / "story"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=FOLDER / "go", check=True, timeout=280)
    assert told([str(program)], broker, name) == "303 records\n"


@pytest.mark.skipif(shutil.which("npm") is None, reason="no Node.js: KafkaJS cannot be installed")
def test_kafkajs(broker: Any, name: str, tmp_path: Path) -> None:
    for file in ("package.json", "package-lock.json", "story.js"):
        shutil.copy(FOLDER / "node" / file, tmp_path)
    subprocess.run(["npm", "ci", "--silent"], cwd=tmp_path, check=True, timeout=280)
    assert told(["node", str(tmp_path / "story.js")], broker, name) == "100 records\n"
