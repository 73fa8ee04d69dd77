"""One simulated run: a broker, its clients, bad weather, and a verdict; everything from one seed.

The weather depends on the seed: some runs lose power (then every append is synced: `flush.messages=1`, because Kafka's
promise for a single replica does not cover the page cache), others only kill processes; most have a slow network.
After the bad time everything heals, the clients must get on, and the whole log is read and compared with the ledger.
"""

import asyncio
import logging
import random
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreateTopicsRequest
from barnabas.sim.client import Connection, LostError
from barnabas.sim.coordination import Fate, SimTree
from barnabas.sim.disk import PowerLoss
from barnabas.sim.env import sim_env
from barnabas.sim.host import Host
from barnabas.sim.ledger import Ledger, TopicPartition, Violation
from barnabas.sim.models import Client, Committer, Member, Producer, Reader
from barnabas.sim.network import SimTransport

TOPICS = {"events": 2, "rolling": 1}
KEYS: list[TopicPartition] = [(topic, index) for topic, count in TOPICS.items() for index in range(count)]
EVENTS_KEPT = 60
SETTLE_MS = 75_000.0
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
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


class Verdict:
    """How a run ended."""

    def __init__(self, world: "World", violation: Violation | None) -> None:
        self.seed = world.seed
        self.violation = violation
        self.events = list(world.events)
        self.digest = world.digest
        self.event_count = world.event_count
        self.requests = world.requests
        self.virtual_ms = world.clock.monotonic_ms() - world.began_ms
        self.summary = world.summary()

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: holds ({self.summary}; trace {self.digest:08x})"
        lines = "\n".join(f"    {line}" for line in self.events)
        return f"seed {self.seed}: VIOLATED {self.violation}\n  last events:\n{lines}"


