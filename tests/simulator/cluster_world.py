"""One simulated run of a cluster: several brokers on machines of their own, a tree, clients, bad weather, a verdict.

Between the troubles there are calm times, in which everything must come back: all brokers serve, all replicas are in
sync, all clients get on. In half of the runs every append is synced. In the others a power cut takes what was not
synced (cluster_weather.py has the rule for these). All of it depends on one seed.

With `quiet_hours` there are long quiet times as well, with little traffic and rare troubles. In these, what happens by
the clock comes up: retention, compaction, the expiry of offsets, the balance of leaders, checkpoints, idle connections.
"""

import asyncio
import math
import random
import zlib
from collections.abc import Callable
from typing import Any

from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import PartitionState, TopicAssignment
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreateTopicsRequest

from simulator import history, last_look
from simulator.clients.client import Client
from simulator.clients.cluster_admin import GROWING, ClusterAdmin
from simulator.clients.cluster_producer import CarelessClusterProducer, ClusterProducer
from simulator.clients.cluster_reader import ClusterReader
from simulator.clients.cluster_transactional import ClusterCommittedReader, ClusterCopier, ClusterFeeder
from simulator.clients.connection import Connection, LostError
from simulator.clients.routed import ClusterCommitter, ClusterMember
from simulator.cluster_inspection import ClusterInspector
from simulator.cluster_weather import ClusterWeather
from simulator.commits import Commits
from simulator.disk import PowerLoss, SimDisk
from simulator.host import Host, Life, speaker
from simulator.journal_inspection import check_cluster
from simulator.ledger import Ledger, TopicPartition
from simulator.network import SimTransport
from simulator.observations import History, Moment
from simulator.simulation import Simulation, Verdict
from simulator.transactional_part import END_MS, STATE_PARTITIONS, Kinds, TransactionalPart
from simulator.tree_service import TreeService
from simulator.violation import Violation

TOPICS = {"events": 2, "orders": 1}
SELDOM: list[TopicPartition] = [("seldom", 0)]  # seldom written: leaders come and go without a record in their epochs
OFFSETS = "__consumer_offsets"
KEYS: list[TopicPartition] = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]
PORT = 9092
SERVES_WITHIN_MS = 60_000.0  # after a start in calm
IN_SYNC_WITHIN_MS = 60_000.0  # of calm
SHORT_CALM_MS = 30_000.0  # longer than a client waits for an answer
CALM_MS = 60_000.0  # longer than the session of a member that died
UNANSWERED_GRACE_MS = 40_000.0
QUIET_TIME_HOURS = 1.5  # about so long is one quiet time
BETWEEN_QUIET_TROUBLES_MS = (10 * 60_000.0, 90 * 60_000.0)
# replica.lag.time.max.ms and the session's time-out of runs with quiet times; mostly Kafka's own
QUIET_TIMES_MS = ((3_000, 1_500.0), (10_000, 6_000.0), (30_000, 9_000.0), *[(30_000, 18_000.0)] * 6)
AFTER_QUIET_MS = 250_000.0  # longer than any client rests
RETENTION_CHECK_MS = 60_000
READS = 5_000  # at the end, of one partition; each takes what is left of a segment at most
SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "replica.high.watermark.checkpoint.interval.ms": "3000",
    "log.index.interval.bytes": "400",
    "log.segment.delete.delay.ms": "1000",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
}


class ClusterVerdict(Verdict):
    """How a run of a cluster ended, with what it has done, and how long the weather was bad and the cluster quiet."""

    def __init__(self, world: "ClusterWorld", violation: Violation | None) -> None:
        super().__init__(world, violation)
        self.history = world.history
        self.troubles = dict(world.weather.counts)
        self.calls = world.clock.loop.calls
        self.journal_records = world.journal_records
        self.bad_ms = world.bad_ms
        self.quiet_ms = world.quiet_ms


