"""The time from exec to the first Metadata answer, empty and with 10,000 partitions on disk; resident memory.

`python -m bench startup`, `python -m bench memory`. Users have an installed wheel with bytecode, so measure one:
BARNABAS_COMMAND names its command (FOLDER/bin/barnabas), and PYTHONDONTWRITEBYTECODE must not be set.
"""

import asyncio
import os
import shutil
import signal
import statistics
import tempfile
import time

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from bench.apache_kafka import ApacheKafka, run_beside
from bench.loads import fill, read_all
from bench.targets import Barnabas, Target
from bench.wire import close, connect, create_topics

ROUNDS = 5
TOPICS, PARTITIONS_PER_TOPIC = 10, 1000
MEMORY_RECORDS = 2_000_000  # of 1 KB


async def first_answer(target: Target) -> None:
    """Return when an answer to Metadata names a broker."""
    connection = await connect(target.address)
    while not (await connection.ask(ApiKey.METADATA, 4, messages.MetadataRequest(topics=[]))).brokers:  # type: ignore[attr-defined]
        await asyncio.sleep(0.005)
    close([connection])


def seconds_to_first_answer(data: str | None = None) -> tuple[float, Barnabas]:
    """Start a Barnabas; returns the seconds from exec to its first answer, and the broker."""
    os.sync()
    began = time.perf_counter()
    broker = Barnabas(data)
    asyncio.run(first_answer(broker))
    return time.perf_counter() - began, broker


def _print(what: str, spans: list[float]) -> None:
    each = " ".join(f"{span:.2f}" for span in spans)
    print(f"  {what:44} {statistics.median(spans):6.2f} s  ({each})", flush=True)


def main(kafka: bool) -> None:
    """Print the figures."""
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        print("  PYTHONDONTWRITEBYTECODE is set: without bytecode on disk a start takes longer than a user's")
    spans = []
    for _ in range(ROUNDS + 1):
        span, broker = seconds_to_first_answer()
        spans.append(span)
        broker.stop()
    _print("barnabas: exec to first answer, empty", spans[1:])
    folder = tempfile.mkdtemp(prefix="barnabas-bench-")
    try:
        _, broker = seconds_to_first_answer(f"{folder}/data")
        asyncio.run(_fill_partitions(broker))
        # Killed before anything was synced and any index written: this is the slowest start.
        for number, what in ((signal.SIGKILL, "after SIGKILL"), (signal.SIGTERM, "clean")):
            spans = []
            for _ in range(3):
                broker.stop(number)
                span, broker = seconds_to_first_answer(f"{folder}/data")
                spans.append(span)
            _print(f"barnabas: with {TOPICS * PARTITIONS_PER_TOPIC} partitions, {what}", spans)
        broker.stop()
    finally:
        shutil.rmtree(folder)
    if kafka:
        spans = []
        for _ in range(3):
            with ApacheKafka() as other:
                asyncio.run(first_answer(other))
                spans.append(time.monotonic() - other.started)
        _print("kafka: exec to first answer, empty", spans)


async def _fill_partitions(target: Target) -> None:
    """Write a few records into every partition."""
    connection = await connect(target.address)
    for index in range(TOPICS):
        topic = f"start-{index}"
        await create_topics(connection, [topic], PARTITIONS_PER_TOPIC)
        await fill(target, topic, 3 * 15 * PARTITIONS_PER_TOPIC, partitions=PARTITIONS_PER_TOPIC)
    close([connection])


def memory(kafka: bool) -> None:
    """Print the resident memory, idle and after 2 GB were produced and consumed."""
    run_beside(_memory, kafka)


async def _memory(target: Target) -> None:
    await asyncio.sleep(3)
    idle = target.resident_mb()
    connection = await connect(target.address)
    await create_topics(connection, ["memory"])
    await fill(target, "memory", MEMORY_RECORDS)
    await read_all(connection, "memory", MEMORY_RECORDS)
    close([connection])
    print(f"  {target.name}: {idle:.0f} MB idle, {target.resident_mb():.0f} MB after 2 GB in and out", flush=True)
