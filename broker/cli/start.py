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
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A server.properties file, Kafka's own too.")] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data lives (log.dirs); else ./data.")] = None,
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
