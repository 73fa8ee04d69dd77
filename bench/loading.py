"""`python -m bench loading [--kafka]`: from exec to a million committed offsets served, and the memory that they take.

20,000 groups commit 50 partitions each. Then the broker is killed, later stopped, and started again. Served means that
ListGroups names all groups without an error, so every partition of `__consumer_offsets` is loaded. After the memory was
measured, all offsets are fetched and compared, and the memory is measured again.
"""

import asyncio
import shutil
import tempfile

import uvloop
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from bench.apache_kafka import ApacheKafka
from bench.loads import commit_frame, find_coordinator
from bench.starts import timed_starts
from bench.targets import Barnabas, Target
from bench.wire import Connection, LoadError, close, connect, connect_many, create_topics

GROUPS, PARTITIONS = 20_000, 50
TOPIC = "loading"
CONNECTIONS = 8
FETCHED_AT_ONCE = 200


async def commit_all(target: Target, groups: int = GROUPS) -> None:
    """Let every group commit all partitions."""
    connections = await connect_many(target.address, CONNECTIONS)
    await create_topics(connections[0], [TOPIC], PARTITIONS)
    await find_coordinator(connections[0], "loading-0")

    async def commit(connection: Connection, first: int) -> None:
        for number in range(first, groups, CONNECTIONS):
            await connection.exchange(commit_frame(f"loading-{number}", TOPIC, range(PARTITIONS), number))

    await asyncio.gather(*(commit(connection, first) for first, connection in enumerate(connections)))
    close(connections)


async def served(target: Target, groups: int = GROUPS) -> None:
    """Return when all groups are there."""
    connection = await connect(target.address)
    while True:
        answer = await connection.ask(ApiKey.LIST_GROUPS, 3, messages.ListGroupsRequest())
        if not answer.error_code and len(answer.groups) >= groups:  # type: ignore[attr-defined]
            break
        await asyncio.sleep(0.01)
    close([connection])


async def fetch_all(target: Target) -> None:
    """Fetch all offsets. LoadError if one is not what was committed."""
    connection = await connect(target.address)
    make = messages.OffsetFetchRequest.OffsetFetchRequestGroup
    for first in range(0, GROUPS, FETCHED_AT_ONCE):
        groups = [make(group_id=f"loading-{number}", topics=None) for number in range(first, first + FETCHED_AT_ONCE)]
        answer = await connection.ask(ApiKey.OFFSET_FETCH, 8, messages.OffsetFetchRequest(groups=groups))
        for group in answer.groups:  # type: ignore[attr-defined]
            found = {row.partition_index: row.committed_offset for topic in group.topics for row in topic.partitions}
            if found != dict.fromkeys(range(PARTITIONS), int(group.group_id.rpartition("-")[2])):
                raise LoadError(f"{group.group_id}: {found}")
    close([connection])


def main(kafka: bool) -> None:
    """Print the figures."""
    folder = tempfile.mkdtemp(prefix="barnabas-bench-")
    try:
        broker = Barnabas(f"{folder}/data")
        uvloop.run(commit_all(broker))
        print(
            f"  barnabas: {broker.resident_mb():.0f} MB after {GROUPS * PARTITIONS:,} offsets were committed",
            flush=True,
        )
        broker = timed_starts(broker, f"{folder}/data", served, "served")
        loaded_mb = broker.resident_mb()
        uvloop.run(fetch_all(broker))
        print(f"  barnabas: {loaded_mb:.0f} MB, {broker.resident_mb():.0f} MB when all were fetched", flush=True)
        broker.stop()
    finally:
        shutil.rmtree(folder)
    if kafka:
        with ApacheKafka() as other:
            uvloop.run(commit_all(other))
            resident_mb = other.resident_mb()
        print(f"  kafka: {resident_mb:.0f} MB after {GROUPS * PARTITIONS:,} offsets were committed", flush=True)
