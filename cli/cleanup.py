"""`barnabas offsets cleanup`, and when committed offsets expire."""

from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli.groups import tell_loading
from barnabas.cli.offset_targets import named
from barnabas.cli.shared.client import admin, answered, await_coordinators
from barnabas.cli.shared.exits import ExitCode, Failure, fail
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Columns, Yes, confirm, print_outcomes, print_rows
from barnabas.cli.shared.words import duration, partition_of
from barnabas.runtime.counted import counted

GROUP_PATH = "/v1/groups/{group}"
CLEANUP_PATH = "/v1/groups/{group}/offsets-cleanup"
AT_ONCE = 5_000  # offsets in one request, which may have 1 MiB
KEPT = {
    "members": "never while members live",
    "transaction": "never while its transaction is open",
    "tree": "never: it is in the coordination tree",
}
TOPIC_STATES = {"there": None, "gone": "the topic or partition is gone", "another": "another topic has that name now"}


def cleanup(
    target: Target,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="Whose offsets.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:P,P…]", help="Only of a topic, which may be gone, or of some partitions."
        ),
    ] = None,
    gone: Annotated[bool, typer.Option("--gone", help="Only of topics and partitions that are gone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove what a group has committed, also for topics that are gone.

    Shows the offsets and asks, removes them, and reads back.
    A group with members is refused: stop its consumers first.

    \b
    barnabas offsets cleanup --group billing --dry-run
    barnabas offsets cleanup --group billing --gone --yes
    barnabas offsets cleanup --group billing --topic orders-old --topic orders:7
    """
    wanted = [named(one) for one in topic] if topic else None
    with admin(target) as client:
        api = HttpApi(client, target)
        await_coordinators(client, [group], partial(tell_loading, api))
        document = api.get(GROUP_PATH, group=group)
        refuse_members(group, document)
        rows = chosen(document["offsets"], wanted, gone)
        if gone:
            rows = really_gone(client, rows)
        if not rows:
            fail(f"{group} has committed nothing of that kind.", ExitCode.NOTHING_THERE)
        if not as_json:
            columns: Columns = {
                "topic": "topic",
                "#partition": "partition",
                "#committed": "offset",
                "expires": lambda row: expires(row, document["time_ms"]),
                "note": lambda row: TOPIC_STATES[row["topic_state"]],
            }
            print_rows(columns, rows)
        if dry_run:
            if as_json:
                print_outcomes("partition", [outcome(row, "not removed (dry run)") for row in rows], as_json)
            return
        what = "this committed offset" if len(rows) == 1 else f"these {len(rows)} committed offsets"
        confirm(f"Remove {what} of {group}?", yes)
        refusal = remove(api, group, rows)
        left = {(row["topic"], row["partition"]): row["offset"] for row in offsets_now(api, group)}
    outcomes = []
    for row in rows:
        committed = left.get((row["topic"], row["partition"]))
        done = outcome(row, "removed" if committed is None else "not removed")
        if committed is not None:
            done["error"] = f"{committed} is committed now: {refusal}"
        outcomes.append(done)
    print_outcomes("partition", outcomes, as_json)


def remove(api: HttpApi, group: str, rows: list[dict[str, Any]]) -> str:
    """Remove them, up to `AT_ONCE` together. Returns the reason for those that are still there afterwards."""
    for start in range(0, len(rows), AT_ONCE):
        seen = [{name: row[name] for name in ("topic", "partition", "offset")} for row in rows[start:][:AT_ONCE]]
        try:
            api.post(CLEANUP_PATH, {"offsets": seen}, group=group)
        except Failure as failure:
            if not start:
                raise
            return f"the request for it was refused, or not made: {failure.message}"
    return "another client has written"


def outcome(row: dict[str, Any], result: str) -> dict[str, Any]:
    """What became of an offset."""
    return {"partition": partition_of(row), "committed_offset": row["offset"], "result": result}


def offsets_now(api: HttpApi, group: str) -> list[dict[str, Any]]:
    """The committed offsets; none, if the group is gone with them."""
    try:
        found: list[dict[str, Any]] = api.get(GROUP_PATH, group=group)["offsets"]
    except Failure as failure:
        if failure.code == ExitCode.NOTHING_THERE:
            return []
        raise
    return found


def refuse_members(group: str, document: dict[str, Any]) -> None:
    count = len(document["members"])
    if count or document["state"] != "Empty":
        who = counted(count, "member") if count else "members that are joining"
        fail(f"{group} has {who}, which would commit again. Stop its consumers first.")


def chosen(
    rows: list[dict[str, Any]], wanted: list[tuple[str, set[int] | None]] | None, gone: bool
) -> list[dict[str, Any]]:
    """The committed offsets that are meant."""
    return [
        row
        for row in rows
        if (
            wanted is None
            or any(row["topic"] == name and (which is None or row["partition"] in which) for name, which in wanted)
        )
        and (not gone or row["topic_state"] != "there")
    ]


def really_gone(client: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose partition no broker that is asked knows: a coordinator may not have heard of a new topic yet."""
    names = sorted({row["topic"] for row in rows})
    topics = answered(client, lambda: client.describe_topics(names)) if names else []
    there = {(topic["name"], partition["partition_index"]) for topic in topics for partition in topic["partitions"]}
    return [row for row in rows if row["topic_state"] == "another" or (row["topic"], row["partition"]) not in there]


# ---- expiry ----


def expires(row: dict[str, Any], now_ms: int) -> str:
    """`in 6 d 3 h`, `never while members live`, `at the next check`."""
    if row["expires_ms"] is None:
        return KEPT[row["kept_by"]]
    left_ms = row["expires_ms"] - now_ms
    return f"in {duration(left_ms / 1000)}" if left_ms > 0 else "at the next check"


def add_expiry(api: HttpApi, group: str, rows: list[dict[str, Any]]) -> str | None:
    """Give rows of `offsets list` their expiry; None where there is no HTTP API to ask. Returns a warning, if any."""
    document: dict[str, Any] = {"offsets": [], "time_ms": 0, "expiry_warning_ms": 0}
    with suppress(Failure):
        document = api.get(GROUP_PATH, group=group)
    known = {(row["topic"], row["partition"]): row for row in document["offsets"]}
    soon = []
    for row in rows:
        found = known.get((row["topic"], row["partition"]))
        row["expires_ms"] = row["kept_by"] = row["expires"] = None
        if found is None or row["committed_offset"] is None:
            continue
        row["expires_ms"], row["kept_by"] = found["expires_ms"], found["kept_by"]
        row["expires"] = expires(found, document["time_ms"])
        if (
            found["expires_ms"] is not None
            and found["expires_ms"] - document["time_ms"] <= document["expiry_warning_ms"]
        ):
            soon.append(found["expires_ms"])
    if not soon:
        return None
    left = duration(max(0, min(soon) - document["time_ms"]) / 1000)
    return (
        f"{group}: {counted(len(soon), 'committed offset expires', 'committed offsets expire')} soon, the first in "
        f"{left}. What is committed stays if the group's consumers come back or commit; "
        "offsets.retention.minutes says how long it stays without."
    )
