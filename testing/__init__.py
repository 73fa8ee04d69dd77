"""A broker for tests: it starts in a moment, fails on command, and is gone when its block or its process ends.

    from barnabas.testing import Barnabas

    with Barnabas() as kafka:
        topic = kafka.topic("orders")
        topic.produce(["a", "b"])
        with kafka.fail("OffsetCommit", error="REBALANCE_IN_PROGRESS", times=2):
            ...                                          # what is tested, with its own client at kafka.bootstrap

`barnabas.py` is the brokers and what they are commanded, `fault.py` the faults among that, `process.py` their
processes, `control.py` the way to the HTTP API, `wire.py` that to records, `kept.py` the connections of both, which
stay open. `topic.py`, `group.py`, `clock.py` are what a test asks of a topic, of a group and of time, `snapshot.py`
copies of their data, `replay.py` sends again what clients have asked, `kafka_python.py` imports kafka-python,
`plugin.py` has the fixtures for pytest. It needs nothing beside Barnabas itself, and works without pytest.
"""

from barnabas.testing.barnabas import Barnabas
from barnabas.testing.control import CommandError, WaitTimeoutError
from barnabas.testing.fault import Fault
from barnabas.testing.group import Group
from barnabas.testing.process import StartError
from barnabas.testing.replay import Difference, SessionError
from barnabas.testing.snapshot import Snapshot
from barnabas.testing.topic import Record, Topic

__all__ = [
    "Barnabas",
    "CommandError",
    "Difference",
    "Fault",
    "Group",
    "Record",
    "SessionError",
    "Snapshot",
    "StartError",
    "Topic",
    "WaitTimeoutError",
]
