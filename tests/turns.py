"""Tests that take turns: of several values of a parameter that prove nearly the same, one runs each day.

`@pytest.mark.takes_turns("seed")` says it of a test with a parameter `seed`. Of several parameters, one combination of
values runs each day. The date (UTC) decides whose turn it is, and pytest says how many wait for theirs. Who names a
test (`pytest FILE::TEST`) gets all its values, and so does who sets ALL_TURNS=1.
"""

import os
from collections import defaultdict
from datetime import UTC, datetime
from zlib import crc32

import pytest

MARKER = "takes_turns(parameter, ...): of the values of these parameters one runs each day (tests/turns.py)"
TODAY = datetime.now(UTC)


def waiting(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Those whose turn it is not today."""
    if "ALL_TURNS" in os.environ or any("::" in word for word in config.args):
        return []
    turns: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        marker = item.get_closest_marker("takes_turns")
        values = item.callspec.params if hasattr(item, "callspec") else {}
        value = [values[name] for name in (marker.args if marker else ()) if name in values]
        if value:
            turns[item.nodeid.partition("[")[0]][str(value)].append(item)
    found: list[pytest.Item] = []
    for test, by_value in turns.items():
        today = (TODAY.toordinal() + crc32(test.encode())) % len(by_value)
        for number, some in enumerate(by_value.values()):
            found += some if number != today else []
    return found


def report(count: int) -> str:
    """What pytest says of them."""
    return f"{count} tests wait for their turn, {TODAY:%Y-%m-%d} (ALL_TURNS=1 runs all)"
