"""Loads against one or two brokers, in turn, with ratios: `python -m bench` in the repository's root.

Loads against one broker, or two in turn, with an Apache Kafka beside it; the cost of single requests; its README has
the table. This folder is not part of the package, and not installed.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for the simulator
