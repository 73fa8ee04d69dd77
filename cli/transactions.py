"""`barnabas transactions`: list, describe, find those that hang, abort."""

from typing import Annotated, Any

import typer
from barnabas.cli.abort_transaction import abort
from barnabas.cli.open_transactions import (
    OPEN_STATES,
    Described,
    Ends,
    Listed,
    Open,
    State,
    abort_words,
    describe_transaction,
    describe_transactions,
    ends_of,
    find_hanging,
    list_transactions,
    longest_timeout_ms,
)
from barnabas.cli.shared.client import Key, admin, answered, describe_topics
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import INT32_MAX, INT64_MAX, AsJson, Columns, new_app, print_json, print_list
from barnabas.cli.shared.words import line_of, partitions_in_a_line
from barnabas.cli.transaction_description import document_of, print_document, words_of
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

app = new_app("""Transactions: list, describe, find those that hang, abort.

    \b
    barnabas transactions list --longer-than 60
    barnabas transactions describe invoices-7         what it holds back
    barnabas transactions find-hanging
    barnabas transactions abort invoices-7
    barnabas transactions abort --topic orders --partition 0 --start-offset 4711
    """)
app.command()(abort)

DESCRIBED_MAX = 10_000  # open transactions whose age `list` asks for
SECONDS_MAX = INT64_MAX // 1_000_000


LISTED: Columns = {
    "transactional id": "transactional_id",
    "state": "state",
    "open for": lambda row: words_of(row["age_ms"]),
    "timeout": lambda row: words_of(row["timeout_ms"]),
    "#partitions": "partitions",
    "#producer": "producer_id",
    "#coordinator": "coordinator",
}
HANGING: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#producer": "producer_id",
    "#epoch": "producer_epoch",
    "#start offset": "start_offset",
    "last record": lambda row: f"{words_of(row['age_ms'])} ago",
    "#held back": "held_back",
}


# ------------------------------------------------------------------ list


