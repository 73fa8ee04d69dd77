"""Small batches that unpack to very much, from many producers at once: the memory that this takes is bounded."""

from collections.abc import Callable
from pathlib import Path

import pytest
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import Record, build, checksum
from barnabas.storage.validation import OPENED_AT_ONCE_MAX
from broker_process import Client, Process, batch, produce_request

PRODUCERS = 8
TAKEN_BYTES = 134_217_728  # max.message.unpacked.bytes
COPIES = 5  # of one unpacked batch in memory at most, while it is compressed again


def peak_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def bomb(size: int, count: int) -> bytearray:
    """A batch of `count` records whose compressed part unpacks to nearly `size` bytes."""
    plain = build([Record(timestamp=0, value=bytes((size - 100) // count - 20))] * count)
    header = build([Record(timestamp=0, value=b"")] * count, compression=Compression.ZSTD)[:61]
    whole = header + compress(Compression.ZSTD, bytes(plain[61:]))
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = checksum(memoryview(whole), 0, len(whole)).to_bytes(4, "big")
    return whole


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is looked up in /proc")
@pytest.mark.takes_turns("codec", "count")
@pytest.mark.parametrize("codec", ["producer", "lz4"])
@pytest.mark.parametrize("count", [1, OPENED_AT_ONCE_MAX + 1])
def test_many_bombs_at_once_take_the_memory_of_one(start: Callable[..., Process], codec: str, count: int) -> None:
    broker = start()
    neighbour = Client(broker.port)
    assert neighbour.create_topic("struck", 1, compression_type=codec) == ErrorCode.NONE
    before = peak_bytes(broker)
    within, beyond = bomb(TAKEN_BYTES, count), bomb(TAKEN_BYTES * 2, count)
    producers = [Client(broker.port, 60) for _ in range(PRODUCERS)]
    for number, producer in enumerate(producers):
        producer.send(ApiKey.PRODUCE, 9, produce_request([("struck", 0, beyond if number % 2 else within)]))
    told = [producer.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].error_code for producer in producers]
    assert told == [ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE] * (PRODUCERS // 2)
    assert peak_bytes(broker) - before < COPIES * TAKEN_BYTES
    assert neighbour.produce("struck", 0, batch([b"v"])).error_code == ErrorCode.NONE
