"""What the lag of a group costs: `python -m bench lag`

It asks a broker for the lag of one group in 50 partitions (`GET /v1/groups/{group}/lag`), while there are two groups,
and again beside 10,000 groups of 50 offsets: `near` has 20 batches of each partition before it, `far` has 1,000. Then
it looks at all these groups as a broker does every 30 seconds, in this process with a simulated clock: how much
processor time a look takes, and its longest piece.
"""

import json
import tempfile
import time
from http.client import HTTPConnection

import uvloop
from barnabas.broker.broker import Broker
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.records import CommittedOffset
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from simulator.env import sim_env

from bench.loads import batch, commit_frame, find_coordinator
from bench.targets import Barnabas
from bench.wire import Connection, closed_loop, connect, create_topics

GROUPS, PARTITIONS, TOPICS = 10_000, 50, 20
BATCHES, NEAR = 1_000, 20
ASKED = 20
PRODUCE_VERSION = 3


def main(kafka: bool) -> None:
    """Measure a Barnabas of this checkout."""
    print(f"lag: {__doc__.splitlines()[0] if __doc__ else ''}")
    with Barnabas() as barnabas:
        uvloop.run(_ask(barnabas))
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as folder:
        _look(folder)


async def _ask(target: Barnabas) -> None:
    connection = await connect(target.address)
    await create_topics(connection, ["lag"], PARTITIONS)
    await _produce(connection)
    for group, offset in (("near", BATCHES - NEAR), ("far", 0)):
        await find_coordinator(connection, group)
        await connection.exchange(commit_frame(group, "lag", range(PARTITIONS), offset))
    _print_costs(target, "two groups")
    frames = [commit_frame(f"g{number}", "lag", range(PARTITIONS), 5) for number in range(GROUPS)]
    await closed_loop([connection], [frames], 20.0, compare=False)  # each at least once
    _print_costs(target, f"beside {GROUPS:,} groups")
    connection.transport.close()


async def _produce(connection: Connection) -> None:
    make = messages.ProduceRequest
    rows = [make.PartitionProduceData(index=index, records=batch([bytes(100)])) for index in range(PARTITIONS)]
    request = make(acks=1, timeout_ms=5_000, topic_data=[make.TopicProduceData(name="lag", partition_data=rows)])
    for _ in range(BATCHES):
        await connection.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request)


def _print_costs(target: Barnabas, situation: str) -> None:
    assert target.http is not None
    for group, batches in (("near", NEAR), ("far", BATCHES)):
        spans = []
        cpu_s = target.cpu_seconds()
        for _ in range(ASKED):
            began = time.perf_counter()
            api = HTTPConnection(target.http)
            api.request("GET", f"/v1/groups/{group}/lag")
            answer = json.loads(api.getresponse().read())
            spans.append((time.perf_counter() - began) * 1000)
            api.close()
            counted = sum(row["read_uncommitted"]["records"] for row in answer["partitions"])
            assert counted == PARTITIONS * batches, counted
            assert all(row["read_uncommitted"]["exact"] for row in answer["partitions"])
        cpu_ms = (target.cpu_seconds() - cpu_s) * 1000 / ASKED
        median_ms = sorted(spans)[ASKED // 2]
        print(f"  {situation}: {group} {median_ms:6.1f} ms, {cpu_ms:6.1f} ms of processor time", flush=True)


def _look(folder: str) -> None:
    """Looks of `coordinators/groups/lag_sampling.py`: the first one, one without news, one when all have some."""
    env = sim_env(1)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "http.listeners": "none",
        "coordination.path": f"{folder}/tree.sqlite",
        "num.partitions": str(PARTITIONS),
    }
    broker = Broker(env, BrokerConfig.of(settings), "/data")
    env.run(broker.start())
    topics = [f"t{number}" for number in range(TOPICS)]

    async def create(topic: str) -> None:
        broker.auto_topics.create(topic)

    for topic in (*topics, "__consumer_offsets"):
        env.run(create(topic))
        env.clock.advance(1_000)
    for number in range(GROUPS):
        shard = broker.group_coordinator.shards[partition_for(f"g{number}", len(broker.group_coordinator.shards))]
        offsets = {index: CommittedOffset(0) for index in range(PARTITIONS)}
        shard.offsets.decoded[f"g{number}"] = {topics[number % TOPICS]: offsets}
    sampling = broker.lag_sampling
    for situation in ("the first", "commits everywhere", "nothing changed", "records everywhere"):
        if situation == "records everywhere":
            for partition in broker.replica_manager.partitions.values():
                partition.log.high_watermark += 1
        pieces = []
        for item in sampling._items():
            work = sampling._look(item)
            at = time.process_time()
            for _ in work or ():
                pieces.append(time.process_time() - at)
                at = time.process_time()
            pieces.append(time.process_time() - at)
        held_mb = sampling.histories.memory_bytes / 1e6
        print(
            f"  look at {GROUPS:,} groups, {situation}: {sum(pieces) * 1000:.0f} ms of processor time, longest piece "
            f"{max(pieces) * 1000:.1f} ms, histories {held_mb:.1f} MB",
            flush=True,
        )
    env.run(broker.stop())
