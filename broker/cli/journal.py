"""`barnabas offsets log|diff|restore|undo`: what the offset journal knows, and the way back.

The commands read the journal like any consumer: only the partition of the group, from the time that they need on.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, NoReturn
from uuid import UUID

import typer
from barnabas.broker.cli.client import (
    admin,
    answered,
    broker_setting,
    changed,
    connection,
    describe_groups,
    is_barnabas,
    positions,
    reason,
)
from barnabas.broker.cli.exits import ExitCode, Failure, fail, say
from barnabas.broker.cli.http_client import HttpApi
from barnabas.broker.cli.target import Target
from barnabas.broker.cli.terminal import AsJson, Yes, confirm, print_json, print_outcomes, print_table
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.coordinators.hashing import partition_for
from barnabas.offsets.journal import (
    NO_POSITION,
    NOT_KNOWN,
    Changes,
    Gap,
    Row,
    UnknownVersionError,
    decode,
    key_of,
    without_repetitions,
)
from barnabas.offsets.journal_history import (
    NOWHERE,
    Position,
    Positions,
    before,
    clock_set_back,
    lacking,
    last_operation,
    positions_at,
    split_at,
)
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.protocol import uuids
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

POLL_MS = 500
SETTING = "offsets.journal.enable"
IS_OFF = f"{SETTING}=false"
BEHIND_MS_MAX = 3_000  # how long a command waits for the journal
LINES = 100  # of `log`, without --max or --json
DELETED = "retention has deleted what was written before"
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
TopicNames = Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this; repeat.")]
Live = Annotated[bool, typer.Option("--live", help="The group has members: they stop, and read on from there.")]
LiveWait = Annotated[
    float,
    typer.Option("--live-wait", min=0, max=3600, metavar="S", help="With --live: how long the members may take."),
]
WHEN = "2026-03-01T12:00 (local time without a zone), or 90m, 12h, 3d ago"


def log(
    target: Target,
    group: GroupName,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help=f"Only from then on: {WHEN}.")] = None,
    topic: TopicNames = None,
    most: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Only the last N.")] = None,
    as_json: AsJson = False,
) -> None:
    """Every change of a group's committed offsets: when, from where to where, why, and by whom.

    Without --max the last 100; with --json all. A gap is named where the journal misses changes.

    \b
    barnabas offsets log billing
    barnabas offsets log billing --since 2h --topic orders
    barnabas offsets log billing --since 2026-03-01T12:00 --json
    """
    since_ms = None if since is None else _moment("--since", since)
    with admin(target) as client:
        records = read_journal(target, client, group, since_ms)
    lines: list[tuple[Changes, Row] | Gap] = []
    for record in records:
        if isinstance(record, Gap):
            if since_ms is None or record.last_ms >= since_ms:
                lines.append(record)
        elif since_ms is None or record.time_ms >= since_ms:
            lines += [(record, row) for row in record.rows if not topic or row.topic in topic]
    if most is None and not as_json:
        most = LINES
    left_out = 0 if most is None else max(0, len(lines) - most)
    lines = lines[left_out:]
    if as_json:
        print_json([_as_json(line) for line in lines])
        return
    nothing = f"the journal has no changes of {group}{'' if since is None else ' since then'}."
    if not lines:
        fail(nothing, ExitCode.NOTHING_THERE)
    print_table(
        ["time", "topic", "#partition", "#from", "#to", "#change", "cause", "#generation", "client", "host", "member"],
        map(_as_cells, lines),
    )
    if left_out:
        left = counted(left_out, "earlier one is", "earlier ones are")
        print(f"{left} left out: --max {left_out + len(lines)} shows all.")
    if all(isinstance(line, Gap) for line in lines):
        fail(nothing, ExitCode.NOTHING_THERE)


def diff(
    target: Target,
    group: GroupName,
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help=f"{WHEN}.")],
    end: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Without it: now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Where a group was at two times, and how it got from one to the other.

    \b
    barnabas offsets diff billing --from 2026-03-01T12:00 --to 2026-03-01T13:00
    barnabas offsets diff billing --from 2h --json
    """
    begin_ms = _moment("--from", begin)
    end_ms = RealClock().now_ms() if end is None else _moment("--to", end)
    if begin_ms > end_ms:
        fail("--from is later than --to.", ExitCode.NOT_VALID)
    with admin(target) as client:
        now = _committed(client, group)
        records = _history(target, client, group, begin_ms, now, may_move=True)
    then, later = positions_at(records, begin_ms, now), positions_at(records, end_ms, now)
    meanwhile = records[split_at(records, begin_ms) : split_at(records, end_ms)]
    _warn_of_clocks(records)
    _tell_what_lacks(records, [*then.values(), *later.values()])
    rows: list[dict[str, Any]] = []
    for key in sorted({**then, **later}):
        old, new = then.get(key, NOWHERE), later.get(key, NOWHERE)
        between = [
            record
            for record in meanwhile
            if isinstance(record, Changes) and any((row.topic, row.partition) == key for row in record.rows)
        ]
        if old == NOWHERE == new and not between:
            continue
        rows.append(
            {
                "topic": key[0],
                "partition": key[1],
                "from": _or_none(old.offset),
                "to": _or_none(new.offset),
                "from_is_known": old.offset != NOT_KNOWN,
                "to_is_known": new.offset != NOT_KNOWN,
                "changes": len(between),
                "causes": list(dict.fromkeys(record.cause.words for record in between)),
            }
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        fail(f"{group} had committed nothing at either time.", ExitCode.NOTHING_THERE)
    print_table(
        ["topic", "#partition", "#from", "#to", "#change", "#changes", "causes"],
        [
            (
                row["topic"],
                row["partition"],
                row["from"] if row["from_is_known"] else "?",
                row["to"] if row["to_is_known"] else "?",
                None if None in (row["from"], row["to"]) else row["to"] - row["from"],
                row["changes"],
                ", ".join(row["causes"]) or None,
            )
            for row in rows
        ],
    )


def restore(
    target: Target,
    group: GroupName,
    at: Annotated[str, typer.Option("--at", metavar="WHEN", help=f"{WHEN}.")],
    topic: TopicNames = None,
    live: Live = False,
    wait: LiveWait = 60.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put a group back to where it was at a time. Shows the plan first and asks; reads back at the end.

    A group that has members needs --live: they must join again, and read on from there.

    What the journal does not know for sure is left as it is, and said.

    \b
    barnabas offsets restore billing --at 2026-03-01T12:00
    barnabas offsets restore billing --at 90m --topic orders --yes
    barnabas offsets restore billing --at 90m --live
    """
    at_ms = _moment("--at", at)
    if at_ms > RealClock().now_ms():
        fail(f"--at lies ahead: {_time(at_ms)}.", ExitCode.NOT_VALID)
    with admin(target) as client:
        if live:
            HttpApi(client, target).entry()
        else:
            _refuse_living(client, group)
        now = _committed(client, group)
        records = _history(target, client, group, at_ms, now, may_move=live)
        wanted = positions_at(records, at_ms, now)
        if topic:
            wanted = {key: position for key, position in wanted.items() if key[0] in topic}
        if not wanted:
            fail(f"the journal knows no offsets of {group} at that time.", ExitCode.NOTHING_THERE)
        _warn_of_clocks(records)
        _tell_what_lacks(records, wanted.values())
        question = f"Put {group} back to {_time(at_ms)}?"
        _put_back(target, client, group, wanted, question, yes, as_json, wait if live else None)


def undo(
    target: Target,
    group: GroupName,
    live: Live = False,
    wait: LiveWait = 60.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take back the last reset, deletion or expiry of a group. Shows the plan first and asks; reads back at the end.

    Commits of consumers are not taken back (`restore` can). An undo is a reset, so the next undo takes it back.
    A group that has members needs --live: they must join again, and read on from there.

    \b
    barnabas offsets undo billing
    barnabas offsets undo billing --live --yes
    """
    with admin(target) as client:
        if live:
            HttpApi(client, target).entry()
        else:
            _refuse_living(client, group)
        records = _read_up_to(target, client, group, None, _committed(client, group), may_move=live)
        if records and isinstance(records[-1], Gap) and records[-1].why.endswith(IS_OFF):
            fail(f"the last changes of {group} are not in the journal: {records[-1].why}.")
        last = last_operation(records)
        if last is None:
            fail(f"the journal has nothing of {group} to undo, only commits of consumers.", ExitCode.NOTHING_THERE)
        first = last.records[0]
        by = f" by {first.client_id} at {first.host}" if first.client_id else ""
        causes = ", ".join(dict.fromkeys(record.cause.words for record in last.records))
        if not as_json:
            print(f"The last change was: {causes} at {_time(first.time_ms)}{by}.\n")
        wanted = before(last, records)
        _put_back(target, client, group, wanted, f"Undo it for {group}?", yes, as_json, wait if live else None)


# ---- reading ----


def read_journal(target: Target, client: Any, group: str, since_ms: int | None, up_to: int = -1) -> list[Changes | Gap]:
    """The records of a group, and the gaps of its partition, that were written since then or ever.

    `up_to`: an offset of the journal that its leader had; its followers may not have what is before it yet.
    """
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    journal_partitions, offsets_partitions = _journal_partitions(client, group)
    count = len(journal_partitions)
    if offsets_partitions and len(offsets_partitions) != count:
        fail(
            f"{JOURNAL_TOPIC} has {counted(count, 'partition')}, and {OFFSETS_TOPIC} {len(offsets_partitions)}, so "
            "it is no journal of that. Delete it: brokers make it again."
        )
    place = TopicPartition(JOURNAL_TOPIC, partition_for(group, count))
    off_at = _where_it_is_off(client, offsets_partitions, place.partition)
    consumer = KafkaConsumer(
        **connection(target),
        group_id=None,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        auto_offset_reset="earliest",  # if retention takes records while they are read
    )
    key = key_of(group)
    found: list[Changes | Gap] = []
    before_ms = 0
    try:
        consumer.assign([place])
        begin = answered(None, lambda: consumer.beginning_offsets([place]))[place]
        end = answered(None, lambda: consumer.end_offsets([place]))[place]
        last_ms = RealClock().monotonic_ms() + BEHIND_MS_MAX
        while end < up_to:
            if RealClock().monotonic_ms() > last_ms:
                fail(f"the followers of {JOURNAL_TOPIC}-{place.partition} do not have its end yet; try again.")
            asyncio.run(RealClock().sleep(POLL_MS))
            end = answered(None, lambda: consumer.end_offsets([place]))[place]
        first = begin
        if since_ms is not None:
            # A record is written at the time of its changes or a little later, and never earlier.
            start = answered(None, lambda: consumer.offsets_for_times({place: max(0, since_ms)}))[place]
            first = end if start is None else start.offset
        consumer.seek(place, first)
        has_begun = first > begin or begin == 0
        if not has_begun and begin == end:
            has_begun = True
            found.append(Gap(NO_POSITION, NO_POSITION, 0, RealClock().now_ms() - _retention_ms(client), -1, DELETED))
        while consumer.position(place) < end:
            for records in consumer.poll(POLL_MS).values():
                target.renew()
                if not has_begun or records[0].offset > first:
                    has_begun = True
                    found.append(Gap(NO_POSITION, NO_POSITION, 0, records[0].timestamp, -1, DELETED))
                for record in records:
                    if record.key in (key, b""):
                        found.append(_decoded(record, before_ms))
                    before_ms = record.timestamp
                first = records[-1].offset + 1
    finally:
        consumer.close(autocommit=False)
    records = [record for record in without_repetitions(found) if isinstance(record, Gap) or record.group_id == group]
    if off_at is not None:
        last = records[-1] if records else None
        last_ms = since_ms or 0 if last is None else last.last_ms if isinstance(last, Gap) else last.time_ms
        why = f"broker {off_at}, the group's coordinator, has {IS_OFF}"
        records.append(Gap(NO_POSITION, NO_POSITION, last_ms, RealClock().now_ms(), -1, why))
    return records


def _journal_partitions(client: Any, group: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The partitions of the journal, which must be there, and of `__consumer_offsets`."""
    topics = answered(client, lambda: client.describe_topics([JOURNAL_TOPIC, OFFSETS_TOPIC]))
    described = {topic["name"]: topic["partitions"] for topic in topics if not topic["error_code"]}
    offsets_partitions = described.get(OFFSETS_TOPIC, [])
    if JOURNAL_TOPIC not in described:
        _no_journal(client, group, offsets_partitions)
    return described[JOURNAL_TOPIC], offsets_partitions


def _no_journal(client: Any, group: str, partitions: Sequence[dict[str, Any]]) -> NoReturn:
    """End the command, because there is no journal: say why, and what to do."""
    node_id = _leader_of(partitions, partition_for(group, len(partitions))) if partitions else None
    if node_id is None:
        node_id = answered(client, client.describe_cluster)["brokers"][0]["broker_id"]
    nobody = "so nobody knows where a group was before, or who moved it"
    by_hand = f"`barnabas offsets set {group}` moves it to an offset or a time that you name."
    if not answered(client, lambda: is_barnabas(client, node_id)):
        fail(f"broker {node_id} is no Barnabas: Apache Kafka has no offset journal, {nobody}. {by_hand}")
    if answered(client, lambda: broker_setting(client, node_id, SETTING)) == "false":
        fail(
            f"broker {node_id} has {IS_OFF}, and there is no offset journal, {nobody}. Start all brokers with "
            f"{SETTING}=true, which is the default: what changes from then on is known. {by_hand}"
        )
    fail("there is no offset journal yet: the first commit of a group makes it.", ExitCode.NOTHING_THERE)


def _tell_what_lacks(records: Sequence[Changes | Gap], positions: Iterable[Position]) -> None:
    """Say why it is not known where a group was, if it is not."""
    if any(position.offset == NOT_KNOWN for position in positions):
        for why in dict.fromkeys(record.why for record in records if isinstance(record, Gap)):
            say(f"Not everything is known, because the journal lacks changes: {why}.")


def _decoded(record: Any, before_ms: int) -> Changes | Gap:
    """A record of the journal. One that cannot be read is a gap of unknown changes since the record before it.

    Any client may write to the journal if it calls itself `__admin_client`, as in Kafka.
    """
    try:
        return decode(record.key, record.value)
    except UnknownVersionError as error:
        why = f"{error}: use the command of the version that the brokers have"
    except ValueError as error:
        why = f"the record at offset {record.offset} cannot be read: {error}"
    return Gap(NO_POSITION, NO_POSITION, before_ms, record.timestamp, -1, why)


def _where_it_is_off(client: Any, partitions: Sequence[dict[str, Any]], index: int) -> int | None:
    """The coordinator of this partition, if it does not write the journal now; None: it does, or there is none."""
    from kafka.errors import KafkaError

    node_id = _leader_of(partitions, index)
    with suppress(KafkaError):
        if node_id is not None and broker_setting(client, node_id, SETTING) == "false":
            return node_id
    return None


def _leader_of(partitions: Sequence[dict[str, Any]], index: int) -> int | None:
    """The broker that leads this partition; None: there is none now."""
    leaders = (row["leader_id"] for row in partitions if row["partition_index"] == index and row["leader_id"] >= 0)
    return next(leaders, None)


def _coordinator(client: Any, group: str) -> int | None:
    """The broker that coordinates a group; None: there is none now."""
    (topic,) = answered(client, lambda: client.describe_topics([OFFSETS_TOPIC]))
    if topic["error_code"] or not topic["partitions"]:
        return None
    return _leader_of(topic["partitions"], partition_for(group, len(topic["partitions"])))


def _retention_ms(client: Any) -> int:
    """How long the journal keeps records at least."""
    from kafka.admin import ConfigResource, ConfigResourceType

    resource = ConfigResource(ConfigResourceType.TOPIC, JOURNAL_TOPIC)
    (topics,) = answered(client, lambda: client.describe_configs([resource])).values()
    return max(int(topics[JOURNAL_TOPIC].get("retention.ms", {"value": 0})["value"]), 0)


def _history(
    target: Target, client: Any, group: str, since_ms: int, now: Positions, *, may_move: bool
) -> list[Changes | Gap]:
    """The records since then; all that there are, if those do not say where each partition was."""
    records = _read_up_to(target, client, group, since_ms, now, may_move=may_move)
    if any(position.offset == NOT_KNOWN for position in positions_at(records, since_ms, now).values()):
        records = read_journal(target, client, group, None)
    return records


def _warn_of_clocks(records: Sequence[Changes | Gap]) -> None:
    found = clock_set_back(records)
    if found is not None:
        say(
            f"a broker's clock was set back from {_time(found[0])} to {_time(found[1])}, so what was when near these "
            "times is not sure. `barnabas offsets log` has the changes in their order."
        )


def _read_up_to(
    target: Target, client: Any, group: str, since_ms: int | None, now: Positions, *, may_move: bool
) -> list[Changes | Gap]:
    """The records of a group, with those that led to where it is now. `may_move`: it has moved on since, perhaps.

    The journal is written a moment after a change; but while its disk is full, or it has no leader, much later.
    """
    clock = RealClock()
    last_ms = clock.monotonic_ms() + BEHIND_MS_MAX
    up_to = _await_written(target, client, group)
    is_all = up_to is None  # nobody says how far it is, so its last records have to
    while True:
        records = read_journal(target, client, group, None if is_all else since_ms, up_to or -1)
        missing = lacking(records, now, may_move=may_move, is_all=is_all)
        if not missing:
            return records
        if clock.monotonic_ms() > last_ms:
            names = ", ".join(f"{topic}-{index}" for topic, index in missing[:10])
            fail(
                f"the journal does not have the last changes of {group} yet ({names}). Nothing was changed; try again."
            )
        asyncio.run(clock.sleep(POLL_MS))


def _await_written(target: Target, client: Any, group: str) -> int | None:
    """Wait until all changes of up to now are in the journal; returns before which offset of it, or -1: its end.

    None: the coordinator has no HTTP API that this machine reaches.
    """
    coordinator = _coordinator(client, group)
    if coordinator is None:
        return None
    clock = RealClock()
    last_ms = clock.monotonic_ms() + BEHIND_MS_MAX
    api = HttpApi(client, target)
    noted_to = None
    while True:
        try:
            # One attempt: its HTTP API may be for its own machine only.
            progress = api.ask("GET", "/v1/groups/{group}/journal", names={"group": group}, node_id=coordinator)
        except Failure:
            return None
        if not progress["is_on"]:
            return -1  # the records of the journal end with a gap that says it
        if noted_to is None:
            noted_to = progress["noted_to"]
        if progress["written_to"] >= noted_to or not noted_to:  # at 0 there is nothing that it could have written
            return int(progress["end_offset"])
        if clock.monotonic_ms() > last_ms:
            _journal_partitions(client, group)
            fail(
                f"the journal does not have the last changes of {group}'s partition yet: broker {progress['node_id']} "
                "cannot write it now. Nothing was changed; `barnabas doctor` may say why."
            )
        asyncio.run(clock.sleep(POLL_MS))


def _committed(client: Any, group: str) -> Positions:
    offsets = answered(client, lambda: client.list_group_offsets(group))[group]
    return {
        (partition.topic, partition.partition): Position(found.offset, found.leader_epoch, found.metadata)
        for partition, found in offsets.items()
        if found.offset >= 0
    }


# ---- writing ----


def _refuse_living(client: Any, group: str) -> None:
    described = describe_groups(client, [group], may_be_missing=True)
    if group in described and described[group]["members"]:
        members = counted(len(described[group]["members"]), "member")
        fail(f"{group} has {members}, which would commit over it. Stop its consumers first, or add --live.")


def _put_back(
    target: Target,
    client: Any,
    group: str,
    wanted: Positions,
    question: str,
    yes: bool,
    as_json: bool,
    live_wait_s: float | None,
) -> None:
    """Show the plan, ask, write, and read back. `live_wait_s`: the group may have members, which get so long."""
    rows = _plan(client, group, wanted, is_live=live_wait_s is not None)
    if not as_json:
        print_table(
            ["topic", "#partition", "#now", "#then", "#change", "note"],
            [
                (
                    row["topic"],
                    row["partition"],
                    row["now"],
                    "?" if row["is_unknown"] else row["then"],
                    None if None in (row["now"], row["then"]) else row["then"] - row["now"],
                    row["note"] or None,
                )
                for row in rows
            ],
        )
    todo = [row for row in rows if row["is_different"]]
    if todo and live_wait_s is not None:
        from barnabas.broker.cli.live_reset import reset_live

        confirm(f"{question} Its members join again.", yes)
        moved = [{**row, "new_offset": row["then"]} for row in todo]
        reset_live(client, target, group, moved, live_wait_s, as_json=as_json)
        left = [f"{row['topic']}-{row['partition']}: left as it is: {row['note']}" for row in rows if row["cannot"]]
        if left:
            fail("\n".join(left))
        return
    if todo:
        confirm(question, yes)
        errors = _write(client, group, todo, wanted)
        after = _committed(client, group)
    outcomes = []
    for row in rows:
        key = (row["topic"], row["partition"])
        outcome = {
            "partition": f"{key[0]}-{key[1]}",
            "now": row["now"],
            "then": row["then"],
            "result": "as it was then",
        }
        if row["is_different"]:
            outcome["result"] = "put back"
            seen = _or_none(after.get(key, NOWHERE).offset)
            if key in errors:
                outcome |= {"result": "not put back", "error": errors[key]}
            elif seen != row["then"]:
                outcome |= {"result": "not put back", "error": f"{seen} is committed now: another client has written"}
        elif row["cannot"]:
            outcome |= {"result": "left as it is", "error": row["note"]}
        outcomes.append(outcome)
    print_outcomes("partition", outcomes, as_json)


def _plan(client: Any, group: str, wanted: Positions, *, is_live: bool) -> list[dict[str, Any]]:
    """What would be done with each partition, and why not."""
    ids = {
        topic["name"]: topic
        for topic in answered(client, lambda: client.describe_topics(sorted({topic for topic, _ in wanted})))
        if not topic["error_code"]
    }
    rows = []
    for row in positions(client, group, extra=wanted):
        key = (row["topic"], row["partition"])
        if key not in wanted:
            continue
        position = wanted[key]
        unknown = position.offset == NOT_KNOWN
        then = _or_none(position.offset)
        note, cannot = "", unknown
        if unknown:
            note = "the journal does not know where it was"
        elif then is None and is_live and row["committed_offset"] is not None:
            note, cannot = "it had no offset, and one cannot be taken from a group with members", True
        elif then is not None:
            described = ids.get(row["topic"])
            now_id = NO_TOPIC_ID if described is None else UUID(str(described["topic_id"])).bytes
            if row["log_end_offset"] is None:
                note, cannot = "the partition does not exist", True
            elif position.topic_id not in (NO_TOPIC_ID, now_id) and now_id != NO_TOPIC_ID:
                note, cannot = "another topic has that name now", True
            elif then < row["log_start_offset"]:
                note, then = f"{then} is deleted: the log begins later", row["log_start_offset"]
            elif then > row["log_end_offset"]:
                note, then = f"{then} is behind the end of the log", row["log_end_offset"]
        rows.append(
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "now": row["committed_offset"],
                "then": then,
                "note": note,
                "is_unknown": unknown,
                "cannot": cannot,
                "is_different": not cannot and then != row["committed_offset"],
            }
        )
    return rows


def _write(client: Any, group: str, rows: list[dict[str, Any]], wanted: Positions) -> dict[tuple[str, int], str]:
    """Commit and forget; the errors."""
    from kafka.structs import OffsetAndMetadata, TopicPartition

    commits = {}
    gone = []
    for row in rows:
        key = TopicPartition(row["topic"], row["partition"])
        if row["then"] is None:
            gone.append(key)
            continue
        position = wanted[row["topic"], row["partition"]]
        is_moved = row["then"] != position.offset
        commits[key] = OffsetAndMetadata(row["then"], position.metadata, -1 if is_moved else position.leader_epoch)
    results: dict[Any, Any] = {}
    if commits:
        results |= changed(client, lambda: client.alter_group_offsets(group, commits))
    if gone:
        results |= changed(client, lambda: client.delete_group_offsets(group, gone))
    return {(key.topic, key.partition): reason(error.errno) for key, error in results.items() if error.errno}


# ---- words ----


def _or_none(offset: int) -> int | None:
    return None if offset < 0 else offset


def _moment(option: str, text: str) -> int:
    """A time in milliseconds: `2026-03-01T12:00`, or so long ago as `90m` says."""
    number, unit = text[:-1], text[-1:]
    if number.isdecimal() and len(number) < 20 and unit in UNITS_MS:
        return max(RealClock().now_ms() - int(number) * UNITS_MS[unit], 0)
    try:
        return max(int(datetime.fromisoformat(text).timestamp() * 1000), 0)  # no change is older than 1970
    except (ValueError, OverflowError):
        fail(f"{option} wants a time such as 2026-03-01T12:00, or 90m, 12h, 3d ago, not {text!r}.", ExitCode.NOT_VALID)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="milliseconds")


def _as_cells(line: tuple[Changes, Row] | Gap) -> tuple[Any, ...]:
    if isinstance(line, Gap):
        missing = counted(line.change_count, "change is missing", "changes are missing")
        count = "" if line.change_count < 0 else f"of this partition {missing}: "
        return (_time(line.last_ms), *[None] * 5, f"GAP: {count}{line.why}", *[None] * 4)
    record, row = line
    old, new = _or_none(row.old_offset), _or_none(row.new_offset)
    return (
        *(_time(record.time_ms), row.topic, row.partition),
        *("?" if row.old_offset == NOT_KNOWN else old, new, None if None in (old, new) else new - old),  # type: ignore[operator]
        record.cause.words,
        None if record.generation < 0 else record.generation,
        *(record.client_id or None, record.host or None, record.member_id or None),
    )


def _as_json(line: tuple[Changes, Row] | Gap) -> dict[str, Any]:
    if isinstance(line, Gap):
        return {
            "kind": "gap",
            "from": _time(line.first_ms) if line.first_ms else None,
            "to": _time(line.last_ms),
            "changes": _or_none(line.change_count),
            "why": line.why,
        }
    record, row = line
    return {
        "kind": "change",
        "time": _time(record.time_ms),
        "group": record.group_id,
        "topic": row.topic,
        "topic_id": uuids.to_text(row.topic_id),
        "partition": row.partition,
        "old_offset": _or_none(row.old_offset),
        "old_is_known": row.old_offset != NOT_KNOWN,
        "old_leader_epoch": row.old_leader_epoch,
        "old_metadata": row.old_metadata,
        "new_offset": _or_none(row.new_offset),
        "new_leader_epoch": row.new_leader_epoch,
        "new_metadata": row.new_metadata,
        "cause": record.cause.words,
        "generation": record.generation,
        "client_id": record.client_id,
        "host": record.host,
        "principal": record.principal,
        "member_id": record.member_id,
        "position": record.position,
    }
