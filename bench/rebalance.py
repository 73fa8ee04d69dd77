"""A group of 2,000 members rebalances: how long, and what others feel of it. `python -m bench rebalance [--kafka]`

Each member has a connection of its own. In each round all members join at once with other metadata, as if each had
just been told; each syncs as soon as it has its generation. In an eager group all have the same subscription. In a
cooperative group each names the partitions that it keeps, and each round is two rebalances: one to give up, one to
assign.

Meanwhile another process sends heartbeats of another group, one after the other, 2 ms apart, and measures each answer.
It also measures how much too late it wakes up from those 2 ms: that is what the machine adds to each figure.
"""

import asyncio
import time
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from bench.apache_kafka import run_beside
from bench.loads import HEARTBEAT_VERSION, find_coordinator
from bench.neighbour import Neighbour
from bench.scale import JOIN_VERSION, SYNC_VERSION, Members
from bench.targets import Target
from bench.wire import Connection, Latencies, close, connect, connect_many, create_topics

MEMBERS = 2_000
ROUNDS = 5
KINDS = {"eager": 1, "cooperative": 2}  # rebalances in a round
GROUP = "large"
TOPIC = "large"
NEIGHBOUR = "neighbour"
INT32 = Struct(">i")
TOPICS = INT32.pack(1) + b"\x00\x05large"
NO_USER_DATA = INT32.pack(-1)
ASSIGNMENT = b"\x00\x01" + TOPICS + INT32.pack(1) + INT32.pack(0) + NO_USER_DATA
BEAT_EVERY_S = 0.002


def subscription(kind: str, index: int, number: int) -> bytes:
    """What a member says of itself in the rebalance `number`."""
    if kind == "eager":
        return b"\x00\x00" + TOPICS + INT32.pack(4) + INT32.pack(number)
    owned = TOPICS + INT32.pack(2) + INT32.pack(2 * index) + INT32.pack(2 * index + number % 2)
    return b"\x00\x01" + TOPICS + INT32.pack(4) + INT32.pack(number) + owned


class Member:
    """One member, on a connection of its own."""

    def __init__(self, connection: Connection, group: str, kind: str, index: int) -> None:
        self.connection = connection
        self.group = group
        self.kind = kind
        self.index = index
        self.member_id = ""
        self.generation = -1

    async def join(self, number: int) -> Any:
        """Join, or join again with the metadata of this rebalance; returns the answer."""
        metadata = subscription(self.kind, self.index, number)
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        answer: Any = await self.connection.ask(ApiKey.JOIN_GROUP, JOIN_VERSION, request)
        if answer.error_code:
            raise RuntimeError(f"JoinGroup: {answer.error_code}")
        self.member_id = answer.member_id
        return answer

    async def rebalance(self, number: int) -> None:
        """Join again and sync, as often as another rebalance comes between."""
        while True:
            answer = await self.join(number)
            row = messages.SyncGroupRequest.SyncGroupRequestAssignment
            request = messages.SyncGroupRequest(
                group_id=self.group,
                generation_id=answer.generation_id,
                member_id=self.member_id,
                assignments=[row(member_id=one.member_id, assignment=ASSIGNMENT) for one in answer.members],
            )
            synced: Any = await self.connection.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, request)
            if not synced.error_code:
                self.generation = answer.generation_id
                return

    async def enter(self, all_are_in: asyncio.Event) -> None:
        """Join for the first time, and again as often as more members come, until all are in one generation."""
        await self.rebalance(0)
        while not all_are_in.is_set():
            await asyncio.sleep(0.5)
            request = messages.HeartbeatRequest(
                group_id=self.group, generation_id=self.generation, member_id=self.member_id
            )
            answer: Any = await self.connection.ask(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request)
            if answer.error_code:
                await self.rebalance(0)


async def enter_all(members: list[Member]) -> None:
    """Return when all members are in one generation."""
    all_are_in = asyncio.Event()
    entering = asyncio.gather(*(member.enter(all_are_in) for member in members))
    while len({member.generation for member in members}) > 1 or members[0].generation < 0:
        await asyncio.sleep(0.2)
    all_are_in.set()
    await entering


async def _heartbeat(address: str, group: str) -> bytes:
    connection = await connect(address)
    await find_coordinator(connection, group)
    members = Members(connection)
    await members.join(group)
    close([connection])
    return members.heartbeats[0]


async def run(target: Target) -> None:
    """See the module."""
    first = await connect(target.address)
    await create_topics(first, [TOPIC], 1)
    for kind in KINDS:
        await measure(target, first, kind)
    close([first])


async def measure(target: Target, first: Connection, kind: str) -> None:
    """Make a group, let it rebalance, and print what that took and what the neighbour felt."""
    group = f"{GROUP}-{kind}"
    await find_coordinator(first, group)
    connections = await connect_many(target.address, MEMBERS)
    members = [Member(connection, group, kind, index) for index, connection in enumerate(connections)]
    await enter_all(members)
    with TemporaryDirectory(prefix="barnabas-bench-") as folder:
        frame, port = await _heartbeat(target.address, f"{NEIGHBOUR}-{kind}"), int(target.address.rpartition(":")[2])
        neighbour = Neighbour(port, frame, Path(folder, "notes"), BEAT_EVERY_S)
        await neighbour.start()
        try:
            await _measure(target, kind, members, neighbour)
        finally:
            await neighbour.stop()
    close(connections)


async def _measure(target: Target, kind: str, members: list[Member], neighbour: Neighbour) -> None:
    await asyncio.sleep(1)
    quiet = [(time.monotonic() - 1, time.monotonic())]
    windows, costs = [], []
    number = 0
    for _ in range(ROUNDS):
        cpu, began = target.cpu_seconds(), time.monotonic()
        for _ in range(KINDS[kind]):
            number += 1
            await asyncio.gather(*(member.rebalance(number) for member in members))
        windows.append((began, time.monotonic()))
        costs.append((time.monotonic() - began, target.cpu_seconds() - cpu))
        await asyncio.sleep(0.5)
    (during, late), (before, _) = neighbour.felt(*windows), neighbour.felt(*quiet)
    seconds, cpu_seconds = (sorted(column)[ROUNDS // 2] for column in zip(*costs, strict=True))
    print(
        f"  {target.name:10} {kind}: {MEMBERS} members rebalance in {seconds:.2f} s ({cpu_seconds:.2f} s of processor "
        f"time); heartbeats of others meanwhile: {_told(during)} of {len(during.spans)} (before: {_told(before)}; the "
        f"machine adds {_told(late)})",
        flush=True,
    )


def _told(spans: Latencies) -> str:
    p50, p99, longest = (spans.percentile_ms(share) for share in (0.5, 0.99, 1))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, longest {longest:.1f} ms"


def main(kafka: bool) -> None:
    """Measure a Barnabas of this checkout, and with `kafka` an Apache Kafka."""
    print(f"rebalance: {__doc__.splitlines()[0] if __doc__ else ''}")
    run_beside(run, kafka)
