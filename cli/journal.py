"""`barnabas offsets log|diff|restore|undo`: what the offset journal knows, and the way back.

The commands read the journal like any consumer: only the partition of the group, from the time that they need on.
"""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer
from barnabas.cli.journal_reading import (
    IS_OFF,
    committed,
    history,
    read_journal,
    read_up_to,
    shown_time,
    tell_what_lacks,
    warn_of_clocks,
)
from barnabas.cli.live_reset import Live, reset_live
from barnabas.cli.shared.client import Key, admin, answered, changed, commit, errors_of, positions
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.moments import A_TIME, WHEN, moment_of
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import (
    AsJson,
    Columns,
    Yes,
    confirm,
    print_found,
    print_json,
    print_outcomes,
    print_rows,
    print_table,
)
from barnabas.offsets.journal import NOT_KNOWN, Changes, Gap, Row
from barnabas.offsets.journal_history import NOWHERE, Positions, before, last_operation, positions_at, split_at
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.protocol import uuids
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

LINES = 100  # of `log`, without --max or --json

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
TopicNames = Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this; repeat.")]


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
        now = committed(client, group)
        records = history(target, client, group, begin_ms, now, may_move=True)
    then, later = positions_at(records, begin_ms, now), positions_at(records, end_ms, now)
    meanwhile = records[split_at(records, begin_ms) : split_at(records, end_ms)]
    warn_of_clocks(records)
    tell_what_lacks(records, [*then.values(), *later.values()])
    rows = _differences(then, later, meanwhile)
    print_found(rows, DIFFERENCES, as_json, f"{group} had committed nothing at either time.")


DIFFERENCES: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#from": lambda row: row["from"] if row["from_is_known"] else "?",
    "#to": lambda row: row["to"] if row["to_is_known"] else "?",
    "#change": lambda row: None if None in (row["from"], row["to"]) else row["to"] - row["from"],
    "#changes": "changes",
    "causes": lambda row: ", ".join(row["causes"]) or None,
}


def _differences(then: Positions, later: Positions, meanwhile: Sequence[Changes | Gap]) -> list[dict[str, Any]]:
    """A row for each partition that had an offset at one of the times, or a change between them."""
    rows = []
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
    return rows


