"""Spark's own Kafka source and sink work against a broker, where Maven has them for this version of Spark."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.session import what_is_missing
from broker_process import Client, Process
from spark_kafka_job import COUNT, PACKAGE

pytestmark = pytest.mark.timeout(400)
JOB = Path(__file__).with_name("spark_kafka_job.py")
WITHIN_S = 240
NOT_RESOLVED = re.compile(r"(unresolved dependency: |Server access error|UnknownHostException)[^\]\n]*")


def test_spark_s_own_source_and_sink(tmp_path: Path) -> None:
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    broker = Process(tmp_path / "data")
    client = Client(broker.port)
    for topic in ("made", "copied"):
        assert client.create_topic(topic, 3) == 0
    command = [sys.executable, str(JOB), f"127.0.0.1:{broker.port}", str(tmp_path / "spark")]
    said = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            _, said = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.skip(f"{PACKAGE} was not fetched and run within {WITHIN_S} s")
        finally:
            found = [client.values(topic, partition) for topic in ("made", "copied") for partition in range(3)]
            client.close()
            broker.end()
    unresolved = NOT_RESOLVED.search(said)
    if process.returncode and unresolved:
        pytest.skip(f"Maven does not have all of {PACKAGE}: {unresolved[0]}")
    assert process.returncode == 0, said[-3000:]
    for values in (found[:3], found[3:]):
        assert sorted(int(value or b"") for some in values for value in some) == [2 * n for n in range(COUNT)]
    assert found[:3] == found[3:]  # the same keys are in the same partitions
