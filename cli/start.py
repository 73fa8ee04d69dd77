"""`barnabas start`: one broker process, until it is told to stop; or several (`cluster_start.py`)."""

import argparse
import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from barnabas.cli import ready, start_options
from barnabas.cli.shared.exits import ExitCode, Failure, fail, key_values, say
from barnabas.cli.shared.words import shown
from barnabas.cli.start_settings import CLUSTER_FILE, Settings, configure, profile_of, words_for_each
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime import output, temporary
from barnabas.runtime.build import build_name
from barnabas.runtime.parent import call_when_parent_is_gone
from barnabas.runtime.ports import DISK_FULL, READ_ONLY, RESTORE_PLAN, RESTORED_PLAN, TOO_MANY_OPEN
from barnabas.runtime.tasks import one_is_set
from barnabas.runtime.watcher import Watcher

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker
    from barnabas.broker.control.gate import ControlledGate
    from barnabas.config.broker import BrokerConfig
    from barnabas.runtime.lives import Lives
    from barnabas.runtime.ports import Env
    from barnabas.storage.directory_plan import StartChoice

logger = logging.getLogger("barnabas.broker")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MESSAGE_CHARACTERS_MAX = 4_000
OPEN_FILES_MIN = 48


class Order(NamedTuple):
    """What `barnabas start` was told to do beside the settings of the broker."""

    config: "BrokerConfig"
    choice: "StartChoice"
    as_json: bool
    temporary_directory: str | None  # it is made at the start and removed at the end
    offsets_topic_first: bool
    source: str | None  # a data directory whose copy is served, in the temporary directory
    parent: int | None  # process id; this broker ends when that process does
    security: dict[str, str] | None = None  # what clients need to log in, for the ready line (--secured)

    @property
    def directories(self) -> tuple[str, ...]:
        """The data directories, as absolute paths."""
        return tuple(map(os.path.abspath, self.config.data_directories))


def run(words: Sequence[str]) -> int:
    """Run `barnabas start` with these words; returns the exit code."""
    parent = os.getppid()  # asked first, because the parent may end soon
    said = start_options.parser().parse_args(words)
    output.take_standard_streams()
    log = _begin_log(said)
    try:
        return _run_as_said(said, parent, log)
    except Failure as failure:
        if said.log_file is not None:  # a person who reads the log file does not see standard error
            logger.error("this broker does not serve: %s", failure.message)
        raise


def _run_as_said(said: argparse.Namespace, parent: int, log: TextIO) -> int:
    from barnabas.runtime.env import real
    from barnabas.storage.directory_plan import StartChoice

    env = real()
    _allow_open_files(env)
    given = key_values(said.settings, "--set")
    if said.data is not None:
        if "," in said.data:
            fail("--data names one directory; say several as --set log.dirs=FIRST,SECOND.", ExitCode.NOT_VALID)
        given["log.dirs"] = said.data
    if said.listeners is not None:
        given["listeners"] = said.listeners
    security = None
    if said.secured:
        from barnabas.cli import secured_start

        if said.brokers is not None or not said.json:
            fail(
                "--secured is one broker, whose ready line is JSON: say --json, and not --brokers.", ExitCode.NOT_VALID
            )
        secured, security = secured_start.prepare(env)
        given = secured | given
    copied = None
    if said.source is not None:
        copied = _place_for_copy(env, said, given)
        # The copy has a tree of its own, whatever a file says: that of the original must not be changed.
        given |= {"log.dirs": copied, "coordination.path": "", "zookeeper.connect": ""}
    profile, given, variables = profile_of(said.profile, given, said.port, os.environ)
    if profile.is_one_broker and said.brokers is not None:
        fail(f"--profile {profile.name} is one broker: --brokers goes without it.", ExitCode.NOT_VALID)
    settings = configure(env, said.config, profile, given, said.port, variables)
    order = Order(
        settings.config,
        StartChoice(
            said.adopt or (copied is not None and not said.set_aside),
            said.set_aside,
            [_place(name) for name in said.give_up],
            _cluster_id(os.environ) if profile.takes_environment else None,
        ),
        said.json,
        copied or settings.temporary_directory,
        profile.offsets_topic_first,
        None if said.source is None else os.path.abspath(said.source),
        parent if (profile.exit_with_parent if said.exit_with_parent is None else said.exit_with_parent) else None,
        security,
    )
    first, *others = order.directories
    are_several = said.brokers is not None or (not others and env.disk.exists(f"{first}/{CLUSTER_FILE}"))
    _check_for_tests(settings.config, are_several=are_several)
    if are_several:
        return _run_cluster(env, said, {**profile.settings, **given}, settings, order, log)
    if said.restart:
        fail("--restart goes with --brokers.", ExitCode.NOT_VALID)
    return _run(env, order)


