"""A run of tests fails if it leaves something in the checkout, and only then."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import check
import checkout
import pytest
from checkout import SHARED

LEAVES = "from pathlib import Path\n\ndef test():\n    Path('data').mkdir(exist_ok=True)\n"


@pytest.mark.parametrize(
    ("before", "shared", "code"),
    [
        ((), False, pytest.ExitCode.TESTS_FAILED),
        (("data",), False, pytest.ExitCode.OK),  # it was there before
        ((), True, pytest.ExitCode.OK),  # perhaps another run has made it
    ],
)
def test_a_run_fails_for_what_it_has_left(tmp_path: Path, before: tuple[str, ...], shared: bool, code: int) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("conftest.py", "checkout.py", "turns.py"):
        shutil.copy(Path(__file__).parent / name, tests)
    (tests / "test_it.py").write_text(LEAVES)
    for name in before:
        (tmp_path / name).mkdir()
    environment = {name: value for name, value in os.environ.items() if name != SHARED}
    if shared:
        environment[SHARED] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {SHARED: "1"} if shared else environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout
    assert ("the tests left data in the checkout" in done.stdout) == (code != 0)


@pytest.mark.parametrize(("codes", "left", "code"), [([0, 0], (), 0), ([0, 0], ("data",), 1), ([0, 5], ("data",), 5)])
def test_all_parts_together_fail_for_what_one_of_them_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: list[int], left: tuple[str, ...], code: int
) -> None:
    def run_all(parts: list[check.Part]) -> int:
        for name in left:
            (tmp_path / name).mkdir()
        return next(filter(None, codes), 0)

    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    monkeypatch.setattr(check, "CHECKS", ())
    monkeypatch.setattr(check, "run_all", run_all)
    assert check.check({}) == code
    assert check.ENVIRONMENT[SHARED]
