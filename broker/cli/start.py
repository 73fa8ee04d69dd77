"""`barnabas start`: one broker process, until it is told to stop."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from barnabas.broker.cli.terminal import ExitCode, fail, key_values, new_app, say

if TYPE_CHECKING:
    from barnabas.config.broker import BrokerConfig
    from barnabas.runtime.ports import Env

app = new_app()

DEFAULT_DATA = "data"


@app.command()
def start(
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="A server.properties file, Kafka's own too.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the data lives (log.dirs); else ./data.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Listen on this port; 0 takes a free one.")
    ] = None,
    listeners: Annotated[
        str | None, typer.Option(metavar="LIST", help="As in Kafka, for example PLAINTEXT://0.0.0.0:9092.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the file; repeat.")
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="ci: no waiting, small, for tests.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error, to standard error.")
    ] = "info",
) -> None:
    """Serve until Ctrl-C or SIGTERM. The broker's own coordination is in the data directory; nothing else runs.

    What is said later wins: the file, --profile, --set, then --data, --port and --listeners.

    \b
    barnabas start
    barnabas start --port 0 --data /tmp/try
    barnabas start --config server.properties --set num.partitions=3
    barnabas start --listeners PLAINTEXT://0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://kafka.example:9092
    barnabas start --profile ci --port 0 --json        for tests: one line of JSON when it serves
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        fail(f"--log-level is debug, info, warning or error, not {log_level!r}.", ExitCode.NOT_VALID)
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if port is not None and listeners is not None:
        fail("--port and --listeners exclude each other.", ExitCode.NOT_VALID)
    from barnabas.runtime.env import real

    env = real()
    given = key_values(settings or [], "--set")
    if data is not None:
        given["log.dirs"] = data
    if listeners is not None:
        given["listeners"] = listeners
    broker_config = _configure(env, config, profile, given, port)
    raise typer.Exit(_run(env, broker_config, as_json))


def _configure(
    env: "Env", path: str | None, profile: str | None, given: Mapping[str, str], port: int | None
) -> "BrokerConfig":
    """Everything that was said about this broker, checked; what is wrong ends the command, all of it at once."""
    from barnabas.config import profiles, properties
    from barnabas.config.broker import BrokerConfig, problems

    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    if path is not None:
        try:
            file = properties.read(_text_of(env, path))
        except properties.PropertiesError as error:
            fail(f"{path}: {error}", ExitCode.NOT_VALID)
        values, lines = file.values, file.lines
    if profile is not None:
        pass
    values |= given


def _run(env: "Env", config: "BrokerConfig", as_json: bool) -> int:
    """Serve on the fastest loop there is; the exit code."""
    try:
        import uvloop
    except ImportError:  # an optional speed-up: not built for every platform
        new_loop = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(env, config, as_json))


async def _serve(env: "Env", config: "BrokerConfig", as_json: bool) -> int:
    from barnabas.broker.broker import Broker
    from barnabas.storage.log_manager import DataDirectoryError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    data = os.path.abspath(config.data_directories[0])
    broker = Broker(env, config, data)
    try:
        await broker.start()
    except DataDirectoryError as error:
        say(f"barnabas: {error}")
        return ExitCode.FAILED
    except OSError as error:
        say(f"barnabas: {_what_to_do(error, config)}")
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
        print(
            f"Barnabas serves at {broker.bootstrap} (node {broker.node_id}, cluster {broker.cluster_id}, data in {data}). "
            "Ctrl-C stops it.",
            flush=True,
        )
    # What was made to start lives as long as the process: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    await stop.wait()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)  # a second Ctrl-C ends it at once
    await broker.stop()
    return ExitCode.DONE
