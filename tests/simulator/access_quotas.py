"""Clients with quotas in the world of rights (access_world.py), and what must hold of the time that they wait.

`greedy` asks for more than its quota, which changes; `careful` has a quota, and stays below it; `free` has none. All
three write to the same topic and read it. At any time:

- who is told to wait is not served before, and is served when the time is over;
- nobody gets much more than its quota, and what is fetched above it is answered without records;
- who stays below its quota, or has none, does not wait.
"""

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey

from simulator.access_clients import connect, fetch, of_fetch, of_produce, produce
from simulator.access_model import Answered
from simulator.clients.connection import Connection, LostError
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.access_world import AccessWorld

BUSY = "busy"
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
RATES = (None, 10_000.0, 20_000.0, 40_000.0)  # of the greedy one
OF_CAREFUL = 20_000.0
BURST_S = 10.0  # what a quota lets through at once, in seconds of it
SLACK = 1.5  # windows begin anew, so more than the quota gets through at times
TRAVEL_MS = 450.0  # of a request and its answer, at most
ANSWERED_WITHIN_MS = 5_000.0
SMALLEST = 8_000  # of what is written by those who ask for much
ON_THE_WAY = 4 * 30_000  # bytes that are asked for before anybody is told to wait


class Usage(NamedTuple):
    """What has gone through a broker with the same quota, since it is the same and the broker undisturbed."""

    rate: float | None
    since_ms: float
    size: float


class Customer:
    """A client that writes or reads all the time."""

    def __init__(self, world: "AccessWorld", user: str, number: int) -> None:
        self.world = world
        self.user = user
        self.name = f"{user} {number}"
        self.rng = random.Random(f"{world.seed} {self.name}")
        self.reads = user != "free" and number % 2 == 1
        self._connection: Connection | None = None
        self._broker = ""

    async def run(self) -> None:
        """Ask until the world ends."""
        while not self.world.ending:
            with suppress(LostError):
                await self._ask_some()
            if self._connection is not None:
                self._connection.abort()
                self._connection = None
            await self.world.clock.sleep(self.rng.uniform(100, 500))

    async def _ask_some(self) -> None:
        world = self.world
        self._broker = self.rng.choice(world.names)
        self._connection = await connect(world.clock, world.network, self._broker, self.user, "client0")
        waits_ms, told_ms = 0.0, world.now_ms()
        for _ in range(self.rng.randint(5, 40)):
            if world.ending:
                return
            sent_ms = world.now_ms()
            answer = await self._ask(waits_ms)
            now_ms = world.now_ms()
            if now_ms < told_ms + waits_ms - TRAVEL_MS:
                detail = f"{self.name} had to wait {waits_ms:.0f} ms, and was answered after {now_ms - told_ms:.0f}"
                raise Violation("who has to wait is not served", detail)
            if self._error_of(answer):
                return  # another broker leads
            self._look(answer, Answered(self._broker, sent_ms, now_ms, world.back_ms[self._broker]))
            waits_ms, told_ms = float(answer.throttle_time_ms), now_ms
            await self._rest()

    async def _rest(self) -> None:
        if self.user == "greedy":
            await self.world.clock.sleep(self.rng.uniform(10, 50))
        elif self.user == "free":
            await self.world.clock.sleep(self.rng.uniform(200, 900))
        else:
            await self.world.clock.sleep(self.rng.uniform(2_500, 4_000))  # even a small fetch has a whole batch

    async def _ask(self, waits_ms: float) -> Any:
        world, connection = self.world, self._connection
        assert connection is not None
        key, version, request = self._request()
        sent_ms = world.now_ms()
        limit_ms = waits_ms + ANSWERED_WITHIN_MS
        try:
            return await connection.ask(key, version, request, limit_ms)
        except LostError:
            is_late = world.now_ms() - sent_ms >= limit_ms
            if is_late and world.back_ms[self._broker] < sent_ms:
                raise Violation("who has waited is served", f"{self.name}: {waits_ms:.0f} ms are over") from None
            raise

    def _request(self) -> tuple[ApiKey, int, Any]:
        if self.reads:
            return ApiKey.FETCH, 11, fetch(BUSY, max_bytes=30_000 if self.user == "greedy" else 2_000)
        size = self.rng.randint(100, 1_000) if self.user == "careful" else self.rng.randint(SMALLEST, 20_000)
        return ApiKey.PRODUCE, 8, produce(BUSY, b"x" * size)

    def _error_of(self, answer: Any) -> int:
        return of_fetch(answer) if self.reads else of_produce(answer)

    # -- what must hold

    def _look(self, answer: Any, answered: Answered) -> None:
        waits_ms = answer.throttle_time_ms
        self.world.throttled += waits_ms > 0
        records = 0
        if self.reads:
            records = sum(len(row.records or b"") for topic in answer.responses for row in topic.partitions)
            if waits_ms and records:
                raise Violation("above the quota nothing is read", f"{self.name}: {records} bytes, {waits_ms} ms")
        if self.user == "careful" and waits_ms:
            raise Violation("who stays below the quota does not wait", f"{self.name} has to, for {waits_ms} ms")
        if self.user == "free" and waits_ms:
            raise Violation("who has no quota does not wait", f"{self.name} has to, for {waits_ms} ms")
        if self.user == "greedy":
            self._look_at_rate(answered, waits_ms, records or (0 if self.reads else SMALLEST))

    def _look_at_rate(self, answered: Answered, waits_ms: int, size: int) -> None:
        """What goes through one broker while the quota stays the same; a request counts as the smallest that it is."""
        world = self.world
        known = set(world.quota.known_to(answered))
        if known == {None} and waits_ms:
            raise Violation("who has no quota does not wait", f"{self.name} has to, for {waits_ms} ms")
        rate = known.pop() if len(known) == 1 else None
        usage = world.usage.get((answered.broker, self.reads))
        if rate is None or usage is None or usage.rate != rate or answered.back_ms > usage.since_ms:
            world.usage[answered.broker, self.reads] = Usage(rate, answered.answered_ms, 0.0)
            return
        usage = world.usage[answered.broker, self.reads] = usage._replace(size=usage.size + size)
        elapsed_s = (answered.answered_ms - usage.since_ms) / 1000.0
        if usage.size > SLACK * rate * (elapsed_s + BURST_S) + ON_THE_WAY:
            detail = f"{self.name} got {usage.size:.0f} bytes in {elapsed_s:.1f} s, with {rate:.0f} a second"
            raise Violation("nobody gets much more than its quota", detail)


def quota_of(user: str, rate: float | None) -> messages.AlterClientQuotasRequest:
    """The request that sets both quotas of a user, or removes them."""
    make = messages.AlterClientQuotasRequest
    values = [make.OpData(key=key, value=rate or 0.0, remove=rate is None) for key in (PRODUCE, FETCH)]
    return make(entries=[make.EntryData(entity=[make.EntityData(entity_type="user", entity_name=user)], ops=values)])
