"""`barnabas start --brokers N`: one process that starts N broker processes, and stays until it is told to stop.

It decides what each broker is told (`plan`), and is otherwise a supervisor: it prints one ready line when all serve,
hands on their logs with the number of the broker in each line, says at once when one dies, and stops them in order. It
serves nothing itself. When it is gone, its brokers stop (`--exit-with-parent`).

What the data directory of a cluster holds is in `cluster_directory.py`.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, TextIO

from barnabas.cli import cluster_directory
from barnabas.cli.shared.exits import ExitCode, Failure, fail, say
from barnabas.cli.start import Order
from barnabas.cli.start_settings import CLUSTER_FILE
from barnabas.cluster.broker_client import BrokerClient
from barnabas.cluster.metadata_cache import Endpoint
from barnabas.config import profiles
from barnabas.config.listeners import url_of
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime import temporary
from barnabas.runtime.counted import counted
from barnabas.runtime.own_command import OWN_COMMAND
from barnabas.runtime.ports import DirectoryLock, Env
from barnabas.runtime.processes import ProcessHandle
from barnabas.runtime.turns import ended
from barnabas.runtime.watcher import Watcher
from barnabas.storage.directory_contents import TREE_FILE

LOCK_FILE = ".lock"
STOPS_WITHIN_MS = 60_000.0
STOP_SAID_AFTER_MS = 5_000.0
OFFSETS_TOPIC_WITHIN_MS, OFFSETS_TOPIC_RETRY_MS = 5_000.0, 20.0
ANSWERS_WITHIN_MS = 2_000.0  # who the controller is; it matters only for the order of the stop
RESTART_AFTER_MS = (100.0, 10_000.0)  # the first wait, which doubles with each life that was short, and the longest
SHORT_LIFE_MS = 30_000.0
LINE_BYTES_MAX = 1 << 20
OWN_SETTINGS = ("node.id", "broker.id")  # each broker gets its own from here
DEFAULT_LISTENERS = "PLAINTEXT://:9092"
CLIENT_ID = "barnabas-start"
_PORT = re.compile(r":(\d+)\s*\Z")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    data: str  # the directory of the cluster
    words: tuple[tuple[str, ...], ...]  # for `barnabas start`, by broker
    choices: tuple[tuple[str, ...], ...]  # by broker: what is said of logs and disks at its first start only
    notes: tuple[str, ...] = ()  # what the user may not have meant


# ------------------------------------------------------------------ decide


def plan(
    env: Env,
    brokers: int | None,
    directories: Sequence[str],
    words: Sequence[str],
    values: Mapping[str, str],
    by_user: Collection[str],
    given_up: Sequence[str],
    *,
    adopts: bool = False,
    sets_aside: bool = False,
) -> Plan:
    """What each broker is told. What cannot be ends the command, with a sentence that says what to do.

    `brokers` is the number that the user said, `words` are told to all. `values` are all settings, `by_user` those that
    the user has set. `given_up`: data directories that are lost. `adopts`, `sets_aside`: logs that the tree does not
    know.
    """
    if len(directories) != 1:
        fail("--brokers wants one data directory: name it with --data.", ExitCode.NOT_VALID)
    for key in OWN_SETTINGS:
        if key in by_user:
            fail(f"--brokers numbers the brokers itself: leave out {key}.", ExitCode.NOT_VALID)
    data = directories[0]
    count = cluster_directory.number_of_brokers(env, data, brokers)
    listeners = values.get("listeners") or DEFAULT_LISTENERS
    _check_ports(",".join(filter(None, (listeners, values.get("http.listeners")))), count)
    lost = {f"{data}/{number}": number for number in range(count)}
    for path in given_up:
        if path not in lost:
            fail(f"--give-up {path}: the brokers of this cluster have {', '.join(lost)}.", ExitCode.NOT_VALID)
    if adopts and count > 1:
        place = "zookeeper.connect" if values.get("zookeeper.connect") else "coordination.path"
        tree = values.get(place) or f"{data}/{TREE_FILE}"
        fail(
            "--adopt is for one broker at a time. " + cluster_directory.one_by_one(data, f"{place}={tree}"),
            ExitCode.NOT_VALID,
        )
    if not sets_aside:
        has_own_tree = not values.get("zookeeper.connect") and not values.get("coordination.path")
        cluster_directory.check_folders(env, data, count, has_own_tree=has_own_tree)
    told, choices = [], []
    for number in range(count):
        own = _settings(number, count, data, {**values, "listeners": listeners}, by_user)
        said = [word for key, text in own.items() for word in ("--set", f"{key}={text}")]
        told.append((*words, *said))
        choice = ["--adopt"] * adopts + ["--set-aside"] * sets_aside
        choice += [word for path in given_up if lost[path] == number for word in ("--give-up", path)]
        choices.append(tuple(choice))
    return Plan(data, tuple(told), tuple(choices), _notes(count, values, by_user))


def _notes(brokers: int, values: Mapping[str, str], by_user: Collection[str]) -> tuple[str, ...]:
    """A sentence if the user's settings give away what several brokers are for. Kafka's own file does."""
    weaker = [
        f"{key}={values[key]}"
        for key, text in profiles.of_cluster(brokers).items()
        if key in by_user and values[key].isdecimal() and int(values[key]) < int(text)
    ]
    if not weaker:
        return ()
    why = "less than a cluster has by default, so the death of one broker may lose what was acknowledged"
    return (f"{why}: {', '.join(weaker)}",)


def _settings(
    number: int, brokers: int, data: str, values: Mapping[str, str], by_user: Collection[str]
) -> dict[str, str]:
    """The settings of one broker beside what the user has set for all."""
    settings = {key: text for key, text in profiles.of_cluster(brokers).items() if key not in by_user}
    if not values.get("zookeeper.connect") and not values.get("coordination.path"):
        settings["coordination.path"] = f"{data}/{TREE_FILE}"
    settings["node.id"] = str(number)
    settings["log.dirs"] = f"{data}/{number}"
    for key in ("listeners", "advertised.listeners", "http.listeners"):
        if values.get(key):
            settings[key] = _shifted(values[key], number)
    return settings


def _shifted(listeners: str, by: int) -> str:
    """The listeners with ports that are so much higher; port 0 stays."""

    def higher(match: re.Match[str]) -> str:
        port = int(match[1])
        return f":{port + by}" if port else match[0]

    return ",".join(_PORT.sub(higher, listener) for listener in listeners.split(","))


def _check_ports(listeners: str, brokers: int) -> None:
    """End the command if the brokers' ports would collide, or be too high."""
    first = sorted(int(match[1]) for each in listeners.split(",") if (match := _PORT.search(each)) and int(match[1]))
    if first and first[-1] + brokers - 1 > 65535:
        fail(f"{brokers} brokers from port {first[-1]} on need ports above 65535.", ExitCode.NOT_VALID)
    for low, high in pairwise(first):
        if high - low < brokers:
            fail(
                f"{brokers} brokers use {brokers} consecutive ports for each listener, and {low} and {high} are nearer "
                "than that. Name ports that are further apart.",
                ExitCode.NOT_VALID,
            )


