"""Many members of the consumer protocol (KIP-848) come, go and are killed, as is their coordinator; a referee looks.

    python tests/cluster/consumer_crowd.py --members 50 --minutes 5 --seed 1

Three brokers; librdkafka's consumers, some in each process, which read under load and commit. Each second or so a
member joins or leaves, a process of members is killed, or the broker that coordinates the group; then another process,
or the broker, is started. At the end there is calm, and then these hold, or the exit code is 1:

- every record that was acknowledged to the producer has been read;
- no partition was owned twice at a time, by what the clients acknowledge: from the call that assigns it until the call
  that revokes it is over. Who was thrown out hears of that later, as a loss: that is no fault. Nor can it be known of
  who was killed before it could hear: such pairs are counted;
- no committed offset went back: neither one that a member was told is committed, nor what the coordinator says.

It takes both processors of a small machine, so it is run by hand. `tests/cluster/test_consumer_protocol.py` is small.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # for ports.py
sys.path.append(str(Path(__file__).parents[1] / "crash"))

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from broker_process import AnsweredError
from confluent_kafka import (
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from cluster import Cluster

TOPIC = GROUP = "crowd"
COMMIT_S = 0.5
QUIET_S = 120.0  # how long the rest may take when nothing happens any more
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "10000",
}


# ---- a process of members ----


def tell(name: str, what: str, *more: Any) -> None:
    """Print an event, with the time of the clock that all processes share."""
    sys.stdout.write(json.dumps([time.monotonic(), name, what, *more]) + "\n")
    sys.stdout.flush()


class Member(threading.Thread):
    """A consumer that tells what it owns, reads and commits."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = bootstrap
        self._positions: dict[int, int] = {}  # not committed yet
        self.stopped = threading.Event()

    def run(self) -> None:
        """Read until it is stopped."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "client.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )

        def assigned(_: Any, partitions: list[TopicPartition]) -> None:
            tell(self.name, "assigned", [each.partition for each in partitions])

        def revoked(_: Any, partitions: list[TopicPartition]) -> None:
            self._commit(consumer)
            tell(self.name, "revoked", [each.partition for each in partitions])

        def lost(_: Any, partitions: list[TopicPartition]) -> None:
            self._positions = {}
            tell(self.name, "lost", [each.partition for each in partitions])

        consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked, on_lost=lost)
        next_commit = time.monotonic() + COMMIT_S
        while not self.stopped.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                self._take(message)
            if time.monotonic() > next_commit:
                self._commit(consumer)
                next_commit = time.monotonic() + COMMIT_S
        consumer.close()
        tell(self.name, "left")

    def _take(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._positions[partition] = offset + 1
        tell(self.name, "read", partition, offset)

    def _commit(self, consumer: Consumer) -> None:
        positions, self._positions = self._positions, {}
        if not positions:
            return
        began = time.monotonic()
        rows = [TopicPartition(TOPIC, partition, offset) for partition, offset in positions.items()]
        try:
            answer = consumer.commit(offsets=rows, asynchronous=False) or []
        except KafkaException as error:
            tell(self.name, "refused", str(error.args[0].name()))
            self._positions = positions | self._positions  # tried again, if it still owns them
            return
        done = {each.partition: each.offset for each in answer if each.error is None}
        tell(self.name, "committed", began, sorted(done.items()))


def serve_members(bootstrap: str) -> None:
    """Start and stop members, as the lines say that come in."""
    members: dict[str, Member] = {}
    for line in sys.stdin:
        what, name = line.split()
        if what == "start":
            members[name] = Member(bootstrap, name)
            members[name].start()
        else:
            members.pop(name).stopped.set()


# ---- the referee ----


class Owned(NamedTuple):
    """Who owned a partition from when to when, and how it ended: revoked, lost, left, killed; open: not yet."""

    name: str
    began: float
    ended: float
    how: str


class Referee:
    """All events of all members. They come from several processes, so they are judged at the end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.events: list[list[Any]] = []
        self.read: dict[int, set[int]] = {}
        self.seen: dict[int, int] = {}  # what the coordinator said was committed last
        self.faults: list[str] = []

    def hear(self, event: list[Any]) -> None:
        """One event."""
        with self.lock:
            self.events.append(event)
            if event[2] == "read":
                self.read.setdefault(event[3], set()).add(event[4])

    def see(self, partition: int, offset: int) -> None:
        """What the coordinator says is committed."""
        before = self.seen.get(partition, -1)
        if offset < before:
            self.faults.append(f"the committed offset of {partition} was {before} and is {offset}")
        self.seen[partition] = max(offset, before)

    def judge(self) -> Counter[str]:
        """Add what was wrong to `faults`; returns how often there was what."""
        self.events.sort(key=lambda event: event[0])
        told = Counter(event[2] for event in self.events)
        for partition, spans in self._spans().items():
            for one, other in pairwise(spans):
                if one.ended > other.began and one.name != other.name:
                    if one.how in ("lost", "killed"):
                        told[f"owned by another one before it was {one.how}"] += 1
                    else:
                        was = f"{partition} was {one.name}'s until {one.ended:.3f} ({one.how})"
                        self.faults.append(f"{was}, and {other.name}'s from {other.began:.3f}")
        self._judge_commits()
        return told

    def _spans(self) -> dict[int, list[Owned]]:
        spans: dict[int, list[Owned]] = {}
        begun: dict[tuple[str, int], float] = {}

        def end(name: str, partition: int, at: float, how: str) -> None:
            began = begun.pop((name, partition), None)
            if began is not None:
                spans.setdefault(partition, []).append(Owned(name, began, at, how))

        for at, name, what, *more in self.events:
            if what == "assigned":
                begun.update(((name, partition), at) for partition in more[0])
            elif what in ("revoked", "lost"):
                for partition in more[0]:
                    end(name, partition, at, what)
            elif what in ("left", "killed"):
                for each, partition in [pair for pair in begun if pair[0] == name]:
                    end(each, partition, at, what)
        for name, partition in list(begun):
            end(name, partition, float("inf"), "open")
        return {partition: sorted(each, key=lambda span: span.began) for partition, each in spans.items()}

    def _judge_commits(self) -> None:
        """A commit that began when a higher one had been acknowledged may not be acknowledged."""
        highest: dict[int, list[tuple[float, int]]] = {}
        for at, name, what, *more in self.events:
            if what != "committed":
                continue
            began, rows = more
            for partition, offset in rows:
                before = max((each for ended, each in highest.get(partition, ()) if ended < began), default=-1)
                if offset < before:
                    self.faults.append(f"{name} committed {offset} of {partition}, after {before} was committed")
                highest.setdefault(partition, []).append((at, offset))


