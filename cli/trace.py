"""`barnabas trace`: what clients ask and get, as it comes, from brokers that tests may command (`control.enable`)."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import admin
from barnabas.cli.shared.client import client_id as own_client_id
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json
from barnabas.cli.shared.words import shown
from barnabas.protocol.as_json import error_names
from barnabas.runtime.clock import RealClock

app = new_app()

PATH = "/v1/control/requests"
LOOK_MS = 200.0


@app.command()
def trace(
    target: Target,
    api: Annotated[str | None, typer.Option(metavar="NAME", help="Only this API, as OffsetCommit.")] = None,
    client_id: Annotated[str | None, typer.Option("--client", metavar="ID", help="Only this client.id.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only requests that name this group.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only requests that name this topic.")] = None,
    kept: Annotated[bool, typer.Option("--kept", help="Show what the brokers have kept, and end.")] = False,
    with_frames: Annotated[
        bool, typer.Option("--frames", help="With --json: with the bytes of each request, for barnabas replay.")
    ] = False,
    lint: Annotated[
        bool, typer.Option("--lint", help="Say what the clients could do better, and end: exit code 1 if anything.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the requests of clients and their answers, decoded, as they come, until Ctrl-C.

    For brokers with `--profile ci` or `control.enable=true`. With --json, each is one line of JSON.

    \b
    barnabas trace
    barnabas trace --client billing-1 --api JoinGroup
    barnabas trace --group billing --kept --json
    barnabas trace --kept --frames --json > session.jsonl
    barnabas trace --lint
    """
    if with_frames and not as_json:
        fail("--frames goes with --json only.", ExitCode.NOT_VALID)
    frames = "true" if with_frames else None
    filters = {"api": api, "client": client_id, "group": group, "topic": topic, "frames": frames}
    with admin(target) as client:
        http = HttpApi(client, target)
        if lint:
            if api or group or topic or kept or with_frames:
                fail("--lint goes with --client only.", ExitCode.NOT_VALID)
            raise typer.Exit(_lint(http, client_id, as_json))
        following: dict[int, int] = {}
        # Without --kept, what has come before is passed over.
        rows = list(_new(http, filters, following))
        if kept:
            _print(rows, as_json)
            return
        if not as_json:
            say("waiting for requests of clients; Ctrl-C ends it.")
        clock = RealClock()
        while True:
            target.renew()
            asyncio.run(clock.sleep(LOOK_MS))
            _print(_new(http, filters, following), as_json)


def _lint(http: HttpApi, client_id: str | None, as_json: bool) -> int:
    """Print what the brokers have found; returns the exit code."""
    query = {"client": client_id}
    found = [
        {**row, "node_id": node_id}
        for node_id in http.brokers()
        for row in http.ask("GET", "/v1/control/lint", query=query, node_id=node_id)["findings"]
    ]
    for row in found:
        if as_json:
            print_json(row)
            continue
        about = f" (group {row['about']})" if row["about"] else ""
        print(shown(f"{row['client_id']}{about}: {row['rule']}: {row['message']}"))
        print(shown(f"    better: {row['setting']}"))
    if not found and not as_json:
        say("nothing to say about the requests that are kept.")
    return ExitCode.FAILED if found else ExitCode.DONE


def _new(http: HttpApi, filters: dict[str, str | None], following: dict[int, int]) -> Iterator[dict[str, Any]]:
    """What others have asked each broker since the last look; `following` has the numbers from which to look."""
    own = own_client_id()
    for node_id in http.brokers():
        while True:
            query = {**filters, "since": following.get(node_id, 0)}
            answer = http.ask("GET", PATH, query=query, node_id=node_id)
            following[node_id] = answer["next"]
            if not answer["requests"]:
                break
            yield from ({**row, "node_id": node_id} for row in answer["requests"] if row["client_id"] != own)
    if not following:
        fail("no broker serves. Start one with `barnabas start --profile ci`.")


def _print(rows: Iterator[dict[str, Any]] | list[dict[str, Any]], as_json: bool) -> None:
    for row in rows:
        if as_json:
            print_json(row)
        else:
            print(shown(_line(row)), flush=True)


def _line(row: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(row["time_ms"] / 1000).strftime("%H:%M:%S.%f")[:-3]
    about = ", ".join([*row["groups"], *row["topics"], *row["transactional_ids"]])
    said = "".join(f", {name}" for name in error_names(row["answer"]))
    took = "" if row["answered_ms"] is None else f" in {row['answered_ms'] - row['time_ms']} ms"
    rule = "" if row["rule"] is None else f", by fault {row['rule']}"
    what = f"{row['api']} v{row['version']}" + (f" ({about})" if about else "")
    return f"{at}  broker {row['node_id']}  {row['client_id']}  {what}: {row['fate']}{took}{said}{rule}"
