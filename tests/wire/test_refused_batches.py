"""The error code for each kind of invalid batch, in Produce 9.

Kafka 4.1.0 answers the same bytes with the same codes, unless a comment says otherwise.
"""

import struct
from typing import Any

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import HEADER_BYTES
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ProduceRequest
from barnabas.protocol.record_batch import Record

World = Any  # of conftest.py

TIMESTAMP = 1_700_000_000_000
TWO = [Record(timestamp=TIMESTAMP, key=b"k", value=b"v"), Record(timestamp=TIMESTAMP + 1, key=b"k", value=b"w")]
GOOD = bytes(record_batch.build(TWO))
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
UNKNOWN, NONE = ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE


def changed(layout: str, position: int, value: int, batch: bytes = GOOD) -> bytes:
    """The batch with another value at a position, and the checksum that fits."""
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    struct.pack_into(">I", copy, 17, crc32c(memoryview(copy)[21:]))
    return bytes(copy)


def with_payload(codec: Compression, payload: bytes) -> bytes:
    """Other records behind the same header."""
    batch = GOOD[:HEADER_BYTES] + compress(codec, payload)
    return changed(">h", 21, codec, changed(">i", 8, len(batch) - 12, batch))


CASES = {
    "a good one": (GOOD, NONE),
    "nothing": (b"", INVALID),
    "magic 3": (changed("b", 16, 3), CORRUPT),
    "magic -1": (changed("b", 16, -1), CORRUPT),
    "codec 5": (changed(">h", 21, 5), INVALID),  # Kafka: UNKNOWN_SERVER_ERROR
    "length 48": (changed(">i", 8, 48), CORRUPT),
    "length 0": (changed(">i", 8, 0), CORRUPT),
    "length -1": (changed(">i", 8, -1), CORRUPT),
    "length one too large": (changed(">i", 8, len(GOOD) - 11), INVALID),
    "length one too small": (changed(">i", 8, len(GOOD) - 13), INVALID),  # Kafka: CORRUPT_MESSAGE
    "last offset delta 5": (changed(">i", 23, 5), INVALID),
    "last offset delta 0": (changed(">i", 23, 0), INVALID),
    "last offset delta -1": (changed(">i", 23, -1), INVALID),
    "count 0": (changed(">i", 57, 0), INVALID),
    "count 1": (changed(">i", 57, 1), INVALID),
    "count 3": (changed(">i", 57, 3), INVALID),
    "count -1": (changed(">i", 57, -1), INVALID),
    "one record too many": (changed(">i", 57, 3, changed(">i", 23, 2)), INVALID),
    "one record too few": (changed(">i", 57, 1, changed(">i", 23, 0)), INVALID),
    "base offset": (bytes(record_batch.build(TWO, base_offset=5)), INVALID),
    "checksum": (GOOD[:-1] + b"y", CORRUPT),
    "two batches": (GOOD + GOOD, INVALID),
    "bytes behind": (GOOD + b"12345", INVALID),  # Kafka ignores fewer than 17 bytes
    "cut off in the header": (GOOD[:20], INVALID),
    "cut off in the records": (GOOD[:61], INVALID),
    "control": (bytes(record_batch.build(TWO, control=True)), INVALID),
    "producer without sequence": (bytes(record_batch.build(TWO, producer_id=5, producer_epoch=0)), INVALID),
    "sequence without producer": (bytes(record_batch.build(TWO, base_sequence=3)), NONE),
    "record too long": (changed("b", 61, GOOD[61] + 2), INVALID),
    "record too short": (changed("b", 61, GOOD[61] - 2), INVALID),
    "record of negative length": (changed("b", 61, 1), INVALID),
    "offset delta": (changed("b", 64, 4), NONE),  # uncompressed records are not opened, as in Kafka
    "magic 1": (changed("b", 16, 1), INVALID),
    "magic 1, length 14": (changed("b", 16, 1, changed(">i", 8, 14)), INVALID),
    "magic 1, length 13": (changed("b", 16, 1, changed(">i", 8, 13)), CORRUPT),
    "zeros": (bytes(61), CORRUPT),
    "attribute bit 7": (changed(">h", 21, 0x80), NONE),
    "delete horizon": (changed(">h", 21, 0x40), NONE),
    "newest timestamp": (changed(">q", 35, 99), NONE),
    "gzip of nonsense": (changed(">h", 21, 1), UNKNOWN),
}
_payload = GOOD[HEADER_BYTES:]
for _codec in Compression:
    for _what, _records in {"a byte more": _payload + b"x", "a byte less": _payload[:-1], "no records": b""}.items():
        CASES[f"{_codec.name.lower()} with {_what}"] = (with_payload(_codec, _records), INVALID)
    if _codec:  # Kafka says UNKNOWN_SERVER_ERROR for the offset delta, and takes the length
        for _what, _records in {
            "another offset delta": _payload[:3] + b"\x04" + _payload[4:],
            "another length": b"\x12" + _payload[1:],
        }.items():
            CASES[f"{_codec.name.lower()} with {_what}"] = (with_payload(_codec, _records), INVALID)


@pytest.mark.parametrize("case", CASES)
def test_what_the_client_is_told(world: World, case: str) -> None:
    records, error = CASES[case]
    if "refused-batches" not in world.broker.metadata_cache.topics:
        world.create_topic("refused-batches")
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="refused-batches", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])
    (answer,) = world.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses
    assert (ErrorCode(answer.error_code), answer.base_offset >= 0) == (error, not error)
