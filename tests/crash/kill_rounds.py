"""SIGKILL of a broker under producers, committers and groups, round after round.

    python tests/crash/kill_rounds.py --rounds 20                 ten producers, four committers, two groups,
                                                                  four transactional producers, three copiers
    python tests/crash/kill_rounds.py --rounds 20 --small         many topics, tiny segments, compaction all the time,
                                                                  its policy changed now and then
    python tests/crash/kill_rounds.py --rounds 20 --brokers 3     a cluster: see cluster_rounds.py
    python tests/crash/kill_rounds.py --rounds 3 --command 'run-kafka {port} {data}'   another broker, in the foreground

After each kill: everything that was acknowledged is there, once, in order, at the offset that was told; what was read
and checked before has not changed by a byte; committed offsets are at least what was acknowledged and at most what was
asked for; no partition has two owners in a generation; every committed transaction is visible as a whole, and nothing
of one that was not committed; each committed record has one copy, and none is open for longer than its timeout
(transaction_load.py); producers, committers and groups go on. Now and then somebody shortens the file of the tree
while the broker runs (VACUUM), makes a backup of it, or puts one back after a kill (tree_deeds.py). Times are from exec
to the first right answer, while all clients connect again; the processor's time is the broker's until then. Exit code 1
when anything is wrong; then the data directory stays.
"""

import argparse
import hashlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # for forked.py and ports.py

import forked
import tree_deeds
from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, Process
from kill_load import (
    COORDINATOR_MOVES,
    Acknowledged,
    Books,
    Committer,
    Group,
    LibrdkafkaMember,
    LibrdkafkaProducer,
    Member,
    OneBroker,
    Partition,
    PolicyChanger,
    Producer,
    Worker,
    offsets_of,
)
from ports import free_port
from transaction_checks import COPIES, TRANSACTIONS, TransactionChecker, Transactions
from transaction_checks import SETTINGS as TRANSACTION_SETTINGS
from transaction_load import Copier, LibrdkafkaTransactor, Transactor

GOES_ON_WITHIN_S = 30.0
FETCH_BYTES = 4 << 20
KEYS = 20  # per producer of a compacted topic
OFFSETS_TOPIC = "__consumer_offsets"

SMALL_SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "log.index.size.max.bytes": "240",  # a segment is full after some 60 kB
    "log.index.interval.bytes": "2000",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "50",
}
COMPACTED_TOPIC = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "flush_messages": "50"}


class Options(NamedTuple):
    """How much of everything."""

    rounds: int = 20
    seed: int = 1
    producers: int = 10
    committers: int = 4
    members: int = 3
    topics: int = 1
    partitions: int = 6
    transactors: int = 4
    small: bool = False
    librdkafka: bool = True
    alive_s: tuple[float, float] = (1.0, 4.0)
    command: str | None = None
    tree_deeds: bool = False
    popen: "type[subprocess.Popen[Any]]" = forked.Popen


class Row(NamedTuple):
    """What one round took."""

    alive_s: float
    records: int
    commits: int
    generation: int
    killed_starting: int
    deeds: str
    processor_ms: float
    metadata_ms: float
    fetch_ms: float
    offsets_ms: float
    group_ms: float
    checked: int


class _Checked(NamedTuple):
    """What was read of a partition, up to an offset."""

    end: int
    digest: bytes


