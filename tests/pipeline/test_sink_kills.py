"""Streaming queries that write to a topic, whose tasks fail half-way, and that are killed and started again."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.session import what_is_missing
from broker_process import Client, Process, batch

pytestmark = pytest.mark.timeout(420)
JOB = Path(__file__).with_name("sink_job.py")
PARTITIONS = 2
RECORDS = 250  # of each partition
VALUE_BYTES = 20_000


def run(brokers: str, folder: Path, *words: str) -> tuple[int, str]:
    """The job in a group of processes of its own: its exit code, and what it said."""
    command = [sys.executable, str(JOB), brokers, str(folder), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            _, said = process.communicate(timeout=200)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def test_failures_and_kills(tmp_path: Path) -> None:
    """With `once` every record is there once; without it none is lost."""
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    broker = Process(tmp_path / "data")
    client = Client(broker.port)
    for topic in ("in", "once-true", "once-false"):
        assert client.create_topic(topic, PARTITIONS) == 0
    for partition in range(PARTITIONS):
        values = [b"%d-%04d" % (partition, number) * (VALUE_BYTES // 6) for number in range(RECORDS)]
        for begin in range(0, RECORDS, 25):
            assert client.produce("in", partition, batch(values[begin : begin + 25])).error_code == 0
    brokers, folder = f"127.0.0.1:{broker.port}", tmp_path / "checkpoints"

    def written(topic: str) -> Counter[bytes]:
        return Counter(
            (value or b"")[:6] for partition in range(PARTITIONS) for value in client.values(topic, partition)
        )

    code, said = run(brokers, folder, "fail", "kill")
    assert code == -signal.SIGKILL, said[-3000:]
    half_way = written("once-true")
    assert 200 < half_way.total() < 400  # the second epoch was being written
    assert set(half_way.values()) == {1}
    assert written("once-false").total() > 200  # some of the first epoch twice, because tasks failed
    code, said = run(brokers, folder)
    assert code == 0, said[-3000:]
    expected = {b"%d-%04d" % (partition, number) for partition in range(PARTITIONS) for number in range(RECORDS)}
    assert written("once-true") == Counter(expected)
    assert set(written("once-false")) == expected
    assert written("once-false").total() > len(expected)
    client.close()
    broker.end()
