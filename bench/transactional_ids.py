"""`python -m bench txn-ids [--kafka]`: memory of 100,000 transactional ids, and from exec until all are loaded.

Each id gets a producer id; every tenth one has ended a transaction. Then the broker is killed, later stopped, and
started again. Loaded means that DescribeTransactions answers for an id of every partition of `__transaction_state`.
"""

import asyncio
import shutil
import tempfile
from typing import Any

import uvloop
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from bench.apache_kafka import ApacheKafka
from bench.starts import timed_starts
from bench.targets import Barnabas, Target
from bench.transactional import Connected, Versions
from bench.wire import CLIENT_ID, Connection, LoadError, close, connect, connect_many, create_topics

IDS = 100_000
PARTITIONS = 50  # of `__transaction_state`
CONNECTIONS = 8
IN_FLIGHT = 50
ENDED_EACH = 10
TOPIC = "transactional-ids"
INIT_VERSION = 4


def _name(number: int) -> str:
    return f"bench-transactional-id-{number}"


async def _make_all(target: Target) -> None:
    connections = await connect_many(target.address, CONNECTIONS)
    await create_topics(connections[0], [TOPIC], CONNECTIONS)
    await Connected(connections[0], _name(0), Versions(1)).begin()

    async def make(connection: Connection, first: int) -> None:
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        connection.on_frame = lambda frame: answers.put_nowait(bytes(frame))
        numbers = range(first, IDS, CONNECTIONS)
        for start in range(0, len(numbers), IN_FLIGHT):
            asked = list(numbers[start : start + IN_FLIGHT])
            while asked:
                for number in asked:
                    init = messages.InitProducerIdRequest(transactional_id=_name(number), transaction_timeout_ms=60_000)
                    connection.transport.write(
                        frames.encode_request(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, 1, CLIENT_ID, init)
                    )
                again = []
                for number in asked:
                    frame = await asyncio.wait_for(answers.get(), 60)
                    answer: Any = frames.decode_response(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, frame)[1]
                    if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # it has no producer id ready
                        again.append(number)
                    elif answer.error_code:
                        raise LoadError(f"{_name(number)}: error {answer.error_code}")
                asked = again

    await asyncio.gather(*(make(connection, first) for first, connection in enumerate(connections)))

    async def end(connection: Connection, first: int) -> None:
        for number in range(first * ENDED_EACH, IDS, CONNECTIONS * ENDED_EACH):
            producer = Connected(connection, _name(number), Versions(1))
            await producer.begin()
            await producer.ask(producer.adding([(TOPIC, first)]))
            await producer.end()

    await asyncio.gather(*(end(connection, first) for first, connection in enumerate(connections)))
    close(connections)


async def _loaded(target: Target) -> None:
    """Return when all partitions are loaded."""
    of_each: dict[int, str] = {}
    for number in range(IDS):
        of_each.setdefault(partition_for(_name(number), PARTITIONS), _name(number))
        if len(of_each) == PARTITIONS:
            break
    connection = await connect(target.address)
    request = messages.DescribeTransactionsRequest(transactional_ids=list(of_each.values()))
    while True:
        answer: Any = await connection.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
        if not any(row.error_code for row in answer.transaction_states):
            break
        await asyncio.sleep(0.01)
    close([connection])


async def _count(target: Target) -> int:
    connection = await connect(target.address)
    answer: Any = await connection.ask(ApiKey.LIST_TRANSACTIONS, 0, messages.ListTransactionsRequest())
    close([connection])
    return len(answer.transaction_states)


def main(kafka: bool) -> None:
    """Print the figures."""
    folder = tempfile.mkdtemp(prefix="barnabas-bench-")
    try:
        broker = Barnabas(f"{folder}/data")
        idle_mb = broker.resident_mb()
        uvloop.run(_make_all(broker))
        print(f"  barnabas: {idle_mb:.0f} MB idle, {broker.resident_mb():.0f} MB with {IDS:,} ids", flush=True)
        broker = timed_starts(broker, f"{folder}/data", _loaded, "loaded")
        loaded_mb = broker.resident_mb()
        count = uvloop.run(_count(broker))
        print(f"  barnabas: {loaded_mb:.0f} MB loaded, {count:,} ids", flush=True)
        broker.stop()
    finally:
        shutil.rmtree(folder)
    if kafka:
        with ApacheKafka() as other:
            uvloop.run(_make_all(other))
            print(f"  kafka: {other.resident_mb():.0f} MB with {IDS:,} ids", flush=True)