def _check_for_tests(config: "BrokerConfig", *, are_several: bool) -> None:
    """Failure if settings for the start of a test's broker are not for these."""
    for name, said in (
        ("control.start.snapshot", bool(config.control_start_snapshot)),
        ("control.start.waits", config.control_start_waits),
    ):
        if said and not config.control_enable:
            fail(f"{name} is for tests: say --profile ci, or control.enable=true.", ExitCode.NOT_VALID)
    if config.control_start_waits and are_several:
        fail("control.start.waits is for one broker, which reads its own standard input.", ExitCode.NOT_VALID)
    if not config.control_start_snapshot:
        return
    if are_several or config.coordination_path or config.zookeeper_connect:
        why = "is for one broker whose tree is in its data: of others, take a snapshot when all serve"
        fail(f"control.start.snapshot {why} (/v1/control/snapshots).", ExitCode.NOT_VALID)


def _run_cluster(
    env: "Env", said: argparse.Namespace, given: Mapping[str, str], settings: Settings, order: Order, log: TextIO
) -> int:
    from barnabas.cli import cluster_start

    words = ["--log-level", said.log_level, *words_for_each(env, said.config)]
    for key, text in given.items():
        words += ["--set", f"{key}={text}"]
    plan = cluster_start.plan(
        *(env, said.brokers, order.directories, words, settings.values, settings.by_user, order.choice.given_up),
        adopts=said.adopt,
        sets_aside=said.set_aside,
    )
    for note in plan.notes:
        say(f"barnabas: {note}")
    collect_seldom()
    with _watched(order.temporary_directory) as watcher:
        supervisor = cluster_start.Supervisor(env, plan, order, log, watcher, restarts=said.restart)
        return asyncio.run(_run_until_told(order, supervisor.run, supervisor.kill))


def _begin_log(said: argparse.Namespace) -> TextIO:
    """Start logging to standard error, or to --log-file; returns where."""
    stream = sys.stderr
    if said.log_file is not None:
        try:
            file = output.RotatingFile(os.path.abspath(said.log_file), said.log_file_bytes, said.log_files_kept)
        except OSError as error:
            fail(f"{said.log_file} cannot be written: {error.strerror}. Name another --log-file.", ExitCode.NOT_VALID)
        stream = cast(TextIO, output.Output(file))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=said.log_level.upper())
    return stream


class LogFormatter(logging.Formatter):
    """Writes each message as one line of bounded length, because names that clients choose may contain anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without the traceback that may follow it."""
        record.message = shown(record.message)
        if len(record.message) > MESSAGE_CHARACTERS_MAX:
            record.message = f"{record.message[:MESSAGE_CHARACTERS_MAX]}... ({len(record.message):,} characters)"
        return super().formatMessage(record)


def _place(name: str) -> str:
    """The absolute path of a directory; a directory id stays as it is."""
    from barnabas.protocol import uuids

    try:
        uuids.from_text(name)
    except ValueError:
        return os.path.abspath(name)
    return name


def _cluster_id(environment: Mapping[str, str]) -> str | None:
    """What Kafka's images call a new cluster."""
    from barnabas.protocol import uuids

    said = environment.get("CLUSTER_ID")
    try:
        return uuids.to_text(uuids.from_text(said)) if said else None
    except ValueError:
        fail(
            f"the variable CLUSTER_ID is no id of a cluster: {said!r}. Leave it out for a new one.", ExitCode.NOT_VALID
        )


def collect_seldom() -> None:
    """Let the garbage collector run seldom while the broker serves."""
    # The objects of the start live as long as the process, so no collection needs to look at them again. Nor before:
    # of tens of thousands of them, some hundred are garbage, and to look for them takes 20 ms, with many logs more.
    gc.freeze()
    # A request leaves no cycles behind, so collections need not come often: not for the objects of a few hundred
    # requests that are answered together. The young objects are looked at in small parts all the same, because a large
    # group that rebalances makes many in a moment.
    gc.set_threshold(3_000, 1, 3_000)
    gc.enable()