class ClusterWorld(Simulation):
    """One run of `brokers` brokers. Call `run` once.

    `kinds`: the troubles that may come; all, if it is empty. `overlaps`: often two come together. `quiet_hours`: of
    quiet times, together. `acks`: offsets.commit.required.acks.
    """

    transactional = Kinds(ClusterFeeder, ClusterCopier, ClusterCommittedReader)

    def __init__(
        self,
        seed: int,
        minutes: float = 2.0,
        trace: Callable[[str], None] | None = None,
        brokers: int = 3,
        kinds: tuple[str, ...] = (),
        overlaps: bool = False,
        quiet_hours: float = 0.0,
        with_journal: bool = False,
        acks: int = -1,
        with_transactions: bool = False,
    ) -> None:
        super().__init__(seed, minutes, trace, with_journal)
        self.transactions: TransactionalPart | None = None
        if with_transactions:
            self.transactions = TransactionalPart(self, self.transactional, min(3, brokers))
        self.acks = acks
        self.overlaps = overlaps
        self.quiet_hours = quiet_hours
        self.bad_ms = 0.0  # of bad weather so far
        self.quiet_ms = 0.0  # of quiet times so far, without their troubles
        self._quiet_rng = random.Random(f"{seed} quiet")  # of its own: runs without quiet times stay what they are
        self.port = PORT
        self.journal_records = 0  # at the end
        self.tree = TreeService(
            self.clock,
            self.network,
            session_timeout_ms=self.rng.choice((1_500.0, 3_000.0, 6_000.0)),
            lingers=self.rng.random() < 0.6,
        )
        self.is_synced = self.rng.random() < 0.5  # every append is synced, so no power cut takes records
        lag_ms = self.rng.choice((3_000, 10_000))
        by_the_clock: dict[str, str] = {}
        if quiet_hours:
            lag_ms, self.tree.session_timeout_ms = self._quiet_rng.choice(QUIET_TIMES_MS)
            by_the_clock = self._settings_by_the_clock(lag_ms)
        self.hosts = {node: self._make_host(node, brokers, lag_ms, by_the_clock) for node in range(brokers)}
        self._machines = list(self.hosts.values())
        self.client_machines = ["client0", "client1"]
        self.history = History(self.clock.monotonic_ms)
        commits = Commits(self.clock.monotonic_ms, self._earliest_wall_ms, self._wall_peak_ms)
        if quiet_hours:
            commits.retention_ms = int(by_the_clock["offsets.retention.minutes"]) * 60_000
        commits.are_weak = acks != -1
        self.ledger = Ledger(commits, groups_are_weak=acks != -1)
        self.inspector = ClusterInspector(self.history)
        self.topic_ids: dict[str, bytes] = {}
        self.producer_ids: dict[int, None] = {}
        self.quiet = False  # clients do little
        self.settling = False  # no more bad weather, no more whims of clients
        self.ending = False
        self.clients: list[Client] = []
        self.disturbed_ms = self.began_ms  # when the last trouble was
        self.is_disturbing = True
        self.settled_ms = float("inf")  # when all was calm for good
        self._seen_zxid = -1
        self.weather = ClusterWeather(self, self.rng, kinds)
        self._reset_rate = self.rng.choice((0.0, 0.0, 0.002))
        self._starting: dict[int, asyncio.Event] = {}  # brokers that are being brought up

    def _settings_by_the_clock(self, lag_ms: int) -> dict[str, str]:
        """Short times, so that what happens by the clock happens in the quiet times."""
        rng = self._quiet_rng
        return {
            "log.retention.ms": str(rng.choice((30, 90, 10_080)) * 60_000),
            "log.retention.check.interval.ms": str(RETENTION_CHECK_MS),
            "offsets.retention.minutes": str(rng.choice((10, 60, 10_080))),
            "offsets.retention.check.interval.ms": str(RETENTION_CHECK_MS),
            "log.cleaner.min.cleanable.ratio": "0.1",
            "replica.fetch.wait.max.ms": str(500 if rng.random() < 0.1 else lag_ms // 5),  # most of them cost less
        }

    def _earliest_wall_ms(self) -> int:
        return min(host.wall_ms() for host in self.hosts.values())

    def _wall_peak_ms(self, since_ms: float) -> int:
        return max(host.wall_peak_ms(since_ms) for host in self.hosts.values())

    def _make_host(self, node: int, brokers: int, lag_ms: int, more_settings: dict[str, str]) -> Host:
        name = f"broker{node}"
        copies = min(3, brokers)
        settings = SETTINGS | {
            "node.id": str(node),
            "listeners": f"PLAINTEXT://{name}:{PORT}",
            "zookeeper.connect": "tree:2181",  # the brokers have it in common: who finds it empty adopts nothing alone
            "default.replication.factor": str(copies),
            "offsets.topic.replication.factor": str(copies),
            "min.insync.replicas": str(min(2, copies)),
            "replica.lag.time.max.ms": str(lag_ms),
            **more_settings,
        }
        if self.is_synced:
            settings["log.flush.interval.messages"] = "1"
        if self.transactions is not None:
            settings |= self.transactions.settings
        settings["offsets.journal.enable"] = str(self.with_journal).lower()
        if self.acks != -1:
            settings["offsets.commit.required.acks"] = str(self.acks)
        disk = SimDisk(self.clock, random.Random(f"{self.seed} disk {node}"))
        return Host(f"{self.seed} {name}", self.clock, disk, self.network, self.tree, settings, name=name)

    # -- what it shows

    def summary(self) -> str:
        """The numbers of the run, as text."""
        if self.transactions is not None:
            return (
                f"{self.clock.loop.calls} events, {self.answers} answers, {self.transactions.summary()}, "
                f"{self.lives_begun} lives, {sum(self.weather.counts.values())} troubles"
            )
        return (
            f"{self.clock.loop.calls} events, {self.answers} answers, {len(self.history.events)} lines of history, "
            f"{self.ledger.commits.count} commits, {self.ledger.assignments} assignments, {self.lives_begun} lives, "
            f"{sum(self.weather.counts.values())} troubles"
        )

    def speaker(self) -> str:
        """The broker whose callback runs."""
        return speaker(self.clock)

    @property
    def lives(self) -> list[Life]:
        """All processes that live, in order."""
        return [life for host in self._machines if (life := host.life) is not None]

    @property
    def lives_begun(self) -> int:
        """How many processes there have been."""
        return sum(host.lives for host in self.hosts.values())

    @property
    def all_serve(self) -> bool:
        """Whether every broker has finished its start."""
        return all(host.is_up for host in self._machines)

    @property
    def broker_changes(self) -> object:
        """Another value, once a coordinator may have moved or begun anew."""
        return self.tree.zxid

    @property
    def calm_ms(self) -> float:
        """For how long there has been no trouble."""
        if self.is_disturbing or not self.all_serve:
            return 0.0
        return self.clock.monotonic_ms() - self.disturbed_ms

    def is_calm_for(self, span_ms: float) -> bool:
        """Whether there was no trouble in the last `span_ms`."""
        return self.calm_ms > span_ms

    def note_unanswered(self, who: str, what: str, asked_ms: float) -> None:
        """A request got no answer in time: a violation, if all was calm long before."""
        if self.is_calm_for(self.clock.monotonic_ms() - asked_ms + UNANSWERED_GRACE_MS):
            self.fail(Violation("every request is answered", f"{who}: {what} of {asked_ms - self.began_ms:.0f}"))

    def states(self) -> dict[TopicPartition, PartitionState]:
        """The state node of every partition."""
        found = {}
        for path, data in self.tree.below(f"{paths.TOPICS}/"):
            parts = path.split("/")
            if len(parts) == 7:  # /brokers/topics/<topic>/partitions/<index>/state
                found[parts[3], int(parts[5])] = PartitionState.decode(data)
        return found

    def is_whole(self) -> bool:
        """Whether nothing keeps a broker from leaving in order: all replicas are in sync, and no session is over."""
        sessions = [life.coordination.session_id for life in self.lives]
        return self.are_all_in_sync() and not self.overlaps and all(one in self.tree.sessions for one in sessions)

    def are_all_in_sync(self) -> bool:
        """Whether all brokers serve, and the tree says that every partition has a leader and all replicas in sync."""
        if not self.all_serve:
            return False
        wanted: dict[TopicPartition, tuple[int, ...]] = {}
        for path, data in self.tree.below(f"{paths.TOPICS}/"):
            parts = path.split("/")
            if len(parts) == 4:
                for index, replicas in TopicAssignment.decode(data).partitions.items():
                    wanted[parts[3], index] = tuple(replicas)
        states = self.states()
        return all(
            key in states and states[key].leader >= 0 and set(states[key].isr) == set(replicas)
            for key, replicas in wanted.items()
        )

    # -- events

    def prepare(self) -> None:
        """Set up the network and the tree."""
        self.network.on_delivery = self._delivered
        if self.rng.random() < 0.8:
            self.network.jitter = self.latency_ms
        if self.rng.random() < 0.15:
            self.network.fragment = self.fragments
        self.tree.note = self.note
        longest_ms = self.rng.choice((1.0, 5.0, 30.0))
        self.tree.travel_ms = lambda: self.tree_rng.uniform(0.1, longest_ms)

    def _delivered(self, transport: SimTransport, chunk: bytes) -> None:
        peer = transport.peer
        if peer is not None and isinstance(peer.owner, Life):
            peer.owner.touched = True
        (source, source_port), (target, target_port) = transport.local, transport.remote
        self.note(f"{source}:{source_port} -> {target}:{target_port}: {len(chunk)} bytes {zlib.crc32(chunk):08x}")
        if self._reset_rate and self.is_disturbing and self.network_rng.random() < self._reset_rate:
            self.note(f"reset of {source}:{source_port} - {target}:{target_port}")
            self.clock.call_soon(lambda: self.network.reset(transport))

    def after_pass(self) -> None:
        """Look at the brokers that may have changed."""
        if self.violation is not None:
            return
        lives = self.lives
        touched = [life for life in lives if life.touched]
        if not touched and self.tree.zxid == self._seen_zxid:
            return
        self._seen_zxid = self.tree.zxid
        for life in touched:
            if life.broker.request_gate.handler_failures and life.host.disk.is_losing_power:
                self.lose_power(life.host)  # it went in a handler
        touched, lives = [life for life in touched if life.alive], self.lives
        try:
            self.inspector.look(lives, self.tree, Moment(self.clock.monotonic_ms(), self.calm_ms))
            if self.transactions is not None and not self.inspector.excused:
                self.transactions.look(lives, self.calm_ms)
            for life in touched:
                if life.broker.request_gate.handler_failures or life.broker.replica_manager.role_failures:
                    raise Violation("no handler fails", f"{life.host.name}: see the log")
        except Violation as violation:
            self.fail(violation)
        is_settled = self.clock.loop.is_settled
        for life in touched:
            life.touched = not is_settled

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback or a task has raised: perhaps because the power of its machine went."""
        error, owner = context.get("exception"), self.clock.loop.owner
        if isinstance(error, Violation):
            self.fail(error)
        elif isinstance(owner, Life) and not owner.alive:
            pass  # what a dead process does is nobody's business
        elif isinstance(error, PowerLoss):
            for host in self.hosts.values():
                if host.disk.is_losing_power:
                    self.lose_power(host)
        else:
            who = owner.host.name if isinstance(owner, Life) else "the world"
            self.fail(Violation("nothing escapes", f"{who}: {context.get('message')}: {error!r}"))

    def verdict(self) -> ClusterVerdict:
        """How it ended."""
        return ClusterVerdict(self, self.violation)

    def kill_all(self) -> None:
        """End all brokers."""
        for host in self.hosts.values():
            host.kill()

    # -- machines

    def lose_power(self, host: Host) -> None:
        """Cut the power of one machine: its unsynced bytes meet their fate."""
        fate = self.rng.choice(("lost", "torn", "scattered"))
        self.note(f"the power of {host.name} goes; unsynced bytes: {fate}")
        if not self.is_synced:
            self.inspector.note_loss(next(node for node, other in self.hosts.items() if other is host))
        host.lose_power(fate)

    async def stop(self, host: Host) -> None:
        """Stop a broker in a controlled way."""
        await host.stop()

    async def bring_up(self, host: Host, wait_ms: float = 15_000.0) -> None:
        """Start a broker, again and again, until it serves; return then, or after `wait_ms`."""
        node = next(node for node, other in self.hosts.items() if other is host)
        event = self._starting.get(node)
        if event is None:
            event = self._starting[node] = asyncio.Event()
            self.spawn(self._start(host, node, event))
        timer = self.clock.call_later(wait_ms, event.set)
        await event.wait()
        timer.cancel()
        event.clear()

    async def _start(self, host: Host, node: int, served: asyncio.Event) -> None:
        while host.life is None and not self.finished.done():
            self.note(f"start of {host.name}, life {host.lives + 1}")
            try:
                if await host.start():
                    break
            except OSError as error:
                self.note(f"the start of {host.name} failed: {error!r}")
            except Violation:
                raise
            except Exception as error:
                self.note(f"the start of {host.name} failed: {error!r}")
                if not self.is_disturbing and self.clock.monotonic_ms() - self.disturbed_ms > SERVES_WITHIN_MS:
                    raise Violation("a broker starts", f"{host.name}: {error!r}") from error
            if host.disk.is_losing_power and host.life is not None:
                self.lose_power(host)
            await self.clock.sleep(500)
        if host.is_up:
            self.note(f"{host.name} serves")
        if not self.is_disturbing:
            self.disturbed_ms = self.clock.monotonic_ms()
        del self._starting[node]
        served.set()

    # -- the story

    async def story(self) -> None:
        """Bad weather with calm times in between, then calm for good, then the last look."""
        lingers = "linger" if self.tree.lingers else "end with their process"
        self.note(f"sessions of {self.tree.session_timeout_ms:.0f} ms {lingers}; appends are synced: {self.is_synced}")
        for host in self.hosts.values():
            self.spawn(self.bring_up(host))
        await self._until(lambda: self.all_serve, SERVES_WITHIN_MS, "all brokers serve", "not at the first start")
        await self._create_topics()
        self._make_clients()
        for client in self.clients:
            self.spawn(client.run())
        self.is_disturbing = False
        self.disturbed_ms = self.clock.monotonic_ms()
        await self._calm("after the first start", SHORT_CALM_MS)
        calm_after_ms = self.rng.uniform(20_000, 60_000)
        quiet_times = math.ceil(self.quiet_hours / QUIET_TIME_HOURS)
        quiet_begin_ms = [self.minutes * 60_000 * (n + 1) / (quiet_times + 1) for n in range(quiet_times)]
        spans_ms = [self._quiet_rng.uniform(0.2, 1.8) for _ in quiet_begin_ms]
        spans_ms = [span * self.quiet_hours * 3_600_000 / sum(spans_ms) for span in spans_ms]
        weather_ms = 0.0  # without what comes in quiet times
        while weather_ms < self.minutes * 60_000:
            begin_ms = self.clock.monotonic_ms()
            await self.clock.sleep(self.rng.choice((0.0, 1_000.0, 5_000.0)))
            await self.weather.change()
            weather_ms += self.clock.monotonic_ms() - begin_ms
            self.bad_ms += self.clock.monotonic_ms() - begin_ms
            if weather_ms > calm_after_ms:
                calm_after_ms = weather_ms + self.rng.uniform(20_000, 60_000)
                await self._calm("between troubles", SHORT_CALM_MS)
            if quiet_begin_ms and weather_ms > quiet_begin_ms[0]:
                del quiet_begin_ms[0]
                await self._quiet_time(spans_ms.pop())
        self.settling = True
        await self._calm("at the end", CALM_MS)
        self.settled_ms = self.clock.monotonic_ms()
        await last_look.check_groups(self, KEYS)
        await self._read_all()
        self.inspector.look_after_healing(self.lives)
        self.ending = True
        if self.transactions is not None:
            await self.clock.sleep(END_MS)
            if not self.inspector.excused:
                await self.transactions.check_at_the_end(self.lives, int(SETTINGS["offsets.topic.num.partitions"]))
        if self.with_journal:
            self.journal_records = await check_cluster(self)
        self._check_history()
        self.finish()

    async def _quiet_time(self, span_ms: float) -> None:
        """A long time with little traffic and rare troubles, after each of which everything comes back."""
        self.note(f"quiet for {span_ms / 60_000:.0f} minutes")
        rng = self._quiet_rng
        await self._come_back("before a quiet time")
        self.quiet = True
        while span_ms > 0:
            between_ms = min(span_ms, rng.uniform(*BETWEEN_QUIET_TROUBLES_MS))
            span_ms -= between_ms
            await self.clock.sleep(between_ms)
            self.quiet_ms += between_ms
            if not self.are_all_in_sync():
                raise Violation("all replicas stay in sync", "not in a quiet time")
            if span_ms > 0:
                begin_ms = self.clock.monotonic_ms()
                await self.weather.change()
                self.bad_ms += self.clock.monotonic_ms() - begin_ms
                await self._come_back("in a quiet time")
        self.quiet = False
        await self.clock.sleep(AFTER_QUIET_MS)
        await self._calm("after a quiet time", SHORT_CALM_MS)

    async def _until(self, holds: Callable[[], bool], within_ms: float, invariant: str, detail: str) -> None:
        give_up_ms = self.clock.monotonic_ms() + within_ms
        while not holds():
            if self.clock.monotonic_ms() >= give_up_ms:
                raise Violation(invariant, detail)
            await self.clock.sleep(200)

    async def _calm(self, when: str, span_ms: float) -> None:
        """All troubles end. In time everything must be in sync, and then every client must get on within the span."""
        await self._come_back(when)
        before = [client.progress for client in self.clients]
        await self.clock.sleep(span_ms)
        last_look.check_progress(self.clients, before, span_ms, whims=not self.settling)

    async def _come_back(self, when: str) -> None:
        """All troubles end. In time all brokers must serve, and everything must be in sync."""
        self.note(f"weather: calm {when}")
        self.network.heal()
        for host in self.hosts.values():
            host.disk.repair()
            if host.life is None:
                self.spawn(self.bring_up(host))
        self.disturbed_ms = self.clock.monotonic_ms()
        await self._until(lambda: self.all_serve, SERVES_WITHIN_MS, "all brokers serve", f"not {when}")
        await self._until(self.are_all_in_sync, IN_SYNC_WITHIN_MS, "all replicas come into sync", f"not {when}")

    def _make_clients(self) -> None:
        if self.transactions is not None:
            self.clients += self.transactions.make_clients()
            return
        rng = self.rng
        self.clients += [ClusterProducer(self, f"producer{n}", KEYS) for n in range(rng.randint(1, 3))]
        seldom = ClusterProducer(self, "seldom-producer", SELDOM, (4_000.0, 25_000.0))
        seldom.must_get_on = False  # in a short calm time it may try once, and be told that the leader has moved
        self.clients.append(seldom)
        self.clients += [CarelessClusterProducer(self, "careless", KEYS)]
        self.clients += [ClusterReader(self, f"reader{n}", KEYS) for n in range(rng.randint(1, 2))]
        self.clients += [ClusterCommitter(self, f"committer{n}", KEYS) for n in range(rng.randint(1, 2))]
        for group in range(rng.randint(1, 2)):
            static = rng.random() < 0.3
            for n in range(rng.randint(1, 3)):
                name = f"member{group}.{n}"
                self.clients.append(ClusterMember(self, name, f"group{group}", KEYS, name if static else None))
        if rng.random() < 0.6:
            self.clients.append(ClusterAdmin(self, "admin"))

    async def _create_topics(self) -> None:
        """Create the topics at the controller; also the offsets topic, so that all groups know it from the start."""
        copies = min(3, len(self.hosts))
        topics = TOPICS | {"seldom": 1, GROWING: 1}
        if self.transactions is not None:
            topics |= self.transactions.topics | {TRANSACTIONS_TOPIC: STATE_PARTITIONS}
        if self.quiet_hours:
            topics |= {OFFSETS: int(SETTINGS["offsets.topic.num.partitions"])}  # with small segments, to be compacted
        for name, partitions in topics.items():
            configs = {"internal.segment.bytes": "14000"}
            if name in (OFFSETS, TRANSACTIONS_TOPIC):
                configs["cleanup.policy"] = "compact"
            topic = CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=copies,
                configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=configs[key]) for key in configs],
            )  # fmt: skip
            may_exist = False
            for attempt in range(30):
                node = attempt % len(self.hosts)
                try:
                    address = (self.hosts[node].name, PORT)
                    connection = await Connection.open(self.clock, self.network, "setup", address, "client0")
                    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
                    response = await connection.ask(ApiKey.CREATE_TOPICS, 7, request)
                    connection.abort()
                except LostError:
                    may_exist = True  # the request may have been handled, and its answer lost
                    continue
                error = ErrorCode(response.topics[0].error_code)
                if error is ErrorCode.NONE or (may_exist and error is ErrorCode.TOPIC_ALREADY_EXISTS):
                    self.topic_ids[name] = self._topic_id(name)
                    break
                if error is not ErrorCode.NOT_CONTROLLER:
                    raise Violation("answers make sense", f"CreateTopics {name}: {error.name}")
                await self.clock.sleep(100)
            else:
                raise Violation("the controller creates topics", f"{name}: nobody is the controller")
        if self.transactions is not None:
            self.transactions.set_version(self.transactions.version)

    def _topic_id(self, topic: str) -> bytes:
        node = self.tree.find(paths.topic(topic))
        topic_id = None if node is None else TopicAssignment.decode(node.data).topic_id
        assert topic_id is not None
        return topic_id

    async def _read_all(self) -> None:
        """Read every partition from its start to its end, into the history."""
        reader = ClusterReader(self, "checker", KEYS + SELDOM)
        for key in KEYS + SELDOM:
            position: int | None = None
            end: int | None = None
            for _ in range(READS):
                try:
                    if end is None:
                        end = await reader.list_offset(key, -1)
                        position = await reader.list_offset(key, -2)
                    elif position is not None and position < end:
                        position = await reader.fetch(key, position, 0)
                    else:
                        break
                except LostError:
                    reader.hang_up()
                if position is None:
                    end = None
                    await self.clock.sleep(100)
            else:
                raise Violation("the log can be read", f"{key}: stuck at {position} of {end}")
        for client in self.clients:
            if isinstance(client, ClusterCommitter):
                try:
                    await client.look()
                except LostError as error:
                    self.note(f"{client.name} could not look: {error}")
        reader.hang_up()

    def _check_history(self) -> None:
        """Nothing lost, nothing twice, nothing in another order."""
        excused = [(topic, index) for topic, index, _ in self.inspector.excused]
        weak = self.acks != -1
        for anomaly in history.check(
            self.history.events, excused=excused, settled_ms=self.settled_ms, commits_are_weak=weak
        ):
            raise Violation(anomaly.name, anomaly.detail)


def run(
    seed: int,
    minutes: float = 2.0,
    trace: Callable[[str], None] | None = None,
    brokers: int = 3,
    kinds: tuple[str, ...] = (),
    overlaps: bool = False,
    quiet_hours: float = 0.0,
    with_journal: bool = False,
    acks: int = -1,
    with_transactions: bool = False,
    kind: type[ClusterWorld] = ClusterWorld,
) -> ClusterVerdict:
    """Run the cluster of a seed."""
    verdict = kind(
        seed, minutes, trace, brokers, kinds, overlaps, quiet_hours, with_journal, acks, with_transactions
    ).run()
    assert isinstance(verdict, ClusterVerdict)
    return verdict
