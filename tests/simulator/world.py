"""One simulated run: a broker, its clients, bad weather, quiet times, and a verdict. All of it depends on one seed.

Some runs lose power; in these every append is synced (`flush.messages=1`), because Kafka's promise for a single replica
does not cover the page cache. Other runs only kill processes. Most runs have a slow network. Between the troubles there
are quiet times, long enough for everything that happens by the clock: retention, compaction, the expiry of offsets and
sessions. Then all troubles end, the clients must make progress, and every log is read and compared with the ledger.
"""

import asyncio
import random
import zlib
from collections.abc import Callable
from typing import Any

from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreateTopicsRequest

from simulator import last_look
from simulator.clients.admin import Admin
from simulator.clients.careless_producer import CarelessProducer
from simulator.clients.changelog_writer import ChangelogWriter
from simulator.clients.client import Client
from simulator.clients.committed_reader import CommittedReader
from simulator.clients.committer import Committer
from simulator.clients.connection import Connection
from simulator.clients.copier import Copier
from simulator.clients.idler import Idler
from simulator.clients.leaver import Leaver
from simulator.clients.member import Member
from simulator.clients.producer import Producer
from simulator.clients.reader import Reader
from simulator.clients.recreator import Recreator
from simulator.clients.session_reader import SessionReader
from simulator.clients.transactional_feeder import Feeder
from simulator.commits import Commits
from simulator.coordination import Fate, SimTree
from simulator.disk import PowerLoss
from simulator.host import Host, Life
from simulator.inspection import OFFSETS_PARTITIONS, Inspector
from simulator.journal_inspection import JournalInspector
from simulator.ledger import Ledger, TopicPartition
from simulator.network import SimTransport
from simulator.operator import Operator
from simulator.simulation import Simulation, Verdict
from simulator.transactional_part import SEGMENT_BYTES, STATE_PARTITIONS, Kinds, TransactionalPart
from simulator.violation import Violation
from simulator.weather import Weather

TOPICS = {"events": 2, "rolling": 1}
COMPACTED = {"changelog": 1}
TOPIC_CONFIGS = {
    "events": {"internal.segment.bytes": "14000"},
    "rolling": {"retention.bytes": "30000", "internal.segment.bytes": "8000"},
    "changelog": {"cleanup.policy": "compact", "internal.segment.bytes": "6000", "delete.retention.ms": "20000"},
}
KEYS: list[TopicPartition] = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]
COMPACTED_KEYS: list[TopicPartition] = [(topic, index) for topic, count in COMPACTED.items() for index in range(count)]
TRANSACTIONAL_TOPIC = {"internal.segment.bytes": SEGMENT_BYTES}
SETTLE_MS = 75_000.0
MINUTES_BETWEEN_QUIET_TIMES = 2.0
QUIET_MINUTES = (15.0, 45.0)
RETENTION_CHECK_MS = 60_000
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.retention.check.interval.ms": str(RETENTION_CHECK_MS),
    "auto.create.topics.enable": "false",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "replica.high.watermark.checkpoint.interval.ms": "3000",
    "log.retention.check.interval.ms": "20000",
    "log.index.interval.bytes": "400",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "7000",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
    "log.cleaner.min.cleanable.ratio": "0.1",
}


class WorldVerdict(Verdict):
    """How a run of one broker ended, with what it has done."""

    def __init__(self, world: "World", violation: Violation | None) -> None:
        super().__init__(world, violation)
        self.acknowledgements = world.ledger.acknowledgements
        self.commits = world.ledger.commits.count
        self.assignments = world.ledger.assignments
        self.deeds = world.operator.done
        self.journal_records = 0 if world.journal is None else world.journal.records
        self.journal_comparisons = 0 if world.journal is None else world.journal.comparisons


