"""Tests that take turns: of several values of a parameter that prove the same, one runs each day.

`@pytest.mark.takes_turns("seed")` says it of a test with a parameter `seed`. The date (UTC) decides whose turn it is,
and pytest says how many wait for theirs. Who names a test (`pytest FILE::TEST`) gets all its values, and so does who
sets ALL_TURNS=1.
"""

import os
from collections import defaultdict
from datetime import UTC, datetime
from zlib import crc32

import pytest

MARKER = "takes_turns(parameter): of the values of this parameter one runs each day (tests/turns.py)"
TODAY = datetime.now(UTC)


def waiting(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Those whose turn it is not today."""
    if "ALL_TURNS" in os.environ or any("::" in word for word in config.args):
        return []
    turns: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        marker = item.get_closest_marker("takes_turns")
        values = getattr(item, "callspec", None)
        if marker is not None and values is not None and marker.args[0] in values.params:
            turns[item.nodeid.partition("[")[0]][str(values.params[marker.args[0]])].append(item)
    found: list[pytest.Item] = []
    for test, by_value in turns.items():
        today = (TODAY.toordinal() + crc32(test.encode())) % len(by_value)
        for number, some in enumerate(by_value.values()):
            found += some if number != today else []
    return found


def report(count: int) -> str:
    """What pytest says of them."""
    return f"{count} tests wait for their turn, {TODAY:%Y-%m-%d} (ALL_TURNS=1 runs all)"
