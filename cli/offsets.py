"""`barnabas offsets`: list, set, delete, migrate the committed offsets of a group.

The commands that look back are in journal.py, what removes offsets also for topics that are gone in cleanup.py, those
that write and read files in backup.py.
"""

from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli import backup, journal
from barnabas.cli.cleanup import add_expiry, cleanup
from barnabas.cli.groups import tell_loading
from barnabas.cli.live_reset import Live, reset_live
from barnabas.cli.migration import migrate
from barnabas.cli.offset_targets import Destination, of_group, partitions_named
from barnabas.cli.shared.client import Key, admin, changed, commit, describe_groups, positions, result_of
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Columns, Yes, confirm, new_app, print_json, print_outcomes, print_rows
from barnabas.cli.shared.words import partition_of
from barnabas.runtime.counted import names_in_a_line

app = new_app("""Committed offsets of a group: list, set, delete, clean up, look back, put back, migrate, back up.

    \b
    barnabas offsets list billing
    barnabas offsets set billing --topic orders --to earliest --dry-run
    barnabas offsets set billing --topic orders:0,2 --to 2026-03-01T12:00 --yes
    barnabas offsets set billing --shift-by -10
    barnabas offsets delete billing --topic orders --yes
    barnabas offsets cleanup --group billing --gone
    barnabas offsets log billing --since 2h
    barnabas offsets undo billing
    barnabas offsets migrate --from zookeeper --group billing --dry-run
    barnabas offsets export offsets.jsonl
    barnabas offsets import offsets.jsonl --dry-run
    """)
Group = Annotated[str, typer.Argument(metavar="GROUP")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:P,P…]", help="A topic, or some of its partitions; repeat."),
]


@app.command("list")
def list_offsets(target: Target, group: Group, topic: Topics = None, as_json: AsJson = False) -> None:
    """What a group has committed, where each log ends, the lag, and when the offset expires.

    \b
    barnabas offsets list billing
    barnabas offsets list billing --topic orders:0 --json
    """
    with admin(target) as client:
        api = HttpApi(client, target)
        rows = positions(client, group, on_wait=partial(tell_loading, api))
        if topic:
            chosen = set(partitions_named(client, topic))
            rows = [row for row in rows if (row["topic"], row["partition"]) in chosen]
        if not rows:
            describe_groups(client, [group])  # ends the command when there is no such group
            fail(f"{group} has no committed offsets here.", ExitCode.NOTHING_THERE)
        warning = add_expiry(api, group, rows)
    if as_json:
        print_json([{name: value for name, value in row.items() if name != "expires"} for row in rows])
    else:
        print_rows(COMMITTED, rows)
    if warning is not None:
        say(f"barnabas: {warning}")


COMMITTED: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#committed": "committed_offset",
    "#log start": "log_start_offset",
    "#log end": "log_end_offset",
    "#lag": "lag",
    "expires": "expires",
    "metadata": lambda row: row["metadata"] or None,
}
MOVED: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#committed": "committed_offset",
    "#new": "new_offset",
    "#change": lambda row: None if row["committed_offset"] is None else row["new_offset"] - row["committed_offset"],
    "#log start": "log_start_offset",
    "#log end": "log_end_offset",
}


