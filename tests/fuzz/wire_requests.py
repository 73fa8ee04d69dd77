"""Hostile requests: recorded requests of every API and version with changes, and bodies made up from the schemas.

Names come from a small set (`Names`), so that the requests create little on the broker. `may_be_sent` leaves out
requests by which an administrator may disturb other clients: broker settings, internal topics, hundreds of partitions.
"""

import gzip
import json
import re
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from barnabas.broker import api as _handlers  # noqa: F401  (fills the table)
from barnabas.broker.requests import TABLE
from barnabas.protocol import frames, messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.message import Struct
from barnabas.protocol.record_batch import Record, build
from barnabas.protocol.schema import Field, Structure
from mutations import INTEGERS, LONG_VARINTS, spoil

GOLDEN = Path(__file__).parent.parent / "golden" / "wire"
TOPICS: dict[str, dict[str, str]] = {
    "produce": {},
    "fetch": {"max_message_bytes": "2000"},
    "list-offsets": {"message_timestamp_type": "LogAppendTime"},
    "groups": {"compression_type": "zstd", "segment_bytes": "1048576"},
    "configs": {"cleanup_policy": "compact"},
}
GROUPS = ("classic-0", "classic-1", "group")
PARTITIONS_MAX = 8  # what is made here; more than that only where it is refused
PARTITIONS_REFUSED = 10_000
STRINGS = (
    *("", ".", "..", "a" * 249, "a" * 250, "a" * 32767, "a/b", "a\0b", "\ud7ff\u200b", "Grüße", "\U0001f600" * 60),
    *("topic", "here", "__consumer_offsets", "__transaction_state", "group", "consumer", "range", "{}", "%s", "0"),
    *("-1", "cleanup.policy", "compact", "retention.ms", "9" * 400, "../../etc/passwd", "\\", "a:b", "\n", "1e999"),
)
INTERNAL = ("__consumer_offsets", "__transaction_state")
_MEMBER_ID = re.compile(rb"[a-z]{1,20}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


@cache
def golden() -> list[list[bytes]]:
    """What Kafka's clients sent when they were recorded: a list for each API and version that is served."""
    found: dict[tuple[int, int], dict[bytes, None]] = {}
    for path in sorted(GOLDEN.glob("*.jsonl*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                row = json.loads(line)
                api = TABLE.get(row.get("key"))
                if api is not None and row.get("request") and api.serves(row["version"]):
                    found.setdefault((row["key"], row["version"]), {})[bytes.fromhex(row["request"])] = None
    return [list(requests) for _, requests in sorted(found.items())]


class Names:
    """What exists on the broker that is attacked: what is said to it goes deeper."""

    def __init__(self, topic_ids: list[bytes]) -> None:
        self.topic_ids = topic_ids
        self.member_ids = [""]

    def learn(self, answer: bytes | bytearray) -> None:
        """Ids of members that joined."""
        self.member_ids += [found.decode() for found in _MEMBER_ID.findall(answer[:4096])]
        del self.member_ids[:-3]


def hostile(random: Random, names: Names) -> bytes:
    """One request, without its size."""
    while True:
        kind = random.random()
        if kind < 0.4:
            frame = spoil(random, random.choice(random.choice(golden())), 8 if random.random() < 0.95 else 0)
        elif kind < 0.75:
            frame = _with_other_fields(random, random.choice(random.choice(golden())), names)
        else:
            frame = made_up(random, names)
        if may_be_sent(frame):
            return frame


def may_be_sent(frame: bytes) -> bool:
    """Whether the request neither disturbs other clients nor creates anything large."""
    try:
        header, request = frames.decode_request(memoryview(frame))
    except (ProtocolError, UnsupportedVersionError):
        return True
    body: Any = request
    group_ids = [getattr(body, "group_id", ""), *(getattr(body, "groups_names", None) or ())]
    group_ids += [getattr(group, "group_id", "") for group in getattr(body, "groups", None) or ()]
    if not set(group_ids) <= {None, *GROUPS, *STRINGS}:
        return False
    if header.api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        return all(_is_small(topic) for topic in body.topics or ())
    if header.api_key == ApiKey.DELETE_TOPICS:
        named = [*(body.topic_names or ()), *(topic.name for topic in body.topics or ())]
        return not set(named) & set(INTERNAL)
    if header.api_key == ApiKey.DELETE_RECORDS:
        return all(topic.name not in INTERNAL for topic in body.topics or ())
    if header.api_key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        return all(row.resource_type == 2 and row.resource_name not in INTERNAL for row in body.resources or ())
    return True


def _is_small(topic: Any) -> bool:
    count = topic.num_partitions if hasattr(topic, "num_partitions") else topic.count
    known = topic.name in TOPICS or topic.name in STRINGS or not _LEGAL_TOPIC.match(topic.name)
    assigned = len(topic.assignments or ())
    return known and assigned <= PARTITIONS_MAX and not PARTITIONS_MAX < count <= PARTITIONS_REFUSED


# ---------------------------------------------------------------------- Kafka's requests, with other fields


def _with_other_fields(random: Random, original: bytes, names: Names) -> bytes:
    """Some fields at their extremes; elements of arrays twice."""
    share = random.choice((0.03, 0.1, 0.1, 0.3, 0.7))
    for _ in range(3):
        header, message = frames.decode_request(memoryview(original))
        _use_what_exists(random, message, names)
        _change(random, message, share, names)
        client_id = header.client_id if random.random() < 0.9 else random.choice((None, *STRINGS))
        try:
            return frames.encode_request(header.api_key, header.api_version, 7, client_id, message)[4:]
        except Exception:  # a value that this version cannot carry
            share = 0.05
    return original


def _use_what_exists(random: Random, value: Struct, names: Names) -> None:
    """Topics, groups and members of this world in place of those that Kafka had."""
    for name in value._FIELDS:
        field = getattr(value, name)
        if isinstance(field, list):
            for element in field:
                if isinstance(element, Struct):
                    _use_what_exists(random, element, names)
                elif name == "groups_names":
                    field[:] = [random.choice(GROUPS)]
        else:
            known = _known(random, name, field, names)
            if known is not None:
                setattr(value, name, known)


def _known(random: Random, name: str, field: Any, names: Names) -> Any:
    """A value that means something here, where the name of the field says what it is; None for no such."""
    if name == "topic_id" and any(field or b""):
        return random.choice(names.topic_ids)
    if name == "group_id" and field:
        return random.choice(GROUPS)
    if name == "member_id" and field:
        return random.choice(names.member_ids)
    if name == "generation_id":
        return random.randrange(4)
    if isinstance(field, str) and field in TOPICS:
        return random.choice(tuple(TOPICS))
    return None


def _change(random: Random, value: Struct, share: float, names: Names) -> None:
    for name in value._FIELDS:
        field = getattr(value, name)
        if isinstance(field, Struct):
            if type(field).__setattr__ is object.__setattr__:  # the others are shared defaults
                _change(random, field, share, names)
        elif isinstance(field, list):
            for index, element in enumerate(field):
                if isinstance(element, Struct):
                    _change(random, element, share, names)
                elif random.random() < share:
                    field[index] = _other(random, element, names)
            if field and random.random() < share:
                field.extend(field * random.choice((1, 1, 1, 1, 1, 1, 2, 2, 2, 30)))
            elif random.random() < share / 4:
                setattr(value, name, random.choice(([], None)))
        elif random.random() < share:
            setattr(value, name, _other(random, field, names))


def _other(random: Random, value: Any, names: Names) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (*(n for n in INTEGERS if abs(n) < 128), value + 1, value - 1)
        return random.choice(INTEGERS if random.random() < 0.5 else near)
    if isinstance(value, str) or (value is None and random.random() < 0.5):
        return random.choice((*STRINGS, *TOPICS, *TOPICS, None))
    if isinstance(value, bytes) and len(value) == 16:
        return random.choice((*names.topic_ids, bytes(16), bytes(15) + b"\1", b"\xff" * 16))
    return hostile_records(random)


def hostile_records(random: Random) -> bytes | None:
    """A batch of every codec, whole or spoilt, with a checksum that fits or does not; or no batch."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice((None, b"", b"\0" * 61, b"\xff" * 100, random.randbytes(300)))
    records = [
        Record(offset, random.choice((0, -1, 2**62, 1_700_000_000_000)), b"k", b"v" * 50, [])
        for offset in range(random.choice((1, 3)))
    ]
    batch = build(
        records,
        compression=random.choice(tuple(range(5))),  # type: ignore[arg-type]
        producer_id=random.choice((-1, 1000, 2**63 - 1)),
        producer_epoch=random.choice((-1, 0, 32767)),
        base_sequence=random.choice((-1, 0, 2**31 - 1)),
    )
    if kind != 1:
        at = random.randrange(len(batch))
        batch[at] = random.choice((0, 0x7F, 0x80, 0xFF, batch[at] ^ 1))
        if kind == 2 and not 43 <= at < 51:  # with a checksum that fits; another producer each time would be growth
            struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch) * random.choice((1, 1, 2))


# ---------------------------------------------------------------------- requests made up from the schemas


def made_up(random: Random, names: Names) -> bytes:
    """Header and body of any API and version that is served, of values that lie now and then about their length.

    Not of what brokers send each other: who can say StopReplica can delete a partition, as in Kafka.
    """
    row = TABLE[random.choice([key for key, row in sorted(TABLE.items()) if row.is_of_brokers is not True])]
    version = random.randint(row.first_version, row.last_version)
    schema = messages.request_class(row.key).SCHEMA
    flexible = version >= schema.flexible_since
    writer = _Writer(random, names, version, flexible)
    out = writer.out
    out += struct.pack(">hhi", row.key, version, 7)
    out += b"\0\1f"
    if flexible:
        writer.tags(Structure(""), {})
    writer.structure(schema.root, 0)
    return bytes(out)


class _Writer:
    """Writes values of a schema, most of them honestly."""

    def __init__(self, random: Random, names: Names, version: int, flexible: bool) -> None:
        self.out = bytearray()
        self._random = random
        self._names = names
        self._version = version
        self._flexible = flexible
        self._lies = random.choice((0, 0, 0.01, 0.05, 0.3))

    def structure(self, structure: Structure, depth: int) -> None:
        """Its fields in the order of the wire, then its tags."""
        tagged = {}
        for field in structure.fields:
            if field.is_in(self._version):
                if field.tag is None:
                    self._field(field, depth)
                else:
                    tagged[field.tag] = field
        if self._flexible:
            self.tags(structure, tagged, depth)

    def tags(self, structure: Structure, known: dict[int, Field], depth: int = 0) -> None:
        """The known ones sometimes; unknown, repeated or unordered ones, or a count that is wrong, where it lies."""
        rows: list[tuple[int, bytes]] = []
        for tag, field in sorted(known.items()):
            if self._random.random() < 0.3:
                rows.append((tag, self._apart(field, depth)))
        if self._lie():
            rows.append((self._random.choice((0, 1, 7, 2**31 - 1, 10_000)), self._random.randbytes(3)))
            self._random.shuffle(rows)
        self._varint(self._random.choice((0, 1, 2, 1000, 2**31 - 1)) if self._lie() else len(rows))
        for tag, content in rows:
            self._varint(tag)
            self._varint(self._random.choice((0, 1, 2**31 - 1)) if self._lie() else len(content))
            self.out += content

    def _apart(self, field: Field, depth: int) -> bytes:
        out, self.out = self.out, bytearray()
        self._field(field, depth)
        out, self.out = self.out, out
        return bytes(out)

    def _field(self, field: Field, depth: int) -> None:
        if not field.array:
            self._value(field, depth)
            return
        null = field.is_nullable(self._version) and self._random.random() < 0.2
        count = 0 if null or depth > 4 else self._random.choice((0, 1, 1, 1, 2, 3))
        self._length(-1 if null else count, 4)
        for _ in range(count):
            self._value(field, depth)

    def _value(self, field: Field, depth: int) -> None:
        random = self._random
        if field.structure is not None:
            if field.is_nullable(self._version) and not field.array:
                present = random.random() < 0.7
                self.out.append(1 if present else 0xFF)
                if not present:
                    return
            self.structure(field.structure, depth + 1)
        elif field.type in ("string", "bytes", "records"):
            content = self._content(field)
            self._length(-1 if content is None else len(content), 2 if field.type == "string" else 4)
            self.out += content or b""
        elif field.type == "uuid":
            self.out += random.choice((*self._names.topic_ids, bytes(16), random.randbytes(16)))
        elif field.type == "float64":
            self.out += random.choice((struct.pack(">d", random.random()), b"\xff" * 8, b"\x7f\xf0" + bytes(6)))
        else:
            self._integer(field)

    def _integer(self, field: Field) -> None:
        width = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}[field.type]
        value = self._random.choice(INTEGERS) if self._random.random() < 0.3 else self._random.choice((0, 0, 1, 2, -1))
        self.out += (value & (1 << 8 * width) - 1).to_bytes(width, "big")

    def _content(self, field: Field) -> bytes | None:
        random = self._random
        if random.random() < 0.1 and (field.is_nullable(self._version) or self._lie()):
            return None
        if field.type == "records":
            return hostile_records(random)
        if field.type == "bytes":
            return random.choice((b"", b"\0\1", random.randbytes(40)))
        if field.name == "member_id":
            return random.choice(self._names.member_ids).encode()
        if "group" in field.name:
            return random.choice(GROUPS).encode()
        if self._lie():
            return random.choice((b"\xff" * 300, random.choice(STRINGS).encode("utf-8", "surrogatepass")))
        return random.choice((*TOPICS, "consumer", "range")).encode()

    def _length(self, length: int, width: int) -> None:
        if self._lie():
            wrong = (length + 1, length - 1, 0, -1, -2, 2**31 - 1, 2**15 - 1, -(2**31), 100)
            length = self._random.choice(wrong)
        if self._flexible:
            self._varint(length + 1)
        else:
            self.out += (length & (1 << 8 * width) - 1).to_bytes(width, "big")

    def _varint(self, value: int) -> None:
        if self._lie() and self._random.random() < 0.2:
            self.out += self._random.choice(LONG_VARINTS)
            return
        value &= 0xFFFF_FFFF
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def _lie(self) -> bool:
        return self._random.random() < self._lies
