"""A group of 2,000 members rebalances: how long, and what others feel of it. `python -m bench rebalance [--kafka]`

Each member has a connection of its own. In each round the leader joins again with other metadata, then all others at
once, as if each had just been told; each syncs as soon as it has its generation. Meanwhile another process sends
heartbeats of another group, one after the other, 2 ms apart, and measures each answer.
"""

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import uvloop
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from bench.apache_kafka import run_beside
from bench.loads import find_coordinator
from bench.scale import JOIN_VERSION, SYNC_VERSION, Members
from bench.targets import Target
from bench.wire import Connection, Latencies, close, connect, connect_many, create_topics

MEMBERS = 2_000
ROUNDS = 5
GROUP = "large"
NEIGHBOUR = "neighbour"
ASSIGNMENT = b"\x00\x00" + (1).to_bytes(4, "big") + b"\x00\x05large" + (1).to_bytes(4, "big") + bytes(4) + b"\xff" * 4
BEAT_EVERY_S = 0.002


class Member:
    """One member, on a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.member_id = ""

    async def join(self, round_number: int) -> Any:
        """Join, or join again with the metadata of this round; returns the answer."""
        metadata = b"\x00\x00" + (1).to_bytes(4, "big") + b"\x00\x05large\0\0\0\4" + round_number.to_bytes(4, "big")
        request = messages.JoinGroupRequest(
            group_id=GROUP,
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

    async def run_round(self, round_number: int) -> None:
        """Join again and sync, as often as another rebalance comes between."""
        while True:
            answer = await self.join(round_number)
            row = messages.SyncGroupRequest.SyncGroupRequestAssignment
            request = messages.SyncGroupRequest(
                group_id=GROUP,
                generation_id=answer.generation_id,
                member_id=self.member_id,
                assignments=[row(member_id=one.member_id, assignment=ASSIGNMENT) for one in answer.members],
            )
            synced: Any = await self.connection.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, request)
            if not synced.error_code:
                return


async def beat(address: str) -> None:
    """The neighbour: prints when each heartbeat was sent, and how long its answer took, when its input is closed."""
    connection = await connect(address)
    await find_coordinator(connection, NEIGHBOUR)
    members = Members(connection)
    await members.join(NEIGHBOUR)
    (frame,) = members.heartbeats
    spans: list[tuple[float, float]] = []
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print("ready", flush=True)
    while not over.done():
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.on_frame = lambda frame, answered=answered: answered.set_result(None)  # type: ignore[misc]
        sent = time.monotonic()
        connection.transport.write(frame)
        await asyncio.wait_for(answered, 30)  # it ends soon after the broker, too
        spans.append((sent, time.monotonic() - sent))
        await asyncio.sleep(BEAT_EVERY_S)
    print(json.dumps(spans))


async def run(target: Target) -> None:
    """See the module."""
    first = await connect(target.address)
    await create_topics(first, ["large"], 1)
    await find_coordinator(first, GROUP)
    members = [Member(connection) for connection in await connect_many(target.address, MEMBERS)]
    await asyncio.gather(*(member.run_round(0) for member in members))
    command = [sys.executable, "-m", "bench.rebalance", target.address]
    neighbour = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert neighbour.stdout is not None
    assert neighbour.stdout.readline() == "ready\n"
    await asyncio.sleep(1)
    quiet = (time.monotonic() - 1, time.monotonic())
    windows = []
    for number in range(1, ROUNDS + 1):
        cpu, began = target.cpu_seconds(), time.monotonic()
        await asyncio.gather(*(member.run_round(number) for member in members))
        windows.append((time.monotonic() - began, target.cpu_seconds() - cpu, began, time.monotonic()))
        await asyncio.sleep(0.5)
    told, _ = await asyncio.to_thread(neighbour.communicate)
    spans = json.loads(told)
    during, before = Latencies(), Latencies()
    during.spans.extend(span for at, span in spans if any(begin <= at <= end for _, _, begin, end in windows))
    before.spans.extend(span for at, span in spans if quiet[0] <= at <= quiet[1])
    seconds, cpu_seconds = (sorted(column)[ROUNDS // 2] for column in list(zip(*windows))[:2])
    print(
        f"  {target.name:10} {MEMBERS} members rebalance in {seconds:.2f} s ({cpu_seconds:.2f} s of processor time); "
        f"heartbeats of others meanwhile: p50 {during.percentile_ms(0.5):.1f}, p99 {during.percentile_ms(0.99):.1f}, "
        f"longest {during.percentile_ms(1):.1f} ms (before: p99 {before.percentile_ms(0.99):.1f})",
        flush=True,
    )
    close([first, *(member.connection for member in members)])


def main(kafka: bool) -> None:
    """Measure a Barnabas of this checkout, and with `kafka` an Apache Kafka."""
    print(f"rebalance: {__doc__.splitlines()[0] if __doc__ else ''}")
    run_beside(run, kafka)


if __name__ == "__main__":
    uvloop.run(beat(sys.argv[1]))
