"""Hostile frames for a real broker process, on many connections over loopback, next to a neighbour who behaves.

The broker must live, log no error (here each one is a bug), serve the neighbour, and use about as much memory at the
end as when it was warm. A frame counts when it is answered, when its connection is closed, or when it has waited for
longer than we do.
"""

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import quantiles

import forked
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from mutations import case, smallest
from neighbour import Client, Latencies, Neighbour
from wire_requests import GROUPS, TOPICS, Names, hostile

LANES = 24
WINDOW = 8  # frames sent ahead on one connection
PATIENCE_SECONDS = 0.03
FRAMES_PER_ROUND = 5_000  # then it is looked whether all is well
GROWTH_BYTES_MAX = 32 << 20
WARM_FRAMES = 50_000
SETTINGS = (
    "auto.create.topics.enable=false",
    "offsets.topic.num.partitions=3",
    "group.max.session.timeout.ms=10000",  # so that members that only join are soon removed
    "log.segment.delete.delay.ms=0",
    "group.initial.rebalance.delay.ms=0",
)


class Process:
    """A broker process on an empty directory, that says errors only."""

    def __init__(self, folder: Path, settings: Iterable[str] = SETTINGS) -> None:
        command = [sys.executable, "-m", "barnabas", "start", "--json", "--port", "0"]
        command += ["--data", str(folder / "data"), "--log-level", "error"]
        for setting in settings:
            command += ["--set", setting]
        self.log = folder / "broker.log"
        with self.log.open("w") as log:
            self.process = forked.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.port = int(json.loads(line)["bootstrap"].rpartition(":")[2])

    def complaint(self) -> str | None:
        """What is wrong with it, if anything."""
        said = self.log.read_text()
        if said:
            return said[:4000]
        code = self.process.poll()
        return None if code is None else f"it ended with exit code {code}"

    def resident_bytes(self) -> int:
        """Physical memory that it uses."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return 0 if found is None else int(found[1]) << 10

    def end(self) -> None:
        """Stop it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(200)


def prepare(client: Client) -> list[bytes]:
    """The topics that are attacked, made again where they were deleted; their ids."""
    for name, configs in TOPICS.items():
        client.create_topic(name, 2, configs)
    request = messages.MetadataRequest
    topics = [request.MetadataRequestTopic(name=name) for name in TOPICS]
    return [topic.topic_id for topic in client.ask(ApiKey.METADATA, 12, request(topics=topics)).topics]


class Counts:
    """What became of the frames."""

    def __init__(self) -> None:
        self.answered = self.refused = self.waiting = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.answered + self.refused + self.waiting


class Lane(asyncio.Protocol):
    """Sends frames ahead, and goes on with a new connection where one ends."""

    def __init__(self, port: int, next_frame: Callable[[], bytes | None], names: Names, counts: Counts) -> None:
        self._port = port
        self._next_frame = next_frame
        self._names = names
        self._counts = counts
        self._again: deque[bytes] = deque()  # of a connection that ended before they were looked at
        self._sent: deque[tuple[int, bytes]] = deque()  # correlation id and frame
        self._number = 0
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._progress_at = 0.0
        self._left = False  # we have closed it, not the broker
        self.done = asyncio.Event()

    async def connect(self) -> None:
        """Begin, or begin again."""
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        # Closing resets: no port is left waiting, and the broker meets clients that vanish.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport = transport
        self._data.clear()
        self._left = False
        self._progress_at = time.monotonic()
        self._fill()

    def _fill(self) -> None:
        while self._transport is not None and not self._transport.is_closing() and len(self._sent) < WINDOW:
            frame = self._again.popleft() if self._again else self._next_frame()
            if frame is None:
                break
            self._number += 1
            sent = frame[:4] + struct.pack(">i", self._number) + frame[8:] if len(frame) >= 8 else frame
            self._sent.append((self._number, frame))
            self._transport.write(struct.pack(">i", len(sent)) + sent)
        if not self._sent:
            self.done.set()
            if self._transport is not None:
                self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._data)
            if len(self._data) < 4 + size:
                break
            self._names.learn(self._data[8 : 4 + size])
            del self._data[: 4 + size]
            while self._sent and self._sent[0][0] <= correlation_id:  # those before it wanted no answer
                self._sent.popleft()
                self._counts.answered += 1
            self._progress_at = time.monotonic()
        self._fill()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.done.is_set():
            return
        if self._sent and not self._left:
            self._sent.popleft()
            self._counts.refused += 1
        self._begin_again()

    def lose_patience(self, now: float) -> None:
        """Leave a request that waits behind, with its connection."""
        if self._transport is not None and self._sent and now - self._progress_at > PATIENCE_SECONDS:
            self._sent.popleft()
            self._counts.waiting += 1
            self._left = True
            self._transport.abort()

    def _begin_again(self) -> None:
        self._again.extendleft(frame for _, frame in reversed(self._sent))
        self._sent.clear()
        self._task = asyncio.ensure_future(self.connect())


