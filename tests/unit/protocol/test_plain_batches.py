"""`build_plain`, which coordinators use, writes what `build` writes."""

import random

import pytest
from barnabas.protocol import record_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import PlainRecords, Record


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("seed", range(20))
def test_the_same_bytes(seed: int, compression: Compression) -> None:
    rng = random.Random(seed)

    def content() -> bytes:
        return rng.choice((b"", rng.randbytes(rng.randrange(1, 70)), rng.randbytes(rng.choice((63, 64, 9000)))))

    rows = [(content(), rng.choice((None, content()))) for _ in range(rng.choice((1, 2, 70)))]
    records = [Record(timestamp=1_000_000, key=key, value=value) for key, value in rows]
    expected = record_batch.build(records, compression=compression, base_sequence=0)
    plain = PlainRecords()
    for key, value in rows:
        plain.add(key, value)
    assert record_batch.build_plain(plain, 1_000_000, codec=compression, base_sequence=0) == expected


def test_no_records() -> None:
    with pytest.raises(ValueError, match="needs a record"):
        record_batch.build_plain(PlainRecords(), 0)