@app.command("set")
def set_offsets(
    target: Target,
    group: Group,
    destination: Destination,
    live: Live,
    topic: Topics = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed, change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Commit other offsets for a group.

    Without --topic for all it has committed. Shows the change first and asks.
    An offset outside the log is moved to its nearest end; of a file or a group it is refused.
    A time without a zone is local time; a record's timestamp at or after it is found.
    A group that has members needs --live: they must join again, and read on from there.
    A record that a member had before may still be processed, and its commit is refused.

    \b
    barnabas offsets set billing --to earliest --dry-run
    barnabas offsets set billing --topic orders --to latest --yes
    barnabas offsets set billing --topic orders:1 --to 1200
    barnabas offsets set billing --topic orders --to 2026-03-01T12:00:00+01:00
    barnabas offsets set billing --to 2h                    where it was then
    barnabas offsets set billing --shift-by -10
    barnabas offsets set billing --topic orders --to 2026-03-01T12:00 --live
    barnabas offsets set billing --to-file positions.csv --live --yes
    barnabas offsets set billing --to-group billing-canary --dry-run
    """
    place, wanted_offsets = destination.read()
    errors: dict[Key, str] = {}
    with admin(target) as client:
        chosen = partitions_named(client, topic) if topic else None
        if destination.to_group is not None:
            wanted_offsets = of_group(client, destination.to_group)
        if wanted_offsets is not None:
            chosen = [key for key in wanted_offsets if chosen is None or key in chosen]
            wanted_offsets = {key: wanted_offsets[key] for key in chosen}
        is_there = live.check(client, target, group, may_be_missing=chosen is not None)
        rows, outside = destination.plan(client, group, chosen, place, wanted_offsets)
        if not as_json:
            print_rows(MOVED, rows)
        if outside:
            say(f"What was asked for is outside the log of {names_in_a_line(outside)}: its nearest end is taken there.")
        if not is_there:
            say(f"There is no group {group} yet: this {'would make' if dry_run else 'makes'} it.")
        if not dry_run:
            confirm(f"Commit these offsets for {group}{', and let its members join again' if live.live else ''}?", yes)
            if live.live:
                reset_live(client, target, group, rows, live.live_wait_s, as_json=as_json)
                return
            errors = commit(
                client, group, {(row["topic"], row["partition"]): (row["new_offset"], "", -1) for row in rows}
            )
    outcomes = [_outcome(row, errors, dry_run) for row in rows]
    if as_json or not dry_run:
        print_outcomes("partition", outcomes, as_json)


def _outcome(row: dict[str, Any], errors: dict[Key, str], dry_run: bool) -> dict[str, Any]:
    outcome = {
        "partition": partition_of(row),
        "committed_offset": row["committed_offset"],
        "new_offset": row["new_offset"],
        "result": "not changed (dry run)" if dry_run else "committed",
    }
    error = errors.get((row["topic"], row["partition"]))
    return outcome if error is None else outcome | {"result": "not committed", "error": error}


@app.command()
def delete(target: Target, group: Group, topic: Topics = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Forget what a group has committed for some topics.

    \b
    barnabas offsets delete billing --topic orders
    barnabas offsets delete billing --topic orders:0,1 --yes
    barnabas groups delete billing                            for all of it
    """
    from kafka.structs import TopicPartition

    if not topic:
        fail("name the topics with --topic. (All of them: barnabas groups delete GROUP)", ExitCode.NOT_VALID)
    with admin(target) as client:
        describe_groups(client, [group])
        chosen = set(partitions_named(client, topic))
        rows = [row for row in positions(client, group) if (row["topic"], row["partition"]) in chosen]
        if not rows:
            fail(f"{group} has committed nothing for {' '.join(topic)}.", ExitCode.NOTHING_THERE)
        names = [partition_of(row) for row in rows]
        confirm(f"Forget the committed offsets of {group} for {', '.join(names)}?", yes)
        gone = [TopicPartition(row["topic"], row["partition"]) for row in rows]
        results = changed(client, lambda: client.delete_group_offsets(group, gone))
    outcomes = [
        {"partition": f"{partition.topic}-{partition.partition}", **result_of("deleted", error.errno)}
        for partition, error in sorted(results.items())
    ]
    print_outcomes("partition", outcomes, as_json)


app.command()(cleanup)
app.command("log")(journal.log)
app.command("diff")(journal.diff)
app.command("restore")(journal.restore)
app.command("undo")(journal.undo)
app.command()(backup.export)
app.command("import")(backup.import_)
app.command()(migrate)
