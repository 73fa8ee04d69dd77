"""The table `barnabas.journal`, compared with the changes that were written."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.cluster.topic_names import JOURNAL_TOPIC
from barnabas.offsets import journal as form
from barnabas.offsets.journal import NO_OFFSET, NOT_KNOWN, Cause, Gap
from barnabas.offsets.journal import Row as Change
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.pipeline.aside import CorruptLogError
from barnabas.pipeline.sources import JournalSource
from barnabas.pipeline.streaming import LogStreamReader
from barnabas.protocol import uuids
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, TOPIC_ID, DataDirectory, read_aside
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, IsNull, Not
from pyspark.sql.streaming.datasource import ReadAllAvailable
from test_directories import Row, in_order, read, time_of

NAMES = ("is_gap", "cause", "group_id", "topic", "partition", "old_offset", "new_offset")


def known(value: int) -> int | None:
    return None if value < 0 else value


class Written:
    """Records of the journal in a data directory, in two partitions and small segments; and the rows that they are."""

    def __init__(self, path: Path) -> None:
        self.directory = DataDirectory(path)
        self.path = str(path)
        self.rows: list[Row] = []

    def append(self, partition: int, *records: tuple[bytes, bytes | None]) -> int:
        log = self.directory.log(JOURNAL_TOPIC, partition, segment_bytes=4000, index_interval_bytes=200)
        return self.directory.append(log, *(Record(-1, NOW_MS, key, value) for key, value in records))

    def change(
        self, partition: int, group: str, cause: Cause, position: int, changes: list[Change], *who: Any, at_ms: int
    ) -> None:
        """`who`: generation, client id, host, principal, member id."""
        together = cause is Cause.TRANSACTION
        origin = form.encode_origin(cause, *who)
        values = list(form.encode_rows(origin, position, at_ms, changes, are_consecutive=not together))
        base = self.append(partition, *((form.key_of(group), value) for value, _ in values))
        assert len(values) == 1
        generation, *names = who
        for index, one in enumerate(changes):
            was, there = one.old_offset >= 0, one.new_offset >= 0
            self.rows.append(
                {
                    "is_gap": False,
                    "at": time_of(at_ms),
                    "group_id": group,
                    "cause": cause.words,
                    "topic": one.topic,
                    "topic_id": None if one.topic_id == NO_TOPIC_ID else uuids.to_text(one.topic_id),
                    "partition": one.partition,
                    "old_offset": one.old_offset if was else None,
                    "old_leader_epoch": known(one.old_leader_epoch),
                    "old_metadata": one.old_metadata if was else None,
                    "is_old_known": one.old_offset != NOT_KNOWN,
                    "new_offset": one.new_offset if there else None,
                    "new_leader_epoch": known(one.new_leader_epoch),
                    "new_metadata": one.new_metadata if there else None,
                    "generation": known(generation),
                    **{
                        name: text or None
                        for name, text in zip(("client_id", "host", "principal", "member_id"), names, strict=True)
                    },
                    "change_offset": position if together else position + index,
                    "end_offset": position + (1 if together else len(changes)),
                    **dict.fromkeys(("gap_until", "gap_changes", "gap_reason")),
                    **self.place(partition, base),
                }
            )

    def gap(self, partition: int, gap: Gap) -> None:
        base = self.append(partition, (b"", form.encode_gap(gap)))
        nothing = dict.fromkeys(JournalSource.table.arrow.names)
        self.rows.append(
            {
                **nothing,
                "is_gap": True,
                "at": time_of(gap.first_ms or -1),
                "change_offset": known(gap.position),
                "end_offset": known(gap.end_position),
                "gap_until": time_of(gap.last_ms),
                "gap_changes": known(gap.change_count),
                "gap_reason": gap.why,
                **self.place(partition, base),
            }
        )

    def place(self, partition: int, offset: int) -> Row:
        return {
            "log_partition": partition,
            "log_offset": offset,
            "log_timestamp": time_of(NOW_MS),
            "log_leader_epoch": 0,
            "directory": self.path,
        }


def some_changes(path: Path, seed: int, count: int) -> Written:
    """Changes of every cause, and gaps."""
    written, rng = Written(path), Random(seed)
    positions = {0: 5, 3: 0}
    for _ in range(count):
        partition = rng.choice((0, 3))
        at_ms = NOW_MS + rng.randrange(1_000_000)
        if rng.random() < 0.05:
            gap = Gap(
                rng.choice((-1, positions[partition])),
                -1,
                rng.choice((0, at_ms)),
                at_ms,
                rng.choice((-1, 7)),
                "because",
            )
            written.gap(partition, gap)
            continue
        cause = rng.choice(list(Cause))
        changes = []
        for topic in rng.sample(("orders", "größe", "events"), rng.choice((1, 1, 2))):
            for number in rng.sample(range(8), rng.choice((1, 1, 5))):
                old = rng.choice((NO_OFFSET, NOT_KNOWN, 0, 7, 1 << 50))
                new = rng.choice((NO_OFFSET, 0, 9, 1 << 50))
                changes.append(
                    Change(
                        *(topic, rng.choice((NO_TOPIC_ID, TOPIC_ID)), number),
                        *(old, rng.choice((-1, 4)), rng.choice(("", "", "ä" * 40)) if old >= 0 else ""),
                        *(new, rng.choice((-1, 5)), rng.choice(("", "", "m")) if new >= 0 else ""),
                    )
                )
        by_itself = cause in (Cause.EXPIRY, Cause.TOPIC_GONE)
        who = (-1, "", "", "", "") if by_itself else (rng.choice((-1, 3)), "app", "/10.0.0.7", "User:ann", "app-1")
        group = rng.choice(("billing", "größe", "g" * 300))
        written.change(partition, group, cause, positions[partition], changes, *who, at_ms=at_ms)
        positions[partition] += len(changes)
    return written


@pytest.mark.parametrize("seed", range(4))
def test_changes_and_gaps(tmp_path: Path, seed: int) -> None:
    written = some_changes(tmp_path, seed, 120)
    path = written.directory.close()
    assert len(list(tmp_path.glob(f"{JOURNAL_TOPIC}-*/*.log"))) > 4
    found = read("barnabas.journal", path=path)
    assert in_order(found) == in_order(written.rows)
    assert {row["cause"] for row in found} == {None, *(cause.words for cause in Cause)}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (EqualTo(("group_id",), "billing"), lambda row: row["group_id"] == "billing"),
        (In(("cause",), ("reset", "live reset")), lambda row: row["cause"] in ("reset", "live reset")),
        (EqualTo(("log_partition",), 3), lambda row: row["log_partition"] == 3),
        (GreaterThanOrEqual(("log_offset",), 30), lambda row: row["log_offset"] >= 30),
        (EqualTo(("is_gap",), True), lambda row: row["is_gap"]),
        (IsNull(("new_offset",)), lambda row: row["new_offset"] is None),
        (IsNotNull(("client_id",)), lambda row: row["client_id"] is not None),
        (Not(EqualTo(("old_offset",), 7)), lambda row: row["old_offset"] not in (None, 7)),
        (
            GreaterThan(("at",), time_of(NOW_MS + 500_000)),
            lambda row: row["at"] and row["at"] > time_of(NOW_MS + 500_000),
        ),
    ],
    ids=str,
)
def test_conditions_are_applied_by_the_source(tmp_path: Path, condition: Any, holds: Callable[[Row], Any]) -> None:
    written = some_changes(tmp_path, 3, 120)
    path = written.directory.close()
    chosen = [row for row in written.rows if holds(row)]
    assert 0 < len(chosen) < len(written.rows)
    assert in_order(read("barnabas.journal", condition, path=path)) == in_order(chosen)


def test_only_some_columns_and_a_condition_as_an_option(tmp_path: Path) -> None:
    written = some_changes(tmp_path, 1, 60)
    path = written.directory.close()
    found = read("barnabas.journal", path=path, columns=",".join(NAMES), where="cause = 'expiry' and is_gap = false")
    expected = [{name: row[name] for name in NAMES} for row in written.rows if row["cause"] == "expiry"]
    assert sorted(found, key=str) == sorted(expected, key=str) != []


def test_what_a_newer_broker_wrote_is_refused_or_put_aside(tmp_path: Path) -> None:
    """Nothing that can be read is lost beside it."""
    written = some_changes(tmp_path / "data", 2, 20)
    (good,) = form.encode_rows(
        form.encode_origin(Cause.COMMIT), 900, NOW_MS, [Change("t", TOPIC_ID, 0, 1, 1, "", 2, 1, "")]
    )
    newer = bytes([form.VERSION + 1]) + good[0][1:]
    first = written.append(0, (b"g", newer))
    path = written.directory.close()
    with pytest.raises(CorruptLogError, match=rf"version {form.VERSION + 1} of a record of the offset journal"):
        read("barnabas.journal", path=path)
    aside = tmp_path / "aside"
    assert in_order(read("barnabas.journal", path=path, aside=aside)) == in_order(written.rows)
    (place,) = read_aside(str(aside))
    assert (place["kind"], place["topic"], place["offset"]) == ("record", JOURNAL_TOPIC, first)
    assert f"version {form.VERSION + 1} of a record of the offset journal" in str(place["reason"])


def test_what_another_client_wrote_there_is_a_gap(tmp_path: Path) -> None:
    """As `__admin_client` any client may write to internal topics. What cannot be understood ends no query."""
    written = some_changes(tmp_path / "data", 2, 20)
    (good,) = form.encode_rows(
        form.encode_origin(Cause.COMMIT), 900, NOW_MS, [Change("t", TOPIC_ID, 0, 1, 1, "", 2, 1, "")]
    )
    for value in (good[0][:-1], None, b"", b"\x00\x07"):
        offset = written.append(0, (b"g", value))
        with pytest.raises(ValueError, match="offset journal") as found:
            form.decode(b"g", value)
        nothing = dict.fromkeys(JournalSource.table.arrow.names)
        why = {"is_gap": True, "gap_until": time_of(NOW_MS), "gap_reason": str(found.value)}
        written.rows.append({**nothing, **why, **written.place(0, offset)})
    assert in_order(read("barnabas.journal", path=written.directory.close())) == in_order(written.rows)


def test_a_source_without_a_journal(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.append(directory.log("orders"), Record(-1, NOW_MS, None, b"x"))
    assert read("barnabas.journal", path=directory.close()) == []


def test_the_journal_as_a_stream(tmp_path: Path) -> None:
    """It begins before there is a journal, and each row comes once."""
    written = Written(tmp_path)
    written.directory.append(written.directory.log("orders"), Record(-1, NOW_MS, None, b"x"))
    written.directory.manager.checkpoint()
    source = JournalSource({"path": str(tmp_path)})
    reader: LogStreamReader = source.streamReader(source.schema())
    at = reader.initialOffset()
    found: list[Row] = []
    change = Change("orders", TOPIC_ID, 0, 1, 0, "", 2, 0, "")
    for number in range(3):
        for partition in (0, 3):
            changes = [change] * (number + 1)
            written.change(
                partition, "g", Cause.COMMIT, 10 * number, changes, 1, "a", "/h", "User:u", "m", at_ms=NOW_MS
            )
        written.directory.manager.checkpoint()
        end = reader.latestOffset(at, ReadAllAvailable())
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        at, begin = json.loads(json.dumps(end)), at
        found += [
            row for task in reader.partitions(begin, at) for some in reader.read(task) for row in some.to_pylist()
        ]
    written.directory.close()
    assert in_order(found) == in_order(written.rows)
    assert len(found) == 12
