"""The examples of README.md and docs/, as they stand there, against a broker process."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:9092"
TESTING = (ROOT / "docs" / "testing.md").read_text()
FIXTURE = "A fixture that starts one, without the plugin:"
PASTED = "Install Barnabas beside pytest, which loads its plugin by itself. Paste this, and run `pytest`:"


def example(heading: str, page: str = README) -> str:
    """The indented lines after a line, up to the next line of prose."""
    after = f"\n{page}".split(f"\n{heading}\n", 1)[1].lstrip("\n").splitlines()
    lines = []
    for line in after:
        if line and not line.startswith("    "):
            break
        lines.append(line.removeprefix("    "))
    return "\n".join(lines)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a command `barnabas` on the path."""
    program = tmp_path / "barnabas"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m barnabas "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def test_the_fixture(environment: dict[str, str], tmp_path: Path) -> None:
    test = """
def test_it(bootstrap):
    host, port = bootstrap.split(":")
    socket.create_connection((host, int(port))).close()
"""
    file = tmp_path / "test_with_a_broker.py"
    file.write_text("import json, pytest, socket, subprocess\n" + example(FIXTURE, TESTING) + test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "1 passed" in done.stdout


def test_the_fixture_says_why_there_is_no_broker(environment: dict[str, str], tmp_path: Path) -> None:
    fixture = example(FIXTURE, TESTING).replace('"--port", "0"', '"--set", "no.such.setting=1"')
    file = tmp_path / "test_without_a_broker.py"
    file.write_text("import json, pytest, subprocess\n" + fixture + "\ndef test_it(bootstrap): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1, done
    assert "Unknown configuration no.such.setting" in done.stdout


def test_what_is_pasted_from_the_page_passes(
    environment: dict[str, str], tmp_path: Path, with_plugin: list[str]
) -> None:
    file = tmp_path / "test_pasted.py"
    rest = example("The fixtures of the pytest plugin are there when Barnabas is installed:")
    file.write_text(f"{example(PASTED, TESTING)}\n{rest}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *with_plugin, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "2 passed" in done.stdout


def test_the_block_without_pytest_runs(environment: dict[str, str], tmp_path: Path) -> None:
    program = example("## Without pytest", TESTING)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done
    assert sorted(done.stdout.split("[")[1]) == sorted("'a', 'b']\n")  # in the order of their partitions


def run_all(commands: str, environment: dict[str, str], folder: Path) -> str:
    """Run the commands that need a broker, one a line; what they printed."""
    shown = ""
    for command in filter(str.strip, commands.splitlines()):
        if not command.startswith("barnabas start"):
            done = subprocess.run(
                command, shell=True, env=environment, capture_output=True, text=True, timeout=200, cwd=folder
            )
            assert done.returncode == 0, (command, done)
            shown += done.stdout
    assert "hello\n" in shown  # what consume printed
    assert "retention.ms = " in shown
    return shown


def test_the_commands_and_then_the_client(own_broker: Any, environment: dict[str, str], tmp_path: Path) -> None:
    environment["BARNABAS_BOOTSTRAP"] = own_broker.bootstrap
    run_all(example("## A broker of your own"), environment, tmp_path)

    client = example("`localhost`, a host name and a tunnel all work.")
    assert ADDRESS in client
    code = client.replace(ADDRESS, own_broker.bootstrap)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'hello'\n"


def test_the_page_of_the_command_line(own_broker: Any, environment: dict[str, str], tmp_path: Path) -> None:
    environment["BARNABAS_BOOTSTRAP"] = own_broker.bootstrap
    run_all(example("# The command line", (ROOT / "docs/command-line.md").read_text()), environment, tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are for curl")
def test_the_http_api(own_broker: Any, environment: dict[str, str], tmp_path: Path) -> None:
    environment["BARNABAS_BOOTSTRAP"] = own_broker.bootstrap
    commands = ["barnabas topics create t"]
    commands += [f"barnabas offsets set {group} --topic t --to earliest --yes" for group in ("billing", "team/billing")]
    subprocess.run("; ".join(commands), shell=True, env=environment, check=True, timeout=200, cwd=tmp_path)
    section = (ROOT / "docs/http-api.md").read_text().split("| setting |", 1)[0]
    script = "\n".join(line.strip() for line in section.splitlines() if line.startswith("    "))
    assert script.count("curl ") == 7
    done = subprocess.run(
        ["sh", "-ec", script.replace("curl ", "curl -sS --fail ")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done
    status, groups, billing, team, topics, health, document = map(json.loads, done.stdout.splitlines())
    assert status["bootstrap"] == own_broker.bootstrap
    assert groups["groups"] == []
    assert (billing["group"], team["group"]) == ("billing", "team/billing")
    assert [row["topic"] for row in topics["topics"]] == ["t"]
    assert health["ready"] is True
    assert "/v1/groups/{group}" in document["paths"]
