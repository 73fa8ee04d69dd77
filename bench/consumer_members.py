"""Members of the consumer protocol (KIP-848), and the rate of their heartbeats beside classic ones."""

import asyncio
import statistics
import time
from collections.abc import Iterable
from typing import Any, Protocol

from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey

from bench.loads import Figures, Load, Row, driven, find_coordinator, topic_of
from bench.scale import Members
from bench.targets import Target
from bench.wire import close, connect_many, create_topics

VERSION = 1
LARGE = 2_000  # members, and partitions
NEIGHBOUR_PAUSE_S = 0.002
ALL_ROUNDS = 400  # of heartbeats of all members; a group that needs more does not converge
ALL_PAUSE_S = 0.2  # between two of these rounds: group.consumer.assignment.interval.ms may have to pass
SETTLE_PAUSE_S = 0.02  # the same for a member that is alone


class Asked(Protocol):
    """A connection to a broker, in this process or in another one."""

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer."""


class Member:
    """One member, which says what it owns when that has changed."""

    def __init__(self, group: str, member_id: str, **said: Any) -> None:
        self.group, self.member_id = group, member_id
        self._said = {"rebalance_timeout_ms": 300_000, "topic_partitions": [], **said}
        self._owned: list[Any] = []
        self._must_say = False
        self.epoch = 0

    def request(self, **fields: Any) -> Any:
        """Its next heartbeat."""
        if self.epoch == 0:
            fields = {**self._said, **fields}
        elif self._must_say:
            fields = {"topic_partitions": self._owned, **fields}
        named = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
        return messages.ConsumerGroupHeartbeatRequest(**{**named, **fields})

    def frame(self) -> bytes:
        """The heartbeat of a member that has nothing new to say."""
        return bytes(frames.encode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, 1, "bench", self.request()))

    async def beat(self, connection: Asked, **fields: Any) -> None:
        """Beat, and take up what is assigned. RuntimeError: it was refused."""
        answer = await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, VERSION, self.request(**fields))
        if answer.error_code:
            raise RuntimeError(f"ConsumerGroupHeartbeat: {answer.error_code} {answer.error_message}")
        self.epoch = answer.member_epoch
        before = self._owned
        if answer.assignment is not None:
            make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
            self._owned = [
                make(topic_id=row.topic_id, partitions=row.partitions) for row in answer.assignment.topic_partitions
            ]
        self._must_say = self._owned != before

    @property
    def partitions(self) -> int:
        """How many it owns."""
        return sum(len(row.partitions) for row in self._owned)


async def settle(connection: Asked, member: Member, partitions: int) -> None:
    """Heartbeats of a member that is alone, until it has said what it owns: from then on, all answers are alike."""
    await converge(connection, [member], partitions, pause_s=SETTLE_PAUSE_S)
    await member.beat(connection)


async def converge(
    connection: Asked, members: Iterable[Member], partitions: int, *, pause_s: float = ALL_PAUSE_S
) -> None:
    """Heartbeats of all members in turn, until they have one epoch and own all partitions."""
    members = list(members)
    for _ in range(ALL_ROUNDS):
        for member in members:
            await member.beat(connection)
        if len({member.epoch for member in members}) == 1 and sum(each.partitions for each in members) == partitions:
            return
        await asyncio.sleep(pause_s)
    raise RuntimeError("the group does not converge")


def _beats(connections: int, *, is_classic: bool = False) -> Load:
    async def load(target: Target, seconds: float) -> Figures:
        """A group of one member for each connection."""
        topic = topic_of("beats")
        opened = await connect_many(target.address, connections)
        await create_topics(opened[0], [topic], 1)
        rows = []
        for index, connection in enumerate(opened):
            group = f"{topic}-{index}"
            await find_coordinator(connection, group)
            if is_classic:
                classic = Members(connection)
                await classic.join(group)
                rows.append(classic.heartbeats)
            else:
                member = Member(group, "member", subscribed_topic_names=[topic])
                await settle(connection, member, 1)
                rows.append([member.frame()])
        return await driven(target, opened, rows, seconds, "beats/s")

    return load


async def _large(target: Target, seconds: float) -> Figures:
    """A group of 2,000 members and as many partitions: one joins, one leaves, and another group's member beats."""
    topic = topic_of("large")
    connection, other = await connect_many(target.address, 2)
    await create_topics(connection, [topic], LARGE)
    for group in (topic, f"{topic}-other"):
        await find_coordinator(connection, group)
    members = [Member(topic, f"member-{index:04}", subscribed_topic_names=[topic]) for index in range(LARGE)]
    for member in members:
        await member.beat(connection)
    await converge(connection, members, LARGE)
    neighbour = Member(f"{topic}-other", "neighbour", subscribed_topic_names=[topic])
    await settle(other, neighbour, LARGE)
    waits_ms: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await neighbour.beat(other)
            waits_ms.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(NEIGHBOUR_PAUSE_S)

    beating = asyncio.create_task(beat())
    began, cpu = time.perf_counter(), target.cpu_seconds()
    members.append(Member(topic, "newcomer", subscribed_topic_names=[topic]))
    await members[-1].beat(connection)
    await converge(connection, members, LARGE, pause_s=NEIGHBOUR_PAUSE_S)
    joined = time.perf_counter()
    await members.pop(7).beat(connection, member_epoch=-1)
    await converge(connection, members, LARGE, pause_s=NEIGHBOUR_PAUSE_S)
    left, cpu = time.perf_counter(), target.cpu_seconds() - cpu
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    close([connection, other])
    return {
        "s": left - began,
        "joined s": joined - began,
        "neighbour p50 ms": statistics.median(waits_ms),
        "p99 ms": sorted(waits_ms)[len(waits_ms) * 99 // 100],
        "cpu s": cpu,
    }


LOADS = {
    "members-2000": Row(
        _large, "s", False, "2,000 members and partitions: one joins, one leaves, until all have converged"
    ),
    "beat-8": Row(_beats(8), "beats/s", True, "heartbeats of the consumer protocol, 8 connections"),
    "beat-128": Row(_beats(128), "beats/s", True, "the same, 128 connections"),
    "beat-classic-8": Row(_beats(8, is_classic=True), "beats/s", True, "classic heartbeats, 8 connections"),
}
