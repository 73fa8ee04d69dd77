"""A data directory is given to an Apache Kafka in KRaft mode, as it is: its topics, ids and logs.

Such a Kafka takes from a directory only what its log of metadata names, and this log begins with the records of
`bootstrap.checkpoint`. `hand_over` writes this file: each topic that has a folder, under the id of that folder.
"""

import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from barnabas.protocol import uuids
from barnabas.protocol.record_batch import Record, batches, build
from barnabas.protocol.varint import encode_unsigned
from ports import free_port

VERSION = "4.3.1"
FEATURES = {"metadata.version": 30, "group.version": 1, "transaction.version": 2}
FEATURE_LEVEL, TOPIC, PARTITION = 12, 2, 3  # the keys of records of metadata
SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4
START_TIMEOUT_S = 200
NO_TAGS = b"\x00"


def jars() -> str:
    """The class path; skips where Kafka's jars or Java are missing (`python -m bench.apache_kafka fetch`)."""
    found = class_path()
    if found is None or shutil.which("java") is None:
        pytest.skip(f"needs java and the jars of Kafka {VERSION}")
    return found


def class_path() -> str | None:
    """Kafka's jars, if they are there: in KAFKA_JARS, or where the bench puts them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"barnabas-bench-kafka-{VERSION}"
    folder = Path(os.environ.get("KAFKA_JARS", cache))
    return f"{folder}/*" if list(folder.glob(f"kafka-server-{VERSION}.jar")) else None


def hand_over(data: Path, node_id: int) -> None:
    """Let Kafka take the topics of this directory, which is that of the only broker, for its own."""
    found = [_feature(name, level) for name, level in FEATURES.items()]
    topics: dict[str, bytes] = {}
    for file in sorted(data.glob("*/partition.metadata")):
        topic, _, index = file.parent.name.rpartition("-")
        if topic not in topics:
            topics[topic] = uuids.from_text(file.read_text().split()[-1])
            found.append(_metadata(TOPIC, 0, _compact(topic) + topics[topic]))
        found.append(_partition(int(index), topics[topic], node_id, _leader_epoch(file.parent)))
    now = int(time.time() * 1000)
    control = [_control(SNAPSHOT_HEADER, struct.pack(">hq", 0, now) + NO_TAGS), *found]
    control.append(_control(SNAPSHOT_FOOTER, struct.pack(">h", 0) + NO_TAGS))
    content = build([control[0]], control=True)
    content += build(found, base_offset=1)
    content += build([control[-1]], base_offset=len(found) + 1, control=True)
    (data / "bootstrap.checkpoint").write_bytes(content)


def _feature(name: str, level: int) -> Record:
    return _metadata(FEATURE_LEVEL, 0, _compact(name) + struct.pack(">h", level))


def _partition(index: int, topic_id: bytes, node_id: int, leader_epoch: int) -> Record:
    replicas = encode_unsigned(2) + struct.pack(">i", node_id)
    none = encode_unsigned(1)
    body = struct.pack(">i", index) + topic_id + replicas + replicas + none + none
    body += struct.pack(">iii", node_id, leader_epoch, 0)
    return _metadata(PARTITION, 0, body)


def _leader_epoch(folder: Path) -> int:
    """One higher than that of the last batch."""
    epoch = -1
    for segment in sorted(folder.glob("*.log")):
        for header, _ in batches(memoryview(segment.read_bytes())):
            epoch = max(epoch, header.partition_leader_epoch)
    return epoch + 1


def _metadata(key: int, version: int, body: bytes) -> Record:
    value = b"\x01" + encode_unsigned(key) + encode_unsigned(version) + body + NO_TAGS
    return Record(timestamp=0, key=None, value=value)


def _compact(text: str) -> bytes:
    return encode_unsigned(len(text.encode()) + 1) + text.encode()


def _control(kind: int, value: bytes) -> Record:
    return Record(timestamp=0, key=struct.pack(">hh", 0, kind), value=value)


@contextmanager
def kafka(data: Path, node_id: int, **settings: str) -> Iterator[int]:
    """A Kafka that serves this directory; yields its port. It is stopped as an operator stops it."""
    path, port, controller_port = jars(), free_port(), free_port()
    lines = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        **settings,
    }
    properties, log = data.with_suffix(".properties"), data.with_suffix(".kafka.log")
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    words = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, "kafka.Kafka", str(properties)]
    with log.open("a") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said)
    try:
        _wait(process, port, log)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(200)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until_s, log.read_text()[-3000:]
            time.sleep(0.1)
