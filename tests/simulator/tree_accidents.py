"""What somebody does by hand to the file of three brokers' tree, under a seed.

The file is a real one (`file_tree.py`). Its -wal and -shm are removed while brokers run, it is made shorter (VACUUM), a
backup is put back while none runs, an older -wal is put beside it, a registration is deleted; and brokers are stopped
and killed meanwhile. What must hold: no acknowledged record and no committed offset is lost; no broker starts beside
others that use other files; and what changes nothing in the tree disturbs nobody.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import CoordinationError
from barnabas.cluster.tree.tree_opening import INDEX, LOG
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record
from barnabas.replication.partition import Partition

from simulator.clients.connection import Connection, LostError
from simulator.disk import SimDisk
from simulator.file_tree import FileTree
from simulator.host import Host, Life, speaker
from simulator.simulation import Simulation, Verdict
from simulator.violation import Violation

Accident = Callable[[], Awaitable[None]]

LOST = "what was acknowledged is there"
ALONE = "no broker starts beside others that use other files"
SAID = "brokers say that files of the tree are gone"
COMES_BACK = "all comes back"
UNDISTURBED = "VACUUM disturbs nobody"
BROKERS = 3
TOPIC, PARTITIONS = "t", 2
GROUP = "readers"
PORT = 9092
SETTINGS = {
    "http.listeners": "none",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
}
SERVES_WITHIN_MS = 60_000.0
SAID_WITHIN_MS = 2_000.0
SEEN_WITHIN_MS = 1_000.0  # by brokers that look at the file
TRIED_AGAIN_MS = 500.0
IN_THE_FILE_WITHIN_MS = 5_000.0  # a topic that the file has not heard of is for the operator to decide about
ANSWERED_WITHIN_MS = 8_000.0
ANSWERED_IN_ALL_WITHIN_MS = 240_000.0  # longer than an accident


class TreeAccidents(Simulation):
    """One run."""

    def __init__(self, seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        self.tree = FileTree(self.clock, self.network, self.rng.choice((1_500.0, 6_000.0)))
        self.hosts = [self._host(node) for node in range(BROKERS)]
        self.accidents: dict[str, Accident] = {
            "files beside it removed": self._remove_what_is_beside,
            "VACUUM": self._vacuum,
            "backup put back": self._put_a_backup_back,
            "-wal lost": self._lose_the_log_of_the_dead,
            "an older -wal": self._put_an_older_log_beside,
            "registration deleted": self._delete_a_registration,
        }
        self.done = dict.fromkeys(self.accidents, 0)
        self.refused = 0  # starts
        self._is_wanted = dict.fromkeys(self.hosts, False)  # whether somebody wants it to run
        self._starting: dict[Host, None] = {}
        self.written: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]  # acknowledged records, by offset
        self.committed = 0  # the newest acknowledged offset
        self.is_over = False

    def _host(self, node: int) -> Host:
        name = f"broker{node}"
        disk = SimDisk(self.clock, random.Random(f"{self.seed} disk {node}"))
        settings = self._settings() | {"node.id": str(node), "listeners": f"PLAINTEXT://{name}:{PORT}"}
        return Host(f"{self.seed} {name}", self.clock, disk, self.network, self.tree, settings, name=name)

    def _settings(self) -> dict[str, str]:
        return SETTINGS

    def summary(self) -> str:
        """The numbers of the run."""
        return (
            f"{sum(map(len, self.written))} records, {self.committed} commits, {sum(self.done.values())} accidents, "
            f"{self.refused} refused starts, {sum(host.lives for host in self.hosts)} lives"
        )

    def speaker(self) -> str:
        """The broker whose callback runs."""
        return speaker(self.clock)

    def note(self, event: str) -> None:
        """Write an event into the trace, the same in each run of the seed."""
        super().note(self.tree.plain(event))

    def loop_failed(self, loop: Any, context: dict[str, Any]) -> None:
        """A callback or a task has raised. What a dead process does is nobody's business."""
        owner = self.clock.loop.owner
        if not isinstance(owner, Life) or owner.alive:
            super().loop_failed(loop, context)

    def kill_all(self) -> None:
        """End all brokers."""
        for host in self.hosts:
            host.kill()

    def run(self) -> Verdict:
        """The verdict."""
        try:
            return super().run()
        finally:
            self.tree.close()

    # -- clients

    async def _ask(self, host: Host, api: ApiKey, version: int, request: Any) -> Any:
        """The answer of a broker. LostError."""
        connection = await Connection.open(self.clock, self.network, "client", (host.name, PORT), "client0")
        try:
            return await connection.ask(api, version, request, ANSWERED_WITHIN_MS)
        finally:
            connection.abort()

    async def _ask_any(self, api: ApiKey, version: int, request: Any, is_good: Callable[[Any], bool]) -> Any:
        """The first good answer of any broker."""
        until_ms, answer = self.clock.monotonic_ms() + ANSWERED_IN_ALL_WITHIN_MS, None
        while self.clock.monotonic_ms() < until_ms:
            try:
                answer = await self._ask(self.rng.choice(self.hosts), api, version, request)
            except LostError:
                pass
            else:
                if is_good(answer):
                    return answer
            await self.clock.sleep(self.rng.uniform(50, 200))
        raise Violation("clients get on", f"{api.name}: {answer}")

    async def _produce(self, partition: int) -> None:
        make = messages.ProduceRequest
        number = 0
        while not self.is_over:
            number += 1
            value = b"%d" % number
            records = record_batch.build([Record(0, self.clock.now_ms(), None, value, [])])
            data = make.PartitionProduceData(index=partition, records=bytes(records))
            topic = make.TopicProduceData(name=TOPIC, partition_data=[data])
            answer = await self._ask_any(
                ApiKey.PRODUCE,
                8,
                make(acks=-1, timeout_ms=5_000, topic_data=[topic]),
                lambda answer: not answer.responses[0].partition_responses[0].error_code,
            )
            offset = answer.responses[0].partition_responses[0].base_offset
            if offset in self.written[partition]:
                raise Violation(LOST, f"{TOPIC}-{partition} gives offset {offset} a second time")
            self.written[partition][offset] = value
            await self.clock.sleep(self.rng.uniform(20, 400))

    async def _commit(self) -> None:
        make = messages.OffsetCommitRequest
        find = messages.FindCoordinatorRequest(key=GROUP)  # makes the topic of the offsets
        await self._ask_any(ApiKey.FIND_COORDINATOR, 3, find, lambda answer: not answer.error_code)
        number = 0
        while not self.is_over:
            number += 1
            row = make.OffsetCommitRequestPartition(partition_index=0, committed_offset=number)
            request = make(group_id=GROUP, topics=[make.OffsetCommitRequestTopic(name=TOPIC, partitions=[row])])
            await self._ask_any(
                ApiKey.OFFSET_COMMIT, 8, request, lambda answer: not answer.topics[0].partitions[0].error_code
            )
            self.committed = number
            await self.clock.sleep(self.rng.uniform(100, 1_000))

    # -- what must hold at the end

    async def _check_records(self) -> None:
        for partition, written in enumerate(self.written):
            found: dict[int, bytes | None] = {}
            until_ms = self.clock.monotonic_ms() + SERVES_WITHIN_MS
            while (not found or max(found) < max(written)) and self.clock.monotonic_ms() < until_ms:
                for record in await self._records(partition, max(found) + 1 if found else 0):
                    found[record.offset] = record.value
            lost = [offset for offset, value in written.items() if found.get(offset) != value]
            if lost:
                raise Violation(LOST, f"{TOPIC}-{partition} has lost {lost[:10]}")

    async def _records(self, partition: int, offset: int) -> list[Record]:
        make = messages.FetchRequest
        row = make.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = make(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[make.FetchTopic(topic=TOPIC, partitions=[row])]
        )
        answer = await self._ask_any(
            ApiKey.FETCH, 11, request, lambda answer: not answer.responses[0].partitions[0].error_code
        )
        data = answer.responses[0].partitions[0].records
        found = [record for _, batch in record_batch.batches(data) for record in record_batch.records(batch)]
        return [record for record in found if record.offset >= offset]

    async def _check_commits(self) -> None:
        make = messages.OffsetFetchRequest
        request = make(group_id=GROUP, topics=[make.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])])
        answer = await self._ask_any(ApiKey.OFFSET_FETCH, 5, request, lambda answer: not answer.error_code)
        found = answer.topics[0].partitions[0].committed_offset
        if found < self.committed:
            raise Violation(LOST, f"the committed offset {found} where {self.committed} was committed")

    # -- brokers

    async def _end(self, hosts: Sequence[Host]) -> None:
        """Stop or kill brokers, in any order."""
        for host in self.rng.sample(list(hosts), len(hosts)):
            self._is_wanted[host] = False
            if self.rng.random() < 0.5:
                self.note(f"{host.name} is killed")
                host.kill()
            elif host.life is not None:
                self.note(f"{host.name} is stopped")
                await host.stop()
            await self._rest(2_000)

    async def _bring_up(self, hosts: Sequence[Host]) -> None:
        """Start brokers in this order, one after the other or together, again and again, until they serve."""
        for host in hosts:
            self._is_wanted[host] = True
            if host not in self._starting:
                self._starting[host] = None
                self.spawn(self._start(host))
            await self._rest(3_000)

    async def _start(self, host: Host) -> None:
        until_ms = self.clock.monotonic_ms() + SERVES_WITHIN_MS
        while self._is_wanted[host] and host.life is None and not self.finished.done():
            try:
                await host.start()
            except CoordinationError as error:
                self.note(f"{host.name} does not start: {error}")
                self.refused += 1
                if self.clock.monotonic_ms() > until_ms:
                    raise Violation("a broker starts", f"{host.name}: {error}") from None
                await self.clock.sleep(TRIED_AGAIN_MS)
        del self._starting[host]

    async def _is_refused(self, host: Host) -> None:
        """A start that must be refused, as long as others use other files."""
        try:
            await host.start()
        except CoordinationError as error:
            self.note(f"{host.name} is refused: {error}")
            self.refused += 1
            return
        raise Violation(ALONE, host.name)

    async def _all_serve(self) -> None:
        """All brokers serve, and all replicas are in sync."""
        until_ms = self.clock.monotonic_ms() + SERVES_WITHIN_MS
        while not self._are_in_sync():
            if self.clock.monotonic_ms() > until_ms:
                states = [f"{host.name} {'serves' if host.is_up else 'does not serve'}" for host in self.hosts]
                raise Violation(COMES_BACK, ", ".join(states))
            await self.clock.sleep(100)

    def _are_in_sync(self) -> bool:
        """Whether all brokers serve, and each partition has one leader, with all replicas in sync."""
        if not all(host.is_up for host in self.hosts):
            return False
        return len(self._led()) == PARTITIONS and self._least_in_sync() == BROKERS

    def _led(self) -> list[Partition]:
        """The partitions of the topic where they are led."""
        return [
            partition
            for host in self.hosts
            if host.life is not None
            for partition in host.life.broker.replica_manager.partitions.values()
            if partition.topic == TOPIC and partition.is_leader
        ]

    def _least_in_sync(self) -> int:
        return min((len(partition.isr) for partition in self._led()), default=BROKERS)

    def _in_any_order(self, *behind: Host) -> list[Host]:
        """All brokers; those that are behind are mostly the first ones."""
        hosts = self.rng.sample(self.hosts, BROKERS)
        if self.rng.random() < 0.7:
            hosts.sort(key=lambda host: host not in behind)
        return hosts

    async def _rest(self, longest_ms: float) -> None:
        await self.clock.sleep(self.rng.choice((0.0, self.rng.uniform(0, longest_ms))))

    # -- accidents

    async def _remove_what_is_beside(self) -> None:
        """Then the file says less than the brokers know. It is whole again when they have been stopped."""
        parts = self.rng.choice(((LOG, INDEX), (LOG,), (INDEX,)))
        self.note(f"removed: {', '.join(parts)}")
        self.tree.remove(parts)
        await self.clock.sleep(SAID_WITHIN_MS)
        if not all(self.tree.troubles()):
            raise Violation(SAID, f"{parts}")
        victim, *others = self.rng.sample(self.hosts, BROKERS)
        await self._end([victim])
        await self._is_refused(victim)
        await self._rest(10_000)
        await self._is_refused(victim)
        await self._end(others)
        await self._bring_up(self._in_any_order())

    async def _lose_the_log_of_the_dead(self) -> None:
        """All are killed a moment after the ISRs have changed, and what SQLite has beside the file is removed."""
        behind, *others = self.rng.sample(self.hosts, BROKERS)
        await self._end([behind])
        until_ms = self.clock.monotonic_ms() + SERVES_WITHIN_MS
        while self._least_in_sync() == BROKERS and self.clock.monotonic_ms() < until_ms:
            await self.clock.sleep(20)
        await self._rest(500)
        for host in others:
            self._is_wanted[host] = False
            host.kill()
        self.note("all are killed, and the -wal is removed")
        self.tree.remove((LOG, INDEX))
        await self._bring_up(self._in_any_order(behind))

    async def _vacuum(self) -> None:
        """Nobody notices."""
        self.tree.lengthen()
        await self.clock.sleep(SEEN_WITHIN_MS)
        self.tree.vacuum()
        lives, before = [host.life for host in self.hosts], [len(written) for written in self.written]
        await self.clock.sleep(5 * SEEN_WITHIN_MS)
        if any(self.tree.troubles()) or lives != [host.life for host in self.hosts]:
            raise Violation(UNDISTURBED, f"{self.tree.troubles()}")
        if any(len(written) == count for written, count in zip(self.written, before)):
            raise Violation(UNDISTURBED, "a producer does not go on")

    async def _put_a_backup_back(self) -> None:
        """Replicas leave and come back meanwhile, so that it says who was in sync then."""
        backup = await self.tree.backup()
        behind = self.rng.sample(self.hosts, 1)
        await self._end(behind)
        await self._rest(12_000)
        if self.rng.random() < 0.4:
            await self._bring_up(behind)
            await self._rest(8_000)
            behind = self.rng.sample(self.hosts, 1)
            await self._end(behind)
            await self._rest(8_000)
        await self._end(self.hosts)
        self.note("the backup is put back")
        self.tree.put_back({"": backup})
        await self._bring_up(self._in_any_order(*behind))

    async def _put_an_older_log_beside(self) -> None:
        """Who put it there takes it away when no broker starts."""
        older = self.tree.copy()
        await self._end(self.rng.sample(self.hosts, 1))
        await self._rest(8_000)
        await self._end(self.hosts)
        now = self.tree.copy()
        self.note(f"the file is put beside what it had before: {', '.join(older.keys() - {''})}")
        self.tree.put_back({**older, "": now[""]})
        try:
            await self.hosts[0].start()
        except CoordinationError as error:
            self.note(f"refused: {error}")
            self.refused += 1
            self.tree.put_back(now)
        await self._bring_up(self._in_any_order())

    async def _delete_a_registration(self) -> None:
        node = self.rng.randrange(BROKERS)
        is_there = self.tree.delete(paths.broker(node))
        self.note(f"the registration of broker {node} is deleted: {is_there}")

    # -- the run

    async def story(self) -> None:
        """One accident after the other, with calm times between; then all that was acknowledged is looked for."""
        await self._bring_up(self.hosts)
        make = messages.CreateTopicsRequest
        topic = make.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=BROKERS)
        known = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        await self._ask_any(
            ApiKey.CREATE_TOPICS,
            5,
            make(topics=[topic], timeout_ms=5_000),
            lambda answer: answer.topics[0].error_code in known,
        )
        await self._all_serve()
        for partition in range(PARTITIONS):
            self.spawn(self._produce(partition))
        self.spawn(self._commit())
        while not self.committed:
            await self.clock.sleep(100)
        await self.clock.sleep(IN_THE_FILE_WITHIN_MS)
        ends_ms = self.clock.monotonic_ms() + self.minutes * 60_000
        while self.clock.monotonic_ms() < ends_ms:
            await self.clock.sleep(self.rng.uniform(500, 8_000))
            name = self.rng.choice(list(self.accidents))
            self.note(f"accident: {name}")
            self.done[name] += 1
            await self.accidents[name]()
            await self._all_serve()
        self.is_over = True
        await self._check_records()
        await self._check_commits()
        self.finish()


def run(seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return TreeAccidents(seed, minutes, trace).run()
