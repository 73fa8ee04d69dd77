"""`python tests/check_types.py [mypy options]`: mypy --strict over `barnabas`, the simulator and the bench.

The repository's top-level folders are sub-packages of `barnabas`, which mypy cannot know by itself: it gets
a folder of links that has the shape of the installed package.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from barnabas.protocol import stubs

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Return mypy's exit code."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    package = ROOT / ".mypy_cache" / "tree" / "barnabas"
    package.mkdir(parents=True, exist_ok=True)
    tops = [ROOT / folder for name, folder in folders.items() if name.count(".") == 1]
    for target in (*tops, *(ROOT / folders["barnabas"]).glob("*.py")):
        link = package / target.name
        if not link.is_symlink():
            link.symlink_to(target)
    stubs.write(ROOT / "protocol")  # a schema may have changed since the build
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "MYPYPATH": f"{package.parent}:{ROOT / 'tests'}:{ROOT}"}
    return subprocess.call(
        [*command, "-p", "barnabas", "-p", "simulator", "-p", "bench", *sys.argv[1:]], env=environment, cwd=ROOT
    )


if __name__ == "__main__":
    sys.exit(main())
