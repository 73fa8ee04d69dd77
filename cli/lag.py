"""`barnabas groups lag`: what a group has not read, asked of its coordinator and of the leaders of its partitions."""

import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.cli.plot import plot
from barnabas.cli.shared.client import admin
from barnabas.cli.shared.exits import ExitCode, Failure, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target, no_time_limit
from barnabas.cli.shared.terminal import AsJson, print_json, print_table, table_lines
from barnabas.cli.shared.words import duration, shown, size
from barnabas.offsets.lag import PartitionLag, Status, TotalLag, total, with_answers
from barnabas.offsets.lag_history import Point, Rates
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

POSITIONS_AT_ONCE = 1_000
WATCH_S = 2.0
HOURS = 1.0
OWN_POINTS_MAX = 3_600
PLOT_HEIGHT = 6
WIDTH_MAX = 100
_GOES_SOON_MS = 86_400_000


class Isolation(StrEnum):
    """What a consumer reads of transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class GroupLag(NamedTuple):
    """The answer of the coordinator, with those of the leaders."""

    document: dict[str, Any]
    rows: list[PartitionLag]
    history: list[Point]

    @property
    def rates(self) -> Rates:
        names = ("consumed_per_second", "produced_per_second", "catch_up_seconds")
        return Rates(*(self.document[name] for name in names))

    def as_json(self, isolation: str) -> dict[str, Any]:
        sums = total(self.rows, isolation)
        return {
            **{name: self.document[name] for name in ("group", "state", "members", "time_ms")},
            "isolation": isolation,
            "records": sums.records,
            "records_min": sums.records_min,
            "bytes": sums.bytes,
            "seconds": sums.seconds,
            "partitions_not_known": sums.unknown,
            "lost_records_max": sums.lost_records_max,
            **self.rates._asdict(),
            "partitions": [row.as_json() for row in self.rows],
        }


def lag(
    target: Target,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="How often --watch looks.", min=0.2)] = WATCH_S,
    hours: Annotated[float, typer.Option(metavar="HOURS", help="How much the plot shows.", min=0.01, max=24)] = HOURS,
    isolation: Annotated[
        Isolation, typer.Option(metavar="LEVEL", help="read_uncommitted (Kafka's default) or read_committed.")
    ] = Isolation.READ_UNCOMMITTED,
    as_json: AsJson = False,
) -> None:
    """Records, bytes and seconds that a group is behind, also while its consumers are stopped.

    Only records that a consumer gets are counted. "≤" stands before a number that is a bound.

    \b
    barnabas groups lag billing
    barnabas groups lag billing --watch
    barnabas groups lag billing --isolation read_committed --json
    """
    with admin(target) as client:
        api = HttpApi(client, target)
        if not watch:
            found = ask(api, group)
            if as_json:
                print_json(found.as_json(isolation))
            else:
                _print(found, isolation)
            return
        _watch(api, target, group, interval, hours, isolation, as_json)


def ask(api: HttpApi, group: str) -> GroupLag:
    """The coordinator's answer, completed by the leaders of partitions elsewhere."""
    document = api.get("/v1/groups/{group}/lag", group=group)
    rows = [PartitionLag.from_json(row) for row in document["partitions"]]
    elsewhere: dict[int, list[PartitionLag]] = {}
    for row in rows:
        if row.status is Status.OTHER_LEADER and row.leader is not None and row.leader != document["node_id"]:
            elsewhere.setdefault(row.leader, []).append(row)
    for leader, its_rows in elsewhere.items():
        for at in range(0, len(its_rows), POSITIONS_AT_ONCE):
            names = ("topic", "partition", "offset", "leader_epoch", "topic_id")
            piece = [row.as_json() for row in its_rows[at : at + POSITIONS_AT_ONCE]]
            body = {"positions": [{name: row[name] for name in names} for row in piece]}
            try:
                answer = api.ask("POST", "/v1/positions", body, node_id=leader)
            except Failure:
                continue  # its rows say that it did not answer
            rows = with_answers(rows, [PartitionLag.from_json(row) for row in answer["partitions"]])
    return GroupLag(document, rows, [Point(**point) for point in document["history"]])