def restore(
    target: Target,
    group: GroupName,
    at: Annotated[str, typer.Option("--at", metavar="WHEN", help=f"{WHEN}.")],
    live: Live,
    topic: TopicNames = None,
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
        fail(f"--at lies ahead: {shown_time(at_ms)}.", ExitCode.NOT_VALID)
    with admin(target) as client:
        live.check(client, target, group)
        now = committed(client, group)
        records = history(target, client, group, at_ms, now, may_move=live.live)
        wanted = positions_at(records, at_ms, now)
        if topic:
            wanted = {key: position for key, position in wanted.items() if key[0] in topic}
        if not wanted:
            fail(f"the journal knows no offsets of {group} at that time.", ExitCode.NOTHING_THERE)
        warn_of_clocks(records)
        tell_what_lacks(records, wanted.values())
        question = f"Put {group} back to {shown_time(at_ms)}?"
        _put_back(target, client, group, wanted, question, yes, as_json, live)


def undo(target: Target, group: GroupName, live: Live, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take back the last reset, deletion or expiry of a group. Shows the plan first and asks; reads back at the end.

    Commits of consumers are not taken back (`restore` can). An undo is a reset, so the next undo takes it back.
    A group that has members needs --live: they must join again, and read on from there.

    \b
    barnabas offsets undo billing
    barnabas offsets undo billing --live --yes
    """
    with admin(target) as client:
        live.check(client, target, group)
        records = read_up_to(target, client, group, None, committed(client, group), may_move=live.live)
        if records and isinstance(records[-1], Gap) and records[-1].why.endswith(IS_OFF):
            fail(f"the last changes of {group} are not in the journal: {records[-1].why}.")
        last = last_operation(records)
        if last is None:
            fail(f"the journal has nothing of {group} to undo, only commits of consumers.", ExitCode.NOTHING_THERE)
        first = last.records[0]
        by = f" by {first.client_id} at {first.host}" if first.client_id else ""
        causes = ", ".join(dict.fromkeys(record.cause.words for record in last.records))
        if not as_json:
            print(f"The last change was: {causes} at {shown_time(first.time_ms)}{by}.\n")
        wanted = before(last, records)
        _put_back(target, client, group, wanted, f"Undo it for {group}?", yes, as_json, live)


# ---- writing ----


def _put_back(
    target: Target, client: Any, group: str, wanted: Positions, question: str, yes: bool, as_json: bool, live: Live
) -> None:
    """Show the plan, ask, write, and read back."""
    rows = _plan(client, group, wanted, is_live=live.live)
    if not as_json:
        print_rows(
            {
                "topic": "topic",
                "#partition": "partition",
                "#now": "now",
                "#then": lambda row: "?" if row["is_unknown"] else row["then"],
                "#change": lambda row: None if None in (row["now"], row["then"]) else row["then"] - row["now"],
                "note": lambda row: row["note"] or None,
            },
            rows,
        )
    todo = [row for row in rows if row["is_different"]]
    if todo and live.live:
        confirm(f"{question} Its members join again.", yes)
        moved = [{**row, "new_offset": row["then"]} for row in todo]
        reset_live(client, target, group, moved, live.live_wait_s, as_json=as_json)
        left = [f"{row['topic']}-{row['partition']}: left as it is: {row['note']}" for row in rows if row["cannot"]]
        if left:
            fail("\n".join(left))
        return
    if todo:
        confirm(question, yes)
        errors = _write(client, group, todo, wanted)
        after = committed(client, group)
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


def _write(client: Any, group: str, rows: list[dict[str, Any]], wanted: Positions) -> dict[Key, str]:
    """Commit and forget; the errors."""
    from kafka.structs import TopicPartition

    commits: dict[Key, tuple[int, str, int]] = {}
    gone = []
    for row in rows:
        key = TopicPartition(row["topic"], row["partition"])
        if row["then"] is None:
            gone.append(key)
            continue
        position = wanted[key]
        is_moved = row["then"] != position.offset
        commits[key] = row["then"], position.metadata, -1 if is_moved else position.leader_epoch
    errors = commit(client, group, commits) if commits else {}
    if gone:
        errors |= errors_of(changed(client, lambda: client.delete_group_offsets(group, gone)))
    return errors


# ---- words ----


def _or_none(offset: int) -> int | None:
    return None if offset < 0 else offset


def _moment(option: str, text: str) -> int:
    """A time in milliseconds; what is none ends the command."""
    at_ms = moment_of(text)
    if at_ms is None:
        fail(f"{option} wants {A_TIME}, not {text!r}.", ExitCode.NOT_VALID)
    return at_ms


def _as_cells(line: tuple[Changes, Row] | Gap) -> tuple[Any, ...]:
    if isinstance(line, Gap):
        missing = counted(line.change_count, "change is missing", "changes are missing")
        count = "" if line.change_count < 0 else f"of this partition {missing}: "
        return (shown_time(line.last_ms), *[None] * 5, f"GAP: {count}{line.why}", *[None] * 4)
    record, row = line
    old, new = _or_none(row.old_offset), _or_none(row.new_offset)
    return (
        *(shown_time(record.time_ms), row.topic, row.partition),
        *("?" if row.old_offset == NOT_KNOWN else old, new, None if None in (old, new) else new - old),  # type: ignore[operator]
        record.cause.words,
        None if record.generation < 0 else record.generation,
        *(record.client_id or None, record.host or None, record.member_id or None),
    )


def _as_json(line: tuple[Changes, Row] | Gap) -> dict[str, Any]:
    if isinstance(line, Gap):
        return {
            "kind": "gap",
            "from": shown_time(line.first_ms) if line.first_ms else None,
            "to": shown_time(line.last_ms),
            "changes": _or_none(line.change_count),
            "why": line.why,
        }
    record, row = line
    return {
        "kind": "change",
        "time": shown_time(record.time_ms),
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
