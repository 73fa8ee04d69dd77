"""Batches with flipped bits, as a broker sends them: it does not look at them. Only the damaged batch is put aside."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data_directories import read_aside

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.broker_origin import Fetching
from barnabas.pipeline.options import read_options
from barnabas.pipeline.origin import LogKey, OffsetRange
from barnabas.pipeline.schemas import TABLES
from barnabas.pipeline.sources import LogReader
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.record_batch import Record, build, read_header

COUNT = 8
BITS = {"base offset": 3, "length": 9, "epoch": 13, "checksum": 18, "last offset delta": 23, "value": 70}


class Broker:
    """One batch an offset, of which a fetch gives some. What is damaged it finds by the offsets around it."""

    def __init__(self, log: list[bytearray], at_once: int) -> None:
        self.log = log
        self.at_once = at_once

    def leader_of(self, topic: str, partition: int) -> int:
        return 0

    def wait(self, deadline: float, why: str, topics: object = None) -> None:
        raise AssertionError(why)

    def send(self, broker_id: int, api_key: ApiKey, request: Any) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        data = b"".join(self.log[offset : offset + self.at_once])
        part = messages.FetchResponse.PartitionData(
            partition_index=0, high_watermark=COUNT, last_stable_offset=COUNT, aborted_transactions=[], records=data
        )
        topic = messages.FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
        return SimpleNamespace(receive=lambda: messages.FetchResponse(responses=[topic]))


def values(log: list[bytearray], at_once: int, aside: Path) -> list[bytes]:
    options = read_options({"brokers": "a:1", "aside": str(aside)})
    reader = LogReader(TABLES["barnabas.records"], TABLES["barnabas.records"].spark, options)
    broker: Any = Broker(log, at_once)
    fetching = Fetching(broker, OffsetRange(LogKey("t", 0), 0, COUNT), options)
    return [row["value"] for one in fetching.batches() for some in reader.reading.rows(one) for row in some.to_pylist()]


@pytest.mark.parametrize("at_once", [2, 3, COUNT])
@pytest.mark.parametrize("damaged", [0, 3, COUNT - 1])
@pytest.mark.parametrize("place", BITS)
def test_one_damaged_batch(tmp_path: Path, place: str, damaged: int, at_once: int) -> None:
    log = [build([Record(-1, 1, None, b"value %d" % number)], base_offset=number) for number in range(COUNT)]
    assert read_header(log[3]).base_offset == 3
    log[damaged][BITS[place]] ^= 64
    good = [b"value %d" % number for number in range(COUNT) if number != damaged]
    found = values(log, at_once, tmp_path)
    if place == "epoch":  # it is not part of what the checksum covers, and any number is one
        good.insert(damaged, b"value %d" % damaged)
        assert read_aside(str(tmp_path)) == []
    else:
        assert len(read_aside(str(tmp_path))) == 1
    assert found == good
