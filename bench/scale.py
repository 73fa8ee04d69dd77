"""Does a request cost the same when there is much of everything? `python -m bench scale`

It prints the memory of partitions, groups and connections as they are made, and the broker's processor time and rate of
produce, fetch, heartbeat and commit, one request in flight. This is done with ten partitions and groups; then with
10,000 partitions, 10,000 groups of one member, 10,000 groups that only commit, and 5,000 idle connections. Then the
requests go to ten of the partitions and groups (hot), or to all in turn (spread).
"""

import resource
import time
from collections.abc import Sequence

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey

from bench.apache_kafka import run_beside
from bench.loads import HEARTBEAT_VERSION, batch, commit_frame, fetch_frame, find_coordinator, produce_frame
from bench.targets import Target
from bench.wire import CLIENT_ID, Connection, close, closed_loop, connect, connect_many, create_topics

TOPICS, PARTITIONS_PER_TOPIC = 10, 1000
GROUPS = 10_000
IDLE_CONNECTIONS = 5_000
SECONDS = 2.0
ROUNDS = 3
JOIN_VERSION, SYNC_VERSION = 3, 2
Place = tuple[str, int]
Costs = dict[str, tuple[float, float]]  # work -> µs of processor time per request, requests/s


class Members:
    """Groups of one member each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.heartbeats: list[bytes] = []

    async def join(self, group: str) -> None:
        """Make one more group."""
        join = messages.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(6))],
        )
        joined = await self._connection.ask(ApiKey.JOIN_GROUP, JOIN_VERSION, join)
        assert not joined.error_code, joined  # type: ignore[attr-defined]
        named = {
            "group_id": group,
            "generation_id": joined.generation_id,  # type: ignore[attr-defined]
            "member_id": joined.member_id,  # type: ignore[attr-defined]
        }
        assignment = messages.SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id,  # type: ignore[attr-defined]
            assignment=b"",
        )
        sync = messages.SyncGroupRequest(**named, assignments=[assignment])
        synced = await self._connection.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, sync)
        assert not synced.error_code, synced  # type: ignore[attr-defined]
        request = messages.HeartbeatRequest(**named)
        self.heartbeats.append(frames.encode_request(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, 1, CLIENT_ID, request))


async def costs(target: Target, connection: Connection, places: Sequence[Place], heartbeats: Sequence[bytes]) -> Costs:
    """The cost of each kind of request over these partitions and groups in turn. Answers differ: no comparison."""
    records = batch([bytes(100)])
    rows = {
        "produce": [produce_frame(topic, index, records) for topic, index in places],
        "fetch": [fetch_frame(topic, index, 0, max_wait_ms=0, max_bytes=100) for topic, index in places],
        "heartbeat": list(heartbeats),
        "commit": [
            commit_frame(f"scale-{slot % max(1, len(heartbeats))}-simple", topic, [index], 5)
            for slot, (topic, index) in enumerate(places)
        ],
    }
    found = {}
    for work, row in rows.items():
        if len(row) > 100:  # each once before: this opens files and makes the groups that only commit
            await closed_loop([connection], [row], 3.0, compare=False)
        measured = []
        for _ in range(ROUNDS):
            cpu = target.cpu_seconds()
            rate, latencies = await closed_loop([connection], [row], SECONDS, compare=False)
            measured.append(((target.cpu_seconds() - cpu) / len(latencies.spans) * 1e6, rate))
        found[work] = min(measured)
    return found


class Growth:
    """The time that it took to make many of something, and the memory of each."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began = time.monotonic()
        self._resident_mb = target.resident_mb()

    def tell(self, what: str, count: int) -> None:
        """Print the figures, and begin a new measurement."""
        seconds, resident_mb = time.monotonic() - self._began, self._target.resident_mb()
        each = (resident_mb - self._resident_mb) * 1000 / count
        print(
            f"  {self._target.name}: {count} {what} in {seconds:.1f} s, {each:.1f} KB each, {resident_mb:.0f} MB",
            flush=True,
        )
        self._began, self._resident_mb = time.monotonic(), resident_mb


async def run(target: Target) -> None:
    """See the module."""
    connection = await connect(target.address)
    await create_topics(connection, ["scale"], 10)
    few = [("scale", index) for index in range(10)]
    await find_coordinator(connection, "scale-0")
    members = Members(connection)
    for index in range(10):
        await members.join(f"scale-{index}")
    ten = await costs(target, connection, few, members.heartbeats)

    growth = Growth(target)
    names = [f"scale-{index}" for index in range(TOPICS)]
    for name in names:
        await create_topics(connection, [name], PARTITIONS_PER_TOPIC)
    growth.tell("partitions", TOPICS * PARTITIONS_PER_TOPIC)
    for index in range(10, GROUPS):
        await members.join(f"scale-{index}")
    growth.tell("groups of one member", GROUPS)
    commits = [commit_frame(f"scale-{index}-simple", "scale", [0], 5) for index in range(GROUPS)]
    await closed_loop([connection], [commits], 5.0, compare=False)  # each at least once
    growth.tell("groups of one offset", GROUPS)
    idle = await connect_many(target.address, IDLE_CONNECTIONS)
    growth.tell("idle connections", IDLE_CONNECTIONS)
    hot = await costs(target, connection, few, members.heartbeats[:10])
    many = [(name, index) for index in range(PARTITIONS_PER_TOPIC) for name in names]
    spread = await costs(target, connection, many, members.heartbeats)
    for work in ten:
        row = f"  {target.name:10} {work:10} {ten[work][0]:7.1f} µs {ten[work][1]:8,.0f}/s with ten"
        for what, found in (("hot", hot), ("spread", spread)):
            row += f"; {what} {found[work][0]:7.1f} µs ({found[work][0] / ten[work][0]:.2f}) {found[work][1]:8,.0f}/s"
        print(row, flush=True)
    close([connection, *idle])


def main(kafka: bool) -> None:
    """Measure a Barnabas of this checkout, and with `kafka` an Apache Kafka."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"scale: {__doc__.splitlines()[0] if __doc__ else ''}")
    run_beside(run, kafka)
