"""What clients of all kinds have: a name, a random stream, a connection that is made again when it is gone.

Clients behave well: they retry only requests that may be retried. Their own random stream makes pauses, lost answers
and restarts. They are strict: an answer that a correct broker cannot give is a Violation.
"""

import random
from typing import TYPE_CHECKING, Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from simulator.clients.connection import Connection, LostError, UnansweredError
from simulator.clients.requests import READ_UNCOMMITTED, list_offsets_request
from simulator.ledger import TopicPartition
from simulator.observations import Operation, Outcome
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

RETRIABLE = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)


def expect(error: int, what: str, *others: ErrorCode) -> ErrorCode:
    """The error of an answer: none, one that may be retried, or one of `others`. Any other is a Violation."""
    code = ErrorCode(error)
    if code and code not in RETRIABLE and code not in others:
        raise Violation("answers make sense", f"{what}: {code.name}")
    return code


class Client:
    """One client. Each kind defines what it does in a `turn`, and in a `rest`, which is its turn in quiet times."""

    must_get_on = True  # whether `progress` must grow when all is calm
    # What a leader answers to ListOffsets that does not know yet what all replicas have.
    not_known_yet: tuple[ErrorCode, ...] = (ErrorCode.OFFSET_NOT_AVAILABLE,)

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.seed} {name}")
        self.connection: Connection | None = None
        self.progress = 0  # counts what the client has achieved

    async def sleep(self, low_ms: float, high_ms: float) -> None:
        """Sleep for a random time."""
        await self.world.clock.sleep(self.rng.uniform(low_ms, high_ms))

    async def connected(self) -> Connection:
        """The connection; it is made if there is none. LostError."""
        if self.connection is None or self.connection.closed:
            self.connection = None
            self.connection = await Connection.open(self.world.clock, self.world.network, self.name)
        return self.connection

    def hang_up(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    async def leader(self, key: TopicPartition) -> Connection:
        """The connection to the leader of a partition. LostError."""
        return await self.connected()

    def forget(self, target: Any) -> None:
        """The leader of a partition, or a coordinator, has moved."""

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = 30_000) -> Any:
        """Send one request on the client's connection; returns the answer. LostError."""
        connection = await self.connected()
        asked_ms = self.world.clock.monotonic_ms()
        try:
            answer = await connection.ask(api, version, message, limit_ms)
        except UnansweredError as error:
            self.world.note_unanswered(self.name, str(error), asked_ms)
            raise
        self.world.answers += 1
        return answer

    async def list_offset(self, key: TopicPartition, timestamp: int, isolation: int = READ_UNCOMMITTED) -> int | None:
        """Where the log starts (-2) or ends (-1); None if the broker cannot answer now."""
        request = list_offsets_request(key, timestamp, isolation)
        answer = (await self.ask(ApiKey.LIST_OFFSETS, 5, request)).topics[0].partitions[0]
        error = expect(answer.error_code, f"ListOffsets {key}", *self.not_known_yet)
        return None if error else int(answer.offset)

    def began(self, operation: Operation) -> int:
        """An operation begins. Where there is a history, it gets a number there."""
        return 0

    def ended(self, number: int, outcome: Outcome, operation: Operation) -> None:
        """It has ended."""

    async def run(self) -> None:
        """Take turns until the world ends the clients."""
        while not self.world.ending:
            try:
                await (self.rest() if self.world.quiet else self.turn())
            except LostError as error:
                self.world.note(f"{self.name} lost: {error}")
                self.hang_up()
                await self.sleep(50, 500)
        self.hang_up()

    async def turn(self) -> None:
        """One step."""
        raise NotImplementedError

    async def rest(self) -> None:
        """One step of a quiet time."""
        await self.sleep(20_000, 60_000)
