"""What a world with transactions has more: topics, settings, clients, a book, and checks in the middle and at the end.

Feeders write inputs in transactions. Groups of copiers read them, and write effects. By the seed a group's copiers are
members or not, read committed inputs or all of them, and use the first or the second version of transactions.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.cluster.features import TRANSACTION_VERSION
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.cluster.tree import paths, payloads
from barnabas.coordinators.coordinator import partition_for

from simulator.clients.client import Client
from simulator.clients.committed_reader import CommittedReader, fetch
from simulator.clients.connection import LostError
from simulator.clients.copier import Copier, fetch_stable
from simulator.clients.requests import READ_COMMITTED, READ_UNCOMMITTED
from simulator.clients.transactional import STEPS, TIMEOUTS_MS, Transactional
from simulator.clients.transactional_feeder import Feeder
from simulator.host import Life
from simulator.ledger import TopicPartition
from simulator.transaction_book import Attempt, Fate, TransactionBook
from simulator.transaction_inspection import TransactionInspector
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld
    from simulator.world import World

INPUTS = [("inputs", 0), ("inputs", 1)]
OUTPUT_PARTITIONS = 2
STATE_PARTITIONS = 2
CLEANUP_MS = 2_000
SLACK_MS = 8_000.0
END_MS = max(TIMEOUTS_MS) + CLEANUP_MS + SLACK_MS  # after the last request everything is decided within this time
SEGMENT_BYTES = "6000"
TRIES = 300
STEP_WITHIN_MS = 20_000.0


EXPIRY_MS = 600_000
EXPIRY = {  # of what nobody uses: ids that were abandoned, partitions that a producer does not write to
    "producer.id.expiration.check.interval.ms": "60000",
    "producer.id.expiration.ms": str(EXPIRY_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "60000",
    "transactional.id.expiration.ms": str(EXPIRY_MS),
}


class Kinds(NamedTuple):
    """The classes of clients, of one broker or of a cluster."""

    feeder: type[Feeder]
    copier: type[Copier]
    reader: type[CommittedReader]


class TransactionalPart:
    """The part of one run."""

    def __init__(self, world: "World | ClusterWorld", kinds: Kinds, copies: int) -> None:
        self._world: Any = world
        self._kinds = kinds
        self._copies = copies
        self.rng = random.Random(f"{world.seed} transactions")
        self.version = self.rng.choice((0, 1, 2, 2, 2, 2, 2))  # of transactions; from 1 on it may change
        self.clocks_step = self.rng.random() < 0.3
        self.abandons = not self.clocks_step
        self.groups = [f"copiers{n}" for n in range(self.rng.randint(1, 2))]
        self.book = TransactionBook()
        for group_id in self.groups:
            self.book.outputs[group_id] = tuple((self._topic(group_id), n) for n in range(OUTPUT_PARTITIONS))
        self.book.on_commit = self._note_commit
        ends_within_ms = float("inf") if self.clocks_step else max(TIMEOUTS_MS) + CLEANUP_MS + SLACK_MS
        self.inspector = TransactionInspector(self.book, STATE_PARTITIONS, ends_within_ms)
        self._isolation = {group_id: self.rng.choice((0, 1, 1)) for group_id in self.groups}
        self._expiry: dict[str, str] = {}
        if copies == 1 and not self.clocks_step and random.Random(f"{world.seed} expiry").random() < 0.4:
            self._expiry = EXPIRY
        self._struck: asyncio.Future[Transactional] | None = None
        self._strikes_in = 0
        self._struck_step: str | None = None
        self.struck: dict[str, int] = dict.fromkeys(STEPS, 0)  # how often there was a strike at each step
        self._strike: Callable[[Transactional], None] = lambda client: None

    @staticmethod
    def _topic(group_id: str) -> str:
        return f"of-{group_id}"

    @property
    def settings(self) -> dict[str, str]:
        """Of the brokers."""
        return self._expiry | {
            "offsets.retention.minutes": "10080",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(CLEANUP_MS),
            "transaction.state.log.min.isr": str(min(2, self._copies)),
            "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
            "transaction.state.log.replication.factor": str(self._copies),
        }

    @property
    def topics(self) -> dict[str, int]:
        """With the number of partitions."""
        return {"inputs": len(INPUTS)} | {self._topic(group_id): OUTPUT_PARTITIONS for group_id in self.groups}

    @property
    def keys(self) -> list[TopicPartition]:
        """All partitions that transactions write to."""
        return INPUTS + [key for outputs in self.book.outputs.values() for key in outputs]

    def summary(self) -> str:
        """The numbers of the run, as text."""
        fates = [attempt.fate for attempt in self.book.attempts]
        counts = ", ".join(f"{fates.count(fate)} {fate.value}" for fate in Fate)
        return f"{len(fates)} transactions ({counts}), {sum(self.book.progress.values())} of copiers"

    def has_expired(self, used_ms: float) -> bool:
        """Whether a transactional id that was used last then may have been removed."""
        return bool(self._expiry) and self._world.clock.monotonic_ms() - used_ms > EXPIRY_MS - SLACK_MS

    def set_version(self, version: int) -> None:
        """Let this version of transactions hold in the cluster. Clients hear of it first."""
        self._world.note(f"transaction version {version}")
        self.version = version
        tree = self._world.tree
        levels = payloads.decode_feature(tree.require(paths.FEATURE).data) | {TRANSACTION_VERSION: version}
        data = payloads.encode_feature({name: level for name, level in levels.items() if level})
        tree.change(lambda zxid: tree.set(paths.FEATURE, data, -1, zxid))

    def change_version(self) -> None:
        """An operator raises the version, or lowers it."""
        if self.version:
            self.set_version(3 - self.version)

    @property
    def lives_begun(self) -> int:
        """How many processes of brokers there have been."""
        return int(self._world.lives_begun)

    def _note_commit(self, attempt: Attempt) -> None:
        commits = self._world.ledger.commits
        for key, offset in attempt.offsets.items():
            owned = (attempt.group_id, *key)
            commits.ask(owned, offset)
            commits.ended(owned)

    # -- clients

    def make_clients(self) -> list[Client]:
        """All of them."""
        kinds, rng, world = self._kinds, self.rng, self._world
        clients: list[Client] = [kinds.feeder(world, f"feeder{n}", INPUTS) for n in range(rng.randint(1, 2))]
        for group_id in self.groups:
            is_member = rng.random() < 0.6
            for n in range(rng.randint(1, 3) if is_member else 1):
                name = f"{group_id}.{n}"
                clients.append(kinds.copier(world, name, group_id, INPUTS, self._isolation[group_id], is_member))
        clients.append(kinds.reader(world, "committed-reader", self.keys))
        return clients

    # -- strikes at a step

    def at(self, client: Transactional, step: str) -> None:
        """A client is between two steps."""
        if self._struck is not None and not self._struck.done():
            self._strikes_in -= self._struck_step in (None, step)
            if self._strikes_in < 0:
                self._world.note(f"a strike at {client.name} {step}")
                self.struck[step] += 1
                self._struck.set_result(client)
                self._strike(client)

    async def strike_at_a_step(
        self, strike: Callable[[Transactional], None], skipped: int, step: str | None = None
    ) -> bool:
        """Call `strike` as soon as a client is at the step, after so many others; whether it was called.

        None: at any step.
        """
        self._struck, self._strike, self._strikes_in = self._world.clock.loop.create_future(), strike, skipped
        self._struck_step = step
        timer = self._world.clock.call_later(STEP_WITHIN_MS, self._strike_no_more)
        try:
            await self._struck
        except asyncio.CancelledError:
            return False
        finally:
            timer.cancel()
            self._struck = None
        return True

    def _strike_no_more(self) -> None:
        if self._struck is not None and not self._struck.done():
            self._struck.cancel()

    def is_deciding(self, life: Life) -> bool:
        """Whether a coordinator of this broker writes a value, or waits for markers."""
        coordinator = life.broker.transactions.coordinator
        return len(coordinator.markers) > 0 or any(
            entry.pending is not None for shard in coordinator.loaded_shards() for entry in shard.entries.in_use()
        )

    def coordinator_of(self, client: Transactional) -> TopicPartition:
        """The partition that owns a client's transactional id."""
        return TRANSACTIONS_TOPIC, partition_for(client.transactional_id, STATE_PARTITIONS)

    # -- checks

    def look(self, lives: Sequence[Life], calm_ms: float) -> None:
        """Look at brokers that may have changed. Violation."""
        self.inspector.look(lives, self._world.clock.monotonic_ms(), calm_ms)

    async def check_at_the_end(self, lives: Sequence[Life], offsets_partitions: int) -> None:
        """All clients have ended, and everything is calm for END_MS. Violation."""
        inspected = self.keys + [(OFFSETS_TOPIC, index) for index in range(offsets_partitions)]
        self.inspector.look_at_the_end(lives, inspected)
        client = self._kinds.reader(self._world, "last-reader", [])
        committed = {key: await self._read_all(client, key, READ_COMMITTED) for key in self.keys}
        everything = {key: await self._read_all(client, key, READ_UNCOMMITTED) for key in INPUTS}
        for key, log in committed.items():
            for offset, value in log.items():
                self.book.read(key, offset, value)
        self.book.check_all(committed)
        for group_id in self.groups:
            logs = committed if self._isolation[group_id] == READ_COMMITTED else everything
            inputs = {key: sorted(logs[key]) for key in INPUTS}
            self.book.check_effects(group_id, inputs, await self._committed_offsets(client, group_id))
        client.hang_up()

    async def _committed_offsets(self, client: Client, group_id: str) -> dict[TopicPartition, int]:
        for _ in range(TRIES):
            try:
                found = await fetch_stable(client, self.book, group_id, INPUTS)
                if found is not None:
                    return found
            except LostError:
                client.hang_up()
            await self._world.clock.sleep(100)
        raise Violation("offsets can be fetched", group_id)

    async def _read_all(self, client: Client, key: TopicPartition, isolation: int) -> dict[int, str]:
        log: dict[int, str] = {}
        position, end = 0, None
        for _ in range(TRIES):
            try:
                if end is None:
                    end = await client.list_offset(key, -1, isolation)
                else:
                    while position < end:
                        found = await fetch(client, key, position, 0, isolation, 1 << 20)
                        if found is None or found[0] == position:
                            break
                        position = found[0]
                        log.update(found[1])
                    if position >= end:
                        return log
            except LostError:
                client.hang_up()
            await self._world.clock.sleep(100)
        raise Violation("the log can be read", f"{key}: stuck at {position} of {end}")
