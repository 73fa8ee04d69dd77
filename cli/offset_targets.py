"""Where `barnabas offsets set` moves a group: a place in the log, a distance, the lines of a file, another group."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import Key, describe_groups, describe_topics, offsets_at, positions
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.moments import A_TIME, moment_of
from barnabas.cli.shared.terminal import INT64_MAX
from barnabas.cli.shared.words import partition_of
from barnabas.runtime.counted import counted

OFFSET_FIELDS = ("offset", "new_offset", "committed_offset")  # the first that a JSON object has


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a group is moved: one of four."""

    to: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help=f"earliest, latest, an offset, or {A_TIME}."),
    ] = None
    shift_by: Annotated[
        int | None,
        typer.Option(min=-INT64_MAX, max=INT64_MAX, metavar="N", help="Forward by N records; negative: back."),
    ] = None
    to_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The offsets of a file: CSV (topic,partition,offset) or JSON.")
    ] = None
    to_group: Annotated[
        str | None, typer.Option(metavar="OTHER", help="The offsets that another group has committed.")
    ] = None

    def read(self) -> tuple[Any, dict[Key, int] | None]:
        """The place that it names, and the offsets of the file. What cannot be one ends the command."""
        if [self.to, self.shift_by, self.to_file, self.to_group].count(None) != 3:
            fail("say one of --to WHERE, --shift-by N, --to-file FILE, --to-group OTHER.", ExitCode.NOT_VALID)
        place = None if self.to is None else place_of(self.to)
        return place, None if self.to_file is None else read_file(self.to_file)

    def plan(
        self, client: Any, group: str, chosen: Sequence[Key] | None, place: Any, wanted: dict[Key, int] | None
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Rows with `new_offset`, of these partitions or all that the group has; names of those that were outside."""
        rows = positions(client, group, extra=chosen or ())
        if chosen is not None:
            rows = [row for row in rows if (row["topic"], row["partition"]) in chosen]
        rows = [row for row in rows if row["log_end_offset"] is not None]
        if wanted is not None:
            set_wanted(rows, wanted, self.to_file or f"what {self.to_group} has committed")
        if not rows:
            fail(f"{group} has committed nothing yet: name the topics with --topic.", ExitCode.NOTHING_THERE)
        return rows, choose(client, rows, place, self.shift_by) if wanted is None else []


def place_of(to: str, option: str = "--to") -> Any:
    """`earliest`, `latest`, an offset or a time, in the form that kafka-python looks up."""
    from kafka.admin import OffsetSpec, OffsetTimestamp

    if to in ("earliest", "latest"):
        return OffsetSpec[to.upper()]
    if to.isdecimal():
        return int(to)
    at_ms = moment_of(to)
    if at_ms is None:
        fail(f"{option} wants earliest, latest, an offset or {A_TIME}, not {to!r}.", ExitCode.NOT_VALID)
    return OffsetTimestamp(at_ms)


def named(topic: str) -> tuple[str, set[int] | None]:
    """A topic, and the partitions of it that `orders:0,2` names; None: all."""
    name, colon, numbers = topic.partition(":")
    try:
        return name, {int(number) for number in numbers.split(",")} if colon else None
    except ValueError:
        fail(f"--topic wants TOPIC or TOPIC:0,1,2, not {topic!r}.", ExitCode.NOT_VALID)


def partitions_named(client: Any, topics: list[str]) -> list[Key]:
    """The partitions that `orders` or `orders:0,2` names; the command ends if one does not exist."""
    wanted = dict(map(named, topics))
    result = []
    for name, topic_metadata in describe_topics(client, list(wanted)).items():
        existing = {partition["partition_index"] for partition in topic_metadata["partitions"]}
        chosen = wanted[name]
        if chosen is not None and chosen - existing:
            fail(
                f"{name} has {counted(len(existing), 'partition')}, no {min(chosen - existing)}.",
                ExitCode.NOTHING_THERE,
            )
        result += [(name, index) for index in sorted(existing if chosen is None else chosen)]
    return result


def choose(client: Any, rows: list[dict[str, Any]], place: Any, shift_by: int | None) -> list[str]:
    """Write `new_offset` into every row. An offset outside the log is moved to its nearest end: the names of these."""
    from kafka.admin import OffsetTimestamp
    from kafka.structs import TopicPartition

    by_time: dict[Any, Any] = {}
    moved = []
    if isinstance(place, OffsetTimestamp):
        keys = [TopicPartition(row["topic"], row["partition"]) for row in rows]
        by_time = offsets_at(client, keys, place)
    for row in rows:
        start, end, committed = row["log_start_offset"], row["log_end_offset"], row["committed_offset"]
        if shift_by is not None:
            if committed is None:
                fail(
                    f"{row['topic']}-{row['partition']} has no committed offset to shift: use --to.",
                    ExitCode.NOTHING_THERE,
                )
            wanted = committed + shift_by
        elif by_time:
            found = by_time[TopicPartition(row["topic"], row["partition"])].offset
            wanted = end if found < 0 else found
        elif place == -2:
            wanted = start
        elif place == -1:
            wanted = end
        else:
            wanted = int(place)
        row["new_offset"] = max(start, min(end, wanted))
        if row["new_offset"] != wanted:
            moved.append(partition_of(row))
    return moved


def set_wanted(rows: list[dict[str, Any]], wanted: dict[Key, int], source: str) -> None:
    """Write `new_offset` into every row, from a file or another group. All rows are checked, and none is moved."""
    problems = []
    known = {(row["topic"], row["partition"]): row for row in rows}
    for key, offset in wanted.items():
        row = known.get(key)
        name = f"{key[0]}-{key[1]}"
        if row is None:
            problems.append(f"{name}: there is no such partition, or it has no leader")
        elif not row["log_start_offset"] <= offset <= row["log_end_offset"]:
            start, end = row["log_start_offset"], row["log_end_offset"]
            problems.append(f"{name}: {offset} is outside its log, which is from {start} to {end}")
        else:
            row["new_offset"] = offset
    if problems:
        more = f"\n… and {len(problems) - 10} more" if len(problems) > 10 else ""
        shown = "\n".join(problems[:10])
        fail(f"nothing was changed, because {source} does not fit:\n{shown}{more}", ExitCode.NOT_VALID)


def of_group(client: Any, group: str) -> dict[Key, int]:
    """What another group has committed; the command ends if it has nothing, or does not exist."""
    describe_groups(client, [group])
    found = {
        (row["topic"], row["partition"]): int(row["committed_offset"])
        for row in positions(client, group)
        if row["committed_offset"] is not None
    }
    if not found:
        fail(f"{group} has no committed offsets.", ExitCode.NOTHING_THERE)
    return found


def read_file(path: str) -> dict[Key, int]:
    """The offsets of a file: CSV (topic,partition,offset, as kafka-consumer-groups exports it) or JSON.

    JSON is one list of objects, such as `barnabas offsets list --json` prints, or an object on each line. Every row is
    checked; the command ends at the first that is wrong.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except (OSError, UnicodeError) as error:
        fail(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", ExitCode.NOTHING_THERE)
    found: dict[Key, int] = {}
    for number, (topic, partition, offset) in enumerate(_rows(path, content), 1):
        try:
            key, wanted = (str(topic).strip(), _whole(partition)), _whole(offset)
        except ValueError as error:
            fail(f"{path}, row {number}: {error}.", ExitCode.NOT_VALID)
        if not key[0]:
            fail(f"{path}, row {number}: there is no topic.", ExitCode.NOT_VALID)
        if key in found:
            fail(f"{path}, row {number}: {key[0]}-{key[1]} is there twice.", ExitCode.NOT_VALID)
        found[key] = wanted
    if not found:
        fail(f"{path} has no row.", ExitCode.NOTHING_THERE)
    return found


def _whole(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) >= 1 << 63:
        raise ValueError(f"{value!r} is no partition or offset: a whole number of at least 0")
    return int(text)


def _rows(path: str, content: str) -> list[tuple[Any, Any, Any]]:
    text = content.lstrip()
    if text[:1] not in ("[", "{"):
        lines = [line for line in csv.reader(content.splitlines()) if line and not line[0].lstrip().startswith("#")]
        if lines and [word.strip().lower() for word in lines[0][:2]] == ["topic", "partition"]:
            del lines[0]
        for number, line in enumerate(lines, 1):
            if len(line) != 3:
                fail(f"{path}, row {number}: {','.join(line)!r} is not topic,partition,offset.", ExitCode.NOT_VALID)
        return [(line[0], line[1], line[2]) for line in lines]
    try:
        values = (
            json.loads(text) if text[0] == "[" else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except (ValueError, RecursionError) as error:
        fail(f"{path} is no JSON: {error}.", ExitCode.NOT_VALID)
    rows = []
    for number, value in enumerate(values, 1):
        names = [name for name in OFFSET_FIELDS if isinstance(value, dict) and value.get(name) is not None]
        if not isinstance(value, dict) or not names or "topic" not in value or "partition" not in value:
            fail(f"{path}, row {number}: topic, partition and offset are needed.", ExitCode.NOT_VALID)
        rows.append((value["topic"], value["partition"], value[names[0]]))
    return rows