class _LogEvents(logging.Handler):
    """What the product logs belongs to the trace."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._world.note(f"{record.levelname.lower()} {record.name}: {text}")


class World:
    """Everything of one run. `run` once."""

    def __init__(self, seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.minutes = minutes
        env = sim_env(seed)
        self.clock, self.disk, self.network = env.clock, env.disk, env.network
        self.rng = random.Random(f"{seed} weather")
        self._network_rng = random.Random(f"{seed} network")
        self._tree_rng = random.Random(f"{seed} tree")
        self.tree = SimTree(self.clock, session_timeout_ms=self.rng.choice((500.0, 6000.0)))
        self.power_can_fail = self.rng.random() < 0.5
        settings = dict(SETTINGS)
        if self.power_can_fail:
            settings["log.flush.interval.messages"] = "1"
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.host = Host(seed, self.clock, self.disk, self.network, self.tree, settings, self._tasks.__contains__)
        self.ledger = Ledger()
        self.producer_ids: dict[int, None] = {}
        self.settling = False  # no more bad weather, no more pauses
        self.ending = False
        self.clients: list[Client] = []
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.event_count = 0
        self.requests = 0
        self.digest = 0
        self.began_ms = self.clock.monotonic_ms()
        self.disturbed_ms = self.began_ms  # when last anything was done to the world
        self._trace = trace
        self._violation: Violation | None = None
        self._finished: asyncio.Future[None]
        self._loss_rate = 0.0
        self._is_disturbing = False
        self._reset_rate = self.rng.choice((0.0, 0.01, 0.05))

    # -- the trace

    def note(self, event: str) -> None:
        """Something happened."""
        line = f"{self.clock.monotonic_ms() - self.began_ms:12.3f} {event}"
        self.event_count += 1
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.events.append(line)
        if self._trace is not None:
            self._trace(line)

    def summary(self) -> str:
        """What was done, in numbers."""
        ledger = self.ledger
        return (
            f"{self.requests} deliveries, {ledger.acknowledgements} batches, "
            f"{len(ledger.commits_acknowledged)} offsets, {ledger.assignments} assignments, {self.host.lives} lives"
        )

    def _delivered(self, transport: SimTransport, chunk: bytes) -> None:
        self.requests += 1
        local = transport.get_extra_info("sockname")[1]
        remote = transport.get_extra_info("peername")[1]
        self.note(f"{local} -> {remote}: {len(chunk)} bytes {zlib.crc32(chunk):08x}")
        if self._network_rng.random() < self._reset_rate and self.clients and not self.settling:
            self.note(f"reset of {local} - {remote}")
            self.clock.call_soon(lambda: self.network.reset(transport))  # these bytes arrive, their answer does not

    # -- verdicts

    def fail(self, violation: Violation) -> None:
        """Remember the first violation and end the run."""
        if self._violation is None:
            self._violation = violation
            self.note(f"VIOLATED {violation}")
            if not self._finished.done():
                self._finished.set_result(None)

    def unanswered(self, who: str, what: str, asked_ms: float) -> None:
        """A request got no answer in time: a violation, if nothing was done to the world meanwhile."""
        if asked_ms > self.disturbed_ms + 1000 and self.host.is_up and not self._is_disturbing:
            self.fail(Violation("every request is answered", f"{who}: {what} of {asked_ms - self.began_ms:.0f}"))

    def is_calm_for(self, span_ms: float) -> bool:
        """Whether nothing was done to the world lately."""
        return not self._is_disturbing and self.clock.monotonic_ms() - self.disturbed_ms > span_ms

    def _after_pass(self) -> None:
        life = self.host.life
        if life is not None and life.serving and self._violation is None:
            try:
                self.ledger.look(life.broker, life.number, self.clock.monotonic_ms())
                if life.broker.server.handler_failures:
                    raise Violation("no handler fails", "see the log")
            except Violation as violation:
                self.fail(violation)

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self.fail(error)
        elif isinstance(error, PowerLoss):
            if self.host.life is not None:
                self._machine_stops()
        elif self.host.life is not None or error is None:
            self.fail(Violation("nothing escapes", f"{context.get('message')}: {error!r}"))

    # -- the run

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of the world's own; what it raises ends the run."""

        async def watched() -> None:
            try:
                await work
            except Violation as violation:
                self.fail(violation)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if self._violation is None:
                    logging.getLogger("barnabas.sim").exception("a model failed")
                    self.fail(Violation("the simulation itself", repr(error)))

        coroutine = watched()
        task = self.clock.loop.create_task(coroutine)
        self._tasks[task] = None

    def run(self) -> Verdict:
        """The verdict."""
        loop = self.clock.loop
        loop.set_exception_handler(self._loop_failed)
        self._finished = loop.create_future()
        self.network.on_delivery = self._delivered
        if self.rng.random() < 0.8:
            self.network.jitter = self._latency_ms
        if self.rng.random() < 0.3:
            self.network.fragment = self._fragments
        self.tree.trouble = self._tree_trouble
        self.tree.latency_ms = self.rng.choice((0.0, 2.0))
        logger = logging.getLogger("barnabas")
        handler = _LogEvents(self)
        before = (logger.level, logger.propagate)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            self.spawn(self._story())
            loop.after_pass = self._after_pass
            loop.run_until_complete(self._finished)
        except RuntimeError as error:
            self.fail(Violation("somebody always has something to do", str(error)))
        finally:
            loop.after_pass = None
            verdict = Verdict(self, self._violation)
            self._sweep()
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
        return verdict

    def _sweep(self) -> None:
        """Nothing of this world runs on."""
        loop = self.clock.loop
        loop.set_exception_handler(lambda loop, context: None)
        if self.host.life is not None:
            self.host.kill()
        for _ in range(3):
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.call_soon(loop.stop)
            loop.run_forever()

    def _latency_ms(self) -> float:
        rng = self._network_rng
        return rng.uniform(0.1, 3.0) if rng.random() < 0.97 else rng.uniform(3.0, 200.0)

    def _fragments(self, chunk: bytes) -> Iterable[bytes]:
        rng = self._network_rng
        start = 0
        while start < len(chunk):
            end = start + rng.choice((1, 3, 50, 1000, 100_000))
            yield chunk[start:end]
            start = end

    def _tree_trouble(self, name: str) -> Fate:
        if self._loss_rate and self._tree_rng.random() < self._loss_rate:
            fate = self._tree_rng.choice((Fate.LOST_BEFORE, Fate.LOST_AFTER))
            self.note(f"the tree: {name} {fate.value}")
            return fate
        return Fate.DONE

    async def _story(self) -> None:
        await self._start_host()
        await self._create_topics()
        self._make_clients()
        for client in self.clients:
            self.spawn(client.run())
        end_ms = self.clock.monotonic_ms() + self.minutes * 60_000
        while self.clock.monotonic_ms() < end_ms:
            await self.clock.sleep(self.rng.uniform(1_000, 12_000))
            await self._weather()
        await self._heal()
        before = [client.progress for client in self.clients]
        await self.clock.sleep(SETTLE_MS)
        for client, progress in zip(self.clients, before):
            if client.progress == progress and not isinstance(client, Reader | Member):
                raise Violation("clients get on", f"{client.name} has not, for {SETTLE_MS / 1000:.0f} s of calm")
            if isinstance(client, Member) and not client.is_stable:
                raise Violation("clients get on", f"{client.name} is no member after {SETTLE_MS / 1000:.0f} s of calm")
        self._check_groups()
        self.ending = True
        await self.clock.sleep(25_000)
        await self._check_all()
        if self.rng.random() < 0.5:
            await self._restart(clean=self.rng.random() < 0.5)
            await self._check_all()
        await self.host.stop()
        if not self._finished.done():
            self._finished.set_result(None)

    def _make_clients(self) -> None:
        rng = self.rng
        self.clients += [Producer(self, f"producer{n}", KEYS) for n in range(rng.randint(1, 3))]
        self.clients += [Reader(self, f"reader{n}", KEYS) for n in range(rng.randint(1, 2))]
        self.clients += [Committer(self, f"committer{n}", KEYS) for n in range(rng.randint(1, 2))]
        for group in range(rng.randint(1, 2)):
            static = rng.random() < 0.3
            for n in range(rng.randint(1, 4)):
                name = f"member{group}.{n}"
                self.clients.append(Member(self, name, f"group{group}", KEYS, name if static else None))

    async def _start_host(self) -> None:
        """Until it serves: a start that the weather spoils is tried again."""
        for attempt in range(20):
            if self.host.life is not None:
                return
            if attempt > 5:
                self._loss_rate = 0.0  # a start that loses one answer fails; so many cannot be had
            self.note(f"start of broker life {self.host.lives + 1}")
            try:
                if await self.host.start():
                    assert self.host.life is not None
                    self.disturbed_ms = self.clock.monotonic_ms()
                    await self._loaded()
                    return
                if self.host.life is not None:
                    self._machine_stops()
            except OSError as error:
                self.note(f"the start failed: {error!r}")
            except Violation:
                raise
            except Exception as error:
                if self._loss_rate:
                    self.note(f"the start failed: {error!r}")
                else:
                    raise Violation("a broker starts", repr(error)) from error
            await self.clock.sleep(500)
        raise Violation("a broker starts", "twenty attempts failed")

    async def _loaded(self) -> None:
        """Wait until the groups are loaded, then compare them with what was acknowledged."""
        if "__consumer_offsets" not in self.tree.children("/brokers/topics"):
            return
        for _ in range(200):
            life = self.host.life
            if life is None:
                return
            coordinator = life.broker.group_coordinator
            if len(coordinator.shards) == 2 and not any(shard.loading for shard in coordinator.shards.values()):
                self.ledger.look_after_loading(life.broker, self.clock.monotonic_ms())
                return
            await self.clock.sleep(50)
        if self.is_calm_for(9_000) and not self._loss_rate:
            raise Violation("groups are loaded", "not within 10 s")

    async def _create_topics(self) -> None:
        configs = {
            "events": {"internal.segment.bytes": "14000"},
            "rolling": {"retention.bytes": "30000", "internal.segment.bytes": "8000"},
        }
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.get(name, {}).items()
                    ],
                )
                for name, partitions in TOPICS.items()
            ],
            timeout_ms=10_000,
        )
        connection = await Connection.open(self.clock, self.network, "admin")
        response = await connection.ask(ApiKey.CREATE_TOPICS, 5, request)
        for topic in response.topics:
            if topic.error_code:
                raise Violation("answers make sense", f"CreateTopics {topic.name}: {ErrorCode(topic.error_code).name}")
        connection.abort()
        assert self.host.life is not None
        error, message = await self.host.life.broker.topic_admin.create_topic(
            "__consumer_offsets",
            partition_count=2,
            replication_factor=1,
            configs={"cleanup.policy": "compact", "internal.segment.bytes": "14000"},
        )
        assert not error, message
        await self.clock.sleep(1_000)

    # -- weather

    async def _weather(self) -> None:
        kinds: list[tuple[float, str, Callable[[], Coroutine[Any, Any, None]]]] = [
            (4, "kill", self._kill),
            (2, "clean restart", self._clean_restart),
            (2, "cut", self._cut),
            (3, "resets", self._resets),
            (1, "half-open", self._half_open),
            (1, "clock step", self._step_clock),
            (2, "session expires", self._expire),
            (2, "tree trouble", self._trouble_the_tree),
            (2 if self.power_can_fail else 1, "disk error", self._break_the_disk),
            (4 if self.power_can_fail else 0, "power", self._lose_power),
            (3 if self.power_can_fail else 0, "power in an operation", self._lose_power_in_an_operation),
            (2 if self.power_can_fail else 0, "power in a start", self._lose_power_in_a_start),
        ]
        (_, name, happen) = self.rng.choices(kinds, weights=[kind[0] for kind in kinds])[0]
        self.note(f"weather: {name}")
        self._is_disturbing = True
        await happen()
        self._is_disturbing = False
        self.disturbed_ms = self.clock.monotonic_ms()

    async def _kill(self) -> None:
        self.host.kill()
        await self._pause()
        await self._start_host()

    async def _pause(self) -> None:
        await self.clock.sleep(self.rng.choice((1.0, 300.0, 8_000.0)))

    async def _clean_restart(self) -> None:
        await self._restart(clean=True)

    async def _restart(self, *, clean: bool) -> None:
        if clean:
            await self.host.stop()
        else:
            self.host.kill()
        await self._start_host()

    def _machine_stops(self) -> None:
        fate = self.rng.choice(("lost", "torn", "torn", "scattered"))
        self.note(f"the power goes; unsynced bytes: {fate}")
        self.host.lose_power(fate)

    async def _lose_power(self) -> None:
        self._machine_stops()
        await self._pause()
        await self._start_host()

    async def _lose_power_in_an_operation(self) -> None:
        self.disk.lose_power_at(self.disk.operations + self.rng.choice((0, 1, 2, 5, 12, 40)))
        if self.rng.random() < 0.4 and self.host.life is not None:  # among the many of a stop
            await self.host.stop()
        for _ in range(20):
            if self.host.life is None:
                break
            await self.clock.sleep(300)
        if self.host.life is not None:
            self._machine_stops()
        elif self.disk.life == 0 or self.disk.is_losing_power:
            self.disk.crash("torn")
        await self._pause()
        await self._start_host()

    async def _lose_power_in_a_start(self) -> None:
        self.host.kill() if self.rng.random() < 0.5 else self._machine_stops()
        self.disk.lose_power_at(self.disk.operations + self.rng.randint(0, 30))
        await self._start_host()
        if self.disk.is_losing_power and self.host.life is not None:
            self._machine_stops()
            await self._start_host()

    async def _cut(self) -> None:
        self.network.cut()
        await self.clock.sleep(self.rng.choice((100.0, 3_000.0, 20_000.0, 40_000.0)))
        self.network.heal()

    async def _resets(self) -> None:
        for transport in list(self.network.transports):
            if self.rng.random() < 0.5:
                self.network.reset(transport)

    async def _half_open(self) -> None:
        for client in self.clients:
            if self.rng.random() < 0.3 and client.connection is not None and not client.connection.closed:
                transport = client.connection.transport
                assert isinstance(transport, SimTransport)
                transport.vanish()
                client.connection._lost()
                client.connection = None

    async def _step_clock(self) -> None:
        self.host.wall_clock_error_ms += self.rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))

    async def _expire(self) -> None:
        if self.host.life is not None:
            self.tree.expire(self.host.life.coordination.session_id)
        await self.clock.sleep(self.rng.choice((0.0, 2_000.0)))

    async def _trouble_the_tree(self) -> None:
        self._loss_rate = self.rng.choice((0.05, 0.3))
        delay_ms = self.rng.choice((0.0, 20.0, 1_000.0))
        self.tree.watch_delay_ms = lambda: self._tree_rng.uniform(0, delay_ms)
        if self.rng.random() < 0.5:
            await self._kill()
        elif self.host.life is not None:
            self.tree.expire(self.host.life.coordination.session_id)
        await self.clock.sleep(2_000)
        self._loss_rate = 0.0
        self.tree.watch_delay_ms = lambda: 0.0
        await self.clock.sleep(1_000)

    async def _break_the_disk(self) -> None:
        """An error, after which only a restart helps."""
        operation = self.rng.choice(("write", "sync", "write", "create", "rename", "sync_directory"))
        self.disk.fail(operation, self.rng.choice(("events", "__consumer_offsets", "rolling", "")), times=1)
        await self.clock.sleep(self.rng.choice((500.0, 5_000.0)))
        self.disk.repair()
        self.host.kill()
        await self._start_host()

    async def _heal(self) -> None:
        self.note("weather: calm from here on")
        self.settling = True
        self.network.heal()
        self.disk.repair()
        self._loss_rate = 0.0
        await self._start_host()
        self.disturbed_ms = self.clock.monotonic_ms()

    # -- at the end

    def _check_groups(self) -> None:
        """Every partition has exactly one owner in each group that has members."""
        owned: dict[str, list[TopicPartition]] = {}
        generations: dict[str, dict[int, None]] = {}
        for client in self.clients:
            if isinstance(client, Member):
                owned.setdefault(client.group_id, []).extend(client.owned)
                generations.setdefault(client.group_id, {})[client.generation] = None
        for group_id, partitions in owned.items():
            if len(generations[group_id]) > 1:
                continue  # a rebalance is under way
            if sorted(partitions) != sorted(KEYS):
                raise Violation("every partition has an owner", f"{group_id}: {sorted(partitions)}")

    async def _check_all(self) -> None:
        """Read everything, and every committed offset."""
        for key in KEYS:
            while True:
                reader = Reader(self, "checker", [key])
                try:
                    start = await reader.list_offset(key, -2)
                    end = await reader.list_offset(key, -1)
                    if start is None or end is None:
                        raise Violation("the log can be read", f"{key} has no leader")
                    await self._read_all(reader, key, start, end)
                except LostError:
                    continue
                finally:
                    reader.hang_up()
                break
        for client in self.clients:
            if isinstance(client, Committer):
                await client.look()
                client.hang_up()

    async def _read_all(self, reader: Reader, key: TopicPartition, start: int, end: int) -> None:
        """From the log start to the high watermark: it must all be there."""
        position = start
        while position < end:
            following = await reader.fetch(key, position, 0, 100_000)
            if following is None or following == position:
                raise Violation("the log can be read", f"{key}: stuck at {position} of {end}")
            position = following
        log = {offset: value for offset, value in self.ledger.read.get(key, {}).items() if start <= offset < end}
        if sorted(log) != list(range(start, end)):
            raise Violation("no gap", f"{key}: {len(log)} records from {start} to {end}")
        for offset in self.ledger.acknowledged.get(key, {}):
            if offset >= end:
                raise Violation("what was acknowledged is there", f"{key} {offset}: the log ends at {end}")
        self.ledger.check_partition(key, log, start)


def run(seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """One run."""
    return World(seed, minutes, trace).run()
