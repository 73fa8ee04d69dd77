"""A damaged coordination tree or meta.properties under a broker on a real disk, because SQLite opens its file itself.

The directory was left by a broker process that was stopped, or killed. A start is refused with a sentence and leaves
every byte as it was, or the broker serves what is left: it logs no traceback, and no record of a partition that it
serves is invented or moved.
"""

import asyncio
import shutil
import signal
import tempfile
import traceback
from functools import cache
from pathlib import Path
from random import Random

from barnabas.broker.broker import Broker
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, batches, build, records
from barnabas.runtime.env import real
from barnabas.storage.directory_contents import DataDirectoryError
from bugs import heard
from directory_state import changes, state
from mutations import case, spoil
from neighbour import Client
from wire import Process

TOPICS = ("one", "two", "three")
RECORDS = 3
SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "offsets.topic.num.partitions": "1"}
PATIENCE_SECONDS = 100.0


@cache
def image(killed: bool) -> Path:
    """A directory with topics, settings, records and offsets in it; it goes when this process ends."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    process = Process(Path(folder.name), [f"{key}={value}" for key, value in SETTINGS.items() if key != "listeners"])
    client = Client(process.port)
    for topic in TOPICS:
        client.create_topic(topic, 2, {"retention_ms": "86400000"})
        batch = build([Record(timestamp=1_700_000_000_000, value=f"{topic} {at}".encode()) for at in range(RECORDS)])
        produce = messages.ProduceRequest
        row = produce.PartitionProduceData(index=0, records=bytes(batch))
        request = produce(
            acks=-1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[row])]
        )
        client.ask(ApiKey.PRODUCE, 9, request)
    client.find_coordinator("group")
    process.process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
    process.process.wait(PATIENCE_SECONDS)
    return Path(folder.name) / "data"


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def check(seed: int, number: int) -> str | None:
    """One case; what is wrong, if anything."""
    random = case(seed, "tree", number)
    killed = random.random() < 0.5
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        shutil.copytree(image(killed), data)
        damaged = damage(random, data)
        before = state(data)
        with heard() as bugs:
            try:
                found = asyncio.run(asyncio.wait_for(_serve(data), PATIENCE_SECONDS))
            except (DataDirectoryError, CoordinationError, OSError) as error:
                found = None if "/" in str(error) and len(str(error)) < 600 else f"refused with {error!r}"
                changed = changes(before, state(data))
                if "below /config" in str(error):  # settings are read when there is a session
                    changed = [name for name in changed if not name.startswith("coordination.sqlite")]
                found = found or (f"refused with {error!r}, and changed {changed}" if changed else None)
            except Exception:
                found = traceback.format_exc(limit=-8)
        found = found or next(iter(bugs.found), None)
    return found and f"{found}\nthe broker was {'killed' if killed else 'stopped'}; damaged: {damaged}"


async def _serve(data: Path) -> str | None:
    """Start, read what is there, stop."""
    broker = Broker(real(), BrokerConfig.of(SETTINGS), (str(data),))
    await broker.start()
    try:
        for log in broker.log_manager.all():
            if log.topic not in TOPICS or log.partition != 0:
                continue
            read = log.read(0, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True)
            values = [record.value for _, batch in batches(read.records) for record in records(batch)]
            if values != [f"{log.topic} {at}".encode() for at in range(RECORDS)]:
                return f"{log.name} holds {values}"
        return None
    finally:
        await broker.stop()


def damage(random: Random, data: Path) -> str:
    """Mostly to the tree's files; what was done."""
    files = sorted(path for path in data.iterdir() if path.is_file())
    tree = [path for path in files if path.name.startswith("coordination.sqlite")]
    path = random.choice(tree if random.random() < 0.8 else files)
    luck = random.random()
    if luck < 0.1:
        path.unlink()
        if luck < 0.05:
            path.mkdir()
            return f"{path.name} is a folder now"
        return f"{path.name} removed"
    content = path.read_bytes()
    if luck < 0.15:
        content = b""
    elif luck < 0.2:
        content = random.choice(files).read_bytes()
    elif luck < 0.25:
        content += random.randbytes(random.choice((1, 100, 4096)))
    else:
        for _ in range(random.choice((1, 1, 4, 30))):
            content = spoil(random, content)
    path.write_bytes(content)
    return f"{path.name} changed, {len(content)} bytes"