def add_true_lag(api: HttpApi, group: str, rows: list[dict[str, Any]]) -> None:
    """Give rows of `groups describe` what `groups lag` knows; None where there is no HTTP API to ask."""
    found = None
    if any(row["committed_offset"] is not None for row in rows):
        with suppress(Failure):
            found = ask(api, group)
    known = {(row.topic, row.partition): row for row in found.rows} if found is not None else {}
    for row in rows:
        true = known.get((row["topic"], row["partition"]))
        lag = None if true is None else true.of(Isolation.READ_UNCOMMITTED)
        row["status"] = None if true is None else true.status
        row["records"] = None if lag is None else lag.records
        row["records_min"] = None if lag is None else lag.records_min
        row["seconds"] = None if lag is None else lag.seconds
        row["note"] = None if true is None or found is None else note(true, found.document["time_ms"]) or None


def true_lag_cells(row: dict[str, Any]) -> tuple[str | None, str | None]:
    """How many records, and how long, a row of `groups describe` is behind."""
    if row["records"] is None:
        return None, None
    return records(row["records"], row["records_min"]), duration(row["seconds"]) if row["records"] else None


# ------------------------------------------------------------------ words


def records(most: int, least: int) -> str:
    """A number of records; a bound with its sign."""
    return f"{most:,}" if most == least else f"≤ {most:,}"


def note(row: PartitionLag, now_ms: int) -> str:
    """What else there is to say of a partition."""
    words = {
        Status.OK: "",
        Status.BEFORE_LOG_START: f"deleted before they were read: ≤ {counted(row.lost_records_max, 'record')}",
        Status.PAST_LOG_END: f"past the log end {row.log_end_offset}",
        Status.LOG_CUT: f"the log was cut at {row.cut_at}: records that the group has read are gone",
        Status.TOPIC_MADE_AGAIN: "of a deleted topic of this name",
        Status.NO_SUCH_TOPIC: "the topic does not exist",
        Status.NO_LEADER: "the partition has no leader",
        Status.OTHER_LEADER: f"broker {row.leader} leads it, and did not say",
        Status.UNKNOWN: f"the leader cannot say: {row.error}",
    }[row.status]
    goes = going(row, now_ms)
    return "; ".join(filter(None, (words, goes)))


def going(row: PartitionLag, now_ms: int) -> str:
    """When retention takes the next record, if that is soon."""
    if row.held_until_ms is not None:
        return f"retention waits, {duration(max(row.held_until_ms - now_ms, 0) / 1000)} more at most"
    if row.goes_ms is not None and row.goes_ms - now_ms < _GOES_SOON_MS:
        left = (row.goes_ms - now_ms) / 1000
        return (
            f"retention takes the next record in {duration(left)}"
            if left > 0
            else "retention takes the next record now"
        )
    if row.goes_after_bytes == 0:
        return "retention.bytes takes the next record now"
    return ""


def headline(found: GroupLag, isolation: str) -> str:
    """The group in one line."""
    sums: TotalLag = total(found.rows, isolation)
    document = found.document
    members = document["members"]
    words = [f"{document['group']}  {document['state'] or 'no members yet'}"]
    words.append(counted(members, "member"))
    if not found.rows:
        return ", ".join([*words, "nothing is committed"])
    noun = "record" if sums.records == 1 else "records"
    behind = f"{records(sums.records, sums.records_min)} {noun}, {size(sums.bytes)}"
    if sums.records:
        behind += f", {duration(sums.seconds)} behind"
    if sums.unknown:
        behind += f"; of {counted(sums.unknown, 'partition')} it is not known"
    return ", ".join(words) + ": " + behind


def rate_line(rate: Rates) -> str:
    """How fast the group reads, and when it has read all; nothing if that is not known yet."""
    if rate.consumed is None or rate.produced is None:
        return ""
    words = f"reads {rate.consumed:,.1f} records/s, {rate.produced:,.1f} are written"
    if rate.catch_up_seconds is None:
        return f"{words}: it does not catch up"
    return f"{words}: caught up in {duration(rate.catch_up_seconds)}" if rate.catch_up_seconds else words


COLUMNS = ("topic", "#partition", "#committed", "#log end", "#records", "#bytes", "#behind", "note")