async def attack(port: int, frames: Iterable[bytes], names: Names, counts: Counts) -> None:
    """Send all frames."""
    iterator = iter(frames)
    lanes = [Lane(port, lambda: next(iterator, None), names, counts) for _ in range(LANES)]
    for lane in lanes:
        await lane.connect()
    while not all(lane.done.is_set() for lane in lanes):
        await asyncio.sleep(PATIENCE_SECONDS / 3)
        now = time.monotonic()
        for lane in lanes:
            lane.lose_patience(now)


def run(seed: int, first: int, frames: int, seconds: float, say: Callable[[str], None]) -> str | None:
    """So many frames, or as many as the time allows; what went wrong, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Path(folder))
        neighbour = Neighbour(process.port)
        try:
            return _run(process, neighbour, seed, first, frames, seconds, say)
        finally:
            neighbour.stop()
            process.end()


def _run(
    process: Process,
    neighbour: Neighbour,
    seed: int,
    first: int,
    frames: int,
    seconds: float,
    say: Callable[[str], None],
) -> str | None:
    client = Client(process.port)
    names = Names(prepare(client))
    for group in GROUPS:
        client.find_coordinator(group)
    neighbour.latencies()
    quiet_seconds = 3.0 if frames > WARM_FRAMES else 0.3
    time.sleep(quiet_seconds)
    before = neighbour.latencies()
    counts = Counts()
    begin = time.monotonic()
    warm: int | None = None
    number = first
    while number < first + frames and time.monotonic() - begin < seconds:
        names.topic_ids = prepare(client)
        numbers = range(number, min(number + FRAMES_PER_ROUND, first + frames))
        sent: list[bytes] = []

        def made(numbers: range = numbers, sent: list[bytes] = sent) -> Iterable[bytes]:
            for each in numbers:
                sent.append(hostile(case(seed, "wire", each), names))
                yield sent[-1]

        asyncio.run(attack(process.port, made(), names, counts))
        number = numbers.stop
        complaint = process.complaint()
        if complaint is not None:
            say(f"frames {numbers.start} to {numbers.stop}: {complaint}\nlooking for the one that does it")
            return _culprit(sent)
        resident = process.resident_bytes()
        if warm is None and counts.total >= min(WARM_FRAMES, frames // 4):
            warm = resident
        spent = time.monotonic() - begin
        say(
            f"{counts.total} frames in {spent:.0f} s: {counts.answered} answered, {counts.refused} refused, "
            f"{counts.waiting} waiting; {resident >> 20} MiB"
        )
    during = neighbour.latencies()
    time.sleep(quiet_seconds)
    phases = {"before": before, "during": during, "after": neighbour.latencies()}
    for name in before:
        said = ", ".join(f"{_said(latencies, name)} {phase}" for phase, latencies in phases.items())
        say(f"neighbour, {name}: {said}")
    grown = process.resident_bytes() - (warm or 0)
    say(f"resident {(warm or 0) >> 20} MiB when warm, {grown >> 10} KiB more at the end")
    if grown > GROWTH_BYTES_MAX:
        return f"the broker grew by {grown >> 20} MiB after it was warm, {GROWTH_BYTES_MAX >> 20} are allowed"
    return process.complaint()


def _said(latencies: Latencies, name: str) -> str:
    values = sorted(latencies.get(name, ())) or [0.0]
    cuts = quantiles(values, n=100) if len(values) > 1 else values * 99
    return f"p50 {cuts[49] * 1000:.2f} p99 {cuts[98] * 1000:.1f} max {values[-1] * 1000:.0f} ms"


def replay(frames: list[bytes]) -> str | None:
    """Frames one after the other to a broker of their own; what it complains of."""
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Path(folder))
        try:
            client = Client(process.port)
            names = Names(prepare(client))
            client.find_coordinator(GROUPS[0])
            asyncio.run(attack(process.port, frames, names, Counts()))
            time.sleep(0.2)
            return process.complaint()
        finally:
            process.end()


def _culprit(sent: list[bytes]) -> str:
    """The smallest of what was sent that does harm alone; or all of it, in a file."""
    frames = sent
    while len(frames) > 1 and replay(frames) is not None:
        half = len(frames) // 2
        frames = frames[:half] if replay(frames[:half]) is not None else frames[half:]
    if len(frames) == 1 and replay(frames) is not None:
        found = smallest(frames[0], lambda frame: replay([frame]) is not None, 60)
        return f"one frame does it: {found.hex()}\npython tests/fuzz/fuzz.py wire --replay {found.hex()}"
    handle, path = tempfile.mkstemp(".frames")
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{frame.hex()}\n" for frame in sent)
    return f"no frame does it alone; all are in {path}\npython tests/fuzz/fuzz.py wire --replay {path}"
