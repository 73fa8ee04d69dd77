"""Three brokers under load, and one trouble a round: kills, pauses, stops, of one broker or of all.

`kill_rounds.py --brokers 3` runs this with the clients and the books of the single broker. Each round has a trouble:
SIGKILL of the leader of a partition, of the controller, of a group's coordinator, of all brokers at once; SIGSTOP of
one, for less or more than its session; a controlled stop of one, of all, or of one after the other while all clients go
on (roll); a broker that is killed and loses its disk (lose), also after all others were killed one by one (fall).
Somebody shortens the file of the tree under all of them (vacuum), removes what SQLite keeps beside it, after which no
broker may start until all were stopped (remove), or puts a backup of it back that does not know whom all others have
outlived, which is then the first to start (restore). If some brokers are left, all clients must go on without the
broker that is gone. When it is back, all replicas must come into sync, and everything that was acknowledged must be
there, once, in order.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import tree_deeds
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, Process
from kill_load import AskAgainError, Committer, LibrdkafkaProducer, Member, OneBroker, Partition, Producer
from kill_rounds import COMPACTED_TOPIC, GOES_ON_WITHIN_S, OFFSETS_TOPIC, SMALL_SETTINGS, Options, Rounds
from ports import free_ports
from transaction_checks import COPIES, TRANSACTIONS
from transaction_checks import SETTINGS as TRANSACTION_SETTINGS
from transaction_load import Copier, LibrdkafkaTransactor, Transactor

ANSWER_WITHIN_S = 4.0  # a broker that is paused does not answer
READ_WITHIN_S = 1.0  # what does not wait for other brokers; a member must not lose its session (3 s) over it
IN_SYNC_WITHIN_S = 60.0
REFUSED_WITHIN_S = 60.0
SESSION_TIMEOUT_MS = 3_000

SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "replica.lag.time.max.ms": "3000",
    "coordination.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.id.generation.enable": "false",
}

# name -> how often it is chosen
TROUBLES = {
    "kill leader": 3,
    "kill controller": 3,
    "kill coordinator": 3,
    "kill all": 2,
    "kill two": 1,
    "pause leader": 2,
    "pause controller": 1,
    "pause coordinator": 1,
    "pause shortly": 1,
    "stop leader": 2,
    "stop controller": 1,
    "stop all": 1,
    "roll all": 1,
    "lose leader": 1,
    "fall all": 1,
    "vacuum all": 1,
    "remove all": 1,
    "restore all": 2,
}
ON_A_TREE_FILE = ("vacuum all", "remove all", "restore all")


class Reader:
    """Fetches each partition from its leader."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._clients: dict[Partition, Client] = {}

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> Any:
        """The answer of the leader. OSError when it has gone or is not the leader any more."""
        key = (topic, partition)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._cluster.leader(key, READ_WITHIN_S)
        try:
            row = client.fetch(topic, partition, offset, max_bytes)
        except OSError:
            self._clients.pop(key).close()
            raise
        if row.error_code:
            self._clients.pop(key).close()
        return row


class Cluster(OneBroker):
    """Where clients find leaders and coordinators: any broker tells them."""

    def __init__(self, ports: list[int], seed: int) -> None:
        super().__init__(ports[0])
        self.ports = ports
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._rng = random.Random(f"{seed} cluster")
        self._silent: dict[int, float] = {}  # port -> until when another broker is asked first

    def anywhere(self, answer_within_s: float = ANSWER_WITHIN_S) -> Client:
        """A connection to one of the brokers that answer."""
        ports = self._rng.sample(self.ports, len(self.ports))
        for port in sorted(ports, key=lambda port: self._silent.get(port, 0.0) > time.monotonic()):
            try:
                return Client(port, answer_within_s)
            except OSError:
                continue
        raise ConnectionRefusedError("no broker")

    def _ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """What one of the brokers says. OSError."""
        with closing(self.anywhere(READ_WITHIN_S)) as client:
            try:
                return client.ask(api, version, request)
            except OSError:
                self._silent[client.port] = time.monotonic() + READ_WITHIN_S * 5
                raise

    def metadata(self) -> Any:
        """What one of the brokers says of the cluster. OSError."""
        return self._ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))

    def metadata_of_each(self) -> list[Any]:
        """What each broker says of the cluster. OSError."""
        answers = []
        for port in self.ports:
            with closing(Client(port, READ_WITHIN_S)) as client:
                answers.append(client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None)))
        return answers

    def leader(self, partition: Partition, answer_within_s: float = ANSWER_WITHIN_S) -> Client:
        """A connection to the leader, as one of the brokers knows it."""
        answer = self.metadata()
        ports = {broker.node_id: broker.port for broker in answer.brokers}
        for topic in answer.topics:
            for row in topic.partitions:
                if (topic.name, row.partition_index) == partition and row.leader_id in ports:
                    return Client(ports[row.leader_id], answer_within_s)
        raise AskAgainError(f"nobody leads {partition}")

    def coordinator(self, key: str, key_type: int = 0) -> Client:
        """A connection to the coordinator, as one of the brokers knows it."""
        request = messages.FindCoordinatorRequest(key=key, key_type=key_type)
        found = self._ask(ApiKey.FIND_COORDINATOR, 3, request)
        if found.error_code:
            raise AskAgainError(f"{key} has no coordinator")
        return Client(found.port, ANSWER_WITHIN_S)

    def reader(self, client: Client) -> Any:
        """Reads each partition from its leader."""
        return Reader(self)