def cells(row: PartitionLag, isolation: str, now_ms: int) -> tuple[Any, ...]:
    found = row.of(isolation)
    end = row.last_stable_offset if isolation == Isolation.READ_COMMITTED else row.high_watermark
    known = ("?", "?", "?")
    if found is not None:
        behind = duration(found.seconds) if found.records else "-"
        known = (records(found.records, found.records_min), size(found.bytes), behind)
    return (row.topic, row.partition, row.offset, end, *known, note(row, now_ms))


def _print(found: GroupLag, isolation: str) -> None:
    print(shown(headline(found, isolation)))
    line = rate_line(found.rates)
    if line:
        print(line)
    if found.rows:
        print_table(COLUMNS, [cells(row, isolation, found.document["time_ms"]) for row in found.rows])


# ------------------------------------------------------------------ watching


def _watch(
    api: HttpApi, target: Target, group: str, interval_s: float, hours: float, isolation: str, as_json: bool
) -> None:
    clock = RealClock()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    own: list[Point] = []
    while True:
        target.renew()
        try:
            found = ask(api, group)
        except Failure as error:
            if not own or error.code == ExitCode.NOTHING_THERE:
                raise
            say(f"{error.message} Trying again.")
            _pause(clock, interval_s)
            continue
        own = [*own, seen(found, isolation)][-OWN_POINTS_MAX:]
        if as_json:
            print_json(found.as_json(isolation))
        elif sys.stdout.isatty():
            width, height = os.get_terminal_size()  # zeros where it is not known
            width, height = min(width or WIDTH_MAX, WIDTH_MAX), height or 24
            lines = screen(found, joined(found.history, own), isolation, hours, width, height)
            print("\x1b[H\x1b[2J" + "\n".join(lines), flush=True)
        else:
            print("; ".join(filter(None, (headline(found, isolation), rate_line(found.rates)))), flush=True)
        _pause(clock, interval_s)


def _pause(clock: RealClock, seconds: float) -> None:
    with no_time_limit():
        asyncio.run(clock.sleep(seconds * 1000))


def _end(_number: int, _frame: Any) -> None:
    """The handler of Ctrl-C, which is how a watch ends."""
    with suppress(OSError, RuntimeError):  # RuntimeError: it came in the midst of a flush, which Python does not nest
        sys.stdout.flush()
    os._exit(ExitCode.DONE)


def seen(found: GroupLag, isolation: str) -> Point:
    """What this command has found out itself."""
    counted = [row for row in found.rows if row.of(isolation) is not None]
    sums = total(counted, isolation)
    return Point(found.document["time_ms"], sums.records, sum(row.offset for row in counted), len(counted))


def joined(history: Sequence[Point], own: Sequence[Point]) -> list[Point]:
    """The history of the coordinator, and from then on what this command has seen."""
    return [*(point for point in history if point.time_ms < own[0].time_ms), *own]


def screen(
    found: GroupLag, points: Sequence[Point], isolation: str, hours: float, width: int, height: int
) -> list[str]:
    """The group, a plot of its lag, and its partitions, those that are most behind first, as far as there is room."""
    end_ms = found.document["time_ms"]
    begin_ms = max(end_ms - hours * 3_600_000, points[0].time_ms - 1_000)
    values = [(point.time_ms, point.records) for point in points]
    largest = max((point.records for point in points if point.time_ms >= begin_ms), default=0)
    lines = [headline(found, isolation), rate_line(found.rates), ""]
    lines += [line.rstrip() for line in plot(values, begin=begin_ms, end=end_ms, width=width, height=PLOT_HEIGHT)]
    ago = f"{duration((end_ms - begin_ms) / 1000)} ago"
    scale = f"0 to {largest:,} records"
    lines += [f"{ago}{scale.center(max(width - len(ago) - 3, 0))}now", ""]
    rows = sorted(found.rows, key=lambda row: -_records_of(row, isolation))
    table = table_lines(COLUMNS, [cells(row, isolation, end_ms) for row in rows])
    room = max(height - len(lines) - 2, 3)
    if len(table) > room:
        table = [*table[: room - 1], f"… and {counted(len(table) - room + 1, 'more partition')}"]
    return lines + table


def _records_of(row: PartitionLag, isolation: str) -> float:
    found = row.of(isolation)
    return math.inf if found is None else found.records