class World(Simulation):
    """One run. Call `run` once."""

    transactional = Kinds(Feeder, Copier, CommittedReader)

    def __init__(
        self,
        seed: int,
        minutes: float = 2.0,
        trace: Callable[[str], None] | None = None,
        with_journal: bool = False,
        with_transactions: bool = False,
        kinds: tuple[str, ...] = (),
    ) -> None:
        super().__init__(seed, minutes, trace, with_journal)
        self.transactions: TransactionalPart | None = None
        if with_transactions:
            self.transactions = TransactionalPart(self, self.transactional, 1)
        self.tree = SimTree(self.clock, session_timeout_ms=self.rng.choice((500.0, 6000.0)))
        self.power_can_fail = self.rng.random() < 0.5
        self.offsets_in_tree = self.rng.random() < 0.15 and not with_journal and not with_transactions
        self.retention_ms = self.rng.choice((10, 10, 10_080)) * 60_000
        self.expires_within_ms = float("inf")
        settings = SETTINGS | {"offsets.retention.minutes": str(self.retention_ms // 60_000)}
        if self.transactions is not None:
            self.retention_ms = 10_080 * 60_000
            settings |= self.transactions.settings
        if self.power_can_fail:
            settings["log.flush.interval.messages"] = "1"
        operator_rng = random.Random(f"{seed} operator")
        directories = [f"/data{number}" for number in range(operator_rng.choice((1, 2, 3)))]
        self.host = Host(seed, self.clock, self.disk, self.network, self.tree, settings, directories)
        self.operator = Operator(self, operator_rng)
        commits = Commits(self.clock.monotonic_ms, self.host.wall_ms, self.host.wall_peak_ms)
        if self.offsets_in_tree:
            settings["offsets.storage"] = "zookeeper"
        else:
            commits.retention_ms = self.retention_ms
            self.expires_within_ms = self.retention_ms + 2 * RETENTION_CHECK_MS + 10_000
        self.ledger = Ledger(commits)
        self.ledger.with_retention["rolling"] = None
        self.inspector = Inspector(self.ledger, self.tree, offsets_in_tree=self.offsets_in_tree)
        self.journal: JournalInspector | None = None
        settings["offsets.journal.enable"] = str(with_journal).lower()
        if with_journal:
            self.journal = JournalInspector(self.retention_ms, TOPICS | COMPACTED)
        self.producer_ids: dict[int, None] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        self.compacted = COMPACTED
        self.quiet = False  # clients do little
        self.settling = False  # no more bad weather, no more pauses
        self.ending = False
        self.clients: list[Client] = []
        self.deliveries = 0  # pieces of bytes that arrived, in both directions
        self.disturbed_ms = self.began_ms  # when the last trouble was
        self.is_disturbing = False
        self.tree_loss_rate = 0.0
        self._reset_rate = self.rng.choice((0.0, 0.01, 0.05))
        self._weather = Weather(self, self.rng, kinds)

    # -- the trace

    def summary(self) -> str:
        """The numbers of the run, as text."""
        ledger, commits = self.ledger, self.ledger.commits
        if self.transactions is not None:
            return (
                f"{self.clock.loop.calls} events, {self.answers} answers, {self.transactions.summary()}, "
                f"{self.host.lives} lives"
            )
        return (
            f"{self.clock.loop.calls} events, {self.deliveries} deliveries, {self.answers} answers, "
            f"{ledger.acknowledgements} batches, {commits.count} commits, {commits.expired} expired, "
            f"{ledger.assignments} assignments, {self.host.lives} lives"
        )

    def _delivered(self, transport: SimTransport, chunk: bytes) -> None:
        self.deliveries += 1
        peer = transport.peer
        if peer is not None and isinstance(peer.owner, Life):
            peer.owner.touched = True
        local, remote = transport.local[1], transport.remote[1]
        self.note(f"{local} -> {remote}: {len(chunk)} bytes {zlib.crc32(chunk):08x}")
        if self.network_rng.random() < self._reset_rate and self.clients and not self.settling:
            self.note(f"reset of {local} - {remote}")
            self.clock.call_soon(lambda: self.network.reset(transport))  # these bytes arrive, their answer does not

    # -- verdicts

    def note_unanswered(self, who: str, what: str, asked_ms: float) -> None:
        """A request got no answer in time: this is a violation, unless there was trouble meanwhile."""
        if asked_ms > self.disturbed_ms + 1000 and self.host.is_up and not self.is_disturbing:
            self.fail(Violation("every request is answered", f"{who}: {what} of {asked_ms - self.began_ms:.0f}"))

    def is_calm_for(self, span_ms: float) -> bool:
        """Whether there was no trouble in the last `span_ms`."""
        if self.operator.is_partial:
            return False
        return not self.is_disturbing and self.clock.monotonic_ms() - self.disturbed_ms > span_ms

    @property
    def lives(self) -> list[Life]:
        """The process that lives, if there is one."""
        return [] if self.host.life is None else [self.host.life]

    @property
    def lives_begun(self) -> int:
        """How many processes there have been."""
        return self.host.lives

    @property
    def broker_changes(self) -> object:
        """Another value, once a coordinator may have forgotten what it had not written."""
        return self.host.coordinator_lives

    @property
    def is_reliable(self) -> bool:
        """Whether only the weather breaks connections."""
        return self.settling or not self._reset_rate

    def after_pass(self) -> None:
        """Look at the broker if it may have changed."""
        life = self.host.life
        if life is not None and life.touched and life.serving and self.violation is None:
            try:
                if self.transactions is not None:
                    calm_ms = 0.0 if self.is_disturbing else self.clock.monotonic_ms() - self.disturbed_ms
                    self.transactions.look([life], calm_ms)
                self.inspector.look(life.broker, life.number, self.clock.monotonic_ms())
                if self.journal is not None:
                    self.journal.look(life.broker)
                if life.broker.request_gate.handler_failures or life.broker.replica_manager.role_failures:
                    raise Violation("no handler fails", "see the log")
            except Violation as violation:
                self.fail(violation)
            life.touched = not self.clock.loop.is_settled  # if not settled, its own callbacks may change more

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback or a task has raised: perhaps because the power went."""
        error = context.get("exception")
        if isinstance(error, Violation):
            self.fail(error)
        elif isinstance(error, PowerLoss):
            if self.host.life is not None:
                self.machine_stops()
        elif self.host.life is not None or error is None:
            self.fail(Violation("nothing escapes", f"{context.get('message')}: {error!r}"))

    # -- the run

    def prepare(self) -> None:
        """Set up the network and the tree."""
        self.network.on_delivery = self._delivered
        if self.rng.random() < 0.8:
            self.network.jitter = self.latency_ms
        if self.rng.random() < 0.3:
            self.network.fragment = self.fragments
        self.tree.trouble = self._tree_trouble
        self.tree.latency_ms = self.rng.choice((0.0, 2.0))

    def verdict(self) -> WorldVerdict:
        """How it ended."""
        return WorldVerdict(self, self.violation)

    def kill_all(self) -> None:
        """End the broker."""
        self.host.kill()

    def _tree_trouble(self, name: str) -> Fate:
        if self.tree_loss_rate and self.tree_rng.random() < self.tree_loss_rate:
            fate = self.tree_rng.choice((Fate.LOST_BEFORE, Fate.LOST_AFTER))
            self.note(f"the tree: {name} {fate.value}")
            return fate
        return Fate.DONE

    async def story(self) -> None:
        """Bad weather with quiet times in between, then calm, then the last look."""
        await self.start_host()
        await self._create_topics()
        self._make_clients()
        for client in self.clients:
            self.spawn(client.run())
        bad_ms, quiet_after_ms = 0.0, self.rng.uniform(0.2, 0.8) * MINUTES_BETWEEN_QUIET_TIMES * 60_000
        quiet_after_ms = min(quiet_after_ms, self.minutes * 30_000)
        while bad_ms < self.minutes * 60_000:
            begin_ms = self.clock.monotonic_ms()
            await self.clock.sleep(self.rng.uniform(1_000, 12_000))
            await self._weather.change()
            bad_ms += self.clock.monotonic_ms() - begin_ms
            if bad_ms > quiet_after_ms:
                quiet_after_ms += MINUTES_BETWEEN_QUIET_TIMES * 60_000
                await self._quiet_time()
        await self._heal()
        before = [client.progress for client in self.clients]
        await self.clock.sleep(SETTLE_MS)
        last_look.check_progress(self.clients, before, SETTLE_MS)
        await last_look.check_groups(self, KEYS)
        self.ending = True
        await self.clock.sleep(35_000)
        await self._check_all()
        if self.rng.random() < 0.5:
            await (self.host.stop() if self.rng.random() < 0.5 else self._kill())
            await self.start_host()
            await self._check_all()
        await self.host.stop()
        self.operator.look()
        self.finish()

    async def _quiet_time(self) -> None:
        """A long time in which mostly nothing happens."""
        minutes = self.rng.uniform(*QUIET_MINUTES)
        self.note(f"quiet for {minutes:.0f} minutes")
        self.quiet = True
        await self.clock.sleep(minutes * 30_000)
        if self.rng.random() < 0.3:
            await self._weather.change()
        await self.clock.sleep(minutes * 30_000)
        self.quiet = False

    async def _kill(self) -> None:
        self.host.kill()

    async def _heal(self) -> None:
        self.note("weather: calm from here on")
        self.settling = True
        self.network.heal()
        self.disk.repair()
        self.tree_loss_rate = 0.0
        await self.operator.settle()
        await self.start_host()
        self.disturbed_ms = self.clock.monotonic_ms()

    async def _check_all(self) -> None:
        await last_look.check_logs(self, KEYS + COMPACTED_KEYS)
        if self.host.life is not None:
            self.inspector.look_at_everything(self.host.life.broker, self.host.lives, self.clock.monotonic_ms())
            if self.journal is not None:
                self.journal.look_at_the_end(self.host.life.broker)
            if self.transactions is not None:
                await self.transactions.check_at_the_end(self.lives, OFFSETS_PARTITIONS)

    def machine_stops(self) -> None:
        """Cut the power: unsynced bytes meet their fate."""
        fate = self.rng.choice(("lost", "torn", "torn", "scattered")) if self.power_can_fail else "kept"
        self.note(f"the power goes; unsynced bytes: {fate}")
        self.host.lose_power(fate)

    def _make_clients(self) -> None:
        if self.transactions is not None:
            self.clients += self.transactions.make_clients()
            return
        rng = self.rng
        everything = KEYS + COMPACTED_KEYS
        self.clients += [Producer(self, f"producer{n}", KEYS) for n in range(rng.randint(1, 3))]
        self.clients += [Reader(self, f"reader{n}", everything) for n in range(rng.randint(0, 1))]
        self.clients += [SessionReader(self, f"session-reader{n}", everything) for n in range(1)]
        self.clients += [Committer(self, f"committer{n}", KEYS) for n in range(rng.randint(1, 2))]
        for group in range(rng.randint(1, 2)):
            static = rng.random() < 0.3
            for n in range(rng.randint(1, 4)):
                name = f"member{group}.{n}"
                self.clients.append(Member(self, name, f"group{group}", KEYS, name if static else None))
        group_ids = list(dict.fromkeys(c.group_id for c in self.clients if isinstance(c, Committer | Member)))
        self.clients.append(ChangelogWriter(self, "writer", COMPACTED_KEYS))
        self.clients.append(CarelessProducer(self, "careless", KEYS, acks=rng.randint(0, 1)))
        self.clients.append(Idler(self, "idler", KEYS[0]))
        if rng.random() < 0.5:
            self.clients.append(Recreator(self, "recreator"))
        if rng.random() < 0.5:
            self.clients.append(Admin(self, "admin", KEYS, group_ids))
        if self.seed % 5 == 0:
            self.clients.append(Leaver(self, "leaver", [key for key in KEYS if key[0] == "events"]))

    async def start_host(self) -> None:
        """Start a broker until it serves: a start that fails because of the weather is tried again."""
        if self.host.life is None and self._may_be_operated():
            await self.operator.act()
        for attempt in range(20):
            if self.host.life is not None:
                return
            if attempt > 5:
                self.tree_loss_rate = 0.0  # with lost answers a start could fail again and again
            self.note(f"start of broker life {self.host.lives + 1}")
            try:
                if await self.host.start():
                    assert self.host.life is not None
                    self.disturbed_ms = self.clock.monotonic_ms()
                    await self._loaded()
                    return
                if self.host.life is not None:
                    self.machine_stops()
            except OSError as error:
                self.note(f"the start failed: {error!r}")
            except Violation:
                raise
            except Exception as error:
                if self.tree_loss_rate:
                    self.note(f"the start failed: {error!r}")
                else:
                    raise Violation("a broker starts", repr(error)) from error
            await self.clock.sleep(500)
        raise Violation("a broker starts", "twenty attempts failed")

    def _may_be_operated(self) -> bool:
        """Whether the operator can act: the broker has served before, and disk and tree have no trouble."""
        return bool(self.clients) and not (self.settling or self.disk.is_losing_power or self.tree_loss_rate)

    async def _loaded(self) -> None:
        """Wait until the groups are loaded, then compare them with what was acknowledged."""
        if self.operator.is_partial:
            return
        if "__consumer_offsets" not in self.tree.children("/brokers/topics"):
            return
        for _ in range(200):
            life = self.host.life
            if life is None:
                return
            coordinator = life.broker.group_coordinator
            if len(coordinator.shards) == OFFSETS_PARTITIONS and not any(
                shard.loading for shard in coordinator.shards.values()
            ):
                self.inspector.look_after_loading(life.broker)
                return
            await self.clock.sleep(50)
        if self.is_calm_for(9_000) and not self.tree_loss_rate:
            raise Violation("groups are loaded", "not within 10 s")

    async def _create_topics(self) -> None:
        more = {} if self.transactions is None else self.transactions.topics
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in TOPIC_CONFIGS.get(name, TRANSACTIONAL_TOPIC).items()
                    ],
                )
                for name, partitions in (TOPICS | COMPACTED | more).items()
            ],
            timeout_ms=10_000,
        )
        connection = await Connection.open(self.clock, self.network, "admin")
        response = await connection.ask(ApiKey.CREATE_TOPICS, 7, request)
        for topic in response.topics:
            if topic.error_code:
                raise Violation("answers make sense", f"CreateTopics {topic.name}: {ErrorCode(topic.error_code).name}")
            self.topic_ids[topic.name] = topic.topic_id
            self.topic_names[topic.topic_id] = topic.name
        connection.abort()
        assert self.host.life is not None
        coordinated = {"__consumer_offsets": OFFSETS_PARTITIONS}
        if self.transactions is not None:
            coordinated[TRANSACTIONS_TOPIC] = STATE_PARTITIONS
        for name, count in coordinated.items():
            error, message = await self.host.life.broker.topic_admin.create_topic(
                name,
                partition_count=count,
                replication_factor=1,
                configs={"cleanup.policy": "compact", "internal.segment.bytes": "14000"},
            )
            assert not error, message
        if self.transactions is not None:
            self.transactions.set_version(self.transactions.version)
        await self.clock.sleep(1_000)


def run(
    seed: int,
    minutes: float = 2.0,
    trace: Callable[[str], None] | None = None,
    with_journal: bool = False,
    with_transactions: bool = False,
    kinds: tuple[str, ...] = (),
    kind: type[World] = World,
) -> WorldVerdict:
    """Run the world of a seed, with an offset journal or transactional clients if asked. `kinds`: see Weather."""
    verdict = kind(seed, minutes, trace, with_journal, with_transactions, kinds).run()
    assert isinstance(verdict, WorldVerdict)
    return verdict
