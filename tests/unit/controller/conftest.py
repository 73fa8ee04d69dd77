"""Tests import other_broker.py from tests/unit/cluster/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))
