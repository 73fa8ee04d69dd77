"""The file of a backup: what was written is read, and every damage is named by its line."""

import json
import random
from io import BytesIO
from pathlib import Path

import pytest
from barnabas.offsets import backup
from barnabas.offsets.backup import Backup, BackupError, Batch, Position
from barnabas.protocol.checksum import crc32c

B = Batch(10, 19, 0xFFFFFFFF, 1_700_000_000_000, 3, 0, 10, 1234)
NUMBERED = Batch(20, 29, 5, 1_700_000_000_001, 3, 16, 10, 99, 7, 0, 12)
POSITIONS = [
    Position("g", "t", "AAAAAAAAAAAAAAAAAAAAAQ", 0, 14, 3, "", 0, 30, B, None),
    Position("g", "t", "AAAAAAAAAAAAAAAAAAAAAQ", 1, 30, 3, 'a "quoted"\nline', 0, 30, None, NUMBERED),
    Position("groupe général 组", "gone", None, 0, 2**63 - 1, -1, "", None, None, None, None),
]
LINES = list(backup.lines("cluster", 1_750_000_000_000, POSITIONS))


def test_what_was_written_is_read() -> None:
    assert backup.read(LINES) == Backup("cluster", 1_750_000_000_000, POSITIONS)
    assert backup.read(backup.lines(None, 0, [])) == Backup(None, 0, [])


def test_the_lines_are_what_the_document_says() -> None:
    rows = [json.loads(line) for line in LINES]
    assert [row["kind"] for row in rows] == ["backup", "position", "position", "position", "end"]
    assert rows[0]["version"] == 1
    assert rows[-1]["positions"] == 3
    assert rows[1]["batch"]["crc"] == 0xFFFFFFFF
    assert "producer_id" not in rows[1]["batch"]
    assert rows[2]["before"]["base_sequence"] == 12
    for name in (*rows[1], *rows[1]["batch"], *rows[2]["before"], "cluster_id", "time_ms"):
        assert backup.__doc__ is not None
        assert name in backup.__doc__, name
    check = 0
    for line, row in zip(LINES, rows):
        check = crc32c(line.split(b',"check":')[0], check)
        assert row["check"] == f"{check:08x}"


def test_files_of_version_1_stay_readable() -> None:
    content = (Path(__file__).resolve().parents[2] / "golden" / "offsets-backup-1.jsonl").read_bytes()
    found = backup.read(BytesIO(content))
    assert [(one.group, one.partition, one.offset) for one in found.positions] == [
        ("billing", 0, 42),
        ("billing", 1, 30),
    ]
    assert found.positions[1].before == Batch(20, 29, 77, 1_700_000_009_004, 2, 4, 10, 990, 1000, 0, 12)
    assert b"".join(backup.lines(*found)) == content


def test_a_batch_of_many_positions_is_one_object() -> None:
    found = backup.read(backup.lines("c", 0, [POSITIONS[0], POSITIONS[0]._replace(offset=15)]))
    assert found.positions[0].batch is found.positions[1].batch


def with_line(number: int, content: bytes) -> list[bytes]:
    return [*LINES[: number - 1], content, *LINES[number:]]


DAMAGED = {
    "an empty file": ([], "empty"),
    "another file": ([b"topic,partition,offset\n"], "line 1: this is no backup"),
    "another JSON file": ([b'[{"topic": "t"}]\n'], "line 1: this is no backup"),
    "bytes": ([b"\x1f\x8b\x08\xff\n"], "line 1: this is no backup"),
    "nothing but brackets": ([b"[" * 100_000], "line 1: this is no backup"),
    "a newer version": (with_line(1, LINES[0].replace(b'"version":1', b'"version":2')), "line 1: .* newer barnabas"),
    "a changed first line": (with_line(1, LINES[0].replace(b'"cluster"', b'"other"')), "line 1 was changed"),
    "a changed offset": (with_line(2, LINES[1].replace(b'"offset":14', b'"offset":15')), "line 2 was changed"),
    "a changed line with its own checksum": (
        with_line(2, LINES[1][:-20] + b',"check":"%08x"}\n' % crc32c(LINES[1][:-20])),
        "line 2 was changed",
    ),
    "spaces": (with_line(3, LINES[2].replace(b":", b": ")), "line 3 was changed"),
    "Windows's line ends": ([line[:-1] + b"\r\n" for line in LINES], "line 1 was changed"),
    "a line that is missing": ([*LINES[:1], *LINES[2:]], "line 2 was changed, or lines before it are missing"),
    "lines in another order": ([LINES[0], LINES[2], LINES[1], *LINES[3:]], "line 2 was changed"),
    "a line twice": ([*LINES[:2], LINES[1], *LINES[2:]], "line 3 was changed"),
    "the last line is missing": (LINES[:-1], "behind line 4 without its last line: it was cut off"),
    "only the first line": (LINES[:1], "behind line 1 without its last line"),
    "cut in the middle of a line": ([*LINES[:2], LINES[2][:50]], "line 3: the file ends within it"),
    "the last line feed is missing": (with_line(5, LINES[4][:-1]), "line 5: the file ends within it"),
    "two files": ([*LINES, *LINES], "line 6: something follows the end"),
    "an empty line at the end": ([*LINES, b"\n"], "line 6: something follows"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_named_by_its_line(damage: str) -> None:
    lines, expected = DAMAGED[damage]
    with pytest.raises(BackupError, match=expected):
        backup.read(lines)


def test_no_changed_byte_is_overlooked() -> None:
    chance = random.Random(1)
    content = b"".join(LINES)
    for _ in range(3_000):
        damaged = bytearray(content)
        place = chance.randrange(len(damaged))
        damaged[place] ^= 1 << chance.randrange(8)
        with pytest.raises(BackupError, match=r"line|empty"):
            backup.read(BytesIO(damaged))
    for place in range(len(content)):
        with pytest.raises(BackupError):
            backup.read(BytesIO(content[:place]))


def forged(fields: dict[str, object]) -> list[bytes]:
    """A file with this position, and right checksums."""
    check = 0
    lines = []
    for row in (json.loads(LINES[0]), fields, {"kind": "end", "positions": 1}):
        row.pop("check", None)
        content = json.dumps(row).encode()[:-1]
        check = crc32c(content, check)
        lines.append(b'%b,"check":"%08x"}\n' % (content, check))
    return lines


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("partition", "offset", "leader_epoch") for value in (None, "1", 1.5, True, 2**63)),
        ("before", {**backup._batch_fields(NUMBERED), "producer_epoch": "0"}),
        *((name, -1) for name in ("partition", "offset")),
        *((name, value) for name in ("group", "topic", "metadata") for value in (None, 1, [])),
        *(("batch", value) for value in ({}, [], "x", {"crc": 1})),
        ("log_end", "x"),
        ("log_end", None),
        ("topic_id", 7),
        ("kind", "poem"),
    ],
)
def test_fields_of_another_kind_are_refused(name: str, value: object) -> None:
    fields = json.loads(LINES[1])
    assert len(backup.read(forged(fields | {"a field of later": 1})).positions) == 1
    with pytest.raises(BackupError, match="line 2"):
        backup.read(forged(fields | {name: value}))
    if name != "kind":
        del fields[name]
        with pytest.raises(BackupError, match=f"line 2: the field '{name}' is missing"):
            backup.read(forged(fields))