def _place_for_copy(env: "Env", said: argparse.Namespace, given: dict[str, str]) -> str:
    """Where the copy of `--from` goes. Failure if there is nothing that can be copied."""
    from barnabas.runtime import directory_copies  # late: most starts copy nothing

    if said.data is not None or said.brokers is not None:
        fail("--from goes without --data and --brokers: one broker serves the copy.", ExitCode.NOT_VALID)
    if {"log.dirs", "log.dir", "coordination.path", "zookeeper.connect"} & given.keys():
        why = "the copy has a data directory and a coordination tree of its own"
        fail(f"--from goes without log.dirs, coordination.path and zookeeper.connect: {why}.", ExitCode.NOT_VALID)
    target = temporary.path_for(env.random_uuid().hex(), on_disk=True)
    try:
        directory_copies.check_source(os.path.abspath(said.source), target)
    except OSError as error:
        fail(f"{said.source}: {error.strerror}.", ExitCode.NOT_VALID)
    return target


async def _copy_source(source: str, target: str, stop: asyncio.Event) -> None:
    """Copy the directory in a thread, until told to stop."""
    from barnabas.runtime import directory_copies
    from barnabas.runtime.clock import RealClock
    from barnabas.runtime.turns import ended
    from barnabas.storage.directory_contents import TREE_KEY

    say(f"barnabas: copying {source}; it stays as it is")
    lock = temporary.lock(target)  # meanwhile nobody takes the folder for one of a killed process
    try:
        copy = partial(directory_copies.copy_for_itself, source, target, without=TREE_KEY)
        await ended(RealClock().in_thread(partial(copy, goes_on=lambda: not stop.is_set())))
    except OSError as error:
        what = f"{error.filename or source}: {error.strerror or error}"
        advice = f"Free some room there, or set TMPDIR to a folder that has it for a copy of {source}."
        fail(f"{what}. {advice}" if error.errno in DISK_FULL else f"{what}: cannot be copied.")
    finally:
        temporary.unlock(lock)


def _run(env: "Env", order: Order) -> int:
    """Serve on uvloop if it is installed, or else on asyncio's loop; returns the exit code."""
    try:
        import uvloop
    except ImportError:  # uvloop is optional, because it is not built for every platform
        new_loop = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop
    with _watched(order.temporary_directory), asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_run_until_told(order, partial(_serve, env, order)))


@contextmanager
def _watched(folder: str | None) -> Iterator[Watcher | None]:
    """Let somebody remove this temporary folder if this process is killed."""
    watcher = None if folder is None else Watcher(folder)
    try:
        yield watcher
    finally:
        if watcher is not None:
            watcher.end()


def _allow_open_files(env: "Env") -> None:
    """Raise the limit of open files to the hard limit; the usual 1024 are too few for segments and connections.

    Failure when a broker could not even start with so few.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if (most := env.disk.open_files_max()) < OPEN_FILES_MIN:
        why = f"this process may have {most} files open, and a broker needs {OPEN_FILES_MIN}, better some thousands"
        fail(f"{why}: raise the limit (ulimit -n).")


async def _run_until_told(
    order: Order, serve: Callable[[asyncio.Event], Awaitable[int]], kill: Callable[[], None] | None = None
) -> int:
    """Serve until a signal or the end of the parent; then remove temporary data.

    A second Ctrl-C or SIGTERM calls `kill`; without it, it ends the process at once.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            if kill is None:
                loop.remove_signal_handler(number)
            else:
                loop.add_signal_handler(number, kill)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(number, told_to_stop)
    if order.parent is not None:
        call_when_parent_is_gone(order.parent, partial(_end_with_parent, order.parent, loop, told_to_stop))
    if order.temporary_directory is None:
        return await serve(stop)
    try:
        temporary.make(order.temporary_directory)
    except OSError as error:
        why = f"{order.temporary_directory} cannot be made: {error.strerror}"
        fail(f"{why}. Set TMPDIR to a folder that can be written, or name a directory with --data.")
    try:
        if order.source is not None:
            await _copy_source(order.source, order.temporary_directory, stop)
            if stop.is_set():
                return ExitCode.DONE
        return await serve(stop)
    finally:
        temporary.remove(order.temporary_directory)


