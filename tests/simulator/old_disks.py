"""Somebody puts the disks of all brokers back from copies, each of its own age; the tree stays as it is. Under a seed.

The copies are made of brokers that are stopped or were killed, of all at once or of one after the other while the
others go on. In between replicas leave the ISRs and come back. What must hold:

- All comes back: every partition has a leader again, and all replicas in sync.
- **What was acknowledged and is in one of the copies is there**, however old that copy is, and whatever
  min.insync.replicas is. For of two logs, that whose last record has the later leader epoch has all that was ever
  acknowledged of earlier epochs, because who led it was in sync; and of two with the same last epoch, the longer one
  has all that the other has. So one of the copies has all that is left, and that one must lead.
- The same for committed offsets: the latest acknowledged one that is in a copy, or a later one.

What no copy has is lost, and the checker forgets it when the disks are put back. It forgets nothing else.
"""

from collections.abc import Callable, Iterator

from barnabas.offsets.records import decode_value, key_version
from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import Record

from simulator.disk import SimDisk
from simulator.host import Host
from simulator.simulation import Verdict
from simulator.tree_accidents import BROKERS, PARTITIONS, TOPIC, Accident, TreeAccidents

COUNTED_WITHIN_MS = 20_000.0  # the marks of brokers in the tree, more often than a kill may take back
COPIES_MAX = 3  # of one broker: some are older than disks that were put back since
OFFSETS_KEY_MAX = 1  # versions of keys of committed offsets
ARRIVED_WITHIN_MS = 1_000.0  # the last answers of brokers that have ended


class OldDisks(TreeAccidents):
    """One run. In every second one a leader alone may acknowledge."""

    def __init__(self, seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        self._copies: dict[Host, list[SimDisk]] = {host: [] for host in self.hosts}
        self.forgotten = 0  # acknowledged records that no copy had
        self.accidents: dict[str, Accident] = {"disks put back": self._put_the_disks_back}
        self.done = dict.fromkeys(self.accidents, 0)

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {"min.insync.replicas": str(1 + self.seed % 2)}

    def summary(self) -> str:
        """The numbers of the run."""
        return f"{super().summary()}, {self.forgotten} records that no copy had"

    async def _leave_one_out(self) -> None:
        one = self.rng.sample(self.hosts, 1)
        await self._end(one)
        await self._rest(12_000)
        await self._bring_up(one)

    async def _put_the_disks_back(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            for hosts in self.rng.choice(([self.hosts], [[host] for host in self.rng.sample(self.hosts, BROKERS)])):
                await self._end(hosts)
                for host in hosts:
                    self._copies[host] = [*self._copies[host], host.disk.copy()][-COPIES_MAX:]
                await self._bring_up(self._in_any_order() if hosts is self.hosts else hosts)
            await self._all_serve()
            if self.rng.random() < 0.7:
                await self._leave_one_out()
            await self.clock.sleep(COUNTED_WITHIN_MS)
        await self._end(self.hosts)
        await self.clock.sleep(ARRIVED_WITHIN_MS)
        for host, of_host in self._copies.items():
            if self.rng.random() < 0.8:
                age = self.rng.randrange(len(of_host))
                self.note(f"the disk of {host.name} is copy {age}")
                host.disk.put_back(of_host[age])
        self._forget_what_no_copy_has()
        *first, last = self._in_any_order()
        await self._bring_up(first)
        await self._rest(20_000)  # who can serve without the last one does, and that one must not take it back
        await self._bring_up([last])
        await self._all_serve()
        await self.clock.sleep(self.rng.uniform(2_000, 10_000))

    def _forget_what_no_copy_has(self) -> None:
        for partition in range(PARTITIONS):
            there = {(record.offset, record.value) for record in self._on_disks(f"{TOPIC}-{partition}")}
            written = self.written[partition]
            self.written[partition] = {offset: value for offset, value in written.items() if (offset, value) in there}
            self.forgotten += len(written) - len(self.written[partition])
        self.committed = max(filter(self.committed.__ge__, self._commits_on_disks()), default=0)

    def _commits_on_disks(self) -> Iterator[int]:
        for record in self._on_disks("__consumer_offsets-0"):
            if record.key is not None and record.value is not None and key_version(record.key) <= OFFSETS_KEY_MAX:
                yield decode_value(record.value).offset

    def _on_disks(self, folder: str) -> Iterator[Record]:
        for host in self.hosts:
            for path, content in sorted(host.disk.content(f"/data/{folder}").items()):
                if path.endswith(".log"):
                    for _, batch in record_batch.batches(content or b""):
                        yield from record_batch.records(batch)


def run(seed: int, minutes: float = 2.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return OldDisks(seed, minutes, trace).run()
