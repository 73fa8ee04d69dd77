"""Hostile frames to a whole broker in virtual time: each frame is answered, or its connection is closed.

tests/fuzz makes the frames, and sends them to a process. Here they are the same in every run, and a frame that makes a
handler raise is found at once. `HOSTILE_FRAMES` says how many, `HOSTILE_SEED` with which seed.
"""

import logging
import os
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.connection import Connection
from barnabas.protocol.api_keys import ApiKey

sys.path.insert(0, str(Path(__file__).parent.parent / "fuzz"))

from mutations import case
from wire_requests import TOPICS, Names, hostile

FRAMES = int(os.environ.get("HOSTILE_FRAMES", "4000"))
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
FRAMES_PER_WORLD = 2000

World = Any  # of conftest.py


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
        names = Names(ids)
        for number in range(min(FRAMES_PER_WORLD, FRAMES - done)):
            chance = case(seed, "wire", number)
            frame = hostile(chance, names)
            wire = Wire(world_of_seed)
            world_of_seed.env.clock.call_soon(partial(wire.feed, struct.pack(">i", len(frame)) + frame))
            world_of_seed.env.clock.advance(1)
            answered += len(wire.written) > 0
            names.learn(wire.written)
            if chance.random() < 0.3:
                world_of_seed.env.clock.advance(500)
            if chance.random() < 0.8:
                wire.connection.connection_lost(None)
            assert not failures.records, f"seed {seed}, frame {number}: {frame.hex()}\n{failures.records[0]}"
        for connection in list(world_of_seed.broker.server.connections):
            connection.connection_lost(None)
        assert world_of_seed.broker.request_gate.handler_failures == 0
        world_of_seed.env.run(world_of_seed.broker.stop())
        done += FRAMES_PER_WORLD
        seed += 1
    assert answered > FRAMES // 4  # it is not all refused at the door


def _find(group: str) -> Any:
    from barnabas.protocol.messages import FindCoordinatorRequest

    return FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
