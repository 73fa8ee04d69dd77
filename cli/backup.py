"""`barnabas offsets export|import`: committed offsets as a file that another cluster understands, and back.

Both commands use nothing but Kafka's protocol, so either cluster may be an Apache Kafka.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli import backup_file
from barnabas.cli.log_headers import Log, LogHeaders
from barnabas.cli.shared.client import Key, admin, answered, await_coordinators, commit, no_group
from barnabas.cli.shared.exits import ExitCode, fail, key_values, say
from barnabas.cli.shared.target import Target, no_time_limit
from barnabas.cli.shared.terminal import AsJson, Yes, confirm, print_json, print_table, progress
from barnabas.offsets import backup, backup_records, backup_search
from barnabas.offsets.backup import Backup, Position
from barnabas.offsets.backup_places import Found, How, Placement, There, place, prove, refuse_early
from barnabas.offsets.backup_records import NO_MARKS, Marks, place_by_records
from barnabas.offsets.backup_search import Around, Searched, Wanted, hits_of
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted, names_in_a_line
from barnabas.runtime.grouped import grouped

FIRST_GROUPS, GROUPS_PER_REQUEST = 10, 100
OFFSETS_PER_REQUEST = 20_000  # also with metadata of 4 KB each, it is what the client takes
ROWS_SHOWN = 200
WITHOUT_MEMBERS = {"Empty", "Dead"}
NOT_LOOKED = Placement(How.REFUSED, None)

File = Annotated[str, typer.Argument(metavar="FILE", help="The file; - for standard output or input.")]
Groups = Annotated[list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group; repeat.")]


class _Committed(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int


def export(
    target: Target,
    file: File,
    group: Groups = None,
    batches_only: Annotated[
        bool, typer.Option("--batches-only", help="Faster, but not for copies that have other batches.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the committed offsets of all groups, or of some, into a file.

    With each offset goes what the log has there, so that `import` recognises the place in another log.
    The file is whole or not there. Consumers may run meanwhile.
    An older backup of that name is replaced; no other file is, and none in a data directory.

    \b
    barnabas offsets export offsets.jsonl
    barnabas offsets export offsets.jsonl --group billing --group audit
    barnabas offsets export - --group billing | gzip > billing.jsonl.gz
    """
    backup_file.check_writable(file, backup_file.OFFSETS)
    with admin(target) as client:
        cluster_id = answered(client, client.describe_cluster)["cluster_id"]
        time_ms = RealClock().now_ms()
        names = _groups_to_export(client, group)
        committed = _committed(client, target, names)
        logs = LogHeaders(client, target)
        logs.look(topic for offsets in committed.values() for topic, _ in offsets)
        places: dict[Key, set[int]] = {}
        for offsets in committed.values():
            for key, one in offsets.items():
                if key in logs.logs:
                    places.setdefault(key, set()).add(one.offset)
        with progress("Reading batches", sum(map(len, places.values()))) as advance:
            around = logs.each(places, backup_search.around, advance)
        known = {key: found for key, found in around.items() if not isinstance(found, str)}
        marks: dict[Key, dict[int, Marks] | str] = {}
        if not batches_only:
            with progress("Reading records", sum(map(len, known.values()))) as advance:
                marks = logs.each(known, backup_records.marks_at, advance)
    doubts: dict[str, int] = {}
    count = sum(map(len, committed.values()))
    with progress("Writing positions", count) as advance:
        backup_file.write(
            file, backup.lines(cluster_id, time_ms, _positions(committed, logs, around, marks, doubts, advance))
        )
    _tell_export(file, committed, count, doubts, as_json)


def _groups_to_export(client: Any, wanted: Sequence[str] | None) -> list[str]:
    listed = {row["group_id"]: row for row in answered(client, client.list_groups)}
    for name in wanted or ():
        if name not in listed:
            no_group(name)
        if listed[name].get("group_type") == "share":
            fail(f"{name} is a share group: it has no committed offsets.", ExitCode.NOT_VALID)
    found = sorted({*wanted} if wanted else (name for name in listed if listed[name].get("group_type") != "share"))
    if not found:
        fail("there are no groups.", ExitCode.NOTHING_THERE)
    return found


