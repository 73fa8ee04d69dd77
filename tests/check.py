"""`python tests/check.py`: all checks, one after the other; the first that fails ends it with its exit code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("tests/check_types.py",),
    ("pytest",),
)


def main() -> int:
    """Return the exit code of the first check that fails, or 0."""
    for check in CHECKS:
        print(f"== {' '.join(check)}", flush=True)
        words = check if check[0].endswith(".py") else ("-m", *check)
        code = subprocess.call([sys.executable, *words], cwd=ROOT)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
