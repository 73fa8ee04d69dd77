"""`barnabas replay`: send again what clients have asked, and say what is answered differently."""

import json
from typing import Annotated

import typer
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json
from barnabas.cli.shared.words import shown
from barnabas.protocol.as_json import error_name
from barnabas.runtime.counted import counted
from barnabas.testing.replay import Difference, SessionError, replaying

app = new_app()


@app.command("replay")
def replay_session(
    target: Target,
    session: Annotated[
        typer.FileText, typer.Argument(metavar="FILE", help="What `barnabas trace --kept --frames --json` has printed.")
    ],
    paced: Annotated[bool, typer.Option("--paced", help="Not faster than it came.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send the requests of a session again, in their order, and say what is answered differently.

    To the same broker, when its data is again as it was before, or to any other one, Apache Kafka also.
    What a broker gives out (member ids, generations, producer ids) is put into the requests that follow.
    Exit code 1 if an answer differs.

    \b
    barnabas trace --kept --frames --json > session.jsonl
    barnabas replay session.jsonl
    """
    try:
        rows = [json.loads(line) for line in session if line.strip()]
    except (ValueError, RecursionError) as error:
        fail(f"{session.name} is not a session: {error}. Make one with barnabas trace --kept --frames --json.")
    if not rows:
        fail(f"{session.name} is empty. Make a session with barnabas trace --kept --frames --json.")
    bootstrap = target.reach()
    found = 0
    try:
        for each in replaying(rows, bootstrap, timeout_s=target.timeout_s, paced=paced, progress=target.renew):
            found += 1
            _print(each, as_json)
    except SessionError as error:
        fail(f"{error}.")
    except OSError as error:
        fail(f"the brokers of {bootstrap} do not answer any more: {error}.")
    if not as_json:
        say(f"{counted(len(rows), 'request')} sent again, {counted(found, 'difference')}.")
    if found:
        raise typer.Exit(ExitCode.FAILED)


def _print(each: Difference, as_json: bool) -> None:
    if as_json:
        print_json(each._asdict())
        return
    field = f" {each.field}" if each.field else ""
    before, now = (_named(each.field, value) for value in (each.recorded, each.now))
    what = f"request {each.number} ({each.api} of {each.client_id}):{field} was {before}, is {now}"
    print(shown(what), flush=True)


def _named(field: str, value: object) -> object:
    return error_name(value) if field.endswith("error_code") and isinstance(value, int) else value