def _end_with_parent(parent: int, loop: asyncio.AbstractEventLoop, told_to_stop: Callable[[], None]) -> None:
    """Stop, because the parent is gone. Called in a thread.

    It sends no signal, because the broker may be stopping already, and a second signal would end it at once.
    """
    logger.info("process %d, which started this broker, is gone (--no-exit-with-parent would go on)", parent)
    with suppress(RuntimeError):  # the loop is closed: the broker has stopped meanwhile
        loop.call_soon_threadsafe(told_to_stop)


async def _serve(env: "Env", order: Order, stop: asyncio.Event) -> int:
    logger.info("the %s build of Barnabas starts", build_name())
    if order.config.control_start_waits and not await _is_told_to_begin(stop):
        return ExitCode.DONE
    await _finish_restores(env, order)
    if not order.config.control_enable:
        code = await _serve_once(env, order, stop, None)
        assert code is not None
        return code
    from barnabas.runtime.broken_machine import BreakableDisk, BreakableNetwork
    from barnabas.runtime.clock import MovableClock
    from barnabas.runtime.lives import Lives
    from barnabas.runtime.ports import Env

    clock, network = MovableClock(order.config.control_clock_ahead_ms), BreakableNetwork()
    env = Env(clock, BreakableDisk(syncs=order.config.control_sync_enable), network, env.rng, env.secret_rng)
    is_copy_or_kept = order.source is not None or order.temporary_directory is None
    lives = Lives(clock, env.disk, temporary.path_for(env.random_uuid().hex(), on_disk=is_copy_or_kept))
    config = order.config
    try:
        order = order._replace(config=config.twin())
        while (code := await _serve_once(env, order, stop, lives)) is None:
            try:
                await lives.between()
            except OSError as error:
                fail(f"{error.filename}: {error.strerror}.")
            network.begin_life()
            order = order._replace(config=config.twin())
    finally:
        lives.close()
    return code


async def _serve_once(env: "Env", order: Order, stop: asyncio.Event, lives: "Lives | None") -> int | None:
    """One life of a broker; returns the exit code, or None if tests want another life."""
    from barnabas.broker.broker import Broker
    from barnabas.cluster.registration import BrokerIdInUseError
    from barnabas.cluster.topic_names import OFFSETS_TOPIC
    from barnabas.cluster.tree.port import CoordinationError
    from barnabas.storage.directory_contents import DataDirectoryError

    data = ",".join(order.directories)
    try:
        broker = Broker(env, order.config, order.directories, choice=order.choice)
        if lives is not None:
            lives.begin()
            gate = cast("ControlledGate", broker.request_gate)
            gate.join(lives)
            broker.before_elections = partial(gate.before_elections, lives)
            broker.when_registered = lives.are_registered
            broker.looks_first = lives.number == 1 or lives.has_others
        if not await _start_unless_stopped(broker, stop):
            say("barnabas: stopped before it served. The next start looks at the data again.")
            return ExitCode.DONE
    except Exception as error:
        if lives is not None and await lives.goes_back(error):
            return None
        if isinstance(error, OSError):
            fail(_what_to_do(error, order.config, data))
        from barnabas.cluster.security.mechanism import LoginError
        from barnabas.runtime.tls import TlsError

        if isinstance(error, DataDirectoryError | CoordinationError | BrokerIdInUseError | TlsError | LoginError):
            fail(str(error))
        raise
    if lives is not None and lives.number > 1:
        await lives.serves()
    elif order.offsets_topic_first and not await ready.is_made_unless_stopped(broker, OFFSETS_TOPIC, stop):
        await broker.stop()
        return ExitCode.DONE
    snapshot = order.config.control_start_snapshot
    told_life = 2 if snapshot else 1  # the one that whoever has started this process hears of
    if lives is not None and lives.number != told_life:
        if snapshot and lives.number < told_life:
            await _begin_snapshot(broker, snapshot)
        return await _end_life(broker, stop, lives)
    if lives is not None and lives.failure:
        await broker.stop()
        fail(f"control.start.snapshot: {lives.failure}.")
    ready.print_line(broker, data, order)
    collect_seldom()
    if lives is not None:
        broker.http.load_soon()
    if order.temporary_directory is not None:
        temporary.remove_abandoned(order.temporary_directory)
    return await _end_life(broker, stop, lives)


