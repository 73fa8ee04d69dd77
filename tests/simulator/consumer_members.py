"""The worlds of one broker and of a cluster, with a group more: its members migrate between the protocols (KIP-848).

Retention waits for such a group in the world of `retention_holds.py`.

The other clients, and the weather, are those of the same seed without it, as long as nothing waits for these members.
With transactions the copiers are such members, too.
"""

import random
from collections.abc import Callable
from functools import cached_property
from typing import cast

from simulator import cluster_world, last_look, world
from simulator.clients.client import Client
from simulator.clients.cluster_transactional import ClusterCommittedReader, ClusterFeeder
from simulator.clients.committed_reader import CommittedReader
from simulator.clients.consumer_copier import ClusterMigratingCopier, MigratingCopier
from simulator.clients.consumer_member import ClusterConsumerMember, ConsumerMember, GroupBook
from simulator.clients.transactional_feeder import Feeder
from simulator.commits import Commits, Owned
from simulator.host import Life
from simulator.ledger import Ledger
from simulator.retention_holds import TOPIC, RetentionHolds
from simulator.simulation import Verdict
from simulator.transactional_part import Kinds
from simulator.world import World

GROUP = "migrating"
CLASSIC_SHARES = (0.0, 0.3, 0.5)
LOOKS = 120  # a second each: until all members have read everything


class Books(dict[str, GroupBook]):
    """Of the groups of a seed, and the instance ids of its own group: None is a member without one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(f"{seed} migrating")
        self._classic_share = rng.choice(CLASSIC_SHARES)
        self.instance_ids = [f"member-migrating{n}" if rng.random() < 0.25 else None for n in range(rng.randint(2, 4))]

    def __missing__(self, group_id: str) -> GroupBook:
        book = self[group_id] = GroupBook(group_id, self._classic_share)
        return book


class Migrating:
    """What such a world knows."""

    seed: int
    group_id = GROUP

    @cached_property
    def books(self) -> Books:
        """Of its groups that migrate."""
        return Books(self.seed)

    @property
    def book(self) -> GroupBook:
        """Of the group that is always there."""
        return self.books[self.group_id]


class Alone(Migrating):
    """A world whose only clients of this kind they are: what the others would have is here."""

    quiet = False
    transactions = None

    @property
    def broker_changes(self) -> object:
        """Another value each time: there may have been as many as you like."""
        return object()

    def note_unanswered(self, who: str, what: str, asked_ms: float) -> None:
        """Brokers die all the time."""


class ConsumerWorld(Migrating, World):
    """One broker."""

    transactional = Kinds(Feeder, MigratingCopier, CommittedReader)

    def _make_clients(self) -> None:
        super()._make_clients()
        for n, instance_id in enumerate(self.books.instance_ids):
            self.clients.append(ConsumerMember(self, f"member-migrating{n}", self.book, world.KEYS, instance_id))


class ConsumerClusterWorld(Migrating, cluster_world.ClusterWorld):
    """Several brokers."""

    transactional = Kinds(ClusterFeeder, ClusterMigratingCopier, ClusterCommittedReader)

    def _make_clients(self) -> None:
        super()._make_clients()
        for n, instance_id in enumerate(self.books.instance_ids):
            member = ClusterConsumerMember(self, f"member-migrating{n}", self.book, cluster_world.KEYS, instance_id)
            self.clients.append(cast("ConsumerMember", member))


class Noted(Commits):
    """The book of committed offsets of a world that wants to know of each."""

    def __init__(self, world: RetentionHolds) -> None:
        super().__init__(world.clock.monotonic_ms, world.host.wall_ms, world.host.wall_peak_ms)
        self._world = world

    def ask(self, owned: Owned, offset: int) -> None:
        super().ask(owned, offset)
        if offset <= self._world.end:  # else it must be refused
            self._world.asked_to_commit(owned[0], offset)

    def acknowledge(self, owned: Owned, offset: int) -> None:
        super().acknowledge(owned, offset)
        self._world.has_committed(owned[0], offset)


class Follower(ConsumerMember):
    """A member that reads no further than the log goes."""

    def following(self, position: int) -> int:
        end: int = cast("ConsumerRetention", self.world).end
        return end if self.world.settling else min(position + self.rng.randint(0, 30), max(position, end))


class ConsumerRetention(Alone, RetentionHolds):
    """A topic whose retention waits also for the group that migrates."""

    group_id = "team-migrating"
    ending = False

    def __init__(self, seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        self.ledger = Ledger(Noted(self))
        self.topic_ids: dict[str, bytes] = {}
        self.clients: list[Client] = []

    @property
    def lives(self) -> list[Life]:
        """The process that lives, if there is one."""
        return [] if self.host.life is None else [self.host.life]

    async def _create(self) -> None:
        await super()._create()
        assert self.host.life is not None
        self.topic_ids[TOPIC] = self.host.life.broker.metadata_cache.topic_id(TOPIC)
        for n, instance_id in enumerate(self.books.instance_ids):
            made = Follower(cast(World, self), f"member-migrating{n}", self.book, [(TOPIC, 0)], instance_id)
            self.clients.append(made)
            self.spawn(made.run())

    async def all_have_read(self) -> None:
        await self.clock.sleep(world.SETTLE_MS)  # who has died is not waited for any longer
        for _ in range(LOOKS):
            if self.committed.get(self.book.group_id) == [self.end]:
                break
            await self.clock.sleep(1_000)
        await last_look.check_groups(cast(World, self), [(TOPIC, 0)])


def run_retention(seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of retention of a seed."""
    return ConsumerRetention(seed, minutes, trace).run()