class ClusterRow(NamedTuple):
    """What one round took, in milliseconds."""

    trouble: str
    broker: str
    records: int
    commits: int
    produce_ms: float
    commit_ms: float
    group_ms: float
    in_sync_ms: float
    checked: int


CLUSTER_HEADINGS = "round  trouble            broker   records  commits   produce   commit    group  in sync  checked"


def line_of(number: int, row: ClusterRow) -> str:
    """A line under CLUSTER_HEADINGS."""
    times = f"{row.produce_ms:9.0f}{row.commit_ms:9.0f}{row.group_ms:9.0f}{row.in_sync_ms:9.0f}"
    return f"{number:5}  {row.trouble:18} {row.broker:6} {row.records:9}{row.commits:9} {times}{row.checked:9}"


class ClusterRounds(Rounds):
    """Brokers on one coordination file (or one ZooKeeper), their clients, and the troubles."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        say: Callable[[str], None],
        brokers: int = 3,
        settings: dict[str, str] | None = None,
        troubles: dict[str, int] | None = None,
        on_zookeeper: bool = False,
    ) -> None:
        super().__init__(options, folder, say)
        self.ports = free_ports(brokers)
        self.cluster = self.place = Cluster(self.ports, options.seed)
        self.processes: dict[int, Process] = {}
        self.cluster_rows: list[ClusterRow] = []
        tree = {"coordination.path": str(folder / "coordination.sqlite")}
        self.zookeeper: Any = None
        if on_zookeeper:
            sys.path.insert(0, str(Path(__file__).parent.parent / "zookeeper"))
            from zookeeper_server import ZooKeeperServer

            self.zookeeper = ZooKeeperServer(folder / "zookeeper")
            session = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
            tree = {"zookeeper.connect": f"{self.zookeeper.address}/barnabas", **session}
        self._settings = {**SETTINGS, **TRANSACTION_SETTINGS, **tree, **(settings or {})}
        self._tree = folder / tree_deeds.TREE
        self._troubles = dict(TROUBLES if troubles is None else troubles)
        if on_zookeeper or options.command is not None:
            self._troubles = {name: often for name, often in self._troubles.items() if name not in ON_A_TREE_FILE}
        self._lost: set[int] = set()  # brokers whose disk is lost, until they are started

    # -- the brokers

    def _start_broker(self, node_id: int) -> None:
        settings = {"node.id": str(node_id), **self._settings, **(SMALL_SETTINGS if self.options.small else {})}
        data = self.folder / str(node_id)
        words = ["--give-up", str(data)] if node_id in self._lost else []
        self._lost.discard(node_id)
        command = None if self.options.command is None else self.options.command.replace("{id}", str(node_id))
        self.processes[node_id] = Process(
            *(data, self.ports[node_id]),
            settings=settings,
            words=words,
            command=command,
            wait=False,
            log_level="info",
            popen=self.options.popen,
        )

    def _start_is_refused(self, node_id: int) -> None:
        self._start_broker(node_id)
        broker = self.processes[node_id]
        try:
            broker.process.wait(REFUSED_WITHIN_S)
        except subprocess.TimeoutExpired:
            broker.end(signal.SIGKILL)
        if broker.process.returncode != 1:
            self.books.problem(f"broker {node_id} was to refuse the tree, and ended with {broker.process.returncode}")

    def _begin(self) -> None:
        if self.zookeeper is not None:
            self.zookeeper.start()
        for node_id in range(len(self.ports)):
            self._start_broker(node_id)
        self._wait_until_in_sync(lambda answer: len(answer.brokers) == len(self.ports))
        for name in dict.fromkeys(name for name, _ in self.partitions):
            self._create_topic(name, self.options.partitions)
        if self.compacted:
            self._create_topic("compacted", len(self.compacted), **COMPACTED_TOPIC)
        for name in (TRANSACTIONS, COPIES) if self.transacted else ():
            self._create_topic(name, len(self.transacted))
        self._wait_until_in_sync()
        for port in self.ports:
            self._wait_until_it_knows_the_topics(port)
        self._make_workers()
        for worker in self.workers:
            worker.start()
        self._all_go_on()

    def _create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Again while the controller lacks a broker: on a busy machine one may lose its session at its start."""
        end = time.monotonic() + IN_SYNC_WITHIN_S
        while True:
            with closing(Client(self._port_of(self.cluster.metadata().controller_id))) as controller:
                error = controller.create_topic(name, partitions, -1, **configs)
            if error != ErrorCode.INVALID_REPLICATION_FACTOR or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert not error, ErrorCode(error).name

    def _wait_until_it_knows_the_topics(self, port: int) -> None:
        """A broker that has not heard of a topic refuses commits of its offsets, as Kafka does."""
        wanted = {name for name, _ in (*self.partitions, *self.compacted, *self.transacted)}
        end = time.monotonic() + IN_SYNC_WITHIN_S
        with closing(Client(port)) as client:
            while time.monotonic() < end:
                answer = client.ask(ApiKey.METADATA, 9, messages.MetadataRequest(topics=None))
                if wanted <= {topic.name for topic in answer.topics}:
                    return
                time.sleep(0.02)
        raise AssertionError(f"the broker at port {port} does not hear of the topics")

    def _make_workers(self) -> None:
        """As for one broker, but each producer of ours has one partition, because it talks to one leader."""
        super()._make_workers()
        for worker in self.workers:
            if isinstance(worker, Producer):
                worker.partitions = [worker.partitions[worker.number % len(worker.partitions)]]

    def _port_of(self, node_id: int) -> int:
        return self.ports[node_id]

    def run(self) -> list[str]:
        """Run all rounds; returns what was wrong."""
        try:
            super().run()
        finally:
            if self.zookeeper is not None:
                self.zookeeper.stop()
            for process in self.processes.values():
                if process.process.poll() is None:
                    os.kill(process.process.pid, signal.SIGCONT)
                    process.end(signal.SIGKILL)
        for node_id, process in self.processes.items():
            log = process.log.read_text()
            if "Traceback" in log:
                self.books.problem(f"broker {node_id}: {log[max(0, log.index('Traceback') - 300) :][:3000]}")
        return self.books.problems

    # -- one round

    def _round(self, number: int) -> None:
        time.sleep(self.rng.uniform(*self.options.alive_s))
        trouble = self.rng.choices(list(self._troubles), list(self._troubles.values()))[0]
        chosen = self._chosen(trouble)
        deed = trouble.split()[0]
        records, commits = self.books.records, self.books.commits
        if deed == "vacuum":
            tree_deeds.vacuum(self._tree)
        elif deed == "remove":
            tree_deeds.remove_what_is_beside(self._tree)
        elif deed == "restore":
            tree_deeds.back_up(self._tree, self._backup)
        for node_id in chosen:
            self._do(deed, node_id)
            if deed == "restore" and node_id == chosen[0]:
                self._all_go_on()  # so there are records that this broker does not have
            if deed == "remove" and node_id == chosen[0]:
                self._all_go_on()
                self._start_is_refused(node_id)
            if deed == "roll":
                self._all_go_on()
                self._start_broker(node_id)
                self._wait_until_in_sync()
            elif deed in ("fall", "restore"):
                time.sleep(0.5)  # the others hear of it, and the last one is in sync alone
        if deed == "restore":
            tree_deeds.put_back(self._backup, self._tree)
        if deed == "fall":
            self._lose_disk(chosen[-1])
        left = len(self.ports) if deed in ("roll", "vacuum") else len(self.ports) - len(chosen)
        shortly = trouble.endswith("shortly")
        gaps = {}
        if left >= 2 and not shortly:
            gaps = self._all_go_on()
        if deed == "pause":
            time.sleep(self.rng.uniform(0.2, 1.5) if shortly else self.rng.uniform(1, 3))
        owed = self.books.snapshot()
        for node_id in chosen:
            if deed == "pause":
                os.kill(self.processes[node_id].process.pid, signal.SIGCONT)
            elif deed not in ("roll", "vacuum"):
                self._start_broker(node_id)
                if deed == "restore":
                    time.sleep(self.rng.uniform(0, 2))
        back = time.monotonic()
        if left < 2 or shortly:
            gaps = self._all_go_on()
        in_sync_ms = self._wait_until_in_sync(since=back)
        self._all_go_on()
        row = ClusterRow(
            trouble, "".join(map(str, chosen)), records, commits,
            gaps.get("produce", 0.0), gaps.get("commit", 0.0), gaps.get("group", 0.0), in_sync_ms, self._check(owed),
        )  # fmt: skip
        self.cluster_rows.append(row)
        self.say(line_of(number + 1, row))

    def _chosen(self, trouble: str) -> list[int]:
        whom = trouble.split()[1]
        everybody = list(range(len(self.ports)))
        if whom == "all":
            self.rng.shuffle(everybody)
            return everybody
        if whom == "two":
            return sorted(self.rng.sample(everybody, 2))
        if whom == "shortly":
            return [self.rng.choice(everybody)]
        answer = self.cluster.metadata()
        if whom == "controller":
            return [answer.controller_id]
        topics = {topic.name: topic for topic in answer.topics}
        topic = topics[OFFSETS_TOPIC if whom == "coordinator" else self.partitions[0][0]]
        return [self.rng.choice(topic.partitions).leader_id]

    def _do(self, deed: str, node_id: int) -> None:
        process = self.processes[node_id]
        if deed == "vacuum":
            return
        if deed == "pause":
            os.kill(process.process.pid, signal.SIGSTOP)
        else:
            process.end(signal.SIGKILL if deed in ("kill", "lose", "fall", "restore") else signal.SIGTERM)
            if deed in ("stop", "roll") and process.process.returncode:
                self.books.problem(f"broker {node_id} ended with {process.process.returncode}")
        if deed == "lose":
            self._lose_disk(node_id)

    def _lose_disk(self, node_id: int) -> None:
        shutil.rmtree(self.folder / str(node_id))
        self._lost.add(node_id)

    def _all_go_on(self) -> dict[str, float]:
        """Wait until every client has got an answer; how long the slowest of each kind took, in milliseconds."""
        started = time.monotonic()
        before = {worker: worker.steps for worker in self.workers}
        kinds = {
            "produce": (Producer, LibrdkafkaProducer),
            "commit": (Committer,),
            "transactions": (Transactor, LibrdkafkaTransactor, Copier),
            "group": (Member,),
        }
        alone = tuple(each for kind, classes in kinds.items() if kind != "group" for each in classes)
        waiting: list[list[Any]] = [[worker] for worker in self.workers if isinstance(worker, alone)]
        waiting += [[worker for worker in self.workers if isinstance(worker, Member)]]
        took: dict[str, float] = {}
        while waiting and not self.books.problems:
            now = time.monotonic()
            for some in [some for some in waiting if any(worker.steps > before[worker] for worker in some)]:
                waiting.remove(some)
                for kind, classes in kinds.items():
                    if isinstance(some[0], classes):
                        took[kind] = (now - started) * 1000
            if now > started + GOES_ON_WITHIN_S:
                names = ", ".join(worker.name for some in waiting for worker in some)
                self.books.problem(f"does not go on within {GOES_ON_WITHIN_S} s: {names}")
            time.sleep(0.005)
        return took

    def _wait_until_in_sync(
        self, also: Callable[[Any], bool] = lambda answer: True, since: float | None = None
    ) -> float:
        """Wait until every replica of every partition is in sync, as each broker knows; milliseconds since then.

        A broker that was paused knows the past, so all must say the same of leaders.
        """
        started = time.monotonic() if since is None else since
        lagging: list[str] = ["nothing is known"]
        while True:
            try:
                answers = self.cluster.metadata_of_each()
                answer = answers[0]
                rows = [(topic.name, row) for each in answers for topic in each.topics for row in topic.partitions]
                leaders = {(name, row.partition_index, row.leader_id) for name, row in rows}
                partitions = {(name, index) for name, index, _ in leaders}
                is_agreed = len(leaders) == len(partitions) == len(rows) / len(answers)
                lagging = [
                    f"{name}-{row.partition_index}: leader {row.leader_id}, ISR {row.isr_nodes} of {row.replica_nodes}"
                    for name, row in rows
                    if row.leader_id < 0 or sorted(row.isr_nodes) != sorted(row.replica_nodes)
                ]
                are_there = all(len(each.brokers) == len(self.ports) for each in answers)
                if are_there and is_agreed and not lagging and also(answer):
                    return (time.monotonic() - started) * 1000
            except OSError:
                pass
            for node_id, process in self.processes.items():
                if process.process.poll() is not None:
                    self.books.problem(f"broker {node_id} has ended: {process.log.read_text()[-3000:]}")
            if time.monotonic() > started + IN_SYNC_WITHIN_S:
                self.books.problem(f"not in sync within {IN_SYNC_WITHIN_S} s: {lagging[:10]}")
            if self.books.problems:
                return 0.0
            time.sleep(0.05)