class Checker:
    """Reads partitions from their beginning and compares them with the books."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self._checked: dict[Partition, _Checked] = {}
        self._offsets: dict[Partition, dict[int, list[int]]] = {}  # of each producer's records, by number

    def check(
        self, client: Client, partition: Partition, owed: dict[int, list[Acknowledged]], exactly: bool = False
    ) -> int:
        """Check a partition from which nothing is deleted; returns how many records it has.

        `exactly`: it must have no other records than the acknowledged ones.
        """
        before = self._checked.get(partition, _Checked(0, hashlib.sha256().digest()))
        offsets = self._offsets.setdefault(partition, {})
        digest = hashlib.sha256()
        unchanged = before.end == 0
        position = 0
        for data in self._everything(client, partition):
            for header, batch in record_batch.batches(data):
                if header.base_offset != position:
                    self._problem(partition, f"a gap from {position} to {header.base_offset}")
                if header.base_offset == before.end and not unchanged:
                    unchanged = True
                    if digest.digest() != before.digest:
                        self._problem(partition, f"what was checked up to {before.end} has changed")
                digest.update(batch)
                position = header.base_offset + header.last_offset_delta + 1
                if header.base_offset >= before.end:
                    self._take_up(partition, batch, offsets)
        if position == before.end and digest.digest() == before.digest:
            unchanged = True
        if not unchanged:
            self._problem(partition, f"it ends at {position}, and had been read up to {before.end}")
        self._checked[partition] = _Checked(position, digest.digest())
        for producer, rows in owed.items():
            self._compare(partition, producer, rows, offsets.get(producer, []), exactly)
        return position

    def _everything(self, client: Client, partition: Partition) -> Iterator[Any]:
        """All batches below the present high watermark, because the load goes on."""
        position, end = 0, -1
        while position < end or end < 0:
            row = client.fetch(*partition, position, FETCH_BYTES)
            if row.error_code:
                self._problem(partition, f"cannot be read at {position}: {ErrorCode(row.error_code).name}")
                return
            end = row.high_watermark if end < 0 else end
            if not row.records:
                if position < end:
                    self._problem(partition, f"there is nothing at {position}, below the high watermark {end}")
                return
            yield row.records
            position = offsets_of(row.records)[1]

    def _take_up(self, partition: Partition, batch: Any, offsets: dict[int, list[int]]) -> None:
        for record in record_batch.records(batch):
            producer, number = map(int, record.value.split()[:2])
            known = offsets.setdefault(producer, [])
            if number != len(known):
                what = "is there again" if number < len(known) else f"follows on {len(known) - 1}"
                self._problem(partition, f"producer {producer}: record {number} at offset {record.offset} {what}")
            known.append(record.offset)

    def _compare(
        self, partition: Partition, producer: int, rows: list[Acknowledged], there: list[int], exactly: bool
    ) -> None:
        total = 0
        for first, count, offset in rows:
            total = max(total, first + count)
            if offset is None:
                if len(there) < first + count:
                    self._problem(partition, f"producer {producer}: record {first} is not there")
                continue
            if there[first : first + count] != list(range(offset, offset + count)):
                found = there[first : first + count] or "nothing"
                self._problem(
                    partition, f"producer {producer}: {count} records from {first} are not at {offset} but {found}"
                )
                return
        if exactly and len(there) != total:
            self._problem(partition, f"producer {producer}: {len(there)} records for {total} acknowledged ones")

    def check_compacted(self, client: Client, partition: Partition, owed: dict[int, list[Acknowledged]]) -> int:
        """Check a compacted partition: offsets and numbers rise; each key has its last acknowledged record or a newer.

        Returns how many records it has.
        """
        last: dict[int, int] = {}
        latest: dict[tuple[int, int], int] = {}
        where: dict[tuple[int, int], int] = {}
        position = count = 0
        for data in self._everything(client, partition):
            for header, batch in record_batch.batches(data):
                if header.base_offset < position:
                    self._problem(partition, f"offset {header.base_offset} follows on {position - 1}")
                position = header.base_offset + header.last_offset_delta + 1
                for record in record_batch.records(batch):
                    producer, number = map(int, record.value.split()[:2])
                    if number <= last.get(producer, -1):
                        self._problem(partition, f"producer {producer}: record {number} after {last[producer]}")
                    last[producer] = number
                    latest[producer, number % KEYS] = number
                    where[producer, number] = record.offset
                    count += 1
        for producer, rows in owed.items():
            for first, length, offset in rows:
                for number in range(first, first + length):
                    if latest.get((producer, number % KEYS), -1) < number:
                        self._problem(partition, f"producer {producer}: record {number} and all later ones of its key")
                    if offset is not None and where.get((producer, number), offset + number - first) != (
                        offset + number - first
                    ):
                        self._problem(partition, f"producer {producer}: record {number} is not at its offset")
        return count

    def _problem(self, partition: Partition, text: str) -> None:
        self.books.problem(f"{partition[0]}-{partition[1]}: {text}")


class Rounds:
    """A broker, its clients, and the kills."""

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        self.options = options
        self.folder = folder
        self.say = say
        self.rng = random.Random(options.seed)
        self.books = Books()
        self.checker = Checker(self.books)
        self.port = free_port()
        self.place = OneBroker(self.port)
        self.process: Process | None = None
        names = [f"load-{number}" for number in range(options.topics)]
        self.partitions = [(name, index) for name in names for index in range(options.partitions)]
        self.compacted = [("compacted", index) for index in range(2)] if options.small else []
        self.transacted = [(TRANSACTIONS, index) for index in range(3)] if options.transactors else []
        self.transactions = Transactions()
        self.group = Group("group", self.partitions, self.books)
        self.other_group = Group("librdkafka-group", self.partitions, self.books)
        self.workers: list[Worker] = []
        self.committers: list[Committer] = []
        self.rows: list[Row] = []
        self._tree = folder / "data" / tree_deeds.TREE
        self._backup = folder / "tree.backup"
        self._deeds = random.Random(f"{options.seed} deeds")

    # -- the cast

    def _make_workers(self) -> None:
        options = self.options
        words = (self.place, self.books, options.seed)
        for number in range(options.producers):
            if options.librdkafka and number % 4 == 3:
                self.workers.append(LibrdkafkaProducer(number, self.partitions, *words))
            elif self.compacted and number % 4 == 2:
                self.workers.append(Producer(number, self.compacted, *words, keys=KEYS))
            else:
                self.workers.append(Producer(number, self.partitions, *words))
        self.committers = [Committer(number, self.partitions, *words) for number in range(options.committers)]
        self.workers += self.committers
        self.workers += [Member(number, self.group, *words) for number in range(options.members)]
        if self.compacted:
            self.workers.append(PolicyChanger("compacted", *words))
        if options.librdkafka:
            self.workers += [LibrdkafkaMember(number, self.other_group, *words) for number in range(2)]
        of_transactions = (self.transacted, self.place, self.books, self.transactions, options.seed)
        for number in range(options.transactors):
            if options.librdkafka and number % 4 == 3:
                self.workers.append(LibrdkafkaTransactor(number, *of_transactions))
            else:
                self.workers.append(Transactor(number, 0 if number % 2 else 2, *of_transactions))
        for _, index in self.transacted:
            self.workers.append(Copier(index, 2 if index % 2 else 0, *words))

    # -- the story

    def run(self) -> list[str]:
        """Run all rounds; returns what was wrong."""
        try:
            self._begin()
            for number in range(self.options.rounds):
                if not self.books.problems:
                    self._round(number)
            self._finish()
        finally:
            for worker in self.workers:
                worker.stopping = True
            if self.process is not None:
                self.process.end()
        log = self.process.log.read_text() if self.process is not None else ""
        if "Traceback" in log:
            self.books.problem(log[log.index("Traceback") - 300 :][:3000])
        return self.books.problems

    def _start(self) -> Process:
        settings = {**TRANSACTION_SETTINGS, **(SMALL_SETTINGS if self.options.small else {})}
        if self.options.small and self.rng.random() < 0.5:  # a recovery point from before the last compactions
            settings["log.flush.offset.checkpoint.interval.ms"] = "60000"
        self.process = Process(
            *(self.folder / "data", self.port),
            settings=settings,
            command=self.options.command,
            wait=False,
            popen=self.options.popen,
        )
        return self.process

    def _begin(self) -> None:
        self._answers(self._start(), lambda client: True)
        client = self.place.anywhere()
        for name in dict.fromkeys(name for name, _ in self.partitions):
            error = client.create_topic(name, self.options.partitions)
            assert not error, ErrorCode(error).name
        if self.compacted:
            assert client.create_topic("compacted", len(self.compacted), **COMPACTED_TOPIC) == 0
        for name in (TRANSACTIONS, COPIES) if self.transacted else ():
            assert client.create_topic(name, len(self.transacted)) == 0
        client.close()
        self._make_workers()
        for worker in self.workers:
            worker.start()
        self._everybody_goes_on()

    def _everybody_goes_on(self) -> float:
        """Wait until every producer, committer and group has got an answer; returns how long the groups took, in ms."""
        started = time.monotonic()
        before = {worker: worker.steps for worker in self.workers}
        kinds = (Member, LibrdkafkaMember)
        groups = [[worker for worker in self.workers if isinstance(worker, kind)] for kind in kinds]
        alone = [[worker] for worker in self.workers if not isinstance(worker, kinds)]
        waiting = [some for some in groups[:1] + groups[1:] + alone if some]
        group_ms = 0.0
        while waiting and not self.books.problems:
            waiting = [some for some in waiting if all(worker.steps == before[worker] for worker in some)]
            if groups[0] not in waiting and not group_ms:
                group_ms = (time.monotonic() - started) * 1000
            if time.monotonic() > started + GOES_ON_WITHIN_S:
                names = ", ".join(worker.name for some in waiting for worker in some)
                self.books.problem(f"does not go on within {GOES_ON_WITHIN_S} s: {names}")
                break
            time.sleep(0.005)
        return group_ms

    def _round(self, number: int) -> None:
        alive_s = self.rng.uniform(*self.options.alive_s)
        time.sleep(alive_s)
        records, commits = self.books.records, self.books.commits
        deeds = self._treat_the_tree()
        assert self.process is not None
        self.process.end(signal.SIGKILL)
        killed_starting = 0
        if self._backup.exists() and self._deeds.random() < 0.4:
            tree_deeds.put_back(self._backup, self._tree)
            deeds += "r"
        while self.rng.random() < 0.25:  # also while it recovers
            process = self._start()
            time.sleep(self.rng.uniform(0.02, 0.5))
            process.end(signal.SIGKILL)
            killed_starting += 1
        owed = self.books.snapshot()
        acknowledged = [(committer, dict(committer.book.acknowledged)) for committer in self.committers]
        process = self._start()
        metadata_ms = self._answers(process, self._knows_everything)
        processor_ms = process.processor_ms
        fetch_ms = self._answers(process, lambda client: self._serves(client, owed))
        offsets_ms = self._answers(process, lambda client: self._remembers(client, acknowledged))
        group_ms = (time.monotonic() - process.started) * 1000 + self._everybody_goes_on()
        checked = self._check(owed)
        row = Row(
            alive_s, records, commits, self.group.generation, killed_starting, deeds,
            processor_ms, metadata_ms, fetch_ms, offsets_ms, group_ms, checked,
        )  # fmt: skip
        self.rows.append(row)
        self.say(line_of(number + 1, row))

    def _treat_the_tree(self) -> str:
        """Make a backup of the tree, or shorten its file, or neither; a letter for each."""
        deeds = ""
        if not self.options.tree_deeds:
            return deeds
        if self._deeds.random() < 0.3:
            tree_deeds.vacuum(self._tree)
            deeds += "v"
        if self._deeds.random() < 0.4:
            tree_deeds.back_up(self._tree, self._backup)
            deeds += "b"
        if deeds:
            self._everybody_goes_on()
        return deeds

    def _finish(self) -> None:
        """Stop all clients; then the logs must hold exactly what was acknowledged."""
        for worker in self.workers:
            worker.stopping = True
        for worker in self.workers:
            worker.join(GOES_ON_WITHIN_S)
            if worker.is_alive():
                self.books.problem(f"{worker.name} does not end")
        if not self.books.problems:
            self._check(self.books.snapshot(), exactly=True)

    # -- what is looked at

    def _check(self, owed: dict[Partition, dict[int, list[Acknowledged]]], exactly: bool = False) -> int:
        count = 0
        for partition in self.partitions:
            with closing(self.place.leader(partition)) as client:
                count += self.checker.check(client, partition, owed.get(partition, {}), exactly)
        for partition in self.compacted:
            with closing(self.place.leader(partition)) as client:
                count += self.checker.check_compacted(client, partition, owed.get(partition, {}))
        for committer in self.committers:
            self._check_commits(committer)
        if self.transacted:
            checker = TransactionChecker(self.place, self.books, self.transactions, self.transacted)
            count += checker.check(at_rest=exactly)
        return count

    def _check_commits(self, committer: Committer) -> None:
        """Again, while the coordinator moves."""
        end = time.monotonic() + GOES_ON_WITHIN_S
        while True:
            try:
                with closing(committer.connect()) as client:
                    committer.book.check(client, committer.partitions)
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _answers(self, process: Process, is_right: Callable[[Client], bool]) -> float:
        """Milliseconds from exec to the first right answer."""
        while True:
            try:
                client = Client(self.port)
                try:
                    if is_right(client):
                        return (time.monotonic() - process.started) * 1000
                finally:
                    client.close()
            except OSError:
                pass
            assert process.process.poll() is None, process.log.read_text()[-3000:]
            assert time.monotonic() < process.started + GOES_ON_WITHIN_S, "the broker does not serve"
            time.sleep(0.01)

    def _knows_everything(self, client: Client) -> bool:
        response = client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
        led = {
            (topic.name, row.partition_index)
            for topic in response.topics
            for row in topic.partitions
            if row.leader_id >= 0 and not row.error_code
        }
        return led.issuperset(self.partitions)

    def _serves(self, client: Client, owed: dict[Partition, dict[int, list[Acknowledged]]]) -> bool:
        """Whether the last acknowledged record of some partition can be read."""
        for partition in self.partitions:
            ends = [rows[-1].offset for rows in owed.get(partition, {}).values()]
            row = client.fetch(*partition, max(ends, default=0), 1 << 16)
            if row.error_code or (ends and not row.records):
                return False
        return True

    def _remembers(self, client: Client, acknowledged: list[tuple[Committer, dict[Partition, int]]]) -> bool:
        for committer, offsets in acknowledged:
            for partition, offset in {self.partitions[0]: -1, **offsets}.items():
                error, committed = client.committed(committer.book.group, *partition)
                if error in COORDINATOR_MOVES:
                    return False
                if committed < offset:
                    self.books.problem(f"{committer.book.group}: {partition} is at {committed}, told was {offset}")
        return True


HEADINGS = (
    "round  alive   records  commits  generation  more kills  tree  "
    "processor  metadata   fetch  offsets  group on  checked"
)


def line_of(number: int, row: Row) -> str:
    """A line under HEADINGS; times in milliseconds. The tree: v for VACUUM, b for a backup, r for one put back."""
    did = f"{row.alive_s:4.1f}s {row.records:9} {row.commits:8}  {row.generation:10}  {row.killed_starting:10}"
    took = (
        f"{row.processor_ms:9.0f}  {row.metadata_ms:8.0f}{row.fetch_ms:8.0f} {row.offsets_ms:8.0f}  {row.group_ms:8.0f}"
    )
    return f"{number:5}  {did}  {row.deeds:4}  {took} {row.checked:8}"


def main() -> int:
    """Exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="when to kill, and what the clients do; random when not given")
    parser.add_argument("--small", action="store_true", help="several topics, tiny segments, compaction all the time")
    parser.add_argument("--command", help="another broker")
    parser.add_argument("--brokers", type=int, default=1, help="a cluster of so many")
    parser.add_argument("--zookeeper", action="store_true", help="a cluster on a ZooKeeper, which is started too")
    parser.add_argument("--troubles", default="", help="of a cluster: only those whose name begins so")
    said = parser.parse_args()
    seed = random.randrange(10**6) if said.seed is None else said.seed
    # Another broker may have no such file.
    options = Options(said.rounds, seed, command=said.command, tree_deeds=said.command is None)
    options = options._replace(popen=subprocess.Popen)  # the times of starts are told
    if said.small:
        options = options._replace(small=True, topics=8, partitions=2)
    folder = Path(tempfile.mkdtemp(prefix="kill-rounds-"))
    print(f"seed {seed}, data in {folder}")
    if said.brokers > 1:
        from cluster_rounds import CLUSTER_HEADINGS, TROUBLES, ClusterRounds

        troubles = {name: often for name, often in TROUBLES.items() if name.startswith(said.troubles)}
        print(CLUSTER_HEADINGS)
        rounds: Rounds = ClusterRounds(
            options,
            folder,
            lambda line: print(line, flush=True),
            said.brokers,
            troubles=troubles,
            on_zookeeper=said.zookeeper,
        )
    else:
        print(HEADINGS)
        rounds = Rounds(options, folder, lambda line: print(line, flush=True))
    try:
        problems = rounds.run()
    finally:  # also before the traceback of a round that went on after a problem
        for problem in rounds.books.problems[:20]:
            print(f"WRONG: {problem}")
    if problems:
        print(f"{len(problems)} problems; --seed {seed}, the data stays in {folder}")
        return 1
    for what, choose in (("median", statistics.median), ("worst", max)) if rounds.rows else ():
        took = [choose(values) for values in list(zip(*rounds.rows))[6:11]]
        text = "processor time {:.0f}, metadata {:.0f}, fetch {:.0f}, offsets {:.0f}, the group goes on {:.0f} ms"
        print(f"{what}: {text.format(*took)}")
    counts = rounds.transactions.counts
    begun = len(rounds.transactions.records)
    print(f"transactions: {begun} begun, {counts['committed']} committed, {counts['aborted']} aborted")
    print(f"{rounds.books.records} records and {rounds.books.commits} commits acknowledged, all right")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
