"""A quota that is set by one of three brokers counts on all of them."""

import json
import sys
from collections.abc import Callable
from typing import Any

import forked
from waiting import until

Start = Callable[..., Any]


def test_all_brokers_hear_of_a_quota(start: Start) -> None:
    ready = start("--brokers", "3", "--port", "0").ready()
    brokers = ready["bootstrap"].split(",")
    assert len(brokers) == 3
    command = [sys.executable, "-m", "barnabas", "quotas"]
    forked.run([*command, "set", "--user", "alice", "produce=1MB", "-b", brokers[0]], check=True, timeout=200)
    for broker in brokers:

        def listed(broker: str = broker) -> bool:
            done = forked.run([*command, "list", "--json", "-b", broker], capture_output=True, text=True, timeout=200)
            return done.returncode == 0 and [row["value"] for row in json.loads(done.stdout)] == [1048576]

        until(listed)