# ---- the world ----


class Crowd:
    """The processes of members, and who is in them."""

    def __init__(self, bootstrap: str, referee: Referee, per_process: int) -> None:
        self._bootstrap = bootstrap
        self._referee = referee
        self._per_process = per_process
        self._made = 0
        self.processes: dict[subprocess.Popen[str], list[str]] = {}
        self._ever: dict[subprocess.Popen[str], list[str]] = {}  # also those that leave, or have left

    @property
    def size(self) -> int:
        """How many members there are."""
        return sum(map(len, self.processes.values()))

    def join(self) -> None:
        """One more."""
        process = next((each for each, names in self.processes.items() if len(names) < self._per_process), None)
        if process is None:
            words = [sys.executable, __file__, "--serve", self._bootstrap]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.processes[process], self._ever[process] = [], []
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        self._made += 1
        self._say(process, f"start m{self._made}")
        self.processes[process].append(f"m{self._made}")
        self._ever[process].append(f"m{self._made}")

    def leave(self, rng: random.Random) -> None:
        """One leaves."""
        process = rng.choice([each for each, names in self.processes.items() if names])
        name = self.processes[process].pop(rng.randrange(len(self.processes[process])))
        self._say(process, f"stop {name}")

    def kill(self, rng: random.Random) -> None:
        """A process of members is killed."""
        process = rng.choice(list(self.processes))
        process.kill()
        process.wait()
        at = time.monotonic()
        del self.processes[process]
        for name in self._ever.pop(process):
            self._referee.hear([at, name, "killed"])

    def end(self) -> None:
        """Kill all."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _say(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("]\n"):  # not the half of a line, of a process that was killed
                self._referee.hear(json.loads(line))


class Load(threading.Thread):
    """A producer. `written`: the offsets that it was told."""

    def __init__(self, bootstrap: str, partitions: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
        self._partitions = partitions
        self._pause_s = 1 / rate
        self.written: dict[int, set[int]] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Write to all partitions in turn."""
        number = 0
        while not self.stopped.is_set():
            self._producer.produce(TOPIC, b"x", partition=number % self._partitions, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
            time.sleep(self._pause_s)
        self._producer.flush(QUIET_S)

    def _delivered(self, error: Any, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.written.setdefault(partition, set()).add(offset)


def watch_commits(cluster: Cluster, referee: Referee, is_over: threading.Event) -> None:
    """Ask each second what is committed."""
    row = messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    request = messages.OffsetFetchRequest(groups=[row])
    while not is_over.wait(1):
        try:
            with cluster.client(cluster.coordinator(GROUP)) as client:
                (group,) = client.ask(ApiKey.OFFSET_FETCH, 8, request).groups
        except (OSError, AssertionError, AnsweredError, KeyError):
            continue  # the coordinator is away
        for topic in group.topics:
            for row in topic.partitions:
                referee.see(row.partition_index, row.committed_offset)


def happen(options: argparse.Namespace, cluster: Cluster, crowd: Crowd) -> Counter[str]:
    """Let members come and go until the time is over; returns what was done how often."""
    rng = random.Random(options.seed)
    done: Counter[str] = Counter()
    end = time.monotonic() + options.minutes * 60
    away: int | None = None
    back_at = next_kill = time.monotonic() + 15
    while time.monotonic() < end:
        if away is not None and time.monotonic() > back_at:
            cluster.start(away, wait=False)
            away, next_kill = None, time.monotonic() + 20
        elif away is None and time.monotonic() > next_kill:
            away = cluster.coordinator(GROUP)
            cluster.end_one(away, signal.SIGKILL)
            back_at = time.monotonic() + rng.uniform(2, 10)
            done["coordinator killed"] += 1
        luck = rng.random()
        if crowd.size < options.members * 0.7 or (luck < 0.55 and crowd.size < options.members):
            crowd.join()
            done["joined"] += 1
        elif luck < 0.9:
            crowd.leave(rng)
            done["left"] += 1
        else:
            crowd.kill(rng)
            done["process of members killed"] += 1
        time.sleep(rng.uniform(0.1, 1.2))
    if away is not None:
        cluster.start(away, wait=False)
    return done


def until(holds: Callable[[], bool]) -> bool:
    """Wait until something holds; False if it takes too long."""
    end = time.monotonic() + QUIET_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def run(options: argparse.Namespace, folder: Path) -> int:
    """One run; returns how many faults there were."""
    cluster = Cluster(folder, SETTINGS)
    referee, is_over = Referee(), threading.Event()
    cluster.start_all()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    crowd = Crowd(bootstrap, referee, options.per_process)
    try:
        cluster.create_topic(TOPIC, options.partitions)
        load = Load(bootstrap, options.partitions, options.rate)
        load.start()
        threading.Thread(target=watch_commits, args=(cluster, referee, is_over), daemon=True).start()
        for _ in range(options.members):
            crowd.join()
        done = happen(options, cluster, crowd)
        load.stopped.set()
        load.join()
        if not until(lambda: all(load.written[each] <= referee.read.get(each, set()) for each in load.written)):
            for each, offsets in load.written.items():
                if offsets - referee.read.get(each, set()):
                    referee.faults.append(f"not read of {each}: {sorted(offsets - referee.read.get(each, set()))[:9]}")
        time.sleep(3)
        is_over.set()
    finally:
        crowd.end()
        cluster.end()
    told = referee.judge()
    written = sum(map(len, load.written.values()))
    read = sum(map(len, referee.read.values()))
    print(f"seed {options.seed}: {written} records written, {read} read; committed in {len(referee.seen)} partitions")
    print("done:", dict(done), "\ntold:", dict(told))
    print(*referee.faults[:20], sep="\n")
    print(f"{len(referee.faults)} faults")
    return len(referee.faults)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--per-process", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=40)
    parser.add_argument("--rate", type=float, default=100, help="records a second")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_members(options.serve)
        return 0
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        return min(run(options, Path(folder)), 1)


if __name__ == "__main__":
    sys.exit(main())
