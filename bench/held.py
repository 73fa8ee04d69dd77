"""`python -m bench held`: does a commit, a fetch or a heartbeat cost the same when a million offsets are held?

One broker holds a thousand offsets (20 groups × 50 partitions), another one a million (20,000 groups). Both get the
same requests in turn, one in flight: commits of one offset and of fifty, fetches of a group's fifty offsets, and
heartbeats. On the large one they go to twenty groups (hot), or to all groups in turn (spread). Then both brokers are
started again, so that the offsets are as they were loaded, and it is done once more. The figures are processor time,
the best of some rounds.
"""

import shutil
import tempfile

import uvloop
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey

from bench.loading import PARTITIONS, TOPIC, commit_all, served
from bench.loads import commit_frame
from bench.scale import Members
from bench.targets import Barnabas
from bench.wire import CLIENT_ID, Connection, closed_loop, connect

FEW, MANY = 20, 20_000
ROUNDS, SECONDS = 5, 0.7
OFFSET_FETCH_VERSION = 7
Tasks = dict[str, list[bytes]]


def _fetch_frame(group: str) -> bytes:
    request = messages.OffsetFetchRequest(group_id=group, topics=None)
    return frames.encode_request(ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, 1, CLIENT_ID, request)


def _tasks(groups: int, heartbeats: list[bytes]) -> Tasks:
    names = [f"loading-{number}" for number in range(groups)]
    return {
        "commit of 1": [commit_frame(name, TOPIC, [7], 5) for name in names],
        "commit of 50": [commit_frame(name, TOPIC, range(PARTITIONS), 5) for name in names],
        "fetch of 50": [_fetch_frame(name) for name in names],
        "heartbeat": heartbeats,
    }


async def _cost_us(broker: Barnabas, connection: Connection, row: list[bytes]) -> float:
    before = broker.cpu_seconds()
    _, latencies = await closed_loop([connection], [row], SECONDS, compare=False)
    return (broker.cpu_seconds() - before) / len(latencies.spans) * 1e6


async def _compare(small: Barnabas, large: Barnabas, what: str) -> None:
    """Print the row of each work."""
    connections = [await connect(broker.address) for broker in (small, large)]
    heartbeats = []
    for connection in connections:
        members = Members(connection)
        for number in range(FEW):
            await members.join(f"{what}-{number}")
        heartbeats.append(members.heartbeats)
    of_small, of_large, spread = _tasks(FEW, heartbeats[0]), _tasks(FEW, heartbeats[1]), _tasks(MANY, heartbeats[1])
    cases = [(small, connections[0], of_small), (large, connections[1], of_large), (large, connections[1], spread)]
    for work in of_small:
        for _, connection, works in cases:  # every group once before, because the first commit decodes what was loaded
            await closed_loop([connection], [works[work]], 0.2 if works is not spread else 3.0, compare=False)
        costs: list[list[float]] = [[] for _ in cases]
        for _ in range(ROUNDS):
            for found, (broker, connection, works) in zip(costs, cases):
                found.append(await _cost_us(broker, connection, works[work]))
        few, hot, all_groups = map(min, costs)
        print(
            f"  {what}: {work:12} {few:6.1f} µs with a thousand offsets; with a million {hot:6.1f} µs "
            f"({hot / few:.2f}), spread {all_groups:6.1f} µs ({all_groups / few:.2f})",
            flush=True,
        )
    for connection in connections:
        connection.transport.close()


def main(kafka: bool) -> None:
    """Print the figures of Barnabas."""
    folder = tempfile.mkdtemp(prefix="barnabas-bench-")
    try:
        for what, prepare in (("committed", commit_all), ("loaded", served)):
            with Barnabas(f"{folder}/small") as small, Barnabas(f"{folder}/large") as large:
                uvloop.run(prepare(small, FEW))
                uvloop.run(prepare(large, MANY))
                uvloop.run(_compare(small, large, what))
    finally:
        shutil.rmtree(folder)