def _committed(client: Any, target: Target, names: Sequence[str]) -> dict[str, dict[Key, _Committed]]:
    """What groups have committed, without those that have nothing. Many groups share a request."""
    found: dict[str, dict[Key, _Committed]] = {}
    keys: dict[Key, Key] = {}  # thousands of groups have the same partitions, so each is kept once
    with progress("Reading offsets of groups", len(names)) as advance:
        start, count = 0, FIRST_GROUPS
        while start < len(names):
            some = list(names[start : start + count])
            start += count
            offset_count = 0
            for group, offsets in answered(client, partial(client.list_group_offsets, some)).items():
                rows = {
                    keys.setdefault(tuple(key), tuple(key)): _Committed(
                        one.offset, one.metadata or "", one.leader_epoch
                    )
                    for key, one in sorted(offsets.items())
                    if one.offset >= 0
                }
                offset_count += len(rows)
                if rows:
                    found[group] = rows
            # Groups may be large, and an answer may not be larger than the client takes.
            count = max(1, min(GROUPS_PER_REQUEST, OFFSETS_PER_REQUEST * len(some) // max(1, offset_count)))
            target.renew()
            advance(len(some))
    return found


def _positions(
    committed: dict[str, dict[Key, _Committed]],
    logs: LogHeaders,
    around: dict[Key, dict[int, Around] | str],
    marks: dict[Key, dict[int, Marks] | str],
    doubts: dict[str, int],
    advance: Any,
) -> Iterator[Position]:
    """The positions to write. `doubts` counts those that cannot be recognised elsewhere, by the reason."""
    for group in sorted(committed):
        for key, one in committed[group].items():
            topic, partition = key
            log: Log | None = logs.logs.get(key)
            seen = around.get(key, {})
            if isinstance(seen, str):
                log, why = None, seen
            elif topic not in logs.topic_ids:
                why = "the topic is gone"
            else:
                why = "" if log else "the partition is gone, or has no leader"
            place = Around(None, None) if isinstance(seen, str) else seen.get(one.offset, Around(None, None))
            of_records = marks.get(key, {})
            record, before = NO_MARKS if isinstance(of_records, str) else of_records.get(one.offset, NO_MARKS)
            position = Position(
                group=group,
                topic=topic,
                topic_id=logs.topic_ids.get(topic),
                partition=partition,
                offset=one.offset,
                leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                log_start=log.start if log else None,
                log_end=log.end if log else None,
                batch=place.batch,
                before=place.before,
                record=record,
                record_before=before,
            )
            if refused := refuse_early(position):
                why = why or refused.note
                doubts[why] = doubts.get(why, 0) + 1
            advance(1)
            yield position


def _tell_export(
    file: str, committed: dict[str, dict[Key, _Committed]], count: int, doubts: dict[str, int], as_json: bool
) -> None:
    where = "standard output" if file == backup_file.STANDARD else file
    if as_json and file != backup_file.STANDARD:
        print_json({"file": file, "groups": len(committed), "positions": count, "without_proof": doubts})
    elif not as_json:
        say(f"{where} has {counted(count, 'position')} of {counted(len(committed), 'group')}.")
    for why, number in sorted(doubts.items()):
        if not as_json:
            say(f"{number:,} of them cannot be found again by `import`: {why}.")


# ---- import ----


@dataclass(slots=True, eq=False)
class _Row:
    """A position of the file, and what becomes of it here."""

    position: Position
    key: Key  # as the topic is called here
    placement: Placement
    wanted: _Committed | None = None  # what is to be committed
    now: _Committed | None = None
    result: str = ""
    error: str = ""
    epoch: int = -1  # the leader epoch of the file, where it means something here

    @property
    def name(self) -> str:
        return f"{self.position.group} {self.key[0]}-{self.key[1]}"


def import_(
    target: Target,
    file: File,
    group: Groups = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC=TOPIC", help="What a topic of the file is called here; repeat.")
    ] = None,
    search_mb: Annotated[
        int,
        typer.Option(
            "--search-mb", min=1, max=1_000_000, metavar="MB", help="How much of a log to search for a position."
        ),
    ] = 64,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed, change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Commit the offsets of such a file, in this cluster or another one, where each is the same next record.

    A position is proved by the batch at its offset, or found again by the batch's time and CRC, or by its record's.
    What cannot be placed is said and left as it is; the exit code is 1 then.
    Shows the plan first and asks; reads back at the end. Groups that have members are left as they are.

    \b
    barnabas offsets import offsets.jsonl --dry-run
    barnabas offsets import offsets.jsonl --group billing --yes
    barnabas offsets import offsets.jsonl --rename orders=primary.orders
    gunzip < billing.jsonl.gz | barnabas offsets import - --yes
    """
    names = key_values(rename or (), "--rename")
    found = backup_file.read(file)
    with admin(target) as client:
        positions = _chosen(found, group)
        cluster_id = answered(client, client.describe_cluster)["cluster_id"]
        rows = _rows(positions, names)
        _refuse_two_places(rows)
        logs = LogHeaders(client, target)
        logs.look(row.key[0] for row in rows)
        _place(target, rows, logs, found.cluster_id == cluster_id and cluster_id is not None, search_mb)
        _compare(client, target, rows)
        todo = [row for row in rows if row.result == ""]
        target.renew()
        if not as_json:
            _show_plan(found, rows)
        if todo:
            _say_new_groups(client, todo)
        if todo and not dry_run:
            groups = len({row.position.group for row in todo})
            confirm(f"Commit {counted(len(todo), 'offset')} of {counted(groups, 'group')}?", yes)
            _commit(client, target, todo)
            _verify(client, target, todo)
    with no_time_limit():
        _tell_import(found, rows, as_json, dry_run)


def _say_new_groups(client: Any, todo: Sequence[_Row]) -> None:
    """Say which groups this makes. A name that was mistyped in --group of the other side is noticed so."""
    names = list(dict.fromkeys(row.position.group for row in todo))
    known = {row["group_id"] for row in answered(client, client.list_groups)}
    if new := [name for name in names if name not in known]:
        say(f"not here yet, and made by this: {counted(len(new), 'group')} ({names_in_a_line(new)}).")


def _rows(positions: Sequence[Position], names: dict[str, str]) -> list[_Row]:
    keys: dict[Key, Key] = {}  # each is kept once
    rows = []
    for one in positions:
        key = (names.get(one.topic, one.topic), one.partition)
        rows.append(_Row(one, keys.setdefault(key, key), NOT_LOOKED))
    return rows


def _chosen(found: Backup, wanted: Sequence[str] | None) -> list[Position]:
    if not wanted:
        if not found.positions:
            fail("the file has no positions.", ExitCode.NOTHING_THERE)
        return found.positions
    chosen = [one for one in found.positions if one.group in wanted]
    for name in wanted:
        if not any(one.group == name for one in chosen):
            fail(f"the file has no group {name}.", ExitCode.NOTHING_THERE)
    return chosen


def _refuse_two_places(rows: list[_Row]) -> None:
    seen = set()
    for row in rows:
        if (row.position.group, row.key) in seen:
            fail(f"{row.name} is there twice, perhaps because of --rename.", ExitCode.NOT_VALID)
        seen.add((row.position.group, row.key))


def _place(target: Target, rows: list[_Row], logs: LogHeaders, is_same_cluster: bool, search_mb: int) -> None:
    """Decide for each row where it is in the log here."""
    readable = _readable(rows, logs)
    _search(_prove(target, readable, logs, is_same_cluster), target, logs, search_mb)
    wishes: dict[_Committed, _Committed] = {}
    for row in rows:
        if row.placement.offset is not None:
            epoch = row.epoch if row.placement.offset == row.position.offset else -1
            wish = _Committed(row.placement.offset, row.position.metadata, epoch)
            row.wanted = wishes.setdefault(wish, wish)


def _readable(rows: list[_Row], logs: LogHeaders) -> list[_Row]:
    """The rows whose partition can be read here. The others are refused."""
    readable = []
    for row in rows:
        topic, partition = row.key
        if refused := refuse_early(row.position):
            row.placement = refused
        elif row.key in logs.logs:
            readable.append(row)
        elif topic not in logs.partition_counts:
            row.placement = Placement(How.REFUSED, None, f"there is no topic {topic} here")
        elif partition >= (count := logs.partition_counts[topic]):
            row.placement = Placement(How.REFUSED, None, f"{topic} has only {counted(count, 'partition')} here")
        else:
            row.placement = Placement(How.REFUSED, None, "the partition has no leader")
    return readable


def _prove(target: Target, readable: list[_Row], logs: LogHeaders, is_same_cluster: bool) -> list[tuple[_Row, There]]:
    """Place the rows whose batch is at their offset here, too. The others, and what there is instead."""
    offsets: dict[Key, set[int]] = {}
    for row in readable:
        offsets.setdefault(row.key, set()).add(row.position.offset)
    with progress("Comparing batches", sum(map(len, offsets.values()))) as advance:
        around = logs.each(offsets, backup_search.around, advance)
    left: list[tuple[_Row, There]] = []
    placements: dict[Placement, Placement] = {}  # each is kept once
    target.renew()
    for row in readable:
        seen = around[row.key]
        if isinstance(seen, str):
            row.placement = Placement(How.REFUSED, None, seen)
            continue
        position = row.position
        topic_id = logs.topic_ids[row.key[0]]
        is_same_log = is_same_cluster and topic_id is not None and topic_id == position.topic_id
        there = There(is_same_log, *logs.logs[row.key], *seen[position.offset])
        if proved := prove(position, there):
            row.placement = placements.setdefault(proved, proved)
        else:
            left.append((row, there))
        if is_same_log:
            row.epoch = position.leader_epoch
    return left


def _search(left: list[tuple[_Row, There]], target: Target, logs: LogHeaders, search_mb: int) -> None:
    """Place rows by their batches, or else by their records, wherever these are in the log."""
    wanted: dict[Key, set[Wanted]] = {}
    for row, _ in left:
        wanted.setdefault(row.key, set()).add(Wanted(row.position.batch, row.position.before))
    with progress("Searching batches", sum(map(len, wanted.values()))) as advance:
        searched = logs.each(wanted, partial(backup_search.search, bytes_each=search_mb * 2**20), advance)
    target.renew()
    records: dict[Key, set[Marks]] = {}
    for row, there in left:
        result = searched[row.key]
        if isinstance(result, str):
            row.placement = Placement(How.REFUSED, None, result)
            continue
        row.placement = place(row.position, there, _found(row.position, result, search_mb))
        if row.placement.how is How.REFUSED and (marks := _marks(row.position)) != NO_MARKS:
            records.setdefault(row.key, set()).add(marks)
    with progress("Searching records", sum(map(len, records.values()))) as advance:
        search_records = partial(backup_records.search_records, bytes_each=search_mb * 2**20)
        by_records = logs.each(records, search_records, advance)
    for row, there in left:
        seen_records, marks = by_records.get(row.key, ""), _marks(row.position)
        if not isinstance(seen_records, str) and row.placement.how is How.REFUSED and marks != NO_MARKS:
            limit = _limit(seen_records.limits[marks], search_mb)
            row.placement = place_by_records(row.position, there, seen_records, limit)


def _found(position: Position, searched: Searched, search_mb: int) -> Found:
    limit = _limit(searched.limits[Wanted(position.batch, position.before)], search_mb)
    return Found(hits_of(position.batch, searched), hits_of(position.before, searched), limit)


def _limit(offset: int | None, search_mb: int) -> str:
    return "" if offset is None else f"{search_mb} MB were searched, up to offset {offset} (see --search-mb)"


def _marks(position: Position) -> Marks:
    return Marks(position.record, position.record_before)


def _compare(client: Any, target: Target, rows: list[_Row]) -> None:
    """Look what the groups have here, and say of each row that is not to be committed why."""
    listed = {row["group_id"]: row for row in answered(client, client.list_groups)}
    groups = sorted({row.position.group for row in rows})
    known = [name for name in groups if name in listed]
    living = {name for name in known if (listed[name].get("group_state") or "") not in WITHOUT_MEMBERS}
    now = _committed(client, target, known)
    for row in rows:
        group = row.position.group
        row.now = now.get(group, {}).get(row.key)
        if row.wanted is None:
            row.result, row.error = "not placed", row.placement.note
        elif group in living:
            row.result, row.error = "left as it is", "the group has members, which would commit over it: stop them"
        elif row.now is not None and (row.now.offset, row.now.metadata) == (row.wanted.offset, row.wanted.metadata):
            row.result = "there already"


def _commit(client: Any, target: Target, rows: list[_Row]) -> None:
    """Commit, one request for each group."""
    of_group = grouped((row.position.group, row) for row in rows)
    await_coordinators(client, list(of_group)[:1])  # makes the offsets topic
    with progress("Committing", len(of_group)) as advance:
        for group, some in of_group.items():
            offsets = {row.key: row.wanted for row in some if row.wanted is not None}
            # A commit without an answer is sent again, too: it says where the group shall be, not how far it moves.
            errors = answered(client, partial(commit, client, group, offsets))
            for row in some:
                if row.key in errors:
                    row.result, row.error = "not committed", errors[row.key]
            target.renew()
            advance(1)


def _verify(client: Any, target: Target, rows: list[_Row]) -> None:
    after = _committed(client, target, sorted({row.position.group for row in rows}))
    for row in rows:
        assert row.wanted is not None
        if row.error:
            continue
        seen = after.get(row.position.group, {}).get(row.key)
        row.result = "committed"
        if seen is None or (seen.offset, seen.metadata) != (row.wanted.offset, row.wanted.metadata):
            row.result = "not committed"
            row.error = f"{'nothing' if seen is None else seen.offset} is committed now: another client has written"


def _show_plan(found: Backup, rows: list[_Row]) -> None:
    time = datetime.fromtimestamp(found.time_ms / 1000).astimezone().isoformat(timespec="seconds")
    say(f"A backup of cluster {found.cluster_id}, made {time}.")
    placed = [row for row in rows if row.wanted is not None]
    print_table(
        ["group", "topic", "#partition", "#in the file", "#now", "#new", "how", "note"],
        [
            (
                *(row.position.group, *row.key, row.position.offset, row.now and row.now.offset),
                *(row.wanted and row.wanted.offset, row.placement.how, row.error or row.result or row.placement.note),
            )
            for row in placed[:ROWS_SHOWN]
        ],
    )
    if len(placed) > ROWS_SHOWN:
        print(f"… and {len(placed) - ROWS_SHOWN:,} more; --json shows all.")


def _tell_import(found: Backup, rows: list[_Row], as_json: bool, dry_run: bool) -> None:
    for row in rows:
        row.result = row.result or "to be committed"
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "time_ms": found.time_ms,
                "dry_run": dry_run,
                "results": Counter(row.result for row in rows),
                "positions": [_as_json(row) for row in rows],
            }
        )
    else:
        for result, count in Counter(row.result for row in rows).items():
            say(f"{count:,} {result}")
    errors = [f"{row.name}: {row.result}: {row.error}" for row in rows if row.error]
    if errors:
        fail("\n".join(errors))


def _as_json(row: _Row) -> dict[str, Any]:
    return {
        "group": row.position.group,
        "topic": row.key[0],
        "partition": row.key[1],
        "in_the_file": row.position.offset,
        "committed_offset": row.now and row.now.offset,
        "new_offset": row.wanted and row.wanted.offset,
        "how": row.placement.how,
        "note": row.placement.note,
        "result": row.result,
        "error": row.error or None,
    }
