"""`python -m bench warm [ROW...]`: requests of groups against both builds of Barnabas, Apache Kafka, and the limit.

All are warmed: a row is sent until the rates of two rounds in a row differ by less than 5 %; then they are measured, in
turn. Frames are made beforehand, and the client's own processor time for a request stands beside the broker's: while it
is less, and the machine has two processors, the client does not hold the broker back. Barnabas has its journal on, as
users have it; `--set offsets.journal.enable=false` turns it off. The limit is `bench/limit.py`: an empty protocol that
answers the same frames with as many bytes.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from struct import Struct
from typing import NamedTuple

import uvloop

from bench.apache_kafka import SETTINGS, ApacheKafka
from bench.loads import commit_frame, find_coordinator, offset_fetch_frame, topic_of
from bench.scale import Members
from bench.targets import ROOT, Barnabas, Target
from bench.wire import Connection, close, closed_loop, connect_many, create_topics

WARM = 0.05  # two rounds differ by less
SIZES = Struct(">ii")
Rows = list[list[bytes]]
Frames = Callable[[Connection, str, int], Awaitable[list[bytes]]]  # of one connection: its number among all


class Work(NamedTuple):
    """One row: so many connections, each of which sends its frames in turn, one in flight."""

    what: str
    connections: int
    frames: Frames


class Round(NamedTuple):
    """One round against one target."""

    requests_per_s: float
    p99_ms: float
    broker_us: float
    client_us: float


def _commits(groups: int, partitions: int) -> Frames:
    async def made(connection: Connection, topic: str, number: int) -> list[bytes]:
        names = [f"{topic}-{number}-{index}" for index in range(groups)]
        for name in names:
            await find_coordinator(connection, name)
        return [commit_frame(name, topic, range(partitions), 7) for name in names]

    return made


async def _fetches(connection: Connection, topic: str, number: int) -> list[bytes]:
    """OffsetFetch of 50 partitions, all committed."""
    group = f"{topic}-{number}"
    await find_coordinator(connection, group)
    await connection.exchange(commit_frame(group, topic, range(50), 7))
    return [offset_fetch_frame(group, topic, range(50))]


async def _heartbeats(connection: Connection, topic: str, number: int) -> list[bytes]:
    """The heartbeats of the only member of a group."""
    group = f"{topic}-{number}"
    await find_coordinator(connection, group)
    members = Members(connection)
    await members.join(group)
    return members.heartbeats


WORKS = {
    "commit-8": Work("commits of one offset, 8 connections", 8, _commits(1, 1)),
    "commit-1": Work("the same, one connection", 1, _commits(1, 1)),
    "commit-64": Work("the same, 64 connections, 512 groups", 64, _commits(8, 1)),
    "commit-128": Work("the same, 128 connections, 1,024 groups", 128, _commits(8, 1)),
    "commit-50": Work("commits of 50 partitions, 8 connections", 8, _commits(1, 50)),
    "fetch-50": Work("OffsetFetch of 50 partitions, 8 connections", 8, _fetches),
    "heartbeat": Work("heartbeats, 8 connections", 8, _heartbeats),
}


class Limit(Target):
    """The empty protocol. It gets the frames that another target was sent, and answers with as many bytes."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.limit"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        super().__init__("limit", f"127.0.0.1:{self.process.stdout.readline().strip()}", self.process.pid)
        self.rows: Rows = []
        self.answer_bytes = 0

    def __enter__(self) -> "Limit":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


async def _connected(work: Work, target: Target, limit: Limit) -> tuple[list[Connection], Rows]:
    opened = await connect_many(target.address, work.connections)
    if target is limit:
        for connection in opened:
            connection.transport.write(SIZES.pack(0, limit.answer_bytes))
        return opened, limit.rows
    topic = topic_of("warm")
    await create_topics(opened[0], [topic], 50)
    rows = [await work.frames(connection, topic, number) for number, connection in enumerate(opened)]
    limit.rows, limit.answer_bytes = rows, len(await opened[0].exchange(rows[0][0]))
    return opened, rows


async def one_round(work: Work, target: Target, limit: Limit, seconds: float) -> Round:
    """Send the row for some seconds."""
    opened, rows = await _connected(work, target, limit)
    broker, client = target.cpu_seconds(), time.process_time()
    rate, latencies = await closed_loop(opened, rows, seconds)
    broker, client = target.cpu_seconds() - broker, time.process_time() - client
    close(opened)
    count = len(latencies.spans) / 1e6
    return Round(rate, latencies.percentile_ms(0.99), broker / count, client / count)


async def warm(work: Work, target: Target, limit: Limit, seconds: float, rounds_max: int) -> str:
    """Send the row until two rounds in a row differ by less than `WARM`; says how long that took."""
    before = 0.0
    for number in range(1, rounds_max + 1):
        rate = (await one_round(work, target, limit, seconds)).requests_per_s
        if abs(rate - before) < WARM * rate:
            return f"warm after {number} rounds"
        before = rate
    return f"NOT WARM after {rounds_max} rounds: its rate does not stand still here"


async def measure(
    work: Work, targets: Sequence[Target], limit: Limit, rounds: int, seconds: float, rounds_max: int
) -> None:
    """Warm all, measure them in turn, and print medians and ratios to the last broker."""
    gc.disable()  # a collection in this process would look like a pause of the broker
    print(f"{work.what}", flush=True)
    notes = [await warm(work, target, limit, seconds, rounds_max) for target in targets]
    found: list[list[Round]] = [[] for _ in targets]
    for _ in range(rounds):
        for figures, target in zip(found, targets, strict=True):
            figures.append(await one_round(work, target, limit, seconds))
    medians = [Round(*map(statistics.median, zip(*figures, strict=True))) for figures in found]
    beside, other = targets[-2].name, medians[-2]  # the last one is the limit
    for target, median, note in zip(targets, medians, notes, strict=True):
        print(
            f"  {target.name:10} {median.requests_per_s:>8,.0f}/s, p99 {median.p99_ms:6.2f} ms,",
            f"broker {median.broker_us:6.1f} µs, client {median.client_us:5.1f} µs;",
            f"{median.requests_per_s / other.requests_per_s:4.2f} of the rate of {beside},",
            f"{median.broker_us / other.broker_us:4.2f} of its processor time ({note})",
            flush=True,
        )


def compiled_site() -> str:
    """A folder with the compiled build of this source, as users get it."""
    environment = {**os.environ, "BARNABAS_OPTIMIZE": "2"}
    command = [sys.executable, str(ROOT / "tests" / "compiled.py")]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench warm", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(WORKS))
    parser.add_argument("--site", help="a folder with a compiled build; else this source is compiled, for minutes")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Barnabas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one round")
    parser.add_argument("--warm-rounds", type=int, default=40, help="at most, of each broker and row")
    said = parser.parse_args(words)
    if unknown := set(said.rows) - WORKS.keys():
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    site = said.site or compiled_site()
    targets: list[Target] = []
    with ExitStack() as started:
        for name, paths in (("pure", ""), ("compiled", site)):
            barnabas = started.enter_context(Barnabas(settings=said.set, paths=paths))
            barnabas.name = name
            targets.append(barnabas)
        if not said.no_kafka:
            targets.append(started.enter_context(ApacheKafka(SETTINGS)))
        limit = started.enter_context(Limit())
        targets.append(limit)
        for name in said.rows or WORKS:
            uvloop.run(measure(WORKS[name], targets, limit, said.rounds, said.seconds, said.warm_rounds))
    return 0
