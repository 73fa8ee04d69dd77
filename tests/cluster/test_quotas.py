"""A quota that is set by one of three brokers counts on all of them."""

import json
from collections.abc import Callable
from typing import Any

import forked
from waiting import until

Start = Callable[..., Any]


def test_all_brokers_hear_of_a_quota(start: Start) -> None:
    ready = start("--brokers", "3", "--port", "0").ready()
    brokers = ready["bootstrap"].split(",")
    assert len(brokers) == 3
    forked.barnabas("quotas", "set", "--user", "alice", "produce=1MB", "-b", brokers[0], code=0)
    for broker in brokers:

        def listed(broker: str = broker) -> bool:
            done = forked.barnabas("quotas", "list", "--json", "-b", broker)
            return done.returncode == 0 and [row["value"] for row in json.loads(done.stdout)] == [1048576]

        until(listed)