# ------------------------------------------------------------------ the processes


class BrokerProcess:
    """One broker: its process, one life after the other."""

    def __init__(
        self, number: int, words: Sequence[str], choice: Sequence[str], log: TextIO, watcher: Watcher | None
    ) -> None:
        self.number = number
        self.ready: dict[str, str] = {}  # what its newest ready line says
        self.failure = ""  # why it did not start, in its own words
        self.process: asyncio.subprocess.Process | None = None
        self._words = words
        self._choice = choice
        self._log = log
        self._watcher = watcher  # ends them if the supervisor is killed, because their data goes
        self._logging: asyncio.Task[None] | None = None
        self._handle: ProcessHandle | None = None

    async def start(self) -> None:
        """Start it, on the port that it had if it ran before; returns when it serves. Failure when it ends before."""
        words = [*self._words]
        if self.ready:  # clients know the port; a disk that is away now is not the one that was given up
            words += ["--port", self.ready["bootstrap"].partition(",")[0].rpartition(":")[2]]
        else:
            words += self._choice
        self.process = await asyncio.create_subprocess_exec(
            *OWN_COMMAND,
            *("start", "--json", "--exit-with-parent", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            process_group=0,  # so that Ctrl-C reaches only the supervisor, which stops the brokers in order
        )
        if self._handle is not None:
            self._handle.close()
        self._handle = ProcessHandle(self.process.pid)
        if self._watcher is not None:
            self._watcher.tell(self.process.pid)
        self._logging = asyncio.ensure_future(self._hand_on_log(self.process))
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if line:
            self.ready = json.loads(line)
            return
        await self.ended()
        raise Failure(f"broker {self.number}: {self.failure or 'it ended before it served'}", ExitCode.FAILED)

    async def ended(self) -> int:
        """Wait until the process has ended and its log is handed on; its exit code."""
        assert self.process is not None
        code = await self.process.wait()
        if self._logging is not None:
            await self._logging
        return code

    @property
    def pid(self) -> int:
        """Of its newest life."""
        return 0 if self.process is None else self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send(self, number: int) -> None:
        """Send it a signal, if it runs. Another process that gets its number later gets none.

        Not by `Process.send_signal`: that would reap a process that has just ended, and asyncio would not see how.
        """
        if self.runs and self._handle is not None:
            self._handle.send(number)

    async def stop(self, env: Env) -> None:
        """Stop it as Ctrl-C does, and wait until it has ended."""
        if self.runs:
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # one that somebody has paused (SIGSTOP) would not hear of it
            limits = (
                env.clock.call_later(STOP_SAID_AFTER_MS, self._say_waiting),
                env.clock.call_later(STOPS_WITHIN_MS, self._kill),
            )
            await self.ended()
            for limit in limits:
                limit.cancel()

    def _say_waiting(self) -> None:
        say(
            f"barnabas: broker {self.number} (process {self.pid}) has not stopped yet; it is killed "
            f"{STOPS_WITHIN_MS / 1000:.0f} s after it was told to, or by a second Ctrl-C."
        )

    def _kill(self) -> None:
        limit = f"{STOPS_WITHIN_MS / 1000:.0f} s"
        say(f"barnabas: broker {self.number} (process {self.pid}) does not stop within {limit}: it is killed.")
        self.send(signal.SIGKILL)

    async def _hand_on_log(self, process: asyncio.subprocess.Process) -> None:
        """Write each line that it logs with its number. Its last words, if it does not start, are kept instead."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # longer than any line that a broker writes
                continue
            if not line:
                return
            text = line.decode(errors="backslashreplace").rstrip("\n")
            if text.startswith('{"error"'):
                with contextlib.suppress(ValueError):
                    self.failure = str(json.loads(text)["error"])
                    continue
            self._log.write(f"broker {self.number} | {text}\n")


def _names(brokers: Sequence[BrokerProcess]) -> str:
    return ", ".join(f"broker {broker.number} (process {broker.pid})" for broker in brokers)


class Supervisor:
    """All brokers of the cluster."""

    def __init__(
        self, env: Env, plan: Plan, order: Order, log: TextIO, watcher: Watcher | None, *, restarts: bool
    ) -> None:
        self._env = env
        self._data = plan.data
        self._order = order
        self._restarts = restarts
        told = zip(plan.words, plan.choices)
        self._brokers = [BrokerProcess(number, *each, log, watcher) for number, each in enumerate(told)]
        self._is_stopping = False
        self._is_killed = False

    async def run(self, stop: asyncio.Event) -> int:
        """Start all, watch them until `stop`, stop all; returns the exit code."""
        lock = self._take_directory()
        told = asyncio.ensure_future(stop.wait())
        try:
            code = await self._serve(told)
        finally:
            told.cancel()
            await self._stop()
            lock.release()
        return ExitCode.INTERRUPTED if self._is_killed else code

    async def _serve(self, told: "asyncio.Task[Any]") -> int:
        if not await self._start(told):
            say("barnabas: stopped before all brokers served.")
            return ExitCode.DONE
        if self._order.offsets_topic_first:
            making = asyncio.ensure_future(self._make_offsets_topic())
            await asyncio.wait((making, told), return_when=asyncio.FIRST_COMPLETED)
            making.cancel()
        self._say_ready()
        if self._order.temporary_directory is not None:
            temporary.remove_abandoned(self._order.temporary_directory)
        return await self._watch(told)

    def kill(self) -> None:
        """Kill all: they were told to stop, and the user does not want to wait. A broker recovers from that."""
        running = [broker for broker in self._brokers if broker.runs]
        self._is_killed = True
        if running:
            say(f"barnabas: killed before they had stopped: {_names(running)}.")
        for broker in running:
            broker.send(signal.SIGKILL)

    def _take_directory(self) -> DirectoryLock:
        """Make the directory of the cluster and say in it how many brokers there are."""
        disk, data = self._env.disk, self._data
        try:
            disk.make_directory(data)
            lock = disk.lock(f"{data}/{LOCK_FILE}")
            if not disk.exists(f"{data}/{CLUSTER_FILE}"):
                file = disk.open(f"{data}/{CLUSTER_FILE}.tmp", create=True)
                file.write(0, f"# made by `barnabas start --brokers`\nbrokers={len(self._brokers)}\n".encode())
                file.sync()
                file.close()
                disk.rename(f"{data}/{CLUSTER_FILE}.tmp", f"{data}/{CLUSTER_FILE}")
                disk.sync_directory(data)
        except BlockingIOError:
            fail(f"the cluster in {data} runs already. Stop it, or name another directory with --data.")
        except FileExistsError:
            fail(f"{data} is a link that leads nowhere, or no directory. Name another one with --data.")
        except OSError as error:
            fail(f"{data} cannot be used: {error.strerror}. Let this user read and write it.")
        return lock

    async def _start(self, told: "asyncio.Task[Any]") -> bool:
        """Start all at the same time. False: told to stop meanwhile. Failure: one does not start."""
        starts = {asyncio.ensure_future(broker.start()) for broker in self._brokers}
        waiting: set[asyncio.Task[Any]] = {*starts, told}
        failed: Failure | None = None
        try:
            while starts & waiting and not told.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for start in done - {told}:
                    start.result()
        except Failure as failure:
            failed = failure
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        if failed is not None:
            await self._fail(failed)
        return not told.done()

    async def _fail(self, failure: Failure) -> NoReturn:
        """Say why a broker does not start: now, and behind the lines of the others, which stop, with their reasons."""
        say(f"barnabas: {failure.message}")
        await self._stop()
        for broker in self._brokers:
            if broker.pid:
                await broker.ended()
        reasons = [f"broker {broker.number}: {broker.failure}" for broker in self._brokers if broker.failure]
        raise Failure("\n".join(reasons) or failure.message, failure.code)

    async def _watch(self, told: "asyncio.Task[Any]") -> int:
        """Say when a broker dies, and start it again if that was asked for; until told to stop, or all are dead."""
        lives = asyncio.gather(*map(self._live, self._brokers))
        try:
            await asyncio.wait((told, lives), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_stopping = True
        if lives.done():
            lives.result()
            fail("no broker runs any more. Start them again, or start them with --restart.")
        lives.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lives
        return ExitCode.DONE

    async def _live(self, broker: BrokerProcess) -> None:
        clock = self._env.clock
        wait_ms, longest_ms = RESTART_AFTER_MS
        while True:
            began_ms = clock.monotonic_ms()
            pid = broker.pid
            code = await broker.ended()
            if self._is_stopping:
                return
            self._say_died(broker, pid, code)
            if not self._restarts:
                return
            if clock.monotonic_ms() - began_ms >= SHORT_LIFE_MS:
                wait_ms = RESTART_AFTER_MS[0]
            while True:
                await clock.sleep(wait_ms)
                wait_ms = min(2 * wait_ms, longest_ms)
                try:
                    await broker.start()
                except Failure as failure:
                    say(f"barnabas: it does not start again: {failure.message}")
                else:
                    break
            say(f"barnabas: broker {broker.number} serves again (process {broker.pid}).")
            self._tell({"event": "restarted", "node_id": broker.number, "pid": broker.pid})

    async def _stop(self) -> None:
        """Stop the brokers one after the other, the controller last: so each can hand over what it leads.

        While one has not served yet, nothing is handed over, and all stop at the same time. None gets a second signal,
        because that would end it at once, uncleanly.
        """
        self._is_stopping = True
        running = [broker for broker in self._brokers if broker.runs]
        if not all(broker.ready for broker in running):
            await asyncio.gather(*(broker.stop(self._env) for broker in running))
            return
        for broker in running:
            broker.send(signal.SIGCONT)  # one that is paused (SIGSTOP) could hand over nothing
        controller_id = await self._controller(running)
        running.sort(key=lambda each: each.number == controller_id)
        if running:
            say(f"barnabas: stopping, one after the other: {_names(running)}. A second Ctrl-C kills them.")
        for broker in running:
            await broker.stop(self._env)

    # ------------------------------------------------------------------ asking a broker

    async def _ask(self, broker: BrokerProcess, request: Message, version: int) -> Any:
        """What a broker answers; None when it does not."""
        host, _, port = broker.ready["bootstrap"].partition(",")[0].rpartition(":")
        client = BrokerClient(self._env, Endpoint("", host.strip("[]"), int(port)), CLIENT_ID, ANSWERS_WITHIN_MS)
        answer = await ended(client.send(request, version))
        client.close()
        return answer

    async def _controller(self, serving: Sequence[BrokerProcess]) -> int:
        """The number of the controller; -1 when the broker that is asked does not know."""
        if len(serving) < 2:
            return -1
        answer = await self._ask(serving[0], messages.MetadataRequest(topics=[]), 4)
        return -1 if answer is None else int(answer.controller_id)

    async def _make_offsets_topic(self) -> None:
        """Let it be made now, as the first group would."""
        clock = self._env.clock
        give_up_ms = clock.monotonic_ms() + OFFSETS_TOPIC_WITHIN_MS
        request = messages.FindCoordinatorRequest(key=CLIENT_ID)
        while clock.monotonic_ms() < give_up_ms:
            answer = await self._ask(self._brokers[-1], request, 1)
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return
            await clock.sleep(OFFSETS_TOPIC_RETRY_MS)

    # ------------------------------------------------------------------ telling

    def _say_ready(self) -> None:
        bootstrap = ",".join(broker.ready["bootstrap"] for broker in self._brokers)
        cluster_id = self._brokers[0].ready["cluster_id"]
        if self._order.as_json:
            ready = {
                "event": "ready",
                "bootstrap": bootstrap,
                "http": [broker.ready["http"] for broker in self._brokers],
                "node_ids": [broker.number for broker in self._brokers],
                "pids": [broker.pid for broker in self._brokers],
                "cluster_id": cluster_id,
                "data": self._data,
                "pid": os.getpid(),
            }
            print(json.dumps(ready))
            return
        who = f"{counted(len(self._brokers), 'broker')}, cluster {cluster_id}, data in {self._data}"
        who += ", removed at the end" if self._order.temporary_directory is not None else ""
        addresses = ", ".join(url_of(broker.ready["http"]) for broker in self._brokers if broker.ready["http"])
        http = f", HTTP API at {addresses}" if addresses else ""
        print(f"Barnabas serves at {bootstrap}{http} ({who}). Ctrl-C stops all.")

    def _say_died(self, broker: BrokerProcess, pid: int, code: int) -> None:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        then = "it is started again" if self._restarts else "it is not started again (--restart would do that)"
        say(f"barnabas: broker {broker.number} (process {pid}) has died, {how}: {then}.")
        self._tell({"event": "died", "node_id": broker.number, "pid": pid, "exit_code": code})

    def _tell(self, event: dict[str, object]) -> None:
        if self._order.as_json:
            print(json.dumps(event))