@app.command("list")
def list_ids(
    target: Target,
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE",
            case_sensitive=False,
            help="Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Empty; repeat.",
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(min=0, max=INT64_MAX, metavar="ID", help="Of this producer id; repeat.")
    ] = None,
    longer_than: Annotated[
        float | None, typer.Option("--longer-than", metavar="SECONDS", min=0, max=SECONDS_MAX, help="Open for longer.")
    ] = None,
    id_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Ids that match as a whole (RE2; Apache Kafka since 4.1).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every transactional id, of all coordinators together; those with an open transaction first, the oldest first.

    \b
    barnabas transactions list
    barnabas transactions list --state Ongoing --longer-than 60
    barnabas transactions list --id-pattern 'invoices-.*' --json
    """
    states = [one.value for one in state or ()]
    if longer_than is not None:  # brokers compare times of ended ones, too
        states = [one for one in OPEN_STATES if not states or one in states]
        if not states:
            fail("--longer-than is for open transactions: Ongoing, PrepareCommit, PrepareAbort.", ExitCode.NOT_VALID)
    with admin(target) as client:
        listed = list_transactions(
            client,
            states=states,
            producer_ids=producer_id or (),
            longer_than_ms=None if longer_than is None else int(longer_than * 1000),
            id_pattern=id_pattern or None,
        )
        being_open = [one for one in listed if one.state in OPEN_STATES]
        target.renew()
        known = describe_transactions(client, being_open[:DESCRIBED_MAX])
    now_ms = RealClock().now_ms()
    rows = [_row(one, known.get(one.transactional_id), now_ms) for one in listed]
    rows.sort(key=lambda row: (row["state"] not in OPEN_STATES, -(row["age_ms"] or 0), row["transactional_id"]))
    print_list(rows, LISTED, as_json, "No transactions.")
    if len(being_open) > DESCRIBED_MAX:
        say(
            f"{counted(len(being_open) - DESCRIBED_MAX, 'more age is', 'more ages are')} not shown: "
            "say which, by --longer-than."
        )


def _row(one: Listed, described: Described | None, now_ms: int) -> dict[str, Any]:
    known = described if described is not None and described.is_open else None
    return {
        **one._asdict(),
        "start_ms": None if known is None else known.start_ms,
        "age_ms": None if known is None else max(now_ms - known.start_ms, 0),
        "timeout_ms": None if known is None else known.timeout_ms,
        "partitions": None if known is None else len(known.partitions),
    }


# ------------------------------------------------------------------ describe


@app.command()
def describe(
    target: Target,
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="A transactional id.")],
    as_json: AsJson = False,
) -> None:
    """The transaction of an id: its producer, its age, when its timeout ends it, and what it holds back.

    Consumers with read_committed get nothing from a partition's last stable offset on, also
    what other producers have written there. "held back" are the offsets from there to the
    high watermark.

    \b
    barnabas transactions describe invoices-7
    barnabas transactions describe invoices-7 --json
    """
    with admin(target) as client:
        found = describe_transaction(client, transactional_id)
        target.renew()
        document = document_of(client, found)
    if as_json:
        print_json(document)
        return
    print_document(document)


# ------------------------------------------------------------------ find-hanging


@app.command("find-hanging")
def find(
    target: Target,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only in this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, metavar="N", help="Only in this one of it.")
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(min=0, max=INT32_MAX, metavar="ID", help="Only where this broker has a replica, as it knows it."),
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(
            "--longer-than",
            metavar="SECONDS",
            min=0,
            max=SECONDS_MAX,
            help="Without a record for longer. Default: transaction.max.timeout.ms of the brokers.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Transactions in partitions that no coordinator will end, each with the command that aborts it.

    A partition has an open transaction, and no coordinator has this partition in a
    transaction of that producer (KIP-664). Consumers with read_committed wait for ever.

    \b
    barnabas transactions find-hanging
    barnabas transactions find-hanging --topic orders --partition 0 --longer-than 60
    """
    if partition is not None and topic is None:
        fail("--partition is one of a topic: name it with --topic.", ExitCode.NOT_VALID)
    with admin(target) as client:
        wanted = _partitions(client, topic, partition, broker)
        longer_than_ms = longest_timeout_ms(client) if longer_than is None else int(longer_than * 1000)
        target.renew()
        hanging, unknown = find_hanging(client, wanted, longer_than_ms, broker)
        ends = ends_of(client, {one.key for one in hanging})
    now_ms = RealClock().now_ms()
    rows = [_hanging_row(one, ends.get(one.key), now_ms) for one in sorted(hanging)]
    missing = sorted(set(unknown))
    looked_at = counted(len(wanted) - len(missing), "partition")
    print_list(rows, HANGING, as_json, f"No transaction hangs in {looked_at}.")
    if rows and not as_json:
        print("\n" + "\n".join(command_line(one, target) for one in sorted(hanging)))
    if missing:
        names = partitions_in_a_line(missing)
        say(f"{counted(len(missing), 'partition')} not looked at, because no leader answers: {names}.")


def _hanging_row(one: Open, ends: Ends | None, now_ms: int) -> dict[str, Any]:
    return {
        **one._asdict(),
        "age_ms": max(now_ms - one.last_timestamp_ms, 0),
        "held_back": None if ends is None else ends.held_back,
    }


def _partitions(client: Any, topic: str | None, partition: int | None, broker: int | None) -> list[Key]:
    if topic is not None:
        topics = describe_topics(client, [topic]).values()
    else:
        topics = answered(client, client.describe_topics)
    found = [
        (each["name"], row["partition_index"])
        for each in topics
        for row in each["partitions"]
        if (partition is None or row["partition_index"] == partition)
        and (broker is None or broker in row["replica_nodes"])
    ]
    if not found and partition is not None:
        where = "" if broker is None else f" on broker {broker}"
        fail(f"{topic} has no partition {partition}{where}.", ExitCode.NOTHING_THERE)
    if not found and broker is not None:
        fail(f"broker {broker} has no partition of that kind.", ExitCode.NOTHING_THERE)
    return found


def command_line(one: Open, target: Target) -> str:
    """The command that aborts a hanging transaction, for a shell."""
    words = abort_words(one.topic, one.partition, one.start_offset)
    return line_of(words, target.bootstrap_option)
