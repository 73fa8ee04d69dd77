"""Many members of one group (KIP-848) come, go and are killed, as is their coordinator; a referee looks.

    python tests/cluster/consumer_crowd.py --members 50 --minutes 5 --seed 1
    python tests/cluster/consumer_crowd.py --members 20 --clients librdkafka,java,franz-go --migrate

Three brokers, in a rack each; consumers, some in each process, which read under load and commit: those of librdkafka,
of Java 4.3.1 (its jars as for tests/clients/kraft.py) and of franz-go. A third of them subscribe by an expression, a
third are static. Each second or so a member joins or leaves, a static one is restarted in another rack, a process of
members is killed, or the broker that coordinates the group; then another process, or the broker, is started. In the
middle a topic is made that the expression matches. With `--migrate` members are classic at first, then of the consumer
protocol, and classic again. At the end there is calm, and then these hold, or the exit code is 1:

- every record that was acknowledged to the producer has been read;
- no partition was owned twice at a time, by what the clients acknowledge: from the call that assigns it until the call
  that revokes it is over. Who was thrown out hears of that later, as a loss: that is no fault. Nor can it be known of
  who was killed before it could hear: such pairs are counted;
- no committed offset went back: neither one that a member was told is committed, nor what the coordinator says, nor
  where a member begins to read;
- with `--migrate` the group is a classic one.

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for ports.py
sys.path.append(str(Path(__file__).parents[1] / "crash"))
sys.path.append(str(Path(__file__).parents[1] / "clients"))

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from broker_process import AnsweredError
from confluent_kafka import Message, Producer
from crowd_referee import Referee
from kraft import class_path

from cluster import Cluster

HERE = Path(__file__).parent
GROUP = "crowd"
TOPICS = ("crowd-0", "crowd-1")
LATE_TOPIC = "crowd-2"
EXPRESSION = "^crowd-.*"
QUIET_S = 120.0  # how long the rest may take when nothing happens any more
RACKS = "abc"
KINDS = ("librdkafka", "java", "franz-go")
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.migration.policy": "bidirectional",
}


def build(kinds: list[str], folder: Path) -> dict[str, list[str]]:
    """The command of each kind of members."""
    commands = {"librdkafka": [sys.executable, str(HERE / "crowd_members.py")]}
    if "java" in kinds:
        jars = class_path()
        if jars is None:
            raise SystemExit("the jars of Kafka are missing: KAFKA_JARS")
        subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(HERE / "crowd" / "Members.java")], check=True)
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        commands["java"] = ["java", *options, "-cp", f"{jars}:{folder}", "Members"]
    if "franz-go" in kinds:
        program = str(folder / "crowd")
        subprocess.run(["go", "build", "-o", program, "./crowd"], cwd=HERE.parent / "clients" / "go", check=True)
        commands["franz-go"] = [program]
    return {kind: commands[kind] for kind in kinds}


@dataclass
class Member:
    """One member, in one of the processes."""

    name: str
    process: subprocess.Popen[str]
    protocol: str
    instance: str


class Crowd:
    """The processes of members, and who is in them."""

    def __init__(self, bootstrap: str, referee: Referee, options: argparse.Namespace, folder: Path) -> None:
        self._commands = build(options.clients, folder)
        self._bootstrap, self._referee, self._per_process = bootstrap, referee, options.per_process
        self._log = folder / "members.log"
        self._made = self._instances = 0
        self.members: dict[str, Member] = {}
        self._ever: dict[subprocess.Popen[str], tuple[str, list[str]]] = {}  # also those that leave, or have left
        self._restarting: dict[str, str] = {}  # member that leaves, instance id
        self._subscriptions: dict[str, str] = {}  # of an instance id: the broker keeps what its next member leaves out

    def join(self, rng: random.Random, protocol: str, instance: str | None = None) -> None:
        """One more."""
        kind = rng.choice(list(self._commands))
        process = self._process(kind)
        self._made += 1
        name = f"m{self._made}"
        if instance is None:
            self._instances += 1
            instance = f"i{self._instances}" if rng.random() < 1 / 3 else "-"
        subscription = EXPRESSION if rng.random() < 1 / 3 or len(self.members) < 2 else ",".join(TOPICS)
        if instance != "-":
            subscription = self._subscriptions.setdefault(instance, subscription)
        self._say(process, f"start {name} {protocol} {subscription} {instance} {rng.choice(RACKS)}")
        self.members[name] = Member(name, process, protocol, instance)
        self._ever[process][1].append(name)

    def leave(self, rng: random.Random, protocol: str) -> bool:
        """One leaves, rather of the other protocol; returns whether it is a static one, which comes again."""
        others = [member for member in self.members.values() if member.protocol != protocol]
        member = rng.choice(others or list(self.members.values()))
        self._say(member.process, f"stop {member.name}")
        del self.members[member.name]
        if member.instance != "-":
            self._restarting[member.name] = member.instance
        return member.instance != "-"

    def bring_back(self, rng: random.Random, protocol: str) -> None:
        """Start the static members again that have left."""
        for name in [name for name in self._restarting if name in self._referee.gone]:
            self.join(rng, protocol, self._restarting.pop(name))

    def kill(self, rng: random.Random) -> str:
        """A process of members is killed; returns its kind."""
        process = rng.choice(list(self._ever))
        process.kill()
        process.wait()
        at = time.time()
        kind, names = self._ever.pop(process)
        for name in names:
            self.members.pop(name, None)
            self._restarting.pop(name, None)
            self._referee.hear([at, name, "killed"])
        return kind

    def end(self) -> None:
        """Kill all."""
        for process in self._ever:
            process.kill()
            process.wait()

    def _process(self, kind: str) -> subprocess.Popen[str]:
        sizes = Counter(member.process for member in self.members.values())
        for process, (of_kind, _) in self._ever.items():
            if of_kind == kind and sizes[process] < self._per_process:
                return process
        with self._log.open("a") as log:
            words = [*self._commands[kind], self._bootstrap, GROUP]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._ever[process] = kind, []
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

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
        self.topics = TOPICS
        self.written: dict[str, set[int]] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Write to all partitions in turn."""
        number = 0
        while not self.stopped.is_set():
            index, topic = number // len(self.topics) % self._partitions, self.topics[number % len(self.topics)]
            self._producer.produce(topic, b"x", partition=index, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
            time.sleep(self._pause_s)
        self._producer.flush(QUIET_S)

    def _delivered(self, error: Any, message: Message) -> None:
        if error is None and (offset := message.offset()) is not None:
            self.written.setdefault(f"{message.topic()}-{message.partition()}", set()).add(offset)


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
                referee.see(f"{topic.name}-{row.partition_index}", row.committed_offset)


def group_type(cluster: Cluster) -> str:
    """Classic or consumer, as the coordinator says."""
    with cluster.client(cluster.coordinator(GROUP)) as client:
        groups = client.ask(ApiKey.LIST_GROUPS, 5, messages.ListGroupsRequest()).groups
    return next((str(group.group_type) for group in groups if group.group_id == GROUP), "")


class Story:
    """What happens until the time is over."""

    def __init__(self, options: argparse.Namespace, cluster: Cluster, crowd: Crowd, load: Load) -> None:
        self._options, self._cluster, self._crowd, self._load = options, cluster, crowd, load
        self.rng = random.Random(options.seed)
        self.done: Counter[str] = Counter()
        self._away: int | None = None
        self._back_at = self._next_kill = time.monotonic() + 15

    def tell(self) -> None:
        """All of it."""
        for _ in range(self._options.members):
            self._crowd.join(self.rng, self._protocol(0))
        start, length = time.monotonic(), self._options.minutes * 60
        while (part := (time.monotonic() - start) / length) < 1:
            self._brokers()
            self._members(self._protocol(part))
            if part > 0.5 and LATE_TOPIC not in self._load.topics and self._away is None:
                with suppress(AssertionError, AnsweredError, OSError):  # not all brokers are back yet
                    self._cluster.create_topic(LATE_TOPIC, self._options.partitions)
                    self._load.topics += (LATE_TOPIC,)
            time.sleep(self.rng.uniform(0.1, 1.2))
        if self._away is not None:
            self._cluster.start(self._away, wait=False)
        last = self._protocol(1)
        while self._options.migrate and any(each.protocol != last for each in self._crowd.members.values()):
            if not self._crowd.leave(self.rng, last):
                self._crowd.join(self.rng, last)
        self._crowd.join(self.rng, last, "-")

    def _protocol(self, part: float) -> str:
        """That of who joins now."""
        return "classic" if self._options.migrate and not 0.25 < part < 0.65 else "consumer"

    def _brokers(self) -> None:
        if self._away is not None and time.monotonic() > self._back_at:
            self._cluster.start(self._away, wait=False)
            self._away, self._next_kill = None, time.monotonic() + 20
        elif self._away is None and time.monotonic() > self._next_kill:
            self._away = self._cluster.coordinator(GROUP)
            self._cluster.end_one(self._away, signal.SIGKILL)
            self._back_at = time.monotonic() + self.rng.uniform(2, 10)
            self.done["coordinator killed"] += 1

    def _members(self, protocol: str) -> None:
        size, wanted, luck = len(self._crowd.members), self._options.members, self.rng.random()
        self._crowd.bring_back(self.rng, protocol)
        if size < wanted * 0.7 or (luck < 0.55 and size < wanted):
            self._crowd.join(self.rng, protocol)
            self.done[f"joined as {protocol}"] += 1
        elif luck < 0.9:
            self.done["static one restarted" if self._crowd.leave(self.rng, protocol) else "left"] += 1
        else:
            self.done[f"process of {self._crowd.kill(self.rng)} killed"] += 1


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
    cluster.own = {node_id: {"broker.rack": rack} for node_id, rack in enumerate(RACKS)}
    referee, is_over = Referee(), threading.Event()
    cluster.start_all()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    crowd = Crowd(bootstrap, referee, options, folder)
    try:
        for topic in TOPICS:
            cluster.create_topic(topic, options.partitions)
        load = Load(bootstrap, options.partitions, options.rate)
        load.start()
        threading.Thread(target=watch_commits, args=(cluster, referee, is_over), daemon=True).start()
        story = Story(options, cluster, crowd, load)
        story.tell()
        load.stopped.set()
        load.join()

        def is_read() -> bool:
            crowd.bring_back(story.rng, "classic" if options.migrate else "consumer")
            return all(load.written[each] <= referee.read.get(each, set()) for each in load.written)

        if not until(is_read):
            for each, offsets in load.written.items():
                if missing := sorted(offsets - referee.read.get(each, set())):
                    referee.faults.append(f"not read of {each}: {missing[:9]}")
        if options.migrate and not until(lambda: group_type(cluster) == "classic"):
            referee.faults.append(f"the group is of the type {group_type(cluster)}")
        time.sleep(3)
        is_over.set()
    finally:
        crowd.end()
        cluster.end()
    told = referee.judge()
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in referee.events))
    written = sum(map(len, load.written.values()))
    read = sum(map(len, referee.read.values()))
    print(f"seed {options.seed}: {written} records written, {read} read; committed in {len(referee.seen)} partitions")
    print("done:", dict(story.done), "\ntold:", dict(told))
    print(*referee.faults[:20], sep="\n")
    print(f"{len(referee.faults)} faults")
    return len(referee.faults)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--clients", type=lambda text: text.split(","), default=["librdkafka"], help=",".join(KINDS))
    parser.add_argument("--migrate", action="store_true", help="from the classic protocol to the other and back")
    parser.add_argument("--per-process", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=20, help="of each of three topics")
    parser.add_argument("--rate", type=float, default=100, help="records a second")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the brokers' data and all logs")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
        return min(run(options, options.keep), 1)
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        return min(run(options, Path(folder)), 1)


if __name__ == "__main__":
    sys.exit(main())
