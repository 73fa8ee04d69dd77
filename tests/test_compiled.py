"""The compiled build: it says so, installs one name, tells the same stories as the pure one, and passes its tests."""

import subprocess
import sys
from pathlib import Path

import compiled
import pytest
from turns import TODAY

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the build


@pytest.fixture(scope="module")
def place() -> Path:
    """The folder with the compiled build."""
    return compiled.site()


def run(*words: str) -> str:
    """Run Python on the compiled build; what it prints, and its traceback."""
    environment = compiled.environment(compiled=True)
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr


def test_it_says_what_it_is(place: Path) -> None:
    assert run("-m", "barnabas", "--version").endswith("(compiled)\n")


def test_only_one_name_is_installed(place: Path) -> None:
    assert {path.name.partition("-")[0] for path in place.iterdir()} == {"barnabas"}
    assert list(place.glob("barnabas/compiled__mypyc.*"))


def test_a_traceback_names_file_and_line(place: Path) -> None:
    text = run("-c", "from barnabas.protocol import varint; varint.decode_unsigned(b'', 0)")
    lines = (place / "barnabas/protocol/varint.py").read_text().splitlines()
    raising = next(number for number, line in enumerate(lines, 1) if "runs past the end" in line)
    assert f'File "barnabas/protocol/varint.py", line {raising}, in decode_unsigned' in text
    assert "ProtocolError" in text


@pytest.mark.takes_turns("words")
@pytest.mark.parametrize("words", ["--journal", "--transactions", "--brokers 3 --journal"])
def test_seeds_tell_the_same_story(place: Path, words: str) -> None:
    seed = TODAY.toordinal()
    assert compiled.difference(seed, ["--minutes", "0.1", *words.split()]) == "", f"seed {seed}"


def test_the_same_tests_pass(place: Path) -> None:
    assert compiled.run_tests([]) == 0
