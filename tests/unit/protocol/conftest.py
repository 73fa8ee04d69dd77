"""The tests of this folder share random_messages.py, and the fuzzer's mutations."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "fuzz")]
