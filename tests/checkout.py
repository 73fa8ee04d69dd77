"""What is in the top folder of the checkout, so that a run of tests can be blamed for what it leaves there."""

from collections.abc import Set
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE_BY_TOOLS = {".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "__pycache__"}
# Set for runs that share the checkout with others: none of them knows who has made what. Whoever began them looks.
SHARED = "BARNABAS_TESTS_SHARE_THE_CHECKOUT"


def entries() -> set[str]:
    """Names in the top folder, without what tools keep there."""
    return {path.name for path in ROOT.iterdir()} - MADE_BY_TOOLS


def leaves_nothing(at_start: Set[str]) -> bool:
    """Whether nothing was added since the start; else it is said what."""
    left = sorted(entries() - at_start)
    if left:
        print(f"\nthe tests left {', '.join(left)} in the checkout")
    return not left
