"""`Barnabas`: one broker, or a cluster, for a test; and the faults that it commands."""

import asyncio
import atexit
import os
import selectors
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from barnabas.protocol.errors import ErrorCode
from barnabas.runtime import directory_copies, temporary
from barnabas.runtime.counted import counted
from barnabas.runtime.watcher import Watcher
from barnabas.testing import control
from barnabas.testing.clock import Clock
from barnabas.testing.fault import Fault
from barnabas.testing.group import Group
from barnabas.testing.kafka_python import kafka_python
from barnabas.testing.process import BrokerProcess, Settings, StartError, texts_of
from barnabas.testing.replay import Difference, SessionError, replay
from barnabas.testing.snapshot import TREE_FILE, Snapshot, check_type
from barnabas.testing.topic import Topic, newest_partitions
from barnabas.testing.wire import Wire

SNAPSHOT_PREFIX = "snapshot-"
REQUESTS_PER_ANSWER = 1_000
REQUESTS = "/v1/control/requests"
ABORTED_EVERY_S = 0.05
NEVER = 2**53  # a number that no request has


class Barnabas:
    """Brokers of a test, on free ports of 127.0.0.1, with the profile `ci`: nothing is left when they end.

    `config` are settings of Kafka's server.properties. Use it in a `with` block (or `async with`), or call `start` and
    `stop`. The brokers end with this process, however that ends.
    """

    def __init__(self, brokers: int = 1, config: Settings | None = None, *, snapshot: Snapshot | None = None) -> None:
        if control.whole(brokers, "brokers") < 1:
            raise ValueError(f"brokers is at least 1, not {brokers}")
        if snapshot is not None:
            check_type(snapshot)
        self.folder = Path(temporary.path_for(uuid.uuid4().hex))
        self._config = settings = texts_of(config)
        if brokers > 1:
            from barnabas.config.profiles import of_cluster  # late: one broker needs no table of settings

            tree = {} if "zookeeper.connect" in settings else {"coordination.path": str(self.folder / TREE_FILE)}
            settings = of_cluster(brokers) | tree | settings
        self.processes = {number: BrokerProcess(self.folder, number, settings) for number in range(brokers)}
        self.clock = Clock(self)
        self._begins_with = snapshot
        self._snapshots = 0
        self._lock: int | None = None
        self._starter: int | None = None  # the process that has started them
        self._watcher: Watcher | None = None
        self.wire = Wire(brokers, self._addresses, self._count_partitions)
        self._http = control.Http()
        self._may_be_behind: set[int] = set()  # those that stood still or were cut off: asked only if all have been

    # ------------------------------------------------------------------ its life

    def start(self) -> Self:
        """Start all brokers, and return when they serve. StartError says why they do not; RuntimeError: they run.

        CommandError: the snapshot that they are to begin with is not whole, or of another number of brokers.
        """
        self._start(None)
        return self

    def start_with_snapshot(self) -> Snapshot:
        """Start all brokers, and note what they begin with. For one, it takes less time than `start` and `snapshot`."""
        if self._is_single and not self._config.keys() & {"coordination.path", "zookeeper.connect"}:
            folder = self._new_folder()
            self._start(folder)
            next_requests = {node_id: process.next_request for node_id, process in self.processes.items()}
            return Snapshot(folder, self.clock.ahead_ms, next_requests)
        self._start(None)
        try:
            return self.snapshot()
        except BaseException:
            self.stop()
            raise

    def _start(self, snapshot: Path | None, make_data: Callable[[], None] | None = None) -> None:
        if self._lock is not None:
            raise RuntimeError("these brokers are started already: stop them first, or make another Barnabas")
        if make_data is None and self._begins_with is not None:
            self._begins_with.check(None, len(self.processes))
        watcher = Watcher(str(self.folder))  # first: whenever this process is killed, the folder goes
        try:
            temporary.make(str(self.folder))
        except OSError as error:
            watcher.end()
            why = f"{self.folder} cannot be made: {error.strerror}. Set TMPDIR to a folder that can be written."
            raise StartError(why) from None
        self._lock = temporary.lock(str(self.folder))
        self._starter = os.getpid()
        self._watcher = watcher
        atexit.register(self.stop)
        try:
            if make_data is None and self._begins_with is not None:
                make_data = partial(self._begins_with.copy_to, self.folder)
                self.clock.ahead_ms = self._begins_with.clock_ahead_ms
            tidy = partial(temporary.remove_abandoned, str(self.folder))
            self._begin(self.processes.values(), tidy, snapshot, make_data)
        except BaseException:
            self.stop()
            raise

    def _begin(
        self,
        processes: Iterable[BrokerProcess],
        meanwhile: Callable[[], None] = lambda: None,
        snapshot: Path | None = None,
        make_data: Callable[[], None] | None = None,
    ) -> None:
        begun = list(processes)
        for process in begun:
            process.begin(self.clock.ahead_ms, snapshot, waits=make_data is not None)
            self._may_be_behind.discard(process.node_id)
            if self._watcher is not None and process.pid is not None:
                self._watcher.tell(process.pid)
        if make_data is not None:
            make_data()
            for process in begun:
                process.go_on()
        meanwhile()
        # Whoever speaks first, or ends: those that serve already would wait for ever for one that has ended.
        with selectors.DefaultSelector() as outputs:
            for process in begun:
                outputs.register(process.output, selectors.EVENT_READ, process)
            while outputs.get_map():
                for key, _ in outputs.select():
                    outputs.unregister(key.fileobj)
                    key.data.wait_until_ready()

    def stop(self) -> None:
        """End all brokers, and remove their data. Nothing happens if they have ended already.

        Nor in a child that was forked: they are those of its parent, which may go on.
        """
        if self._starter not in (None, os.getpid()):
            return
        atexit.unregister(self.stop)
        self.wire.close()
        self._http.close()
        for process in self.processes.values():
            process.kill()  # nothing of them is kept
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.end()
        if self._lock is not None:
            temporary.unlock(self._lock)
            self._lock = None
            shutil.rmtree(self.folder, ignore_errors=True)
            self.clock.ahead_ms = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def abort_start(self) -> None:
        """Let `start`, which runs in another thread, raise StartError. Call it until that has ended.

        It may be about to begin with one.
        """
        for process in self.processes.values():
            process.abort()

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():
                self.abort_start()
                await asyncio.wait([starting], timeout=ABORTED_EVERY_S)
            starting.exception()  # nobody else asks for it
            self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # ------------------------------------------------------------------ where it is

    @property
    def bootstrap(self) -> str:
        """The address for clients: host:port, of several brokers with commas between."""
        self.check_started()
        return ",".join(process.host_and_port for process in self.processes.values())

    def __repr__(self) -> str:
        state = "not started" if self._lock is None else self.bootstrap
        return f"<Barnabas {state}>"

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return next(iter(self.processes.values())).cluster_id

    @property
    def running(self) -> list[int]:
        """The node ids of those that run and do not stand still."""
        return [node_id for node_id, process in self.processes.items() if process.answers]

    def _process(self, node_id: int) -> BrokerProcess:
        """One of them. IndexError: there is none of this number; RuntimeError: they are not started."""
        if node_id not in self.processes:
            raise IndexError(f"there is no broker {node_id!r}, only {', '.join(map(str, self.processes))}")
        self.check_started()
        return self.processes[node_id]

    def _best_first(self) -> list[int]:
        """Those that run; those that may not know how things are come last."""
        return sorted(self.running, key=self._may_be_behind.__contains__)

    def check_started(self) -> None:
        """RuntimeError: they are not, or are stopped."""
        if self._lock is None:
            raise RuntimeError("these brokers are not started, or stopped: use a `with` block, or call start()")

    def _addresses(self) -> dict[int, str]:
        self.check_started()
        return {node_id: self.processes[node_id].host_and_port for node_id in self._best_first()}

    def _count_partitions(self, topic: str) -> int:
        self.check_started()
        return len(newest_partitions(self, topic))

    def log(self, node_id: int = 0) -> str:
        """What a broker has logged."""
        return self._process(node_id).log.read_text(errors="replace")

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: Any = None,
        *,
        node_id: int | None = None,
    ) -> Any:
        """A request to the HTTP API of a broker; without `node_id`, of any that runs and knows how things are."""
        asked = self._best_first() if node_id is None else [node_id]
        if not asked:
            self.check_started()
            raise RuntimeError("no broker runs")
        return self._http.ask(self._process(asked[0]).http, method, path, query, body)

    # ------------------------------------------------------------------ topics and groups

    def topic(
        self,
        name: str = "topic",
        partitions: int | None = None,
        config: Settings | None = None,
        *,
        replicas: int = -1,
        unique: bool = True,
    ) -> Topic:
        """Make a topic, with the partitions that the setting num.partitions says unless they are given.

        Its name gets an ending that no other has, unless `unique` is False.
        """
        name = _unique(name) if unique else name
        partitions = int(self._config.get("num.partitions", 1)) if partitions is None else partitions
        self.wire.create_topic(name, control.whole(partitions, "partitions"), replicas, texts_of(config))
        return Topic(self, name)

    def group(self, name: str = "group", *, unique: bool = True) -> Group:
        """A group, which comes into being with its first member or commit."""
        return Group(self, _unique(name) if unique else name)

    def consumer(self, **settings: Any) -> Any:
        """A kafka-python consumer, without a group unless one is named. Close it."""
        defaults = {"group_id": None, "enable_auto_commit": False, "fetch_max_wait_ms": 50}
        return kafka_python().KafkaConsumer(bootstrap_servers=self.bootstrap, **{**defaults, **settings})

    # ------------------------------------------------------------------ faults

    def fail(self, api: str, *, error: str, times: int | None = None, **which: Any) -> Fault:
        """Requests of this API are answered with an error.

        `which` requests: `group`, `topic`, `partition`, `client` (client.id), `transactional_id`, `versions`, `nth`,
        `every`, `probability` with `seed`, `role` (only where the broker is leader, coordinator or controller for it).
        `when="after"`: the request has its effect all the same.
        """
        return self.rule(effect="error", api=api, error=error, times=times, **which)

    def delay(self, api: str | None = None, *, ms: int, **which: Any) -> Fault:
        """Requests are handled later; with `when="after"` they are answered later."""
        return self.rule(effect="delay", api=api, ms=ms, **which)

    def drop_request(self, api: str | None = None, **which: Any) -> Fault:
        """Requests have no effect, and get no answer."""
        return self.rule(effect="drop_request", api=api, **which)

    def drop_answer(self, api: str | None = None, **which: Any) -> Fault:
        """Requests have their effect, and get no answer."""
        return self.rule(effect="drop_answer", api=api, **which)

    def cut(self, api: str | None = None, *, times: int | None = 1, **which: Any) -> Fault:
        """The connection of the next request is closed before it has an effect; with `when="after"`, after it."""
        return self.rule(effect="cut", api=api, times=times, **which)

    def throttle(self, api: str | None = None, *, ms: int, **which: Any) -> Fault:
        """Answers tell their clients to be quiet for a while."""
        return self.rule(effect="throttle", api=api, ms=ms, **which)

    def half_answer(self, api: str | None = None, *, times: int | None = 1, **which: Any) -> Fault:
        """The next request has its effect; half of its answer is sent, and the connection closed."""
        return self.rule(effect="half_answer", api=api, times=times, **which)

    def stale_metadata(self, **which: Any) -> Fault:
        """Clients are told of the cluster as it is now, whatever becomes of leaders and topics."""
        return self.rule(effect="stale_metadata", **which)

    def disk_full(self, node_id: int | None = None, **which: Any) -> Fault:
        """Writes of a broker, or of all, find no room; with `topic` and `partition`, those to its logs."""
        return self.rule(effect="disk_full", node_id=node_id, **which)

    def log_failed(self, topic: Topic | str, node_id: int | None = None, **which: Any) -> Fault:
        """Writes to the logs of a topic fail for good: each is offline until the broker is started again."""
        return self.rule(effect="log_failed", topic=topic, node_id=node_id, **which)

    def tree_unreachable(self, node_id: int | None = None, **which: Any) -> Fault:
        """A broker, or each, does not reach the coordination tree, so that its session ends in time."""
        return self.rule(effect="tree_unreachable", node_id=node_id, **which)

    def isolate(self, node_id: int) -> Fault:
        """A broker reaches neither the tree nor the others, and they do not reach it; its clients do."""
        return self.rule(effect="isolated", node_id=node_id)

    def rule(self, *, node_id: int | None = None, **fields: Any) -> Fault:
        """A fault with the fields of `POST /v1/control/rules`, on one broker, or on every one that runs."""
        self.check_started()
        body = {name: str(value) if isinstance(value, Topic | Group) else value for name, value in fields.items()}
        body = {name: value for name, value in body.items() if value is not None}
        if node_id is not None and fields.get("effect") in ("isolated", "tree_unreachable"):
            self._may_be_behind.add(node_id)
        numbers = {
            node_id: int(self.ask("POST", "/v1/control/rules", body=body, node_id=node_id)["id"])
            for node_id in (self.running if node_id is None else [node_id])
        }
        return Fault(self, numbers)

    def requests(
        self,
        api: str | None = None,
        *,
        client: str | None = None,
        group: Group | str | None = None,
        topic: Topic | str | None = None,
        since: Mapping[int, int] | None = None,
        frames: bool = False,
    ) -> list[dict[str, Any]]:
        """What clients have asked, and what they got: decoded, in the order in which it came.

        The last 5,000 of each broker are kept. `since`: of each broker only those from this `number` on.
        `frames`: with the bytes of each request, for `replay`; SessionError if some since then are no longer kept.
        """
        self.check_started()
        query = {"api": api, "client": client, "group": group, "topic": topic, "frames": "true" if frames else None}
        texts = {name: str(value) for name, value in query.items() if value is not None}
        found: list[dict[str, Any]] = []
        for node_id, process in self.processes.items():
            following = (since or {}).get(node_id, 0)
            while process.answers:
                answer = self.ask("GET", REQUESTS, {**texts, "since": following}, node_id=node_id)
                if frames and since is not None and answer["first"] > following:
                    gone = f"the requests {following} to {answer['first'] - 1} of broker {node_id}"
                    raise SessionError(f"{gone} are no longer kept, so this is not the whole session")
                found += [{**row, "node_id": node_id} for row in answer["requests"]]
                following = answer["next"]
                if len(answer["requests"]) < REQUESTS_PER_ANSWER:
                    break
        return sorted(found, key=lambda row: row["time_ms"])

    def replay(self, session: Sequence[Mapping[str, Any]], *, paced: bool = False) -> list[Difference]:
        """Send again what `requests(frames=True)` has returned, in its order; returns what is answered differently.

        `paced`: not faster than it came. Put back the snapshot from before the session first.
        """
        return replay(session, self.bootstrap, paced=paced)

    def wait_requests(
        self, api: str | None = None, *, count: int = 1, timeout: float = 10.0, **which: Any
    ) -> list[dict[str, Any]]:
        """Wait until so many such requests were answered; `which` as for `requests`. WaitTimeoutError: not in time."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = self.requests(api, **which)
            answered = [row for row in found if row["fate"] != "waits"]
            return len(answered) >= count

        control.wait(are_there, lambda: f"waited for {counted(count, 'request')}: {len(found)} came", timeout)
        return found

    def wait_transaction(self, transactional_id: str, state: str | None = None, timeout: float = 10.0) -> str:
        """Wait until a transaction is in this state (as CompleteCommit); returns it. WaitTimeoutError: it was not."""
        path = f"/v1/control/transactions/{control.quoted(transactional_id)}/wait"
        return str(control.wait_for(self, path, {"state": state}, timeout)["state"])

    def lint(self, client: str | None = None) -> list[dict[str, Any]]:
        """What clients could do better, by the requests that are kept: `rule`, `client_id`, `message`, `setting`."""
        self.check_started()
        query = {} if client is None else {"client": client}
        return [
            {**row, "node_id": node_id}
            for node_id in self.running
            for row in self.ask("GET", "/v1/control/lint", query, node_id=node_id)["findings"]
        ]

    # ------------------------------------------------------------------ brokers

    def kill(self, node_id: int = 0) -> None:
        """End a broker by SIGKILL. Its data stays until the end."""
        self._process(node_id).kill()

    def restart(self, node_id: int = 0) -> None:
        """Start a broker again, on its data and port; one that runs is stopped before."""
        process = self._process(node_id)
        process.stop()
        self._begin([process])

    def pause(self, node_id: int = 0) -> None:
        """Let a broker stand still: its connections stay open, and nobody answers."""
        process = self._process(node_id)
        self._may_be_behind.add(node_id)
        process.pause()

    def resume(self, node_id: int = 0) -> None:
        """Let it go on after `pause`."""
        self._process(node_id).resume()

    @contextmanager
    def down(self, node_id: int | None = None) -> Iterator[None]:
        """While the block lasts, a broker is away, or all are; then they serve again on their data and ports."""
        away = [self._process(node_id)] if node_id is not None else list(self.processes.values())
        for process in away:
            process.kill()
        try:
            yield
        finally:
            self._begin(away)

    # ------------------------------------------------------------------ put back, or twice

    def snapshot(self) -> Snapshot:
        """Note all that the brokers have. Connections are cut, and they serve again at their addresses when it returns.

        They do it in their processes, at the same moment. If one does not run, all are stopped for it, and started.
        CommandError: their tree is in ZooKeeper, which nobody puts back.
        """
        self.check_started()
        if "zookeeper.connect" in self._config:
            raise control.CommandError("SNAPSHOT_FAILED", "the tree is in ZooKeeper, which nobody puts back")
        mark = Snapshot(self._new_folder(), self.clock.ahead_ms)
        if self._all_answer:
            mark.next_requests.update(self._tell_all("/v1/control/snapshots", mark))
        else:
            self._while_ended(BrokerProcess.stop, lambda: mark.copy(self.folder, self._not_data(), len(self.processes)))
            mark.next_requests.update(self._next_requests())
        return mark

    def _new_folder(self) -> Path:
        self._snapshots += 1
        return self.folder / f"{SNAPSHOT_PREFIX}{self._snapshots}"

    def restore(self, mark: Snapshot, *, ends_faults: bool = False) -> dict[int, int]:
        """Put everything back as it was at a snapshot, at the same addresses. Connections are cut.

        Returns the number of the next request of each broker, as `requests(since=…)` takes it.
        CommandError: that cannot be, and nothing has changed.
        """
        self.check_started()
        check_type(mark)
        self.wire.forget_producers()
        if self._all_answer:
            next_requests = self._tell_all("/v1/control/restore", mark, ends_faults=ends_faults)
            self.clock.ahead_ms = mark.clock_ahead_ms
            return next_requests
        mark.check(self.cluster_id, len(self.processes))

        def put_back() -> None:
            mark.put_back(self.folder, self._not_data())
            self.clock.ahead_ms = mark.clock_ahead_ms

        self._while_ended(BrokerProcess.kill, put_back)
        return self._next_requests()

    def _next_requests(self) -> dict[int, int]:
        return {
            node_id: int(self.ask("GET", REQUESTS, {"since": NEVER}, node_id=node_id)["next"])
            for node_id in self.running
        }

    def _while_ended(self, end: Callable[[BrokerProcess], None], change: Callable[[], None]) -> None:
        """End all brokers, change their data, and start them again, also if that fails."""
        for process in self.processes.values():
            end(process)
        try:
            change()
        except OSError as error:
            message = f"{directory_copies.why(error)}: all is as it was."
            raise control.CommandError("SNAPSHOT_FAILED", message) from None
        finally:
            self._begin(self.processes.values())

    def _tell_all(self, path: str, mark: Snapshot, **more: Any) -> dict[int, int]:
        """Each broker does its part of it when all have been told. Returns the number of the next request of each."""
        body = {"folder": str(mark.folder), **more} | ({} if self._is_single else {"brokers": list(self.processes)})

        def tell(node_id: int) -> int:
            return int(self.ask("POST", path, body=body, node_id=node_id)["next_request"])

        if self._is_single:
            return {node_id: tell(node_id) for node_id in self.processes}
        with ThreadPoolExecutor(len(self.processes)) as threads:
            told = {node_id: threads.submit(tell, node_id) for node_id in self.processes}
            for done in wait(told.values(), return_when=FIRST_EXCEPTION).done:
                done.result()  # the first that refuses says why; the others miss it
            return {node_id: answer.result() for node_id, answer in told.items()}

    @property
    def _all_answer(self) -> bool:
        return all(process.answers for process in self.processes.values())

    @property
    def _is_single(self) -> bool:
        return len(self.processes) == 1

    def _not_data(self) -> list[str]:
        """What is in the folder beside the data of the brokers."""
        logs = [process.log.name for process in self.processes.values()]
        snapshots = [path.name for path in self.folder.glob(f"{SNAPSHOT_PREFIX}*")]
        return [*logs, *snapshots, temporary.LOCK_NAME]

    @contextmanager
    def fork(self) -> Iterator["Barnabas"]:
        """Other brokers, with the same data, while the block lasts.

        CommandError: there can be none, because these have a tree of their own place, which two would share.
        """
        if "coordination.path" in self._config:
            why = "these brokers have a coordination.path of yours, which the copy would share: leave that out"
            raise control.CommandError("SNAPSHOT_FAILED", why)
        copy = Barnabas(len(self.processes), self._config)
        copy.clock.ahead_ms = self.clock.ahead_ms

        def make_data() -> None:
            mark = self.snapshot()
            try:
                mark.copy_to(copy.folder)
            finally:
                shutil.rmtree(mark.folder, ignore_errors=True)  # nobody else can name it

        copy._start(None, make_data)
        try:
            yield copy
        finally:
            copy.stop()

    def leader_of(self, topic: Topic | str, partition: int) -> int | None:
        """The broker that leads a partition; None: nobody does. IndexError: the topic has fewer partitions."""
        self.check_started()
        rows = newest_partitions(self, str(topic))
        if not rows:
            raise control.CommandError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, f"there is no topic {topic}")
        if partition not in rows:
            raise IndexError(f"topic {topic} has {counted(len(rows), 'partition')}, and none is {partition}")
        leader = rows[partition]["leader"]
        return None if leader is None else int(leader)

    def coordinator_of(self, group: Group | str) -> int:
        """The broker that coordinates a group, which must exist."""
        return int(self.ask("GET", f"/v1/groups/{control.quoted(str(group))}")["node_id"])


def _unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"