async def _finish_restores(env: "Env", order: Order) -> None:
    """A process of this broker, or one of its cluster, may have been killed while it put a snapshot back."""
    own, tree = order.directories, order.config.coordination_path
    shared = [os.path.dirname(os.path.abspath(tree))] if tree else []
    for directory in (*shared, *own):
        for plan in (RESTORE_PLAN, RESTORED_PLAN):
            if env.disk.exists(f"{directory}/{plan}"):
                from barnabas.runtime import restoring  # late: hardly ever needed

                try:
                    if plan == RESTORE_PLAN:
                        await restoring.finish_if_begun(directory, own, env.disk)
                    else:
                        restoring.forget(directory)
                except FileNotFoundError:  # another broker of the cluster has done it
                    continue
                except OSError as error:
                    fail(f"{error.filename or directory}: {error.strerror}.")


async def _is_told_to_begin(stop: asyncio.Event) -> bool:
    """Wait for a line: somebody makes the data meanwhile. False: this is to stop. Failure: nobody will tell it."""
    from barnabas.broker.broker import Broker  # noqa: F401  (it takes most of a start)

    loop, is_told, descriptor = asyncio.get_running_loop(), asyncio.Event(), sys.stdin.fileno()
    try:
        loop.add_reader(descriptor, is_told.set)
    except OSError:  # a file, which keeps nobody waiting
        is_told.set()
    await one_is_set(is_told, stop)
    loop.remove_reader(descriptor)
    if stop.is_set():
        return False
    if not sys.stdin.readline():
        fail("control.start.waits: standard input has ended, and no line came.", ExitCode.NOT_VALID)
    return True


async def _begin_snapshot(broker: "Broker", folder: str) -> None:
    """Let this life end for a snapshot of what the broker begins with. Failure: there can be none."""
    from barnabas.broker.control import snapshots
    from barnabas.runtime.lives import SnapshotError

    try:
        snapshots.take(broker, os.path.abspath(folder))
    except SnapshotError as error:
        await broker.stop()
        fail(f"control.start.snapshot: {error}.", ExitCode.NOT_VALID)


async def _end_life(broker: "Broker", stop: asyncio.Event, lives: "Lives | None") -> int | None:
    """Wait until the broker is to end, and end it; returns the exit code, or None if tests want another life."""
    if lives is not None and await lives.end(stop):
        await cast("ControlledGate", broker.request_gate).end_life(lives)
        await broker.stop(hands_over=False, keeps_data=lives.keeps_data)
        return None
    await stop.wait()
    await broker.stop()
    return ExitCode.DONE


async def _start_unless_stopped(broker: "Broker", stop: asyncio.Event) -> bool:
    """Start the broker; False if it was told to stop before it served."""
    start = asyncio.ensure_future(broker.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not start.done():
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start
        return False
    start.result()
    return True


def _what_to_do(error: OSError, config: "BrokerConfig", data: str) -> str:
    """An error of the operating system as a sentence that says what to do."""
    from barnabas.broker.http.server import HttpAddressError
    from barnabas.runtime.network import HostNotFoundError

    if isinstance(error, HttpAddressError):
        what = "Choose another address with --set http.listeners=http://127.0.0.1:0 (a free port), or none."
        return f"the HTTP API {error.strerror}. {what}"
    if isinstance(error, HostNotFoundError):
        why = "a host in it cannot be found: no name server or hosts file knows its address"
        return f"cannot listen at {config.listeners}: {why}. Choose another with --listeners."
    if error.errno == errno.EADDRINUSE:
        return f"{config.listeners} is in use. Stop what listens there, or choose another port with --port."
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES) and error.filename is None:
        return f"this machine cannot listen at {config.listeners}: {error.strerror}. Choose another with --listeners."
    if error.errno in TOO_MANY_OPEN:
        return f"{error}. Raise the limit of open files (ulimit -n), or that of the system."
    if error.errno in DISK_FULL:
        where = error.filename or " or ".join(dict.fromkeys((data, config.coordination_path or data)))
        return f"{where}: {error.strerror}. Make room there (`df`, `df -i`), and start again."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{data} is not a directory that can be made or used: {error}. Name another one with --data."
    if error.errno in READ_ONLY:
        return f"{error.filename or data} cannot be used: {error.strerror}. Let this user read and write it."
    return str(error)
