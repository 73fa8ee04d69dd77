"""The scenario runner's world serves the unit tests too."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "scenarios"), str(Path(__file__).parent)]
