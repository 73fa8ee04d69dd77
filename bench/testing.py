"""What a test waits for: a broker, a cluster, to be put back, a copy, time that passes; and the memory of brokers.

`python -m bench testing [ROW...]`. For each: the shortest and the median by the clock, and the median of processor
time, of this process and its brokers. The shortest is what a machine without other work would take. The brokers have
bytecode on disk, as those of an installed wheel have.
"""

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.testing import Barnabas, Topic

MEGABYTE = 1_000_000
WORKERS = 8
ROUNDS = 7


def _spent(kafka: Barnabas) -> float:
    """Processor seconds of this process and of the brokers."""
    pids = [process.pid for process in kafka.processes.values()]
    return time.process_time() + sum(processor_seconds(pid) for pid in pids if pid is not None)


def processor_seconds(pid: int) -> float:
    """Of a process with all its threads, also those that have ended: by its own clock, as Linux numbers these."""
    with suppress(OSError):  # the process has ended
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def _filled(kafka: Barnabas, topics: int = 10, records: int = 1_000, groups: int = 5) -> None:
    """What a test leaves."""
    made = [kafka.topic("orders") for _ in range(topics)]
    for number, topic in enumerate(made):
        topic.produce([f"order {each}" for each in range(records // topics)])
        if number < groups:
            kafka.group("billing").commit(topic, 0, 10)


def _large(kafka: Barnabas, megabytes: int) -> Topic:
    topic = kafka.topic("large", config={"segment.bytes": str(64 * MEGABYTE)})
    for _ in range(megabytes // 10):
        topic.produce([os.urandom(10_000) * 10] * 100)
    return topic


Timed = Callable[[], Any]


def first_fixture() -> Iterator[tuple[Barnabas, Timed]]:
    """A broker and the snapshot that it is put back to, as the fixture `barnabas` has it."""
    for _ in range(ROUNDS):
        kafka = Barnabas()
        yield kafka, kafka.start_with_snapshot
        kafka.stop()


def fresh_cluster() -> Iterator[tuple[Barnabas, Timed]]:
    """Three brokers."""
    for _ in range(ROUNDS):
        kafka = Barnabas(3)
        yield kafka, kafka.start
        kafka.stop()


def put_back() -> Iterator[tuple[Barnabas, Timed]]:
    """Between two tests: 10 topics, 1,000 records, 5 groups."""
    with Barnabas() as kafka:
        start = kafka.snapshot()
        for _ in range(2 * ROUNDS):
            _filled(kafka)
            yield kafka, lambda: kafka.restore(start)


def restore_100_mb() -> Iterator[tuple[Barnabas, Timed]]:
    """100 MB in place, of which a test has written a part anew."""
    with Barnabas() as kafka:
        topic = _large(kafka, 100)
        mark = kafka.snapshot()
        for _ in range(ROUNDS):
            topic.produce(["a"])
            yield kafka, lambda: kafka.restore(mark)


def fork_1_gb() -> Iterator[tuple[Barnabas, Timed]]:
    """Another broker with the same 1 GB."""
    with Barnabas() as kafka, ExitStack() as forks:
        _large(kafka, 1_000)
        for _ in range(3):
            yield kafka, lambda: forks.enter_context(kafka.fork())
            forks.close()


def eight_days() -> Iterator[tuple[Barnabas, Timed]]:
    """1,000 groups whose 10,000 offsets expire."""
    with Barnabas() as kafka:
        topic = kafka.topic("orders", partitions=10)
        start: Any = None
        for _ in range(3):
            if start is not None:
                kafka.restore(start)
            else:
                _commit(kafka, topic, 1_000)
                start = kafka.snapshot()
            yield kafka, lambda: kafka.clock.advance(days=8)
            assert kafka.ask("GET", "/v1/groups")["groups"] == []


def _commit(kafka: Barnabas, topic: Topic, groups: int) -> None:
    make = messages.OffsetCommitRequest
    rows = [make.OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(10)]
    topics = [make.OffsetCommitRequestTopic(name=topic.name, partitions=rows)]
    host, _, port = kafka.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        for number in range(groups):
            request = make(group_id=f"group-{number}", generation_id_or_member_epoch=-1, topics=topics)
            connection.sendall(frames.encode_request(ApiKey.OFFSET_COMMIT, 7, number, "bench", request))
            frame = memoryview(answers.read(int.from_bytes(answers.read(4), "big")))
            answer: Any = frames.decode_response(ApiKey.OFFSET_COMMIT, 7, frame)[1]
            assert {row.error_code for row in answer.topics[0].partitions} == {0}


ROWS: dict[str, tuple[str, Callable[[], Iterator[tuple[Barnabas, Timed]]]]] = {
    "fixture": ("< 0.2 s", first_fixture),
    "cluster": ("< 0.6 s", fresh_cluster),
    "put-back": ("< 10 ms", put_back),
    "restore": ("< 50 ms", restore_100_mb),
    "fork": ("< 200 ms", fork_1_gb),
    "advance": ("< 0.5 s", eight_days),
}


def main(words: list[str]) -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with Barnabas() as kafka:
            kafka.snapshot()
        _print_rows(words or [*ROWS, "workers"])
    return 0


def _print_rows(names: list[str]) -> None:
    for name in names:
        if name == "workers":
            _print_workers()
            continue
        aim, row = ROWS[name]
        spans, spent = [], []
        for kafka, work in row():
            spent_before, began = _spent(kafka), time.perf_counter()
            work()
            spans.append((time.perf_counter() - began) * 1000)
            spent.append((_spent(kafka) - spent_before) * 1000)
        figures = (
            f"{min(spans):7.1f} ms, median {statistics.median(spans):7.1f}, processor {statistics.median(spent):7.1f}"
        )
        print(f"{name:9} {figures}   aim {aim}: {row.__doc__}", flush=True)


def _print_workers() -> None:
    """What brokers of as many processes have in memory that no other process has, and their part of the rest."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(Barnabas()) for _ in range(WORKERS)]
        for kafka in brokers:
            start = kafka.snapshot()
            _filled(kafka)
            kafka.restore(start)
        pids = [process.pid for kafka in brokers for process in kafka.processes.values()]
        found = [_proportional_kb(pid) for pid in pids if pid is not None]
    print(f"{'workers':9} {sum(found) / 1000:7.1f} MB   aim < 400 MB: {WORKERS} workers, a broker each, put back once")


def _proportional_kb(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
