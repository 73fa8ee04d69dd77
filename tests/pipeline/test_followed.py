"""`barnabas pipeline health --follow --produce`: what a group does while the command runs is soon in the table and in
the topic, until Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.records import CommittedOffset, encode_key, encode_value
from barnabas.pipeline.runs import HEALTH_TOPIC
from barnabas.pipeline.sources import register
from barnabas.protocol.record_batch import Record
from broker_process import Client, Process
from data_directories import NOW_MS, OFFSETS, DataDirectory
from histories import MINUTE_MS, OFFSETS_PARTITIONS, rows
from pyspark.sql import SparkSession
from spark_settings import SMALL

pytestmark = pytest.mark.timeout(300)
START_MS = NOW_MS // MINUTE_MS * MINUTE_MS
COMMAND = [sys.executable, "-m", "barnabas", "pipeline", "health"]


class Shop:
    """One partition, and one group that reads it."""

    def __init__(self, path: Path) -> None:
        self.directory = DataDirectory(path)
        (path / "meta.properties").touch()
        self.orders = self.directory.log("orders")
        self.offsets = self.directory.log(OFFSETS, partition_for("billing", OFFSETS_PARTITIONS))

    def pass_minutes(self, begin: int, end: int, *, is_read: bool) -> None:
        """In each minute an order comes, and the group commits all orders, or nothing."""
        for at_ms in range(START_MS + begin * MINUTE_MS, START_MS + end * MINUTE_MS, MINUTE_MS):
            self.directory.append(self.orders, Record(-1, at_ms, None, b"order"))
            if is_read:
                value = encode_value(CommittedOffset(self.orders.log_end_offset, 0, "", at_ms, -1))
                self.directory.append(self.offsets, Record(-1, at_ms, encode_key("billing", "orders", 0), value))
        self.directory.manager.checkpoint()


def wait_for(process: "subprocess.Popen[str]", is_true: Callable[[], bool]) -> None:
    """Wait for what the command does."""
    deadline = time.monotonic() + 240
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_group_that_stops(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "data")
    shop.pass_minutes(0, 20, is_read=True)
    broker = Process(tmp_path / "broker")
    client = Client(broker.port)
    assert client.create_topic(HEALTH_TOPIC, 1) == 0

    def said() -> list[dict[str, Any]]:
        """What is in the topic."""
        values = [json.loads(value or b"") for value in client.values(HEALTH_TOPIC, 0)]
        return [value for value in values if value["check"] == "reading"]

    words = ["--source", str(shop.directory.path), "--out", str(tmp_path / "out"), "--follow", "--trigger", "1"]
    words += ["--produce", f"127.0.0.1:{broker.port}"]
    for key, value in SMALL.items():
        words += ["--spark", f"{key}={value}"]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(process, lambda: [one["status"] for one in said()] == ["OK"])
        shop.pass_minutes(20, 60, is_read=False)
        wait_for(process, lambda: len(said()) > 1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "STOP" in output
    in_topic = said()
    assert [(one["status"], one["before"]) for one in in_topic] == [("OK", None), ("STOP", "OK")]
    for one in in_topic:
        one["at"] = round(datetime.fromisoformat(one["at"]).timestamp() * 1000)
    register(spark)
    in_table = rows(spark.read.parquet(str(tmp_path / "out/live/health")).where("check = 'reading'").drop("day"))
    assert sorted(in_table, key=lambda one: one["at"]) == in_topic
    client.close()
    broker.end()
    shop.directory.close()
