"""`barnabas start`: one broker process, until it is told to stop."""

import argparse
import asyncio
import errno
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from barnabas.broker.cli.exits import ExitCode, fail, key_values, say

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker
    from barnabas.config.broker import BrokerConfig
    from barnabas.runtime.ports import Env

DESCRIPTION = """Serve until Ctrl-C or SIGTERM. Nothing else needs to run: coordination is in the data directory.
What is said later wins: the file, --profile, --set, then --data, --port and --listeners."""

EXAMPLES = """examples:
  barnabas start
  barnabas start --port 0 --data /tmp/try
  barnabas start --config server.properties --set num.partitions=3
  barnabas start --listeners PLAINTEXT://0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://kafka.example:9092
  barnabas start --profile ci --port 0 --json        for tests: one line of JSON when it serves"""


def run(words: Sequence[str]) -> int:
    """`barnabas start` with these words; the exit code."""
    said = _parser().parse_args(words)
    logging.basicConfig(
        stream=sys.stderr, level=said.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    from barnabas.runtime.env import real

    env = real()
    given = key_values(said.settings, "--set")
    if said.data is not None:
        if "," in said.data:
            fail("--data names one directory; say several as --set log.dirs=FIRST,SECOND.", ExitCode.NOT_VALID)
        given["log.dirs"] = said.data
    if said.listeners is not None:
        given["listeners"] = said.listeners
    config = _configure(env, said.config, said.profile, given, said.port)
    return _run(env, config, said.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="barnabas start",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="a server.properties file, Kafka's own too")
    add("--data", metavar="DIR", help="where the data lives (log.dirs); else ./data")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--port", type=_port, metavar="N", help="listen on this port; 0 takes a free one")
    where.add_argument("--listeners", metavar="LIST", help="as in Kafka, for example PLAINTEXT://0.0.0.0:9092")
    add("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeat")
    add("--profile", metavar="NAME", help="ci: no waiting, small, for tests; prints what it changes")
    add("--json", action="store_true", help="print the ready line as JSON")
    levels = ("debug", "info", "warning", "error")
    add("--log-level", default="info", choices=levels, help="what goes to standard error; info, when not given")
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _configure(
    env: "Env", path: str | None, profile: str | None, given: dict[str, str], port: int | None
) -> "BrokerConfig":
    """Everything that was said about this broker, checked; what is wrong ends the command, all of it at once."""
    from barnabas.config import __file__ as config_package
    from barnabas.config import profiles, properties
    from barnabas.config.broker import BrokerConfig
    from barnabas.config.settings import ConfigError

    source = path or os.path.join(os.path.dirname(config_package), "server.properties")
    try:
        file = properties.read(_text_of(env, source))
    except properties.PropertiesError as error:
        fail(f"{source}: {error}", ExitCode.NOT_VALID)
    values = dict(file.values)
    if profile is not None:
        try:
            changes = list(profiles.changes(profile, values))
        except ConfigError as error:
            fail(str(error), ExitCode.NOT_VALID)
        values |= profiles.settings(profile)
        say(f"profile {profile}: " + ", ".join(f"{key}={text}" for key, _, text in changes))
    values |= given
    if port is not None:
        values["listeners"] = _with_port(values.get("listeners") or "PLAINTEXT://:9092", port)
    lines = {key: line for key, line in file.lines.items() if values[key] == file.values[key]}
    said = properties.Properties(values, lines)
    try:
        config = BrokerConfig.of(values)
    except ConfigError:
        for complaint in properties.complaints(path or "command line", said):
            say(f"barnabas: {complaint}")
        raise SystemExit(ExitCode.NOT_VALID) from None
    for note in properties.notes(source, said) if path is not None else ():
        say(f"barnabas: {note}")
    if len(set(map(os.path.abspath, config.data_directories))) < len(config.data_directories):
        fail("log.dirs names a directory twice: name each once.", ExitCode.NOT_VALID)
    return config


def _text_of(env: "Env", path: str) -> str:
    try:
        handle = env.disk.open(os.path.abspath(path), read_only=True)
        try:
            content = handle.read(0, handle.size())
        finally:
            handle.close()
    except FileNotFoundError:
        fail(f"there is no file {path}: --config names a server.properties.", ExitCode.NOT_VALID)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}. Let this user read it, or name another.", ExitCode.NOT_VALID)
    try:
        return content.decode()
    except UnicodeDecodeError:  # what Java would write
        return content.decode("latin-1")


def _with_port(listeners: str, port: int) -> str:
    """The list with another port in its first listener."""
    first, comma, rest = listeners.partition(",")
    return f"{first.rpartition(':')[0]}:{port}{comma}{rest}"


def collect_seldom() -> None:
    """What the garbage collector does while a broker serves."""
    # What was made to start lives as long as the process: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    # A request leaves nothing behind for the collector, so it may look seldom, at what state has grown since.
    gc.set_threshold(10_000, 10, 100)
    gc.enable()


def _run(env: "Env", config: "BrokerConfig", as_json: bool) -> int:
    """Serve on the fastest loop there is; the exit code."""
    _allow_open_files()
    gc.disable()  # until it serves: what is made to start stays
    try:
        import uvloop
    except ImportError:  # an optional speed-up: not built for every platform
        new_loop = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(env, config, as_json))


def _allow_open_files() -> None:
    """As many as the system lets this user have: the usual 1024 is not enough for segments and connections."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(env: "Env", config: "BrokerConfig", as_json: bool) -> int:
    from barnabas.broker.broker import Broker
    from barnabas.coordination.port import CoordinationError
    from barnabas.storage.log_directory import DataDirectoryError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def told_to_stop() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)  # a second Ctrl-C ends it at once

    for number in signals:
        loop.add_signal_handler(number, told_to_stop)
    directories = tuple(map(os.path.abspath, config.data_directories))
    data = ",".join(directories)
    broker = Broker(env, config, directories)
    try:
        if not await _start_unless_stopped(broker, stop):
            say("barnabas: stopped before it served. The next start looks at the data again.")
            return ExitCode.DONE
    except (DataDirectoryError, CoordinationError) as error:
        say(f"barnabas: {error}")
        return ExitCode.FAILED
    except OSError as error:
        say(f"barnabas: {_what_to_do(error, config, data)}")
        return ExitCode.FAILED
    ready = {
        "event": "ready",
        "bootstrap": broker.bootstrap,
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "data": data,
        "pid": os.getpid(),
    }
    if as_json:
        print(json.dumps(ready), flush=True)
    else:
        who = f"node {broker.node_id}, cluster {broker.cluster_id}, data in {data}"
        print(f"Barnabas serves at {broker.bootstrap} ({who}). Ctrl-C stops it.", flush=True)
    collect_seldom()
    await stop.wait()
    await broker.stop()
    return ExitCode.DONE


async def _start_unless_stopped(broker: "Broker", stop: asyncio.Event) -> bool:
    """Start the broker; False when it was told to stop meanwhile."""
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
    """An error of the operating system as a sentence with a way out."""
    if error.errno == errno.EADDRINUSE:
        return f"{config.listeners} is in use. Stop what listens there, or choose another port with --port."
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES) and error.filename is None:
        return f"this machine cannot listen at {config.listeners}: {error.strerror}. Choose another with --listeners."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or data} cannot be used: {error.strerror}. Let this user read and write it."
    return str(error)
