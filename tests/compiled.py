"""The compiled build under the same tests, and the same simulated stories.

python tests/compiled.py                            builds it, and prints where: a folder for PYTHONPATH
python tests/compiled.py test [WORDS OF PYTEST]     tests on it; without words, those of `ON_BOTH`
python tests/compiled.py seeds A-B [WORDS]          seeds of the simulator (`python -m simulator --help`), on
                                                    both builds: the same traces, byte for byte

It is built without optimization, in half a minute of one core. What is built stays in build/, until the source changes.
`BARNABAS_OPTIMIZE=2` builds what users get.

Tests of single parts are left to the pure build: they put simple objects in the place of others, and change functions,
which compiled modules do not allow. Planted faults change the source.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from checkout import ROOT

PLACE = ROOT / "build" / "compiled-tests"
LEFT_OUT = shutil.ignore_patterns(
    *(".*", "tests", "build", "dist", "data", "*.egg-info", "__pycache__", "node_modules"),
    *("messages.pyi", "records.pyi"),  # the build makes them
)
OPTIMIZE = {"BARNABAS_OPTIMIZE": "0"}
ON_BOTH = (
    *("tests/scenarios", "tests/unit/protocol", "tests/wire/test_request_garbage.py"),
    "tests/clients/test_kafka_python.py",
)


def make_wheel(folder: Path, *, compiled: bool = False) -> Path:
    """A wheel in `folder`, built from a copy: a build leaves folders behind, and takes up what an older one left."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    environment = {**OPTIMIZE, **os.environ, "BARNABAS_COMPILE": str(int(compiled))}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        env=environment,
        check=True,
        timeout=1800 if compiled else 100,
    )
    (path,) = folder.glob("barnabas-*.whl")
    return path


def site() -> Path:
    """A folder with the compiled build of this source, for PYTHONPATH."""
    source = hashlib.sha256(os.environ.get("BARNABAS_OPTIMIZE", "").encode())
    of_build = [*ROOT.glob("*.toml"), *ROOT.glob("setup.py"), *ROOT.glob("*/native/*")]
    for path in sorted([*of_build, *ROOT.glob("[!.]*/**/*.py")]):
        if not {"tests", "build", "bench", "examples"} & set(path.relative_to(ROOT).parts):
            source.update(path.read_bytes())
    place = PLACE / source.hexdigest()[:16]
    if not place.exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            wheel = make_wheel(Path(folder), compiled=True)
            zipfile.ZipFile(wheel).extractall(place)
    return place


def environment(*, compiled: bool) -> dict[str, str]:
    """The environment of a process that takes Barnabas from this build."""
    paths = [str(ROOT / "tests")]
    if compiled:
        paths.insert(0, str(site()))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_tests(words: Sequence[str]) -> int:
    """Tests on the compiled build; pytest's exit code."""
    command = [sys.executable, "-m", "pytest", *(words or ON_BOTH)]
    return subprocess.call(command, cwd=ROOT, env=environment(compiled=True))


def story(seed: int, words: Sequence[str], *, compiled: bool) -> bytes:
    """What a seed of the simulator tells on a build: the trace, and the verdict without the time that it took."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        command = [sys.executable, "-m", "simulator", "--seed", str(seed), *words, "--trace", str(trace)]
        done = subprocess.run(
            command, cwd=folder, env=environment(compiled=compiled), stdout=subprocess.PIPE, check=False
        )
        return trace.read_bytes() + done.stdout.partition(b"  [")[0]


def difference(seed: int, words: Sequence[str]) -> str:
    """Where the builds tell different stories of a seed; empty if they tell the same."""
    pure, compiled = (story(seed, words, compiled=each).splitlines() for each in (False, True))
    assert pure, "the simulator said nothing"
    for number, (one, other) in enumerate(zip([*pure, b""], [*compiled, b""], strict=False), 1):
        if one != other:
            return f"line {number}: pure {one.decode()!r}, compiled {other.decode()!r}"
    return ""


def run_seeds(words: Sequence[str]) -> int:
    """Compare the builds; returns how many seeds differ."""
    first, _, last = words[0].partition("-")
    differ = 0
    for seed in range(int(first), int(last or first) + 1):
        found = difference(seed, words[1:])
        differ += bool(found)
        print(f"seed {seed}: {found or 'the same story'}", flush=True)
    return differ


def main(words: Sequence[str]) -> int:
    """See the module."""
    if words[:1] == ["test"]:
        return run_tests(words[1:])
    if words[:1] == ["seeds"] and len(words) > 1:
        return min(run_seeds(words[1:]), 1)
    if words:
        print(__doc__)
        return 2
    print(site())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
