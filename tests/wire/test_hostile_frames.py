"""Nonsense of every kind, through the dispatcher of a whole broker: each frame is answered or its connection closed.

Kafka's own request of every API and version is changed: bits, lengths, cuts, and (decoded) every field to its extremes.
A handler that raises is a bug here, and so is one that takes long or memory. `HOSTILE_FRAMES` says how many frames,
`HOSTILE_SEED` where to begin; the default runs in seconds.
"""

import json
import logging
import os
import random
import re
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker import api as _handlers  # noqa: F401  (fills the table)
from barnabas.broker.connection import Connection
from barnabas.broker.dispatch import TABLE
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ProtocolError
from barnabas.protocol.message import Struct
from barnabas.protocol.record_batch import Record, build

REQUESTS = [
    bytes.fromhex(line["request"])
    for line in map(
        json.loads, (Path(__file__).parent.parent / "golden" / "wire" / "requests.jsonl").read_text().splitlines()
    )
    if line["key"] in TABLE
]
FRAMES = int(os.environ.get("HOSTILE_FRAMES", "4000"))
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
FRAMES_PER_WORLD = 2000
TOPICS: dict[str, dict[str, str]] = {
    "produce": {},
    "fetch": {"max_message_bytes": "2000"},
    "list-offsets": {"message_timestamp_type": "LogAppendTime"},
    "groups": {"compression_type": "zstd", "segment_bytes": "1048576"},
    "configs": {"cleanup_policy": "compact"},
}
MEMBER_ID = re.compile(rb"[a-z]+-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

World = Any  # of conftest.py

INTEGERS = (
    *(0, 1, 2, -1, -2, -3, -4, -5, 3, 7, 100, 127, -128, 255, 1000, 32767, -32768),
    *(2**31 - 1, -(2**31), 2**31 - 2, 2**63 - 1, -(2**63), 2**63 - 2, 2**32, 2**40),
)
STRINGS = (
    *("", ".", "..", "a" * 249, "a" * 250, "a" * 32767, "a/b", "a\0b", "\ud7ff\u200b", "Grüße", "\U0001f600" * 60),
    *(
        "topic",
        "here",
        "__consumer_offsets",
        "__transaction_state",
        "group",
        "consumer",
        "range",
        "{}",
        "%s",
        "0",
        "-1",
    ),
    *("cleanup.policy", "compact", "retention.ms", "9" * 400, "../../etc/passwd", "\\", "a:b", "\n", "1e999"),
)


class Wire:
    """The client's end of a connection that has no network."""

    def __init__(self, world: World) -> None:
        self.written = bytearray()
        self.closed = False
        self.reading = True
        self.connection = Connection(world.broker.server, "PLAINTEXT")
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.7", 50_000)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def feed(self, data: bytes) -> None:
        while data and not self.closed and self.reading:
            buffer = memoryview(self.connection.get_buffer(-1))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.connection.buffer_updated(size)


def creates_many(frame: bytes) -> bool:
    """Whether it asks for hundreds of partitions: allowed, and slow in memory."""
    if frame[:2] not in (b"\0\x13", b"\0\x25"):
        return False
    try:
        _, request = frames.decode_request(memoryview(frame))
    except ProtocolError:
        return False
    counts = [getattr(topic, "num_partitions", None) or getattr(topic, "count", 0) for topic in request.topics or ()]  # type: ignore[attr-defined]
    return any(200 < count <= 10_000 for count in counts)


class Mutator:
    """Makes nonsense of requests, the same for the same seed."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self.random = random.Random(seed)
        self.topic_ids = topic_ids
        self.member_ids = [""]

    def learn(self, answer: bytearray) -> None:
        """Ids of members that exist: what is told to them goes deeper."""
        self.member_ids += [found.decode() for found in MEMBER_ID.findall(answer)]
        del self.member_ids[:-3]

    def frame(self) -> bytes:
        """One changed request, without its size."""
        while True:
            original = self.random.choice(REQUESTS)
            frame = self._bytes(original) if self.random.random() < 0.5 else self._fields(original)
            if not creates_many(frame):
                return frame

    def _bytes(self, original: bytes) -> bytes:
        """Bits, lengths, cuts; sometimes several of them. The API mostly stays what it was."""
        frame = bytearray(original)
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 8))):
            begin = 8 if self.random.random() < 0.95 and len(frame) > 8 else 0
            at = self.random.randrange(begin, len(frame)) if begin < len(frame) else 0
            kind = self.random.randrange(8)
            if not frame:
                break
            if kind == 0:
                frame[at] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                frame[at] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif kind == 2:
                del frame[at:]
            elif kind == 3:
                frame[at : at + 4] = struct.pack(">i", self.random.choice((2**31 - 1, -1, -2, -(2**31), 2**24, 0)))
            elif kind == 4:
                frame[at : at + 2] = struct.pack(">h", self.random.choice((2**15 - 1, -1, -2, -(2**15), 0)))
            elif kind == 5:
                frame[at : at + 1] = self.random.choice(
                    (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff" * 12, b"\x80" * 5 + b"\0", b"\xff\x7f")
                )
            elif kind == 6:
                frame[at:at] = self.random.randbytes(self.random.choice((1, 4, 100)))
            else:
                del frame[at : at + self.random.choice((1, 2, 4, 16))]
        return bytes(frame)

    def _fields(self, original: bytes) -> bytes:
        """Some fields at their extremes; elements of arrays twice."""
        header, message = frames.decode_request(memoryview(original))
        share = self.random.choice((0.03, 0.1, 0.1, 0.3, 0.7))
        self._use_what_exists(message)
        self._change(message, share)
        client_id = header.client_id if self.random.random() < 0.9 else self.random.choice((None, *STRINGS))
        for _ in range(3):
            try:
                return frames.encode_request(header.api_key, header.api_version, 7, client_id, message)[4:]
            except Exception:  # a value that this version cannot carry
                header, message = frames.decode_request(memoryview(original))
                self._use_what_exists(message)
                self._change(message, 0.05)
        return original

    def _use_what_exists(self, value: Struct) -> None:
        """Topics, groups and members of this world in place of those that Kafka had."""
        for name in value._FIELDS:
            field = getattr(value, name)
            if isinstance(field, list):
                for element in field:
                    if isinstance(element, Struct):
                        self._use_what_exists(element)
                    elif name == "groups_names":
                        field[:] = ["classic-0"]
            elif name == "topic_id" and any(field):
                value.topic_id = self.random.choice(self.topic_ids)  # type: ignore[attr-defined]
            elif isinstance(field, str) and field in TOPICS:
                setattr(value, name, self.random.choice(tuple(TOPICS)))
            elif name == "group_id" and field:
                value.group_id = "classic-0"  # type: ignore[attr-defined]
            elif name == "member_id" and field:
                value.member_id = self.random.choice(self.member_ids)  # type: ignore[attr-defined]
            elif name == "generation_id":
                value.generation_id = self.random.randrange(4)  # type: ignore[attr-defined]

    def _change(self, value: Struct, share: float) -> None:
        for name in value._FIELDS:
            field = getattr(value, name)
            if isinstance(field, Struct):
                if type(field).__setattr__ is object.__setattr__:  # the others are shared defaults
                    self._change(field, share)
            elif isinstance(field, list):
                for index, element in enumerate(field):
                    if isinstance(element, Struct):
                        self._change(element, share)
                    elif self.random.random() < share:
                        field[index] = self._other(element)
                if field and self.random.random() < share:
                    field.extend(field * self.random.choice((1, 1, 1, 1, 1, 1, 2, 2, 2, 30)))
                elif self.random.random() < share / 4:
                    setattr(value, name, self.random.choice(([], None)))
            elif self.random.random() < share:
                setattr(value, name, self._other(field))

    def _other(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = (*(n for n in INTEGERS if abs(n) < 128), value + 1, value - 1)
            return self.random.choice(INTEGERS if self.random.random() < 0.5 else near)
        if isinstance(value, str) or (value is None and self.random.random() < 0.5):
            return self.random.choice((*STRINGS, *TOPICS, *TOPICS, None))
        if isinstance(value, bytes) and len(value) == 16:
            return self.random.choice((*self.topic_ids, bytes(16), bytes(15) + b"\1", b"\xff" * 16))
        return self._records()

    def _records(self) -> bytes | None:
        kind = self.random.randrange(4)
        if kind == 0:
            return self.random.choice((None, b"", b"\0" * 61, b"\xff" * 100, self.random.randbytes(300)))
        records = [
            Record(offset, self.random.choice((0, -1, 2**62, 1_700_000_000_000)), b"k", b"v" * 50, [])
            for offset in range(self.random.choice((1, 3)))
        ]
        codec = self.random.choice(tuple(range(5)))
        batch = build(
            records,
            compression=codec,  # type: ignore[arg-type]
            producer_id=self.random.choice((-1, 1000, 2**63 - 1)),
            producer_epoch=self.random.choice((-1, 0, 32767)),
            base_sequence=self.random.choice((-1, 0, 2**31 - 1)),
        )
        if kind != 1:
            at = self.random.randrange(len(batch))
            batch[at] = self.random.choice((0, 0x7F, 0x80, 0xFF, batch[at] ^ 1))
            if kind == 2:  # with a CRC that fits
                import crc32c

                struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
        return bytes(batch) * self.random.choice((1, 1, 2))


class Failures(logging.Handler):
    """What was logged as a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(logging.Formatter().format(record))


@pytest.fixture
def failures() -> Iterator[Failures]:
    handler = Failures()
    roots = (logging.getLogger("barnabas"), logging.getLogger("asyncio"))
    level = roots[0].level
    roots[0].setLevel(logging.ERROR)
    for root in roots:
        root.addHandler(handler)
    yield handler
    roots[0].setLevel(level)
    for root in roots:
        root.removeHandler(handler)


@pytest.mark.timeout(0 if FRAMES > 4000 else 120)
def test_changed_requests(world: World, failures: Failures) -> None:
    done = 0
    answered = 0
    seed = SEED
    while done < FRAMES:
        world_of_seed = type(world)()
        ids = [world_of_seed.create_topic(name, 2, **configs) for name, configs in TOPICS.items()]
        world_of_seed.ask(ApiKey.FIND_COORDINATOR, 4, _find("group"))
        world_of_seed.env.clock.advance(2000)
        mutator = Mutator(seed, ids)
        for number in range(min(FRAMES_PER_WORLD, FRAMES - done)):
            frame = mutator.frame()
            wire = Wire(world_of_seed)
            world_of_seed.env.clock.call_soon(partial(wire.feed, struct.pack(">i", len(frame)) + frame))
            world_of_seed.env.clock.advance(1)
            answered += len(wire.written) > 0
            mutator.learn(wire.written)
            if mutator.random.random() < 0.3:
                world_of_seed.env.clock.advance(500)
            if mutator.random.random() < 0.8:
                wire.connection.connection_lost(None)
            assert not failures.records, f"seed {seed}, frame {number}: {frame.hex()}\n{failures.records[0]}"
        for connection in list(world_of_seed.broker.server.connections):
            connection.connection_lost(None)
        assert world_of_seed.broker.server.handler_failures == 0
        world_of_seed.env.run(world_of_seed.broker.stop())
        done += FRAMES_PER_WORLD
        seed += 1
    assert answered > FRAMES // 4  # it is not all refused at the door


def _find(group: str) -> Any:
    from barnabas.protocol.messages import FindCoordinatorRequest

    return FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
