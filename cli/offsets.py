"""`barnabas offsets`: list, set, delete, migrate the committed offsets of a group.

The commands that look back are in journal.py, what removes offsets also for topics that are gone in cleanup.py, those
that write and read files in backup.py.
"""

from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli import backup, journal
from barnabas.cli.cleanup import add_expiry, cleanup, warn
from barnabas.cli.groups import tell_loading
from barnabas.cli.migration import migrate
from barnabas.cli.offset_targets import choose, of_group, partitions_named, place_of, read_file, set_wanted
from barnabas.cli.shared.client import admin, changed, describe_groups, positions, reason, refuse_members
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import (
    INT64_MAX,
    AsJson,
    Yes,
    confirm,
    new_app,
    print_json,
    print_outcomes,
    print_rows,
)
from barnabas.cli.shared.words import partition_of

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
        warn(warning)
        return
    print_rows(
        {
            "topic": "topic",
            "#partition": "partition",
            "#committed": "committed_offset",
            "#log start": "log_start_offset",
            "#log end": "log_end_offset",
            "#lag": "lag",
            "expires": "expires",
            "metadata": lambda row: row["metadata"] or None,
        },
        rows,
    )
    warn(warning)


@app.command("set")
def set_offsets(
    target: Target,
    group: Group,
    topic: Topics = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="earliest, latest, an offset, or a time such as 2026-03-01T12:00."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(min=-INT64_MAX, max=INT64_MAX, metavar="N", help="Forward by N records; negative: back."),
    ] = None,
    to_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The offsets of a file: CSV (topic,partition,offset) or JSON."),
    ] = None,
    to_group: Annotated[
        str | None, typer.Option(metavar="OTHER", help="The offsets that another group has committed.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="The group has members: they stop, and read on from there.")
    ] = False,
    wait: journal.LiveWait = 60.0,
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
    barnabas offsets set billing --shift-by -10
    barnabas offsets set billing --topic orders --to 2026-03-01T12:00 --live
    barnabas offsets set billing --to-file positions.csv --live --yes
    barnabas offsets set billing --to-group billing-canary --dry-run
    """
    from kafka.structs import OffsetAndMetadata, TopicPartition

    if [to, shift_by, to_file, to_group].count(None) != 3:
        fail("say one of --to WHERE, --shift-by N, --to-file FILE, --to-group OTHER.", ExitCode.NOT_VALID)
    place = place_of(to) if to is not None else None
    wanted_offsets = read_file(to_file) if to_file is not None else None
    with admin(target) as client:
        chosen = partitions_named(client, topic) if topic else None
        if to_group is not None:
            describe_groups(client, [to_group])
            wanted_offsets = of_group(client, to_group)
        if wanted_offsets is not None:
            if chosen is not None:
                wanted_offsets = {key: offset for key, offset in wanted_offsets.items() if key in set(chosen)}
            chosen = list(wanted_offsets)
        if live:
            HttpApi(client, target).entry()  # a live reset goes over HTTP: better said before the plan than behind it
        is_new = not _is_there(client, group, may_be_new=chosen is not None, may_live=live)
        rows = positions(client, group, extra=chosen or ())
        if chosen is not None:
            rows = [row for row in rows if (row["topic"], row["partition"]) in chosen]
        rows = [row for row in rows if row["log_end_offset"] is not None]
        if wanted_offsets is not None:
            set_wanted(rows, wanted_offsets, to_file or f"what {to_group} has committed")
        if not rows:
            fail(f"{group} has committed nothing yet: name the topics with --topic.", ExitCode.NOTHING_THERE)
        moved = choose(client, rows, place, shift_by) if wanted_offsets is None else []
        if not as_json:
            print_rows(
                {
                    "topic": "topic",
                    "#partition": "partition",
                    "#committed": "committed_offset",
                    "#new": "new_offset",
                    "#change": lambda row: (
                        None if row["committed_offset"] is None else row["new_offset"] - row["committed_offset"]
                    ),
                    "#log start": "log_start_offset",
                    "#log end": "log_end_offset",
                },
                rows,
            )
        if moved:
            names = ", ".join(moved[:10]) + (", …" if len(moved) > 10 else "")
            say(f"What was asked for is outside the log of {names}: its nearest end is taken there.")
        if is_new:
            say(f"There is no group {group} yet: {'this would make' if dry_run else 'this makes'} it.")
        if not dry_run:
            stops = ", and let its members join again" if live else ""
            confirm(f"Commit these offsets for {group}{stops}?", yes)
            if live:
                from barnabas.cli.live_reset import reset_live

                reset_live(client, target, group, rows, wait, as_json=as_json)
                return
            wanted = {
                TopicPartition(row["topic"], row["partition"]): OffsetAndMetadata(row["new_offset"], "", -1)
                for row in rows
            }
            results = changed(client, lambda: client.alter_group_offsets(group, wanted))
    outcomes = [
        {
            "partition": partition_of(row),
            "committed_offset": row["committed_offset"],
            "new_offset": row["new_offset"],
            "result": "not changed (dry run)" if dry_run else "committed",
        }
        for row in rows
    ]
    if dry_run:
        if as_json:
            print_json(outcomes)
        return
    for row, partition in zip(outcomes, wanted):
        if results[partition].errno:
            row |= {"result": "not committed", "error": reason(results[partition].errno)}
    print_outcomes("partition", outcomes, as_json)


@app.command()
def delete(
    target: Target,
    group: Group,
    topic: Topics = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
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
    outcomes = []
    for partition, error in sorted(results.items()):
        row = {"partition": f"{partition.topic}-{partition.partition}", "result": "deleted"}
        if error.errno:
            row |= {"result": "not deleted", "error": reason(error.errno)}
        outcomes.append(row)
    print_outcomes("partition", outcomes, as_json)


def _is_there(client: Any, group: str, *, may_be_new: bool, may_live: bool) -> bool:
    """Whether there is such a group. A missing one, or one with members, ends the command where it may not be so."""
    described = describe_groups(client, [group], may_be_missing=may_be_new)
    if not may_live:
        refuse_members(group, described)
    return group in described


app.command()(cleanup)
app.command("log")(journal.log)
app.command("diff")(journal.diff)
app.command("restore")(journal.restore)
app.command("undo")(journal.undo)
app.command()(backup.export)
app.command("import")(backup.import_)
app.command()(migrate)
