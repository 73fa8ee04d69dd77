"""`barnabas records`: delete."""

import shlex
from typing import Annotated, Any

import typer
from barnabas.cli.offset_targets import choose, partitions_named, place_of
from barnabas.cli.shared.client import admin, answered, offsets_at, result_of
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.moments import A_TIME
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Columns, Yes, confirm, new_app, print_json, print_outcomes, print_rows
from barnabas.cli.shared.words import partition_of
from barnabas.runtime.counted import counted

app = new_app("""Records: delete the oldest of a topic.

    \b
    barnabas records delete orders:0 --before 4711 --dry-run
    barnabas records delete orders --before 7d                 all that is older
    barnabas records delete orders --before latest --yes       all of them
    """)


PLANNED: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#log start": "log_start_offset",
    "#new start": "new_offset",
    "#log end": "log_end_offset",
    "#offsets that go": lambda row: row["new_offset"] - row["log_start_offset"],
}


@app.callback()
def _records() -> None:  # with one command alone, typer would take away its name
    pass


@app.command()
def delete(
    target: Target,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC[:P,P…]", help="A topic, or some of its partitions.")],
    before: Annotated[str, typer.Option(metavar="WHERE", help=f"An offset, latest (all), or {A_TIME}.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the records before an offset or a time, for good. The topic stays, and its offsets go on.

    Shows first what goes, and asks. With a time, the log begins with the first
    record of that time or later. Groups that have not read on lose these records.

    \b
    barnabas records delete orders:0,2 --before 4711
    barnabas records delete orders --before latest --dry-run
    """
    from kafka.structs import TopicPartition

    place = place_of(before, "--before")
    with admin(target) as client:
        rows = _planned(client, topics, place)
        if not rows:
            fail(f"{' '.join(topics)} has no record before {before}.", ExitCode.NOTHING_THERE)
        count = sum(row["new_offset"] - row["log_start_offset"] for row in rows)
        if not as_json:
            print_rows(PLANNED, rows)
        outcomes = [
            {
                "partition": partition_of(row),
                "log_start_offset": row["log_start_offset"],
                "new_log_start_offset": row["new_offset"],
                "result": "not changed (dry run)",
            }
            for row in rows
        ]
        if dry_run:
            if as_json:
                print_json(outcomes)
            return
        confirm(f"Delete {counted(count, 'record')} at most, for good?", yes)
        wanted = {TopicPartition(row["topic"], row["partition"]): row["new_offset"] for row in rows}
        results = answered(client, lambda: client.delete_records(wanted))
    for row, partition in zip(outcomes, wanted):
        error_code = results[partition]["error_code"]
        row |= result_of("deleted", error_code, asked=f"delete topic {shlex.quote(partition.topic)}")
        if not error_code:
            row["new_log_start_offset"] = results[partition]["low_watermark"]
    print_outcomes("partition", outcomes, as_json)


def _planned(client: Any, topics: list[str], place: Any) -> list[dict[str, Any]]:
    """The partitions that lose records before this place, each with where its log begins then."""
    from kafka.admin import OffsetSpec
    from kafka.structs import TopicPartition

    partitions = [TopicPartition(*each) for each in partitions_named(client, topics)]
    starts = offsets_at(client, partitions, OffsetSpec.EARLIEST)
    ends = offsets_at(client, partitions, OffsetSpec.LATEST)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "log_start_offset": starts[each].offset,
            "log_end_offset": ends[each].offset,
            "committed_offset": None,
        }
        for each in partitions
    ]
    choose(client, rows, place, None)
    return [row for row in rows if row["new_offset"] > row["log_start_offset"]]
